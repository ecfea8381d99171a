"""The whole runtime under seeds and under hypothesis: whatever the schedule, faults and power cuts,
all guarantees hold.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given

from remora.runtime.cell import Cell
from remora.testing import count_probes
from tests.checker.__main__ import main
from tests.checker.exploring import draw_case, draw_settings, play, report, smallest
from tests.checker.history import Shown
from tests.checker.shrinking import Case
from tests.checker.strategies import cases, schedules

pytestmark = pytest.mark.blocking  # SQLite's calls are steps of the loop here

SCALE = int(os.environ.get("REMORA_SEEDS", "1"))
"""How many times as many seeds are played, for a soak."""


@pytest.mark.parametrize(
    ("journal", "long_term", "seeds", "new"),
    [("memory", "memory", 370, 30), ("sqlite", "memory", 90, 10), ("sqlite", "lance", 9, 1)],
    ids=["in memory", "SQLite", "SQLite and LanceDB"],
)
def test_seeds_keep_every_guarantee(
    journal: Any, long_term: Any, seeds: int, new: int, new_seeds: Callable[[int], list[int]]
) -> None:
    """G1 to G9, G11, G12, S5.05: programs of calls through faults and power cuts, some of them new
    in each run; at least 90 % of them run differently.
    """
    schedules = set()
    for seed in (*new_seeds(new * SCALE), *range(seeds * SCALE)):
        run = play(draw_case(seed), journal=journal, long_term=long_term)
        schedules.add(run.fingerprints)
        assert not run.violations, (
            f"{report(run)} --journal {journal} --long-term {long_term}\n"
            f"again: python -m tests.checker 1 --first {seed}"
        )
    assert len(schedules) >= 0.9 * (seeds + new) * SCALE


def small_cases() -> list[Case]:
    """Cases with longer programs, whose sessions compact often."""
    small = [seed for seed in range(960) if not draw_settings(seed).roomy]
    return [draw_case(seed, size=40) for seed in small[:60]]


def rests_on_the_range(shown: Shown) -> bool:
    """Whether a load lacks messages, and is in order only since it names them."""
    return shown.degraded is not None and shown.budget is None


def test_lost_messages_are_in_the_degraded_range() -> None:
    """G6, S5.05: with and without a model, through failures, power cuts and repairs."""
    named = 0
    with count_probes() as counts:
        for case in small_cases():
            run = play(case)
            assert not run.violations, report(run)
            named += sum(
                rests_on_the_range(one.result)
                for one in run.history.records
                if isinstance(one.result, Shown)
            )
    assert named > 20
    for branch in ("messages_lost", "summary_too_long", "repair_started", "session_resummarized"):
        assert counts[branch], branch


@pytest.mark.limit(900)  # to make a failure small takes minutes
@pytest.mark.parametrize("journal", ["memory", "sqlite"])
@given(cases(), schedules())
def test_programs_keep_every_guarantee(journal: Any, case: Case, schedule: random.Random) -> None:
    """G1 to G9, G11, G12, S5.05: hypothesis draws the program, its faults, power cuts and schedule,
    and shrinks them all; over the real SQLite, too.
    """
    run = play(case, rng=schedule, journal=journal)
    assert not run.violations, report(run)


def test_a_case_plays_the_same_each_time() -> None:
    """S5.05: the seed of a failure is all that is needed to see it again."""
    for seed in range(12):
        first, second = play(draw_case(seed)), play(draw_case(seed))
        assert (first.fingerprints, str(first.history)) == (
            second.fingerprints,
            str(second.history),
        )


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: replies do not wait for the commit."""

    def reply(self: Cell, promise: Any, value: Any, deadline: float) -> None:
        promise.resolve(value)

    monkeypatch.setattr(Cell, "reply", reply)


@pytest.mark.usefixtures("hasty")
def test_a_bug_is_found_and_made_small() -> None:
    """S5.05: a runtime that answers before the commit is caught, and by what is told nobody has to
    guess. Which calls show the bug depends on the schedule, so the smallest of three cases counts.
    """
    runs = (play(draw_case(seed)) for seed in range(200))
    violating = list(islice((run for run in runs if run.violations), 3))
    found = [(run, *smallest(run, tries=400)) for run in violating]
    failed, small, shrunk = min(found, key=lambda one: one[2].case.program.size)
    assert shrunk.case.program.size <= 2
    assert len(shrunk.case.crashes) + len(shrunk.case.faults) <= 1
    again = play(shrunk.case)
    assert again.fingerprints == small.fingerprints
    told = report(small)
    assert f"seed {failed.case.seed}" in told
    assert ".append(" in told
    assert "violations\n  G" in told


@pytest.mark.usefixtures("hasty")
def test_the_command_prints_a_counterexample(capsys: pytest.CaptureFixture[str]) -> None:
    """S5.05: ``python -m tests.checker`` ends with 1, and with the smallest program
    that it found.
    """
    assert main(["200", "--tries", "60"]) == 1
    told = capsys.readouterr().out
    assert "1 violated" in told
    assert "violations\n  G" in told
    case = told.rpartition("--case '")[2].strip().removesuffix("'")
    assert main(["--case", case]) == 1
    assert told.endswith(capsys.readouterr().out)


def test_what_is_no_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """S5.05: a case that was copied wrong is said to be one."""
    assert main(["--case", '{"program": 3}']) == 2
    assert "no case of the simulation" in capsys.readouterr().err


def test_the_command_counts_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    """S5.05: seeds, steps and schedules, and on demand which rare branches were taken, and each
    history.
    """
    assert main(["3", "--first", "7", "--probes", "--history"]) == 0
    told = capsys.readouterr().out
    assert "3 seeds" in told
    assert "0 violated" in told
    assert "seed 8" in told
    assert "gate_broken" in told
