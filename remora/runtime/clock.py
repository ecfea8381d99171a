"""Time, behind one seam: a `Clock` tells it and waits for it."""

from __future__ import annotations

import time as clocks
from typing import Protocol

import anyio


class Clock(Protocol):
    """The port of time."""

    def time(self) -> float:
        """Wall time, in seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time."""
        ...


class SystemClock:
    """The machine's clocks. It sleeps on the event loop, so a loop may have virtual time."""

    time = staticmethod(clocks.time)
    """Wall time, in seconds since the epoch."""

    monotonic = staticmethod(clocks.monotonic)
    """Seconds since some start."""

    async def sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""
        await anyio.sleep(seconds)
