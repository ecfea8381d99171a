"""What an open page costs the process that appends."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec

from benchmarks.view.browsing import browser_of, config, served
from remora import Runtime

__all__ = ["Owner", "Window", "measure_owner"]

_SETTLE_S = 1.5
_MESSAGE: dict[str, Any] = {"role": "user", "content": "The cat Figaro likes boxes."}
_MESSAGES = 500  # of a session: none is compacted, which would cost more than its appends
_SHOWN = ("alice", "chat")
_SHOWN_EVERY_S = 0.05  # a message of the session that the page shows
_PLACES = {"session": ("#/alice/chat", "#context-size"), "home": ("#/", "#jobs")}


class Window(msgspec.Struct):
    """What an owner did for some seconds."""

    appends: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Appends a second."""
        return self.appends / self.seconds

    @property
    def cpu_us(self) -> float:
        """Processor time of the process for each append, in microseconds."""
        return self.cpu_s / self.appends * 1e6


class Owner:
    """A process that has a memory open, and appends when it is told to.

    Args:
        directory: of the memory.
        sessions: each has a caller that appends as fast as it can.
    """

    def __init__(self, directory: Path, *, sessions: int) -> None:
        command = [sys.executable, "-m", "benchmarks.view.owner", str(directory), str(sessions)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        self._line()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def append(self, seconds: float) -> Window:
        """What it does in the next seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._line(), type=Window)


async def own(directory: Path, sessions: int) -> None:
    """The process: each line of its input is a number of seconds to append for."""
    async with Runtime(directory, config=config()) as runtime:
        count, end = 0, 0.0

        async def append(user: str) -> None:
            nonlocal count
            while time.perf_counter() < end:
                chat = runtime.session(user, f"chat {time.time_ns()}")
                for _ in range(_MESSAGES):
                    await chat.append(_MESSAGE)
                    count += 1
                    if time.perf_counter() >= end:
                        break

        async def append_shown() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await runtime.session(*_SHOWN).append(_MESSAGE)
                count += 1
                await anyio.sleep(_SHOWN_EVERY_S)

        if sessions:
            await runtime.session(*_SHOWN).append(_MESSAGE)
        print("open", flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            begun, cpu = time.perf_counter(), time.process_time()
            count, end = 0, begun + float(line)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append_shown)
                for number in range(sessions):
                    tasks.start_soon(append, f"user {number}")
            took = time.perf_counter() - begun
            window = Window(count, took, time.process_time() - cpu)
            print(msgspec.json.encode(window).decode(), flush=True)


def measure_owner(pairs: int, seconds: float, sessions: int, shown: str) -> dict[str, Any]:
    """Rates and processor time with and without an open page.

    Args:
        pairs: of windows, one with the page, one without.
        seconds: of each window.
        sessions: that are appended to at the same time.
        shown: ``session`` or ``home``.
    """
    closed: list[Window] = []
    opened: list[Window] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        directory = Path(folder, "memory")
        owner = stack.enter_context(Owner(directory, sessions=sessions))
        owner.append(_SETTLE_S)
        address = stack.enter_context(served(directory))
        browser = stack.enter_context(browser_of())
        page = browser.new_page()
        page.goto(address)
        part, seen = _PLACES[shown]
        home = address.partition("?")[0]
        for pair in range(pairs):
            for visible in (True, False) if pair % 2 else (False, True):
                page.goto("about:blank")
                if visible:
                    page.goto(home + part)
                    page.wait_for_selector(seen)
                owner.append(_SETTLE_S)
                (opened if visible else closed).append(owner.append(seconds))
    return {
        "shown": shown,
        "pairs": pairs,
        "seconds": seconds,
        "appends_per_s": _spread([one.rate for one in closed]),
        "cpu_us_per_append": _spread([one.cpu_us for one in closed]),
        "rate_ratio": _ratios([one.rate for one in opened], [one.rate for one in closed]),
        "cpu_ratio": _ratios([one.cpu_us for one in opened], [one.cpu_us for one in closed]),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _ratios(opened: list[float], closed: list[float]) -> dict[str, float]:
    """Of the pairs: with the page, by without."""
    return _spread([one / other for one, other in zip(opened, closed, strict=True)])


if __name__ == "__main__":
    anyio.run(own, Path(sys.argv[1]), int(sys.argv[2]))
