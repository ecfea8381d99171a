"""The memory that a power cut leaves behind.

Coroutines that stand where they stood, and must go without doing anything more.

Left alone they would be kept for ever (anyio remembers where each task stands, and that refers to
the task), or run their `finally` blocks whenever the garbage collector comes by. So each is closed
here and now: on a loop that takes no callback any more, whatever a `finally` block asks for never
happens, and what it says about that is not listened to.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import sys
import warnings
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Sequence
from contextvars import copy_context
from typing import Any

from remora.runtime.probes import ignore_probes

__all__ = ["close_tasks", "close_unstarted"]

_TRIES = 20
"""A coroutine that awaits in a `finally` block is closed again, for each such block."""


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    hook, disabled = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        sys.unraisablehook = hook
        logging.disable(disabled)


def close_tasks(
    loop: asyncio.AbstractEventLoop,
    tasks: Iterable[asyncio.Task[Any]],
    generators: Iterable[AsyncGenerator[Any, Any]],
) -> None:
    """Close the tasks' coroutines, the youngest first, and what async generators wait for.

    The loop must be dead: nothing that they ask of it may happen.
    """
    standing, held = (
        list(tasks),
        list(generators),
    )  # held: a generator that went first would leave what it waits for behind
    hooks = sys.get_asyncgen_hooks()
    with _silence(), ignore_probes():
        asyncio._set_running_loop(loop)
        sys.set_asyncgen_hooks(firstiter=held.append, finalizer=lambda _: None)
        try:
            _close_awaited(loop, standing, held)
            for task in reversed(standing):
                task._log_destroy_pending = False
                _close(loop, task, task.get_coro())
            _close_awaited(
                loop, standing, held
            )  # closing a task may have sent a generator on to its next await
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)


def _close_awaited(
    loop: asyncio.AbstractEventLoop,
    tasks: Sequence[asyncio.Task[Any]],
    generators: Iterable[AsyncGenerator[Any, Any]],
) -> None:
    for generator in generators if tasks else ():
        if (awaited := getattr(generator, "ag_await", None)) is not None:
            _close(loop, tasks[0], awaited)


def _close(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], coroutine: Any) -> None:
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == "CORO_CREATED":
        close_unstarted(coroutine)
        return
    asyncio.tasks._enter_task(loop, task)  # anyio's scopes look who it is that leaves them
    try:
        for _ in range(_TRIES):
            with contextlib.suppress(BaseException):
                copy_context().run(
                    coroutine.close
                )  # what it sets in its context is not set in ours
            if getattr(coroutine, "cr_frame", None) is None:
                break
    finally:
        asyncio.tasks._leave_task(loop, task)


def close_unstarted(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine that has not begun, and the one that it would run: anyio wraps them."""
    frame = getattr(coroutine, "cr_frame", None)
    wrapped = [] if frame is None else gc.get_referents(*frame.f_locals.values())
    for one in (coroutine, *wrapped):
        if inspect.iscoroutine(one) and inspect.getcoroutinestate(one) == "CORO_CREATED":
            one.close()
