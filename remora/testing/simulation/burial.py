"""What a power cut leaves in memory: coroutines that stand where they stood, and must go without doing anything more.

Left alone they would be kept for ever (anyio remembers where each task stands, and that refers to the task), or run their
`finally` blocks whenever the garbage collector comes by. So each is closed here and now: on a loop that takes no callback any
more, whatever a `finally` block asks for never happens, and what it says about that is not listened to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

__all__ = ["buried"]

_TRIES = 20
"""A coroutine that awaits in a `finally` block is closed again, for each such block."""


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    hook, disabled = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        logging.disable(disabled)


def buried(
    loop: asyncio.AbstractEventLoop, tasks: Iterable[asyncio.Task[Any]], generators: Iterable[AsyncGenerator[Any, Any]]
) -> None:
    """Close the tasks' coroutines, the youngest first, and what asynchronous generators wait for, which they do not hand down.

    The loop must be dead: nothing that they ask of it may happen.
    """
    with _deaf():
        asyncio._set_running_loop(loop)
        try:
            for task in reversed(list(tasks)):
                task._log_destroy_pending = False
                _close(loop, task, task.get_coro())
            last = next(iter(tasks), None)
            for generator in list(generators):
                awaited = getattr(generator, "ag_await", None)
                if last is not None and awaited is not None:
                    _close(loop, last, awaited)
        finally:
            asyncio._set_running_loop(None)


def _close(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], coroutine: Any) -> None:
    asyncio.tasks._enter_task(loop, task)  # anyio's scopes look who it is that leaves them
    try:
        for _ in range(_TRIES):
            with contextlib.suppress(BaseException):
                coroutine.close()
            if getattr(coroutine, "cr_frame", None) is None:
                break
    finally:
        asyncio.tasks._leave_task(loop, task)
