"""What each iteration of an event loop costs."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["Held", "MeasuredSelector", "run_measured"]


class Held(msgspec.Struct):
    """The longest iterations since `MeasuredSelector.reset`, and how many there were.

    Attributes:
        wall_s: the longest, from when the selector returned until it is asked again.
        cpu_s: the most processor time that the loop's thread used in one: unlike `wall_s` it does
            not grow with the load of the machine.
        late_s: how much later than asked the selector returned, at most: while a thread held the
            interpreter's lock, for instance.
        iterations: how many.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    late_s: float = 0.0
    iterations: int = 0


class MeasuredSelector(selectors.DefaultSelector):
    """The selector of an event loop, which sees where each iteration begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Held()
        self.on_iteration: Callable[[float], Any] | None = None
        """Called at the end of each with its processor time."""
        self._since, self._since_cpu = time.perf_counter(), time.thread_time()

    def reset(self) -> None:
        """Forget what was measured."""
        self.held = Held()

    def select(self, timeout: float | None = None) -> Any:
        """As the selector's own."""
        held, asked = self.held, time.perf_counter()
        cpu_s = time.thread_time() - self._since_cpu
        held.iterations += 1
        held.wall_s = max(held.wall_s, asked - self._since)
        held.cpu_s = max(held.cpu_s, cpu_s)
        if self.on_iteration is not None:
            self.on_iteration(cpu_s)
        events = super().select(timeout)
        self._since, self._since_cpu = time.perf_counter(), time.thread_time()
        if timeout is not None:
            held.late_s = max(held.late_s, self._since - asked - max(timeout, 0))
        return events


def run_measured(main: Callable[[MeasuredSelector], Any]) -> None:
    """Run ``main(selector)`` on an event loop that is measured."""
    selector = MeasuredSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(main(selector))
