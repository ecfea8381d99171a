"""A call that several callers wait for, and that belongs to none of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from remora.errors import RuntimeClosed
from remora.runtime.concurrency import is_open
from remora.runtime.guard import call_guarded, is_cancelled

Result = TypeVar("Result")


class SharedCall(Generic[Result]):
    """Calls a function in a task of the runtime, once for all who wait for it.

    A deadline or a cancellation ends a caller's wait, and not the call: work in threads cannot be
    interrupted, and would hold its caller beyond the deadline.

    Args:
        function: the function. Its result is kept; when it fails, the next `result` calls it again.
    """

    def __init__(self, function: Callable[[], Awaitable[Result]]) -> None:
        self._function = function
        self._tasks: anyio.abc.TaskGroup | None = None
        self._attempt: _Attempt[Result] | None = None
        self.ended = False
        """A call has ended, whether it succeeded or failed."""

    @property
    def error(self) -> Exception | None:
        """Why the last call failed; None if none has."""
        return None if self._attempt is None else self._attempt.error

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Run calls in this group from now on."""
        self._tasks = tasks

    def begin(self) -> None:
        """Call the function, unless a call runs or has succeeded."""
        self._begin()

    async def result(self) -> Result:
        """The function's result; it is called first if it has not succeeded yet.

        Raises:
            Exception: what the function raised.
            RuntimeClosed: the task group is not open.
        """
        attempt = self._begin()
        if not attempt.done.is_set():
            await attempt.done.wait()
        if attempt.error is not None:
            raise attempt.error
        return attempt.results[0]

    async def wait(self) -> None:
        """Return when a call has ended, whether it succeeded or failed."""
        if not self.ended:
            with suppress(RuntimeClosed):
                await self._begin().done.wait()

    async def wait_until_ended(self, limit_s: float) -> None:
        """Return when the call that runs has ended, or after so many seconds; begins none.

        A cancellation of the caller is raised then, and not before.
        """
        attempt, cancelled = self._attempt, None
        if attempt is None:
            return
        with anyio.move_on_after(limit_s, shield=True) as scope:
            while not attempt.done.is_set():
                try:
                    await attempt.done.wait()
                except anyio.get_cancelled_exc_class() as e:  # asyncio's own passes a shield
                    if scope.cancel_called:
                        raise
                    cancelled = e
        if cancelled is not None:
            raise cancelled

    def abandon(self) -> None:
        """Cancel the call that runs, and do not wait for its end: nobody waits for its result."""
        if self._attempt is not None:
            self._attempt.scope.cancel()

    def _begin(self) -> _Attempt[Result]:
        attempt = self._attempt
        if attempt is None or attempt.error is not None:
            if not is_open(self._tasks):
                raise RuntimeClosed("the runtime is not open")
            attempt = self._attempt = _Attempt()
            self._tasks.start_soon(self._run, attempt, name="remora.shared_call")
        return attempt

    async def _run(self, attempt: _Attempt[Result]) -> None:
        try:
            with attempt.scope:
                await self._call(attempt)
            if attempt.scope.cancelled_caught:
                attempt.error = RuntimeError("the call was abandoned")
        except BaseException:
            attempt.error = RuntimeClosed("the runtime closed")
            raise
        finally:
            self.ended = True
            attempt.done.set()

    async def _call(self, attempt: _Attempt[Result]) -> None:
        """Call the function; one that cancels this task ends its own call, and no other."""
        cancelled = anyio.get_cancelled_exc_class()
        try:
            attempt.results.append(await call_guarded(self._function))
        except cancelled:
            if _is_scope_cancelled():
                raise
            attempt.error = RuntimeError("cancelled from within")
        except Exception as e:
            attempt.error = e
        if is_cancelled() and not _is_scope_cancelled():
            # the cancellation may still be to come: it would end the runtime's tasks
            with suppress(cancelled):
                await anyio.lowlevel.checkpoint()


def _is_scope_cancelled() -> bool:
    return anyio.current_effective_deadline() == float("-inf")


class _Attempt(Generic[Result]):
    """A call that runs, or has ended."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.scope = anyio.CancelScope()
        self.results: list[Result] = []
        self.error: Exception | None = None
