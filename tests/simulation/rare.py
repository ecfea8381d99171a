"""What tests of rare branches share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from remora.actors.policies.buffer import BufferPolicy
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.messages import Load, Snapshot
from remora.errors import (
    JournalDamaged,
)
from remora.ids import SessionKey
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.probes import count_probes
from remora.storage.memory import MemoryJournal
from remora.storage.sqlite.journal import SqliteJournal
from tests.harness import Kernel, kernel, said, user

KEY = SessionKey("alice", "chat")
OTHER = SessionKey("bob", "chat")
on_both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


@contextmanager
def reaching(*names: str) -> Iterator[None]:
    with count_probes() as counts:
        yield
    assert all(counts[name] for name in names), (
        f"never reached: {[name for name in names if not counts[name]]}"
    )


def long(number: int) -> dict[str, Any]:
    return user(f"m{number} {'x' * 20}")


async def breathe(times: int = 12) -> None:
    for _ in range(times):
        await anyio.lowlevel.checkpoint()


async def shown(core: Kernel, key: SessionKey = KEY) -> list[str]:
    snapshot: Snapshot = await core.ask(key, Load(10_000))
    return said(snapshot.entries)


class Touchy(SessionBehavior):
    """Breaks its state when told to."""

    def handle(self, state: Any, message: Any) -> Decision | NeedsLookup:
        if message == "break":
            return Decision(None, ["nonsense"])
        return super().handle(state, message)


def touchy(**policy: Any) -> Touchy:
    chosen = BufferPolicy(
        **{"above_tokens": 10_000, "keep_tokens": 50, "overdraft_tokens": 40_000, **policy}
    )
    return Touchy(lambda _: chosen, instance="0", flushes=False)


@asynccontextmanager
async def over_sqlite(path: Path, **options: Any) -> AsyncIterator[Kernel]:
    journal: Any = await SqliteJournal.open(path, durability="power")
    try:
        async with kernel(journal, **{"behavior": touchy(), **options}) as core:
            yield core
    finally:
        await journal.aclose()


# -- a log that cannot answer ----------------------------------------------------------------------


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
