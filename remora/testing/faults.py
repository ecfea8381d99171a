"""A journal and a long-term store that fail when they are told to, and when to tell them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Literal, Self, TypeVar

import anyio

from remora.errors import CommitFailed, LongTermError, OutcomeUnknown, StorageError
from remora.runtime.log import Write
from remora.storage.lookups import Answer
from remora.storage.memory import MemoryJournal
from remora.storage.ports import (
    EVERYTHING,
    Candidate,
    Finding,
    LongTermStatistics,
    LongTermStore,
    MemoryRow,
    RowOrder,
    Scope,
    Vector,
)
from remora.storage.records import SavedSession, SavedUser

Fault = TypeVar("Fault")

CommitFault = Literal["refused", "lost", "kept", "hang"]
"""What goes wrong with a commit: ``refused``: provably nothing is stored.

``lost`` and ``kept``: its outcome is unknown to the caller, and in truth it is not stored, or is;
``hang``: it takes very long, and succeeds.
"""

ReadFault = Literal["fail", "hang"]
"""What goes wrong with a read: it raises; it takes very long."""


def during(start_s: float, end_s: float, fault: Fault) -> Callable[[], Fault | None]:
    """The same fault for a while: something is down for minutes.

    Any faulty port takes it for its `fault`.

    Args:
        start_s: when it begins, by `anyio.current_time`.
        end_s: when it is over.
        fault: what goes wrong in that time.
    """
    return lambda: fault if start_s <= anyio.current_time() < end_s else None


class FaultyJournal(MemoryJournal):
    """The in-memory journal, with faults.

    Args:
        fault: asked before each commit what is to go wrong with it; None for nothing.
        latency_s: asked before each commit how long it takes.
        hang_s: how long one that hangs takes on top; later writes are for the next one.
        read_fault: asked the same before each actor is read, and each question of an actor's.
    """

    def __init__(
        self,
        fault: Callable[[], CommitFault | None],
        *,
        latency_s: Callable[[], float] = lambda: 0.0,
        hang_s: float = 120.0,
        read_fault: Callable[[], ReadFault | None] = lambda: None,
    ) -> None:
        super().__init__(hot_keys=1)
        self._fault = fault
        self._latency_s = latency_s
        self._hang_s = hang_s
        self._read_fault = read_fault
        self._committing = anyio.Lock()

    def restart(self) -> Self:
        """See `MemoryJournal`; a commit in progress is lost."""
        found = super().restart()
        vars(found).update(_committing=anyio.Lock())
        return found

    async def commit(self) -> None:
        """See `MemoryJournal`."""
        # one after another, for the writer and for erasures; a commit that has begun is finished
        with anyio.CancelScope(shield=True):
            await self._commit_queued()

    async def _commit_queued(self) -> None:
        async with self._committing:
            batch, self._queue = [write for write in self._queue if not write.fenced], []
            if not batch:
                return
            await anyio.sleep(self._latency_s())
            fault = self._fault()
            if fault == "hang":
                await anyio.sleep(self._hang_s)
            if self._is_overtaken():
                self._apply_batch(batch)
                return
            if fault is None or fault == "hang":
                for write in batch:
                    if write.fenced:  # too late: it is on its way
                        self._keep(write)
                self._apply_batch(batch)
                return
            if fault == "kept":
                for write in batch:
                    self._keep(write)
                self._count_commit()
            error = CommitFailed("injected") if fault == "refused" else OutcomeUnknown("injected")
            self.meter.fail(error)
            for write in batch:
                if not write.fenced:
                    write.acknowledge(error)

    async def hydrate(
        self, keys: Sequence[Hashable]
    ) -> Sequence[SavedSession | SavedUser | Exception]:
        """See `MemoryJournal`."""
        await self._before_read()
        return await super().hydrate(keys)

    async def fetch(self, key: Hashable, query: object) -> Answer:
        """See `MemoryJournal`."""
        await self._before_read()
        return await super().fetch(key, query)

    async def _before_read(self) -> None:
        await anyio.sleep(self._latency_s())
        fault = self._read_fault()
        if fault == "hang":
            await anyio.sleep(self._hang_s)
        elif fault == "fail":
            raise StorageError("injected: the journal cannot be read")

    def _keep(self, write: Write) -> None:
        with contextlib.suppress(CommitFailed):
            self._store(write.records)


Result = TypeVar("Result")

StoreFault = Literal["refused", "kept", "conflict", "timeout", "hang"]
"""What goes wrong with an operation: ``refused``: nothing is done.

``kept``: it is done, and reported as failed; ``conflict``: another write was faster, and nothing is
done; ``timeout``: it fails late, and may have been done or not; ``hang``: it takes very long, and
is done. One that only reads changes nothing: it fails with all but ``hang``.
"""


class FaultyStore:
    """Implements `remora.storage.ports.LongTermStore` by another, with faults.

    See `remora.testing.during` for one that is down.

    It raises what `LanceStore` raises (`remora.storage.lance.errors`): a `LongTermError` that may
    be retried. An operation that is cancelled while it is slow was not done. `aclose` never fails.

    Args:
        inner: what keeps the rows; ask it what is there in truth.
        fault: asked once before each operation what is to go wrong with it; None for nothing.
        latency_s: asked before each operation how long it takes.
        hang_s: how long one that hangs takes on top.
        timeout_s: how long one takes on top that times out.
        rng: says whether one that timed out was done.
    """

    def __init__(
        self,
        inner: LongTermStore,
        fault: Callable[[], StoreFault | None],
        *,
        latency_s: Callable[[], float] = lambda: 0.0,
        hang_s: float = 120.0,
        timeout_s: float = 30.0,
        rng: random.Random | None = None,
    ) -> None:
        self.inner = inner
        self._fault = fault
        self._latency_s = latency_s
        self._hang_s = hang_s
        self._timeout_s = timeout_s
        self._rng = rng or random.Random(0)

    async def add(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        """See `LongTermStore.add`."""
        await self._write("writing", lambda: self.inner.add(rows, vectors, may_exist=may_exist))

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        """See `LongTermStore.delete`."""
        return await self._write("deleting", lambda: self.inner.delete(user, ids))

    async def remove(self, user_key: str, session_key: str = "") -> int:
        """See `LongTermStore.remove`."""
        return await self._write("removing", lambda: self.inner.remove(user_key, session_key))

    async def erase(self, user_key: str, session_key: str = "") -> int:
        """See `LongTermStore.erase`."""
        return await self._write("erasing", lambda: self.inner.erase(user_key, session_key))

    async def compact(self) -> int:
        """See `LongTermStore.compact`."""
        return await self._write("compacting", self.inner.compact)

    async def search(
        self, user: str, text: str, vector: Vector | None, *, depth: int, scope: Scope = EVERYTHING
    ) -> Sequence[Candidate]:
        """See `LongTermStore.search`."""
        return await self._read(
            "searching", lambda: self.inner.search(user, text, vector, depth=depth, scope=scope)
        )

    async def rows(
        self,
        user: str,
        scope: Scope = EVERYTHING,
        *,
        limit: int | None = None,
        by: RowOrder = "created",
    ) -> Sequence[MemoryRow]:
        """See `LongTermStore.rows`."""
        return await self._read("reading", lambda: self.inner.rows(user, scope, limit=limit, by=by))

    async def count(self, user: str) -> int:
        """See `LongTermStore.count`."""
        return await self._read("counting", lambda: self.inner.count(user))

    async def embedded_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """See `LongTermStore.embedded_rows`."""
        return await self._read("reading", lambda: self.inner.embedded_rows(user, scope))

    async def verify(self, *, deep: bool = False) -> Sequence[Finding]:
        """See `LongTermStore.verify`."""
        return await self._read("verifying", lambda: self.inner.verify(deep=deep))

    async def statistics(self) -> LongTermStatistics:
        """See `LongTermStore.statistics`."""
        return await self._read("counting", self.inner.statistics)

    async def row_ids(self) -> Sequence[str]:
        """See `LongTermStore.row_ids`."""
        return await self._read("listing", self.inner.row_ids)

    async def aclose(self) -> None:
        """Close the inner one."""
        await self.inner.aclose()

    async def _write(self, doing: str, operation: Callable[[], Awaitable[Result]]) -> Result:
        fault = await self._next_fault()
        if fault is None:
            return await operation()
        if fault == "kept" or (fault == "timeout" and self._rng.random() < 0.5):
            await operation()
        raise await self._error(doing, fault)

    async def _read(self, doing: str, operation: Callable[[], Awaitable[Result]]) -> Result:
        fault = await self._next_fault()
        if fault is None:
            return await operation()
        raise await self._error(doing, fault)

    async def _next_fault(self) -> StoreFault | None:
        """Return what is left to go wrong, after the time that it takes."""
        fault = self._fault()
        await anyio.sleep(self._latency_s())
        if fault != "hang":
            return fault
        await anyio.sleep(self._hang_s)
        return None

    async def _error(self, doing: str, fault: StoreFault) -> LongTermError:
        told = "the disk failed"
        if fault == "conflict":
            told = "another write was faster"
        elif fault == "timeout":
            await anyio.sleep(self._timeout_s)
            told = "it took too long"
        return LongTermError(f"long-term memory failed {doing}: {told} (injected)", retryable=True)
