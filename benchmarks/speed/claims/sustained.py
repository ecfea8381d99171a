"""Appends to a runtime that has been busy for a while."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.claim import Bar, Case
from benchmarks.speed.claims.append import DEFAULT_TO_BARE, append_one
from benchmarks.speed.closed_loop import measured, ran

NAME = "sustained"
TITLE = "Appends to a busy runtime"
WORK = (
    "As *Durable appends*, after its callers have appended for ten seconds: tables of long-term "
    "memory are then large enough to be rewritten. Callers who append again as soon as they are "
    "answered send more than two cores can summarize and index; `behind_s` is how long that goes "
    "on after the last of them. `settled_cpu_us_per` is the processor time of the server's process "
    "for each append, from the first of all until nothing is left to do, and `apart_cpu_us_per` "
    "that of the process that computes for it."
)
CONTESTANTS = ("remora", "remora-bare", "remora-uvloop")
BARS = (
    *DEFAULT_TO_BARE,
    Bar(
        "16",
        "from the first append until settled: ≤ 1.4 times the server's processor time of the bare "
        "configuration",
        "settled_cpu_us_per",
        "remora-bare",
        most=1.4,
    ),
)


def cases(smoke: bool) -> Sequence[Case]:
    if smoke:
        return [Case(NAME, "16", {"sessions": 16})]
    return [
        Case(NAME, str(sessions), {"sessions": sessions}, least_repeats=3)
        for sessions in (1, 16, 256)
    ]


def measure(
    contestant: str, case: Case, directory: Path, seed: int, smoke: bool
) -> dict[str, float]:
    figures: dict[str, float] = ran(
        lambda: measured(
            contestant,
            directory,
            append_one,
            sessions=int(case.sizes["sessions"]),
            seed=seed,
            box_s=0.3 if smoke else 5.0,
            prepare_s=1.0 if smoke else 4.0,
            filled=1,
            warm_s=0.3 if smoke else 10.0,
        ),
        contestant,
    )
    return figures
