"""Periodic work: each task in a loop of its own, its failures reported and outlived."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc
import msgspec

from remora.errors import InvalidInput
from remora.logging import get_logger
from remora.runtime.clock import Clock
from remora.runtime.guard import guarded_call

__all__ = ["Schedule", "TaskStatistics"]

_logger = get_logger("remora.schedule")


class TaskStatistics(msgspec.Struct, frozen=True):
    """What became of one periodic task so far."""

    runs: int = 0
    failures: int = 0
    last_s: float = 0.0


class Schedule:
    """A set of periodic tasks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[str, tuple[float, Callable[[], Awaitable[object]]]] = {}
        self._statistics: dict[str, TaskStatistics] = {}
        self._naps: dict[str, anyio.CancelScope] = {}

    def every(self, seconds: float, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work` each `seconds` after it last ended, first after `seconds`; before `start`."""
        self._tasks[name] = (seconds, work)
        self._statistics[name] = TaskStatistics()

    def change(self, name: str, seconds: float) -> None:
        """From now on, run this task each `seconds` after it last ended.

        At once, if that is over already.

        Raises:
            InvalidInput: there is no such task, or the interval is no positive number.
        """
        if name not in self._tasks:
            raise InvalidInput(
                f"there is no periodic task {name!r}; there are {', '.join(self._tasks)}"
            )
        if not math.isfinite(seconds) or seconds <= 0:
            raise InvalidInput(
                f"the interval of {name} must be a positive number of seconds, not {seconds!r}"
            )
        self._tasks[name] = (seconds, self._tasks[name][1])
        if nap := self._naps.get(name):
            nap.cancel()

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the loops; they end when the task group is cancelled."""
        for name in self._tasks:
            tasks.start_soon(self._loop, name, name=f"remora.schedule.{name}")

    async def _loop(self, name: str) -> None:
        ended = self._clock.monotonic()
        while True:
            seconds, work = self._tasks[name]
            with anyio.CancelScope() as nap:
                self._naps[name] = nap
                await self._clock.sleep(max(ended + seconds - self._clock.monotonic(), 0.0))
            if nap.cancelled_caught:
                continue  # its interval has changed
            begun, failed = self._clock.monotonic(), 0
            try:
                await guarded_call(work)
            except Exception:
                failed = 1
                _logger.exception("scheduled_task_failed", task=name)
            before = self._statistics[name]
            ended = self._clock.monotonic()
            took_s = ended - begun
            self._statistics[name] = TaskStatistics(
                before.runs + 1, before.failures + failed, took_s
            )

    def statistics(self) -> dict[str, TaskStatistics]:
        """Runs and failures by task."""
        return dict(self._statistics)
