"""Waiting without a limit in real time, so that a busy machine fails no test.

A test is ended when *nothing moves*: for `quiet_limit` seconds its process and their descendants
together ran, waited for a processor or waited for a disk for less than a tenth of the time. A test
that waits for what never comes is quiet; one that waits for its turn on a busy machine is not. A
test that never ends although it is busy is ended by `processor_limit`, seconds of processor time.
Both are in pyproject.toml; ``@pytest.mark.limit(600)`` gives one test another processor limit.

On Linux, `/proc` has the figures. Elsewhere only the test's own process is seen, and the limits are
ten times as long.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from inspect import isawaitable
from typing import Any, TypeVar, overload

import anyio

__all__ = ["WATCH", "Stuck", "Watch", "until", "wait_until"]

T = TypeVar("T")
_LINUX = sys.platform == "linux"
_MOVING = 0.1
_LOOK_S = 1.0
_POLL_S, _SLOW_POLL_S = 0.01, 0.2
_QUIET_S = 5.0  # from which on polls are rare, so that they are no movement on a busy machine
_TICK_S = 1 / os.sysconf("SC_CLK_TCK") if _LINUX else 1.0


class Stuck(AssertionError):
    """Nothing moved, or the processor time of a test is used up."""


class Watch:
    """A thread that measures, once a second, whether this process and its descendants move.

    Attributes:
        quiet_s: seconds since something moved.
        quiet_limit_s: after which quiet `end` is called.
        processor_limit_s: after which processor time `end` is called.
    """

    def __init__(self) -> None:
        self.quiet_s = 0.0
        self.quiet_limit_s, self.processor_limit_s = 60.0, 300.0
        self._end: Callable[[str], None] | None = None
        self._began_s = 0.0
        self._thread: threading.Thread | None = None

    def set_limits(self, quiet_s: float, processor_s: float) -> None:
        """Set both limits, as they are on Linux."""
        times = 1 if _LINUX else 10
        self.quiet_limit_s, self.processor_limit_s = times * quiet_s, times * processor_s

    def begin(self, end: Callable[[str], None], processor_limit_s: float | None = None) -> None:
        """Watch one test; call `end` with a reason, once a second, from when it is over a limit."""
        self._limit_s = processor_limit_s or self.processor_limit_s
        self.quiet_s, self._began_s, self._end = 0.0, processor_s(), end
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watch of tests", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """End no test until the next one begins: this one is over, or in a debugger."""
        self._end = None

    def _run(self) -> None:
        at_s, before = time.monotonic(), dict(_activity())
        while True:
            time.sleep(_LOOK_S)
            now_s, now = time.monotonic(), dict(_activity())
            # a machine that was suspended was not quiet for all that time
            elapsed_s = min(now_s - at_s, 2 * _LOOK_S)
            moved_s = sum(max(0.0, spent - before.get(task, 0.0)) for task, spent in now.items())
            self.quiet_s = 0.0 if moved_s >= _MOVING * elapsed_s else self.quiet_s + elapsed_s
            at_s, before = now_s, now
            end = self._end
            if end is None:
                continue
            if self.quiet_s >= self.quiet_limit_s:
                end(f"nothing moved for {self.quiet_s:.0f} s")
            elif processor_s() - self._began_s >= self._limit_s:
                end(f"{self._limit_s:.0f} s of processor time are used up")


WATCH = Watch()
"""That of this process."""


@overload
async def until(condition: Callable[[], Awaitable[T | None]], what: str = "") -> T: ...
@overload
async def until(condition: Callable[[], T | None], what: str = "") -> T: ...
async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Return the first true value of a condition, which is asked a hundred times a second.

    Raises:
        Stuck: nothing moves any more.
    """
    while True:
        answer = condition()
        value = await answer if isawaitable(answer) else answer
        if value:
            return value
        await anyio.sleep(_next_poll_s(what))


def wait_until(condition: Callable[[], T | None], what: str = "") -> T:
    """`until`, for a test without a loop."""
    while not (value := condition()):
        time.sleep(_next_poll_s(what))
    return value


def _next_poll_s(what: str) -> float:
    # before the test itself is ended, so that the reason is told
    if WATCH.quiet_s >= WATCH.quiet_limit_s - 2 * _LOOK_S:
        raise Stuck(f"nothing moves, and it is not so: {what or 'what the test waits for'}")
    return _POLL_S if WATCH.quiet_s < _QUIET_S else _SLOW_POLL_S


def processor_s() -> float:
    """Processor time of this process and its descendants so far, those that ended included."""
    if not _LINUX:
        return time.process_time()
    return sum(sum(map(int, fields[11:15])) for fields in _family().values()) * _TICK_S


def _activity() -> Iterator[tuple[str, float]]:
    """Of each thread of the family: seconds that it ran, or waited for a processor or a disk."""
    if not _LINUX:
        yield "", time.process_time()
        return
    own = str(threading.get_native_id())  # the watch's
    for pid in _family():
        with suppress(OSError):  # it has ended
            for task in _numbers(f"/proc/{pid}/task"):
                if task == own:
                    continue
                with suppress(OSError):
                    fields = _fields(f"/proc/{pid}/task/{task}/stat")
                    yield task, sum(map(int, fields[11:13])) * _TICK_S
                    if fields[0] == "D":
                        yield f"{task} {time.monotonic()}", _LOOK_S
                with suppress(OSError):  # a kernel may have none
                    waited = _read(f"/proc/{pid}/task/{task}/schedstat").split()[1]
                    yield f"{task} waited", int(waited) / 1e9


def _family() -> dict[str, list[str]]:
    """This process and its descendants: the fields of `/proc/PID/stat` from the state on."""
    every: dict[str, list[str]] = {}
    children: defaultdict[str, list[str]] = defaultdict(list)
    for pid in _numbers("/proc"):
        with suppress(OSError):
            every[pid] = _fields(f"/proc/{pid}/stat")
            children[every[pid][1]].append(pid)
    found, ahead = {}, [str(os.getpid())]
    while ahead:
        pid = ahead.pop()
        found[pid] = every[pid]
        ahead += children[pid]
    return found


def _numbers(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.name.isdecimal()]


def _fields(stat: str) -> list[str]:
    return _read(stat).rpartition(") ")[2].split()


def _read(path: str) -> str:
    with open(path, errors="replace") as file:  # noqa: PTH123 - tests count the paths that there are
        return file.read()
