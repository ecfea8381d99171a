"""A journal whose commits fail when they are told to, and when to tell them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, Self, TypeVar

import anyio

from remora.errors import CommitFailed, OutcomeUnknown, StorageError
from remora.runtime.log import Write
from remora.storage.lookups import Answer
from remora.storage.memory import MemoryJournal
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
            self._check(write)
            for record in write.records:
                self.apply(record)
