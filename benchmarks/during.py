"""How long appends take during work on everybody's memory, against appends alone.

One runtime with the default configuration, whose long-term memory has many rows. Eight callers
append a message of some 250 characters each every 20 ms, each to a session of a user of its own,
and never to one that the other work is about. During them, one after the other: users are
forgotten in a row; all is copied (`backup`), exported, and imported from another memory's export;
and `remora verify` reads the directory in a process of its own.

Times are of the wall clock, so that everything that holds an append is in them: a machine with
something else to do shows other figures.

    python -m benchmarks.during [--rows 100000] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import remora
from benchmarks.speed.text import role_of, texts
from remora.cli.replay import percentile

__all__ = ["During", "main", "measure"]

CALLERS, PAUSE_S, ALONE_S = 8, 0.02, 15.0
OF_A_USER, AT_ONCE = 200, 32
FORGOTTEN = 20
Work = Callable[[], Awaitable[object]]


class During(msgspec.Struct, frozen=True):
    """How long appends took during one kind of work.

    Attributes:
        work: what ran; ``nothing`` for appends alone.
        seconds: that it took.
        appends: in this time.
        p50_ms: their median.
        p99_ms: their 99th percentile.
        longest_ms: the longest.
    """

    work: str
    seconds: float
    appends: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


async def measure(rows: int, directory: Path) -> list[During]:
    """What appends take alone, and during each kind of work."""
    found: list[During] = []
    export = await _make_export(directory / "other", max(rows // 10, OF_A_USER))
    async with remora.Runtime(directory / "memory") as runtime:
        await _fill(runtime, rows, "user")
        await runtime.settle()
        pool = texts(seed=1, size=250)
        users = iter(range(rows // OF_A_USER))

        async def forget() -> None:
            for _ in range(FORGOTTEN):
                await runtime.user(f"user-{next(users)}").forget()

        async def verify() -> None:
            command = ("-m", "remora", "verify", "--dir", str(directory / "memory"), "--json")
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, stdout=asyncio.subprocess.DEVNULL
            )
            if await process.wait():
                raise RuntimeError("the memory is damaged")

        kinds: dict[str, Work] = {
            "nothing": partial(asyncio.sleep, ALONE_S),
            f"{FORGOTTEN} users are forgotten": forget,
            "their files are rewritten": runtime.retry_erasures,
            "backup": lambda: runtime.backup(directory / "copy"),
            "export": lambda: runtime.export(directory / "all.jsonl"),
            f"import of {max(rows // 10, OF_A_USER):,} messages": lambda: runtime.import_(export),
            "verify, in a process of its own": verify,
        }
        for name, work in kinds.items():
            found.append(await _during(runtime, pool, name, work))
            print(json.dumps(msgspec.to_builtins(found[-1])), flush=True)
            await runtime.settle()
    return found


async def _during(runtime: remora.Runtime, pool: list[str], name: str, work: Work) -> During:
    ended = False
    took: list[float] = []

    async def append(caller: int) -> None:
        chat = runtime.session(f"caller-{caller}", "chat")
        number = 0
        while not ended:
            message: dict[str, Any] = {"role": "user", "content": pool[number % len(pool)]}
            begun = time.perf_counter()
            await chat.append(message)
            took.append((time.perf_counter() - begun) * 1e3)
            number += 1
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as tasks:
        for caller in range(CALLERS):
            tasks.create_task(append(caller))
        begun = time.perf_counter()
        await work()
        seconds = time.perf_counter() - begun
        ended = True
    took.sort()
    figures = (percentile(took, 0.5), percentile(took, 0.99), took[-1])
    return During(name, round(seconds, 1), len(took), *(round(one, 1) for one in figures))


async def _make_export(directory: Path, messages: int) -> Path:
    path = directory.with_suffix(".jsonl")
    config: dict[str, Any] = {"long_term": {"enabled": False}}
    async with remora.Runtime(directory, config=remora.Config.from_dict(config)) as runtime:
        await _fill(runtime, messages, "imported")
        await runtime.export(path)
    return path


async def _fill(runtime: remora.Runtime, messages: int, name: str) -> None:
    pool = texts(seed=2, size=250)
    said: list[dict[str, Any]] = [
        {"role": role_of(number), "content": pool[number % len(pool)]}
        for number in range(OF_A_USER)
    ]
    users = range(messages // OF_A_USER)
    for first in range(0, len(users), AT_ONCE):
        async with asyncio.TaskGroup() as tasks:
            for user in users[first : first + AT_ONCE]:
                tasks.create_task(runtime.session(f"{name}-{user}", "chat").append(said))


def main(argv: list[str] | None = None) -> list[During]:
    """Run it; returns what was printed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000, help="of long-term memory (100000)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as path:
        found = asyncio.run(measure(given.rows, Path(path)))
    if given.json:
        given.json.write_bytes(msgspec.json.encode(found))
    return found


if __name__ == "__main__":
    main()
