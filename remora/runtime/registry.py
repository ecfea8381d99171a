"""Key → cell: activation, dispatch and passivation.

A message to an idle, valid cell runs on its sender's stack (0.25 µs, measured; a queue and a task
cost 7 to 42). Only when the cell is activating, fetching, or its gate is full does the message go
to the mailbox, and then one task drains all mailboxes in turn, a bounded batch each, so that a
flood to one session does not starve the others.

* A cell is registered before the first await of its activation: two callers can never activate it
    twice.
* A cell is forgotten without an await after the check that it is idle: no message can slip in
    between.
* Activations are read in batches, one query for hundreds of sessions.
* Idle time counts from the last finished turn; cells are looked at in time buckets, oldest first,
    each once per idle period.
* While several owners are at work, none has more on its way to the log than its share of a commit
    (`shares`).
* One sweep serves all deadlines; a cancel scope per request would cost 5 to 12 µs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from remora.errors import (
    CommitFailed,
    MailboxFull,
    OutcomeUnknown,
    RuntimeClosed,
    SessionQuarantined,
)
from remora.logging import get_logger
from remora.runtime.actor import Behavior, Decision, NeedsLookup
from remora.runtime.cell import Cell, CellStatus
from remora.runtime.clock import Clock
from remora.runtime.fairness import Quota, QuotaPool
from remora.runtime.log import Log
from remora.runtime.mailbox import Envelope, Mailbox
from remora.runtime.probes import probe
from remora.runtime.promise import new_promise

__all__ = ["ActorRegistry", "RegistryLimits", "RegistryStatistics"]

_logger = get_logger("remora.directory")
_QUANTUM = 16  # messages that one cell runs before the next has its turn
_INLINE = 64  # turns on senders' stacks before one of them lets the loop breathe
_HYDRATE = 256  # sessions read in one batch
_SWEEP_S = 0.1
_REREAD_S = 1.0  # before a lost actor that could not be read is tried again
# before an activation looks for room again; doubled up to a sweep's interval, while a disk hangs,
# say
_ROOM_S = 0.005
_THOROUGH = (
    10  # sweeps after which mailboxes are looked through for messages whose senders have left
)


class _NoReply:
    """The promise of a message that nobody waits for."""

    abandoned = False

    def resolve(self, value: Any) -> None:
        """Nobody hears it."""

    def reject(self, error: BaseException) -> None:
        """What failed is logged where it failed."""

    async def wait(self) -> Any:
        """Nobody waits."""


_NO_REPLY = _NoReply()


class RegistryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds (G10) and the restart policy (G11)."""

    mailbox_messages: int = 1_000
    mailbox_bytes: int = 32 << 20
    total_bytes: int = 256 << 20
    """Bytes that may wait for their turn or for the log, of all actors together."""
    held_replies: int = 1_024
    """Replies, or writes, behind one gate before messages queue in the mailbox instead.

    And writes of all actors of one owner.
    """
    share_writes: int = 16
    """Writes that one owner may have on their way to the log while others are at work, too."""
    wait_when_full: bool = False
    timeout_s: float = 30.0
    idle_s: float = 300.0
    max_live: int = 100_000
    max_bytes: int = 2 << 30
    restart_intensity: int = 5
    """So many failures of one cell within `restart_period_s` send it to rest for `rest_s`."""
    restart_period_s: float = 30.0
    rest_s: float = 30.0


class RegistryStatistics(msgspec.Struct, frozen=True):
    """Counters since start, and what is there now."""

    live: int
    bytes: int
    queued: int
    activations: int
    passivations: int
    inline_turns: int
    queued_turns: int
    refused: int
    expired: int
    restarts: int
    quarantines: int
    waiting_bytes: int = 0
    """Of requests that wait for their turn or for the log."""


def _own(key: Hashable) -> Hashable:
    return key


class ActorRegistry:
    """All live cells of one behaviour.

    Args:
        behavior: what they do.
        log: what makes their records durable.
        clock: for deadlines and idle time.
        limits: what is bounded, and how.
        on_decided: carries out what a durable turn asked of the supervisor.
        owner: whose an actor is, by its key: owners have equal shares. Otherwise each actor is on
            its own.
    """

    def __init__(
        self,
        behavior: Behavior[Any],
        log: Log,
        clock: Clock,
        limits: RegistryLimits,
        on_decided: Callable[[Decision], None],
        owner: Callable[[Any], Hashable] = _own,
    ) -> None:
        self.behavior = behavior
        self.log = log
        self.decided = on_decided
        self._clock = clock
        self._limits = limits
        self._pool = QuotaPool(limits.total_bytes, limits.share_writes, limits.held_replies, owner)
        self._cells: dict[Hashable, Cell] = {}
        self._bytes = 0
        self._live = 0
        self._ready: deque[Cell] = deque()
        self._ready_event = anyio.Event()
        self._activating: deque[Cell] = deque()
        self._activating_event = anyio.Event()
        self._fetches: deque[Cell] = deque()
        self._fetch_event = anyio.Event()
        # Cells that somebody waits for: what the deadline sweep looks at, in their order (a set's
        # would be that of addresses).
        self._watched: dict[Cell, None] = {}
        self._unread: dict[
            Hashable, float
        ] = {}  # actors that were lost and could not be read: when that is tried again
        self._buckets: dict[int, list[Cell]] = {}
        self._bucket_s = max(limits.idle_s / 10, 0.01)
        self._closed = False
        self._bars: list[tuple[Callable[[Hashable], bool], Callable[[], Exception]]] = []
        self._inline = self._sweeps = 0
        self._activations = self._passivations = self._inline_turns = self._queued_turns = 0
        self._refused = self._expired = self._restarts = self._quarantines = 0

    # -- asking ------------------------------------------------------------------------------------

    async def ask(
        self, key: Hashable, message: Any, *, size: int = 0, timeout_s: float | None = None
    ) -> Any:
        """Run `message` in its actor and return the reply, once all that it saw is durable.

        Raises:
            MailboxFull: refused, or the deadline passed, before it ran.
            OutcomeUnknown: the deadline passed, or the commit became uncertain, after it ran.
            CommitFailed: the log refused its records; nothing is stored.
            SessionQuarantined: the actor rests after repeated failure.
            RuntimeClosed: intake has stopped.
        """
        if self._closed:
            raise RuntimeClosed("the runtime is closing; no new requests are taken")
        cell = self._cells.get(key) or self._create(key)
        now = self._clock.monotonic()
        deadline = now + (self._limits.timeout_s if timeout_s is None else timeout_s)
        self._pool.asked(cell.quota, now)
        if not cell.mailbox and not cell.parked and self._may_run(cell, size, now):
            outcome = cell.run(message)
            if not isinstance(outcome, NeedsLookup):
                self._inline_turns += 1
                cell.last_used = now
                if outcome.records:
                    self._weigh(cell)
                if cell.written == cell.durable:
                    self._inline += 1
                    if (
                        self._inline >= _INLINE
                    ):  # after the turn: whoever asks first has its place first
                        self._inline = 0
                        await anyio.lowlevel.checkpoint()
                    return outcome.reply
                promise = new_promise()
                cell.reply(promise, outcome.reply, deadline)
                self._watched[cell] = None
                return await promise.wait()
            envelope = Envelope(message, new_promise(), size=size, deadline=deadline, control=False)
            self.missing(cell, envelope, outcome.query)
            return await envelope.promise.wait()
        envelope = Envelope(message, new_promise(), size=size, deadline=deadline, control=False)
        self._enqueue(cell, envelope)
        return await envelope.promise.wait()

    async def tell(self, key: Hashable, message: Any, *, keeps_alive: bool = True) -> Any:
        """Run a control message: never refused by a full mailbox, and no deadline.

        Returns the durable reply.

        One that is no `keeps_alive` leaves the actor as idle as it was, or a round that comes by
        every few minutes would keep it in memory for ever.
        """
        cell = self._cells.get(key) or self._create(key)
        envelope = Envelope(
            message,
            new_promise(),
            size=0,
            deadline=float("inf"),
            control=True,
            keeps_alive=keeps_alive,
        )
        self._enqueue(cell, envelope)
        return await envelope.promise.wait()

    def post(self, key: Hashable, message: Any) -> bool:
        """Put a message into its actor's mailbox, wait for nothing, and hear nothing of what came
        of it.

        False if it was refused: intake has stopped, the mailbox is full, or the actor rests.
        """
        if self._closed or self._refusal(key) is not None:
            return False
        cell = self._cells.get(key) or self._create(key)
        if cell.status is CellStatus.QUARANTINED or cell.parked:
            return False
        if not self._mailbox(cell).offer(
            Envelope(message, _NO_REPLY, size=0, deadline=float("inf"), control=False)
        ):
            return False
        self.ready(cell)
        return True

    def _open(self, cell: Cell, now: float) -> bool:
        """Whether the cell's next message may have its turn."""
        return (
            cell.status is CellStatus.VALID
            and cell.waiting < self._limits.held_replies
            and self._pool.open(cell.quota, now)
        )  # fmt: skip

    def _may_run(self, cell: Cell, size: int, now: float) -> bool:
        """Whether a request can have its turn at once.

        A read of what is durable adds nothing to what waits, and may always.
        """
        if cell.status is not CellStatus.VALID:
            return False
        if not size and cell.written == cell.durable:
            return True
        return (
            cell.waiting < self._limits.held_replies
            and self._pool.open(cell.quota, now)
            and cell.quota.allows(size)
        )

    def _mailbox(self, cell: Cell) -> Mailbox:
        """The cell's mailbox, made at first need."""
        if cell.mailbox is None:
            cell.mailbox = Mailbox(
                self._limits.mailbox_messages, self._limits.mailbox_bytes, cell.quota
            )
        return cell.mailbox

    def _enqueue(self, cell: Cell, envelope: Envelope) -> None:
        if cell.status is CellStatus.QUARANTINED:
            probe("quarantine_refused")
            raise SessionQuarantined(
                f"{cell.key!r} failed {self._limits.restart_intensity} times within "
                f"{self._limits.restart_period_s:g} s and rests; nothing ran, retry later",
                retry_after_s=max(cell.rests_until - self._clock.monotonic(), 0.0),
            )
        try:
            # who comes after those that wait for room waits behind them
            if cell.parked and not envelope.control:
                raise MailboxFull("others wait for room already", limit="messages")
            mailbox = self._mailbox(cell)
            if mailbox and cell.status is CellStatus.ACTIVATING:
                probe("activation_joined")
            mailbox.put(envelope)
        except MailboxFull:
            if not self._limits.wait_when_full:
                probe("mailbox_refused")
                self._refused += 1
                raise
            if cell.parked is None:
                cell.parked = deque()
            probe("sender_parked")
            cell.parked.append(envelope)
        cell.soonest = min(cell.soonest, envelope.deadline)
        self._watched[cell] = None
        self.ready(cell)

    # -- what cells call ---------------------------------------------------------------------------

    def ready(self, cell: Cell) -> None:
        """Put the cell in line for the drain task, once.

        Or behind its owner's writes, where enough of them are on their way.
        """
        if cell.queued or cell.status is not CellStatus.VALID:
            return
        if not self._pool.open(cell.quota, self._clock.monotonic()):
            cell.quota.blocked[cell] = None
            return
        cell.queued = True
        self._ready.append(cell)
        self._ready_event.set()

    def wrote(self, cell: Cell) -> None:
        """A write has landed: another cell of the owner may go on."""
        if cell.quota.blocked:
            self._go_on(cell.quota)

    def _go_on(self, quota: Quota) -> None:
        """Let the next cell that waits for its owner's writes to land have its turn."""
        while quota.blocked and self._pool.open(quota, self._clock.monotonic()):
            cell = next(iter(quota.blocked))
            del quota.blocked[cell]
            if cell.status is CellStatus.VALID:  # else it is put in line when it is again
                self.ready(cell)
                return

    def broken(self, cell: Cell, error: Exception) -> None:
        """Restore it from the log, or let it rest if it fails too often (OTP's intensity and
        period).
        """
        now = self._clock.monotonic()
        if cell.quota.blocked:
            self._go_on(cell.quota)  # what this one had on its way will not land
        self._restarts += 1
        self._bytes -= cell.bytes
        cell.bytes = 0
        faults = cell.faults = cell.faults if cell.faults is not None else deque()
        faults.append(now)
        while faults[0] <= now - self._limits.restart_period_s:
            faults.popleft()
        if not isinstance(error, (CommitFailed, OutcomeUnknown)):
            _logger.error("cell_broken", key=cell.key, error=str(error))
        # A commit that failed is the disk's fault, every session's alike: resting single cells
        # would not help it.
        if len(faults) >= self._limits.restart_intensity and not isinstance(
            error, (CommitFailed, OutcomeUnknown)
        ):
            self._quarantines += 1
            probe("quarantine_entered")
            cell.status = CellStatus.QUARANTINED
            cell.rests_until = now + self._limits.rest_s
            self._watched[cell] = None
            rest = SessionQuarantined(
                f"{cell.key!r} failed repeatedly and rests", retry_after_s=self._limits.rest_s
            )
            self._reject_all(cell, rest)
            _logger.error("cell_quarantined", key=cell.key, rest_s=self._limits.rest_s)
        elif not cell.landing:
            self._activate(cell)

    def landed(self, cell: Cell) -> None:
        """Restore it now, unless it rests."""
        if cell.status is CellStatus.ACTIVATING:
            self._activate(cell)

    def _reject_all(self, cell: Cell, error: Exception) -> None:
        waiting = cell.mailbox.take_all() if cell.mailbox else []
        waiting.extend(cell.parked or ())
        cell.parked = None
        for envelope in waiting:
            envelope.promise.reject(error)

    def missing(self, cell: Cell, envelope: Envelope, query: Any) -> None:
        """Suspend the cell, its message first in line, until the log has answered."""
        probe("cold_record_missed")
        cell.status = CellStatus.FETCHING
        cell.query, cell.querying = query, envelope
        self._mailbox(cell).put_back(envelope)
        cell.soonest = min(cell.soonest, envelope.deadline)
        self._watched[cell] = None
        if cell.clean:
            self.fetch(cell)

    def fetch(self, cell: Cell) -> None:
        """Only what is committed can be fetched, so this comes when all that the cell wrote has
        landed.

        Nothing of it can fail any more, then, and it runs no turn until it has its answer: it
        cannot be broken meanwhile.
        """
        self._fetches.append(cell)
        self._fetch_event.set()

    # -- activation --------------------------------------------------------------------------------

    def _create(self, key: Hashable) -> Cell:
        if (refusal := self._refusal(key)) is not None:
            probe("actor_barred")
            raise refusal
        cell = Cell(key, self, self._pool.quota(key))
        self._cells[key] = cell
        self._activate(cell)
        return cell

    def _activate(self, cell: Cell) -> None:
        cell.status = CellStatus.ACTIVATING
        self._activating.append(cell)
        self._activating_event.set()

    async def _activation_loop(self) -> None:
        while True:
            await self._activating_event.wait()
            self._activating_event = anyio.Event()
            wait_s = _ROOM_S
            while self._activating:
                # Cells that lost their state have their place already: they must not wait for room
                # that they take up.
                restoring = [cell for cell in self._activating if cell.bucket >= 0][:_HYDRATE]
                if restoring:
                    taken = set(restoring)
                    self._activating = deque(cell for cell in self._activating if cell not in taken)
                    await self._hydrate(restoring)
                    continue
                if not self._has_room():
                    self._shed()
                    if not self._has_room():
                        probe("activation_waited_for_room")
                        await self._clock.sleep(
                            wait_s
                        )  # all are busy; one will be idle as soon as its commit lands
                        wait_s = min(wait_s * 2, _SWEEP_S)
                        continue
                wait_s = _ROOM_S
                count = min(
                    len(self._activating), _HYDRATE, max(self._limits.max_live - self._live, 1)
                )
                await self._hydrate([self._activating.popleft() for _ in range(count)])

    async def _hydrate(self, cells: list[Cell]) -> None:
        try:
            images = await self.log.hydrate([cell.key for cell in cells])
        except Exception as e:
            _logger.exception("hydrate_failed", sessions=len(cells))
            images = [e] * len(cells)
        now = self._clock.monotonic()
        for cell, image in zip(cells, images, strict=True):
            try:
                if isinstance(image, Exception):
                    raise image
                jobs = cell.restored(image)
            except Exception as e:
                probe("image_unreadable")
                # Nothing is known of this session, so nothing may be answered; its next message
                # tries anew.
                if cell.bucket >= 0 or cell.key in self._unread:
                    self._unread[cell.key] = now + _REREAD_S
                self._forget(cell)
                self._reject_all(cell, e)
                continue
            if self._unread:
                self._unread.pop(cell.key, None)
            cell.last_used = now
            self._weigh(cell)
            if jobs:
                probe("activated_amid_jobs")
                # A commit whose fate was unknown may have been kept: its jobs are in the log, and
                # nobody has submitted them.
                self.decided(Decision(jobs=jobs))
            if cell.bucket < 0:  # else it was restored in place after a failure
                self._activations += 1
                self._live += 1
                self._file(cell)
            else:
                probe("cell_reloaded")
            if cell.mailbox or cell.parked:
                self.ready(cell)

    async def _fetch_loop(self) -> None:
        while True:
            await self._fetch_event.wait()
            self._fetch_event = anyio.Event()
            while self._fetches:
                cell = self._fetches.popleft()
                try:
                    answer = await self.log.fetch(cell.key, cell.query)
                except Exception as e:
                    probe("fetch_failed")
                    cell.status = CellStatus.VALID
                    asker = cell.querying
                    if (
                        asker is not None and cell.mailbox and cell.mailbox.head is asker
                    ):  # it may have left meanwhile
                        cell.mailbox.get().promise.reject(e)
                else:
                    cell.status = CellStatus.VALID
                    self.behavior.store_answer(cell.state, cell.query, answer)
                if cell.mailbox:
                    self.ready(cell)

    # -- draining ----------------------------------------------------------------------------------

    async def _drain_loop(self) -> None:
        while True:
            if not self._ready:
                self._ready_event = anyio.Event()
                await self._ready_event.wait()
            cell = self._ready.popleft()
            cell.queued = False
            self._drain(cell)
            await anyio.lowlevel.checkpoint()

    def _admit_parked(self, cell: Cell) -> None:
        mailbox = cell.mailbox
        if mailbox is not None:
            while cell.parked and (
                cell.parked[0].promise.abandoned or mailbox.offer(cell.parked[0])
            ):
                probe("parked_sender_admitted")
                cell.parked.popleft()

    def _drain(self, cell: Cell) -> None:
        self._admit_parked(cell)
        mailbox = cell.mailbox
        used = False
        now = self._clock.monotonic()
        for _ in range(_QUANTUM):
            if not mailbox or not self._open(cell, now):
                break
            envelope = mailbox.get()
            if envelope.promise.abandoned and not envelope.control:
                probe("sender_gone_before_turn")
                continue  # its sender left before it ran: nothing has happened, and nothing will
            cell.deliver(envelope)
            used = used or envelope.keeps_alive
            self._queued_turns += 1
        if cell.status is CellStatus.VALID:
            if used:
                cell.last_used = now
            self._weigh(cell)
        self._admit_parked(cell)
        # A full gate re-queues its cell itself when a commit lands.
        if mailbox and cell.status is CellStatus.VALID and cell.waiting < self._limits.held_replies:
            probe("quantum_spent")
            self.ready(cell)
        if cell.quota.blocked:
            self._go_on(cell.quota)  # this one may have left room, and nothing that will land

    # -- deadlines ---------------------------------------------------------------------------------

    async def _sweep_loop(self) -> None:
        while True:
            await self._clock.sleep(min(_SWEEP_S, self._bucket_s))
            self._sweep_deadlines()
            self._sweep_idle()
            if self._unread:
                self._read_again()
            if self._live > self._limits.max_live or self._bytes > self._limits.max_bytes:
                self._shed()

    def _read_again(self) -> None:
        """Bring back actors that were lost with writes under way.

        A commit that was kept may have left jobs in the log.

        Nobody has submitted those, and nobody may ever send the actor another message.
        """
        now = self._clock.monotonic()
        for key in [
            key for key, due in self._unread.items() if due <= now and key not in self._cells
        ]:
            if self._refusal(key) is not None:
                del self._unread[key]  # it is being forgotten
            else:
                probe("lost_actor_read_again")
                self._unread[key] = now + _REREAD_S
                self._create(key)

    def _sweep_deadlines(self) -> None:
        now = self._clock.monotonic()
        self._sweeps += 1
        thorough = self._sweeps % _THOROUGH == 0
        for cell in list(self._watched):
            if cell.status is CellStatus.QUARANTINED:
                if cell.rests_until <= now and not cell.landing:
                    probe("quarantine_left")
                    self._unread[cell.key] = now
                    self._watched.pop(cell, None)
                    self._forget(cell)
                continue
            if thorough or cell.soonest <= now:
                unrun, late = cell.expire(now)
                self._expired += late + len(unrun)
                for envelope in unrun:
                    if envelope.deadline <= now:
                        probe("deadline_in_mailbox")
                    envelope.promise.reject(
                        MailboxFull(
                            "the deadline passed before the message's turn came; nothing ran",
                            limit="age",
                        )
                    )
            if cell.parked:
                self._admit_parked(cell)
                self.ready(cell)
            if (
                not cell.mailbox
                and not cell.waiting
                and not cell.parked
                and cell.status is not CellStatus.FETCHING
            ):
                self._watched.pop(cell, None)
                cell.shrink()

    # -- passivation -------------------------------------------------------------------------------

    def _file(self, cell: Cell) -> None:
        cell.bucket = int(cell.last_used / self._bucket_s)
        self._buckets.setdefault(cell.bucket, []).append(cell)

    def _sweep_idle(self) -> None:
        horizon = int((self._clock.monotonic() - self._limits.idle_s) / self._bucket_s)
        for bucket in sorted(b for b in self._buckets if b < horizon):
            for cell in self._buckets.pop(bucket):
                self._retire(cell, bucket)

    def _shed(self) -> None:
        """Passivate the longest idle, down to 95 % of the bounds."""
        live, size = int(self._limits.max_live * 0.95), int(self._limits.max_bytes * 0.95)
        if self._live > live:
            probe("shed_by_count")
        if self._bytes > size:
            probe("shed_by_bytes")
        for bucket in sorted(self._buckets):
            cells = self._buckets.pop(bucket)
            for position, cell in enumerate(cells):
                if self._live <= live and self._bytes <= size:
                    self._buckets.setdefault(bucket, []).extend(cells[position:])
                    return
                self._retire(cell, bucket)

    def _retire(self, cell: Cell, bucket: int) -> None:
        if cell.status is CellStatus.INVALID:
            return
        if int(cell.last_used / self._bucket_s) > bucket:
            probe("retire_found_used")
            self._file(cell)  # used since it was filed
            return
        if not cell.idle:
            probe("retire_found_busy")
            cell.last_used = self._clock.monotonic()
            self._file(cell)
            return
        farewell = self.behavior.on_idle(cell.state)
        if farewell is not None:
            probe("farewell_run")
            try:
                cell.run(farewell)
            except Exception:
                _logger.exception("farewell_failed", key=cell.key)
            self._buckets.setdefault(bucket, []).append(
                cell
            )  # it may leave at the next sweep, when this is durable
            return
        self._passivations += 1
        self._forget(cell)

    def _forget(self, cell: Cell) -> None:
        if cell.bucket >= 0:
            self._live -= 1
        cell.status = CellStatus.INVALID
        cell.state = None
        self._bytes -= cell.bytes
        cell.bytes = 0
        if self._cells.get(cell.key) is cell:
            del self._cells[cell.key]

    def _weigh(self, cell: Cell) -> None:
        if cell.state is None:
            return
        size = self.behavior.size(cell.state)
        self._bytes += size - cell.bytes
        cell.bytes = size

    def _has_room(self) -> bool:
        return self._live == 0 or (
            self._live < self._limits.max_live and self._bytes < self._limits.max_bytes
        )

    # -- expulsion ---------------------------------------------------------------------------------

    @contextmanager
    def bar(
        self, matches: Callable[[Hashable], bool], error: Callable[[], Exception]
    ) -> Iterator[None]:
        """Meanwhile, no actor that matches comes to life: its messages raise `error()`.

        See `evict` for those that live.
        """
        bar = (matches, error)
        self._bars.append(bar)
        try:
            yield
        finally:
            self._bars.remove(bar)

    def _refusal(self, key: Hashable) -> Exception | None:
        return next((error() for matches, error in self._bars if matches(key)), None)

    async def evict(self, matches: Callable[[Hashable], bool]) -> None:
        """Take the actors that match, and are barred, out of memory.

        Returns when what they had written has landed.

        Messages that wait for a turn are refused as new ones are; replies that wait for a commit
        still get it.
        """
        while True:
            staying = False
            for cell in [cell for cell in self._cells.values() if matches(cell.key)]:
                if (refusal := self._refusal(cell.key)) is not None:
                    self._reject_all(cell, refusal)
                if cell.status is CellStatus.QUARANTINED or (
                    cell.status is CellStatus.VALID and cell.clean
                ):
                    self._watched.pop(cell, None)
                    self._forget(cell)
                else:
                    staying = True
            if not staying:
                return
            probe("expulsion_waited")
            await self._clock.sleep(0.002)

    # -- life --------------------------------------------------------------------------------------

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the loops; they end when the task group is cancelled."""
        for loop in (self._drain_loop, self._activation_loop, self._fetch_loop, self._sweep_loop):
            tasks.start_soon(loop, name=f"remora.directory.{loop.__name__.strip('_')}")

    def stop_intake(self) -> None:
        """Refuse requests from now on; control messages still pass."""
        self._closed = True

    async def drain(self) -> None:
        """Wait until all accepted messages have run, idle actors have written what they put off,
        and all is durable.
        """
        await self._still()
        for cell in list(self._cells.values()):
            if cell.idle and (farewell := self.behavior.on_close(cell.state)) is not None:
                try:
                    cell.run(farewell)
                except Exception:
                    _logger.exception("farewell_failed", key=cell.key)
        await self._still()

    async def _still(self) -> None:
        while any(cell.mailbox or cell.waiting or not cell.clean for cell in self._cells.values()):
            await self._clock.sleep(0.002)

    def abandon(self, error: Exception) -> None:
        """Fail whoever still waits; for the end of a drain that took too long."""
        for cell in self._cells.values():
            self._reject_all(cell, error)
            cell.expire(float("inf"), "the runtime closed")

    def is_live(self, key: Hashable) -> bool:
        """Whether the actor is in memory."""
        return key in self._cells

    def live_keys(self) -> list[Hashable]:
        """The keys of all actors in memory."""
        return list(self._cells)

    def statistics(self) -> RegistryStatistics:
        """Counters and sizes."""
        return RegistryStatistics(
            live=self._live,
            bytes=self._bytes,
            queued=sum(len(cell.mailbox) for cell in self._watched if cell.mailbox),
            activations=self._activations,
            passivations=self._passivations,
            inline_turns=self._inline_turns,
            queued_turns=self._queued_turns,
            refused=self._refused,
            expired=self._expired,
            restarts=self._restarts,
            quarantines=self._quarantines,
            waiting_bytes=self._pool.bytes,
        )
