"""One live actor: its state, its mailbox and its output gate.

Invariants
----------
1. State is touched in `run` only, which never awaits: one message at a time (G1), in mailbox order
    (G2).
2. A turn's records are applied and handed to the log in the same breath, so the log receives them
    in the order of the turns.
3. *The output gate.* State moves at once; a reply, a read's too, leaves only when every write that
   its turn could have seen is durable. `written` counts the writes handed over, `durable` those
   that came back; a reply waits while they differ. So a reader can never see, and act on, what a
   power cut then takes back.
4. When a write fails, everything behind it is void: later writes are fenced before the log may
   commit them, waiting replies fail, and the state is restored from the log. Nobody has seen what
   is thrown away, by 3. A write that was fenced when the log was at it already may land all the
   same. So the state is restored when the log is past all of them, and not before: it would lack,
   for good, what the log has.
5. A caller who goes away takes nothing along: its promise is left unread, the turn stands.

The gate is Cloudflare's (workerd's ``io-gate.h`` and ``actor-sqlite.h`` describe it): early state
change, late reply. The alternative, a turn that waits for its commit, caps one actor at a few
hundred messages a second. An idle cell is one slotted object; deques are made at need and given
back (an anyio task with a stream is 9 KB, this is a few hundred bytes).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from remora.errors import CommitFailed, OutcomeUnknown, RemoraError
from remora.logging import get_logger
from remora.runtime.actor import Behavior, Decision, NeedsLookup
from remora.runtime.fairness import Quota
from remora.runtime.log import Job, Log, Write
from remora.runtime.mailbox import Envelope, Mailbox
from remora.runtime.probes import probe
from remora.runtime.promise import Promise

__all__ = ["Cell", "CellHost", "CellStatus"]

_logger = get_logger("remora.cell")
_NEVER = float("inf")


class CellStatus(enum.Enum):
    """Where a cell is in its life (Orleans' names where they fit)."""

    ACTIVATING = "activating"
    """Its image is being read; messages queue."""
    VALID = "valid"
    """It runs turns."""
    FETCHING = "fetching"
    """A turn missed a cold record; messages queue behind it."""
    QUARANTINED = "quarantined"
    """It failed too often and rests; messages are refused."""
    INVALID = "invalid"
    """It left memory; the directory knows it no longer."""


class CellHost(Protocol):
    """What a cell needs of its directory."""

    log: Log
    behavior: Behavior[Any]

    def ready(self, cell: Cell) -> None:
        """The cell may run what is in its mailbox."""
        ...

    def broken(self, cell: Cell, error: Exception) -> None:
        """The cell lost its state and must be restored."""
        ...

    def missing(self, cell: Cell, envelope: Envelope, query: Any) -> None:
        """The cell needs a cold record before it can run `envelope`."""
        ...

    def landed(self, cell: Cell) -> None:
        """The cell was broken while it was `landing`, and is so no longer."""
        ...

    def fetch(self, cell: Cell) -> None:
        """The cell is FETCHING, and all it has written is durable."""
        ...

    def decided(self, turn: Decision) -> None:
        """A turn's records are durable: carry out what it asked of the supervisor."""
        ...

    def wrote(self, cell: Cell) -> None:
        """A write of the cell is durable, so its owner may send another."""
        ...


class Cell:
    """One live actor."""

    __slots__ = (
        "_held",
        "_host",
        "_outstanding",
        "bucket",
        "bytes",
        "durable",
        "faults",
        "key",
        "landing",
        "last_used",
        "mailbox",
        "parked",
        "query",
        "querying",
        "queued",
        "quota",
        "rests_until",
        "soonest",
        "state",
        "status",
        "written",
    )

    def __init__(self, key: Hashable, host: CellHost, quota: Quota) -> None:
        self.key = key
        self.quota = quota
        self.state: Any = None
        self.status = CellStatus.ACTIVATING
        self.mailbox: Mailbox | None = None
        self.query: Any = None
        """What a turn missed; set while FETCHING."""
        self.querying: Envelope | None = None
        """The message whose turn that was."""
        self.parked: deque[Envelope] | None = None
        """Messages whose senders wait for room in the mailbox."""
        self.written = 0
        self.durable = 0
        self.landing = False
        """The log may be at writes that were fenced."""
        self.queued = False
        self.last_used = 0.0
        self.bucket = -1
        self.bytes = 0
        self.faults: deque[float] | None = None
        self.rests_until = 0.0
        self.soonest = _NEVER
        """No deadline of what waits is earlier."""
        self._host = host
        self._held: deque[tuple[int, float, Promise, Any]] | None = None
        self._outstanding: deque[tuple[Write, Decision]] | None = None

    # -- state -------------------------------------------------------------------------------------

    @property
    def clean(self) -> bool:
        """Everything that its state holds is durable."""
        return self.written == self.durable

    @property
    def waiting(self) -> int:
        """Replies behind the gate."""
        return len(self._held) if self._held else 0

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is on its way to the log."""
        return (
            self.status is CellStatus.VALID
            and not self.mailbox
            and not self.parked
            and not self._held
            and not self.queued
            and self.written == self.durable
        )

    def shrink(self) -> None:
        """Give back the queues that hold nothing.

        Each takes as much as two messages, and most cells are idle.
        """
        if not self.mailbox:
            self.mailbox = None
        if not self._held:
            self._held = None
        if not self._outstanding:
            self._outstanding = None

    def restored(self, image: Any) -> Sequence[Job]:
        """Take the state that the log holds; returns the jobs that stand in it."""
        self.state = self._host.behavior.restore(self.key, image)
        self.status = CellStatus.VALID
        return self._host.behavior.jobs(image)

    # -- turns -------------------------------------------------------------------------------------

    def run(self, message: Any) -> Decision | NeedsLookup:
        """Run one turn; an exception of `handle` leaves the state as it was (G11)."""
        behavior, state = self._host.behavior, self.state
        turn = behavior.handle(state, message)
        if type(turn) is NeedsLookup:
            return turn
        assert isinstance(turn, Decision)
        try:
            for note in turn.volatile:
                behavior.apply(state, note)
            for record in turn.records:
                behavior.apply(state, record)
        except Exception as e:
            probe("turn_broke_state")
            # The state is half changed, and nothing of this turn went to the log.
            _logger.exception("turn_broke_state", key=self.key)
            self.fail(e)
            raise
        if turn.records:
            write = Write(turn.records, self._settled, size=turn.size)
            if self._outstanding is None:
                self._outstanding = deque()
            self._outstanding.append((write, turn))
            self.written += 1
            self.quota.wrote(turn.size)
            self._host.log.write(write)
        elif turn.jobs or turn.cancel or turn.expedite:
            self._host.decided(turn)
        return turn

    def deliver(self, envelope: Envelope) -> None:
        """Run a queued message and see to its reply."""
        try:
            outcome = self.run(envelope.message)
        except Exception as e:
            if not isinstance(e, RemoraError):
                _logger.exception(
                    "turn_failed", key=self.key, message=type(envelope.message).__name__
                )
            envelope.promise.reject(e)
            return
        if isinstance(outcome, NeedsLookup):
            self._host.missing(self, envelope, outcome.query)
        else:
            self.reply(envelope.promise, outcome.reply, envelope.deadline)

    def reply(self, promise: Promise, value: Any, deadline: float) -> None:
        """Answer now if all is durable, else when it is."""
        if self.written == self.durable:
            promise.resolve(value)
            return
        if self._held is None:
            self._held = deque()
        self._held.append((self.written, deadline, promise, value))
        self.soonest = min(self.soonest, deadline)

    # -- the gate ----------------------------------------------------------------------------------

    def _settled(self, write: Write, error: Exception | None) -> None:
        if write.fenced:
            probe("fenced_write_settled")
            return
        assert self._outstanding
        _, turn = self._outstanding.popleft()
        self.quota.landed(turn.size)
        if error is not None:
            self.fail(error)
            return
        self.durable += 1
        held, durable = self._held, self.durable
        while held and held[0][0] <= durable:
            _, _, promise, value = held.popleft()
            promise.resolve(value)
        if turn.jobs or turn.cancel or turn.expedite:
            self._host.decided(turn)
        if self.status is CellStatus.FETCHING:
            if self.written == self.durable:
                probe("fetch_after_commit")
                self._host.fetch(self)
        elif self.mailbox or self.parked:
            self._host.ready(self)
        self._host.wrote(self)

    def fail(self, error: Exception) -> None:
        """Break the gate: fence what is on its way, fail who waits, ask to be restored."""
        probe("gate_broken")
        answer = (
            error
            if isinstance(error, (CommitFailed, OutcomeUnknown))
            else OutcomeUnknown(str(error))
        )
        if answer is not error:
            answer.__cause__ = error
        fenced, self._outstanding = self._outstanding, None
        if fenced:
            probe("write_fenced")
            for write, turn in fenced:
                write.fenced = True
                self.quota.landed(turn.size)
            self.landing = True
            self._host.log.write(Write((), self._landed))
        self.written = self.durable = 0
        held, self._held = self._held, None
        self.state = None
        self.status = CellStatus.ACTIVATING
        for _, _, promise, _ in held or ():
            promise.reject(answer)
        self._host.broken(self, error)

    def _landed(self, _: Write, error: Exception | None) -> None:  # noqa: ARG002 - stored or not, it came after them
        self.landing = False
        self._host.landed(self)

    # -- who waits too long ------------------------------------------------------------------------

    def expire(
        self, now: float, why: str = "the deadline passed"
    ) -> tuple[Sequence[Envelope], int]:
        """Fail replies past their deadline.

        Returns the envelopes that never ran, and how many replies were failed.
        """
        late = 0
        if self._held:
            held, self._held = self._held, deque()
            for reply in held:
                if reply[1] <= now:
                    probe("deadline_behind_gate")
                    late += 1
                    reply[2].reject(
                        OutcomeUnknown(f"{why} before the commit; retry with the same key")
                    )
                else:
                    self._held.append(reply)
        unrun = self.mailbox.take_expired(now) if self.mailbox else []
        if self.parked:
            unrun.extend(envelope for envelope in self.parked if envelope.deadline <= now)
            self.parked = deque(envelope for envelope in self.parked if envelope.deadline > now)
        self.soonest = min(
            min((reply[1] for reply in self._held or ()), default=_NEVER),
            self.mailbox.soonest if self.mailbox else _NEVER,
            min((envelope.deadline for envelope in self.parked or ()), default=_NEVER),
        )
        return unrun, late
