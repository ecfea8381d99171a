"""The journals that the conformance suite runs over, and how it breaks them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from remora.storage.memory import MemoryJournal
from remora.storage.ports import Journal, Write
from remora.storage.sqlite.journal import SqliteJournal
from remora.testing import CommitFault, FaultyJournal, JournalAccess
from remora.testing.journals import CommitFate

__all__ = ["BreakableJournal", "MemoryAccess", "SqliteAccess", "open_sqlite"]


class BreakableJournal(FaultyJournal):
    """A journal in memory whose next commit may break.

    A late commit has a number, as in a database that counts commits: it is stored only while no
    other has that number.
    """

    def __init__(self) -> None:
        self.fates: list[CommitFate] = []
        self.late: list[tuple[int, list[Write]]] = []
        super().__init__(self._next_fault)

    def _next_fault(self) -> CommitFault | None:
        faults: dict[CommitFate, CommitFault] = {
            "stored": "kept",
            "not_stored": "lost",
            "late": "lost",
        }
        return faults[self.fates.pop()] if self.fates else None

    async def commit(self) -> None:
        """See `MemoryJournal`."""
        if self._queue and "late" in self.fates:
            self.late.append((self.commit_number, list(self._queue)))
        await super().commit()

    def release(self) -> None:
        """Store the late commit, if its number is still free."""
        for number, batch in self.late:
            if number == self.commit_number:
                for write in batch:
                    self._keep(write)
                self._count_commit()
        self.late.clear()


class MemoryAccess(JournalAccess):
    """A journal in memory: opening it again starts it again.

    Args:
        made: makes the journal that is opened first.
    """

    def __init__(self, made: Callable[[], MemoryJournal] = BreakableJournal) -> None:
        self._made = made
        self.journal: MemoryJournal | None = None

    async def __call__(self) -> Journal:
        """See `JournalAccess`."""
        self.journal = self._made() if self.journal is None else self.journal.restart()
        return self.journal

    def break_next_commit(self, journal: Journal, fate: CommitFate) -> None:
        """See `JournalAccess`."""
        assert isinstance(journal, BreakableJournal)
        journal.fates.append(fate)

    async def release_late_commit(self) -> None:
        """See `JournalAccess`."""
        assert isinstance(self.journal, BreakableJournal)
        self.journal.release()


class BreakableSqlite(SqliteJournal):
    """A journal in a file whose next commit may break."""

    def break_next_commit(self, fate: CommitFate) -> None:
        """Fail as SQLite does when the disk failed at a commit: before it, or after."""
        writer: Any = self._writer
        run = writer.run_in_place

        def run_and_fail(connection: sqlite3.Connection, steps: Any) -> None:
            writer.run_in_place = run
            if fate == "stored":
                run(connection, steps)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error

        writer.run_in_place = run_and_fail


class SqliteAccess(JournalAccess):
    """A journal in a file."""

    target = "tests.journals:open_sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path

    async def __call__(self) -> Journal:
        """See `JournalAccess`."""
        return await open_sqlite(str(self.path))

    def break_next_commit(self, journal: Journal, fate: CommitFate) -> None:
        """See `JournalAccess`."""
        assert isinstance(journal, BreakableSqlite)
        journal.break_next_commit(fate)

    def process_target(self) -> tuple[str, str]:
        """See `JournalAccess`."""
        return self.target, str(self.path)

    async def stored_bytes(self) -> bytes:
        """The files of the directory, one after another."""

        def read() -> bytes:
            files = sorted(path for path in self.path.parent.iterdir() if path.is_file())
            return b"".join(path.read_bytes() for path in files)

        return await anyio.to_thread.run_sync(read)


async def open_sqlite(path: str) -> SqliteJournal:
    """Open the journal of a file."""
    return await BreakableSqlite.open(Path(path), durability="process")
