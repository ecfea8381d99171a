"""Mixed load with faults for as long as wished, on real SQLite and LanceDB.

    python -m benchmarks.lab.soak [--minutes 10] [--loop asyncio|uvloop|both] [--seed N]
        [--kill 0.2] [--dir DIR] [--json FILE]

Users append with keys, load with and without a query, clear, delete, flush, remember, recall, pause
until their sessions are passivated, give up waiting, and are forgotten. During this, commits,
long-term memory, summarizer and embedder are slow, fail, hang, or succeed without an answer
(`benchmarks.lab.soaking.weather`). The acknowledgements are kept outside of the runtime and
compared with what is stored, all the time and after each cycle: histories, contexts, and
long-term memory row by row.

A cycle is: load, no load, checks, erasure of the users of the cycle before, rest. After it there
must be no mail, jobs or live sessions. Descriptors, threads, asyncio tasks, the write-ahead log,
LanceDB's versions and fragments must be back where they began. Event loops alternate every three
cycles; each time a new runtime opens the same directory. The first three cycles on each loop warm
up, and the others must not exceed their maximum. Some users talk in the warm-up only, and their
sessions are checked to the end. Resident memory must not grow: over all later cycles, the median of
the last third may exceed that of the first by at most 10 % and 32 MB. A share of the time,
`--kill`, goes to a child process under load that is killed with SIGKILL again and again
(`benchmarks.killing`). Any violation fails the command.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from benchmarks.killing import KillReport, kill_again_and_again
from benchmarks.lab.soaking.crowd import Crowd, Household
from benchmarks.lab.soaking.scales import Holding, weigh
from benchmarks.lab.soaking.weather import (
    StormyEmbedder,
    StormyJournal,
    StormyStore,
    StormySummarizer,
    Weather,
)
from benchmarks.lab.soaking.witness import Violations
from benchmarks.shared import run
from remora import Config, Runtime
from remora.tokens import HeuristicCounter

__all__ = ["Cycle", "Extent", "Soak"]

SHARDS = 2
STORE = "rows"
"""Not the name of the store that a runtime opens by itself: it would look after that one, too."""
CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "buffer": {"token_limit": 1_200, "summary_tokens": 120},
        "activation": {"idle_s": 1.0},
        "models": {"timeout_s": 3.0},
        "recall": {"hot_mb": 4, "cache": 100},
        "working": {"embedding_cache": 100},
        "supervisor": {"backoff_s": 0.02, "max_backoff_s": 0.5, "breaker_rest_s": 1.0},
        "long_term": {
            "batch_ms": 10,
            "shards": SHARDS,
            "compact_fragments": 8,
            "compact_interval_s": 1.0,
            "keep_versions_s": 2.0,
        },
    }
)
SETTLE_S = 60.0
_AT_REST = ("queued", "waiting_kb", "backlog", "jobs", "live")
_SLACK = {
    "fds": 3,
    "threads": 1,
    "tasks": 0,
    "wal_kb": 4_096,
    "versions": 4 * SHARDS,
    "fragments": 8 * SHARDS,
}
"""By how much a figure may exceed the most of the warm-up: an index that is searched is an open
file.
"""
_MOST = {"stale": 600, "pool": 128}
"""What LanceDB's cache of indices and the pools of threads are bounded by."""
_RSS_SHARE, _RSS_MB = 1.1, 32.0


class Extent(msgspec.Struct, frozen=True):
    """How much of it.

    Attributes:
        load_s: seconds of load in a cycle.
        cycles: before the event loop changes.
        users: that talk in a cycle and are forgotten in the next.
        sessions: of each.
        elders: users who talk while the loops warm up, and are never forgotten.
        mortals: users who are forgotten again and again while they talk.
        calm_s: on average, between two faults of one part.
    """

    load_s: float = 20.0
    cycles: int = 3
    users: int = 10
    sessions: int = 4
    elders: int = 3
    mortals: int = 2
    calm_s: float = 3.0


class Cycle(msgspec.Struct, frozen=True):
    """What came of one cycle.

    Attributes:
        number: from 0.
        loop: the event loop.
        operations: what callers did.
        appends: acknowledged.
        kept: messages that were acknowledged and are to be there, in all sessions.
        refused: answers by error, and callers that gave up.
        faults: met, by part and kind.
        forgotten: erasures.
        holding: what was held in the end.
        seconds: all of it.
    """

    number: int
    loop: str
    operations: int
    appends: int
    kept: int
    refused: dict[str, int]
    faults: dict[str, int]
    forgotten: int
    holding: Holding
    seconds: float


class Soak:
    """A directory, who talks to it, and what is known.

    Args:
        directory: of the runtimes; it is empty.
        seed: of everything that is drawn.
        extent: how much.
        told: told each cycle.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        extent: Extent,
        told: Callable[[Cycle], None] = lambda _: None,
    ) -> None:
        self.violations = Violations()
        self.cycles: list[Cycle] = []
        self._directory = directory
        self._extent = extent
        self._told = told
        self._rng = random.Random(seed)
        self._weather = Weather(self._rng)
        self._elders = self._households("elder", extent.elders)
        self._mortals = self._households("mortal", extent.mortals, mortal=True)
        self._before: list[Household] = []
        self._number = 0
        self._warm: dict[str, dict[str, int]] = {}
        """By event loop, the most that was held while it warmed up."""
        self._measured: list[Cycle] = []

    def _households(self, name: str, count: int, **options: Any) -> list[Household]:
        return [
            Household(f"{name}-{number}", self._extent.sessions, self.violations, **options)
            for number in range(count)
        ]

    async def stretch(self, loop: str, until: float) -> None:
        """Some cycles on the event loop that runs, until then at the latest, in seconds of
        `time.monotonic`; one at least.
        """
        cycles = []
        async with self._opened() as runtime:
            for _ in range(self._extent.cycles):
                cycles.append(await self._cycle(runtime, loop))
                if time.monotonic() >= until:
                    break
        self.cycles += cycles
        if loop in self._warm:
            self._measured += cycles
        else:
            self._warm[loop] = {
                name: max(getattr(cycle.holding, name) for cycle in cycles) for name in _SLACK
            }

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Runtime]:
        self._weather = Weather(self._rng)

        async def journal() -> StormyJournal:
            opened = await StormyJournal.open(self._directory / "journal.db", durability="power")
            assert isinstance(opened, StormyJournal)
            opened.weather = self._weather
            await opened.small()
            return opened

        self._directory.mkdir(parents=True, exist_ok=True)
        store = await StormyStore.open(
            self._directory / STORE, dimension=32, config=CONFIG.long_term
        )
        assert isinstance(store, StormyStore)
        store.weather = self._weather
        counter = HeuristicCounter()
        runtime = Runtime(
            self._directory,
            config=CONFIG,
            journal=journal,
            store=store,
            counter=counter,
            summarizer=StormySummarizer(lambda: self._weather, counter.count),
            embedder=StormyEmbedder(lambda: self._weather),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run, name="soak.store")
            async with runtime:
                yield runtime
            tasks.cancel_scope.cancel()

    async def _cycle(self, runtime: Runtime, loop: str) -> Cycle:
        begun, number, extent, tally = time.monotonic(), self._number, self._extent, Counter[str]()
        self._number += 1
        crowd = Crowd(runtime, self._rng, self.violations, tally)
        guests = self._households(f"guest-{number}", extent.users)
        self._weather.met.clear()
        async with anyio.create_task_group() as storm:
            storm.start_soon(lambda: self._weather.blow(mean_calm_s=extent.calm_s))
            elders = (
                [] if loop in self._warm else self._elders
            )  # later they are only looked at, so that the data stays one size
            await crowd.talk([*elders, *self._mortals, *guests], extent.load_s)
            storm.cancel_scope.cancel()
        kept = 0
        try:
            with anyio.fail_after(SETTLE_S):
                kept = await crowd.judge([*self._elders, *self._mortals, *guests])
                async with anyio.create_task_group() as tasks:
                    for household in self._before:
                        tasks.start_soon(crowd.forget, household)
        except TimeoutError:
            self.violations.add(
                "not drained",
                f"cycle {number}: there is work left {SETTLE_S:g} s after the load ended",
            )
        self._before = guests
        holding, amiss = await self._rest(runtime, self._warm.get(loop))
        for name, what in amiss.items():
            self.violations.add(f"held: {name}", f"cycle {number}, {loop}: {what}")
        refused = {
            name: count
            for name, count in tally.items()
            if name not in {"operations", "appends", "forgotten"}
        }
        cycle = Cycle(
            number,
            loop,
            tally["operations"],
            tally["appends"],
            kept,
            refused,
            dict(self._weather.met),
            tally["forgotten"],
            holding,
            time.monotonic() - begun,
        )
        self._told(cycle)
        return cycle

    async def _rest(
        self, runtime: Runtime, warm: dict[str, int] | None
    ) -> tuple[Holding, dict[str, str]]:
        """Wait until all is as it was, or for long enough; returns what is held, and what of it
        should not be.
        """
        deadline = time.monotonic() + SETTLE_S
        while True:
            await runtime.internals.journal.checkpoint()
            holding = await weigh(runtime, self._directory / "journal.db", self._directory / STORE)
            amiss = _amiss(holding, warm)
            if not amiss or time.monotonic() > deadline:
                return holding, amiss
            await anyio.sleep(0.5)

    def growth(self) -> str:
        """What is wrong with the course of resident memory, or the empty string."""
        course = [cycle.holding.rss_mb for cycle in self._measured]
        third = len(course) // 3
        if third < 2:
            return ""
        early, late = statistics.median(course[:third]), statistics.median(course[-third:])
        return f"{early:.0f} MB, later {late:.0f} MB" if late > early * _RSS_SHARE + _RSS_MB else ""


def _amiss(holding: Holding, warm: dict[str, int] | None) -> dict[str, str]:
    found = {name: f"{value}, not 0" for name in _AT_REST if (value := getattr(holding, name))}
    found |= {
        name: f"{value}, over {most}"
        for name, most in _MOST.items()
        if (value := getattr(holding, name)) > most
    }
    if holding.fragments > _SLACK["fragments"]:
        found["fragments"] = f"{holding.fragments} are not compacted"
    for name, most in (warm or {}).items():
        if (value := getattr(holding, name)) > most + _SLACK[name]:
            found[name] = f"{value}, while warming up {most}"
    return found


_HEADS = (
    "rss_mb",
    "fds",
    "stale",
    "threads",
    "pool",
    "tasks",
    "wal_kb",
    "versions",
    "fragments",
    "queued",
    "jobs",
    "live",
)


def _line(cycle: Cycle) -> str:
    held = " ".join(f"{getattr(cycle.holding, name):>{max(len(name), 6)}.0f}" for name in _HEADS)
    return (
        f"{cycle.number:>5} {cycle.loop:>7} {cycle.seconds:>5.0f} {cycle.operations:>8,} "
        f"{cycle.appends:>8,} {cycle.kept:>8,} "
        f"{sum(cycle.refused.values()):>7,} {sum(cycle.faults.values()):>6,} {cycle.forgotten:>5} "
        f"{held}"
    )


def _kill(base: Path, seed: int, minutes: float) -> KillReport:
    report, until, number = KillReport(), time.monotonic() + minutes * 60, 0
    while time.monotonic() < until:
        one = kill_again_and_again(base / f"{number}", 10, seed=seed + number, each=10)
        number += 1
        report.kills += one.kills
        report.recovering += one.recovering
        report.verdict += one.verdict
        report.wrong += one.wrong
        print(
            f"  {report.kills} kills, {report.verdict.acknowledged:,} messages acknowledged, "
            f"wrong: {len(report.wrong)}",
            flush=True,
        )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--loop", choices=["asyncio", "uvloop", "both"], default="both")
    parser.add_argument(
        "--seed", type=int, help="of what is drawn (default: another each time, printed)"
    )
    parser.add_argument(
        "--kill",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="of the time, for killing a child process (0.2)",
    )
    parser.add_argument(
        "--load",
        type=float,
        default=Extent().load_s,
        metavar="SECONDS",
        help="of load in a cycle (20)",
    )
    parser.add_argument(
        "--dir", type=Path, help="where the directories are made (default: a temporary directory)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    loops = ("asyncio", "uvloop") if options.loop == "both" else (options.loop,)
    logging.disable(logging.CRITICAL)  # what goes wrong on purpose is not worth a line each
    print(
        f"seed {seed}, {options.minutes:g} minutes, loops: {', '.join(loops)}, killing for "
        f"{options.kill:.0%} of it"
    )
    print(
        f"{'cycle':>5} {'loop':>7} {'s':>5} {'ops':>8} {'appends':>8} {'kept':>8} {'refused':>7} "
        f"{'faults':>6} {'erase':>5} " + " ".join(f"{name:>6}" for name in _HEADS),
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="remora-soak-", dir=options.dir) as base:
        soak = Soak(
            Path(base) / "memory",
            seed,
            Extent(load_s=options.load),
            lambda cycle: print(_line(cycle), flush=True),
        )
        until = time.monotonic() + options.minutes * 60 * (1 - options.kill)
        for number, loop in enumerate(itertools.cycle(loops), start=1):
            run(soak.stretch, loop, until, loop=loop)
            if time.monotonic() >= until and number >= 2 * len(loops):  # each loop was warm once
                break
        kills = (
            _kill(Path(base) / "kills", seed, options.minutes * options.kill)
            if options.kill
            else KillReport()
        )
    if growth := soak.growth():
        soak.violations.add("held: rss_mb", growth)
    wrong = [*soak.violations.told, *kills.wrong]
    faults, refused = Counter[str](), Counter[str]()
    for cycle in soak.cycles:
        faults.update(cycle.faults)
        refused.update(cycle.refused)
    print(f"appends acknowledged: {sum(cycle.appends for cycle in soak.cycles):,}")
    print("faults met:", ", ".join(f"{name} {count:,}" for name, count in sorted(faults.items())))
    print(
        "callers were told:",
        ", ".join(f"{name} {count:,}" for name, count in sorted(refused.items())),
    )
    print(
        f"kills: {kills.kills}, {kills.recovering} of them during recovery; acknowledged "
        f"{kills.verdict.acknowledged:,}"
    )
    print(
        f"violations: {sum(soak.violations.counts.values()) + len(kills.wrong)}", *wrong, sep="\n  "
    )
    if options.json:
        report = {
            "seed": seed,
            "cycles": soak.cycles,
            "violations": dict(soak.violations.counts),
            "told": wrong,
            "kills": kills,
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if wrong:
        sys.exit(f"not all is well; the seed was {seed}")


if __name__ == "__main__":
    main()
