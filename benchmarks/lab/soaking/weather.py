"""Faults that come and go while the runtime serves, drawn from the seed for each part.

The parts are the real ones, SQLite and LanceDB. They fail as they do in production: before anything
is done, after all of it, or late.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import anyio

from remora.errors import LongTermError, ModelAnswerInvalid, ModelUnavailable
from remora.models.ports import Line
from remora.storage.lance.store import LanceStore
from remora.storage.ports import EVERYTHING, Candidate, MemoryRow, Scope, Vector
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.writer import Rows
from remora.testing import HashEmbedder

__all__ = [
    "FAULTS",
    "StormyEmbedder",
    "StormyJournal",
    "StormyStore",
    "StormySummarizer",
    "Weather",
]

Named = TypeVar("Named", bound=sqlite3.Error)

FAULTS = {
    "commits": ("slow", "full", "lost", "kept", "hang"),
    "store": ("slow", "down", "kept", "hang"),
    "summarizer": ("slow", "down", "hang", "garbage"),
    "embedder": ("slow", "down", "hang", "garbage"),
}
"""What can be wrong with each part. ``full`` refuses a commit provably; ``lost`` and ``kept`` leave
open whether it is there.
"""

_CALM_S = 3.0  # on average, between two faults of one part
_FAULT_S = (0.2, 2.0)
_SLOW_S = 0.03
_SHARE = 0.4  # of the operations that a fault hits, but for those that hit all


class Weather:
    """What is wrong with each part now.

    Args:
        rng: of when and what.

    Attributes:
        met: how often each fault was met, by part and name.
    """

    def __init__(self, rng: random.Random) -> None:
        self.met: Counter[str] = Counter()
        self._rng = rng
        self._now: dict[str, str] = {}
        self._changed = {part: anyio.Event() for part in FAULTS}

    async def blow(self, *, mean_calm_s: float = _CALM_S) -> None:
        """Change, for ever; all is calm when this is cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                for part in FAULTS:
                    tasks.start_soon(self._blow, part, mean_calm_s)
        finally:
            for part in FAULTS:
                self._set(part, None)

    async def _blow(self, part: str, mean_calm_s: float) -> None:
        while True:
            await anyio.sleep(self._rng.expovariate(1 / mean_calm_s))
            self._set(part, self._rng.choice(FAULTS[part]))
            await anyio.sleep(self._rng.uniform(*_FAULT_S))
            self._set(part, None)

    def _set(self, part: str, fault: str | None) -> None:
        if fault is None:
            self._now.pop(part, None)
        else:
            self._now[part] = fault
        changed, self._changed[part] = self._changed[part], anyio.Event()
        changed.set()

    async def met_by(self, part: str) -> str | None:
        """What an operation of this part meets; one that is to hang returns when the weather has
        changed.
        """
        fault = self._now.get(part)
        if fault is None or (
            fault in {"full", "lost", "kept", "garbage"} and self._rng.random() > _SHARE
        ):
            return None
        self.met[f"{part} {fault}"] += 1
        if fault == "slow":
            await anyio.sleep(_SLOW_S)
        elif fault == "hang":
            await self._changed[part].wait()
        else:
            return fault
        return None


def _named(error: Named, name: str) -> Named:
    error.sqlite_errorname = name
    return error


class StormyJournal(SqliteJournal):
    """SQLite, on a disk that is at times slow, full, or says that it failed to sync. Set `weather`
    once it is open.
    """

    weather: Weather | None = None

    async def small(self) -> None:
        """Keep SQLite's caches small: they grow with the file, up to 64 MB each, and would hide
        what grows for ever.
        """
        for connection in (self._writer, self._reader):
            await connection.execute("PRAGMA cache_size = -1024")

    def _submit(self, rows: Rows) -> None:
        self._hand_over(rows.batch)  # to the task, where the weather meets it

    async def _store(self, rows: Any) -> None:
        fault = None if self.weather is None else await self.weather.met_by("commits")
        if fault == "full":
            raise _named(sqlite3.OperationalError("database or disk is full"), "SQLITE_FULL")
        if fault == "lost":
            raise _named(sqlite3.OperationalError("disk I/O error"), "SQLITE_IOERR_FSYNC")
        await super()._store(rows)
        if fault == "kept":
            raise _named(sqlite3.OperationalError("disk I/O error"), "SQLITE_IOERR_FSYNC")


class StormyStore(LanceStore):
    """LanceDB, likewise: away, slow, or with a write that succeeds and does not say so."""

    weather: Weather | None = None

    async def _next_fault(self) -> str | None:
        fault = None if self.weather is None else await self.weather.met_by("store")
        if fault == "down":
            raise LongTermError("long-term memory failed: the disk is away", retryable=True)
        return fault

    async def add(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        """Store rows."""
        fault = await self._next_fault()
        await super().add(rows, vectors, may_exist=may_exist)
        if fault == "kept":
            raise LongTermError("long-term memory failed writing: nobody knows", retryable=True)

    async def search(
        self, user: str, text: str, vector: Vector | None, *, depth: int, scope: Scope = EVERYTHING
    ) -> Sequence[Candidate]:
        """Search."""
        await self._next_fault()
        return await super().search(user, text, vector, depth=depth, scope=scope)

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        """Remove rows."""
        fault = await self._next_fault()
        count = await super().delete(user, ids)
        if fault == "kept":
            raise LongTermError("long-term memory failed deleting: nobody knows", retryable=True)
        return count


class StormySummarizer:
    """An extract of first words, made by a model that is at times slow, away, or talks nonsense.

    Args:
        weather: what it meets.
        count: tokens in a text.
    """

    name = "stormy"

    def __init__(self, weather: Callable[[], Weather], count: Callable[[str], int]) -> None:
        self._weather = weather
        self._count = count

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        """The newest words that fit."""
        fault = await self._weather().met_by("summarizer")
        if fault == "down":
            raise ModelUnavailable("the model is away")
        if fault == "garbage":
            raise ModelAnswerInvalid("the model answered with a shrug")
        first_words = [line.text.split(maxsplit=1)[0] for line in lines if line.text]
        words = [*(previous or "").split(), *first_words]
        while words and self._count(" ".join(words)) > max_tokens:
            words = words[len(words) // 4 + 1 :]
        return " ".join(words)


class StormyEmbedder(HashEmbedder):
    """Feature hashing by a model that is at times slow, away, or returns vectors of another size.

    Args:
        weather: what it meets.
    """

    def __init__(self, weather: Callable[[], Weather]) -> None:
        super().__init__(32)
        self._weather = weather

    async def embed(self, texts: Sequence[str]) -> Any:
        """One vector per text."""
        fault = await self._weather().met_by("embedder")
        if fault == "down":
            raise ModelUnavailable("the model is away")
        vectors = await super().embed(texts)
        return vectors[:, :3] if fault == "garbage" else vectors
