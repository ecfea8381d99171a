"""The programs of the pages: each runs as a reader would run it, and prints what the page shows."""

from __future__ import annotations

import io
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.programs import PATIENT, ROOT

PROGRAM = re.compile(r"<!-- runs -->\n```python\n(.*?)```\n\n```\n(.*?)```", re.DOTALL)
VARYING = re.compile(r"[0-9a-f]{32}|\b\d{1,2} [A-Z]\w+ \d{4}\b")
"""An id, a day."""

PROGRAMS = [
    pytest.param(code, shown, id=f"{page.relative_to(ROOT / 'docs')}-{number}")
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for number, (code, shown) in enumerate(PROGRAM.findall(page.read_text(encoding="utf-8")), 1)
]


@pytest.mark.blocking
@pytest.mark.parametrize(("code", "shown"), PROGRAMS)
def test_a_program_prints_what_its_page_shows(
    code: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a directory of its own; ids and days may differ."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "program.py"
    file.write_text(code, encoding="utf-8")
    out = io.StringIO()
    with redirect_stdout(out), patch.dict("os.environ", PATIENT):
        runpy.run_path(str(file), run_name="__main__")
    assert VARYING.sub("…", out.getvalue()) == VARYING.sub("…", shown)
