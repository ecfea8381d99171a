"""What the claims about scale share: sessions by the thousand, a clock that can be moved, memory as the kernel sees it."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from benchmarks.speed.text import role_of, texts
from remora import Config
from remora.runtime.clock import SystemClock

__all__ = ["CONFIG", "MovableClock", "in_turn", "messages", "progress", "resident", "settled_memory"]

MESSAGE_BYTES = 300
CONFIG = Config.from_dict({"long_term": {"enabled": False}})
"""Sessions alone: neither long-term memory nor an embedder."""


def messages(seed: int, count: int = 1_000) -> list[dict[str, str]]:
    """Messages of 300 bytes of natural text, the user's and the assistant's by turns."""
    return [{"role": role_of(n), "content": text} for n, text in enumerate(texts(seed, count, MESSAGE_BYTES))]


class MovableClock(SystemClock):
    """The machine's clocks, moved ahead by hand: what is idle for five minutes need not be waited for."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


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


def progress(text: str) -> None:
    """A line for whoever waits."""
    print(text, file=sys.stderr, flush=True)
