"""Calls into plugged-in code: models, drivers, periodic work."""

from __future__ import annotations

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
        if anyio.current_effective_deadline() == float("-inf"):
            raise
        raise RuntimeError("cancelled from within") from e
    except BaseException as e:
        raise RuntimeError(f"{type(e).__name__}: {e}") from e
