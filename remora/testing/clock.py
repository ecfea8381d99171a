"""A clock that moves when it is told to."""

from __future__ import annotations

import heapq

import anyio
import anyio.lowlevel


class VirtualClock:
    """Implements `remora.runtime.clock.Clock` without waiting.

    Sleepers wake when `advance` passes their time.

    Args:
        start: the wall time at the beginning, in seconds since the epoch.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self._now = 0.0
        self._ticket = 0
        self._sleepers: list[tuple[float, int, anyio.Event]] = []

    def time(self) -> float:
        """Wall time, seconds since the epoch."""
        return self._start + self._now

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by `seconds`."""
        self._ticket += 1
        event = anyio.Event()
        heapq.heappush(self._sleepers, (self._now + seconds, self._ticket, event))
        await event.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking sleepers in order and letting each run on before the next."""
        end = self._now + seconds
        await self._breathe()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, event = heapq.heappop(self._sleepers)
            event.set()
            await self._breathe()
        self._now = end
        await self._breathe()

    async def _breathe(self) -> None:
        for _ in range(64):
            await anyio.lowlevel.checkpoint()
