"""What may happen to owners, PostgreSQL, cables, the object store and releases, once each.

`benchmarks.failures` does all of it, and often; failovers of PostgreSQL are also in
`test_postgres_failover`. ``REMORA_FAILURES=20`` in the environment is how often each is done.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.failures.table import FAILURES
from tests.workers import OWNERS

pytestmark = [pytest.mark.anyio, *OWNERS]
_TRIES = int(os.environ.get("REMORA_FAILURES", "1"))


@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("owner killed", 1),
        ("owner stopped, and continued", 1),
        ("owner told to leave", 1),
        ("PostgreSQL crashes", 0),
        ("disk of PostgreSQL full", 0),
        ("owner cut from PostgreSQL", 1),
        ("owner cut from workers", 0),
        ("object store away", 0),
        ("releases of owners differ", 1),
    ],
)
async def test_a_failure(name: str, moves: int, tmp_path: Path) -> None:
    """G2, G3, G4, G7, G12: nothing is lost, doubled, stale or out of order; another process owns
    the memory afterwards only where the first cannot.
    """
    found = await FAILURES[name](tmp_path, _TRIES, 1)
    assert found.verdict.faults == 0, found
    assert found.verdict.acknowledged >= 32  # `Pair.a_moment` lasts until so many are
    assert found.moved == _TRIES * moves
