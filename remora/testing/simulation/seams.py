"""The parts of libraries that a simulated run replaces.

Inside `seams(loop)`:

* `anyio.to_thread.run_sync` runs its function in one step of a queue of the loop;
* each connection of aiosqlite is such a queue: the real SQLite, one call at a time, in order, each
  after a random latency. A call that writes may fail before or after its work (`CommitFault`);
* so does `CallingThread`, and tells the loop in another step;
* anyio's cancel scopes and task groups keep their tasks in the order of adding (a set is ordered by
  address, so the order of a cancellation would differ from run to run);
* `secrets` draws from the loop, so that ids are the same in each run;
* `time.sleep` returns at once, and the time that is measured is the loop's.
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
from typing import Any, TypeAlias, TypeGuard
from unittest.mock import patch

import aiosqlite.core
import anyio
from anyio._backends import _asyncio as backend

from remora.runtime.threads import CallingThread, call_function
from remora.storage.sqlite.connection import (
    JournalConnection,
    Submitted,
    run_steps,
    run_submitted,
)
from remora.testing.faults import CommitFault
from remora.testing.simulation.loop import SeededLoop

_Patch: TypeAlias = tuple[Any, str, Any]  # an object, the name of its attribute, the new value

HANG_S = 45.0
"""How long a hanging call takes, in seconds: longer than a request's deadline of 30."""


class _OrderedSet(dict[Any, None]):
    """The methods of a set that anyio's scopes and groups use; ordered by adding."""

    __slots__ = ()

    def add(self, member: Any) -> None:
        self[member] = None

    def discard(self, member: Any) -> None:
        self.pop(member, None)

    def remove(self, member: Any) -> None:
        del self[member]


class _Connection:
    """Replaces the queue that feeds the thread of an aiosqlite connection."""

    def __init__(
        self,
        loop: SeededLoop,
        fault: Callable[[], CommitFault | None],
        opened: list[sqlite3.Connection],
    ) -> None:
        self._loop = loop
        self._fault = fault
        self._opened = opened
        self._calls: deque[tuple[asyncio.Future[Any] | None, Callable[[], Any]]] = deque()
        self._busy = False

    def put_nowait(self, call: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        if self._loop.is_closed():  # the connection of a dead world
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
                _run_half(function)
                raise _sqlite_error(fault)
            result = function()
            if isinstance(result, sqlite3.Connection):
                self._opened.append(result)  # a power cut may come before anybody else has it
            if fault == "kept":
                raise _sqlite_error(fault)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:
            self._tell(future, "set_exception", e)
        else:
            self._tell(future, "set_result", result)
        self._busy = False
        self._begin()

    def _tell(self, future: asyncio.Future[Any] | Submitted | None, how: str, what: Any) -> None:
        if isinstance(future, Submitted):  # the next call may begin before the loop hears of it
            future.failed = how == "set_exception"
            future.call_soon_threadsafe(how, future, what)
        elif future is not None and not future.done():
            getattr(future, how)(what)


def _writes(function: Callable[[], Any]) -> bool:
    """Return whether this call of the journal writes: a transaction, or a statement but a query."""
    if _is_transaction(function):
        return True
    words = getattr(function, "args", ())
    first = next((word for word in words if isinstance(word, str)), "")
    return first.lstrip()[:6].upper() in {"INSERT", "BEGIN ", "COMMIT", "UPDATE", "DELETE"}


def _is_transaction(function: object) -> TypeGuard[partial[None]]:
    """Return whether it is `JournalConnection.run`, or what that submitted to the thread."""
    called = getattr(function, "func", None)
    return called is run_submitted or (
        getattr(called, "__func__", called) is JournalConnection.run_in_place
    )


def _run_half(function: Callable[[], Any]) -> None:
    """Run the first half of a transaction's steps, as when its disk fails."""
    if _is_transaction(function):
        *submitted, connection, steps = function.args
        if submitted:
            submitted[0].begin()
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
    """Replaces a thread; starts nothing."""

    daemon = True

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def start(self) -> None:
        pass


@contextlib.contextmanager
def seams(
    loop: SeededLoop, sqlite_fault: Callable[[], CommitFault | None] | None = None
) -> Iterator[None]:
    """Replace these parts within the context; other threads keep the originals."""
    mine = threading.get_ident()

    def is_simulated() -> bool:
        return threading.get_ident() == mine

    connections: list[aiosqlite.Connection] = []
    opened: list[sqlite3.Connection] = []
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            *_sqlite(loop, sqlite_fault or (lambda: None), connections, opened, is_simulated),
            *_threads(loop, is_simulated),
            *_task_sets(),
            *_chance(loop, is_simulated),
        ):
            stack.enter_context(patch.object(target, name, value))
        try:
            yield
        finally:
            for one in opened:
                one.close()  # rolls back what a dead world had begun
            for connection in connections:
                connection._connection = None
            # anyio's state of a task refers to the task: it would keep a dead world's for ever
            for task in [task for task in backend._task_states if task.get_loop() is loop]:
                del backend._task_states[task]


def _sqlite(
    loop: SeededLoop,
    fault: Callable[[], CommitFault | None],
    connections: list[aiosqlite.Connection],
    opened: list[sqlite3.Connection],
    is_simulated: Callable[[], bool],
) -> tuple[_Patch, ...]:
    """Connections without threads; each is added to `connections`, SQLite's own to `opened`."""
    core: Any = aiosqlite.core
    queue, thread, connect = core.SimpleQueue, core.Thread, core.Connection.__init__

    def connect_and_note(self: Any, *args: Any, **options: Any) -> None:
        connect(self, *args, **options)
        if is_simulated():
            connections.append(self)

    return (
        (
            core,
            "SimpleQueue",
            lambda: _Connection(loop, fault, opened) if is_simulated() else queue(),
        ),
        (core, "Thread", lambda *a, **k: _NoThread() if is_simulated() else thread(*a, **k)),
        (core.Connection, "__init__", connect_and_note),
    )


def _threads(loop: SeededLoop, is_simulated: Callable[[], bool]) -> tuple[_Patch, ...]:
    in_thread, sleep = backend.AsyncIOBackend.run_sync_in_worker_thread, time.sleep
    perf_counter, thread_time = time.perf_counter, time.thread_time

    async def in_queue(
        cls: Any, func: Any, args: Any, abandon_on_cancel: bool = False, limiter: Any = None
    ) -> Any:
        if not is_simulated():
            return await in_thread(func, args, abandon_on_cancel, limiter)
        await cls.checkpoint()
        with anyio.CancelScope(shield=not abandon_on_cancel):
            context = copy_context()
            return await loop.run_in_executor(None, lambda: context.run(func, *args))

    submit = CallingThread.submit

    def in_steps(self: Any, function: Any, on_done: Any) -> None:
        if not is_simulated():
            submit(self, function, on_done)
            return

        def work() -> None:
            loop.call_soon(on_done, *call_function(function))

        loop.in_thread(work)

    return (
        (backend.AsyncIOBackend, "run_sync_in_worker_thread", classmethod(in_queue)),
        (CallingThread, "submit", in_steps),
        (time, "perf_counter", lambda: loop.time() if is_simulated() else perf_counter()),
        (time, "thread_time", lambda: 0.0 if is_simulated() else thread_time()),
        (time, "sleep", lambda seconds: None if is_simulated() else sleep(seconds)),
    )


def _task_sets() -> tuple[_Patch, ...]:
    new_scope, new_group = backend.CancelScope.__init__, backend.TaskGroup.__init__

    def scope(self: Any, *args: Any, **options: Any) -> None:
        new_scope(self, *args, **options)
        self._tasks, self._child_scopes = _OrderedSet(), _OrderedSet()

    def group(self: Any, *args: Any, **options: Any) -> None:
        new_group(self, *args, **options)
        self._tasks = _OrderedSet()

    return (
        (backend.CancelScope, "__init__", scope),
        (backend.TaskGroup, "__init__", group),
    )


def _chance(loop: SeededLoop, is_simulated: Callable[[], bool]) -> tuple[_Patch, ...]:
    token_hex = secrets.token_hex

    def hexadecimal(nbytes: int | None = None) -> str:
        if not is_simulated():
            return token_hex(nbytes)
        size = nbytes or 32
        return f"{loop.rng.getrandbits(8 * size):0{2 * size}x}"

    return ((secrets, "token_hex", hexadecimal),)
