"""What an idle runtime and its process hold."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from pathlib import Path

import msgspec

from benchmarks.shared import resident
from remora import Runtime

__all__ = ["Holding", "weigh"]

_POOLS = ("lancedb-tokio-w", "lance-cpu", "tokio-runtime-w")


class Holding(msgspec.Struct, frozen=True):
    """Figures that are to end where they began.

    Attributes:
        rss_mb: resident memory.
        fds: open descriptors, but for the next.
        stale: descriptors of files that are gone: LanceDB's cache of indices, 64 MB, keeps those
            that compaction has replaced.
        threads: of the process, but for the next.
        pool: idle workers of anyio's and LanceDB's pools, which come and go.
        wal_kb: size of the write-ahead log.
        versions: of LanceDB's tables, together.
        fragments: commits of long-term memory that are not compacted.
        queued: messages in mailboxes.
        waiting_kb: of requests that wait for their turn or the log.
        backlog: writes that wait for a commit.
        jobs: in the journal and in the queues.
        live: actors in memory.
        tasks: of the event loop.
    """

    rss_mb: float
    fds: int
    stale: int
    threads: int
    pool: int
    wal_kb: int
    versions: int
    fragments: int
    queued: int
    waiting_kb: int
    backlog: int
    jobs: int
    live: int
    tasks: int


def _descriptors() -> list[str]:
    """What each open descriptor is of."""
    names = []
    for place in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them is closed by now
            names.append(str(place.readlink()))
    return names


def _thread_names() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            names.append((task / "comm").read_text().strip())
    return names


def _versions(store: Path) -> int:
    return sum(1 for _ in store.glob("**/_versions/*.manifest"))


async def weigh(runtime: Runtime, journal: Path, store: Path) -> Holding:
    """Look at everything.

    Args:
        runtime: at rest.
        journal: its file.
        store: directory of long-term memory.
    """
    statistics = runtime.statistics()
    queues = statistics.supervisor.queues.values()
    jobs = len(await runtime.internals.journal.jobs()) + sum(
        queue.waiting + queue.delayed + queue.running for queue in queues
    )
    fragments = (await runtime.long_term_statistics()).fragments
    gc.collect()
    descriptors, threads = _descriptors(), _thread_names()
    stale = sum(name.endswith(" (deleted)") for name in descriptors)
    pool = sum(name in _POOLS for name in threads)
    workers = sum(thread.name.startswith("AnyIO worker") for thread in threading.enumerate())
    return Holding(
        rss_mb=resident() / 2**20,
        fds=len(descriptors) - stale,
        stale=stale,
        threads=len(threads) - pool - workers,
        pool=pool + workers,
        wal_kb=sum(file.stat().st_size for file in journal.parent.glob(f"{journal.name}-wal"))
        // 1_024,
        versions=_versions(store),
        fragments=fragments,
        queued=statistics.registry.queued,
        waiting_kb=statistics.registry.waiting_bytes // 1_024,
        backlog=statistics.log.backlog,
        jobs=jobs,
        live=statistics.registry.live,
        tasks=len(asyncio.all_tasks()),
    )
