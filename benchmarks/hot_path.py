"""The hot path: durable appends a second, load latency, bytes per idle session, import time.

    python benchmarks/hot_path.py [--smoke] [--loop asyncio|uvloop] [--json FILE]

Appends are durable (`synchronous=FULL`) and go through the whole path: check, encode, count with tiktoken, turn, group commit,
gate. Beside each figure stands a plain `sqlite3` group commit of the same rows into the same schema, in the same run, with
as many rows per transaction as there are callers: the limit of one writer on this disk. Trust the ratio: machines are shared.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from remora import Config, Runtime
from remora.cli.render import percentile
from remora.messages import encode_message
from remora.storage.schema import MIGRATIONS

WORDS = [
    "the",
    "garden",
    "bridge",
    "river",
    "morning",
    "varnish",
    "cello",
    "harbour",
    "ledger",
    "lantern",
    "window",
    "quiet",
    "seven",
    "copper",
    "walnut",
    "island",
]
INSERT = "INSERT INTO messages (pos, at_us, tokens, role, epoch, chat, meta, id, importance) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0.5)"
CONFIG = Config.from_dict({"long_term": {"enabled": False}})


def texts(count: int, seed: int = 1) -> list[dict[str, str]]:
    """Messages of about forty tokens."""
    rng = random.Random(seed)
    return [{"role": "user", "content": " ".join(rng.choices(WORDS, k=38))} for _ in range(count)]


async def appends(directory: Path, sessions: int, seconds: float) -> tuple[float, list[float], float]:
    """Each session has one caller that appends, waits for the receipt, and appends again."""
    latencies: list[float] = []
    pool = texts(1_000)
    async with Runtime(directory, config=CONFIG) as runtime:
        handles = [runtime.session(f"u{n}", "s") for n in range(sessions)]
        async with anyio.create_task_group() as tasks:
            for handle in handles:
                tasks.start_soon(handle.load)
        end = time.perf_counter() + seconds

        async def caller(number: int) -> None:
            handle, at = handles[number], number
            while (begun := time.perf_counter()) < end:
                await handle.append(pool[at % 1_000])
                latencies.append(time.perf_counter() - begun)
                at += 1

        before, begun = runtime.statistics().log.commits, time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(sessions):
                tasks.start_soon(caller, number)
        took = time.perf_counter() - begun
        commits = runtime.statistics().log.commits - before
    return len(latencies) / took, latencies, len(latencies) / max(commits, 1)


def plain(directory: Path, batch: int, seconds: float) -> float:
    """The same rows by `sqlite3` alone: `batch` rows, one commit, again."""
    directory.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(directory / "plain.db", isolation_level=None)
    database.executescript(MIGRATIONS[0])
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA wal_autocheckpoint = 16384")
    encoded = [encode_message(message)[0] for message in texts(1_000)]
    rows = seq = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        seq += 1
        entries = [(n << 32 | seq, encoded[(n + seq) % 1_000]) for n in range(batch)]
        database.execute("BEGIN IMMEDIATE")
        database.executemany(INSERT, [(pos, e.at_us, 40, 2, 1, e.chat, e.meta, e.id) for pos, e in entries])
        database.execute("COMMIT")
        rows += batch
    took = time.perf_counter() - begun
    database.close()
    return rows / took


async def loads(directory: Path, count: int) -> list[float]:
    """Load a session of twenty messages, over and over."""
    latencies: list[float] = []
    async with Runtime(directory, config=CONFIG) as runtime:
        handles = [runtime.session(f"u{n}", "s") for n in range(100)]
        for handle in handles:
            await handle.append(texts(20))
        for n in range(count):
            begun = time.perf_counter()
            await handles[n % 100].load()
            latencies.append(time.perf_counter() - begun)
    return latencies


async def idle_bytes(directory: Path, sessions: int, messages: int) -> float:
    """Resident bytes that a live, idle session adds."""
    async with Runtime(directory, config=CONFIG) as runtime:
        warm = [runtime.session("warm", f"{n}") for n in range(500)]
        for handle in warm:
            await (handle.append(texts(messages)) if messages else handle.load())
        gc.collect()
        before = resident()
        limiter = anyio.CapacityLimiter(500)

        async def fill(n: int) -> None:
            async with limiter:
                handle = runtime.session(f"u{n // 10}", f"{n}")
                await (handle.append(texts(messages)) if messages else handle.load())

        async with anyio.create_task_group() as tasks:
            for n in range(sessions):
                tasks.start_soon(fill, n)
        gc.collect()
        return (resident() - before) / sessions


def resident() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def import_seconds(statement: str) -> float:
    """Best of five, over a bare interpreter."""

    def best(code: str) -> float:
        found = []
        for _ in range(5):
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            found.append(time.perf_counter() - begun)
        return min(found)

    return best(statement) - best("pass")


def run(function: Callable[..., Any], *arguments: Any, loop: str) -> Any:
    return anyio.run(function, *arguments, backend="asyncio", backend_options={"use_uvloop": loop == "uvloop"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few seconds: does it run?")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--dir", type=Path, help="where the databases are made (default: a temporary directory)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    seconds = 0.3 if options.smoke else 4.0
    figures: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        "loop": options.loop,
        "appends": [],
    }
    print(f"{figures['machine']}, {options.loop}")
    print(f"{'sessions':>9} {'appends/s':>10} {'plain/s':>10} {'ratio':>6} {'per commit':>10} {'p50 ms':>8} {'p99 ms':>8}")
    with tempfile.TemporaryDirectory(dir=options.dir) as temporary:
        root = Path(temporary)
        for sessions in (1, 16, 256, 2_000):
            # plain, remora, plain: the disk's mood changes within seconds
            first = plain(root / f"p{sessions}a", sessions, seconds / 2)
            rate, latencies, per_commit = run(appends, root / f"a{sessions}", sessions, seconds, loop=options.loop)
            limit = (first + plain(root / f"p{sessions}b", sessions, seconds / 2)) / 2
            row = {
                "sessions": sessions, "appends_per_s": rate, "plain_per_s": limit, "ratio": rate / limit,
                "rows_per_commit": per_commit,
                "p50_ms": percentile(latencies, 0.5) * 1e3, "p99_ms": percentile(latencies, 0.99) * 1e3,
            }  # fmt: skip
            figures["appends"].append(row)
            print(
                f"{sessions:>9,} {rate:>10,.0f} {limit:>10,.0f} {row['ratio']:>6.2f} {per_commit:>10.1f} "
                f"{row['p50_ms']:>8.2f} {row['p99_ms']:>8.2f}"
            )
        found = run(loads, root / "loads", 500 if options.smoke else 20_000, loop=options.loop)
        figures["load_p50_us"], figures["load_p99_us"] = percentile(found, 0.5) * 1e6, percentile(found, 0.99) * 1e6
        print(f"load of 20 messages: p50 {figures['load_p50_us']:.1f} µs, p99 {figures['load_p99_us']:.1f} µs")
        count = 500 if options.smoke else 10_000
        figures["idle_bytes_empty"] = run(idle_bytes, root / "idle0", count, 0, loop=options.loop)
        figures["idle_bytes_20_messages"] = run(idle_bytes, root / "idle20", count, 20, loop=options.loop)
    print(
        f"resident bytes per idle live session: {figures['idle_bytes_empty']:,.0f} empty, "
        f"{figures['idle_bytes_20_messages']:,.0f} with 20 messages"
    )
    figures["import_s"] = import_seconds("import remora")
    print(f"import remora: {figures['import_s']:.3f} s over a bare interpreter")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
