"""Calls into plugged-in code: models, drivers, periodic work."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

__all__ = ["call_guarded"]

Result = TypeVar("Result")


async def call_guarded(
    function: Callable[..., Awaitable[Result]], *arguments: Any, **options: Any
) -> Result:
    """Call plugged-in code; what it raises becomes an `Exception`, except the end of the process.

    An HTTP client may leak a cancellation that nobody requested, an extension module may raise a
    panic that is not an `Exception`; neither may end a worker. A real cancellation passes.
    """
    try:
        return await function(*arguments, **options)
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except anyio.get_cancelled_exc_class() as e:
        if _is_cancelled():
            raise
        raise RuntimeError("cancelled from within") from e
    except BaseException as e:
        raise RuntimeError(f"{type(e).__name__}: {e}") from e


def _is_cancelled() -> bool:
    """Somebody cancelled this task, or an anyio scope around it."""
    if anyio.current_effective_deadline() == float("-inf"):
        return True
    asyncio = sys.modules.get("asyncio")  # to import it costs a program under trio 30 ms
    try:
        task = None if asyncio is None else asyncio.current_task()
    except RuntimeError:  # trio's event loop: anyio's scopes know all
        return False
    return task is not None and task.cancelling() > 0
