"""The SQLite journal: one file in WAL mode, a writing connection and a reading connection.

`writer` has the invariants of writing, `reading` those of reading.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import anyio

from remora.config import Durability
from remora.errors import CommitFailed, OutcomeUnknown, StorageError
from remora.logging import get_logger
from remora.runtime.log import LogStatistics
from remora.runtime.threads import run_in_thread
from remora.storage.attachments import BlobFiles
from remora.storage.journal_port import Finding
from remora.storage.layout import check_unmoved
from remora.storage.sqlite.backup import snapshot
from remora.storage.sqlite.changes import SqliteChanges
from remora.storage.sqlite.connection import JournalConnection, Query
from remora.storage.sqlite.opening import (
    SYNCHRONOUS,
    Ownership,
    check_commit_mark,
    migrate,
    open_error,
    take_ownership,
)
from remora.storage.sqlite.place import JournalPlace, prepare_file
from remora.storage.sqlite.verify import check_journal
from remora.storage.sqlite.writer import AUTO_CHECKPOINT_PAGES, JournalWriter
from remora.system.files import FULL_SYNC

T = TypeVar("T")

_logger = get_logger(__name__)
MANY_SESSIONS = 1_000
"""Sessions whose newest messages are looked at in less time than a commit takes."""


class SqliteJournal(JournalWriter, SqliteChanges):
    """Implements `remora.storage.ports.Journal` in one SQLite file. Made by `open`.

    Attributes:
        path: the file.
        instance: six hex digits that tell its message ids from another journal's.
        epoch: the number of its owners so far, this one included.
    """

    _reader: JournalConnection

    def __init__(
        self,
        path: Path,
        writer: JournalConnection,
        reader: JournalConnection,
        ownership: Ownership,
        *,
        max_batch_writes: int,
        max_wal_bytes: int,
        sync_attachments: bool = True,
    ) -> None:
        blobs = BlobFiles(path.parent, sync=sync_attachments)
        SqliteChanges.__init__(self, reader, writer, numbers=ownership.numbers, blobs=blobs)
        JournalWriter.__init__(self, path, writer, ownership, max_batch_writes=max_batch_writes)
        self.epoch = ownership.epoch
        self._files = JournalFiles(self, writer, self._read, max_wal_bytes=max_wal_bytes)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        durability: Durability,
        max_batch_writes: int = 8_192,
        max_wal_mb: int = 64,
        first_settings: Mapping[str, str] | None = None,
    ) -> SqliteJournal:
        """Open or create a journal, bring its schema up to date, and take it over.

        The work does not depend on the journal's size; `verify` checks every row.

        Args:
            path: the file; its write-ahead log and its commit mark are in the same directory.
            durability: what an acknowledged write survives (G3).
            max_batch_writes: writes joined in one group commit.
            max_wal_mb: size of the write-ahead log from which a reader that holds it is reported.
            first_settings: what a new journal's settings are to be; those that exist stay.

        Raises:
            JournalTooNew: a newer remora wrote it; it was not touched.
            JournalDamaged: it is not a journal, or SQLite finds it malformed, or acknowledged
                commits are missing, or the journal of this directory is.
            DirectoryUnusable: it cannot be opened for writing.
        """
        connections: list[JournalConnection] = []
        try:
            await run_in_thread(check_unmoved, path.parent)
            await run_in_thread(prepare_file, path)
            writer = JournalConnection(path)
            connections.append(writer)
            await writer
            await migrate(writer, path)
            await check_commit_mark(path)
            await writer.execute("PRAGMA journal_mode = WAL")
            await writer.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
            if FULL_SYNC is not None:
                await writer.execute("PRAGMA fullfsync = ON")
            await writer.execute("PRAGMA cache_size = -65536")
            # Overwrites what is deleted or replaced, which an append never is.
            await writer.execute("PRAGMA secure_delete = ON")
            await writer.execute(f"PRAGMA journal_size_limit = {max_wal_mb << 20}")
            await writer.execute(f"PRAGMA wal_autocheckpoint = {AUTO_CHECKPOINT_PAGES}")
            reader = JournalConnection(path)
            connections.append(reader)
            await reader
            await reader.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            await reader.execute("PRAGMA cache_size = -65536")
            ownership = await take_ownership(writer, path, durability, first_settings or {})
            writer.place = await run_in_thread(JournalPlace, path)
            return cls(
                path,
                writer,
                reader,
                ownership,
                max_batch_writes=max_batch_writes,
                max_wal_bytes=max_wal_mb << 20,
                sync_attachments=durability == "power",
            )
        except BaseException as e:
            with anyio.CancelScope(shield=True):
                for connection in connections:
                    await connection.close()
            if isinstance(e, sqlite3.Error | UnicodeDecodeError):
                raise open_error(e, path) from e
            raise

    def statistics(self) -> LogStatistics:
        return self.meter.figures(
            len(self._queue),
            self._files.wal_bytes,
            self._files.wal_held_s,
            str(self._owned.lost or ""),
        )

    # -- listings ----------------------------------------------------------------------------------

    def unwritten_uses(self) -> tuple[int, ...] | None:
        """See `remora.storage.journal_port.IndexesUses`."""
        return self._uses.unwritten() if self._uses.complete else None

    async def _uses_are_indexed(self, where: str, *parameters: str) -> bool:
        """Write the uses first, unless looking at so few newest messages takes less time."""
        ((count,),) = await self._read(
            f"SELECT count(*) FROM (SELECT 1 FROM actors {where} LIMIT ?)",
            (*parameters, MANY_SESSIONS + 1),
        )
        return bool(count > MANY_SESSIONS) and await self._write_uses()

    async def _write_uses(self) -> bool:
        """Write when sessions were last used; False if that is not possible now."""
        try:
            while not self._uses.complete:
                await self.transaction(self._compute_uses, self._uses.computed)
            if self._uses.held:
                await self.transaction(self._store_uses, lambda _: self._uses.committed())
        except (CommitFailed, OutcomeUnknown, StorageError):
            self._uses.take_back()
            return False
        return True

    async def _compute_uses(self) -> int:
        select = "SELECT coalesce(max(sid), 0) FROM actors"
        ((last_sid,),) = await self._writer.execute_fetchall(select)
        await self._writer.run(self._uses.compute_some(last_sid))
        return int(last_sid)

    async def _store_uses(self) -> None:
        await self._writer.run(self._uses.take())

    # -- erasure and retention ---------------------------------------------------------------------

    async def finish_erasure(self, number: int) -> None:
        await super().finish_erasure(number)
        await self._files.empty_wal()

    async def scrub(self) -> None:
        await super().scrub()
        await self._files.compact()
        await self._files.empty_wal()

    async def _release_pages(self) -> None:
        await self._files.release_free_pages()

    # -- upkeep ------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        await self._owned.check_place()
        if self._owned.lost is not None:
            return
        ((epoch,),) = await self._read("SELECT value FROM settings WHERE name = 'epoch'")
        self._owned.check_epoch(int(epoch))
        await self._files.checkpoint()

    async def backup(self, path: Path) -> None:
        """Copy the journal to a new file while it is in use: all acknowledged writes, synced (G3).

        The copy is of one moment, and is a journal of its own.

        Raises:
            InvalidInput: there is something at `path`, or no directory for it.
            StorageError: it cannot be read, or the disk refused; then there is nothing at `path`.
        """
        await run_in_thread(snapshot, self.path, path)

    async def verify(self) -> list[Finding]:
        """All damage in the journal, by checking every row (kinds ``journal`` and ``wal``).

        It can be in use. It takes seconds for a gigabyte, while the write-ahead log grows.

        Raises:
            StorageError: it cannot be read at all.
        """
        return await run_in_thread(check_journal, self.path)

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self._finish()
                await self._reader.close()
                await self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error:
                _logger.exception(
                    "journal_close_failed"
                )  # the next start reads the write-ahead log
            finally:
                await self._reader.close()
                await self._writer.close()
                self._mark.close()

    def abandon(self) -> None:
        """Release the commit mark's file only, as if the process had died; for simulations."""
        self._mark.close()


# -- the size of the journal's files: the write-ahead log, and free pages in the main file ---------

BUSY_MS = 5_000
_EMPTY_WAL_S = 30.0  # how long emptying the write-ahead log is tried
_EMPTY_WAL_PAUSE_S = 0.05
_FREE_PAGES = 1_024  # kept in the file for what comes next; trimming gives back the others
_PAGES_AT_ONCE = 2_048


class JournalFiles:
    """Keeps the files small, through the writer.

    Args:
        journal: does the work, in turn among the writes.
        writer: its writing connection.
        read: queries its reading connection.
        max_wal_bytes: size of the write-ahead log from which it is worth an alarm.

    Attributes:
        wal_bytes: size of the write-ahead log at the last checkpoint.
    """

    def __init__(
        self,
        journal: JournalWriter,
        writer: JournalConnection,
        read: Query,
        *,
        max_wal_bytes: int,
    ) -> None:
        self.wal_bytes = 0
        self._wal = journal.path.with_name(f"{journal.path.name}-wal")
        self._journal = journal
        self._writer = writer
        self._read = read
        self._max_wal = max_wal_bytes
        self._over_since, self._alarmed = 0.0, False

    @property
    def wal_held_s(self) -> float:
        """How long a reader has kept the write-ahead log over its bound; 0 when none does."""
        return time.monotonic() - self._over_since if self._over_since else 0.0

    async def checkpoint(self) -> None:
        """Move the write-ahead log into the main file, as far as readers permit; watch its size.

        SQLite starts the log again once all of it was moved and nobody reads it. If it is still
        over its bound one checkpoint later, somebody reads a very old state: this is logged once
        each time, and shown in the statistics.
        """
        ((_, frames, moved),) = await self._read("PRAGMA wal_checkpoint(PASSIVE)")
        size = await _size(self._wal)
        if size > self._max_wal and frames == moved and not self._journal.closed:
            await self._journal.run_exclusively(self._truncate_wal)
        self.wal_bytes = size = await _size(self._wal)
        if size <= self._max_wal:
            if self._over_since:
                _logger.info("wal_released", bytes=size, held_s=self.wal_held_s)
            self._over_since, self._alarmed = 0.0, False
        elif not self._over_since:
            self._over_since, self._alarmed = time.monotonic(), False
        elif not self._alarmed:
            self._alarmed = True
            _logger.error(
                "wal_held_back",
                path=str(self._wal),
                bytes=size,
                bound=self._max_wal,
                held_s=self.wal_held_s,
                hint="a reader, a backup or another program, has had the journal open for long",
            )

    async def empty_wal(self) -> None:
        """Return when the write-ahead log is empty.

        Raises:
            StorageError: a reader is in the way for too long.
        """
        deadline = anyio.current_time() + _EMPTY_WAL_S
        while True:
            # By the reading connection: writes go on, and wait only for what came since.
            await self._read("PRAGMA wal_checkpoint(PASSIVE)")
            if await self._journal.run_exclusively(self._truncate_wal):
                return
            if anyio.current_time() > deadline:
                raise StorageError(
                    "the write-ahead log cannot be emptied: a reader has been in the way for too "
                    "long"
                )
            await anyio.sleep(_EMPTY_WAL_PAUSE_S)

    async def _truncate_wal(self) -> bool:
        """Return whether the log is empty now; does not wait for a reader that needs it."""
        try:
            await self._writer.execute("PRAGMA busy_timeout = 0")
            try:
                ((busy, _, _),) = await self._writer.execute_fetchall(
                    "PRAGMA wal_checkpoint(TRUNCATE)"
                )
            finally:
                await self._writer.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        except sqlite3.Error as e:
            raise StorageError(f"the write-ahead log cannot be emptied: {e}") from e
        self._journal.reset_mark()
        return not busy

    async def compact(self) -> None:
        """Rewrite the main file without deleted rows.

        Zeros over deleted rows (`secure_delete`) are not enough: where SQLite moved rows between
        pages, it left copies in the pages' free space, and a copy outlives its row.
        """

        async def operation() -> None:
            ((pages,),) = await self._writer.execute_fetchall("PRAGMA wal_autocheckpoint")
            # What this writes is moved into the main file by the reading connection (`empty_wal`).
            await self._vacuum("PRAGMA wal_autocheckpoint = 0")
            try:
                await self._vacuum("VACUUM")
            finally:
                await self._vacuum(f"PRAGMA wal_autocheckpoint = {pages}")

        await self._journal.run_exclusively(operation)

    async def release_free_pages(self) -> None:
        """Keep the number of free pages bounded."""
        before = await self._free_pages()

        async def release_some() -> None:
            # the statement frees a page at each step
            await self._vacuum(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")

        while before > _FREE_PAGES:
            await self._journal.run_exclusively(release_some)
            after = await self._free_pages()
            if after >= before:
                break
            before = after

    async def _free_pages(self) -> int:
        ((count,),) = await self._read("PRAGMA freelist_count")
        return int(count)

    async def _vacuum(self, *statements: str) -> None:
        self._journal.check_ownership()
        try:
            for statement in statements:
                await self._writer.execute_fetchall(statement)
        except sqlite3.Error as e:
            raise StorageError(
                f"the journal cannot be made smaller ({e}); nothing that it holds was changed"
            ) from e


async def _size(path: Path) -> int:
    try:
        return (await run_in_thread(os.stat, path)).st_size
    except OSError:
        return 0
