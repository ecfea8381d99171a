"""Loading a context: what a turn shows its model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.claim import Bar, Case
from benchmarks.speed.text import counter, percentile, role_of, texts

NAME = "load"
TITLE = "Load a context"
WORK = (
    "The newest messages of a session within 4 000 tokens, no query, the session in memory; messages of 300 bytes. Twenty are "
    "all shown; sixty just exceed the budget, so that 2 000 show as many: flat means that these two cost the same. *limit* "
    "decodes the messages that are shown from the msgpack that remora keeps, *limit-dict* copies as many dicts."
)
CONTESTANTS = ("remora", "limit", "limit-dict")
BARS = (
    Bar("20", "< 100 µs p50, warm", "p50_us", most=100),
    Bar("60", "< 100 µs p50, warm", "p50_us", most=100),
    Bar("2000", "< 100 µs p50, warm", "p50_us", most=100),
    Bar("2000", "flat beyond the window: ≤ 1.2 of 60 messages", "p50_us", than_case="60", most=1.2),
)
BUDGET = 4_000


def cases(smoke: bool) -> Sequence[Case]:
    return [Case(NAME, str(count), {"messages": count}) for count in ((20,) if smoke else (20, 60, 2_000))]


def measure(contestant: str, case: Case, directory: Path, seed: int, smoke: bool) -> dict[str, float]:
    messages: list[dict[str, Any]] = [
        {"role": role_of(n), "content": text} for n, text in enumerate(texts(seed, int(case.sizes["messages"])))
    ]
    loads = 200 if smoke else 5_000
    if contestant == "remora":
        latencies = asyncio.run(_remora(messages, directory, loads))
    else:
        latencies = _limit(_window(messages), loads, copying=contestant == "limit-dict")
    return {"p50_us": percentile(latencies, 0.5) * 1e6, "p99_us": percentile(latencies, 0.99) * 1e6}


def _window(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    count, left, shown = counter(), BUDGET, 0
    for message in reversed(messages):
        left -= count(message["content"]) + 3
        if left < 0:
            break
        shown += 1
    return messages[len(messages) - shown :]


def _limit(shown: list[dict[str, Any]], loads: int, *, copying: bool) -> list[float]:
    import msgspec  # noqa: PLC0415

    encoded, decode = [msgspec.msgpack.encode(message) for message in shown], msgspec.msgpack.Decoder().decode
    latencies = []
    for _ in range(loads):
        begun = time.perf_counter()
        _ = [dict(message) for message in shown] if copying else [decode(one) for one in encoded]
        latencies.append(time.perf_counter() - begun)
    return latencies


async def _remora(messages: list[dict[str, Any]], directory: Path, loads: int) -> list[float]:
    from remora import Config, Runtime  # noqa: PLC0415

    config = Config.from_dict({"long_term": {"enabled": False}, "buffer": {"token_limit": 1_000_000_000}})
    latencies = []
    async with Runtime(directory / "remora", config=config) as runtime:
        session = runtime.session("user", "session")
        for at in range(0, len(messages), 500):
            await session.append(messages[at : at + 500])
        for n in range(loads + 100):
            begun = time.perf_counter()
            await session.load(max_tokens=BUDGET)
            if n >= 100:
                latencies.append(time.perf_counter() - begun)
    return latencies
