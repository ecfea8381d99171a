"""The notebooks of the examples, cell by cell: they show what is stored in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.notebooks import NOTEBOOKS, outputs, run_notebook
from tests.programs import PATIENT

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
async def test_a_notebook_shows_what_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `python -m tests.notebooks` after a change that is meant."""
    for name, value in PATIENT.items():
        monkeypatch.setenv(name, value)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert await run_notebook(notebook) == outputs(notebook)
