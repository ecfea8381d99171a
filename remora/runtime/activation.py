"""Activation: how an actor gets its state, at first, after a failure, or not at all.

* A cell is registered before the first await of its activation: two callers never activate it
  twice.
* Images are read in batches, one query for hundreds of actors. A large one becomes a state in a
  thread.
* A cell that lost its state is restored from the log. One that fails too often is quarantined
  (OTP's intensity and period).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import anyio

from remora.errors import CommitFailed, OutcomeUnknown, SessionQuarantined
from remora.ids import words_of
from remora.logging import get_logger
from remora.runtime.actor import Decision, Image
from remora.runtime.cell import Cell, CellStatus
from remora.runtime.clock import Clock
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.dispatch import Dispatcher
from remora.runtime.limits import RegistryLimits
from remora.runtime.log import Log
from remora.runtime.passivation import Passivation, Waking
from remora.runtime.probes import probe

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

    def _give_state(self, cell: Cell, image: Image | Exception, state: Any = None) -> None:
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
