"""How much of the disk a memory takes: by file or table, by kind of row, by user."""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from remora.cluster.reading import MemoryReader, find_journals
from remora.cluster.sharded import runtimes_of
from remora.cluster.sharding import shard_of
from remora.errors import RemoraError
from remora.runtime.concurrency import is_open
from remora.runtime.threads import run_in_thread
from remora.storage.sqlite.sizes import TABLES, peek_sizes

_MOST_USERS = 50
_LANCE_TABLE = ".lance"


class RowsSize(msgspec.Struct, frozen=True):
    """Rows of one kind in the journal, and bytes of their contents."""

    kind: str
    rows: int
    bytes: int


class UserOnDisk(msgspec.Struct, frozen=True):
    """Rows of a user in the journal, and bytes of their contents.

    Attributes:
        long_term_rows: in long-term memory; None if that cannot be read, or is switched off.
        long_term_bytes: their share of its tables: bytes on the disk for each row, on average.
    """

    user: str
    rows: int
    bytes: int
    long_term_rows: int | None = None
    long_term_bytes: int | None = None


class DiskAnswer(msgspec.Struct, frozen=True):
    """The disk space of the memory.

    Attributes:
        at: when this was measured; None if it was not yet.
        measuring: rows that are counted so far, while a measurement runs; None if none runs.
        note: why the last measurement failed; empty if it did not.
        files: bytes of each file of the journal and each table of long-term memory, largest first.
        kinds: contents of the journal's rows, without indices.
        users: whose rows in the journal take most, largest first: 50 at most.
        all_users: how many users have rows.
    """

    at: datetime | None = None
    measuring: int | None = None
    note: str = ""
    files: Sequence[tuple[str, int]] = ()
    kinds: Sequence[RowsSize] = ()
    users: Sequence[UserOnDisk] = ()
    all_users: int = 0


class DiskMeter:
    """Measures when it is asked to, once at a time, with pauses as long as each slice took.

    Args:
        reader: reads the memory.
    """

    def __init__(self, reader: MemoryReader) -> None:
        self._reader = reader
        self._directory = reader.directory
        self._tasks: anyio.abc.TaskGroup | None = None
        self._last = DiskAnswer()
        self._counted: int | None = None

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Measure in this group from now on."""
        self._tasks = tasks

    def answer(self) -> DiskAnswer:
        """The last measurement, and how far the next one is."""
        return msgspec.structs.replace(self._last, measuring=self._counted)

    def begin(self) -> None:
        """Begin a measurement, unless one runs."""
        if self._counted is None and is_open(self._tasks):
            self._counted = 0
            self._tasks.start_soon(self._measure, name="remora.view.disk")

    async def _measure(self) -> None:
        try:
            self._last = await self._count()
        except (RemoraError, OSError) as e:
            self._last = msgspec.structs.replace(self._last, note=str(e))
        finally:
            self._counted = None

    async def _count(self) -> DiskAnswer:
        files = await run_in_thread(measure_files, self._directory)
        kinds = []
        users: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        journals = await run_in_thread(find_journals, self._directory)
        for kind in TABLES:
            rows = size = 0
            for journal in journals:
                after: int | None = 0
                while after is not None:
                    began = time.monotonic()
                    found = await run_in_thread(peek_sizes, journal, kind, after)
                    for one in found.users:
                        their_rows, their_bytes = users[one.user]
                        users[one.user] = (their_rows + one.rows, their_bytes + one.bytes)
                        rows, size = rows + one.rows, size + one.bytes
                    self._counted = (self._counted or 0) + sum(one.rows for one in found.users)
                    after = found.last
                    await anyio.sleep(time.monotonic() - began)  # the owner empties its log
            kinds.append(RowsSize(kind, rows, size))
        largest = heapq.nlargest(_MOST_USERS, users.items(), key=lambda one: one[1][1])
        shown = [UserOnDisk(user, *size) for user, size in largest]
        note = ""
        if self._reader.config.long_term.enabled:
            tables = sum(size for name, size in files.items() if name.endswith(_LANCE_TABLE))
            try:
                shown = await self._add_long_term(shown, tables)
            except RemoraError as e:
                note = f"long-term memory: {e}"
        return DiskAnswer(
            datetime.now(UTC),
            note=note,
            files=sorted(files.items(), key=lambda one: -one[1]),
            kinds=kinds,
            users=shown,
            all_users=len(users),
        )

    async def _add_long_term(self, users: Sequence[UserOnDisk], tables: int) -> list[UserOnDisk]:
        """The users with their rows of long-term memory, whose tables have so many bytes."""
        async with self._reader.open(long_term=True) as memory:
            stores = [await shard.internals.long_term() for shard in runtimes_of(memory)]
            rows = sum([(await store.statistics()).rows for store in stores])
            counts = [
                await stores[shard_of(one.user, len(stores))].count(one.user) for one in users
            ]
        each = tables / max(rows, 1)
        return [
            msgspec.structs.replace(one, long_term_rows=count, long_term_bytes=round(each * count))
            for one, count in zip(users, counts, strict=True)
        ]


def measure_files(directory: Path) -> dict[str, int]:
    """Bytes on the disk, by file or, for long-term memory, by table; names within the directory.

    Blocks on the file system.
    """
    found: defaultdict[str, int] = defaultdict(int)
    for path in directory.rglob("*"):
        try:
            size = path.stat().st_size if path.is_file() else 0
        except OSError:  # it was removed in the meantime
            continue
        within = path.relative_to(directory)
        parents = [one for one in within.parents if one.name.endswith(_LANCE_TABLE)]
        if size:
            found[str(parents[-1] if parents else within)] += size
    return dict(found)
