"""Periodic work: each task in a loop of its own, its failures reported and outlived."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio.abc
import msgspec

from remora.logs import get_logger
from remora.runtime.clock import Clock
from remora.runtime.containment import contained

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

    def every(self, seconds: float, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work` each `seconds` after it last ended, first after `seconds`; before `start`."""
        self._tasks[name] = (seconds, work)
        self._statistics[name] = TaskStatistics()

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the loops; they end when the task group is cancelled."""
        for name in self._tasks:
            tasks.start_soon(self._loop, name, name=f"remora.schedule.{name}")

    async def _loop(self, name: str) -> None:
        seconds, work = self._tasks[name]
        while True:
            await self._clock.sleep(seconds)
            begun, failed = self._clock.monotonic(), 0
            try:
                await contained(work)
            except Exception:
                failed = 1
                _logger.exception("scheduled_task_failed", task=name)
            before = self._statistics[name]
            took_s = self._clock.monotonic() - begun
            self._statistics[name] = TaskStatistics(before.runs + 1, before.failures + failed, took_s)

    def statistics(self) -> dict[str, TaskStatistics]:
        """Runs and failures by task."""
        return dict(self._statistics)
