"""The SQLite journal: one file in WAL mode, a writing connection and a reading connection.

`writer` has the invariants of writing, `reading` those of reading.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import anyio

from remora.config import Durability
from remora.errors import CommitFailed, OutcomeUnknown, OwnershipLost, StorageError
from remora.logging import get_logger
from remora.runtime.log import LogStatistics
from remora.runtime.threads import run_in_thread
from remora.storage.attachments import Attachments, BlobFiles
from remora.storage.journal_port import Erased, Finding, Retention
from remora.storage.layout import check_unmoved
from remora.storage.sqlite.backup import snapshot
from remora.storage.sqlite.connection import JournalConnection
from remora.storage.sqlite.erasing import delete_message_slice, delete_rows
from remora.storage.sqlite.files import BUSY_MS, JournalFiles
from remora.storage.sqlite.opening import (
    SYNCHRONOUS,
    Ownership,
    check_commit_mark,
    migrate,
    open_error,
    take_ownership,
)
from remora.storage.sqlite.place import JournalPlace, prepare_file
from remora.storage.sqlite.reading import JournalReader
from remora.storage.sqlite.trimming import SqliteArchive, trim_rows
from remora.storage.sqlite.verify import check_journal
from remora.storage.sqlite.writer import AUTO_CHECKPOINT_PAGES, JournalWriter
from remora.storage.trimming import trim_beyond

__all__ = ["MANY_SESSIONS", "SqliteJournal"]

T = TypeVar("T")

_logger = get_logger(__name__)
MANY_SESSIONS = 1_000
"""Sessions whose newest messages are looked at in less time than a commit takes."""


class SqliteJournal(JournalReader, JournalWriter):
    """Implements `remora.storage.ports.Journal` in one SQLite file. Made by `open`.

    Attributes:
        path: the file.
        instance: six hex digits that tell its message ids from another journal's.
        epoch: the number of its owners so far, this one included.
    """

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
        JournalReader.__init__(self, reader, numbers=ownership.numbers)
        JournalWriter.__init__(self, path, writer, ownership, max_batch_writes=max_batch_writes)
        self.epoch = ownership.epoch
        self.attachments = Attachments(
            BlobFiles(path.parent, sync=sync_attachments), self, self._referring, self._all_users
        )
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
            if self._uses.any:
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

    # -- settings ----------------------------------------------------------------------------------

    async def init_setting(self, name: str, value: str) -> str:
        current = await self.setting(name)
        if current is not None:
            self._owned.check()
            return current

        async def work() -> str:
            insert = "INSERT OR IGNORE INTO settings VALUES (?, ?)"
            await self._writer.execute(insert, (name, value))
            select = "SELECT value FROM settings WHERE name = ?"
            ((found,),) = await self._writer.execute_fetchall(select, (name,))
            return str(found)

        return await self._write_settings(work)

    async def change_settings(self, settings: Mapping[str, str]) -> None:
        if not settings:
            return

        async def work() -> None:
            upsert = (
                "INSERT INTO settings VALUES (?, ?) "
                "ON CONFLICT DO UPDATE SET value = excluded.value"
            )
            await self._writer.executemany(upsert, settings.items())

        await self._write_settings(work)

    async def _write_settings(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self.transaction(work)
        except OwnershipLost:
            raise
        except (CommitFailed, OutcomeUnknown) as e:
            raise StorageError(f"the journal's settings cannot be changed ({e})") from e

    # -- erasure and retention ---------------------------------------------------------------------

    async def erase(self, user: str, session: str | None = None) -> Erased:
        async def work() -> tuple[Erased, Sequence[int]]:
            return await delete_rows(self._writer, user, session)

        def refuse_writes(outcome: tuple[Erased, Sequence[int]]) -> None:
            self._erased.update(outcome[1])

        async with self.attachments.removing([user], session, whole=session is None):
            erased, _ = await self.transaction(work, refuse_writes)
            try:
                erased.removed["messages"] = await self._delete_messages()
            except CommitFailed as e:
                raise OutcomeUnknown(f"not all messages are deleted yet ({e})") from e
        return erased

    async def _delete_messages(self) -> int:
        """Delete what erasures have left to do; returns how many messages went."""

        async def work() -> tuple[int, bool]:
            return await delete_message_slice(self._writer)

        count, more = 0, True
        while more:
            gone, more = await self.transaction(work)
            count += gone
        return count

    async def finish_erasure(self, number: int) -> None:
        async def work() -> None:
            await self._writer.execute("DELETE FROM erasures WHERE number = ?", (number,))

        await self.transaction(work)
        await self._files.empty_wal()

    async def scrub(self) -> None:
        await self._delete_messages()
        await self.attachments.sweep()
        await self._files.compact()
        await self._files.empty_wal()

    async def trim(self, limits: Retention, now_us: int) -> int:
        async def remove(wanted: Mapping[int, int]) -> tuple[int, dict[int, int]]:
            async with self.attachments.removing(await archive.attaching(wanted)):
                return await self.transaction(lambda: trim_rows(self._writer, wanted))

        archive = SqliteArchive(self._read)
        count = await trim_beyond(archive, limits, now_us, remove)
        await self.attachments.sweep()
        if count:
            await self._files.release_free_pages()
        return count

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
