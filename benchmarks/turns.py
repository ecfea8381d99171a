"""A turn against what it stands for: append, load, append.

    python -m benchmarks.turns [--turns 2000] [--rounds 5] [--recall] [--json FILE]

Both are measured in one process on one directory, in rounds that alternate, one caller after the
other; with the default durability. Each has idempotency keys. Figures: milliseconds of each, and
the ratio of the medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from remora import Config, Runtime, Session

ANSWER: dict[str, Any] = {"role": "assistant", "content": "It is noon in Lisbon, and it rains."}
Exchange = Callable[[Session, str, str | None], Awaitable[None]]


async def by_turn(chat: Session, request: str, query: str | None) -> None:
    async with chat.turn(f"What time is it, {request}?", key=request, query=query or False) as turn:
        assert turn.context.messages
        await turn.reply(ANSWER)


async def by_appends(chat: Session, request: str, query: str | None) -> None:
    question: dict[str, Any] = {"role": "user", "content": f"What time is it, {request}?"}
    await chat.append(question, key=f"{request}/user")
    assert (await chat.load(query)).messages
    await chat.append(ANSWER, key=f"{request}/assistant")


async def measure(directory: Path, turns: int, rounds: int, *, recall: bool) -> dict[str, Any]:
    config = Config()
    if not recall:
        config = Config.from_dict({"long_term": {"enabled": False}, "models": {"embedder": "none"}})
    ways: dict[str, Exchange] = {"turn": by_turn, "append, load, append": by_appends}
    took: dict[str, list[float]] = {name: [] for name in ways}
    async with Runtime(directory, config=config) as runtime:
        await runtime.ready()
        for round_ in range(rounds + 1):
            for name, exchange in ways.items():
                chats = [runtime.session("alice", f"{name} {round_} {n}") for n in range(20)]
                begun = time.perf_counter()
                for n in range(turns):
                    query = f"time {n % 7}" if recall else None
                    await exchange(chats[n % 20], f"r{n}", query)
                if round_:  # the first one warms up
                    took[name].append((time.perf_counter() - begun) / turns * 1_000)
    medians = {name: statistics.median(one) for name, one in took.items()}
    mine, others = medians.values()
    return {"turns": turns, "rounds": took, "median_ms": medians, "ratio": mine / others}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=2_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recall", action="store_true", help="with a query and long-term memory")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:

        async def run() -> dict[str, Any]:
            return await measure(Path(directory), given.turns, given.rounds, recall=given.recall)

        figures = anyio.run(run)
    for name, median in figures["median_ms"].items():
        print(f"{name}: {median:.3f} ms")
    print(f"ratio: {figures['ratio']:.3f}")
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
