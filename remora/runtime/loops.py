"""The event loop that something belongs to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from remora.errors import WrongLoop

__all__ = ["HomeLoop"]


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
        """Whether the loop is closed, so that no task can begin; trio's token does not tell."""
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


def _finder() -> Any:
    """What tells the running loop: anyio's own token is another object at each call."""
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
