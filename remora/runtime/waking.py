"""Waking a task that has nothing to do."""

from __future__ import annotations

import anyio


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
