"""The speed suite: it runs, says what it measured, and does not hide what failed. How fast anything
is is no test's business.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed.__main__ import keep
from benchmarks.speed.claim import Case
from benchmarks.speed.claims import CLAIMS, claim
from benchmarks.speed.measuring import in_smoke, measured
from benchmarks.speed.table import case_text, rendered
from benchmarks.speed.vocabularies import laid_out
from tests.programs import ROOT, run_program

pytestmark = pytest.mark.blocking  # it waits for processes


@pytest.mark.nightly
def test_smoke(tmp_path: Path) -> None:
    """S4.31: remora and the limits, in each case of each claim: figures, and a row in the page."""
    file, page = tmp_path / "speed.json", tmp_path / "speed.md"
    words = ["benchmarks.speed", "--smoke", "--json", file, "--table", page]
    run_program(*words, "--dir", tmp_path, "--venvs", tmp_path)
    results, text = json.loads(file.read_text()), page.read_text()
    assert results["failures"] == {}
    assert list(results["claims"]) == list(CLAIMS)
    for name in CLAIMS:
        module = claim(name)
        assert module.WORK in text
        for case in module.cases(smoke=True):
            found = results["claims"][name][case.name]
            contestants = case.contestants or module.CONTESTANTS
            assert set(found) == {one for one in contestants if in_smoke(one)}
            for contestant, figures in found.items():
                assert f"| {case_text(case.name, case.sizes)} | {contestant} |" in text
                assert figures
                for values in figures.values():
                    assert len(values) == 1
                    assert math.isfinite(values[0])
            assert "lost" not in found["remora"]


def test_what_fails_is_shown(tmp_path: Path) -> None:
    """S4.31: a contestant that raises, and one that takes too long, have a row that says so."""
    vocabularies = laid_out(tmp_path / "vocabularies")
    parts = ("versions", "claims", "sizes", "failures")
    results: dict[str, Any] = {"runs": [], **{part: {} for part in parts}}
    for contestant, limit_s in (("nobody", 60.0), ("remora", 0.01)):
        case = Case("load", "64", {"messages": 64}, limit_s=limit_s)
        found = measured(
            case,
            contestant,
            Path(sys.executable),
            directory=tmp_path,
            seed=1,
            smoke=True,
            vocabularies=vocabularies,
        )
        keep(results, case, 0, contestant, found)
    page = rendered(results, {"load": claim("load")})
    assert (
        "| 64 messages | nobody | ModuleNotFoundError: No module named "
        "'benchmarks.speed.stores.nobody' |" in page
    )
    assert "| 64 messages | remora | did not end within 0 s |" in page
    assert not list(tmp_path.glob("speed-*"))


def test_messages_that_are_lost_are_counted(tmp_path: Path) -> None:
    """S4.31, G3: the harness looks into the file: what was acknowledged and is not there is a
    figure.
    """
    forgetful = """
import asyncio, sys
from pathlib import Path
from benchmarks.speed.claims.append import append_one
from benchmarks.speed.closed_loop import measured
from benchmarks.speed.stores import dicts, opened

class Forgetful(dicts.DictsAndSqlite):
    async def append(self, session, role, text):
        if len(self._sessions[session]) % 3 == 2:
            self._sessions[session].append(None)
        else:
            await super().append(session, role, text)

dicts.DictsAndSqlite = Forgetful
print(asyncio.run(measured(
    "dict-sqlite", Path(sys.argv[1]), append_one, sessions=4, seed=1, box_s=0.2, prepare_s=600.0, filled=9
)).get("lost", 0) > 4)
"""  # noqa: E501
    command = [sys.executable, "-c", forgetful, str(tmp_path)]
    vocabularies = str(laid_out(tmp_path / "vocabularies"))
    environment = {"PYTHONPATH": str(ROOT), "TIKTOKEN_CACHE_DIR": vocabularies}
    done = subprocess.run(
        command, check=True, cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == "True"
