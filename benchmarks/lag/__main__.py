"""Measure how long the largest calls hold the event loop.

``python -m benchmarks.lag [--messages 20000] [--repeat 3] [--only Session.append,User.learn]``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.lag.calls import BEFORE, Call, World, largest_calls, prepare
from benchmarks.lag.iterations import Held, MeasuredSelector, run_measured
from remora import Config, Runtime


def _tick(loop: asyncio.AbstractEventLoop) -> None:
    """Wake up the loop every millisecond, as neighbours do."""
    loop.call_later(0.001, _tick, loop)


async def measure(
    selector: MeasuredSelector, world: World, verb: str, call: Call, repeat: int
) -> tuple[float, list[Held]]:
    """Seconds that the shortest call took, and what each held."""
    took, held = [], []
    for _ in range(repeat):
        world.number += 1
        if (before := BEFORE.get(verb)) is not None:
            await before(world)
            await world.runtime.settle()
        calling = call(world)  # makes the input, which is no part of the call
        await asyncio.sleep(0.02)
        selector.reset()
        started = time.perf_counter()
        await calling
        took.append(time.perf_counter() - started)
        await world.runtime.settle()  # what the call caused in the background counts, too
        await asyncio.sleep(0.002)  # the iteration that the call ended in ends
        held.append(selector.held)
        selector.reset()  # the next input is made by the iteration that goes on
    return min(took), held


async def run(selector: MeasuredSelector, messages: int, repeat: int, only: Sequence[str]) -> None:
    """Print the table."""
    config = Config.from_dict({"synopsis": {"shown": "always"}})  # no model's time is measured
    with TemporaryDirectory() as place:
        async with Runtime(Path(place) / "memory", config=config) as runtime:
            world = World(runtime, Path(place), messages)
            selector.reset()
            _tick(asyncio.get_running_loop())
            await prepare(world)
            gc.collect()
            gc.freeze()  # what was prepared is no part of a call
            held = selector.held
            print(f"prepared: cpu {held.cpu_s * 1e3:.1f} wall {held.wall_s * 1e3:.1f}", flush=True)
            print(
                f"| {'verb':30} | {'largest input':32} | took, ms | CPU held, ms | wall held, ms "
                "| late, ms |\n|---|---|---:|---:|---:|---:|"
            )
            for verb, label, call in largest_calls():
                if only and verb not in only:
                    continue
                took, found = await measure(selector, world, verb, call, repeat)
                print(
                    f"| {verb:30} | {label:32} | {took * 1e3:8.1f} "
                    f"| {median(one.cpu_s for one in found) * 1e3:12.1f} "
                    f"| {min(one.wall_s for one in found) * 1e3:13.1f} "
                    f"| {min(one.late_s for one in found) * 1e3:8.1f} |",
                    flush=True,
                )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="of the long session")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="verbs, separated by commas")
    given = parser.parse_args()
    only = [verb for verb in given.only.split(",") if verb]
    run_measured(lambda selector: run(selector, given.messages, given.repeat, only))


if __name__ == "__main__":
    main()
