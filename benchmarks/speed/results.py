"""What the figures say: medians, ratios paired by repeat, bars met or missed. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.speed.claim import Bar, higher_is_better

__all__ = ["Figures", "Spread", "Verdict", "held", "joined", "ratios", "spread"]

Figures = Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]]
"""Of one claim: case -> contestant -> figure -> one value for each repeat, None where the
measurement failed.
"""

_NOISE = 1.1


@dataclass(frozen=True)
class Spread:
    """A figure over the repeats."""

    median: float
    least: float
    most: float
    count: int


@dataclass(frozen=True)
class Verdict:
    """A bar, what was measured for it, and whether it is met; None without a measurement of both
    sides.

    Attributes:
        bar: the goal.
        measured: its figure, or ratio.
        recorded: the same of an earlier run, to compare with.
    """

    bar: Bar
    measured: Spread | None
    recorded: Spread | None = None

    @property
    def met(self) -> bool | None:
        """Whether the median is within the bar."""
        if self.measured is None:
            return None
        above = self.bar.least is None or self.measured.median >= self.bar.least
        return above and (self.bar.most is None or self.measured.median <= self.bar.most)

    @property
    def worse(self) -> bool:
        """Whether the best repeat is worse than the worst recorded one, by more than a tenth."""
        if self.measured is None or self.recorded is None:
            return False
        if self.bar.least is not None:
            return self.measured.most * _NOISE < self.recorded.least
        return self.measured.least > self.recorded.most * _NOISE


def joined(several: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Results of several runs as one: each case is whole, and the last run's that measured it, as
    ratios are within a run. A run of which nothing is left is not named.
    """
    whole: dict[str, Any] = {"runs": [], "claims": {}, "sizes": {}, "failures": {}}
    for results in several:
        newer = {place for run in results["runs"] for place in _places(run["cases"])}
        runs = [_without(run, newer) for run in whole["runs"]] + results["runs"]
        whole["runs"] = [run for run in runs if run["cases"]]
        for claim, case in newer:
            whole["failures"].get(claim, {}).pop(case, None)
        for part in ("claims", "sizes", "failures"):
            for claim, cases in results[part].items():
                whole[part].setdefault(claim, {}).update(cases)
    return whole


def _places(cases: Mapping[str, Sequence[str]]) -> set[tuple[str, str]]:
    return {(claim, case) for claim, names in cases.items() for case in names}


def _without(run: dict[str, Any], places: set[tuple[str, str]]) -> dict[str, Any]:
    """A run without these cases."""
    left = {
        claim: [case for case in names if (claim, case) not in places]
        for claim, names in run["cases"].items()
    }
    return run | {"cases": {claim: names for claim, names in left.items() if names}}


def spread(values: Sequence[float | None]) -> Spread | None:
    """Median, least and most of the repeats that succeeded; None without any."""
    found = [value for value in values if value is not None]
    return Spread(statistics.median(found), min(found), max(found), len(found)) if found else None


def ratios(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float | None]:
    """Ours by theirs, repeat by repeat: the two were measured one after the other. None where
    either is missing.
    """
    return [
        mine / other if mine is not None and other else None
        for mine, other in zip(ours, theirs, strict=False)
    ]


def best(several: Sequence[Sequence[float | None]], *, highest: bool) -> list[float | None]:
    """The best value of each repeat; None where nobody has one."""
    found: list[float | None] = []
    for repeat in range(max(map(len, several), default=0)):
        values = [one[repeat] for one in several if repeat < len(one)]
        there = [value for value in values if value is not None]
        found.append((max(there) if highest else min(there)) if there else None)
    return found


def held(bar: Bar, figures: Figures, recorded: Figures | None = None) -> Verdict:
    """Hold the figures of a claim against one of its bars, and against recorded ones."""
    return Verdict(bar, _measured(bar, figures), _measured(bar, recorded or {}))


def _measured(bar: Bar, figures: Figures) -> Spread | None:
    ours = figures.get(bar.case, {}).get(bar.contestant, {}).get(bar.figure, [])
    if not bar.others:
        return spread(ours)
    case = figures.get(bar.than_case or bar.case, {})
    theirs = [case[other][bar.figure] for other in bar.others if bar.figure in case.get(other, {})]
    return spread(ratios(ours, best(theirs, highest=higher_is_better(bar.figure))))
