"""Turns of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.speed.claim import Case
from benchmarks.speed.claims.append import FASTER as FASTER_APPENDS
from benchmarks.speed.closed_loop import measured, ran
from benchmarks.speed.measuring import ENVIRONMENTS
from benchmarks.speed.stores.store import Store

NAME = "turn"
TITLE = "Turns"
WORK = (
    "Each session has one caller, who appends a user's message, loads the newest messages within "
    "4,000 tokens, and appends the assistant's. A session begins with 64 messages of 300 bytes. "
    "From a library without a budget, the newest 150 messages are read and counted."
)
LIBRARIES = ("openai_agents", "langgraph", "llama_index", "adk", "mem0")
CONTESTANTS = (
    "remora",
    "remora-bare",
    "limit-dict",
    "prototype",
    "remora-uvloop",
    "remora-heuristic",
    "remora-folds",
    "dict-sqlite",
    "dict-sqlite-normal",
    *LIBRARIES,
    "langgraph_store",
    "redis",
    "redis-everysec",
)
_FILLED = 64

FASTER = FASTER_APPENDS


def cases(smoke: bool) -> Sequence[Case]:
    if smoke:
        return [Case(NAME, "16", {"sessions": 16})]
    return [
        Case(NAME, str(sessions), {"sessions": sessions}, least_repeats=7)
        for sessions in (1, 256, 2_000)
    ]


def measure(
    contestant: str, case: Case, directory: Path, seed: int, smoke: bool
) -> dict[str, float]:
    sessions = int(case.sizes["sessions"])
    # One round of so many turns takes the slowest of the libraries half a minute as it is.
    prepare_s = 1.0 if smoke else 6.0 if contestant in ENVIRONMENTS else 20.0
    figures: dict[str, float] = ran(
        lambda: measured(
            contestant, directory, _turn, sessions=sessions, seed=seed, filled=_FILLED,
            box_s=0.3 if smoke else 1.0 if sessions == 1 else 3.0, prepare_s=prepare_s,
        ),
        contestant,
    )  # fmt: skip
    return figures


async def _turn(store: Store, session: str, text: Callable[[], str]) -> int:
    await store.turn(session, text(), text())
    return 2
