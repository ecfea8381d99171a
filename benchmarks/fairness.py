"""How much longer quiet users wait while one user has 10 000 appends queued.

    python -m benchmarks.fairness [--repeats 7] [--seconds 2] [--flood 10000] [--sessions 1 100]
        [--loop uvloop] [--json FILE]

Configuration: the defaults on the real journal (`synchronous=FULL`), without long-term memory, and
with the `tail` summarizer unless `--summarizer` says otherwise. (The default summarizer, an
extract, would be busy for longer than the flood lasts, in the same interpreter. A chat model would
run elsewhere.)

Each of 1 000 quiet users appends, waits for the receipt, thinks for about a second, and repeats.
The noisy user has `--flood` callers; each appends again as soon as it has its receipt, so that
`--flood` appends wait all the time. They are in one session, or in as many as `--sessions` says.
The quiet users are measured alone and during the flood, in turn, on one runtime. The result is the
ratio of the two p99, the median over the repeats (G10: at most 3).
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec

from benchmarks.shared import run, texts
from remora import Config, Runtime
from remora.cli.replay import percentile

__all__ = ["Fairness", "measure"]

MOST = 3.0
"""What the p99 beside the flood may be, as a multiple of the p99 alone."""

_BEGIN_S = 1.0


def _config(summarizer: str) -> Config:
    return Config.from_dict(
        {
            "long_term": {"enabled": False},
            "models": {"summarizer": summarizer},
            "mailbox": {"when_full": "wait", "timeout_s": 600},
        }
    )


class Fairness(msgspec.Struct, frozen=True):
    """One repeat: milliseconds of the quiet ones' appends.

    Attributes:
        alone_p50: without the flood.
        alone_p99: likewise.
        beside_p50: with the flood.
        beside_p99: likewise.
        quiet: appends of the quiet ones beside the flood.
        flood: appends of the noisy one meanwhile.
        queued: the noisy one's appends that waited when the fewest did.
    """

    alone_p50: float
    alone_p99: float
    beside_p50: float
    beside_p99: float
    quiet: int
    flood: int
    queued: int

    @property
    def ratio(self) -> float:
        """Of the two p99."""
        return self.beside_p99 / self.alone_p99


class _Flood:
    """The noisy user."""

    def __init__(self, runtime: Runtime, callers: int, sessions: int) -> None:
        self.done = self.waiting = 0
        self.least = callers
        """How many waited when the fewest did, since all had begun."""
        self.all_wait = anyio.Event()
        self._callers = callers
        self._handles = [runtime.session("noisy", f"{number}") for number in range(sessions)]
        self._pool = texts(1_000, seed=2)
        self._over = False

    async def call(self, number: int) -> None:
        handle = self._handles[number % len(self._handles)]
        while not self._over:
            self.waiting += 1
            if self.waiting == self._callers:
                self.all_wait.set()
            await handle.append(self._pool[number % 1_000])
            self.waiting -= 1
            self.done += 1
            if self.all_wait.is_set() and not self._over:
                self.least = min(self.least, self.waiting)

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        for number in range(self._callers):
            tasks.start_soon(self.call, number)

    def stop(self) -> None:
        """Each caller still hears of the append that it waits for."""
        self._over = True


async def _quiet(runtime: Runtime, users: int, seconds: float, rng: random.Random) -> list[float]:
    """Milliseconds that each append took, once all have begun to talk."""
    pool, latencies = texts(1_000), []
    begin = time.perf_counter() + _BEGIN_S
    end = begin + seconds

    async def talk(number: int) -> None:
        chat = runtime.session(f"quiet-{number}", "chat")
        await anyio.sleep(rng.random() * _BEGIN_S)
        while (begun := time.perf_counter()) < end:
            await chat.append(pool[number % 1_000])
            if begun > begin:
                latencies.append((time.perf_counter() - begun) * 1e3)
            await anyio.sleep(rng.expovariate(1.0))

    async with anyio.create_task_group() as tasks:
        for number in range(users):
            tasks.start_soon(talk, number)
    return latencies


async def measure(
    directory: Path,
    *,
    flood: int,
    sessions: int,
    users: int = 1_000,
    seconds: float = 2.0,
    repeats: int = 7,
    summarizer: str = "tail",
    seed: int = 1,
) -> list[Fairness]:
    """Quiet users alone, and beside the noisy one, in turn.

    Args:
        directory: of the runtime.
        flood: appends of the noisy user that wait all the time.
        sessions: of the noisy user.
        users: quiet ones.
        seconds: of each measurement.
        repeats: how often both.
        summarizer: its name in the configuration.
        seed: of when the quiet ones talk.
    """
    rng, found = random.Random(seed), []
    async with Runtime(directory, config=_config(summarizer)) as runtime:
        await _quiet(runtime, users, 1.5, rng)  # all sessions come to life
        for _ in range(repeats):
            await (
                runtime.settle()
            )  # summaries left from the flood before would slow those who are alone
            alone = await _quiet(runtime, users, seconds, rng)
            noisy = _Flood(runtime, flood, sessions)
            async with anyio.create_task_group() as tasks:
                noisy.start(tasks)
                await noisy.all_wait.wait()
                done = noisy.done
                beside = await _quiet(runtime, users, seconds, rng)
                done = noisy.done - done
                noisy.stop()
            row = Fairness(
                percentile(alone, 0.5),
                percentile(alone, 0.99),
                percentile(beside, 0.5),
                percentile(beside, 0.99),
                len(beside),
                done,
                noisy.least,
            )
            found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (2)")
    parser.add_argument(
        "--flood", type=int, default=10_000, help="appends of the noisy user that wait (10000)"
    )
    parser.add_argument("--users", type=int, default=1_000, help="quiet ones (1000)")
    parser.add_argument(
        "--sessions", type=int, nargs="+", default=[1, 100], help="of the noisy user (1 100)"
    )
    parser.add_argument("--summarizer", choices=["tail", "lead", "extractive"], default="tail")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--dir", type=Path, help="where the databases are made (default: a temporary directory)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # that summaries are extracts, time and again
    figures: dict[str, Any] = {"loop": options.loop, "seed": options.seed, "sessions": {}}
    missed = False
    print(
        f"{'sessions':>8} {'repeat':>6} {'alone p50':>10} {'p99 ms':>8} {'beside p50':>11} "
        f"{'p99 ms':>8} {'ratio':>6} "
        f"{'quiet':>7} {'flood':>8} {'queued':>7}"
    )
    with tempfile.TemporaryDirectory(dir=options.dir) as temporary:
        for sessions in options.sessions:

            async def one(sessions: int = sessions) -> list[Fairness]:
                return await measure(
                    Path(temporary) / f"{sessions}",
                    flood=options.flood,
                    sessions=sessions,
                    users=options.users,
                    seconds=options.seconds,
                    repeats=options.repeats,
                    summarizer=options.summarizer,
                    seed=options.seed,
                )

            rows: list[Fairness] = run(one, loop=options.loop)
            for number, row in enumerate(rows, start=1):
                print(
                    f"{sessions:>8} {number:>6} {row.alone_p50:>10.2f} {row.alone_p99:>8.2f} "
                    f"{row.beside_p50:>11.2f} "
                    f"{row.beside_p99:>8.2f} {row.ratio:>6.2f} {row.quiet:>7,} {row.flood:>8,} "
                    f"{row.queued:>7,}"
                )
            median = statistics.median(row.ratio for row in rows)
            missed = missed or median > MOST
            print(f"{sessions:>8} median ratio of p99: {median:.2f} (at most {MOST:g})")
            figures["sessions"][sessions] = {
                "median_ratio": median,
                "repeats": [msgspec.structs.asdict(row) for row in rows],
            }
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if missed:
        sys.exit(f"the quiet ones wait more than {MOST:g} times as long beside the noisy one")


if __name__ == "__main__":
    main()
