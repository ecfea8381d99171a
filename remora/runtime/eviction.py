"""Eviction: taking actors out of memory on demand, and keeping them out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import anyio.lowlevel

from remora.runtime.cell import Cell, CellStatus
from remora.runtime.clock import Clock
from remora.runtime.deadlines import Deadlines
from remora.runtime.dispatch import Dispatcher
from remora.runtime.passivation import Passivation
from remora.runtime.probes import probe
from remora.runtime.watchers import Watchers

__all__ = ["Eviction"]

_POLL_S = 0.002
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
