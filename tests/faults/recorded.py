"""The real journal over a disk that is watched: every write, sync, truncation and deletion is seen,
may fail, and can be undone.

`RecordedDisk` is an SQLite VFS (by apsw, for tests alone) over the file system's own. `journal_on`
opens a `SqliteJournal` on it: all of it is the real one, its statements, pragmas, tasks and commit
mark; what is exchanged is the library under its connections.

From what was recorded `states` makes the directories that a power cut could have left behind, after
any step: what was synced is there; of what was not, everything, nothing, a prefix, or any part,
each write whole or torn at a sector. A kill leaves what was written.
"""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import anyio
import apsw

from remora.config import Durability
from remora.storage.sqlite import journal as journal_module
from remora.storage.sqlite import mark as journal_mark
from remora.storage.sqlite.connection import JournalConnection
from remora.storage.sqlite.journal import SqliteJournal

SECTOR = 512
Step = tuple[str, str, int, bytes]
"""What was done: ``write``, ``sync``, ``truncate``, ``delete``, or ``note``; the file's name (of a
note, its text); offset, or size; data.
"""
Fault = Callable[[str, str, int], Exception | None]
"""Asked before each write, sync and truncation, with the file's name and the step's number: what it
fails with, or None.
"""


def disk_full(*_: Any) -> Exception:
    """What a write meets on a disk without room."""
    return _failure(apsw.FullError("database or disk is full"), apsw.SQLITE_FULL)


def sync_failed(*_: Any) -> Exception:
    """What a sync meets on a disk that is broken (EIO)."""
    return _failure(apsw.IOError("disk I/O error"), apsw.SQLITE_IOERR_FSYNC)


def _failure(error: apsw.Error, code: int) -> apsw.Error:
    told: Any = error  # what SQLite reads off an exception of its own, ours must say, too
    told.result, told.extendedresult = code & 0xFF, code
    return error


class RecordedDisk(apsw.VFS):
    """A VFS that notes what is done to each file, and fails as it is told to."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.name = f"recorded-{os.getpid()}-{next(self._numbers)}"
        self.steps: list[Step] = []
        self.fault: Fault | None = None
        self.recording = True
        self.guard = threading.Lock()
        super().__init__(self.name, "")

    def note(self, text: str) -> None:
        """Stand in the record between what was done before and what comes after."""
        with self.guard:
            self.steps.append(("note", text, 0, b""))

    def did(self, what: str, name: str, at: int = 0, data: bytes = b"") -> None:
        with self.guard:
            if self.fault is not None and what != "delete":
                error = self.fault(what, name, len(self.steps))
                if error is not None:
                    raise error
            if self.recording:
                self.steps.append((what, name, at, data))

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)

    def xDelete(self, name: str, syncdir: bool) -> None:  # noqa: N802
        self.did("delete", Path(name).name)
        super().xDelete(name, syncdir)


class _File(apsw.VFSFile):
    def __init__(self, disk: RecordedDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = Path(path).name if path else ""
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._name:  # a temporary file is nobody's after a crash
            self._disk.did("write", self._name, offset, bytes(data))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._name:
            self._disk.did("sync", self._name)
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        if self._name:
            self._disk.did("truncate", self._name, size)
        super().xTruncate(size)


# -- the library under the journal -----------------------------------------------------------------


@contextmanager
def _errors_translated() -> Iterator[None]:
    try:
        yield
    except apsw.Error as e:
        raise _translated(e) from e


def _translated(error: apsw.Error) -> sqlite3.Error:
    told: Any = error
    name = apsw.mapping_extended_result_codes.get(
        told.extendedresult
    ) or apsw.mapping_result_codes.get(told.result, "")
    kind: type[sqlite3.Error] = sqlite3.OperationalError
    if isinstance(error, apsw.ConstraintError):
        kind = sqlite3.IntegrityError
    elif isinstance(error, apsw.NotADBError | apsw.CorruptError):
        kind = sqlite3.DatabaseError
    translated = kind(str(error))
    translated.sqlite_errorname = str(name)
    return translated


class _Rows(list[Any]):
    """What a statement gave, and how many rows it changed."""

    rowcount = -1
    lastrowid: int | None = None

    def fetchall(self) -> list[Any]:
        return self

    def close(self) -> None:
        pass


class _Database:
    """What aiosqlite and the journal use of a `sqlite3.Connection`, over apsw."""

    text_factory: Any = str

    def __init__(self, path: str, disk: RecordedDisk) -> None:
        with _errors_translated():
            self._database = apsw.Connection(path, vfs=disk.name)
            self._database.set_busy_timeout(5_000)

    @property
    def in_transaction(self) -> bool:
        return self._database.in_transaction

    def execute(self, sql: str, parameters: Any = ()) -> _Rows:
        return self._counted(lambda: self._database.execute(sql, parameters))

    def executemany(self, sql: str, parameters: Sequence[Any]) -> _Rows:
        return self._counted(lambda: self._database.executemany(sql, parameters))

    def executescript(self, script: str) -> None:
        self.execute(script)

    def _counted(self, run: Callable[[], Iterable[Any]]) -> _Rows:
        with _errors_translated():
            before = self._database.total_changes()
            rows = _Rows(run())
            rows.rowcount = self._database.total_changes() - before
            rows.lastrowid = self._database.last_insert_rowid()
            return rows

    def close(self) -> None:
        with _errors_translated():
            self._database.close()


class _Connection(JournalConnection):
    """A connection of the journal, the database under which is on a recorded disk."""

    def __init__(self, path: Path, disk: RecordedDisk) -> None:
        super().__init__(path)
        self._connector: Any = lambda: _Database(str(path), disk)


@contextmanager
def exchanged(disk: RecordedDisk, path: Path) -> Iterator[None]:
    """While it lasts, a `SqliteJournal` that is opened at `path` has its files on `disk`."""

    name = journal_mark.mark_path(path).name

    def write_mark(descriptor: int, data: bytes, offset: int) -> int:
        disk.did("write", name, offset, data)
        return os.pwrite(descriptor, data, offset)

    with (
        mock.patch.object(journal_module, "JournalConnection", partial(_Connection, disk=disk)),
        mock.patch.object(journal_mark, "write_at", write_mark),
    ):
        yield


@asynccontextmanager
async def journal_on(
    disk: RecordedDisk, path: Path, *, durability: Durability, **options: Any
) -> AsyncIterator[SqliteJournal]:
    """The real journal, its files on `disk`, committing; closed in the end."""
    with exchanged(disk, path):
        journal = await SqliteJournal.open(path, durability=durability, **options)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(journal.run)
            yield journal
            tasks.cancel_scope.cancel()
        await journal.aclose()


# -- what a crash leaves ---------------------------------------------------------------------------

Loss = Literal["kill", "nothing", "all", "prefix", "some"]
"""What becomes of what was written and not synced: a kill keeps it; after a power cut all of it is
there, or nothing, or what was written first, or any of it.
"""


def _applied(content: bytearray, step: Step) -> None:
    what, _, at, data = step
    if what == "truncate":
        del content[at:]
        return
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def crash_state(steps: Sequence[Step], loss: Loss, rng: random.Random) -> dict[str, bytes]:
    """The files after these steps and a crash."""
    durable: dict[str, bytearray] = {}
    pending: dict[str, list[Step]] = {}
    for step in steps:
        what, name, _, _ = step
        if what == "sync":
            content = durable.setdefault(name, bytearray())
            for one in pending.pop(name, ()):
                _applied(content, one)
        elif what == "delete":
            durable.pop(name, None)
            pending.pop(name, None)
        elif what != "note":
            pending.setdefault(name, []).append(step)
    for name, waiting in pending.items():
        content = durable.setdefault(name, bytearray())
        cut = rng.randrange(len(waiting) + 1)
        for number, step in enumerate(waiting):
            gone = {
                "kill": False,
                "nothing": True,
                "all": False,
                "prefix": number >= cut,
                "some": rng.random() < 0.5,
            }[loss]
            if gone:
                continue
            data = step[3]
            if (
                loss in {"prefix", "some"}
                and step[0] == "write"
                and len(data) > SECTOR
                and rng.random() < 0.3
            ):
                step = (*step[:3], data[: SECTOR * rng.randrange(1, -(-len(data) // SECTOR))])  # noqa: PLW2901
            _applied(content, step)
    return {name: bytes(content) for name, content in durable.items() if not name.endswith("-shm")}


def states(
    steps: Sequence[Step], first: int, rng: random.Random, *, most: int
) -> Iterator[tuple[int, Loss, dict[str, bytes]]]:
    """Crash states: after how many steps, what was lost, and the files. All of them, or `most`
    drawn from them.
    """
    losses: tuple[Loss, ...] = ("kill", "nothing", "all", "prefix", "some", "some")
    every = [(number, loss) for number in range(first, len(steps) + 1) for loss in losses]
    for number, loss in sorted(rng.sample(every, most)) if most < len(every) else every:
        yield number, loss, crash_state(steps[:number], loss, rng)
