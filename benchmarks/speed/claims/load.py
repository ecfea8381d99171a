"""Loading a context: what a turn shows its model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.claim import Case
from benchmarks.speed.stores import opened
from benchmarks.speed.stores.store import counted
from benchmarks.speed.text import counter, percentile, role_of, texts

NAME = "load"
TITLE = "Load a context"
WORK = (
    "The newest messages of one session within 4 000 tokens, no query, again and again, without "
    "other load; messages of 300 bytes. Twenty are all shown; 64 just exceed the budget, so that "
    "2 000 show as many: flat means that these two cost the same. *remora* keeps all of them in "
    "its buffer, *remora-folds* has summarized what the budget does not hold, as by default. "
    "*limit* decodes the messages that are shown from the msgpack that remora keeps, *limit-dict* "
    "copies as many dicts. Libraries as with turns: *openai_agents*, *langgraph*, "
    "*langgraph_store*, *adk* and *mem0* count tokens at each load."
)
CONTESTANTS = (
    "remora",
    "remora-bare",
    "limit",
    "limit-dict",
    "remora-folds",
    "openai_agents",
    "langgraph",
    "llama_index",
    "adk",
    "mem0",
    "langgraph_store",
    "redis",
)
FASTER = {
    "remora-bare": "it shows no summary",
    "remora-folds": "its budget is smaller",
    "openai_agents": "it reads rows, and looks at no budget",
    "langgraph": "it returns the state that it holds",
    "llama_index": "it returns a list that it holds",
    "adk": "it returns a list that it holds",
    "mem0": "it reads rows, and looks at no budget",
    "langgraph_store": "it reads rows, and looks at no budget",
    "redis": "it reads what it is told, and looks at no budget",
}
_WARM = 20


def cases(smoke: bool) -> Sequence[Case]:
    return [
        Case(NAME, str(count), {"messages": count})
        for count in ((64,) if smoke else (20, 64, 2_000))
    ]


def measure(
    contestant: str, case: Case, directory: Path, seed: int, smoke: bool
) -> dict[str, float]:
    pool, loads, box_s = texts(seed, int(case.sizes["messages"])), 200 if smoke else 5_000, 3.0
    if contestant.startswith("limit"):
        latencies = _limit(pool, loads, copying=contestant == "limit-dict")
    else:
        latencies = asyncio.run(_loads(contestant, directory, pool, loads, box_s))
    return {"p50_us": percentile(latencies, 0.5) * 1e6, "p99_us": percentile(latencies, 0.99) * 1e6}


async def _loads(
    contestant: str, directory: Path, pool: Sequence[str], loads: int, box_s: float
) -> list[float]:
    """How long each took, until there are enough or time is up.

    Raises:
        ValueError: the context is empty, or messages are missing.
    """
    store = await opened(contestant, directory)
    latencies: list[float] = []
    stored = 0
    try:
        await store.fill("session", pool)
        await store.settle()
        shown = await store.load("session")
        until = time.perf_counter() + box_s
        for number in range(loads + _WARM):
            begun = time.perf_counter()
            if begun > until and latencies:
                break
            await store.load("session")
            # What is too slow to be warmed up is measured from the first.
            if number >= _WARM or time.perf_counter() - begun > box_s / _WARM:
                latencies.append(time.perf_counter() - begun)
    finally:
        stored = await store.close()
    if not shown or stored < len(pool):
        raise ValueError(f"{len(shown)} messages shown, {stored} of {len(pool)} stored")
    return latencies


def _limit(pool: Sequence[str], loads: int, *, copying: bool) -> list[float]:
    import msgspec  # noqa: PLC0415

    messages: list[dict[str, Any]] = [
        {"role": role_of(n), "content": text} for n, text in enumerate(pool)
    ]
    shown = counted(messages, lambda message: str(message["content"]), counter())
    encoded, decode = (
        [msgspec.msgpack.encode(message) for message in shown],
        msgspec.msgpack.Decoder().decode,
    )
    latencies = []
    for _ in range(loads):
        begun = time.perf_counter()
        _ = [dict(message) for message in shown] if copying else [decode(one) for one in encoded]
        latencies.append(time.perf_counter() - begun)
    return latencies
