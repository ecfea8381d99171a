"""What tests of the kernel, and of its rare branches, share."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from remora import BufferPolicy
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.messages import Load, Snapshot
from remora.errors import JournalDamaged, ModelUnavailable
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.jobs import RetryPolicy
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.storage.sqlite.journal import SqliteJournal
from remora.testing import count_probes
from tests.harness import WINDOWS, FirstWordsSummarizer, Kernel, append, kernel, said, user

KEY = SessionKey("alice", "chat")
OTHER = SessionKey("bob", "chat")
PATIENT = RetryPolicy(max_attempts=50, backoff_s=60, max_backoff_s=60, jitter=0)
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""What is below needs it, or one loop shows enough."""


@contextmanager
def reaching(*names: str) -> Iterator[None]:
    with count_probes() as counts:
        yield
    assert all(counts[name] for name in names), (
        f"never reached: {[name for name in names if not counts[name]]}"
    )


def long(number: int) -> dict[str, Any]:
    return user(f"m{number} {'x' * 20}")


async def say(core: Kernel, first: int, after: int, key: SessionKey = KEY) -> None:
    """Append the messages from number `first` to before `after`."""
    for number in range(first, after):
        await core.ask(key, append(long(number)))


def covered(snapshot: Snapshot) -> list[int]:
    """The numbers of all messages that a context tells of, in the summary or as they are."""
    texts = [*([snapshot.summary.text] if snapshot.summary else []), *said(snapshot.entries)]
    return [int(number) for text in texts for number in re.findall(r"\bm(\d+)\b", text)]


class Model:
    """A summarizer that is down while it is told to be, or never answers."""

    name = "model"

    def __init__(self, error: Exception | None = None, *, hangs: bool = False) -> None:
        self.error = error
        self.hangs = hangs
        self.calls = 0

    async def summarize(self, previous: str | None, lines: Any, *, max_tokens: int) -> str:
        self.calls += 1
        if self.hangs:
            await anyio.sleep_forever()
        if self.error is not None:
            raise self.error
        return await FirstWordsSummarizer().summarize(previous, lines, max_tokens=max_tokens)


def down() -> Model:
    return Model(ModelUnavailable("down"))


def folding(journal: Any, clock: Any, model: Any = None, **options: Any) -> Any:
    """A kernel whose sessions fold soon, and by an extract when their model does not answer."""
    options = {"fallback": FirstWordsSummarizer(), "retry": PATIENT, "fold_above": 30, **options}
    return kernel(journal, clock=clock, summarizer=model, **options)


async def breathe(times: int = 12) -> None:
    for _ in range(times):
        await anyio.lowlevel.checkpoint()


async def shown(core: Kernel, key: SessionKey = KEY) -> list[str]:
    snapshot: Snapshot = await core.ask(key, Load(10_000))
    return said(snapshot.entries)


class Touchy(SessionBehavior):
    """Fails in its decision, or breaks its state, when told to."""

    def handle(self, state: Any, message: Any) -> Decision | NeedsLookup:
        if message == "fail":
            raise ZeroDivisionError
        if message == "break":
            return Decision(None, ["nonsense"])
        return super().handle(state, message)


def touchy(**policy: Any) -> Touchy:
    chosen = BufferPolicy(
        **{"above_tokens": 10_000, "keep_tokens": 50, "overdraft_tokens": 40_000, **policy}
    )
    return Touchy(lambda _: chosen, instance="0", flushes=False, windows=WINDOWS)


@asynccontextmanager
async def over_sqlite(path: Path, **options: Any) -> AsyncIterator[Kernel]:
    journal: Any = await SqliteJournal.open(path, durability="power")
    try:
        async with kernel(journal, **{"behavior": touchy(), **options}) as core:
            yield core
    finally:
        await journal.aclose()


# -- logs that do not answer -----------------------------------------------------------------------


class Gated(MemoryJournal):
    """Commits only while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = anyio.Event()

    async def commit(self) -> None:
        await self.open.wait()
        await super().commit()


class Unreadable(MemoryJournal):
    """Cannot answer some questions, for a while."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fetch_errors: list[Exception] = []
        self.unreadable: dict[Hashable, Exception] = {}
        self.damaged = False

    async def fetch(self, key: Hashable, query: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        if self.fetch_errors:
            raise self.fetch_errors.pop()
        return await super().fetch(key, query)

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[Any]:
        found = await super().hydrate(keys)
        return [self.unreadable.get(key, image) for key, image in zip(keys, found, strict=True)]

    async def read(self, key: SessionKey, first: int, last: int, *, at: int | None = None) -> Any:
        if self.damaged:
            raise JournalDamaged("a row is not as it was written")
        return await super().read(key, first, last, at=at)
