"""The turns of each session, one after the other, in the order in which they were begun.

A turn may end in another task than it was begun in, as the generators of web frameworks do, so this
is no `anyio.Lock`. The end of a turn begins the next in line, so a later one cannot come first.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from remora.config import TurnConfig
from remora.errors import OwnershipLost, RemoraError, RuntimeClosed, SessionBusy
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.runtime.concurrency import map_concurrently
from remora.runtime.probes import probe
from remora.runtime.promise import AwaitablePromise, new_promise
from remora.runtime.shared_call import SharedCall
from remora.runtime.threads import asyncio_loop
from remora.services.parts import Turns

_logger = get_logger(__name__)

_AT_ONCE = 64  # interrupted replies that are stored at the same time


class _Waiter:
    """A turn that waits; `number` is set with the promise, which its task reads later."""

    __slots__ = ("number", "promise")

    def __init__(self) -> None:
        self.promise: AwaitablePromise = new_promise()
        self.number = 0


class _Line:
    """The turns of a session: the number of the one that runs, and those that wait."""

    __slots__ = ("began_s", "number", "waited_for", "waiters")

    def __init__(self, number: int) -> None:
        self.number = number
        self.began_s = time.monotonic()
        self.waited_for = False
        self.waiters: deque[_Waiter] = deque()


class TurnStreams:
    """Replies that are being streamed in this process, and calls that outlive their callers."""

    def __init__(self) -> None:
        self._streams: dict[SessionKey, Callable[[], Awaitable[None]]] = {}
        self._tasks: TaskGroup | None = None

    def start(self, tasks: TaskGroup) -> None:
        """Run calls in this group from now on, each in the context of who begins it."""
        self._tasks = tasks

    def watch(self, key: SessionKey, interrupt: Callable[[], Awaitable[None]]) -> None:
        """Call `interrupt` when the runtime closes before the session's turn has ended."""
        self._streams[key] = interrupt

    def begin_call(self, function: Callable[[], Awaitable[object]]) -> SharedCall[object]:
        """Call `function` in a task of the runtime, which its caller's cancellation does not end.

        Raises:
            RuntimeClosed: the runtime has closed.
        """
        call = SharedCall(function)
        if self._tasks is not None:
            call.start(self._tasks)
        call.begin()
        return call

    async def interrupt(self) -> None:
        """Have what is being streamed stored, before the runtime closes."""
        interrupts = list(self._streams.values())
        await map_concurrently(lambda one: one(), interrupts, concurrency=_AT_ONCE)


class LocalTurns(TurnStreams):
    """Implements `remora.services.parts.Turns` for the sessions of this process.

    Args:
        config: how long and how many may wait.
        after: numbers of turns begin after this one. Of two processes that own the journal one
            after the other, no two turns should have the same number.
    """

    def __init__(self, config: TurnConfig, after: int = 0) -> None:
        super().__init__()
        self._config = config
        self._number = after
        self._lines: dict[SessionKey, _Line] = {}
        self._closed: RuntimeClosed | OwnershipLost | None = None

    async def begin(self, key: SessionKey, *, wait: bool = True) -> int:
        """Begin a turn, when those before it have ended; returns its number, which `end` takes.

        Without `wait`, 0 if another turn of the session runs or waits.

        Raises:
            SessionBusy: too many wait, or it waited too long.
            RuntimeClosed: the runtime is closing.
        """
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = line = _Line(self._next_number())
            return line.number
        if not wait:
            return 0
        if len(line.waiters) >= self._config.max_waiting:
            probe("too_many_turns_waited")
            raise _busy(key, len(line.waiters), "turns.max_waiting")
        waiter = _Waiter()
        line.waiters.append(waiter)
        line.waited_for = True
        try:
            with anyio.move_on_after(self._config.wait_s) as scope:
                await waiter.promise.answer
        except BaseException:
            self._leave(key, line, waiter)
            raise
        if scope.cancelled_caught:
            waiting = len(line.waiters)
            self._leave(key, line, waiter)
            probe("turn_waited_in_vain")
            raise _busy(key, waiting, "turns.wait_s")
        return waiter.number

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _leave(self, key: SessionKey, line: _Line, waiter: _Waiter) -> None:
        """Give up waiting; a turn that has begun by then ends."""
        if waiter.number:
            probe("turn_begun_for_nobody")
            self.end(key, waiter.number)
        elif waiter in line.waiters:
            line.waiters.remove(waiter)

    def end(self, key: SessionKey, number: int) -> None:
        """End this turn, if it runs; the next in line begins."""
        line = self._lines.get(key)
        if line is None or line.number != number:
            return
        self._streams.pop(key, None)
        if line.waiters:
            waiter = line.waiters.popleft()
            line.number = waiter.number = self._next_number()
            line.began_s, line.waited_for = time.monotonic(), bool(line.waiters)
            waiter.promise.resolve(None)
        else:
            del self._lines[key]

    def close(self, error: RuntimeClosed | OwnershipLost) -> None:
        """Refuse turns that wait, and later ones."""
        self._closed = error
        for line in self._lines.values():
            while line.waiters:
                line.waiters.popleft().promise.reject(error)

    def __len__(self) -> int:
        """Sessions that have a turn."""
        return len(self._lines)

    def count_older(self, seconds: float) -> int:
        """How many turns began longer ago than this, and others wait or waited; any thread."""
        limit = time.monotonic() - seconds
        return sum(line.waited_for and line.began_s < limit for line in list(self._lines.values()))


class HeldTurn:
    """A turn that has begun: it ends by `end`, or when its `owner` is collected."""

    __slots__ = ("_dropped", "_end")

    def __init__(self, owner: object, turns: Turns, key: SessionKey, number: int) -> None:
        end = self._end = partial(turns.end, key, number)
        loop = asyncio_loop()

        def end_dropped() -> None:
            probe("turn_dropped")
            _logger.warning("turn_dropped", session=key)
            if loop is None:
                end()
            elif not loop.is_closed():  # the collector runs in any thread
                loop.call_soon_threadsafe(end)

        self._dropped = weakref.finalize(owner, end_dropped)
        self._dropped.atexit = False

    def end(self) -> None:
        """End it, if it has not ended."""
        if self._dropped.detach() is not None:
            self._end()


def _busy(key: SessionKey, waiting: int, bound: str) -> RemoraError:
    return SessionBusy(
        f"{waiting} turns of {key.words} wait for the one that runs ({bound}); nothing was "
        "written: try again later, with the same key. A turn that waits inside another of the same "
        "session waits for itself",
        waiting=waiting,
    )
