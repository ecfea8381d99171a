"""One user with a very long conversation: indexing, recall, load and erasure, and their memory.

    python -m benchmarks.long_conversation [--messages 165000] [--questions 30] [--dir DIR]
        [--freeze] [--json FILE] [--smoke]

One session is handed `--messages` messages, 500 at a time. It then measures:

  indexed        messages divided by the time until long-term memory has all their rows.
  settled        from the last `append` until `settle` returns: summaries are written and the rows'
                 words and vectors are indexed as well.
  during         a `load(query)` every two seconds while messages are indexed.
  recall, load   questions that were not asked before, one after the other.
  after writing  each after an `append` of one message that was indexed.
  forget         the user is forgotten; meanwhile another user appends a message every 10 ms.

`--freeze` calls `gc.freeze()` when everything is loaded, as docs/how-to/deployment.md advises.
`late` counts loads in which long-term memory missed its deadline. Memory is resident memory of the
whole process, whose peak the kernel reports. On a shared machine only the ratios within a run
compare.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import logging
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import remora
from benchmarks.long_term import Texts
from benchmarks.shared import resident

AT_ONCE = 500
APPEND_EVERY_S = 0.01
LOAD_EVERY_S = 2.0
BUDGET = 8_000  # tokens of a load
USER = "long"


class Conversation:
    """Messages by number, and questions about them."""

    def __init__(self, seed: int = 1) -> None:
        self._texts = Texts(seed)
        self._rng = random.Random(seed)
        self._numbers = itertools.count()

    def message(self) -> dict[str, Any]:
        number = next(self._numbers)
        words = self._texts.words(10)
        role = "assistant" if number % 2 else "user"
        about = f"topic {number % 997} and the harbour of town {number % 31}"
        return {"role": role, "content": f"message {number} about {about}: {words}"}

    def question(self) -> str:
        words = " ".join(self._texts.message().split()[:3])
        return f"what about topic {self._rng.randrange(997)} in the harbour, {words}?"


class LoopLag:
    """The longest time for which the event loop was held."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            self.longest_s = max(self.longest_s, time.perf_counter() - began - 0.005)


class CollectorPauses:
    """The longest time that Python's garbage collector took, with every thread waiting."""

    def __init__(self) -> None:
        self.longest_s = self._began = 0.0

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        """See `gc.callbacks`."""
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.longest_s = max(self.longest_s, time.perf_counter() - self._began)


async def timed(call: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


def summary(seconds: list[float]) -> dict[str, float]:
    """The median and the longest, in milliseconds."""
    return {"p50_ms": statistics.median(seconds) * 1e3, "max_ms": max(seconds) * 1e3}


class Run:
    """A run of the benchmark."""

    def __init__(self, runtime: remora.Runtime, arguments: argparse.Namespace) -> None:
        self.figures: dict[str, Any] = {"messages": arguments.messages}
        self._runtime = runtime
        self._count = arguments.messages
        self._questions = arguments.questions
        self._talk = Conversation()
        self._session = runtime.session(USER, "conversation")
        self._late = 0

    async def all(self, progress: Progress) -> None:
        """Measure everything."""
        await self._index(progress)
        await self._ask("recall", self._recall, progress)
        await self._ask("load", self._load, progress)
        await self._ask("recall after writing", self._recall, progress, write=True)
        await self._ask("load after writing", self._load, progress, write=True)
        self.figures["late"] = self._late
        self.figures["rows"] = (await self._runtime.long_term_statistics()).rows
        self.figures["rss_mb"] = resident() >> 20
        await self._forget(progress)

    async def _index(self, progress: Progress) -> None:
        task = progress.add_task("index", total=self._count)
        began = time.perf_counter()
        loads: list[float] = []
        loading = asyncio.create_task(self._load_meanwhile(loads))
        for _ in range(0, self._count, AT_ONCE):
            await self._session.append([self._talk.message() for _ in range(AT_ONCE)])
            progress.advance(task, AT_ONCE)
        handed_over = time.perf_counter() - began
        await self._session.flush()
        while (await self._runtime.long_term_statistics()).rows < self._count:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        written = time.perf_counter() - began
        await self._runtime.settle()
        seconds = time.perf_counter() - began
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        self.figures["appended_per_s"] = self._count / handed_over
        self.figures["settled_s"] = seconds - handed_over
        self.figures["indexed_per_s"] = self._count / written
        self.figures["load during"] = summary(loads or [0.0])
        self.figures["late during"], self._late = self._late, 0

    async def _load_meanwhile(self, seconds: list[float]) -> None:
        while True:
            seconds.append(await timed(self._load(self._talk.question())))
            await asyncio.sleep(LOAD_EVERY_S)

    async def _recall(self, question: str) -> None:
        await self._runtime.user(USER).recall(question)

    async def _load(self, question: str) -> None:
        context = await self._session.load(query=question, max_tokens=BUDGET)
        self._late += context.sources["long_term"].status == "late"

    async def _ask(
        self,
        name: str,
        ask: Callable[[str], Awaitable[None]],
        progress: Progress,
        *,
        write: bool = False,
    ) -> None:
        task = progress.add_task(name, total=self._questions)
        seconds = []
        for _ in range(self._questions):
            if write:
                await self._session.append(self._talk.message())
                await self._session.flush()
                await self._runtime.settle()
            seconds.append(await timed(ask(self._talk.question())))
            progress.advance(task)
        self.figures[name] = summary(seconds)

    async def _forget(self, progress: Progress) -> None:
        task = progress.add_task("forget", total=None)
        forgetting = asyncio.create_task(timed(self._runtime.user(USER).forget()))
        other = self._runtime.session("other", "meanwhile")
        appends = []
        while not forgetting.done():
            appends.append(await timed(other.append(self._talk.message())))
            await asyncio.sleep(APPEND_EVERY_S)
        self.figures["forget_s"] = await forgetting
        self.figures["append during forget"] = summary(appends)
        progress.update(task, total=1, completed=1)


async def measure(arguments: argparse.Namespace, place: Path) -> dict[str, Any]:
    lag, pauses = LoopLag(), CollectorPauses()
    with Progress(console=Console(stderr=True)) as progress:
        async with remora.Runtime(place) as runtime:
            await runtime.ready()
            if arguments.freeze:
                gc.collect()
                gc.freeze()
            gc.callbacks.append(pauses)
            watch = asyncio.create_task(lag.run())
            run = Run(runtime, arguments)
            await run.all(progress)
            watch.cancel()
    run.figures["collector_pause_ms"] = pauses.longest_s * 1e3
    run.figures["loop_lag_ms"] = lag.longest_s * 1e3
    run.figures["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return run.figures


def render(figures: dict[str, Any]) -> Table:
    table = Table("", "median or value", "longest", title=f"{figures['messages']:,} messages")
    for name, value in figures.items():
        if isinstance(value, dict):
            table.add_row(name, f"{value['p50_ms']:.1f} ms", f"{value['max_ms']:.1f} ms")
        else:
            table.add_row(name, f"{value:,.1f}" if isinstance(value, float) else f"{value:,}", "")
    return table


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=165_000)
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--dir", type=Path, help="where the memory directory is made")
    parser.add_argument("--freeze", action="store_true", help="call gc.freeze() when it is loaded")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--smoke", action="store_true", help="only see that it works")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.messages, arguments.questions = 2_000, 3
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as place:
        figures = asyncio.run(measure(arguments, Path(place) / "memory"))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    Console().print(render(figures))


if __name__ == "__main__":
    main()
