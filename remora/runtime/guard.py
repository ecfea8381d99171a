"""Calls into plugged-in code: models, drivers, periodic work."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from traceback import walk_tb
from typing import Any, TypeVar

import anyio

Result = TypeVar("Result")


async def call_guarded(
    function: Callable[..., Awaitable[Result]], *arguments: Any, **options: Any
) -> Result:
    """Call plugged-in code; whatever it raises becomes an `Exception`.

    An HTTP client may leak a cancellation that nobody requested, an extension module may raise a
    panic that is not an `Exception`, a library may call `sys.exit`: none of them may end a worker.
    What somebody else asked for passes: a cancellation, and the end of the program by a signal.
    """
    try:
        return await function(*arguments, **options)
    except Exception:
        raise
    except GeneratorExit as e:
        if e.__traceback__ is None or e.__traceback__.tb_next is None:
            raise  # it was raised here: this coroutine is being closed
        raise RuntimeError("GeneratorExit") from e
    except anyio.get_cancelled_exc_class() as e:
        if is_cancelled():
            raise
        raise RuntimeError("cancelled from within") from e
    except BaseException as e:
        if is_requested(e):
            raise
        raise RuntimeError(f"{type(e).__name__}: {e}") from e


def is_requested(error: BaseException) -> bool:
    """Return whether an exception of plugged-in code is a cancellation, or a signal's request.

    Ctrl-C, and a handler that calls `sys.exit`, raise in whatever code runs at that moment.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(error, asyncio.CancelledError):
        return True
    if not isinstance(error, (KeyboardInterrupt, SystemExit)):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(error, KeyboardInterrupt) and handler in (signal.default_int_handler, None):
        return True  # Python's own handler, and one in C, leave no trace in the exception
    codes = {_code_of(signal.getsignal(one)) for one in signal.valid_signals()}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def _code_of(handler: object) -> Any:
    function = getattr(handler, "func", handler)  # of a partial
    call = getattr(function, "__call__", None)  # noqa: B004
    return getattr(function, "__code__", None) or getattr(call, "__code__", None)


def is_cancelled() -> bool:
    """Somebody cancelled this task, or an anyio scope around it."""
    if anyio.current_effective_deadline() == float("-inf"):
        return True
    asyncio = sys.modules.get("asyncio")  # to import it costs a program under trio 30 ms
    try:
        task = None if asyncio is None else asyncio.current_task()
    except RuntimeError:  # trio's event loop: anyio's scopes know all
        return False
    return task is not None and task.cancelling() > 0
