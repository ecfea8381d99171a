"""What the claims about scale share.

Sessions by the thousand, a clock that can be moved, and memory as the kernel sees it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import resource
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from benchmarks.speed.text import role_of, texts
from remora import Config
from remora.ids import SessionKey
from remora.messages import encode_message
from remora.runtime.clock import SystemClock
from remora.runtime.log import Write
from remora.storage.records import Appended, Opened, SavedSession
from remora.storage.sqlite.journal import SqliteJournal
from remora.tokens import TiktokenCounter, count_message

__all__ = [
    "CONFIG",
    "MovableClock",
    "filled",
    "in_turn",
    "messages",
    "progress",
    "resident",
    "session_name",
    "settled_memory",
]

MESSAGE_BYTES = 300
CONFIG = Config.from_dict({"long_term": {"enabled": False}})
"""Sessions alone: neither long-term memory nor an embedder."""


def messages(seed: int, count: int = 1_000) -> list[dict[str, Any]]:
    """Messages of 300 bytes of natural text, the user's and the assistant's by turns."""
    return [
        {"role": role_of(n), "content": text}
        for n, text in enumerate(texts(seed, count, MESSAGE_BYTES))
    ]


class MovableClock(SystemClock):
    """The machine's clocks, moved ahead by hand: what is idle for five minutes need not be waited
    for.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._moved = anyio.Event()

    def move(self, seconds: float) -> None:
        """Move ahead; who sleeps until a time before that wakes up."""
        self._ahead_s += seconds
        self._moved.set()
        self._moved = anyio.Event()

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        until_s = self.monotonic() + seconds
        while (left_s := until_s - self.monotonic()) > 0:
            with anyio.move_on_after(left_s):
                await self._moved.wait()
        await anyio.lowlevel.checkpoint()


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def settled_memory() -> int:
    """Resident bytes once garbage is collected and what the C library keeps for later is given
    back.
    """
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return resident()


async def filled(directory: Path, sessions: int, each: int, seed: int) -> None:
    """A directory of so many sessions, ten of each user, as `Session.append` makes it, in a third
    of the time.

    The records that a session would write go to the journal by the thousand; each text is encoded,
    and its tokens counted, once.
    """
    counter = TiktokenCounter()
    pool = []
    for message in messages(seed):
        entry, chat = encode_message(message)
        pool.append(msgspec.structs.replace(entry, tokens=count_message(counter, chat)))
    await anyio.Path(directory).mkdir(parents=True, exist_ok=True)
    journal = await SqliteJournal.open(directory / "journal.db", durability="process")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.run)
        for first in range(0, sessions, 200):
            keys = [session_name(number) for number in range(first, min(first + 200, sessions))]
            records: list[Any] = []
            for number, (key, image) in enumerate(
                zip(keys, await journal.hydrate(keys), strict=True), start=first
            ):
                assert isinstance(image, SavedSession)
                start = number * 7 % (len(pool) - each)
                entries = tuple(pool[start + n].with_seq(n + 1) for n in range(each))
                records += [
                    Opened(image.sid, key.user, key.session, entries[0].at_us),
                    Appended(image.sid, entries, None),
                ]
            done = anyio.Event()
            journal.write(Write(records, functools.partial(_on_stored, done)))
            await done.wait()
            if first % 20_000 == 0:
                progress(f"{first} sessions of {sessions}")
                await journal.checkpoint()
        tasks.cancel_scope.cancel()
    await journal.checkpoint()
    await journal.aclose()


def _on_stored(done: anyio.Event, error: Exception | None) -> None:
    if error is not None:
        raise error
    done.set()


def session_name(number: int) -> SessionKey:
    """Of the session of that number; ten are a user's."""
    return SessionKey(f"user-{number // 10}", f"session-{number}")


async def in_turn(
    count: int, at_once: int, work: Callable[[int], Coroutine[Any, Any, object]]
) -> None:
    """Do the work of each number, by so many tasks: a task for each of a million numbers would be
    memory of its own.
    """
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
