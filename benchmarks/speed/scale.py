"""What the claims about scale have in common: sessions made by the thousand, a clock that can be moved, memory as the kernel sees it."""

from __future__ import annotations

import ctypes
import gc
import random
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio

from remora import Config
from remora.runtime.clock import SystemClock

__all__ = ["CONFIG", "MovableClock", "in_turn", "progress", "quantile", "resident", "settled_memory", "texts", "timed"]

MESSAGE_BYTES = 300
CONFIG = Config.from_dict({"long_term": {"enabled": False}})
"""Sessions alone: neither long-term memory nor an embedder."""

_WORDS = (
    "the a garden bridge river morning varnish cello harbour ledger lantern window quiet seven copper walnut island and of to "
    "we it was in that for on with as asked whether could train ticket invoice address Tuesday please thank meeting report"
).split()


def texts(count: int, seed: int = 1) -> list[dict[str, str]]:
    """User messages of exactly 300 bytes of words, some 60 tokens each."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        content = " ".join(rng.choices(_WORDS, k=MESSAGE_BYTES // 2))
        found.append({"role": "user", "content": content[:MESSAGE_BYTES]})
    return found


class MovableClock(SystemClock):
    """The machine's clocks, moved ahead by hand: what is idle for five minutes need not be waited for."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def settled_memory() -> int:
    """Resident bytes once garbage is collected and what the C library keeps for later is given back."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return resident()


async def in_turn(count: int, at_once: int, work: Callable[[int], Awaitable[object]]) -> None:
    """Do the work of each number, by so many tasks: a task for each of a million numbers would be memory of its own."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with anyio.create_task_group() as tasks:
        for _ in range(min(at_once, count)):
            tasks.start_soon(worker)


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Seconds that it takes."""
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


def progress(text: str) -> None:
    """A line for whoever waits."""
    print(text, file=sys.stderr, flush=True)
