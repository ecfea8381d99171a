"""How the process does that has the memory open, over the last minutes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from remora.api.health import Health
from remora.api.status import FullMailbox, RuntimeStatus, StatusQuestion, ask_status
from remora.errors import DirectoryUnusable, InvalidInput, OwnerUnreachable
from remora.models.compression import CompressionStatistics
from remora.observe import ask
from remora.runtime.jobs import QueueStatistics
from remora.runtime.meters import Histogram
from remora.runtime.threads import run_in_thread
from remora.view.disk import measure_files
from remora.view.watch import Watch

_INTERVAL_S = 2.0
_KEPT = 150  # five minutes
PATIENCE_S = 1.0
_DISK_EVERY = 5  # samples


class Sample(msgspec.Struct, frozen=True):
    """Figures of some seconds.

    Attributes:
        at_ms: since the epoch.
        writes: a second: appends, and all else that is stored.
        commits: a second.
        append_p50_ms: half of the appends took no longer; None for none. So do those that follow.
        append_p99_ms: 99 of 100.
        load_p50_ms: contexts without a query.
        load_p99_ms: likewise.
        recall_p99_ms: searches in long-term memory.
        late: contexts a second from which memories were left out, because recall was late.
        commit_p99_ms: commits, with their sync.
        waiting: requests in mailboxes, and writes that wait for the next commit.
        refused: requests a second that were refused, or whose deadline passed.
        live: sessions and users in memory.
        jobs: background jobs that are not done.
        wal_bytes: size of the write-ahead log.
    """

    at_ms: int
    writes: float
    commits: float
    append_p50_ms: float | None
    append_p99_ms: float | None
    load_p50_ms: float | None
    load_p99_ms: float | None
    recall_p99_ms: float | None
    late: float
    commit_p99_ms: float | None
    waiting: int
    refused: float
    live: int
    jobs: int
    wal_bytes: int


class HealthAnswer(msgspec.Struct, frozen=True):
    """The health of the process.

    Attributes:
        pid: of the process; 0 if none answers.
        since: when it opened the memory.
        note: why nothing is known; empty if something is.
        health: what the process says.
        queues: its background jobs since it started, by queue.
        summaries: what its summarizers did since it started, by model.
        samples: the last minutes, the earliest first.
        mailboxes: for whom most requests wait.
        disk: bytes, by part of the directory.
    """

    pid: int = 0
    since: str = ""
    note: str = ""
    health: Health | None = None
    queues: dict[str, QueueStatistics] = {}
    summaries: dict[str, CompressionStatistics] = {}
    samples: Sequence[Sample] = ()
    mailboxes: Sequence[FullMailbox] = ()
    disk: dict[str, int] = {}


class HealthSamples:
    """Asks the process for its figures while pages are open, once for all of them.

    Args:
        directory: of the memory.
        watch: knows whether pages are open.
        interval_s: seconds between two questions.
    """

    def __init__(self, directory: Path, watch: Watch, *, interval_s: float = _INTERVAL_S) -> None:
        self._directory = directory
        self._watch = watch
        self._interval_s = interval_s
        self._last: RuntimeStatus | None = None
        self._note = ""
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._disk: dict[str, int] = {}
        self._asked = 0
        self._due = 0.0
        self._lock = anyio.Lock()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self._watch.wait_until_open()
            await anyio.sleep_until(self._due)
            await self.take()

    async def answer(self) -> HealthAnswer:
        """Return what is known now."""
        if not self._asked:
            async with self._lock:
                if not self._asked:
                    await self._take()
        status = self._last
        if status is None:
            return HealthAnswer(note=self._note, disk=self._disk)
        figures = status.statistics
        return HealthAnswer(
            status.pid,
            status.since,
            "",
            status.health,
            {} if figures is None else figures.supervisor.queues,
            {} if figures is None else figures.compression,
            list(self._samples),
            status.mailboxes,
            self._disk,
        )

    async def take(self) -> None:
        """Ask once."""
        async with self._lock:
            await self._take()

    async def _take(self) -> None:
        if self._asked % _DISK_EVERY == 0:
            self._disk = await run_in_thread(_measure, self._directory)
        self._asked += 1
        before = self._last
        question = partial(ask, self._directory, timeout_s=PATIENCE_S)
        status, note = None, "no process has the memory open"
        try:
            status = await run_in_thread(question)
        except (InvalidInput, DirectoryUnusable, OwnerUnreachable) as e:
            note = str(e)
        self._last, self._note = status, note
        if status is None or before is None or status.pid != before.pid:
            self._samples.clear()
        elif (sample := _compare(before, status)) is not None:
            self._samples.append(sample)
        self._due = anyio.current_time() + self._interval_s  # rates of less time are noise


async def ask_about(
    directory: Path, *, figures: bool = False, **question: Any
) -> RuntimeStatus | None:
    """Return what the process says that has the memory open; None if no process says anything.

    Args:
        directory: the memory's.
        figures: whether statistics are wanted.
        question: see `StatusQuestion`.
    """
    asked = StatusQuestion(figures=figures, **question)
    try:
        return await run_in_thread(partial(ask_status, directory, asked, PATIENCE_S))
    except (InvalidInput, DirectoryUnusable, OwnerUnreachable):
        return None


def _compare(before: RuntimeStatus, after: RuntimeStatus) -> Sample | None:
    old, new = before.statistics, after.statistics
    if old is None or new is None or after.at_s <= before.at_s:
        return None
    seconds = after.at_s - before.at_s
    verbs, earlier = new.verbs, old.verbs
    appends, loads = verbs.append_s.since(earlier.append_s), verbs.load_s.since(earlier.load_s)
    late = verbs.sources.get("long_term", {}).get("late", 0)
    late -= earlier.sources.get("long_term", {}).get("late", 0)
    refused = new.registry.refused + new.registry.expired
    refused -= old.registry.refused + old.registry.expired
    queues = new.supervisor.queues.values()
    return Sample(
        at_ms=int(time.time() * 1_000),
        writes=max(new.log.writes - old.log.writes, 0) / seconds,
        commits=max(new.log.commits - old.log.commits, 0) / seconds,
        append_p50_ms=_milliseconds(appends, 0.5),
        append_p99_ms=_milliseconds(appends, 0.99),
        load_p50_ms=_milliseconds(loads, 0.5),
        load_p99_ms=_milliseconds(loads, 0.99),
        recall_p99_ms=_milliseconds(verbs.recall_s.since(earlier.recall_s), 0.99),
        late=max(late, 0) / seconds,
        commit_p99_ms=_milliseconds(new.log.commit_s.since(old.log.commit_s), 0.99),
        waiting=new.registry.queued + new.log.backlog,
        refused=max(refused, 0) / seconds,
        live=new.registry.live,
        jobs=sum(one.waiting + one.delayed + one.running for one in queues),
        wal_bytes=new.log.wal_bytes,
    )


def _milliseconds(seconds: Histogram, share: float) -> float | None:
    return seconds.quantile(share) * 1_000 if seconds.count else None


def _measure(directory: Path) -> dict[str, int]:
    """Bytes on the disk by part: ``journal``, ``write-ahead log``, ``long-term memory``."""
    found = {"journal": 0, "write-ahead log": 0, "long-term memory": 0}
    for name, size in measure_files(directory).items():
        if not Path(name).name.startswith("journal."):
            part = "long-term memory"
        else:
            part = "write-ahead log" if name.endswith(("-wal", "-shm")) else "journal"
        found[part] += size
    return found
