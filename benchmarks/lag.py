"""How long the largest calls that are accepted hold the event loop.

``python -m benchmarks.lag [--messages 20000]``: a task that sleeps for a millisecond at a time
measures how much longer it slept while one call was under way.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from remora import Runtime
from remora.messages import ChatDict

Call = Callable[[], Awaitable[Any]]
_TICK_S = 0.001


class Probe:
    """Measures the longest pause of the event loop."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Measure meanwhile."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()

    async def _run(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            self.worst_s = max(self.worst_s, time.perf_counter() - started - _TICK_S)

    async def measure(self, name: str, call: Call) -> None:
        """Print a row of the table."""
        await asyncio.sleep(0.02)
        self.worst_s, started = 0.0, time.perf_counter()
        await call()
        took = time.perf_counter() - started
        await asyncio.sleep(0.02)
        print(f"| {name:42} | {took * 1e3:9.1f} | {self.worst_s * 1e3:7.1f} |", flush=True)


def said(content: Any, **more: Any) -> ChatDict:
    """A user's message."""
    return {"role": "user", "content": content, **more}


def largest_calls(runtime: Runtime) -> dict[str, Call]:
    """Calls with as much as each may carry."""
    user, session = runtime.user("ada"), runtime.session("ada", "large")
    lines = [said(f"message {number} about a harbour") for number in range(1_000)]
    named = [{**one, "id": f"m{place}"} for place, one in enumerate(lines)]
    text = "lorem ipsum " * 8_000
    texts = [f"fact number {number}" for number in range(1_000)]
    parts = [{"type": "text", "text": "a"}] * 1_000
    return {
        "append, 1 000 messages": lambda: session.append(lines),
        "append, 1 000 messages with ids": lambda: session.append(named),
        "append, 1 000 parts": lambda: session.append(said(parts)),
        "append, 1 MB": lambda: runtime.session("bob", "s").append(said("lorem " * 170_000)),
        "append, 15 MB": lambda: runtime.session("eve", "s").append(said("lorem " * 2_500_000)),
        "load, query of 100 000 characters": lambda: session.load(text),
        "search, query of 100 000 characters": lambda: session.search(text, k=1_000),
        "recall, query of 100 000 characters": lambda: user.recall(text, k=1_000),
        "search_working, the same": lambda: user.search_working(text, k=1_000),
        "remember, 100 000 characters": lambda: user.remember(text),
        "remember, 1 000 memories": lambda: user.remember(texts),
        "record, 1 000 messages": lambda: user.record(lines),
        "learn, 1 000 texts": lambda: user.learn(texts),
        "learn, 100 000 characters": lambda: user.learn(text),
        "get_messages": session.get_messages,
        "state_dict": session.state_dict,
        "to_json": session.to_json,
        "search by words": lambda: session.search("harbour", semantic=False),
    }


def calls_on_the_long_session(runtime: Runtime, directory: Path, messages: int) -> dict[str, Call]:
    """Calls whose work grows with a conversation's length."""
    user, session = runtime.user("lin"), runtime.session("lin", "long")
    return {
        "history": session.history,
        "load(at=half)": lambda: session.load(at=messages // 2),
        "fork": lambda: session.fork("copy"),
        "export": session.export,
        "Runtime.export": lambda: runtime.export(directory / "all.jsonl"),
        "user.stats": user.stats,
        "memories": user.memories,
        "recall": lambda: user.recall("the harbour of message 7"),
        "clear": session.clear,
    }


async def run(messages: int) -> None:
    """Print the table."""
    probe = Probe()
    with TemporaryDirectory() as place:
        directory = Path(place)
        async with Runtime(directory / "memory") as runtime, probe.running():
            first = runtime.session("ada", "first")
            await first.append(said("warm up"))
            await first.load("warm up")
            await runtime.user("ada").learn("warm up")
            await runtime.settle()
            print(f"| {'call':42} | {'took, ms':>9} | {'lag, ms':>7} |\n|---|---:|---:|")
            for name, call in largest_calls(runtime).items():
                await probe.measure(name, call)
            session = runtime.session("lin", "long")
            for base in range(0, messages, 500):
                batch = [said(f"message {base + place} of a harbour") for place in range(500)]
                await session.append(batch)
            await runtime.settle()
            long = calls_on_the_long_session(runtime, directory, messages)
            for name, call in long.items():
                await probe.measure(f"{name}, {messages} messages", call)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="of the long session")
    asyncio.run(run(parser.parse_args().messages))


if __name__ == "__main__":
    main()
