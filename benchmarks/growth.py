"""What operations cost when there is more: processor time, memory and bytes at three sizes.

Each size of each axis runs in a process of its own, on a new directory with the default
configuration, one after the other. Costs are processor time of that process and of those that it
started, work in the background included; peak memory is that of the process. The exponent is the
slope between the smallest and the largest size: 0 costs the same, 1 is linear.

A line names why an operation is linear by nature, where it is. `--check` fails where another one
grows by more than an exponent of `FLAT`, or any by more than `STEEPEST`.

    python -m benchmarks.growth                       # 1, 4 and 16 times; 20 minutes on two cores
    python -m benchmarks.growth --axis users --sizes 1,4 --out growth.jsonl
"""

from __future__ import annotations

import argparse
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec
from rich.console import Console
from rich.progress import track

import remora
from benchmarks.speed.text import role_of, texts

FLAT, STEEPEST = 0.35, 1.1
_AT_ONCE = 200
_READ = "all rows of the user are read into memory"
_SORTED = "the user's rows are sorted by their times"
_REWRITTEN = "files of an eighth of all rows, and the journal, are rewritten"


class Cost(msgspec.Struct, frozen=True):
    """One operation at one size.

    Attributes:
        axis: of what there is more.
        size: how many there are.
        operation: what was done.
        ms: processor time of one, in milliseconds.
        peak_mb: most resident memory while it was done, in megabytes.
        disk_kb: what one added to the directory, in kilobytes.
        linear: why it is linear by nature; empty if it is not.
    """

    axis: str
    size: int
    operation: str
    ms: float
    peak_mb: float
    disk_kb: float
    linear: str = ""


class Trial:
    """A runtime on a directory, and what was measured there."""

    def __init__(self, axis: str, size: int, directory: Path) -> None:
        self.axis, self.size, self.directory = axis, size, directory
        self.costs: list[Cost] = []
        self.texts = texts(seed=size, size=250)
        self.runtime = remora.Runtime(directory)

    def messages(self, count: int, first: int = 0) -> list[dict[str, Any]]:
        pool = len(self.texts)
        return [
            {"role": role_of(number), "content": f"{self.texts[number % pool]} {number}"}
            for number in range(first, first + count)
        ]

    def question(self, number: int) -> str:
        return self.texts[number * 97 % len(self.texts)][:60]

    @contextmanager
    def measured(self, operation: str, count: int = 1, linear: str = "") -> Iterator[None]:
        """Measure `count` times the same operation."""
        _forget_peak()
        disk, began = _bytes_in(self.directory), _processor_s()
        yield
        spent, grown = _processor_s() - began, _bytes_in(self.directory) - disk
        cost = Cost(
            self.axis,
            self.size,
            operation,
            round(1e3 * spent / count, 3),
            round(_peak() / 1e6),
            round(grown / count / 1e3, 1),
            linear,
        )
        self.costs.append(cost)

    async def each(
        self, operation: str, count: int, do: Callable[[int], Awaitable[Any]], linear: str = ""
    ) -> None:
        """Measure it, one after another."""
        with self.measured(operation, count, linear):
            for number in range(count):
                await do(number)

    async def at_once(self, count: int, do: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Do it so often, some at a time."""
        for first in range(0, count, _AT_ONCE):
            async with anyio.create_task_group() as tasks:
                for number in range(first, min(first + _AT_ONCE, count)):
                    tasks.start_soon(do, number)

    async def reopen(self) -> None:
        await self.runtime.aclose()
        self.runtime = remora.Runtime(self.directory)
        with self.measured("open until ready"):
            await self.runtime.start()
            await self.runtime.ready()


# -- axes ------------------------------------------------------------------------------------------


async def messages_of_a_session(trial: Trial) -> None:
    runtime, size = trial.runtime, trial.size
    chat = runtime.session("ann", "long")
    with trial.measured("append 200 messages, in the background too", size // 200):
        for first in range(0, size, 200):
            await chat.append(trial.messages(200, first))
    with trial.measured("settle after it, for 200 messages", size // 200):
        await runtime.settle()
    await trial.each("append one", 50, lambda n: chat.append(trial.messages(1, size + n)))
    await runtime.settle()
    await trial.each("load", 50, lambda _: chat.load())
    await chat.load(query=trial.question(0))
    await trial.each("load with recall", 20, lambda n: chat.load(query=trial.question(n)))
    new = runtime.session("ann", "new")
    await trial.each("recall from another session", 20, lambda n: new.load(query=trial.question(n)))
    await trial.each("history: first page", 20, lambda _: chat.history(limit=100))
    await trial.each("history: one message", 20, lambda _: chat.history(limit=1))
    past = "the buffer of then: messages that came at once were not summarized yet"
    await trial.each("load(at=middle)", 5, lambda _: chat.load(at=size // 2), past)
    await trial.each("session statistics", 20, lambda _: chat.stats())
    user = runtime.user("ann")
    await trial.each("user statistics", 5, lambda _: user.stats(), "it counts rows")
    await trial.reopen()
    chat = trial.runtime.session("ann", "long")
    await trial.each("first load", 1, lambda _: chat.load())
    await trial.each("first load with recall", 1, lambda _: chat.load(query=trial.question(3)))


async def sessions_of_a_user(trial: Trial) -> None:
    runtime, size = trial.runtime, trial.size
    user = runtime.user("ann")

    async def talk(number: int) -> None:
        await user.session(f"s{number:06}").append(trial.messages(3, 3 * number))

    with trial.measured("append three messages to a new session", size):
        await trial.at_once(size, talk)
    new = user.session("new")
    await trial.each(
        "recall before it is indexed, and indexing what it found",
        1,
        lambda n: new.load(query=trial.question(n)),
        "it has all of it indexed",
    )

    async def flush(number: int) -> None:
        await user.session(f"s{number:06}").flush()

    with trial.measured("flush and index a session", size):
        await trial.at_once(size, flush)
        await runtime.settle()
    await trial.each("first recall", 1, lambda _: user.recall(trial.question(99)), _READ)
    await trial.each("recall", 20, lambda n: user.recall(trial.question(n)))
    await trial.each("load with recall", 20, lambda n: new.load(query=trial.question(n)))
    orders: tuple[Literal["newest", "name"], ...] = ("newest", "name")
    for order in orders:
        page = partial(user.sessions, limit=50, order=order)
        listed = await user.sessions(order=order)
        last = partial(page, after=listed[-51].cursor)
        for which, ask in (("first", page), ("last", last)):
            with trial.measured(f"sessions: {which} page by {order}", 10):
                for _ in range(10):
                    await ask()
    await trial.each("memories: 50", 5, lambda _: user.memories(limit=50), _SORTED)
    with trial.measured("forget a session, in a row of 10", 10, _REWRITTEN):
        for number in range(10):
            await user.session(f"s{number:06}").forget()
        await runtime.retry_erasures()
    half = 3 * size // 2
    await trial.each("prune half", 1, lambda _: user.prune(keep=half), "it removes half of them")
    await trial.each("forget the user", 1, lambda _: user.forget(), "it removes all of them")


class Crowd:
    """Users with a session of four messages each."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    async def talk(self, number: int) -> None:
        session = self._trial.runtime.session(f"u{number}", "s")
        await session.append(self._trial.messages(4, 4 * number))

    async def flush(self, number: int) -> None:
        await self._trial.runtime.session(f"u{number}", "s").flush()


async def users(trial: Trial) -> None:
    runtime, size, crowd = trial.runtime, trial.size, Crowd(trial)
    with trial.measured("append four messages of a new user", size):
        await trial.at_once(size, crowd.talk)
    with trial.measured("flush and index a user", size):
        await trial.at_once(size, crowd.flush)
        await runtime.settle()
    await trial.each("a new user's append", 20, lambda n: crowd.talk(size + n))
    some = runtime.session("u1", "s")
    await trial.each("load with recall", 20, lambda n: some.load(query=trial.question(n)))
    await trial.reopen()


async def killed_users(trial: Trial) -> None:
    """The process was killed when index jobs of four messages of each waited."""
    await trial.runtime.aclose()
    command = [sys.executable, "-m", "benchmarks.growth", "--killed"]
    await anyio.run_process([*command, str(trial.size), str(trial.directory)], check=False)
    await trial.reopen()
    with trial.measured("index a user after a kill", trial.size):
        await trial.runtime.settle()


async def _die(size: int, directory: Path) -> None:
    trial = Trial("killed", size, directory)
    await trial.runtime.start()
    crowd = Crowd(trial)
    await trial.at_once(size, crowd.talk)
    await trial.at_once(size, crowd.flush)
    os.kill(os.getpid(), signal.SIGKILL)


async def rows_of_everybody(trial: Trial) -> None:
    """Fifty messages of each user; then some are forgotten."""
    runtime, size = trial.runtime, trial.size // 50

    async def talk(number: int) -> None:
        session = runtime.session(f"u{number}", "s")
        await session.append(trial.messages(50, 50 * number))
        await session.flush()

    await trial.at_once(size, talk)
    await runtime.settle()

    async def forget(number: int) -> None:
        await runtime.user(f"u{number}").forget()

    async def whole(first: int, count: int) -> None:
        for number in range(first, first + count):
            await forget(number)
        await runtime.retry_erasures()

    await trial.each("forget a user, alone", 1, lambda _: whole(0, 1), _REWRITTEN)
    row = min(size // 2, 100)
    with trial.measured("forget a user, in a row of 100", row):
        await whole(1, row)

    async def delete(number: int) -> None:
        chat = runtime.session(f"u{row + 1 + number}", "s")
        await chat.delete(await chat.history(limit=1))

    await trial.each("delete a message", 10, delete)
    await trial.each("erase what was deleted", 1, lambda _: runtime.retry_erasures(), _REWRITTEN)


async def memories_of_a_user(trial: Trial) -> None:
    runtime, size = trial.runtime, trial.size
    user = runtime.user("ann")

    async def remember(number: int) -> None:
        await user.remember(f"{trial.texts[number % len(trial.texts)][:120]} {number}")

    with trial.measured("remember one, and index it", size):
        await trial.at_once(size, remember)
        await runtime.settle()
    await trial.each("memories: 50", 5, lambda _: user.memories(limit=50), _SORTED)
    await trial.each("remembered: first page", 10, lambda _: user.remembered(limit=50))
    await trial.each("first recall", 1, lambda _: user.recall(trial.question(99)), _READ)
    await trial.each("recall", 20, lambda n: user.recall(trial.question(n)))
    found = await user.remembered(limit=50)
    await trial.each("delete one", 10, lambda n: user.delete(found[n].id))
    many = [f"{trial.texts[n % len(trial.texts)][:100]} {n}" for n in range(size)]
    with trial.measured("learn one", size):
        for first in range(0, size, 50):
            async with anyio.create_task_group() as tasks:
                for text in many[first : first + 50]:
                    tasks.start_soon(user.learn, text)
    nature = "all items are compared, up to working.max_memory_mb"
    await trial.each(
        "search working memory", 20, lambda n: user.search_working(trial.question(n)), nature
    )


async def characters_of_a_message(trial: Trial) -> None:
    """Twenty messages of so many characters."""
    runtime, size = trial.runtime, trial.size
    chat = runtime.session("ann", "files")
    whole = " ".join(trial.texts)
    rng = random.Random(size)

    def text() -> str:
        start = rng.randrange(len(whole) - 1)
        times = math.ceil((start + size) / len(whole))
        return (whole * times)[start : start + size]

    said: list[dict[str, Any]] = [{"role": "user", "content": text()} for _ in range(20)]
    nature = "its tokens are counted"
    await trial.each("append one", 20, lambda n: chat.append(said[n]), nature)
    with trial.measured("settle after it, for one", 20, "it is read once"):
        await runtime.settle()
    new = runtime.session("ann", "new")
    await trial.each("load with recall", 5, lambda n: new.load(query=trial.question(n)))
    await trial.each("history: one message", 5, lambda _: chat.history(limit=1), "it is read")
    await trial.reopen()
    new = trial.runtime.session("ann", "new")
    await trial.each("first load with recall", 1, lambda _: new.load(query=trial.question(9)))


AXES: dict[str, tuple[int, Callable[[Trial], Awaitable[None]]]] = {
    "messages": (2_500, messages_of_a_session),
    "sessions": (250, sessions_of_a_user),
    "users": (500, users),
    "killed": (625, killed_users),
    "rows": (6_250, rows_of_everybody),
    "memories": (750, memories_of_a_user),
    "characters": (20_000, characters_of_a_message),
}


# -- measuring -------------------------------------------------------------------------------------


def _processor_s() -> float:
    """Of this process, of those that it waited for, and of its children that run."""
    used = [resource.getrusage(one) for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) + sum(_children_s())


def _children_s() -> Iterator[float]:
    tick = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc/self/task").iterdir():
        try:
            pids = (path / "children").read_text().split()
        except OSError:
            continue
        for pid in pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            yield (int(fields[11]) + int(fields[12])) / tick


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return 1_024 * int(line.split()[1])
    raise OSError("/proc/self/status has no VmHWM")


def _bytes_in(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total


async def _run_trial(axis: str, size: int, directory: Path) -> list[Cost]:
    trial = Trial(axis, size, directory)
    await trial.runtime.start()
    await trial.runtime.ready()
    try:
        await AXES[axis][1](trial)
    finally:
        await trial.runtime.aclose()
    return trial.costs


def _run_apart(axis: str, size: int) -> list[Cost]:
    """A trial in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "benchmarks.growth", "--trial", axis, str(size), directory]
        said = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return msgspec.json.decode(said, type=list[Cost])


# -- telling ---------------------------------------------------------------------------------------


class Growth(msgspec.Struct, frozen=True):
    """An operation at all sizes."""

    costs: tuple[Cost, ...]

    @property
    def exponent(self) -> float:
        first, last = self.costs[0], self.costs[-1]
        if len(self.costs) < 2 or not first.ms:
            return 0.0
        return math.log(max(last.ms, 1e-3) / first.ms) / math.log(last.size / first.size)

    @property
    def linear(self) -> str:
        return self.costs[0].linear

    @property
    def steep(self) -> bool:
        return self.exponent > (STEEPEST if self.linear else FLAT)


def gathered(costs: Sequence[Cost]) -> list[Growth]:
    by_operation: dict[tuple[str, str], list[Cost]] = defaultdict(list)
    for cost in costs:
        by_operation[cost.axis, cost.operation].append(cost)
    return [
        Growth(tuple(sorted(found, key=lambda one: one.size))) for found in by_operation.values()
    ]


def lines_of(rows: Sequence[Growth]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| of what | operation | ms of one | peak MB | kB of one | exponent | |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        first = row.costs[0]
        axis = f"{', '.join(f'{one.size:,}' for one in row.costs)} {first.axis}"
        told = [
            " / ".join(f"{value:{form}}" for value in values)
            for values, form in (
                ([one.ms for one in row.costs], ",.2f"),
                ([one.peak_mb for one in row.costs], ",.0f"),
                ([one.disk_kb for one in row.costs], ",.1f"),
            )
        ]
        mark = "**steep**" if row.steep else row.linear
        cells = (axis, first.operation, *told, f"{row.exponent:.2f}", mark)
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--axis", action="append", choices=AXES, help="only this one; repeatable")
    parser.add_argument("--sizes", default="1,4,16", help="times the smallest size")
    parser.add_argument("--out", type=Path, help="append a line of JSON for each cost")
    parser.add_argument("--check", action="store_true", help="fail if an operation is steep")
    parser.add_argument("--trial", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--killed", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trial:
        axis, size, directory = arguments.trial
        costs = anyio.run(_run_trial, axis, int(size), Path(directory))
        sys.stdout.write(msgspec.json.encode(costs).decode())
        return 0
    if arguments.killed:
        anyio.run(_die, int(arguments.killed[0]), Path(arguments.killed[1]))
    times = [int(one) for one in arguments.sizes.split(",")]
    trials = [(axis, by * AXES[axis][0]) for axis in arguments.axis or AXES for by in times]
    console, found = Console(), list[Cost]()
    for axis, size in track(trials, description="measuring", console=console):
        began = time.perf_counter()
        costs = _run_apart(axis, size)
        console.print(f"{axis} {size:,}: {time.perf_counter() - began:.0f} s")
        found += costs
        if arguments.out:
            with arguments.out.open("a") as file:
                file.writelines(msgspec.json.encode(one).decode() + "\n" for one in costs)
    rows = gathered(found)
    sys.stdout.writelines(f"{line}\n" for line in lines_of(rows))
    steep = [row for row in rows if row.steep]
    return int(arguments.check and bool(steep))


if __name__ == "__main__":
    sys.exit(main())
