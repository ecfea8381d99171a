"""What the default install appends when it has been busy for a while, compared with a bare runtime.

    python -m benchmarks.sustained [--sessions 1 16] [--warm 10] [--seconds 5] [--repeat 3]

``default`` is `Runtime(directory)`: it summarizes, and indexes into long-term memory. ``bare`` does
neither. `benchmarks.speed` measures the first seconds, in which tables are small and little has
been indexed.

Each session has one caller, who appends a message of 300 bytes, waits until it is durable, and
appends the next: for `--warm` seconds, and then for `--seconds` that are measured. Each measurement
is a process of its own, and the configurations take turns. Ratios are of one repeat, and then the
median of the repeats; lag is how late a task wakes that sleeps 1 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.speed.stores.remora import CONFIGURATIONS
from benchmarks.speed.text import percentile, texts
from remora import Config, Runtime

__all__ = ["Sustained", "main"]

KINDS = {"default": CONFIGURATIONS["remora"], "bare": CONFIGURATIONS["remora-bare"]}


class Sustained(msgspec.Struct, frozen=True):
    """One measurement: durable appends a second, and milliseconds."""

    per_s: float
    p99_ms: float
    lag_p99_ms: float


async def measure(kind: str, sessions: int, warm_s: float, seconds: float) -> Sustained:
    """Append for a while, and then measure."""
    pool, numbers = texts(1), itertools.count()
    latencies: list[float] = []
    lags: list[float] = []

    async def call(runtime: Runtime, name: int, end: float, taken: list[float]) -> None:
        chat = runtime.session(f"user-{name}", "chat")
        while (begun := time.perf_counter()) < end:
            said = pool[next(numbers) % len(pool)]
            await chat.append({"role": "user", "content": said})
            taken.append(time.perf_counter() - begun)

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append(time.perf_counter() - begun - 0.001)

    async def append_for(runtime: Runtime, s: float, taken: list[float]) -> None:
        end = time.perf_counter() + s
        await asyncio.gather(*(call(runtime, name, end, taken) for name in range(sessions)))

    with tempfile.TemporaryDirectory() as directory:
        async with Runtime(directory, config=Config.from_dict(KINDS[kind])) as runtime:
            await append_for(runtime, warm_s, [])
            watching = asyncio.create_task(watch())
            begun = time.perf_counter()
            await append_for(runtime, seconds, latencies)
            took = time.perf_counter() - begun
            watching.cancel()
    return Sustained(
        len(latencies) / took, percentile(latencies, 0.99) * 1e3, percentile(lags, 0.99) * 1e3
    )


def _measure_apart(kind: str, sessions: int, options: argparse.Namespace) -> Sustained:
    command = [sys.executable, "-m", "benchmarks.sustained", "--one", kind]
    command += ["--sessions", str(sessions)]
    command += ["--warm", str(options.warm), "--seconds", str(options.seconds)]
    root = Path(__file__).parents[1]
    found = subprocess.run(command, check=True, capture_output=True, cwd=root)
    return msgspec.json.decode(found.stdout.splitlines()[-1], type=Sustained)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16], help="cases (1 16)")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds before (10)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a measurement (5)")
    parser.add_argument("--repeat", type=int, default=3, help="repeats of each case (3)")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        found = asyncio.run(
            measure(options.one, options.sessions[0], options.warm, options.seconds)
        )
        print(msgspec.json.encode(found).decode())
        return
    for sessions in options.sessions:
        results: dict[str, list[Sustained]] = {kind: [] for kind in KINDS}
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task(f"{sessions} sessions", total=options.repeat * len(KINDS))
            for repeat in range(options.repeat):
                for kind in [*KINDS] if repeat % 2 else reversed(KINDS):
                    results[kind].append(_measure_apart(kind, sessions, options))
                    progress.advance(task)
        for kind, values in results.items():
            _print(sessions, kind, values, results["bare"])


def _print(sessions: int, kind: str, found: list[Sustained], bare: list[Sustained]) -> None:
    ratios = [one.per_s / other.per_s for one, other in zip(found, bare, strict=True)]
    print(
        f"{sessions:5} sessions, {kind:7}: {_spread([one.per_s for one in found], 0)}/s, "
        f"p99 {_spread([one.p99_ms for one in found])} ms, "
        f"lag p99 {_spread([one.lag_p99_ms for one in found])} ms, "
        f"{_spread(ratios, 2)} of bare"
    )


def _spread(values: list[float], digits: int = 1) -> str:
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
