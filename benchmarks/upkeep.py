"""What long-term memory's durability, upkeep and erasure cost.

    python -m benchmarks.upkeep [--rows 100000] [--hours 24] [--flush-rows 5] [--shards 1]
        [--json FILE] [--smoke]

Also whether searches stay as fast through a day of small flushes.

*Flush*: how long `add` takes, by batch size, with and without syncing. There is one table, so a
batch is one commit.

*Day*: a store of `--rows` rows of 500 users, sorted as upkeep leaves them. Then, for so many
simulated hours, a flush per minute of a few rows of many users, and two rounds of upkeep per
minute. After each hour: the median of 40 searches (three lists, any user), in turn with an equal
store that is left unchanged, which shows the machine's other load; fragments and versions, bytes on
disk, and what upkeep wrote in that hour. Nothing waits: a day passes in some minutes. Old versions
are kept for some seconds instead of ten minutes.

*Erase*: how long one user's erasure takes in tables of 10 000 and 100 000 rows, and what it writes.

On a shared machine only the ratios within a run compare.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import long_term
from benchmarks.long_term import Texts, rows_of, vectors_of
from remora.ids import user_key
from remora.storage.lance.store import LanceStore
from remora.storage.ports import MemoryRow

USERS = 500
BATCHES = (1, 100, 1_000)
ERASED = (10_000, 100_000)
SEARCHES = 40
AT_ONCE = 5_000


class Source:
    """Rows of drawn users, each row once."""

    def __init__(self, seed: int) -> None:
        self._texts, self._rng, self.random = (
            Texts(seed),
            np.random.default_rng(seed),
            random.Random(seed),
        )
        self._counts: dict[str, int] = {}

    def rows(self, count: int) -> tuple[list[MemoryRow], npt.NDArray[np.float32]]:
        """So many rows, of any users, with their vectors."""
        rows: list[MemoryRow] = []
        for _ in range(count):
            user = f"user-{self.random.randrange(USERS)}"
            first = self._counts[user] = self._counts.get(user, 0) + 1
            rows += rows_of(user, 1, self._texts, first)
        return rows, vectors_of(count, self._rng)

    def question(self) -> tuple[str, str, npt.NDArray[np.float32]]:
        """A user, some words, a vector."""
        words = self._texts.message().split()[:5]
        return f"user-{self.random.randrange(USERS)}", " ".join(words), vectors_of(1, self._rng)[0]


def opened(
    directory: Path, *, sync: bool = True, **options: Any
) -> AbstractAsyncContextManager[LanceStore]:
    alone = {"shards": 1, "batch_ms": 0.01, "batch_rows": 10_000, "keep_versions_s": 1.0}
    return long_term.opened(directory, sync=sync, **{**alone, **options})


async def fill(store: LanceStore, count: int, source: Source, progress: Progress) -> None:
    task = progress.add_task(f"filling {count} rows", total=count)
    for start in range(0, count, AT_ONCE):
        some = min(AT_ONCE, count - start)
        rows, vectors = await anyio.to_thread.run_sync(source.rows, some)
        await store.add(rows, vectors, may_exist=False)
        progress.advance(task, some)
    for shard in store.tables.shards.values():
        async with shard.lock:
            await shard.rewrite(None, index_rows=2_000)
    progress.remove_task(task)


async def flushes(directory: Path, repeats: int) -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    for size in BATCHES:
        figures[str(size)] = {}
        for sync in (True, False):
            source, took = Source(size), list[float]()
            async with opened(directory / f"flush-{size}-{sync}", sync=sync) as store:
                for number in range(repeats):
                    rows, vectors = source.rows(size)
                    begun = time.perf_counter()
                    await store.add(rows, vectors, may_exist=False)
                    if number > 2:  # not the first: it makes the table
                        took.append(1_000 * (time.perf_counter() - begun))
            figures[str(size)]["synced_ms" if sync else "unsynced_ms"] = round(
                statistics.median(took), 1
            )
    return figures


async def time_searches(stores: Sequence[LanceStore], source: Source) -> list[float]:
    """Median milliseconds of a search in each store, in turn, with the same questions."""
    took: list[list[float]] = [[] for _ in stores]
    for _ in range(SEARCHES):
        user, text, vector = source.question()
        for store, times in zip(stores, took, strict=True):
            begun = time.perf_counter()
            await store.search(user, text, vector, depth=50)
            times.append(1_000 * (time.perf_counter() - begun))
    return [round(statistics.median(times), 1) for times in took]


def on_disk(directory: Path) -> tuple[int, int]:
    """Versions of all tables, and bytes."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return sum(path.suffix == ".manifest" for path in files), sum(
        path.stat().st_size for path in files
    )


async def day(
    directory: Path, rows: int, hours: int, flush_rows: int, shards: int, progress: Progress
) -> list[dict[str, float]]:
    source, found = Source(7), list[dict[str, float]]()
    async with (
        opened(directory / "untouched", shards=shards) as untouched,
        opened(directory / "day", shards=shards) as store,
    ):
        await fill(untouched, rows, Source(7), progress)
        await fill(store, rows, source, progress)

        async def look(hour: int, before: int, worst: float) -> None:
            versions, size = await anyio.to_thread.run_sync(on_disk, directory / "day")
            manifests = [
                shard.files.manifest() for shard in store.tables.shards.values() if shard.files
            ]
            fragments = [len(manifest.fragments) for manifest in manifests if manifest]
            statistics = await store.statistics()
            took, reference = await time_searches([store, untouched], source)
            found.append(
                {
                    "hour": hour,
                    "search_p50_ms": took,
                    "untouched_p50_ms": reference,
                    "rows": statistics.rows,
                    "fragments": max(fragments),
                    "versions": versions,
                    "disk_mb": round(size / 1e6, 1),
                    "upkeep_mb": round((statistics.rewritten_bytes - before) / 1e6, 1),
                    "longest_upkeep_s": round(worst, 2),
                }
            )

        await look(0, (await store.statistics()).rewritten_bytes, 0.0)
        task = progress.add_task("a day", total=hours * 60)
        for hour in range(1, hours + 1):
            before, worst = (await store.statistics()).rewritten_bytes, 0.0
            for _ in range(60):
                await store.add(*source.rows(flush_rows), may_exist=False)
                for _ in range(2):
                    begun = time.perf_counter()
                    await store.compact()
                    worst = max(worst, time.perf_counter() - begun)
                progress.advance(task)
            await look(hour, before, worst)
        progress.remove_task(task)
    return found


async def time_erasure(directory: Path, rows: int, progress: Progress) -> dict[str, float]:
    source = Source(9)
    async with opened(directory / f"erase-{rows}") as store:
        await fill(store, rows, source, progress)
        gc.collect()
        before = (await store.statistics()).rewritten_bytes
        begun = time.perf_counter()
        removed = await store.erase(user_key("user-7"))
        took = time.perf_counter() - begun
        written = (await store.statistics()).rewritten_bytes - before
    return {
        "rows": rows,
        "removed": removed,
        "seconds": round(took, 2),
        "written_mb": round(written / 1e6, 1),
    }


def shown(console: Console, title: str, rows: list[dict[str, float]]) -> None:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


async def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as place,
        Progress(console=console, transient=True) as progress,
    ):
        directory = Path(place)
        found: dict[str, Any] = {
            "machine": platform.platform(),
            "flush": await flushes(directory, 8 if arguments.smoke else 40),
        }
        shown(
            console,
            "add, by batch size",
            [{"rows": int(size), **row} for size, row in found["flush"].items()],
        )
        found["erase"] = [
            await time_erasure(directory, rows, progress)
            for rows in ((500,) if arguments.smoke else ERASED)
        ]
        shown(console, "erasing one user of a table", found["erase"])
        hours = 1 if arguments.smoke else arguments.hours
        rows = 500 if arguments.smoke else arguments.rows
        found["day"] = await day(
            directory, rows, hours, arguments.flush_rows, arguments.shards, progress
        )
        shown(
            console,
            f"{rows} rows, then a flush of {arguments.flush_rows} rows a minute",
            found["day"],
        )
    ratios = [row["search_p50_ms"] / row["untouched_p50_ms"] for row in found["day"]]
    found["slowest_hour"] = round(max(ratios), 2)
    console.print(
        f"in the slowest hour a search takes {found['slowest_hour']} times what it takes in the "
        "untouched store"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--flush-rows", type=int, default=5)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--smoke", action="store_true", help="a small run that only shows that it works"
    )
    arguments = parser.parse_args()
    found = anyio.run(measure, arguments, Console())
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
