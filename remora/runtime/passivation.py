"""Passivation: which actors leave memory, and when.

* Idle time counts from the last handled message. Cells are checked in time buckets, oldest first,
  each once per idle period.
* A cell is removed without an await after the check that it is idle: no message can come between.
* An activation for which there is no room waits for the next actor that becomes idle.
"""

from __future__ import annotations

from collections.abc import Hashable

import anyio
import msgspec

from remora.logging import get_logger
from remora.runtime.cell import Cell, CellStatus
from remora.runtime.clock import Clock
from remora.runtime.probes import probe

# -- the limits of the registry (G10, G11), and its counts -----------------------------------------


class RegistryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of messages that wait and of actors in memory, and when a failing actor rests."""

    mailbox_messages: int = 1_000
    mailbox_bytes: int = 32 << 20
    total_bytes: int = 256 << 20
    """Bytes that may wait in mailboxes or for the log, of all actors together."""
    held_replies: int = 1_024
    """Replies behind one gate before messages queue in the mailbox instead; and writes that an
    owner who is alone may have on their way to the log."""
    share_writes: int = 16
    """Writes that one owner may have on their way to the log while other owners are active."""
    wait_when_full: bool = False
    """Senders wait for room in a full mailbox, and are not refused."""
    timeout_s: float = 30.0
    idle_s: float = 300.0
    max_live: int = 100_000
    max_bytes: int = 2 << 30
    restart_intensity: int = 5
    """After so many failures within `restart_period_s` a cell is quarantined for `rest_s`."""
    restart_period_s: float = 30.0
    rest_s: float = 30.0


class RegistryStatistics(msgspec.Struct, frozen=True):
    """Counters since start, and current sizes."""

    live: int
    bytes: int
    queued: int
    activations: int
    passivations: int
    inline_messages: int
    queued_messages: int
    refused: int
    expired: int
    restarts: int
    quarantines: int
    waiting_bytes: int = 0
    """Of requests that wait in a mailbox or for the log."""


_logger = get_logger(__name__)
_BUCKETS = 10  # in an idle period
_SHED_TO = 0.95  # of a bound that is exceeded
_LEAST_S = 0.1  # between two checks: an actor that is not idle yet is looked at again


class Passivation:
    """The memory that live actors occupy, and their removal from it.

    Args:
        clock: for idle time.
        limits: idle time, number of actors, bytes.
        cells: the registry's; removed cells are deleted there.
        sweeping: the task that calls `make_room` when a bound is exceeded.

    Attributes:
        live: actors in memory.
        bytes: of their states.
        passivations: actors that left because they were idle.
        changed: set when there may be room; None while no activation waits for it.
    """

    def __init__(
        self,
        clock: Clock,
        limits: RegistryLimits,
        cells: dict[Hashable, Cell],
        sweeping: Waking,
    ) -> None:
        self.live = 0
        self.bytes = 0
        self.passivations = 0
        self._clock = clock
        self._limits = limits
        self._cells = cells
        self._sweeping = sweeping
        self._filed = Waking()
        self._bucket_s = max(limits.idle_s / _BUCKETS, 0.01)
        self._buckets: dict[int, list[Cell]] = {}
        self.changed: anyio.Event | None = None
        self._became_idle: list[Cell] = []

    def add(self, cell: Cell) -> None:
        """Count a cell that was activated."""
        cell.occupies_room = True
        self.live += 1
        if self.live > self._limits.max_live:
            self._sweeping.wake()
        self._file(cell)

    def weigh(self, cell: Cell) -> None:
        """Count the bytes of the cell's state."""
        if cell.state is None:
            return
        size = cell.behavior.size(cell.state)
        self.bytes += size - cell.bytes
        if size < cell.bytes:
            self.note_change()
        cell.bytes = size
        if self.bytes > self._limits.max_bytes:
            self._sweeping.wake()

    def discount_bytes(self, cell: Cell) -> None:
        """Stop counting the bytes of a state that is lost."""
        self.bytes -= cell.bytes
        cell.bytes = 0
        self.note_change()

    def remove(self, cell: Cell) -> None:
        """Take the cell out of memory."""
        if cell.occupies_room:
            self.live -= 1
        cell.status = CellStatus.INVALID
        cell.state = None
        self.discount_bytes(cell)
        if self._cells.get(cell.key) is cell:
            del self._cells[cell.key]

    # -- bounds -----------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Return whether one more actor may be activated."""
        return self.live == 0 or (
            self.live < self._limits.max_live and self.bytes < self._limits.max_bytes
        )

    @property
    def over_bounds(self) -> bool:
        """Return whether live actors exceed a bound."""
        return self.live > self._limits.max_live or self.bytes > self._limits.max_bytes

    async def wait_for_room(self) -> None:
        """Return when there is room, or may be: call `make_room` then."""
        self.changed = anyio.Event()
        try:
            await self.changed.wait()
        finally:
            self.changed = None
        # Without a look at all the others, which may be busy.
        for cell in self._became_idle:
            if cell.idle and not handle_last_message(cell, closing=False):
                self.passivations += 1
                self.remove(cell)
        self._became_idle.clear()

    def note_idle(self, cell: Cell) -> None:
        """Wake up an activation that waits for room if this cell may leave memory."""
        if self.changed is not None and cell.idle:
            self._became_idle.append(cell)
            self.changed.set()

    def note_change(self) -> None:
        """Wake up an activation that waits for room: there may be some now."""
        if self.changed is not None:
            self.changed.set()

    def make_room(self) -> None:
        """Passivate the actors that were idle longest, down to 95 % of the bounds."""
        live = int(self._limits.max_live * _SHED_TO)
        size = int(self._limits.max_bytes * _SHED_TO)
        if self.live > live:
            probe("shed_by_count")
        if self.bytes > size:
            probe("shed_by_bytes")
        for bucket in sorted(self._buckets):
            cells = self._buckets.pop(bucket)
            for position, cell in enumerate(cells):
                if self.live <= live and self.bytes <= size:
                    self._buckets.setdefault(bucket, []).extend(cells[position:])
                    return
                self._passivate(cell, bucket)

    # -- idle time --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Passivate actors when their idle time is over, until cancelled."""
        while True:
            if not self._buckets:
                await self._filed.wait()
                continue
            # cells that are filed in the meantime are due later
            due = (min(self._buckets) + 1) * self._bucket_s + self._limits.idle_s
            least = min(_LEAST_S, self._bucket_s)
            await self._clock.sleep(max(due - self._clock.monotonic(), least))
            self.sweep()

    def sweep(self) -> None:
        """Passivate the actors whose idle time is over."""
        horizon = int((self._clock.monotonic() - self._limits.idle_s) / self._bucket_s)
        for bucket in sorted(b for b in self._buckets if b < horizon):
            for cell in self._buckets.pop(bucket):
                self._passivate(cell, bucket)

    def _file(self, cell: Cell) -> None:
        if not self._buckets:
            self._filed.wake()
        self._buckets.setdefault(int(cell.last_used / self._bucket_s), []).append(cell)

    def _passivate(self, cell: Cell, bucket: int) -> None:
        if cell.status is CellStatus.INVALID:
            return
        if int(cell.last_used / self._bucket_s) > bucket:
            probe("passivation_found_used")
            self._file(cell)
            return
        if not cell.idle:
            probe("passivation_found_busy")
            cell.last_used = self._clock.monotonic()
            self._file(cell)
            return
        if handle_last_message(cell, closing=False):
            probe("passivation_wrote_first")
            # It leaves at a later sweep, when this is durable.
            self._buckets.setdefault(bucket, []).append(cell)
            return
        self.passivations += 1
        self.remove(cell)


def handle_last_message(cell: Cell, *, closing: bool) -> bool:
    """Let an idle actor write what it has put off; False if there is nothing to write."""
    message = cell.behavior.on_idle(cell.state, closing=closing)
    if message is None:
        return False
    try:
        cell.run(message)
    except Exception:
        _logger.exception("passivation_failed", key=cell.key)
    return True


# -- waking a task that has nothing to do ----------------------------------------------------------


class Waking:
    """Lets one task wait until there is something to do."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def wake(self) -> None:
        """Have `wait` return, if the task waits now."""
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Return at the next `wake`. The caller has checked that there is nothing to do yet."""
        self._event = anyio.Event()
        try:
            await self._event.wait()
        finally:
            self._event = None
