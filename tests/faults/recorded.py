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

import asyncio
import itertools
import os
import queue
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, cast
from unittest import mock

import anyio
import apsw

from remora.config import Durability
from remora.storage.sqlite import connection as journal_connection
from remora.storage.sqlite import journal as journal_module
from remora.storage.sqlite import mark as journal_mark
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


class _Statements:
    """What `journal_connection.run_steps` uses of a `sqlite3.Connection`, over apsw."""

    def __init__(self, database: apsw.Connection) -> None:
        self._database = database

    def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> _Rows:
        return self._counted(lambda: self._database.execute(sql, parameters))

    def executemany(self, sql: str, parameters: Sequence[Any]) -> _Rows:
        return self._counted(lambda: self._database.executemany(sql, parameters))

    def executescript(self, script: str) -> None:
        self.execute(script)

    def _counted(self, run: Callable[[], Iterable[Any]]) -> _Rows:
        before = self._database.total_changes()
        rows = _Rows(run())
        rows.rowcount = self._database.total_changes() - before
        rows.lastrowid = self._database.last_insert_rowid()
        return rows


class _Connection:
    """What `SqliteJournal` uses of a `JournalConnection`, over apsw: one thread, one statement
    after the other.
    """

    def __init__(self, path: str, disk: RecordedDisk) -> None:
        self.text_factory: Any = None
        self._path = path
        self._disk = disk
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._database: apsw.Connection | None = None

    def __await__(self) -> Iterator[Any]:
        self._thread.start()
        return self._open().__await__()

    async def _open(self) -> _Connection:
        def connect() -> None:
            self._database = apsw.Connection(self._path, vfs=self._disk.name)
            self._database.set_busy_timeout(5_000)

        await self._call(connect)
        return self

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    async def _call(self, work: Callable[[], Any]) -> Any:
        done = anyio.Event()
        outcome: list[Any] = []

        def on_done(result: Any, error: Exception | None) -> None:
            outcome.extend((result, error))
            done.set()

        self._start(work, on_done)
        await done.wait()
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def _start(self, work: Callable[[], Any], on_done: Callable[[Any, Any], None]) -> None:
        """Do it in the thread, and have the loop call `on_done` with its result and its error."""
        loop = asyncio.get_running_loop()

        def task() -> None:
            result: Any = None
            error: Exception | None = None
            try:
                result = work()
            except apsw.Error as e:
                error = _translated(e)
            except Exception as e:
                error = e
            loop.call_soon_threadsafe(on_done, result, error)

        self._tasks.put(task)

    @property
    def _open_database(self) -> apsw.Connection:
        if self._database is None:
            raise ValueError("no active connection")
        return self._database

    @property
    def in_transaction(self) -> bool:
        return self._open_database.in_transaction

    async def execute(self, sql: str, parameters: Iterable[Any] = ()) -> _Rows:
        found: _Rows = await self._call(
            lambda: _Statements(self._open_database).execute(sql, tuple(parameters))
        )
        return found

    execute_fetchall = execute

    async def executemany(self, sql: str, parameters: Sequence[Any]) -> _Rows:
        found: _Rows = await self._call(
            lambda: _Statements(self._open_database).executemany(sql, parameters)
        )
        return found

    async def executescript(self, script: str) -> None:
        await self.execute(script)

    async def run(self, steps: Sequence[journal_connection.Step]) -> None:
        await self._call(lambda: self._run_steps(steps))

    def submit(
        self,
        steps: Sequence[journal_connection.Step],
        on_done: Callable[[BaseException | None], None],
        earlier: journal_connection.Submitted | None = None,
    ) -> journal_connection.Submitted:
        submitted = journal_connection.Submitted(on_done, earlier)
        self._start(
            lambda: journal_connection.run_submitted(
                submitted, lambda _, steps: self._run_steps(steps), cast("Any", None), steps
            ),
            lambda _, e: submitted.set_result(None) if e is None else submitted.set_exception(e),
        )
        return submitted

    def _run_steps(self, steps: Sequence[journal_connection.Step]) -> None:
        journal_connection.run_steps(cast("Any", _Statements(self._open_database)), steps)

    async def close(self) -> None:
        if self._database is None:
            return
        database, self._database = self._database, None
        await self._call(database.close)
        self._tasks.put(None)


class _System:
    """`os`, to the commit mark: what it writes is recorded, too."""

    def __init__(self, disk: RecordedDisk, name: str) -> None:
        self._disk = disk
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        self._disk.did("write", self._name, offset, data)
        return os.pwrite(descriptor, data, offset)


@contextmanager
def exchanged(disk: RecordedDisk, path: Path) -> Iterator[None]:
    """While it lasts, a `SqliteJournal` that is opened at `path` has its files on `disk`."""

    def connection(path: Path) -> _Connection:
        return _Connection(str(path), disk)

    mark = _System(disk, journal_mark.mark_path(path).name)
    with (
        mock.patch.object(journal_module, "JournalConnection", connection),
        mock.patch.object(journal_mark, "os", mark),
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
