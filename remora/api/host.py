"""The task that a runtime lives in.

It belongs to no other task. A cancel scope must be left by the task that entered it, but one task
may open a runtime and another close it: pytest-asyncio sets up and tears down a fixture in two, and
so do frameworks that have a hook for the start and one for the end. So everything is entered and
left in this task; opening and closing tell it what to do, and wait.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from remora.errors import ReentrantAsk, RuntimeClosed
from remora.logging import get_logger
from remora.runtime.probes import probe
from remora.runtime.threads import HomeLoop

_logger = get_logger(__name__)


class Host:
    """Runs one life of a runtime: it opens, waits until it is told to stop, and closes.

    Args:
        live: does that. It calls `mark_open` when the runtime is open, then waits for
            `wait_for_stop`.
    """

    def __init__(self, live: Callable[[Host], Awaitable[None]]) -> None:
        self._live = live
        self._scope = anyio.CancelScope()
        self._drain: anyio.CancelScope | None = None
        self._started, self._stop, self._ended = anyio.Event(), anyio.Event(), anyio.Event()
        self._opened = self._hurried = False
        self._failure: BaseException | None = None
        self._task: object = None  # asyncio itself keeps weak references only
        self.home = HomeLoop()
        """Where it was made, and runs."""

    @property
    def ended(self) -> bool:
        """Return whether this life is over."""
        return self._ended.is_set()

    @property
    def opened(self) -> bool:
        """Return whether the runtime has been open in this life."""
        return self._opened

    @property
    def stopping(self) -> bool:
        """Return whether somebody has told it to stop."""
        return self._stop.is_set()

    # -- for those who open and close --------------------------------------------------------------

    async def start(self) -> None:
        """Start the task; return when the runtime is open. If cancelled, nothing stays open.

        Raises:
            RuntimeClosed: another task closed it before it was open.
        """
        self._task = _spawn(self._run)
        try:
            await self._started.wait()
        except BaseException:
            probe("opening_cancelled")
            self._scope.cancel()
            await self._wait_until_ended()
            raise
        self._raise_failure()
        if not self._opened:
            raise RuntimeClosed("the runtime was closed while it opened")

    async def stop(self) -> None:
        """Have the runtime close; return when it has. The first call decides, others wait as well.

        A cancellation of asyncio's own, a second Ctrl-C for instance, ends the wait for accepted
        requests early. It does not end the call: the directory would still be locked.

        Raises:
            ReentrantAsk: called from background work, which would wait for itself.
            WrongLoop: called on another event loop.
        """
        self.home.check()
        if _inside.get() is self:
            raise ReentrantAsk(
                "background work closes the runtime, which waits for that work to end"
            )
        self._stop.set()
        if not self._started.is_set():
            probe("closed_while_opening")
            self._scope.cancel()
        await self._wait_until_ended()
        self._raise_failure()

    async def _wait_until_ended(self) -> None:
        """Wait, however often the task is cancelled; then it ends as cancelled."""
        cancelled: BaseException | None = None
        with anyio.CancelScope(shield=True):
            while not self._ended.is_set():
                try:
                    await self._ended.wait()
                except anyio.get_cancelled_exc_class() as e:  # asyncio's own passes a shield
                    cancelled = e
                    self._hurry()
        if cancelled is not None:
            raise cancelled

    def _hurry(self) -> None:
        self._hurried = True
        if self._drain is not None:
            self._drain.cancel()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback refers to this frame

    # -- for the task ------------------------------------------------------------------------------

    def mark_open(self) -> None:
        """The runtime is open."""
        self._opened = True
        self._started.set()

    def request_stop(self) -> None:
        """Have the runtime close; for what runs in it."""
        self._stop.set()

    async def wait_for_stop(self) -> None:
        """Return when the runtime is to be closed."""
        await self._stop.wait()

    async def drain(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Wait for accepted requests, so many seconds at most, or until the closer has no time."""
        with anyio.move_on_after(seconds, shield=True) as self._drain:
            if self._hurried:
                self._drain.cancel()
            await work()
        if self._drain.cancelled_caught and not self._hurried:
            probe("drain_timed_out")
            _logger.error("drain_timed_out", seconds=seconds)
        elif self._drain.cancelled_caught:
            probe("drain_cut_short")
            _logger.warning("drain_cut_short")

    async def _run(self) -> None:
        _inside.set(self)
        try:
            with self._scope:
                await self._live(self)
        except (KeyboardInterrupt, SystemExit):
            raise
        except anyio.get_cancelled_exc_class():
            # by the event loop itself, which ends: asyncio.run cancels all tasks that are left
            probe("loop_ended_before_the_runtime")
            _logger.warning(
                "runtime_not_closed", hint="the event loop ended before aclose, or async with, did"
            )
            raise
        except BaseException as e:
            self._failure = e
        finally:
            self._started.set()
            self._ended.set()


class HostTasks:
    """A task group whose tasks all know that they work for the host.

    A request may start one, a lookup for instance, which would inherit the request's context.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._context = copy_context()
        self._starters: set[object] = set()
        self.cancel_scope = tasks.cancel_scope

    def start_soon(
        self,
        function: Callable[..., Coroutine[Any, Any, Any]],
        *arguments: Any,
        name: object = None,
    ) -> None:
        """Start a task, as anyio's method does; also from a callback of asyncio's loop.

        A commit is acknowledged in one, and anyio finds the event loop by the task that runs.
        """
        start = partial(self._tasks.start_soon, function, *arguments, name=name)
        if not _in_callback():
            self._context.copy().run(start)
            return
        starter = sys.modules["asyncio"].create_task(_call(start), context=self._context.copy())
        self._starters.add(starter)  # the loop itself may drop it
        starter.add_done_callback(self._starters.discard)


async def _call(start: Callable[[], object]) -> None:
    start()


def _in_callback() -> bool:
    """Return whether asyncio's loop runs this code, and no task does."""
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio.current_task() is None
    except RuntimeError:  # another event loop, or none
        return False


_inside: ContextVar[Host | None] = ContextVar("remora_host", default=None)
"""The host that the running code works for: all background tasks inherit it."""


def _spawn(function: Callable[[], Awaitable[None]]) -> object:
    """Start a task that is no other's child."""
    asyncio = sys.modules.get("asyncio")
    try:
        loop = None if asyncio is None else asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is not None:
        return loop.create_task(function(), name="remora.runtime")
    spawn = sys.modules["trio"].lowlevel.spawn_system_task  # anyio has no other
    return spawn(function, name="remora.runtime")
