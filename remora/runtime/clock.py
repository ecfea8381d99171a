"""Time has one seam: whoever wants to know it, or to let it pass, asks a `Clock`."""

from __future__ import annotations

import time as clocks
from typing import Protocol

import anyio

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the runtime knows of time."""

    def time(self) -> float:
        """Seconds since the epoch, by the wall."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time."""
        ...


class SystemClock:
    """The machine's clocks.

    Sleeping is the event loop's, so a loop with virtual time keeps its say.
    """

    time = staticmethod(clocks.time)
    """Seconds since the epoch."""

    monotonic = staticmethod(clocks.monotonic)
    """Seconds since some start."""

    async def sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""
        await anyio.sleep(seconds)
