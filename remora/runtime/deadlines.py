"""Deadlines: one sweep serves all of them; a cancel scope per request would cost 5 to 12 µs."""

from __future__ import annotations

from remora.errors import MailboxFull
from remora.runtime.cell import Cell, CellStatus
from remora.runtime.probes import probe
from remora.runtime.waking import Waking

_THOROUGH = 10  # sweeps between two that also look for messages whose senders gave up


class Deadlines:
    """The cells in which messages or replies wait.

    Args:
        sweeping: the task that calls `sweep`.

    Attributes:
        watched: these cells, in the order in which they began to wait (a set's order would be
            that of addresses, which differs from run to run).
        expired: messages and replies that were failed.
    """

    def __init__(self, sweeping: Waking) -> None:
        self.watched: dict[Cell, None] = {}
        self.expired = 0
        self._sweeps = 0
        self._sweeping = sweeping

    def watch(self, cell: Cell) -> None:
        """Look at the cell in each sweep, as long as something waits in it."""
        if not self.watched:
            self._sweeping.wake()
        self.watched[cell] = None

    def forget(self, cell: Cell) -> None:
        """Do not look at the cell any more."""
        self.watched.pop(cell, None)

    def sweep(self, now: float) -> list[Cell]:
        """Fail what is past its deadline; return the cells whose senders wait for room."""
        self._sweeps += 1
        thorough = self._sweeps % _THOROUGH == 0
        parked = []
        for cell in list(self.watched):
            if thorough or cell.earliest_deadline <= now:
                self._expire(cell, now)
            if cell.parked:
                parked.append(cell)
            elif not cell.mailbox and not cell.held and cell.status is not CellStatus.LOOKING_UP:
                del self.watched[cell]
                cell.release_queues()
        return parked

    def _expire(self, cell: Cell, now: float) -> None:
        expired, late = cell.expire(now)
        self.expired += late + len(expired)
        for envelope in expired:
            if envelope.deadline <= now:
                probe("deadline_in_mailbox")
            envelope.promise.reject(
                MailboxFull(
                    "the deadline passed before the message was handled; nothing ran", limit="age"
                )
            )
