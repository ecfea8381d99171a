"""Dispatch: which cell handles a message next.

A message to an idle, valid cell is handled on its sender's stack (0.25 µs, measured; a queue and a
task cost 7 to 42). Only if the cell is activating or looking up, its gate is full, or its owner has
too much in progress, the message goes to the mailbox. One task serves all mailboxes in turn, a
bounded batch each, so a flood to one session does not delay the others. While several owners are
active, none has more on its way to the log than its quota (`fairness`).
"""

from __future__ import annotations

from collections import deque

import anyio
import anyio.lowlevel

from remora.errors import MailboxFull, SessionQuarantined
from remora.ids import words_of
from remora.runtime.cell import Cell, CellStatus, Envelope, Mailbox, Quota, QuotaPool
from remora.runtime.clock import Clock
from remora.runtime.passivation import Passivation, RegistryLimits, Waking
from remora.runtime.probes import probe
from remora.runtime.promise import NO_REPLY

_QUANTUM = 16  # messages that one cell, or several, handle in one turn of the event loop


class Dispatcher:
    """The mailboxes, and the task that serves them.

    Attributes:
        queued_messages: messages that were handled from a mailbox.
        refused: messages that a full mailbox refused.
    """

    def __init__(
        self,
        clock: Clock,
        limits: RegistryLimits,
        pool: QuotaPool,
        deadlines: Deadlines,
        passivation: Passivation,
    ) -> None:
        self.queued_messages = 0
        self.refused = 0
        self._clock = clock
        self._limits = limits
        self._pool = pool
        self._deadlines = deadlines
        self._passivation = passivation
        self._ready: deque[Cell] = deque()
        self._event = anyio.Event()

    # -- taking messages --------------------------------------------------------------------------

    def mailbox(self, cell: Cell) -> Mailbox:
        """The cell's mailbox, made when first needed."""
        if cell.mailbox is None:
            limits = self._limits
            cell.mailbox = Mailbox(
                limits.mailbox_messages, limits.held_replies, limits.mailbox_bytes, cell.quota
            )
        return cell.mailbox

    def enqueue(self, cell: Cell, envelope: Envelope) -> None:
        """Put a message into the mailbox; if that is full, park or refuse it.

        Raises:
            MailboxFull: it was refused.
            SessionQuarantined: the cell rests.
        """
        if cell.status is CellStatus.QUARANTINED:
            probe("quarantine_refused")
            raise SessionQuarantined(
                f"{words_of(cell.key)} failed {self._limits.restart_intensity} times within "
                f"{self._limits.restart_period_s:g} s and rests; nothing ran, retry later",
                retry_after_s=max(cell.quarantined_until - self._clock.monotonic(), 0.0),
            )
        try:
            # Parked messages came first.
            if cell.parked and not envelope.control:
                raise MailboxFull("others wait for room already", limit="messages")
            mailbox = self.mailbox(cell)
            if cell.status is CellStatus.ACTIVATING and mailbox:
                probe("activation_joined")
            mailbox.put(envelope)
        except MailboxFull:
            if not self._limits.wait_when_full:
                probe("mailbox_refused")
                self.refused += 1
                raise
            if cell.parked is None:
                cell.parked = deque()
            probe("sender_parked")
            cell.parked.append(envelope)
        cell.earliest_deadline = min(cell.earliest_deadline, envelope.deadline)
        self._deadlines.watch(cell)
        if envelope.ready:
            self.ready(cell)

    def post(self, cell: Cell, message: object) -> bool:
        """Put a message into the mailbox without a reply; False if it was refused."""
        if cell.status is CellStatus.QUARANTINED or cell.parked:
            return False
        envelope = Envelope(message, NO_REPLY, size=0, deadline=float("inf"), control=False)
        if not self.mailbox(cell).offer(envelope):
            return False
        self.ready(cell)
        return True

    def resume_parked(self, cell: Cell) -> None:
        """Move parked messages into the mailbox, as far as there is room."""
        self._admit_parked(cell)
        self.ready(cell)

    def _admit_parked(self, cell: Cell) -> None:
        mailbox = cell.mailbox
        if mailbox is not None:
            while cell.parked and (
                cell.parked[0].promise.abandoned or mailbox.offer(cell.parked[0])
            ):
                probe("parked_sender_admitted")
                cell.parked.popleft()

    def reject_waiting(self, cell: Cell, error: Exception) -> None:
        """Fail all messages that were not handled."""
        waiting = cell.mailbox.take_all() if cell.mailbox else []
        waiting.extend(cell.parked or ())
        cell.parked = None
        for envelope in waiting:
            envelope.promise.reject(error)

    # -- handling them ----------------------------------------------------------------------------

    def ready(self, cell: Cell) -> None:
        """Queue the cell for the task, once; or block it if its owner's quota is used up.

        Not while its next message is not ready: `complete` follows then.
        """
        if cell.queued or cell.status is not CellStatus.VALID:
            return
        if cell.mailbox and cell.mailbox.head.holds_up:
            return
        if not self._pool.may_write(cell.quota, self._clock.monotonic()):
            cell.quota.blocked[cell] = None
            return
        cell.queued = True
        self._ready.append(cell)
        self._event.set()

    def unblock(self, quota: Quota) -> None:
        """Queue the owner's next blocked cell if a write has ended."""
        while quota.blocked and self._pool.may_write(quota, self._clock.monotonic()):
            cell = next(iter(quota.blocked))
            del quota.blocked[cell]
            self.ready(cell)
            if cell.queued:  # else it is queued when it is valid again, or its message is ready
                return

    def complete(self, cell: Cell, envelope: Envelope) -> None:
        """Handle a message that is ready now, at once if it is the next one of its actor."""
        envelope.ready = True
        mailbox = cell.mailbox
        waiting = len(mailbox) if mailbox is not None else 0
        if mailbox is None or not waiting or cell.queued:
            return  # it was taken out, or the task comes to it
        now = self._clock.monotonic()
        if mailbox.head is not envelope or not cell.may_handle(now):
            self.ready(cell)
        elif waiting > 1 or cell.parked or envelope.promise.abandoned:
            self._drain(cell)
        else:  # nothing waits behind it, as nearly always
            cell.deliver(mailbox.get())
            cell.last_used = now
            self.queued_messages += 1
            self._deadlines.watch(cell)
            if cell.quota.blocked:
                self.unblock(cell.quota)
            self._passivation.note_idle(cell)

    async def run(self) -> None:
        """Serve the mailboxes until cancelled."""
        while True:
            if not self._ready:
                self._event = anyio.Event()
                await self._event.wait()
            handled = 0
            while self._ready and handled < _QUANTUM:
                cell = self._ready.popleft()
                cell.queued = False
                handled += max(self._drain(cell), 1)
            await anyio.lowlevel.checkpoint()

    def _drain(self, cell: Cell) -> int:
        """Have the cell handle what waits; returns how many messages it handled."""
        before = self.queued_messages
        self._admit_parked(cell)
        mailbox = cell.mailbox
        used = False
        now = self._clock.monotonic()
        for _ in range(_QUANTUM):
            if not mailbox or not cell.may_handle(now):
                break
            if mailbox.head.holds_up:
                probe("message_not_ready")
                break
            envelope = mailbox.get()
            if envelope.promise.abandoned and not envelope.control:
                probe("sender_gone_before_handling")
                continue
            cell.deliver(envelope)
            used = used or envelope.keeps_alive
            self.queued_messages += 1
        if cell.status is CellStatus.VALID:
            if used:
                cell.last_used = now
            self._deadlines.watch(cell)
        self._admit_parked(cell)
        if not mailbox and not cell.parked:
            cell.mailbox = None  # the next message finds no queue
        # A cell with a full gate is queued again when a commit is acknowledged.
        if mailbox and cell.status is CellStatus.VALID and cell.held < self._limits.held_replies:
            probe("quantum_spent")
            self.ready(cell)
        if cell.quota.blocked:
            self.unblock(cell.quota)  # this cell may not have used the quota
        self._passivation.note_idle(cell)
        return self.queued_messages - before


# -- deadlines: one sweep serves all of them; a cancel scope per request would cost 5 to 12 µs -----

_THOROUGH = 10  # sweeps between two that also look for messages whose senders gave up


class Deadlines:
    """The cells in which messages or replies wait, or did since the last sweep.

    Args:
        sweeping: the task that calls `sweep`.

    Attributes:
        watched: these cells, in the order in which they began to wait (a set's order would be
            that of addresses, which differs from run to run). The task that sweeps weighs them.
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
