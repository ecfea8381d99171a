"""Periodic work: each task in a loop of its own; a failure is logged, and the loop goes on."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable

import anyio
import anyio.abc
import msgspec

from remora.errors import InvalidInput, StorageError
from remora.logging import get_logger
from remora.runtime.clock import Clock
from remora.runtime.guard import call_guarded
from remora.runtime.meters import OutageLog

_logger = get_logger(__name__)


class TaskStatistics(msgspec.Struct, frozen=True):
    """Counters of one periodic task, and how long its last run took."""

    runs: int = 0
    failures: int = 0
    last_s: float = 0.0


class Schedule:
    """A set of periodic tasks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[str, tuple[float, Callable[[], Awaitable[object]]]] = {}
        self._statistics: dict[str, TaskStatistics] = {}
        self._sleeps: dict[str, anyio.CancelScope] = {}

    def every(self, seconds: float, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work` `seconds` after `start`, and `seconds` after each run ended."""
        self._tasks[name] = (seconds, work)
        self._statistics[name] = TaskStatistics()

    def change(self, name: str, seconds: float) -> None:
        """Change a task's interval; it runs at once if the new one is over already.

        Raises:
            InvalidInput: there is no such task, or the interval is not a positive number.
        """
        check_change(name, seconds, self._tasks)
        self._tasks[name] = (seconds, self._tasks[name][1])
        if sleep := self._sleeps.get(name):
            sleep.cancel()

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the loops; they end when the task group is cancelled."""
        for name in self._tasks:
            tasks.start_soon(self._loop, name, name=f"remora.schedule.{name}")

    async def _loop(self, name: str) -> None:
        ended = self._clock.monotonic()
        outage = OutageLog(
            _logger,
            "scheduled_task_failed",
            ended="scheduled_task_succeeds_again",
            monotonic=self._clock.monotonic,
        )
        while True:
            seconds, work = self._tasks[name]
            with anyio.CancelScope() as sleep:
                self._sleeps[name] = sleep
                await self._clock.sleep(max(ended + seconds - self._clock.monotonic(), 0.0))
            if sleep.cancelled_caught:
                continue  # its interval has changed
            started, failed = self._clock.monotonic(), 0
            try:
                await call_guarded(work)
            except StorageError as e:
                failed = 1
                outage.fail(e, task=name)
            except Exception:
                failed = 1
                _logger.exception("scheduled_task_failed", task=name)
            else:
                outage.succeed()
            before = self._statistics[name]
            ended = self._clock.monotonic()
            self._statistics[name] = TaskStatistics(
                before.runs + 1, before.failures + failed, ended - started
            )

    def statistics(self) -> dict[str, TaskStatistics]:
        """Counters by task."""
        return dict(self._statistics)


def check_change(name: str, seconds: float, tasks: Iterable[str]) -> None:
    """Check that there is a task of this name, and that its interval may be so long.

    Raises:
        InvalidInput: there is none, or the interval is not a positive number.
    """
    known = tuple(tasks)
    if name not in known:
        raise InvalidInput(f"there is no periodic task {name!r:.80}; there are {', '.join(known)}")
    if not math.isfinite(seconds) or seconds <= 0:
        raise InvalidInput(
            f"the interval of {name} must be a positive number of seconds, not {seconds!r}"
        )
