"""The writing half of the journal in memory: group commit, and one owner at a time."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Self

import anyio
import anyio.lowlevel

from remora.errors import CommitFailed, OwnershipLost
from remora.runtime.log import LogStatistics, Write
from remora.storage.commits import CommitMeter
from remora.storage.memory.tables import MemoryTables
from remora.storage.records import HOT_KEYS

__all__ = ["MemoryWriter"]


class _Commits:
    """The commits that all owners of the same rows share.

    Attributes:
        epoch: how many owners there were so far.
        number: how many commits there were so far.
    """

    __slots__ = ("epoch", "number")

    def __init__(self) -> None:
        self.epoch = 1
        self.number = 0


class MemoryWriter(MemoryTables):
    """Commits queued writes while no other owner has the rows.

    Args:
        hot_keys: idempotency keys that an image holds at most; the others are looked up.

    Attributes:
        epoch: the number of its owners so far, this one included.
    """

    def __init__(self, *, hot_keys: int = HOT_KEYS) -> None:
        super().__init__(hot_keys=hot_keys)
        self.epoch = 1
        self._owners = _Commits()
        self._queue: list[Write] = []
        self._event = anyio.Event()
        self._lost: OwnershipLost | None = None
        self._lost_event = anyio.Event()
        self.meter = CommitMeter()

    def restart(self) -> Self:
        """Open it again, as a new process would: the new owner has what is committed.

        This one stores nothing more.
        """
        found = copy.copy(self)
        self._owners.epoch += 1
        vars(found).update(
            epoch=self._owners.epoch,
            _queue=[],
            _event=anyio.Event(),
            _lost=None,
            _lost_event=anyio.Event(),
            meter=CommitMeter(),
        )
        return found

    @property
    def commit_number(self) -> int:
        """See `remora.storage.ports.Journal.commit_number`."""
        return self._owners.number

    def write(self, write: Write) -> None:
        self._queue.append(write)
        self._event.set()

    async def run(self) -> None:
        while True:
            await self._event.wait()
            self._event = anyio.Event()
            await anyio.lowlevel.checkpoint()
            await self.commit()

    async def wait_until_lost(self) -> None:
        await self._lost_event.wait()

    def check_lease(self) -> None: ...

    def statistics(self) -> LogStatistics:
        lost = "" if self._lost is None else str(self._lost)
        return self.meter.figures(len(self._queue), lost=lost)

    async def commit(self) -> None:
        """Commit what is queued."""
        batch, self._queue = self._queue, []
        self._apply_batch(batch)

    async def checkpoint(self) -> None:
        await anyio.lowlevel.checkpoint()
        self._is_overtaken()

    def _apply_batch(self, batch: Sequence[Write]) -> None:
        if self._is_overtaken():
            self.meter.fail(self._lost)
            for write in batch:
                if not write.fenced:
                    write.acknowledge(self._lost)
            return
        began, writes, records = time.perf_counter(), 0, 0
        applied: list[Write] = []
        for write in batch:
            if write.fenced:
                continue
            try:
                self._check(write)
            except CommitFailed as e:
                self.meter.fail(None)
                _acknowledge(applied)  # in the order of queueing
                write.acknowledge(e)
                continue
            for record in write.records:
                self.apply(record)
                records += 1
            writes += 1
            applied.append(write)
        self._count_commit()
        self.meter.add(writes, records, time.perf_counter() - began)
        _acknowledge(applied)

    def _count_commit(self) -> None:
        self.meter.count()
        self._owners.number += 1

    def _is_overtaken(self) -> bool:
        """Return whether there is a newer owner; notices it for `wait_until_lost`."""
        if self._lost is None and self.epoch != self._owners.epoch:
            self._lost = OwnershipLost(
                "another owner has taken this journal over; nothing more can be stored here"
            )
            self._lost_event.set()
        return self._lost is not None

    async def _begin_work(self) -> None:
        """Commit what is queued before other work, which is a commit of its own.

        Raises:
            OwnershipLost: there is a newer owner.
        """
        await self.commit()
        if self._is_overtaken():
            assert self._lost is not None
            raise self._lost
        self._count_commit()


def _acknowledge(applied: list[Write]) -> None:
    """Tell the owners of these writes, and forget them."""
    told = applied.copy()
    applied.clear()
    for write in told:
        if not write.fenced:
            write.acknowledge(None)
