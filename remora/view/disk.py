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

from remora.cluster.reading import find_journals
from remora.errors import RemoraError
from remora.runtime.threads import run_in_thread
from remora.storage.sqlite.sizes import TABLES, UserSize, peek_sizes

__all__ = ["DiskAnswer", "DiskMeter", "RowsSize", "measure_files"]

_MOST_USERS = 50
_LANCE_TABLE = ".lance"


class RowsSize(msgspec.Struct, frozen=True):
    """Rows of one kind in the journal, and bytes of their contents."""

    kind: str
    rows: int
    bytes: int


class DiskAnswer(msgspec.Struct, frozen=True):
    """What the memory takes.

    Attributes:
        at: when this was measured; None if it was not yet.
        measuring: rows that are counted so far, while a measurement runs; None if none runs.
        note: why the last measurement failed; empty if it did not.
        files: bytes of each file of the journal and each table of long-term memory, largest first.
        kinds: contents of the journal's rows, without indices.
        users: whose rows take most, largest first: 50 at most.
        all_users: how many users have rows.
    """

    at: datetime | None = None
    measuring: int | None = None
    note: str = ""
    files: Sequence[tuple[str, int]] = ()
    kinds: Sequence[RowsSize] = ()
    users: Sequence[UserSize] = ()
    all_users: int = 0


class DiskMeter:
    """Measures when it is asked to, once at a time, with pauses as long as each slice took.

    Args:
        directory: of the memory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
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
        if self._counted is None and self._tasks is not None:
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
        return DiskAnswer(
            datetime.now(UTC),
            files=sorted(files.items(), key=lambda one: -one[1]),
            kinds=kinds,
            users=[UserSize(user, *size) for user, size in largest],
            all_users=len(users),
        )


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
