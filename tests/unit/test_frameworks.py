"""The table of the frameworks' suites: how a run is judged, and that the page has the results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.lab.frameworks.__main__ import judge
from benchmarks.lab.frameworks.suites import OWN, SUITES, Suite
from benchmarks.lab.frameworks.table import render

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "lab" / "frameworks" / "results.json").read_text())


def test_the_page_has_the_results() -> None:
    page = (ROOT / "docs" / "evidence" / "frameworks.md").read_text()
    assert render(RESULTS) in page


def test_every_suite_has_a_row() -> None:
    """A suite that was never run shows nothing; each test is in one column."""
    names = {suite.framework for suites in SUITES.values() for suite in suites}
    assert set(RESULTS) == names | {suite.framework for suite in OWN.values() if suite.agents}
    for row in RESULTS.values():
        apart = sum(map(len, row["inapplicable"].values()))
        apart += len(row["failed_there_too"]) + len(row["failed"])
        assert row["passed"] + apart == row["tests"]


def test_what_a_run_shows() -> None:
    """What passes counts, though it was listed as inapplicable; what fails with both is named."""
    suite = Suite("x", "x", (), "tests", (), "x", inapplicable={"test_sql": "SQL"})
    own = {"a::test_sql_a": "passed", "a::test_sql_b": "passed", "a::test_c": "failed"}
    own |= {"a::test_d": "passed", "a::test_e": "passed"}
    ours = {**own, "a::test_sql_b": "failed", "a::test_d": "failed"}
    row = judge(suite, own, ours)
    assert (row["tests"], row["own"], row["passed"]) == (5, 4, 2)
    assert row["inapplicable"] == {"SQL": ["a::test_sql_b"]}
    assert row["failed_there_too"] == ["a::test_c"]
    assert row["failed"] == ["a::test_d"]


@pytest.mark.blocking
def test_every_suite_names_adapters_that_there_are() -> None:
    """Their lines are counted when a suite has run."""
    named = {name for suite in OWN.values() for name in suite.modules}
    named |= {name for every in SUITES.values() for suite in every for name in suite.modules}
    there = {path.stem for path in (ROOT / "remora" / "adapters").glob("*.py")}
    assert named <= there
