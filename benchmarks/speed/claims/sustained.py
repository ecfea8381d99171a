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
    "So many sessions, each with one caller that appends a message of 300 bytes, waits until it is "
    "on the disk, and appends the next, for fifteen seconds. *remora* is the default install: it "
    "counts tokens, summarizes, and indexes into long-term memory; *remora-bare* counts alone. "
    "`settled_cpu_us_per` is the processor time of the server's process for each append, from the "
    "first of all until nothing is left to do in the background, and `apart_cpu_us_per` that of "
    "the process that computes for it. Rates and times are of the last five seconds, in which all "
    "of the background is at work. Callers who append again as soon as they are answered send more "
    "than two cores can summarize and index: `behind_s` is how long that goes on after the last of "
    "them. *openai_agents* and *langgraph_store* count no tokens and do neither; *prototype* is "
    "a hundred lines of asyncio with dicts and a thread that commits what waits; *dict-sqlite* "
    "has a dict and commits where it is."
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
