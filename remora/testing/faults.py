"""A journal whose commits fail when they are told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import anyio

from remora.errors import CommitFailed, OutcomeUnknown
from remora.runtime.log import Write
from remora.storage.memory import MemoryJournal

__all__ = ["CommitFault", "FaultyJournal"]

CommitFault = Literal["refused", "lost", "kept"]
"""What goes wrong with a commit: ``refused``: provably nothing is stored; ``lost`` and ``kept``: its outcome is unknown to the
caller, and in truth it is not stored, or is."""


class FaultyJournal(MemoryJournal):
    """The in-memory journal, with faults.

    Args:
        fault: asked before each commit what is to go wrong with it; None for nothing.
        latency_s: asked before each commit how long it takes.
    """

    def __init__(self, fault: Callable[[], CommitFault | None], *, latency_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(hot_keys=1)
        self._fault = fault
        self._latency_s = latency_s

    async def _commit(self) -> None:
        if not self._queue:
            return
        await anyio.sleep(self._latency_s())
        fault = self._fault()
        if fault is None:
            await super()._commit()
            return
        batch, self._queue = [write for write in self._queue if not write.fenced], []
        self._failed += 1
        if fault == "kept":
            for write in batch:
                self._keep(write)
        error = CommitFailed("injected") if fault == "refused" else OutcomeUnknown("injected")
        for write in batch:
            if not write.fenced:
                write.settle(error)

    def _keep(self, write: Write) -> None:
        for record in write.records:
            self._store(record)
