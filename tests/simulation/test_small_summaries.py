"""Seeds whose summaries have hardly any room: what is lost is named, and the rule that says so is
reached.
"""

from __future__ import annotations

import pytest

from remora.runtime.probes import count_probes
from tests.checker.exploring import draw_case, draw_settings, play, report
from tests.checker.history import Shown
from tests.checker.shrinking import Case

pytestmark = pytest.mark.blocking
_SEEDS = 240
_CALLS = 40


def _small_cases() -> list[Case]:
    """Cases with longer programs, whose sessions compact often."""
    small = [seed for seed in range(4 * _SEEDS) if not draw_settings(seed).roomy]
    return [draw_case(seed, size=_CALLS) for seed in small[: _SEEDS // 2]]


def _rests_on_the_range(shown: Shown) -> bool:
    """Whether a load lacks messages, and is in order only since it names them."""
    return shown.degraded is not None and shown.budget is None


def test_lost_messages_are_in_the_degraded_range() -> None:
    """G6, S5.05: with and without a model, through failures, power cuts and repairs."""
    named = 0
    with count_probes() as counts:
        for case in _small_cases():
            run = play(case)
            assert not run.violations, report(run)
            named += sum(
                _rests_on_the_range(one.result)
                for one in run.history.records
                if isinstance(one.result, Shown)
            )
    assert named > 20
    for branch in ("messages_lost", "summary_too_long", "repair_started", "session_resummarized"):
        assert counts[branch], branch
