"""What programs work with: their sizes, the library, and calls that record errors."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab.correctness.protocol import Open, Setting, Subject, marked, marks

__all__ = [
    "FULL",
    "SMALL",
    "Bench",
    "Figure",
    "Sizes",
    "Written",
    "append_concurrently",
    "count_kept",
    "error_name",
    "texts_or_error",
    "time_call",
    "within",
]

Figure = int | float | str


@dataclass(frozen=True)
class Sizes:
    """How large the programs are.

    Attributes:
        callers: how many at once, and how many messages each appends.
        flood: writers and messages of each, for the programs that overflow a session.
        limits: tokens of short-term memory in the flood.
        outage: tokens of short-term memory, and messages that are appended while the summarizer
            fails.
        cancels: appends that are cancelled, each at another moment.
        slow_s: what the slow summarizer takes.
        rounds: how often a caller waits for it.
        summary_s: what the ordinary one takes.
        paced: messages that a writer appends while a reader loads.
        spoken: messages of the user who is deleted.
        asked: contexts of the other user that are searched for a secret.
        open: sessions that are open at once.
        patience_s: after which a call hangs.
        box_s: after which no caller begins another append.
    """

    callers: tuple[tuple[int, int], ...] = ((1, 64), (2, 32), (8, 8), (64, 8))
    flood: tuple[int, int] = (8, 25)
    limits: tuple[int, ...] = (4_000, 400)
    outage: tuple[tuple[int, int], ...] = ((4_000, 200), (400, 60))
    cancels: int = 31
    slow_s: float = 2.0
    rounds: int = 3
    summary_s: float = 0.2
    paced: int = 60
    spoken: int = 60
    asked: int = 10
    open: int = 300
    patience_s: float = 10.0
    box_s: float = 60.0


FULL = Sizes()


SMALL = Sizes(
    callers=((1, 6), (2, 4), (8, 3), (64, 1)),
    flood=(4, 10),
    limits=(800,),
    outage=((400, 20),),
    cancels=5,
    slow_s=1.0,
    rounds=1,
    summary_s=0.05,
    paced=25,
    spoken=24,
    asked=2,
    open=40,
)


@dataclass(frozen=True)
class Bench:
    """What a program works with.

    Attributes:
        opened: opens the library on a directory.
        directory: of this run; each opening has a directory of its own in it.
        report: takes figures as they come.
        sizes: how large the program is.
        summarizes: whether the library has a summarizer.
        shares_blocks: whether several sessions can be given one object that searches long-term
            memory.
    """

    opened: Open
    directory: Path
    report: Callable[[dict[str, Figure]], None]
    sizes: Sizes = FULL
    summarizes: bool = True
    shares_blocks: bool = False

    async def open(self, name: str, setting: Setting | None = None) -> Subject:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        return await self.opened(directory, setting or Setting())


async def within(work: Awaitable[object], seconds: float) -> BaseException | bool | None:
    """True after success, the exception after failure, None if it runs on; never cancels it."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        return None
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or True


def error_name(error: BaseException) -> str:
    return type(error).__name__


@dataclass
class Written:
    """The outcome of many appends: marks, and what was raised."""

    acknowledged: list[str]
    refused: list[str]
    errors: Counter[str]

    @property
    def sent(self) -> int:
        return len(self.acknowledged) + len(self.refused)


async def append_concurrently(
    bench: Bench, subject: Subject, session: str, count: int, each: int, words: int
) -> Written:
    """Append by so many callers at once; each waits for each of its appends."""
    written = Written([], [], Counter())
    end = time.perf_counter() + bench.sizes.box_s

    async def write(writer: int) -> None:
        for number in range(each):
            if time.perf_counter() > end:
                return
            mark = f"w{writer}n{number}"
            try:
                await subject.append(session, [marked(mark, words)])
            except Exception as e:
                written.errors[error_name(e)] += 1
                written.refused.append(mark)
            else:
                written.acknowledged.append(mark)

    await asyncio.gather(*(write(writer) for writer in range(count)))
    return written


async def texts_or_error(work: Awaitable[list[str]]) -> tuple[list[str], str]:
    """The texts and no error, or no text and the error's name."""
    try:
        return await work, ""
    except Exception as e:
        return [], error_name(e)


async def count_kept(subject: Subject, session: str, missing: set[str]) -> int:
    """How many of the missing messages the library can still return."""
    texts, _ = await texts_or_error(subject.kept(session))
    return len(missing & set(marks(texts)))


async def time_call(work: Awaitable[object]) -> tuple[float, str]:
    """Milliseconds, and the name of what was raised."""
    start = time.perf_counter()
    error = ""
    try:
        await work
    except Exception as e:
        error = error_name(e)
    return (time.perf_counter() - start) * 1_000, error
