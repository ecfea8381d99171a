"""One answer for one waiter: the kernel's only primitive that depends on the event loop.

An anyio event costs 4 µs to make and wait for, an asyncio future 0.4 µs, and every durable reply
needs one. So under asyncio this is a future, and an anyio event everywhere else (trio, for the
property tests). A promise has a single waiter: with a shared future, one caller's cancellation
would cancel all.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

import anyio

if TYPE_CHECKING:
    import asyncio


class Promise(Protocol):
    """A one-shot result. The first outcome counts; later ones are ignored."""

    def resolve(self, value: object) -> None:
        """Set the answer."""
        ...

    def reject(self, error: BaseException) -> None:
        """Set the failure."""
        ...

    @property
    def abandoned(self) -> bool:
        """The waiter was cancelled: nobody will read the answer."""
        ...


class AwaitablePromise(Promise, Protocol):
    """A promise for a task that waits."""

    @property
    def answer(self) -> Awaitable[Any]:
        """The answer, or the failure. Only one task may await it, once, and at once."""
        ...


class _AsyncioPromise:
    __slots__ = ("answer",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[Any] = loop.create_future()

    def resolve(self, value: object) -> None:
        if not self.answer.done():
            self.answer.set_result(value)

    def reject(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    @property
    def abandoned(self) -> bool:
        return self.answer.cancelled()


class _AnyioPromise:
    __slots__ = ("_error", "_event", "_value", "abandoned")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self.abandoned = False

    def resolve(self, value: object) -> None:
        if not self._event.is_set():
            self._value = value
            self._event.set()

    def reject(self, error: BaseException) -> None:
        if not self._event.is_set():
            self._error = error
            self._event.set()

    @property
    def answer(self) -> Awaitable[Any]:
        return self._wait()

    async def _wait(self) -> Any:
        try:
            await self._event.wait()
        except BaseException:
            self.abandoned = True
            raise
        if self._error is not None:
            raise self._error
        return self._value


class _Unread:
    """A promise that nobody waits for."""

    def __init__(self, *, abandoned: bool) -> None:
        self.abandoned = abandoned

    def resolve(self, value: object) -> None:
        pass

    def reject(self, error: BaseException) -> None:
        pass


NO_REPLY: Promise = _Unread(abandoned=False)
"""Of a message whose sender does not wait; failures are logged elsewhere."""
NO_READER: Promise = _Unread(abandoned=True)
"""Of a message whose sender was answered already: it is not handled any more."""


def new_promise() -> AwaitablePromise:
    """Make a promise for the running event loop."""
    # Under asyncio it is imported already; to import it costs a program under trio 30 ms.
    asyncio = sys.modules.get("asyncio")
    try:
        return _AnyioPromise() if asyncio is None else _AsyncioPromise(asyncio.get_running_loop())
    except RuntimeError:
        return _AnyioPromise()
