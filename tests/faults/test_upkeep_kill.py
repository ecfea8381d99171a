"""``kill -9`` within each kind of upkeep; `REMORA_KILLS` says how often."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.upkeep_kills import KINDS, kill_within

KILLS = int(os.environ.get("REMORA_KILLS", "2"))


@pytest.mark.blocking
@pytest.mark.parametrize("kind", KINDS)
def test_kill_within_upkeep(kind: str, tmp_path: Path) -> None:
    """G3, G4, G7, G13: nothing is lost, doubled, damaged or refused at the next start, and nothing
    of a forgotten user is left in a file.
    """
    figures = kill_within(kind, tmp_path, KILLS)
    assert figures.wrong == []
    assert figures.kills == KILLS
    assert figures.acknowledged
