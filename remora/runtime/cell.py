"""One live actor: its state, its mailbox and its output gate.

Invariants
----------
1. State is touched in `run` only, which never awaits: one message at a time (G1), in mailbox
   order (G2).
2. The records of a decision are applied and handed to the log in one step, so the log receives
   them in the order of the messages.
3. *The output gate.* The state changes at once. A reply, a read's too, leaves only when every
   write that it could depend on is durable: `written` counts the writes handed to the log,
   `durable` the acknowledged ones, and a reply waits while they differ. So a reader never acts on
   data that a power cut then removes.
4. When a write fails, everything behind it is void: later writes are fenced so that the log does
   not commit them, waiting replies fail, and the state is restored from the log. Nobody has seen
   what is discarded, by 3. The log may already be committing a fenced write. So the state is
   restored only when the log is past all of them: an earlier image could lack records that the
   log keeps.
5. A caller who gives up changes nothing: its promise stays unread, the decision stands.

The gate is Cloudflare's (workerd's ``io-gate.h`` and ``actor-sqlite.h`` describe it): early state
change, late reply. The alternative, one commit for each message before the next is handled, limits
one actor to a few hundred messages a second. An idle cell is one object with slots; its queues are
made when needed and released afterwards (an anyio task with a stream is 9 KB, this is a few
hundred bytes).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import anyio
import msgspec

from remora.errors import CommitFailed, MailboxFull, OutcomeUnknown, RemoraError
from remora.logging import get_logger
from remora.runtime.actor import Behavior, Decision, Image, NeedsLookup
from remora.runtime.log import Log, Write
from remora.runtime.probes import probe
from remora.runtime.promise import Promise

# -- quotas: one owner cannot fill the memory or delay the others (G10) ----------------------------
#
# Many actors may belong to one owner: all sessions of a user. Owners share two things:
#
# * *Room.* All that waits, in a mailbox or for its commit in the log, is counted in bytes and
#   bounded. Above half of the bound no owner may have more than an equal part of that half. However
#   fast one sends, and through however many sessions, the other half stays free for others. So a
#   disk that takes nothing for minutes costs a known amount of memory, also if the senders gave up.
# * *The commit.* All writes share the commits, and the busiest owner makes them long: 16 000
#   writes of one user's hundred sessions took 800 ms, one write 1 ms. While several owners are
#   active, each has a few writes on the way at a time; the rest waits in its mailboxes, and the
#   writes of the others are in the next commit. An owner that is alone may have as many as make a
#   commit efficient, so that the next owner does not wait long.

OVERHEAD_BYTES = 1_024
"""Memory of a request in addition to its content: objects, a place in a queue, a promise."""

_UNIT_BYTES = 1_024
_CONTENDED_S = 1.0  # an owner counts as not alone for so long after another's request


class Quota:
    """The work of one owner in progress. Get one from `QuotaPool.quota`.

    Attributes:
        bytes: of requests that wait in a mailbox or for the log.
        units: writes on their way to the log; a large one counts as several.
        blocked: the owner's actors that have messages and must wait for some of these writes, in
            order.
        changed: keys of the owner's actors with a write that ended since somebody looked; None
            while nobody wants to know.
    """

    __slots__ = ("__weakref__", "_pool", "blocked", "bytes", "changed", "units")

    def __init__(self, pool: QuotaPool) -> None:
        self._pool = pool
        self.bytes = 0
        self.units = 0
        self.blocked: dict[Any, None] = {}
        self.changed: set[Hashable] | None = None

    def allows(self, size: int) -> bool:
        """Return whether a request of so many bytes may wait; always if nothing else waits."""
        pool = self._pool
        room = pool.max_bytes - pool.bytes
        if size + OVERHEAD_BYTES > room:
            return not pool.bytes
        half = pool.max_bytes // 2
        if pool.bytes + size + OVERHEAD_BYTES <= half or not self.bytes:
            return True
        return self.bytes + size + OVERHEAD_BYTES <= half // pool.owners

    def reserve(self, size: int) -> None:
        """Count a request of so many bytes that begins to wait."""
        if not self.bytes:
            self._pool.owners += 1
        self.bytes += size + OVERHEAD_BYTES
        self._pool.bytes += size + OVERHEAD_BYTES

    def release(self, size: int) -> None:
        """Stop counting it."""
        self.bytes -= size + OVERHEAD_BYTES
        self._pool.bytes -= size + OVERHEAD_BYTES
        if not self.bytes:
            self._pool.owners -= 1

    def start_write(self, size: int) -> None:
        """Count a write of so many bytes that goes to the log."""
        self.units += 1 + size // _UNIT_BYTES
        self.reserve(size)

    def end_write(self, size: int) -> None:
        """Stop counting it: it is durable, or has failed."""
        self.units -= 1 + size // _UNIT_BYTES
        self.release(size)

    def note_change(self, key: Hashable) -> None:
        """The log may hold other rows of this actor than before."""
        if self.changed is not None:
            self.changed.add(key)


class QuotaPool:
    """The quotas of all owners; its length is the number of owners that have a quota now.

    Args:
        max_bytes: of all that waits.
        max_units: writes, of a kilobyte, that one owner of several may have on their way to the
            log; the last one may be larger.
        max_units_alone: the same for an owner that is alone.
        owner: gives the owner of an actor, by its key.

    Attributes:
        bytes: waiting now.
        owners: number of owners with something waiting.
    """

    def __init__(
        self,
        max_bytes: int,
        max_units: int,
        max_units_alone: int,
        owner: Callable[[Hashable], Hashable],
    ) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.owners = 0
        self._max_units = max_units
        self._max_units_alone = max_units_alone
        self._owner = owner
        self._quotas: WeakValueDictionary[Hashable, Quota] = WeakValueDictionary()
        self._last_requester: Quota | None = None
        self._contended_until = 0.0

    def __len__(self) -> int:
        return len(self._quotas)

    def quota(self, key: Hashable) -> Quota:
        """The quota of the actor's owner; it lives while one of the owner's actors holds it."""
        owner = self._owner(key)
        quota = self._quotas.get(owner)
        if quota is None:
            quota = self._quotas[owner] = Quota(self)
        return quota

    def note_request(self, quota: Quota, now: float) -> None:
        """Note that an actor of this owner got a request."""
        if quota is not self._last_requester:
            if self._last_requester is not None:
                self._contended_until = now + _CONTENDED_S
            self._last_requester = quota

    def may_write(self, quota: Quota, now: float) -> bool:
        """Return whether the owner may send more to the log."""
        return quota.units < self._max_units or (
            quota.units < self._max_units_alone and now >= self._contended_until
        )


_logger = get_logger(__name__)
_NEVER = float("inf")


class CellStatus(enum.Enum):
    """Where a cell is in its life (Orleans' names where they fit)."""

    ACTIVATING = "activating"
    """Its image is being read; messages queue."""
    VALID = "valid"
    """It handles messages."""
    LOOKING_UP = "looking up"
    """A message needs a cold record; later messages queue behind it."""
    QUARANTINED = "quarantined"
    """It failed too often; messages are refused for a while."""
    INVALID = "invalid"
    """It left memory; the registry does not know it any more."""


class CellHost(msgspec.Struct, frozen=True):
    """The port that cells call.

    Attributes:
        log: takes their writes.
        pool: of their quotas.
        most_held: replies behind one gate before messages queue in the mailbox instead.
        acknowledged: a write of the cell is durable, and the replies that waited for it are sent.
        broken: the cell lost its state.
        restore: the cell lost its state, and the log is past the writes that were fenced.
        look_up: the cell needs a cold record before it can handle the message.
        carry_out: does what a durable decision asked of the supervisor.
        watchers: are woken when the log holds more of the cell.
    """

    log: Log
    pool: QuotaPool
    most_held: int
    acknowledged: Callable[[Cell], None]
    broken: Callable[[Cell, Exception], None]
    restore: Callable[[Cell], None]
    look_up: Callable[[Cell, Envelope, NeedsLookup], None]
    carry_out: Callable[[Decision], None]
    watchers: Watchers


class _HeldReply(msgspec.Struct, eq=False):
    """A reply behind the gate.

    Attributes:
        after: the number of the write that must be durable before it leaves.
    """

    after: int
    deadline: float
    promise: Promise
    value: Any


class Cell:
    """One live actor."""

    __slots__ = (
        "_held",
        "_host",
        "_outstanding",
        "awaiting_fence",
        "behavior",
        "bytes",
        "durable",
        "earliest_deadline",
        "failures",
        "key",
        "last_used",
        "lookup",
        "lookup_envelope",
        "mailbox",
        "occupies_room",
        "parked",
        "quarantined_until",
        "queued",
        "quota",
        "state",
        "status",
        "written",
    )

    def __init__(
        self, key: Hashable, behavior: Behavior[Any], host: CellHost, quota: Quota
    ) -> None:
        self.key = key
        self.behavior = behavior
        self.quota = quota
        self.state: Any = None
        self.status = CellStatus.ACTIVATING
        self.mailbox: Mailbox | None = None
        self.parked: deque[Envelope] | None = None
        """Messages whose senders wait for room in the mailbox."""
        self.lookup: NeedsLookup | None = None
        """What the log is asked; set while LOOKING_UP."""
        self.lookup_envelope: Envelope | None = None
        """The message that needs it."""
        self.written = 0
        self.durable = 0
        self.awaiting_fence = False
        """The log may still commit writes that were fenced."""
        self.queued = False
        """It waits for the dispatcher."""
        self.last_used = 0.0
        self.occupies_room = False
        """It was activated and counts as live, also while a lost state is being restored."""
        self.bytes = 0
        self.failures: deque[float] | None = None
        self.quarantined_until = 0.0
        self.earliest_deadline = _NEVER
        """No waiting message or reply has an earlier one."""
        self._host = host
        self._held: deque[_HeldReply] | None = None
        self._outstanding: deque[tuple[Write, Decision]] | None = None

    # -- state ------------------------------------------------------------------------------------

    @property
    def clean(self) -> bool:
        """Everything in its state is durable."""
        return self.written == self.durable

    @property
    def held(self) -> int:
        """Replies behind the gate."""
        return len(self._held) if self._held else 0

    @property
    def idle(self) -> bool:
        """No message is handled or waits, and no write is on its way to the log."""
        return (
            self.status is CellStatus.VALID
            and not self.mailbox
            and not self.parked
            and not self._held
            and not self.queued
            and self.written == self.durable
        )

    def release_queues(self) -> None:
        """Drop empty queues: each is as large as two messages, and most cells are idle."""
        if not self.mailbox:
            self.mailbox = None
        if not self._held:
            self._held = None
        if not self._outstanding:
            self._outstanding = None

    def take_image(self, image: Image, state: object = None) -> None:
        """Take the state that the log holds; `state` if it is made already."""
        self.state = self.behavior.restore(self.key, image) if state is None else state
        self.status = CellStatus.VALID
        self._note_change()  # a write whose outcome was unknown may be stored

    def _note_change(self) -> None:
        self.quota.note_change(self.key)
        if self._host.watchers.events:
            self._host.watchers.wake(self.key)

    # -- messages ---------------------------------------------------------------------------------

    def admits(self, size: int, now: float) -> bool:
        """Return whether a request of so many bytes can be handled at once, on its sender's stack.

        Otherwise it goes into the mailbox.
        """
        if self.mailbox or self.parked or self.status is not CellStatus.VALID:
            return False
        # A read of durable state adds nothing to what waits, so it may always.
        if not size and self.written == self.durable:
            return True
        return self.may_handle(now) and self.quota.allows(size)

    def may_handle(self, now: float) -> bool:
        """Return whether its gate, and its owner, have room for what a message may write."""
        host = self._host
        return (
            self.status is CellStatus.VALID
            and (not self._held or len(self._held) < host.most_held)
            and host.pool.may_write(self.quota, now)
        )

    def run(self, message: object) -> Decision | NeedsLookup:
        """Handle one message; an exception of `handle` leaves the state as it was (G11)."""
        behavior, state = self.behavior, self.state
        decision = behavior.handle(state, message)
        if type(decision) is NeedsLookup:
            return decision
        assert isinstance(decision, Decision)
        try:
            for record in decision.volatile:
                behavior.apply(state, record)
            for record in decision.records:
                behavior.apply(state, record)
        except Exception as e:
            probe("records_not_applied")
            # The state is half changed, and the log has nothing of this decision.
            _logger.exception("records_not_applied", key=self.key)
            self.fail(e)
            raise
        if decision.records:
            write = Write(decision.records, self._on_acknowledged, size=decision.size)
            if self._outstanding is None:
                self._outstanding = deque()
            self._outstanding.append((write, decision))
            self.written += 1
            self.quota.start_write(decision.size)
            self._host.log.write(write)
        elif decision.jobs or decision.cancel or decision.expedite:
            self._host.carry_out(decision)
        return decision

    def deliver(self, envelope: Envelope) -> Decision | None:
        """Handle a message and reply to it; None if it failed, or needs a cold record first."""
        try:
            outcome = self.run(envelope.message)
        except Exception as e:
            if not isinstance(e, RemoraError):
                _logger.exception(
                    "message_failed", key=self.key, message=type(envelope.message).__name__
                )
            envelope.promise.reject(e)
            return None
        if isinstance(outcome, NeedsLookup):
            self._host.look_up(self, envelope, outcome)
            return None
        self.reply(envelope.promise, outcome.reply, envelope.deadline)
        return outcome

    def reply(self, promise: Promise, value: object, deadline: float) -> None:
        """Reply now if everything is durable, else when it is."""
        if self.written == self.durable:
            promise.resolve(value)
            return
        if self._held is None:
            self._held = deque()
        self._held.append(_HeldReply(self.written, deadline, promise, value))
        self.earliest_deadline = min(self.earliest_deadline, deadline)

    # -- the gate ---------------------------------------------------------------------------------

    def _on_acknowledged(self, error: Exception | None) -> None:
        if self.awaiting_fence:
            probe("fenced_write_acknowledged")
            return
        assert self._outstanding
        _, decision = self._outstanding.popleft()
        self.quota.end_write(decision.size)
        if error is not None:
            self.fail(error)
            return
        self.durable += 1
        if self.quota.changed is not None or self._host.watchers.events:
            self._note_change()
        held, durable = self._held, self.durable
        while held and held[0].after <= durable:
            reply = held.popleft()
            reply.promise.resolve(reply.value)
        if decision.jobs or decision.cancel or decision.expedite:
            self._host.carry_out(decision)
        self._host.acknowledged(self)

    def fail(self, error: Exception) -> None:
        """Break the gate: fence outstanding writes, fail waiting replies, lose the state."""
        probe("gate_broken")
        answer = (
            error
            if isinstance(error, (CommitFailed, OutcomeUnknown))
            else OutcomeUnknown(str(error))
        )
        if answer is not error:
            answer.__cause__ = error
        outstanding, self._outstanding = self._outstanding, None
        if outstanding:
            probe("write_fenced")
            for write, decision in outstanding:
                write.fenced = True
                self.quota.end_write(decision.size)
            self.awaiting_fence = True
            self._host.log.write(Write((), self._fence_acknowledged))
        self.written = self.durable = 0
        held, self._held = self._held, None
        self.state = None
        self.status = CellStatus.ACTIVATING
        for reply in held or ():
            reply.promise.reject(answer)
        self._host.broken(self, error)
        if self.status is CellStatus.ACTIVATING and not self.awaiting_fence:
            self._host.restore(self)

    def _fence_acknowledged(self, error: Exception | None) -> None:  # noqa: ARG002 - the log is past the fence, stored or not
        self.awaiting_fence = False
        if self.status is CellStatus.ACTIVATING:
            self._host.restore(self)

    # -- deadlines --------------------------------------------------------------------------------

    def expire(
        self, now: float, why: str = "the deadline passed"
    ) -> tuple[Sequence[Envelope], int]:
        """Fail replies, and remove messages, that are past their deadline.

        Returns:
            The messages past theirs that were not handled, and the number of failed replies.
        """
        late = 0
        if self._held:
            held, self._held = self._held, deque()
            for reply in held:
                if reply.deadline <= now:
                    probe("deadline_behind_gate")
                    late += 1
                    reply.promise.reject(
                        OutcomeUnknown(f"{why} before the commit; retry with the same key")
                    )
                else:
                    self._held.append(reply)
        expired = self.mailbox.take_expired(now) if self.mailbox else []
        if self.parked:
            expired.extend(envelope for envelope in self.parked if envelope.deadline <= now)
            self.parked = deque(envelope for envelope in self.parked if envelope.deadline > now)
        self.earliest_deadline = min(
            min((reply.deadline for reply in self._held or ()), default=_NEVER),
            self.mailbox.earliest_deadline if self.mailbox else _NEVER,
            min((envelope.deadline for envelope in self.parked or ()), default=_NEVER),
        )
        return expired, late


# -- who waits for an actor to change --------------------------------------------------------------


class Watchers:
    """Wakes those who watch an actor when the log may hold more of it, or will hold nothing.

    Attributes:
        events: of those who wait, by the actor's key; empty while nobody does.
    """

    def __init__(self) -> None:
        self.events: dict[Hashable, list[anyio.Event]] = {}

    @contextmanager
    def watch(self, key: Hashable) -> Iterator[anyio.Event]:
        """Gives an event that the next change of the actor sets; begin before you look."""
        event = anyio.Event()
        self.events.setdefault(key, []).append(event)
        try:
            yield event
        finally:
            events = self.events[key]
            events.remove(event)
            if not events:
                del self.events[key]

    def wake(self, key: Hashable) -> None:
        """The actor has changed."""
        for event in self.events.get(key, ()):
            event.set()

    def wake_all(self, matches: Callable[[Hashable], bool] = lambda _: True) -> None:
        """Actors that match have changed."""
        for key in self.events:
            if matches(key):
                self.wake(key)


# -- a bounded queue in front of a busy cell; an idle cell has none --------------------------------
#
# Bounded by count and by bytes, its own and those of all mailboxes (`fairness`). The newest message
# is refused, an accepted one is never dropped for lack of room, so `MailboxFull` always means that
# nothing ran. Age is bounded by the deadline of each message. Control messages (results of jobs,
# passivation) are not counted: a full mailbox must not keep out what empties it.


class Envelope(msgspec.Struct, eq=False):
    """A message that waits to be handled.

    Attributes:
        message: for the actor.
        promise: gets the reply.
        size: bytes of the message.
        deadline: monotonic time at which its sender gives up.
        control: it comes from the runtime: never refused, never expired.
        keeps_alive: the actor counts as used by it.
        ready: it can be handled; False while it only has its place in the order, and something of
            the message is still being computed.
    """

    message: Any
    promise: Promise
    size: int
    deadline: float
    control: bool
    keeps_alive: bool = True
    ready: bool = True

    @property
    def holds_up(self) -> bool:
        """Return whether later messages must wait for it."""
        return not self.ready and not self.promise.abandoned


class Mailbox:
    """First in, first out.

    Args:
        max_messages: how many may wait.
        max_behind: how many more, behind one that is not ready: they would be handled by now.
        max_bytes: how many bytes may wait.
        quota: of the actor's owner.
    """

    __slots__ = (
        "_bytes",
        "_counted",
        "_max_behind",
        "_max_bytes",
        "_max_messages",
        "_queue",
        "_quota",
    )

    def __init__(self, max_messages: int, max_behind: int, max_bytes: int, quota: Quota) -> None:
        self._queue: deque[Envelope] = deque()
        self._max_messages = max_messages
        self._max_behind = max_behind
        self._max_bytes = max_bytes
        self._counted = 0
        self._bytes = 0
        self._quota = quota

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, envelope: Envelope) -> None:
        """Queue it.

        Raises:
            MailboxFull: over the count, the bytes or its owner's quota; it was not taken.
        """
        if not envelope.control:
            if self._counted >= self._max_messages and (
                self._queue[0].ready or self._counted >= self._max_messages + self._max_behind
            ):
                probe("mailbox_full_of_messages")
                raise MailboxFull(
                    f"the actor's mailbox holds its {self._max_messages} messages; "
                    "nothing ran, retry later",
                    limit="messages",
                )
            # An empty mailbox takes a message of any size, or that one could never be delivered.
            if self._bytes + envelope.size > self._max_bytes and self._counted:
                probe("mailbox_full_of_bytes")
                raise MailboxFull(
                    f"the actor's mailbox holds {self._bytes} of its {self._max_bytes} bytes; "
                    "nothing ran, retry later",
                    limit="bytes",
                )
            if not self._quota.allows(envelope.size):
                raise MailboxFull(
                    "too much waits to be handled or to be committed, of all users or of this one; "
                    "nothing ran, retry later",
                    limit="total",
                )
            self._count(envelope)
        self._queue.append(envelope)

    def offer(self, envelope: Envelope) -> bool:
        """Queue it if there is room."""
        try:
            self.put(envelope)
        except MailboxFull:
            return False
        return True

    @property
    def head(self) -> Envelope:
        """The oldest message, not removed."""
        return self._queue[0]

    @property
    def earliest_deadline(self) -> float:
        """The earliest deadline of its messages."""
        return min((envelope.deadline for envelope in self._queue), default=float("inf"))

    def get(self) -> Envelope:
        """Remove and return the oldest message."""
        envelope = self._queue.popleft()
        self._discount(envelope)
        return envelope

    def put_first(self, envelope: Envelope) -> None:
        """Queue a message that is handled next, whatever the bounds."""
        self._queue.appendleft(envelope)
        if not envelope.control:
            self._count(envelope)

    def take_expired(self, now: float) -> list[Envelope]:
        """Remove and return messages past their deadline, or whose sender gave up."""
        expired = [
            e for e in self._queue if not e.control and (e.deadline <= now or e.promise.abandoned)
        ]
        if expired:
            gone = set(map(id, expired))
            self._queue = deque(e for e in self._queue if id(e) not in gone)
            for envelope in expired:
                self._discount(envelope)
        return expired

    def take_all(self) -> list[Envelope]:
        """Remove and return all messages."""
        envelopes = list(self._queue)
        self._queue.clear()
        for envelope in envelopes:
            self._discount(envelope)
        return envelopes

    def _count(self, envelope: Envelope) -> None:
        self._counted += 1
        self._bytes += envelope.size
        self._quota.reserve(envelope.size)

    def _discount(self, envelope: Envelope) -> None:
        if not envelope.control:
            self._counted -= 1
            self._bytes -= envelope.size
            self._quota.release(envelope.size)
