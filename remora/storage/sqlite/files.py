"""The size of the journal's files: the write-ahead log, and free pages in the main file."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import anyio

from remora.errors import StorageError
from remora.logging import get_logger
from remora.runtime.threads import run_in_thread
from remora.storage.sqlite.connection import JournalConnection, Query
from remora.storage.sqlite.writer import JournalWriter

__all__ = ["BUSY_MS", "JournalFiles"]

_logger = get_logger(__name__)
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
            await self._vacuum("PRAGMA wal_autocheckpoint = 0", "PRAGMA auto_vacuum = INCREMENTAL")
            try:
                await self._vacuum("VACUUM")
            finally:
                await self._vacuum(f"PRAGMA wal_autocheckpoint = {pages}")

        await self._journal.run_exclusively(operation)

    async def release_free_pages(self) -> None:
        """Keep the number of free pages bounded."""
        ((incremental,),) = await self._read("PRAGMA auto_vacuum")
        ((pages,),) = await self._read("PRAGMA page_count")
        before = await self._free_pages()
        if not incremental:  # an older remora made the file: it can only be rewritten as a whole
            if before > max(16 * _FREE_PAGES, pages // 2):
                await self.compact()
            return

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
