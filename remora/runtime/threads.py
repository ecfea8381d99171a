"""Work in threads: remora's own, and plugged-in code, of which a limited number runs.

Neither takes one of anyio's default threads. Those are the application's: as many synchronous
callers of `remora.blocking` as there are may hold them all, each waiting for what a thread of
remora does.

Every thread that computes in Python is one more for which the event loop and the journal's thread
wait when they need the interpreter, and an append needs it fifteen times. So what background jobs
compute runs in one thread at a time, however many jobs there are. With 16 sessions that append all
the time, and a job for each, appends were twice as many and their p99 a quarter; the jobs alone
took 0.7 of the time (benchmarks/NOTES.md).
"""

from __future__ import annotations

import atexit
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

from remora.errors import WrongLoop
from remora.system.forks import run_at_fork

if TYPE_CHECKING:
    import asyncio


# -- how soon a busy thread hands the interpreter to another one -----------------------------------
#
# A thread that runs Python keeps the interpreter for a *switch interval* when another one asks for
# it: 5 ms by default. While a thread summarizes, embeds or imports LanceDB, the interval is 0.2 ms.
# Measured on an idle machine, with a loop that wakes 530 times a second: while LanceDB is imported
# it woke 185 times at 5 ms and 430 at 0.2 ms; while messages were summarized 258 times at 5 ms and
# 460 at 0.5 ms. Pauses in the computation let the loop wake as often, but made 29 to 49 summaries a
# second instead of 225.
#
# While the journal makes plain commits, the interval is short as well: its thread asks for the
# interpreter, which the event loop mostly has, nine times a commit. Of 256 sessions a tenth more is
# stored, of 16 a twentieth; 0.1 ms brought no more than 0.2. The loop, which is interrupted, is
# late by more: p99 8 to 12 ms, not 6 to 7.
#
# The interval belongs to the whole process. So it is restored when the last such work ends, and a
# host that has set one of its own keeps it.

_DEFAULT_US = 5_000  # the interpreter's own
# 0.2 ms, but no number that a host would choose. CPython truncates: who reads 199 or 200, and sets
# what was read, has another; 198 stays 198.
_SHORT_US = 198

LONGEST_LOAD_S = 30.0

_loading: list[threading.Event] = []
_running: list[None] = []
"""One for each body that runs. Without a lock, because the event loop may be one of the callers:
its changes are single steps of the interpreter, and every last body to end restores the interval.
"""


@contextmanager
def frequent_switches() -> Iterator[None]:
    """Have busy threads hand the interpreter over every 0.2 ms; for the body of a long computation.

    Bodies may run in several threads at once. Where the process has another switch interval than
    the interpreter's default, it stays as it is.
    """
    _running.append(None)
    switch_often()
    try:
        yield
    finally:
        _running.pop()
        switch_as_before()


def switch_often() -> None:
    """Have busy threads hand the interpreter over every 0.2 ms, until `switch_as_before`.

    For many short pieces of work, which are not counted: of several journals, the first that has
    nothing left to commit ends this for the others, too, until their next commit.
    """
    if round(sys.getswitchinterval() * 1e6) == _DEFAULT_US:
        sys.setswitchinterval(_SHORT_US / 1e6)


def switch_as_before() -> None:
    """Undo `switch_often`, of all callers, unless a body of `frequent_switches` runs."""
    if not _running and round(sys.getswitchinterval() * 1e6) == _SHORT_US:
        sys.setswitchinterval(_DEFAULT_US / 1e6)


def load_module(name: str) -> ModuleType:
    """Import a module that takes long. It blocks, so call it in a thread.

    A runtime that closes, and a program that ends, wait until it is loaded: an interpreter that is
    taken down while a thread loads native code may abort, and one that Ctrl-C ended may not say so.
    """
    loaded = threading.Event()
    _loading.append(loaded)
    try:
        with frequent_switches():
            return importlib.import_module(name)
    finally:
        _loading.remove(loaded)
        loaded.set()


def is_loading() -> bool:
    """Return whether a `load_module` of another thread has not ended."""
    return bool(_loading)


def wait_until_loaded() -> None:
    """Wait for other threads' `load_module`, half a minute at most."""
    for one in _loading.copy():
        one.wait(LONGEST_LOAD_S)


def _forget_threads() -> None:
    """In a child that was forked: no thread of the parent's goes on there."""
    _loading.clear()
    _running.clear()
    switch_as_before()


def _wait_at_exit() -> None:
    with suppress(KeyboardInterrupt):  # who is not patient need not read a traceback
        wait_until_loaded()


atexit.register(_wait_at_exit)
run_at_fork(in_child=_forget_threads)


Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

_AT_ONCE = 40
_limiters = anyio.lowlevel.RunVar[anyio.CapacityLimiter]("remora.runtime.threads")
_background_limiters = anyio.lowlevel.RunVar[anyio.CapacityLimiter]("remora.runtime.background")
_background: ContextVar[bool] = ContextVar("remora_background", default=False)
_elsewhere: ContextVar[Callable[..., Any] | None] = ContextVar("remora_elsewhere", default=None)


@contextmanager
def in_background() -> Iterator[None]:
    """For the body, and tasks that it starts, `compute_in_thread` computes in the background."""
    token = _background.set(True)
    try:
        yield
    finally:
        _background.reset(token)


@contextmanager
def with_process(elsewhere: Callable[..., Any] | None) -> Iterator[None]:
    """For the body, and tasks that it starts, `compute_apart` may have another process compute.

    Args:
        elsewhere: calls a function, with its arguments, there or here; None for here.
    """
    token = _elsewhere.set(elsewhere)
    try:
        yield
    finally:
        _elsewhere.reset(token)


async def compute_apart(
    function: Callable[[*Arguments], Result],
    *arguments: *Arguments,
    abandon_on_cancel: bool = False,
) -> Result:
    """As `compute_in_thread`; within `with_process` another process may compute.

    Args:
        function: of a module of remora. It depends on nothing but its arguments, and changes
            nothing.
        arguments: its positional arguments, which can be pickled, or it is called here.
        abandon_on_cancel: as with `compute_in_thread`.
    """
    elsewhere = _elsewhere.get()
    call: Callable[[], Result] = partial(function, *arguments)
    if elsewhere is not None:
        call = partial(elsewhere, function, *arguments)
    return await compute_in_thread(call, abandon_on_cancel=abandon_on_cancel)


async def compute_in_thread(
    function: Callable[[*Arguments], Result],
    *arguments: *Arguments,
    abandon_on_cancel: bool = False,
) -> Result:
    """Call a sync function of remora, which computes for long, in a thread with frequent switches.

    Args:
        function: the function. It waits for no other thread of remora. In the background it waits
            until none of those that were called there before computes.
        arguments: its positional arguments.
        abandon_on_cancel: as with `run_in_thread`; in the background a caller always waits, as the
            next one could compute otherwise while an abandoned thread does.
    """
    background = _background.get()
    return await run_in_thread(
        frequent_switches()(function),
        *arguments,
        abandon_on_cancel=abandon_on_cancel and not background,
        limiter=_get_limiter(_background_limiters, 1) if background else None,
    )


async def run_in_thread(
    function: Callable[[*Arguments], Result],
    *arguments: *Arguments,
    abandon_on_cancel: bool = False,
    limiter: anyio.CapacityLimiter | None = None,
) -> Result:
    """Call a sync function of remora in a thread.

    Args:
        function: the function. It waits for no other thread of remora.
        arguments: its positional arguments.
        abandon_on_cancel: a caller that is cancelled leaves the thread; otherwise it waits for it.
        limiter: instead of remora's own, which has 40 places for each event loop.
    """
    return await anyio.to_thread.run_sync(
        function,
        *arguments,
        abandon_on_cancel=abandon_on_cancel,
        limiter=limiter or _get_limiter(_limiters, _AT_ONCE),
    )


def _get_limiter(
    kept: anyio.lowlevel.RunVar[anyio.CapacityLimiter], places: int
) -> anyio.CapacityLimiter:
    """The event loop's limiter, which is made at its first use."""
    try:
        return kept.get()
    except LookupError:
        made = anyio.CapacityLimiter(places)
        kept.set(made)
        return made


async def run_plugin_in_thread(
    function: Callable[..., Result], *arguments: object, limiter: anyio.CapacityLimiter
) -> Result:
    """Call a plugged-in function in a thread. A thread whose caller is cancelled is abandoned.

    Args:
        function: the function.
        arguments: its positional arguments.
        limiter: has a place for each thread. An abandoned one keeps it until it ends: else a
            function that hangs would take one thread more for each caller who leaves.
    """
    loop = asyncio_loop()
    if loop is None:  # trio itself keeps the place of an abandoned thread
        return await anyio.to_thread.run_sync(
            function, *arguments, abandon_on_cancel=True, limiter=limiter
        )
    place = _Place(limiter, loop)
    await limiter.acquire_on_behalf_of(place)
    try:
        return await anyio.to_thread.run_sync(
            place.run,
            function,
            *arguments,
            abandon_on_cancel=True,
            limiter=anyio.CapacityLimiter(1),
        )
    finally:
        place.leave()


class CallingThread:
    """A thread of its own for many short calls, in order; it tells the event loop, and no task.

    A call through `run_in_thread` needs a task that waits, and three turns of the event loop.

    Args:
        name: of the thread, which starts with the first call.
        loop: the event loop that it tells.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(
        self,
        function: Callable[[], Result],
        on_done: Callable[[Result | None, BaseException | None], None],
    ) -> None:
        """Have the thread call `function`; `on_done` hears its result or error, on the loop."""

        def call() -> None:
            result, error = call_function(function)
            with suppress(RuntimeError):  # the loop has closed
                self.loop.call_soon_threadsafe(on_done, result, error)

        if self._thread is None:
            # The process may end while it waits: it holds nothing.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self) -> None:
        """End the thread when it has done what it was given."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread = None


def call_function(
    function: Callable[[], Result],
) -> tuple[Result | None, BaseException | None]:
    """Return what it returns, or raises."""
    try:
        return function(), None
    except BaseException as e:
        return None, e


class _Place:
    """A place of a limiter, for one call; free when both its thread and its caller have left it."""

    def __init__(self, limiter: anyio.CapacityLimiter, loop: asyncio.AbstractEventLoop) -> None:
        self._limiter = limiter
        self._loop = loop
        self._lock = threading.Lock()
        self._running = self._left = False

    def run(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call the function, in the thread."""
        with self._lock:
            self._running = not self._left
        if not self._running:
            raise _LeftError
        try:
            return function(*arguments)
        finally:
            with self._lock:
                self._running = False
                abandoned = self._left
            if abandoned:
                with suppress(RuntimeError):  # the loop has closed
                    self._loop.call_soon_threadsafe(self._free)

    def leave(self) -> None:
        """The caller leaves, on the loop."""
        with self._lock:
            self._left = True
            running = self._running
        if not running:
            self._free()

    def _free(self) -> None:
        self._limiter.release_on_behalf_of(self)


class _LeftError(Exception):
    """The caller has left before the thread began; nobody sees this."""


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The running event loop, if it is asyncio's."""
    asyncio = sys.modules.get("asyncio")  # to import it costs a program under trio 30 ms
    try:
        return None if asyncio is None else asyncio.get_running_loop()
    except RuntimeError:
        return None


# -- the event loop that something belongs to ------------------------------------------------------


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
