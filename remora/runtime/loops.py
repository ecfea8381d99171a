"""The event loop that something belongs to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from remora.errors import WrongLoop


class HomeLoop:
    """The event loop that runs when this is made.

    Attributes:
        find: returns the running loop; raises `RuntimeError` where none of its library runs.
        loop: what it returned when this was made.
    """

    __slots__ = ("find", "loop")

    def __init__(self) -> None:
        self.find: Callable[[], object] = _finder()
        self.loop = self.find()

    @property
    def is_closed(self) -> bool:
        """Return whether the loop is closed, so that no task can begin.

        Trio's token does not tell.
        """
        return bool(getattr(self.loop, "is_closed", bool)())

    def check(self) -> None:
        """Raise `WrongLoop` unless this loop runs in the calling thread."""
        try:
            if self.find() is self.loop:
                return
        except RuntimeError:
            pass
        if self.is_closed:
            raise WrongLoop(
                "the event loop that the runtime was opened on is closed; nothing was done. Close "
                "a runtime before its loop ends: async with Runtime(…), or await runtime.aclose()"
            )
        raise WrongLoop(
            "the runtime belongs to another event loop, or thread; nothing was done. Use it where "
            "it was opened, or from other threads through remora.blocking"
        )


class LoopWatch:
    """Tells other threads, which ask now and then, for how long an event loop has not run.

    Args:
        loop: what `HomeLoop.loop` is.
        monotonic: seconds that never go back.
    """

    def __init__(self, loop: Any, monotonic: Callable[[], float]) -> None:
        # asyncio's, or that of trio's token
        self._call = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        self._monotonic = monotonic
        self._asked_s: float | None = None

    def stuck_s(self) -> float:
        """Seconds since somebody asked and the loop has not run; 0 for the first who asks."""
        now_s, asked_s = self._monotonic(), self._asked_s
        if asked_s is not None:
            return now_s - asked_s
        self._asked_s = now_s
        with suppress(RuntimeError):  # it is closed
            self._call(self._runs)
        return 0.0

    def _runs(self) -> None:
        self._asked_s = None


def _finder() -> Any:
    """Return what tells the running loop: anyio's own token is another object at each call."""
    asyncio = sys.modules.get("asyncio")  # a program under trio does without it
    trio = sys.modules.get("trio")
    try:
        if asyncio is not None:
            asyncio.get_running_loop()
            return asyncio.get_running_loop
    except RuntimeError:
        if trio is None:
            raise
    assert trio is not None
    return trio.lowlevel.current_trio_token
