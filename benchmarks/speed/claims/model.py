"""Append and load while every session waits for a model.

Two runtimes on one disk, in one process, take the same load in turn, a few seconds each (A B B A A
B, after a B to warm up): 256 sessions, appends and loads at a steady rate each. It is an open loop:
each begins when it is due, and its latency counts from then; 600 of each a second are about half of
what two cores take. Sessions begin each turn with one to eight messages. In A, sessions are
compacted when they exceed 700 tokens, down to 350, and the summary takes 2 s (a sleep, as waiting
for an endpoint is), with as many at once as there are sessions; in these 2 s come the next 350
tokens. In B the limit is so high that nothing is compacted. Ratios are of the two p99; `summaries`
says how many there were.
"""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import anyio.abc

from benchmarks.speed.claim import Case
from benchmarks.speed.scale import in_turn, messages
from benchmarks.speed.text import percentile
from remora import Config, Runtime
from remora.models.ports import Line

NAME = "model"
TITLE = "A model in the way"
WORK = (
    "Appends and loads at a steady rate on 256 sessions, which are compacted all the time with a "
    "model that takes 2 s. A ratio is the p99 divided by the p99 without compaction."
)
CONTESTANTS = ("remora", "remora-bare", "remora-uvloop")
FASTER = {"remora-bare": "it indexes nothing", "remora-uvloop": "its event loop is written in C"}

_MODEL_S = 2.0
_SHOWN_TOKENS = 1_000
_AT_FIRST = 8
Latencies = dict[str, list[float]]


def cases(smoke: bool) -> Sequence[Case]:
    sizes: dict[str, int | float] = (
        {"sessions": 16, "per_s": 100, "seconds": 0.3, "model_s": 0.2}
        if smoke
        else {"sessions": 256, "per_s": 600, "seconds": 5.0, "model_s": _MODEL_S}
    )
    return [Case(NAME, "every session", sizes, least_repeats=3)]


class _Slow:
    """A summarizer that takes its time, and none of the interpreter's."""

    name = "slow"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.summaries = 0

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        await anyio.sleep(self.seconds)
        self.summaries += 1
        before = len(previous or "")
        return f"{len(lines)} messages, within {max_tokens} tokens, after {before} characters"


def _config(limit: int, sessions: int, long_term: bool) -> Config:
    return Config.from_dict(
        {
            "long_term": {"enabled": long_term},
            "buffer": {"token_limit": limit, "summary_tokens": 200},
            "supervisor": {"summarize_concurrency": sessions},
        }
    )


class _Load:
    """Appends and loads on one runtime."""

    def __init__(self, runtime: Runtime, case: Case, seed: int) -> None:
        self.latencies: Latencies = {"append": [], "load": []}
        self._handles = [
            runtime.session(f"user-{n}", "chat") for n in range(int(case.sizes["sessions"]))
        ]
        self._pool = messages(seed)
        self._rng = random.Random(seed)
        self._places = itertools.count()
        self._per_s = case.sizes["per_s"]
        self._seconds = case.sizes["seconds"]

    async def begin_anew(self) -> None:
        """Every session has the same few messages, and nothing is compacted."""

        async def anew(number: int) -> None:
            await self._handles[number].clear()
            await self._handles[number].append(self._pool[: 1 + number % _AT_FIRST])

        await in_turn(len(self._handles), 64, anew)

    async def _one(self, what: str, due: float, work: Callable[[], Awaitable[object]]) -> None:
        await work()
        self.latencies[what].append(time.perf_counter() - due)

    def _start(self, tasks: anyio.abc.TaskGroup, due: float) -> None:
        place = next(self._places)
        handle = self._handles[place % len(self._handles)]
        append = functools.partial(handle.append, self._pool[place % len(self._pool)])
        tasks.start_soon(self._one, "append", due, append)
        other = self._rng.choice(self._handles)
        tasks.start_soon(
            self._one, "load", due, functools.partial(other.load, max_tokens=_SHOWN_TOKENS)
        )

    async def run(self) -> None:
        begun, number = time.perf_counter(), 0
        async with anyio.create_task_group() as tasks:
            while number < self._seconds * self._per_s:
                while begun + number / self._per_s <= time.perf_counter():
                    self._start(tasks, begun + number / self._per_s)
                    number += 1
                await anyio.sleep(0.001)


async def _measure(directory: Path, case: Case, seed: int, long_term: bool) -> dict[str, float]:
    sessions = int(case.sizes["sessions"])
    slow = _Slow(case.sizes["model_s"])
    configs = [_config(limit, sessions, long_term) for limit in (_SHOWN_TOKENS, 1_000_000)]
    async with (
        Runtime(directory / "compacting", config=configs[0], summarizer=slow) as compacting,
        Runtime(directory / "plain", config=configs[1], summarizer=slow) as plain,
    ):
        if long_term:
            for runtime in (compacting, plain):
                await runtime.internals.long_term()
        loads = [_Load(compacting, case, seed), _Load(plain, case, seed)]
        for which in (1, 0, 0, 1, 1, 0, 0, 1):
            await loads[which].begin_anew()
            await loads[which].run()
            if len(loads[1].latencies["append"]) and not loads[0].latencies["append"]:
                loads[1].latencies = {"append": [], "load": []}  # the first turn is for warming up
    found: dict[str, float] = {}
    for what in ("append", "load"):
        with_folds, without = (percentile(one.latencies[what], 0.99) * 1e3 for one in loads)
        found |= {
            f"{what}_ratio": with_folds / without,
            f"{what}_p99_ms": with_folds,
            f"{what}_unfolded_p99_ms": without,
        }
    for what in ("append", "load"):
        found |= {f"{what}_p50_ms": percentile(loads[0].latencies[what], 0.5) * 1e3}
        found |= {f"{what}_unfolded_p50_ms": percentile(loads[1].latencies[what], 0.5) * 1e3}
    return found | {"summaries": slow.summaries}


def measure(
    contestant: str,
    case: Case,
    directory: Path,
    seed: int,
    smoke: bool,  # noqa: ARG001
) -> dict[str, float]:
    return anyio.run(
        _measure,
        directory,
        case,
        seed,
        contestant != "remora-bare",
        backend_options={"use_uvloop": contestant == "remora-uvloop"},
    )
