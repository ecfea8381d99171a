"""Where a simulated run replaces parts of the libraries below.

Threads, SQLite's connections, sets that are walked by address, chance.

Inside `seams(loop)`:

* `anyio.to_thread.run_sync` runs its function in one step of a lane;
* aiosqlite's connections are lanes as well: the real SQLite, one call at a time, in order, each
  after a drawn latency. A fault may be put before or after each call that writes (`CommitFault`);
* anyio's cancel scopes and task groups keep their tasks in the order in which these came (they are
  sets, hashed by address: the order of a cancellation would differ from run to run);
* `secrets` draws from the loop, so that ids are the same in each run;
* `time.sleep`, by which what runs in a thread gives way, returns at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any
from unittest.mock import patch

import aiosqlite.core
import anyio
from anyio._backends import _asyncio as backend

from remora.storage.sqlite.connection import run_steps
from remora.testing.faults import CommitFault
from remora.testing.simulation.loop import SeededLoop

__all__ = ["HANG_S", "seams"]

HANG_S = 45.0
"""How long what hangs takes, in seconds: longer than a request's deadline of 30."""


class _OrderedSet(dict[Any, None]):
    """As much of a set as anyio's scopes and groups use, in the order of adding."""

    __slots__ = ()

    def add(self, member: Any) -> None:
        self[member] = None

    def discard(self, member: Any) -> None:
        self.pop(member, None)

    def remove(self, member: Any) -> None:
        del self[member]


class _Connection:
    """Stands where aiosqlite has a queue with a thread behind it."""

    def __init__(self, loop: SeededLoop, fault: Callable[[], CommitFault | None]) -> None:
        self._loop = loop
        self._fault = fault
        self._calls: deque[tuple[asyncio.Future[Any] | None, Callable[[], Any]]] = deque()
        self._busy = False

    def put_nowait(self, call: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        if self._loop.is_closed():  # a dead world's connection is let go of
            with contextlib.suppress(Exception):
                call[1]()
            return
        self._calls.append(call)
        self._begin()

    def _begin(self) -> None:
        if not self._calls or self._busy:
            return
        self._busy = True
        fault = self._fault() if _writes(self._calls[0][1]) else None
        if fault == "hang":
            self._loop.call_later(HANG_S, self._run, None)
        else:
            self._loop.in_thread(lambda: self._run(fault))

    def _run(self, fault: CommitFault | None) -> None:
        future, function = self._calls.popleft()
        try:
            if fault in {"refused", "lost"}:
                _half_done(function)
                raise _sqlite_error(fault)
            result = function()
            if fault == "kept":
                raise _sqlite_error(fault)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:
            if future is not None and not future.done():
                future.set_exception(e)
        else:
            if future is not None and not future.done():
                future.set_result(result)
        self._busy = False
        self._begin()


def _writes(function: Callable[[], Any]) -> bool:
    """Whether the journal writes by this call: a transaction, or a statement that is no query."""
    if getattr(function, "func", None) is run_steps:
        return True
    words = getattr(function, "args", ())
    first = next((word for word in words if isinstance(word, str)), "")
    return first.lstrip()[:6].upper() in {"INSERT", "BEGIN ", "COMMIT", "UPDATE", "DELETE"}


def _half_done(function: Callable[[], Any]) -> None:
    """What a transaction has come to when its disk fails.

    Some of its steps are done, and its end is not.
    """
    if isinstance(function, partial) and function.func is run_steps:
        connection, steps = function.args
        run_steps(connection, steps[: len(steps) // 2])


def _sqlite_error(fault: CommitFault) -> sqlite3.OperationalError:
    message, name = {
        "refused": ("database or disk is full", "SQLITE_FULL"),
        "lost": ("disk I/O error", "SQLITE_IOERR_WRITE"),
        "kept": ("disk I/O error", "SQLITE_IOERR_FSYNC"),
    }[fault]
    error = sqlite3.OperationalError(message)
    error.sqlite_errorname = name
    return error


class _NoThread:
    """There is none to be started."""

    daemon = True

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def start(self) -> None:
        pass


@contextlib.contextmanager
def seams(
    loop: SeededLoop, sqlite_fault: Callable[[], CommitFault | None] | None = None
) -> Iterator[None]:
    """Let the loop into the libraries, within the context and in this thread of control."""
    mine = threading.get_ident()
    core: Any = aiosqlite.core
    queue, thread, connect = core.SimpleQueue, core.Thread, core.Connection.__init__
    in_thread, token_hex = backend.AsyncIOBackend.run_sync_in_worker_thread, secrets.token_hex

    new_scope, new_group, sleep = (
        backend.CancelScope.__init__,
        backend.TaskGroup.__init__,
        time.sleep,
    )

    def scope(self: Any, *args: Any, **options: Any) -> None:
        new_scope(self, *args, **options)
        self._tasks, self._child_scopes = _OrderedSet(), _OrderedSet()

    def group(self: Any, *args: Any, **options: Any) -> None:
        new_group(self, *args, **options)
        self._tasks = _OrderedSet()

    def simulated() -> bool:
        return threading.get_ident() == mine

    async def in_lane(
        cls: Any, func: Any, args: Any, abandon_on_cancel: bool = False, limiter: Any = None
    ) -> Any:
        if not simulated():
            return await in_thread(func, args, abandon_on_cancel, limiter)
        await cls.checkpoint()
        with anyio.CancelScope(shield=not abandon_on_cancel):
            context = copy_context()
            return await loop.run_in_executor(None, lambda: context.run(func, *args))

    def hexadecimal(nbytes: int | None = None) -> str:
        return (
            f"{loop.rng.getrandbits(8 * (nbytes or 32)):0{2 * (nbytes or 32)}x}"
            if simulated()
            else token_hex(nbytes)
        )

    fault = sqlite_fault or (lambda: None)
    connected: list[Any] = []

    def connecting(self: Any, *args: Any, **options: Any) -> None:
        connect(self, *args, **options)
        if simulated():
            connected.append(self)

    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (core, "SimpleQueue", lambda: _Connection(loop, fault) if simulated() else queue()),
            (core, "Thread", lambda *a, **k: _NoThread() if simulated() else thread(*a, **k)),
            (core.Connection, "__init__", connecting),
            (backend.AsyncIOBackend, "run_sync_in_worker_thread", classmethod(in_lane)),
            (backend.CancelScope, "__init__", scope),
            (backend.TaskGroup, "__init__", group),
            (time, "sleep", lambda seconds: None if simulated() else sleep(seconds)),
            (secrets, "token_hex", hexadecimal),
        ):
            stack.enter_context(patch.object(target, name, value))
        try:
            yield
        finally:
            for connection in connected:
                if connection._connection is not None:
                    connection._connection.close()  # rolls back what a dead world had begun
                    connection._connection = None
            # where a task stands refers to the task: a dead world's would be kept for ever
            for task in [task for task in backend._task_states if task.get_loop() is loop]:
                del backend._task_states[task]
