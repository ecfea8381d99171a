"""The registry: key → live actor, and the ways to send it a message.

The work is in its parts: `dispatch` (who handles a message next), `activation` (how an actor gets
its state), `lookups` (cold records), `deadlines`, `passivation` (who leaves memory) and `eviction`
(who must leave it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from heapq import nlargest
from operator import itemgetter
from typing import Any, NamedTuple, overload

import anyio
import anyio.abc
import anyio.lowlevel

from remora.errors import CommitFailed, OutcomeUnknown, RuntimeClosed, SessionQuarantined
from remora.ids import words_of
from remora.logging import get_logger
from remora.runtime.actor import Asked, Behavior, Decision, Image, NeedsLookup, Reply
from remora.runtime.cell import Cell, CellHost, CellStatus, Envelope, Quota, QuotaPool, Watchers
from remora.runtime.clock import Clock
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.dispatch import Deadlines, Dispatcher
from remora.runtime.log import Log
from remora.runtime.passivation import (
    Passivation,
    RegistryLimits,
    RegistryStatistics,
    Waking,
    handle_last_message,
)
from remora.runtime.probes import probe
from remora.runtime.promise import NO_READER, Promise, new_promise

_INLINE = 64  # messages handled on senders' stacks before one of them yields to the event loop
_SWEEP_S = 0.1
_POLL_S = 0.002


class Reserved(NamedTuple):
    """A message in its place; see `ActorRegistry.reserve`."""

    cell: Cell
    envelope: Envelope
    answer: Awaitable[Any]


class ActorRegistry:
    """All live actors.

    Args:
        behaviors: the behavior of an actor, by the type of its key.
        log: makes their records durable.
        clock: for deadlines and idle time.
        limits: all bounds.
        carry_out: does what a durable decision asked of the supervisor.
        owner: gives the owner of an actor, by its key; owners have equal quotas. By default each
            actor is its own owner.

    Attributes:
        eviction: takes actors out of memory, and keeps them out.
        watchers: are woken when an actor has changed, or is barred, and when intake stops.
    """

    def __init__(
        self,
        behaviors: Mapping[type, Behavior[Any]],
        log: Log,
        clock: Clock,
        limits: RegistryLimits,
        carry_out: Callable[[Decision], None],
        owner: Callable[[Any], Hashable] = lambda key: key,
    ) -> None:
        self.behaviors = behaviors
        self._clock = clock
        self._limits = limits
        self._closed = False
        self._inline = self._inline_messages = 0
        self._cells: dict[Hashable, Cell] = {}
        self._pool = QuotaPool(limits.total_bytes, limits.share_writes, limits.held_replies, owner)
        self._sweeping = Waking()
        self._deadlines = Deadlines(self._sweeping)
        self._passivation = Passivation(clock, limits, self._cells, self._sweeping)
        self._dispatcher = Dispatcher(clock, limits, self._pool, self._deadlines, self._passivation)
        self.watchers = Watchers()
        self.eviction = Eviction(
            clock,
            self._cells,
            self._dispatcher,
            self._deadlines,
            self._passivation,
            self.watchers,
        )
        self._lookups = Lookups(log, self._dispatcher, self._deadlines)
        self._activation = Activation(
            log, clock, limits, self._cells, self._new_cell, self.eviction.refusal,
            self._dispatcher, self._passivation, carry_out, self._sweeping,
        )  # fmt: skip
        self._host = CellHost(
            log=log,
            pool=self._pool,
            most_held=limits.held_replies,
            acknowledged=self._on_acknowledged,
            broken=self._activation.broken,
            restore=self._activation.enqueue,
            look_up=self._lookups.start,
            carry_out=carry_out,
            watchers=self.watchers,
        )

    def _new_cell(self, key: Hashable) -> Cell:
        return Cell(key, self.behaviors[type(key)], self._host, self._pool.quota(key))

    # -- sending messages -------------------------------------------------------------------------

    @overload
    def ask(
        self,
        key: Hashable,
        message: Asked[Reply],
        *,
        size: int = 0,
        timeout_s: float | None = None,
    ) -> Awaitable[Reply]: ...

    @overload
    def ask(
        self, key: Hashable, message: object, *, size: int = 0, timeout_s: float | None = None
    ) -> Awaitable[Any]: ...

    def ask(
        self, key: Hashable, message: object, *, size: int = 0, timeout_s: float | None = None
    ) -> Awaitable[Any]:
        """Send a message to an actor; its reply comes when all that it depends on is durable.

        The message is handled, or has its place in the mailbox, on return. Await the reply at once.

        Raises:
            MailboxFull: it was refused, or its deadline passed, before it was handled.
            OutcomeUnknown: its deadline passed, or the commit's outcome is unknown, after it was
                handled.
            CommitFailed: the log refused its records; nothing is stored.
            SessionQuarantined: the actor rests after repeated failures.
            RuntimeClosed: intake has stopped.
        """
        if self._closed:
            raise RuntimeClosed("the runtime is closing; no new requests are taken")
        cell = self._cells.get(key) or self._activation.create(key)
        now = self._clock.monotonic()
        deadline = now + (self._limits.timeout_s if timeout_s is None else timeout_s)
        self._pool.note_request(cell.quota, now)
        lookup = None
        if cell.admits(size, now):
            outcome = cell.run(message)
            if not isinstance(outcome, NeedsLookup):
                self._note_handled(cell, now)
                if cell.written == cell.durable:
                    return self._reply_at_once(outcome.reply)
                promise = new_promise()
                cell.reply(promise, outcome.reply, deadline)
                return promise.answer
            lookup = outcome
        promise = new_promise()
        envelope = Envelope(message, promise, size=size, deadline=deadline, control=False)
        if lookup is None:
            self._dispatcher.enqueue(cell, envelope)
        else:
            self._lookups.start(cell, envelope, lookup)
        return promise.answer

    async def _reply_at_once(self, reply: Any) -> Any:
        self._inline += 1
        if self._inline >= _INLINE:  # only now: first asked, first handled
            self._inline = 0
            await anyio.lowlevel.checkpoint()
        return reply

    def _note_handled(self, cell: Cell, now: float) -> None:
        """Note that a cell handled a message on its sender's stack."""
        self._inline_messages += 1
        cell.last_used = now
        if cell.written != cell.durable and cell not in self._deadlines.watched:
            self._deadlines.watch(cell)

    def submit(
        self,
        key: Hashable,
        message: object,
        promise: Promise,
        *,
        size: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """`ask` for a caller that is no task: the promise hears the reply or the error.

        That may be before this returns. A promise that is abandoned before the message is handled
        keeps it from being handled.
        """
        try:
            if self._closed:
                raise RuntimeClosed("the runtime is closing; no new requests are taken")
            cell = self._cells.get(key) or self._activation.create(key)
            now = self._clock.monotonic()
            deadline = now + (self._limits.timeout_s if timeout_s is None else timeout_s)
            self._pool.note_request(cell.quota, now)
            envelope = Envelope(message, promise, size=size, deadline=deadline, control=False)
            if not cell.admits(size, now):
                self._dispatcher.enqueue(cell, envelope)
                return
        except Exception as e:
            promise.reject(e)
            return
        if cell.deliver(envelope) is not None:
            self._note_handled(cell, now)

    def reserve(
        self, key: Hashable, message: object, *, size: int, timeout_s: float | None
    ) -> Reserved:
        """Give a message its place in the actor's order while something of it is being computed.

        Later messages for the actor wait behind it. The caller awaits `Reserved.answer`, and
        somebody must call `complete`.

        Raises:
            MailboxFull, SessionQuarantined, RuntimeClosed: see `ask`.
        """
        if self._closed:
            raise RuntimeClosed("the runtime is closing; no new requests are taken")
        cell = self._cells.get(key) or self._activation.create(key)
        now = self._clock.monotonic()
        deadline = now + (self._limits.timeout_s if timeout_s is None else timeout_s)
        self._pool.note_request(cell.quota, now)
        promise = new_promise()
        envelope = Envelope(
            message, promise, size=size, deadline=deadline, control=False, ready=False
        )
        self._dispatcher.enqueue(cell, envelope)
        return Reserved(cell, envelope, promise.answer)

    def complete(self, reserved: Reserved, error: Exception | None = None) -> None:
        """The message can be handled now; or it never can, which its sender is told."""
        if error is not None:
            reserved.envelope.promise.reject(error)
            reserved.envelope.promise = NO_READER
        self._dispatcher.complete(reserved.cell, reserved.envelope)

    async def ask_control(self, key: Hashable, message: object, *, keeps_alive: bool = True) -> Any:
        """Send a control message, which is never refused and has no deadline.

        Args:
            key: the actor.
            message: for it.
            keeps_alive: the actor counts as used. False for periodic messages, which would
                otherwise keep it in memory for ever.

        Returns:
            The reply, when it is durable.
        """
        cell = self._cells.get(key) or self._activation.create(key)
        promise = new_promise()
        envelope = Envelope(
            message, promise, size=0, deadline=float("inf"), control=True, keeps_alive=keeps_alive
        )
        self._dispatcher.enqueue(cell, envelope)
        return await promise.answer

    def post(self, key: Hashable, message: object) -> bool:
        """Put a message into the actor's mailbox, without a reply.

        Returns:
            False if it was refused: intake has stopped, the mailbox is full, or the actor rests.
        """
        if self._closed or self.eviction.refusal(key) is not None:
            return False
        cell = self._cells.get(key) or self._activation.create(key)
        return self._dispatcher.post(cell, message)

    def _on_acknowledged(self, cell: Cell) -> None:
        if cell.status is CellStatus.LOOKING_UP:
            if cell.written == cell.durable:
                probe("lookup_after_commit")
                self._lookups.ask_log(cell)
        elif cell.mailbox or cell.parked:
            self._dispatcher.ready(cell)
        if cell.quota.blocked:
            self._dispatcher.unblock(cell.quota)
        if self._passivation.changed is not None:
            self._passivation.note_idle(cell)

    # -- life -------------------------------------------------------------------------------------

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the loops; they end when the task group is cancelled."""
        for name, loop in (
            ("dispatch", self._dispatcher.run),
            ("activation", self._activation.run),
            ("lookups", self._lookups.run),
            ("sweep", self._sweep_loop),
            ("passivation", self._passivation.run),
        ):
            tasks.start_soon(loop, name=f"remora.registry.{name}")

    async def _sweep_loop(self) -> None:
        while True:
            if not (
                self._deadlines.watched
                or self._activation.has_failures
                or self._passivation.over_bounds
            ):
                # an idle runtime wakes nobody: a simulated one took a third of its steps here
                await self._sweeping.wait()
            await self._clock.sleep(_SWEEP_S)
            now = self._clock.monotonic()
            for cell in self._deadlines.watched:
                self._passivation.weigh(cell)
            for cell in self._deadlines.sweep(now):
                self._dispatcher.resume_parked(cell)
            self._activation.end_quarantines(now)
            self._activation.reread_lost(now)
            if self._passivation.over_bounds:
                self._passivation.make_room()
            self._passivation.note_change()  # messages that expired may have left an actor idle

    def stop_intake(self) -> None:
        """Refuse requests from now on; control messages still pass."""
        self._closed = True
        self.watchers.wake_all()

    async def drain(self) -> None:
        """Wait until all accepted messages are handled and everything is durable.

        Idle actors write what they have put off.
        """
        await self._wait_until_idle()
        for cell in list(self._cells.values()):
            if cell.idle:
                handle_last_message(cell, closing=True)
        await self._wait_until_idle()

    async def _wait_until_idle(self) -> None:
        while any(cell.mailbox or cell.held or not cell.clean for cell in self._cells.values()):
            await self._clock.sleep(_POLL_S)

    def abandon(self, error: Exception) -> None:
        """Fail all callers that still wait; for a drain that took too long."""
        for cell in self._cells.values():
            self._dispatcher.reject_waiting(cell, error)
            cell.expire(float("inf"), "the runtime closed")

    def is_live(self, key: Hashable) -> bool:
        """Return whether the actor is in memory."""
        return key in self._cells

    def quota(self, key: Hashable) -> Quota:
        """The quota of the actor's owner; it tells which of the owner's actors changed."""
        return self._pool.quota(key)

    def live_keys(self) -> list[Hashable]:
        """The keys of all actors in memory."""
        return list(self._cells)

    def fullest(self, most: int) -> list[tuple[int, Hashable]]:
        """The actors for which most messages wait, the fullest first: how many, and its key.

        Any thread may ask.
        """
        watched = list(self._deadlines.watched)
        waiting = [(len(box), cell.key) for cell in watched if (box := cell.mailbox)]
        return nlargest(most, waiting, key=itemgetter(0))

    def statistics(self) -> RegistryStatistics:
        """Counters and sizes; any thread may ask."""
        watched = self._deadlines.watched
        return RegistryStatistics(
            live=self._passivation.live,
            bytes=self._passivation.bytes,
            queued=sum(len(box) for cell in list(watched) if (box := cell.mailbox)),
            activations=self._activation.activations,
            passivations=self._passivation.passivations,
            inline_messages=self._inline_messages,
            queued_messages=self._dispatcher.queued_messages,
            refused=self._dispatcher.refused,
            expired=self._deadlines.expired,
            restarts=self._activation.restarts,
            quarantines=self._activation.quarantines,
            waiting_bytes=self._pool.bytes,
        )


# -- eviction: taking actors out of memory on demand, and keeping them out -------------------------

_AT_ONCE = 500  # actors in one turn of the event loop: about a millisecond


class Eviction:
    """Bars actors from activation, and removes those that are live."""

    def __init__(
        self,
        clock: Clock,
        cells: dict[Hashable, Cell],
        dispatcher: Dispatcher,
        deadlines: Deadlines,
        passivation: Passivation,
        watchers: Watchers,
    ) -> None:
        self._clock = clock
        self._cells = cells
        self._dispatcher = dispatcher
        self._deadlines = deadlines
        self._passivation = passivation
        self._watchers = watchers
        self._bars: list[tuple[Callable[[Hashable], bool], Callable[[], Exception]]] = []

    @contextmanager
    def bar(
        self, matches: Callable[[Hashable], bool], error: Callable[[], Exception]
    ) -> Iterator[None]:
        """While this is open, no actor that matches is activated: messages raise `error()`."""
        bar = (matches, error)
        self._bars.append(bar)
        self._watchers.wake_all(matches)
        try:
            yield
        finally:
            self._bars.remove(bar)

    def refusal(self, key: Hashable) -> Exception | None:
        """The error for messages to this actor, if it is barred."""
        return next((error() for matches, error in self._bars if matches(key)), None)

    async def evict(self, matches: Callable[[Hashable], bool]) -> None:
        """Take barred actors that match out of memory; return when their writes are durable.

        Messages that were not handled are refused like new ones; replies that wait for a commit
        still arrive.
        """
        while await self._evict_clean(matches):
            probe("eviction_waited")
            await self._clock.sleep(_POLL_S)

    async def _evict_clean(self, matches: Callable[[Hashable], bool]) -> bool:
        """Evict what is durable; True if some of the actors are not."""
        staying = False
        found = [cell for cell in self._cells.values() if matches(cell.key)]
        for number, cell in enumerate(found, start=1):
            if not number % _AT_ONCE:
                await anyio.lowlevel.checkpoint()
            if self._cells.get(cell.key) is not cell:  # it left in between
                continue
            if (refusal := self.refusal(cell.key)) is not None:
                self._dispatcher.reject_waiting(cell, refusal)
            if cell.status is CellStatus.QUARANTINED or (
                cell.status is CellStatus.VALID and cell.clean
            ):
                self._deadlines.forget(cell)
                self._passivation.remove(cell)
            else:
                staying = True
        return staying


# -- lookups: cells that need a cold record before they can handle their next message --------------


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


# -- activation: how an actor gets its state, at first, after a failure, or not at all -------------
#
# * A cell is registered before the first await of its activation: two callers never activate it
#   twice.
# * Images are read in batches, one query for hundreds of actors. A large one becomes a state in a
#   thread.
# * A cell that lost its state is restored from the log. One that fails too often is quarantined
#   (OTP's intensity and period).

_logger = get_logger(__name__)
_BATCH = 256  # images read at once
_REREAD_S = 1.0  # before an actor that was lost and could not be read is tried again


class Activation:
    """Creates cells and gives them their state.

    Args:
        log: holds the images.
        clock: for quarantine and retries.
        limits: when a failing cell is quarantined, and how many may live.
        cells: the registry's.
        new_cell: makes the cell of a key.
        refusal: the error of an actor that must not be activated.
        dispatcher: gets the cells that may handle messages.
        passivation: counts them.
        carry_out: submits the jobs that an image brings along.
        sweeping: the task that ends quarantines and tries again what could not be read.

    Attributes:
        activations: actors that came to life.
        restarts: cells that lost their state.
        quarantines: cells that failed too often.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        limits: RegistryLimits,
        cells: dict[Hashable, Cell],
        new_cell: Callable[[Hashable], Cell],
        refusal: Callable[[Hashable], Exception | None],
        dispatcher: Dispatcher,
        passivation: Passivation,
        carry_out: Callable[[Decision], None],
        sweeping: Waking,
    ) -> None:
        self.activations = self.restarts = self.quarantines = 0
        self._log = log
        self._clock = clock
        self._limits = limits
        self._cells = cells
        self._new_cell = new_cell
        self._refusal = refusal
        self._dispatcher = dispatcher
        self._passivation = passivation
        self._carry_out = carry_out
        self._sweeping = sweeping
        self._queue: deque[Cell] = deque()
        self._event = anyio.Event()
        self._quarantined: dict[Cell, None] = {}
        # Actors that lost their state and could not be read, and when that is tried again.
        self._lost: dict[Hashable, float] = {}

    def create(self, key: Hashable) -> Cell:
        """Register the cell of an actor that is not in memory, and queue its activation.

        Raises:
            Exception: `refusal`'s, if there is one.
        """
        if (refusal := self._refusal(key)) is not None:
            probe("actor_barred")
            raise refusal
        cell = self._new_cell(key)
        self._cells[key] = cell
        self.enqueue(cell)
        return cell

    # -- failures ---------------------------------------------------------------------------------

    def broken(self, cell: Cell, error: Exception) -> None:
        """Count the failure of a cell that lost its state; quarantine it if it fails too often."""
        now = self._clock.monotonic()
        if cell.quota.blocked:
            self._dispatcher.unblock(cell.quota)  # its fenced writes no longer count
        self.restarts += 1
        self._passivation.discount_bytes(cell)
        failures = cell.failures = cell.failures if cell.failures is not None else deque()
        failures.append(now)
        while failures[0] <= now - self._limits.restart_period_s:
            failures.popleft()
        # A failed commit is the fault of the disk, for all sessions alike: to let single cells
        # rest would not help.
        if isinstance(error, (CommitFailed, OutcomeUnknown)):
            return
        _logger.error("cell_broken", key=cell.key, error=str(error))
        if len(failures) >= self._limits.restart_intensity:
            self._quarantine(cell, now)

    def _quarantine(self, cell: Cell, now: float) -> None:
        probe("quarantine_entered")
        self.quarantines += 1
        rest_s = self._limits.rest_s
        cell.status = CellStatus.QUARANTINED
        cell.quarantined_until = now + rest_s
        self._quarantined[cell] = None
        self._sweeping.wake()
        self._dispatcher.reject_waiting(
            cell,
            SessionQuarantined(
                f"{words_of(cell.key)} failed repeatedly and rests", retry_after_s=rest_s
            ),
        )
        _logger.error("cell_quarantined", key=cell.key, rest_s=rest_s)

    @property
    def has_failures(self) -> bool:
        """Return whether an actor rests, or is lost and to be read again."""
        return bool(self._quarantined or self._lost)

    def end_quarantines(self, now: float) -> None:
        """Remove cells whose quarantine is over; their actors are activated again at once."""
        for cell in list(self._quarantined):
            if cell.status is not CellStatus.QUARANTINED:
                del self._quarantined[cell]  # it was evicted
            elif cell.quarantined_until <= now and not cell.awaiting_fence:
                probe("quarantine_left")
                del self._quarantined[cell]
                self._lost[cell.key] = now
                self._passivation.remove(cell)

    def reread_lost(self, now: float) -> None:
        """Activate actors that were lost during a commit and could not be read.

        A commit that was kept may have left jobs in the log. Nobody has submitted those, and the
        actor may never get another message.
        """
        due = [key for key, at in self._lost.items() if at <= now and key not in self._cells]
        for key in due:
            if self._refusal(key) is not None:
                del self._lost[key]
            else:
                probe("lost_actor_reread")
                self._lost[key] = now + _REREAD_S
                self.create(key)

    # -- reading images ---------------------------------------------------------------------------

    def enqueue(self, cell: Cell) -> None:
        """Queue the cell to get its state from the log."""
        cell.status = CellStatus.ACTIVATING
        self._queue.append(cell)
        self._event.set()
        if cell.occupies_room:
            self._passivation.note_change()

    async def run(self) -> None:
        """Give queued cells their state until cancelled."""
        while True:
            await self._event.wait()
            self._event = anyio.Event()
            while self._queue:
                # Cells that lost their state occupy room already and must not wait for it.
                restored = [cell for cell in self._queue if cell.occupies_room][:_BATCH]
                if restored:
                    taken = set(restored)
                    self._queue = deque(cell for cell in self._queue if cell not in taken)
                    await self._load(restored)
                elif self._make_room():
                    room = max(self._limits.max_live - self._passivation.live, 1)
                    count = min(len(self._queue), _BATCH, room)
                    await self._load([self._queue.popleft() for _ in range(count)])
                else:
                    # All are busy; one will be idle as soon as its commit is durable.
                    probe("activation_waited_for_room")
                    await self._passivation.wait_for_room()

    def _make_room(self) -> bool:
        for _ in range(2):  # the first look may only find when an idle actor was used last
            if not self._passivation.has_room:
                self._passivation.make_room()
        return self._passivation.has_room

    async def _load(self, cells: list[Cell]) -> None:
        try:
            images = await self._log.hydrate([cell.key for cell in cells])
        except Exception as e:
            _logger.exception("hydrate_failed", sessions=len(cells))
            images = [e] * len(cells)
        large: list[tuple[Cell, Image]] = []
        for cell, image in zip(cells, images, strict=True):
            if not isinstance(image, Exception) and image.is_large:
                large.append((cell, image))
            else:
                self._give_state(cell, image)
        for cell, image in large:
            restore = partial(cell.behavior.restore, cell.key, image)
            try:
                state = await run_in_thread_if(True, restore)
            except Exception as e:
                self._give_state(cell, e)
            else:
                self._give_state(cell, image, state)

    def _give_state(self, cell: Cell, image: Image | Exception, state: object = None) -> None:
        """Give a cell the state of its image, which may be made already."""
        now = self._clock.monotonic()
        try:
            if isinstance(image, Exception):
                raise image
            cell.take_image(image, state)
        except Exception as e:
            self._lose(cell, e, now)
            return
        if self._lost:
            self._lost.pop(cell.key, None)
        cell.last_used = now
        self._passivation.weigh(cell)
        if image.jobs:
            probe("activated_amid_jobs")
            # A commit of unknown outcome may have been kept: its jobs are in the log, and
            # nobody has submitted them.
            self._carry_out(Decision(jobs=image.jobs))
        if cell.occupies_room:
            probe("cell_reloaded")
        else:
            self.activations += 1
            self._passivation.add(cell)
        if cell.mailbox or cell.parked:
            self._dispatcher.ready(cell)

    def _lose(self, cell: Cell, error: Exception, now: float) -> None:
        """Remove a cell whose image cannot be read; the actor's next message tries again."""
        probe("image_unreadable")
        if cell.occupies_room or cell.key in self._lost:
            self._lost[cell.key] = now + _REREAD_S
            self._sweeping.wake()
        self._passivation.remove(cell)
        self._dispatcher.reject_waiting(cell, error)
