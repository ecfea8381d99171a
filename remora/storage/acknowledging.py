"""Telling the senders of durable writes, and work that waits its turn between commits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio

from remora.runtime.log import Write

__all__ = ["Acknowledger", "ExclusiveWork"]

T = TypeVar("T")

_AT_ONCE = 16


class Acknowledger:
    """Answers the senders of committed writes, slice by slice.

    Most senders answer with their next message. Answered all at once, they would all work while the
    disk is idle, and then all wait for it. In slices, the next commit takes what the first have
    sent while the others are being answered.
    """

    def __init__(self) -> None:
        self._committed: deque[Write] = deque()
        self._sliced = False

    def add(self, batch: Sequence[Write]) -> None:
        """Answer these, after all that were added before."""
        self._committed.extend(batch)
        if not self._sliced:
            self._answer_slice()

    def answer_all(self) -> None:
        """Answer at once: before a failure is reported, and before other work."""
        self._answer(len(self._committed))

    def _answer_slice(self) -> None:
        try:
            self._answer(_AT_ONCE)
        finally:
            self._sliced = bool(self._committed)
            if self._sliced:
                asyncio.get_running_loop().call_soon(self._answer_slice)

    def _answer(self, most: int) -> None:
        committed = self._committed
        for _ in range(min(most, len(committed))):
            committed.popleft().acknowledge(None)


class ExclusiveWork(Generic[T]):
    """Work between the writes queued before it and those queued after it.

    Args:
        operation: the work.
        after: how many writes leave the queue before it.
    """

    def __init__(self, operation: Callable[[], Awaitable[T]], after: int) -> None:
        self.after = after
        self._done = anyio.Event()
        self._operation = operation
        self._result: list[T] = []
        self._error: Exception | None = None

    async def run(self) -> None:
        """Do it; `result` has what came of it."""
        try:
            self._result.append(await self._operation())
        except Exception as e:
            self._error = e
        self._done.set()

    async def result(self) -> T:
        """Wait for what `operation` returns, or raises."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]
