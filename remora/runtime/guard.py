"""Calling what others plugged in: models, drivers, periodic work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

__all__ = ["guarded_call"]

Result = TypeVar("Result")


async def guarded_call(
    function: Callable[..., Awaitable[Result]], *arguments: Any, **options: Any
) -> Result:
    """Call what others plugged in: whatever it raises, short of the process's own end, comes out as
    an Exception.

    An HTTP client may leak a cancellation that nobody asked for, an extension module a panic that
    is no Exception; neither may end a worker. A real cancellation passes.
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
