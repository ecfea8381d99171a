"""Appends to a runtime that has been busy for a while."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.claim import Case
from benchmarks.speed.claims.append import FASTER as FASTER_APPENDS
from benchmarks.speed.claims.append import append_one
from benchmarks.speed.closed_loop import measured, ran

NAME = "sustained"
TITLE = "Durable appends"
WORK = (
    "Each session has one caller, who appends a message of 300 bytes, waits until it is on the "
    "disk, and appends the next, for fifteen seconds. Figures are of the last five. "
    "`settled_cpu_us_per` is the processor time of an append with its background work, and "
    "`apart_cpu_us_per` is the part of a second process. Background work goes on for `behind_s` "
    "after the last append. *prototype* is a hundred lines of asyncio: dicts, and a thread that "
    "commits."
)
CONTESTANTS = (
    "remora",
    "remora-bare",
    "remora-uvloop",
    "openai_agents",
    "langgraph_store",
    "dict-sqlite",
    "prototype",
)
FASTER = FASTER_APPENDS


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
