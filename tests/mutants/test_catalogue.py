"""The catalogue of planted bugs is sound, and the suite can fail: some of them are planted here,
and noticed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import CATALOGUE
from tests.mutants.plant import ROOT, main, plant, written

QUICK = (
    "queued_reply_before_commit",
    "drain_dies_with_its_asker",
    "expired_message_still_runs",
    "passivation_forgets_the_keys",
    "job_begins_before_its_commit",
)
_SEEDS = 100


def test_they_can_be_planted() -> None:
    """S5.05: what a planted bug replaces is there exactly once, and what comes of it is Python, and
    something else.
    """
    for mutant in CATALOGUE.values():
        before, after = (ROOT / mutant.path).read_text(), mutant.planted(ROOT)
        assert compile(after, mutant.path, "exec") != compile(before, mutant.path, "exec"), mutant


def test_names_are_their_own() -> None:
    """S5.05: each bug has a name and a change of its own, says what it breaks, and names tests
    where no seed can notice it.
    """
    assert len({mutant.change for mutant in CATALOGUE.values()}) == len(CATALOGUE) >= 24
    for mutant in CATALOGUE.values():
        assert mutant.guarantee.startswith("G")
        assert mutant.simulated or mutant.tests
        assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)


@pytest.mark.nightly
@pytest.mark.parametrize("name", QUICK)
def test_seeds_notice_it(name: str) -> None:
    """S5.05: the simulation fails when there is something to fail for: within a hundred seeds,
    which break nothing without it.
    """
    outcome = plant(CATALOGUE[name], firsts=(0,), seeds=_SEEDS)
    assert outcome.by_seeds, outcome


def test_what_rots_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """S5.05: a bug whose place is gone is not passed over, an unknown one is refused, and without a
    name all are listed.
    """
    mutant = next(iter(CATALOGUE.values()))
    (tmp_path / mutant.path).parent.mkdir(parents=True)
    (tmp_path / mutant.path).write_text("nothing of the kind\n")
    with pytest.raises(ValueError, match=f"{mutant.name}: this is 0 times"):
        mutant.planted(tmp_path)
    with pytest.raises(SystemExit):
        main(["no_such_bug"])
    capsys.readouterr()
    assert main([]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in CATALOGUE)


def test_the_table_stays_between_its_marks(tmp_path: Path) -> None:
    """S5.05: what stands around the table is left as it is, however often it is written."""
    path = tmp_path / "testing.md"
    path.write_text("# Testing\n\n<!-- mutants: begin -->\nold\n<!-- mutants: end -->\n\n## Next\n")
    written(path, "new")
    written(path, "newer")
    assert (
        path.read_text()
        == "# Testing\n\n<!-- mutants: begin -->\nnewer\n<!-- mutants: end -->\n\n## Next\n"
    )
