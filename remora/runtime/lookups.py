"""Lookups: cells that need a cold record before they can handle their next message."""

from __future__ import annotations

from collections import deque

import anyio

from remora.runtime.actor import NeedsLookup
from remora.runtime.cell import Cell, CellStatus
from remora.runtime.deadlines import Deadlines
from remora.runtime.dispatch import Dispatcher
from remora.runtime.log import Log
from remora.runtime.mailbox import Envelope
from remora.runtime.probes import probe


class Lookups:
    """Asks the log on behalf of cells.

    Only committed records can be looked up, so the log is asked when all that the cell wrote is
    durable. Then no write of it can fail, and it handles no message before it has the answer: it
    cannot break while it waits.
    """

    def __init__(self, log: Log, dispatcher: Dispatcher, deadlines: Deadlines) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._deadlines = deadlines
        self._queue: deque[Cell] = deque()
        self._event = anyio.Event()

    def start(self, cell: Cell, envelope: Envelope, lookup: NeedsLookup) -> None:
        """Suspend the cell, with its message first in the mailbox, until the log has answered."""
        probe("lookup_started")
        cell.status = CellStatus.LOOKING_UP
        cell.lookup, cell.lookup_envelope = lookup, envelope
        self._dispatcher.mailbox(cell).put_first(envelope)
        cell.earliest_deadline = min(cell.earliest_deadline, envelope.deadline)
        self._deadlines.watch(cell)
        if cell.clean:
            self.ask_log(cell)

    def ask_log(self, cell: Cell) -> None:
        """Ask the log; the cell is LOOKING_UP, and all that it wrote is durable."""
        self._queue.append(cell)
        self._event.set()

    async def run(self) -> None:
        """Answer lookups until cancelled."""
        while True:
            await self._event.wait()
            self._event = anyio.Event()
            while self._queue:
                await self._fetch(self._queue.popleft())

    async def _fetch(self, cell: Cell) -> None:
        lookup, envelope = cell.lookup, cell.lookup_envelope
        assert lookup is not None
        try:
            answer = await self._log.fetch(cell.key, lookup.query)
        except Exception as e:
            probe("lookup_failed")
            cell.status = CellStatus.VALID
            # Its sender may have given up while the log was asked.
            if cell.mailbox and cell.mailbox.head is envelope:
                cell.mailbox.get().promise.reject(e)
        else:
            cell.status = CellStatus.VALID
            lookup.store(answer)
        cell.lookup = cell.lookup_envelope = None
        if cell.mailbox:
            self._dispatcher.ready(cell)
