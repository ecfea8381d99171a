"""The write-ahead journal: SQLite in WAL mode, one writer task, group commit across all sessions.

Invariants
----------
1. One task, `run`, owns the writing connection. aiosqlite runs a cancelled call to its end and
   drops the result, so a caller's cancellation must never reach it: callers queue a `Write` and
   wait for its promise elsewhere.
2. Whatever is queued when the last commit returns goes into the next one: one statement per kind of
   row, one commit, and one call to the connection's thread, however many sessions take part. Who
   waits is told a few at a time, beside the next commit. With `synchronous=FULL` the cost of the
   fsync is shared, and FULL costs nearly what NORMAL does from 16 writers on (NORMAL lost
   acknowledged rows in 447 of 840 enumerated crash states, FULL in 0 of 1 000).
3. Writes of one session settle in the order in which they were handed over. When one fails, all
   that landed before it are told first, and its cell fences those behind it before this task takes
   the next batch, so a later record can never be stored without an earlier one.
4. A failed statement is rolled back and provably left nothing: `CommitFailed`. A failed write or
   sync of the files may have left frames in the write-ahead log that a crash brings back:
   `OutcomeUnknown`.
5. A write that cannot be stored (not the disk's fault but its own) fails alone: the batch is halved
    until it stands by itself.

6. Whoever opens a journal owns it, by a number that is looked at within every commit: a writer that
   was overtaken, by a process that found the lock gone, say, stores nothing more (`OwnershipLost`).
7. After a commit, and before anybody is told, the commit mark says that it is there
    (`journal_mark`).
8. Erasing, trimming and compacting are done by the same task, between batches: they see all that
    was written before them.

A second connection reads (`journal_reading`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from remora.config import Durability
from remora.errors import CommitFailed, OutcomeUnknown, OwnershipLost, StorageError
from remora.logging import get_logger
from remora.runtime.log import LogStatistics, Write
from remora.runtime.probes import probe
from remora.storage.ports import Erased, Finding, Retention
from remora.storage.sqlite.backup import snapshot
from remora.storage.sqlite.connection import JournalConnection, NothingChanged, Step
from remora.storage.sqlite.erasing import delete_rows
from remora.storage.sqlite.opening import (
    SYNCHRONOUS,
    Ownership,
    check_commit_mark,
    migrate,
    open_error,
    take_ownership,
)
from remora.storage.sqlite.reading import JournalReader
from remora.storage.sqlite.rows import INSERT_MESSAGES, Rows
from remora.storage.sqlite.trimming import messages_beyond, trim_rows
from remora.storage.sqlite.verify import check_journal

__all__ = ["SqliteJournal"]

T = TypeVar("T")

_logger = get_logger("remora.journal")
_BUSY_MS = 5_000
_BEGIN = Step("BEGIN IMMEDIATE; UPDATE settings SET value = value + 1 WHERE name = 'commits'")
"""Begins a counted commit.

See `journal_mark`, and `journal_opening.take_ownership` for what it fails of.
"""
_COMMIT = Step("COMMIT", [()])
_OWNER = "(SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'epoch')"
_SCRUB_S = 30.0  # how long the write-ahead log is tried to be emptied
_FREE_PAGES = 1_024  # left in the file for what comes next; beyond, trimming gives them back
_PAGES_AT_ONCE = 2_048
_SLICE = 16  # who waits is told so many at a time
# Pages of write-ahead log from which the writer folds it into the main file by itself, and begins
# it anew. A log that grows makes each sync twice as long as one that is written over: with few
# writers, whose commits are all sync, it must not grow for long. With many, folding it in so often
# costs more than that.
_FOLD_IN = 1_000
_FOLD_IN_BUSY = 16_384
_BUSY_WRITES = 16  # a commit of so many says that there are many writers
_FAILURES = (sqlite3.Error, OverflowError, TypeError, ValueError)


class _Overtaken(Exception):
    """The journal has another owner by now."""


class _Turn(Generic[T]):
    """Work of the writer's own, between the writes that were queued before it and those that come
    after.
    """

    def __init__(self, operation: Callable[[], Awaitable[T]], after: int) -> None:
        self.after = after
        self.done = anyio.Event()
        self._operation = operation
        self._outcome: list[T] = []
        self._error: Exception | None = None

    async def run(self) -> None:
        try:
            self._outcome.append(await self._operation())
        except Exception as e:
            self._error = e
        self.done.set()

    async def outcome(self) -> T:
        await self.done.wait()
        if self._error is not None:
            raise self._error
        return self._outcome[0]


class SqliteJournal(JournalReader):
    """Implements `remora.storage.ports.Journal` in one SQLite file. Made by `open`.

    Attributes:
        instance: six hex digits that tell its message ids from another journal's.
        path: the file.
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
    ) -> None:
        super().__init__(reader, next_sid=ownership.next_sid)
        self.path = path
        self.instance = ownership.instance
        self._writer = writer
        self._max_batch = max_batch_writes
        self._max_wal = max_wal_bytes
        self._epoch = ownership.epoch
        self._commit_number = ownership.commits
        self._mark = ownership.mark
        self._queue: list[Write] = []
        self._taken = 0
        """Writes that left the queue since opening."""
        self._turns: deque[_Turn[Any]] = deque()
        self._event = anyio.Event()
        self._landed: deque[Write] = deque()
        """Writes that are durable, and whose owners are yet to be told."""
        self._landed_event = anyio.Event()
        self._busy = False
        """There have been many writers at a time."""
        self._lost: OwnershipLost | None = None
        self._gone: set[int] = set()
        """Actors that were erased since opening."""
        self._closed = False
        self._commits = self._failed = self._writes = self._records = 0
        self._wal_bytes, self._wal_since, self._alarmed = 0, 0.0, False

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        durability: Durability,
        max_batch_writes: int = 8_192,
        max_wal_mb: int = 64,
    ) -> SqliteJournal:
        """Open or create a journal, bring its schema up to date, and take it over from whoever had
        it.

        What it does does not depend on the journal's size; `verify` looks at every row.

        Args:
            path: the file; its write-ahead log and its commit mark are beside it.
            durability: what an acknowledged write survives (G3).
            max_batch_writes: writes joined in one group commit.
            max_wal_mb: size of the write-ahead log from which it is worth an alarm that a reader
                holds it back.

        Raises:
            JournalTooNew: a newer remora wrote it; it was not touched.
            JournalDamaged: it is not a journal, or SQLite finds it malformed, or acknowledged
                commits are missing.
            DirectoryUnusable: it cannot be opened for writing.
        """
        connections: list[JournalConnection] = []
        try:
            writer = JournalConnection(path)
            connections.append(writer)
            await writer
            await migrate(writer, path)
            await check_commit_mark(path)
            await writer.execute("PRAGMA journal_mode = WAL")
            await writer.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
            await writer.execute("PRAGMA cache_size = -65536")
            # What is deleted or replaced is overwritten; messages, which are neither on the hot
            # path, cost nothing for it.
            await writer.execute("PRAGMA secure_delete = ON")
            await writer.execute(f"PRAGMA journal_size_limit = {max_wal_mb << 20}")
            await writer.execute(f"PRAGMA wal_autocheckpoint = {_FOLD_IN}")
            reader = JournalConnection(path)
            connections.append(reader)
            await reader
            await reader.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            await reader.execute("PRAGMA cache_size = -65536")
            ownership = await take_ownership(writer, path, durability)
            return cls(
                path,
                writer,
                reader,
                ownership,
                max_batch_writes=max_batch_writes,
                max_wal_bytes=max_wal_mb << 20,
            )
        except BaseException as e:
            with anyio.CancelScope(shield=True):
                for connection in connections:
                    await connection.close()
            if isinstance(e, sqlite3.Error | UnicodeDecodeError):
                raise open_error(e, path) from e
            raise

    # -- writing -----------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        """Queue a write for the next group commit."""
        self._queue.append(write)
        self._event.set()

    async def run(self) -> None:
        """Commit what is queued, for ever: the writer task."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tell)
            while True:
                if not self._queue and not self._turns:
                    self._event = anyio.Event()
                    await self._event.wait()
                await self._commit_queued()

    async def _tell(self) -> None:
        """Settle what a large commit stored, slice by slice.

        Whoever is told sends the next message, most often. Told all at once, they would all be at
        work while the disk is idle, and then all wait for it; and nothing else would have its turn
        for as long as thousands of them take. So the next commit takes what the first have sent
        while the others are being told.
        """
        while True:
            if not self._landed:
                self._landed_event = anyio.Event()
                await self._landed_event.wait()
            self._settle(_SLICE)
            await anyio.lowlevel.checkpoint()

    def _settle(self, most: int) -> None:
        landed = self._landed
        for _ in range(min(most, len(landed))):
            landed.popleft().acknowledge(None)

    def _settle_all(self) -> None:
        """Before anybody is told of a failure, and before other work.

        Writes settle in their order.
        """
        self._settle(len(self._landed))

    async def _commit_queued(self) -> None:
        with anyio.CancelScope(shield=True):
            while self._queue or self._turns:
                room = self._max_batch
                if self._turns:
                    room = min(room, self._turns[0].after - self._taken)
                    if not room:
                        probe("writer_did_other_work")
                        self._settle_all()
                        await self._turns.popleft().run()
                        continue
                taken = self._queue[:room]
                self._taken += len(taken)
                del self._queue[:room]  # before anybody is told anything, and writes something else
                batch = [write for write in taken if not write.fenced and not self._refused(write)]
                if batch:
                    await self._commit(batch)

    def _refused(self, write: Write) -> bool:
        """Whether a write is for an actor that was erased: there must be no rows of it again."""
        if not self._gone or not any(
            getattr(record, "sid", 0) in self._gone for record in write.records
        ):
            return False
        probe("write_of_forgotten_refused")
        self._settle_all()
        write.acknowledge(CommitFailed("this was forgotten meanwhile; nothing of it was kept"))
        return True

    async def _commit(self, batch: Sequence[Write]) -> None:
        rows = Rows()
        try:
            if self._lost is not None:
                raise _Overtaken
            for write in batch:
                for record in write.records:
                    rows.add(record)
            if len(batch) >= _BUSY_WRITES and not self._busy:
                await self._writer.execute(f"PRAGMA wal_autocheckpoint = {_FOLD_IN_BUSY}")
                self._busy = True
            await self._store(rows)
        except (*_FAILURES, _Overtaken) as e:
            self._failed += 1
            error, alone = await self._failure(e)
            if alone and len(batch) > 1:
                probe("batch_halved")
                # one of them cannot be stored: halve the batch until it stands alone
                for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                    standing = [
                        write for write in half if not write.fenced
                    ]  # an earlier failure may have fenced it
                    if standing:
                        await self._commit(standing)
                return
            _logger.error(
                "commit_failed", writes=len(batch), kind=type(error).__name__, error=str(e)
            )
            self._settle_all()
            for write in batch:
                if not write.fenced:
                    write.acknowledge(error)
            return
        if rows.records:
            self._committed(rows.newest, counted=rows.counted)
        self._writes += len(batch)
        self._records += rows.records
        self._landed.extend(batch)
        if len(self._landed) <= _SLICE:
            self._settle_all()
        else:
            self._landed_event.set()

    async def _store(self, rows: Rows) -> None:
        """One transaction, by one call to the connection's thread.

        Messages alone are one statement, which commits itself.
        """
        await self._begun_afresh()
        messages = rows.messages
        others = [Step(statement, parameters) for statement, parameters in rows.others()]
        rows.counted = bool(others)
        steps = (
            []
            if messages is None
            else [Step(INSERT_MESSAGES, [(*messages, self._epoch)], needed=True)]
        )
        if others:
            steps = [_BEGIN, *steps, *others, _COMMIT]
        if steps:
            try:
                await self._writer.run(steps)
            except NothingChanged:
                raise _Overtaken from None

    def _committed(self, newest: int, *, counted: bool) -> None:
        self._commits += 1
        self._commit_number += counted
        self._mark.put(self._commit_number, newest)

    async def _failure(self, error: Exception) -> tuple[CommitFailed | OutcomeUnknown, bool]:
        """What a failed commit came to, and whether it may be the fault of one write alone.

        What fails before anything is synced is rolled back and gone. After a failed sync, the
        frames in the write-ahead log may still come back at the next crash.
        """
        name = getattr(error, "sqlite_errorname", "")
        rolled_back = await self._rolled_back()
        if isinstance(error, _Overtaken) or name == "SQLITE_CONSTRAINT_TRIGGER":
            return self._overtaken(), False
        failed: CommitFailed | OutcomeUnknown
        if name.startswith("SQLITE_IOERR") or not rolled_back:
            probe("commit_unknown")
            failed = OutcomeUnknown(
                f"the journal's commit failed ({error}); retry with the same key"
            )
            await self._recount()
        else:
            probe("commit_refused")
            failed = CommitFailed(
                f"the journal cannot store this ({error}); nothing of it was kept"
            )
        failed.__cause__ = error
        return failed, rolled_back and not isinstance(
            error, sqlite3.OperationalError | sqlite3.InternalError
        )

    async def _recount(self) -> None:
        """A commit that was said to have failed may be there, and counted."""
        if self._writer.in_transaction:  # it would count what is yet to be rolled back
            return
        with contextlib.suppress(sqlite3.Error):
            ((count,),) = await self._writer.execute_fetchall(
                "SELECT value FROM settings WHERE name = 'commits'"
            )
            self._commit_number = int(count)

    def _overtaken(self) -> OwnershipLost:
        if self._lost is None:
            probe("ownership_lost")
            self._lost = OwnershipLost(
                f"another process has taken {self.path} over; nothing more can be stored here: "
                "close this runtime"
            )
            _logger.critical("ownership_lost", path=str(self.path), epoch=self._epoch)
        return self._lost

    async def _begun_afresh(self) -> None:
        """What a failed rollback left open must not take in what comes next.

        It would not be committed, or what failed would.
        """
        if self._writer.in_transaction:
            await self._writer.execute("ROLLBACK")
            await self._recount()

    async def _rolled_back(self) -> bool:
        try:
            if self._writer.in_transaction:
                await self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            probe("rollback_failed")
            _logger.exception("rollback_failed")
            return False
        return True

    def statistics(self) -> LogStatistics:
        """Counters since opening."""
        held_s = time.monotonic() - self._wal_since if self._wal_since else 0.0
        return LogStatistics(
            self._commits,
            self._failed,
            self._writes,
            self._records,
            len(self._queue),
            self._wal_bytes,
            held_s,
        )

    # -- the writer's own work ---------------------------------------------------------------------

    async def _in_turn(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Have the writer's task do this, after what was written before.

        Whoever waits may leave; it is done all the same.
        """
        if self._closed:
            raise StorageError("the journal is closed")
        turn = _Turn(operation, self._taken + len(self._queue))
        self._turns.append(turn)
        self._event.set()
        return await turn.outcome()

    async def _in_transaction(
        self, work: Callable[[], Awaitable[T]], then: Callable[[T], None] = lambda _: None
    ) -> T:
        """The same, as one counted commit, and `then` at once, before any other write.

        Raises:
            CommitFailed: nothing was changed.
            OutcomeUnknown: all of it was done, or nothing.
        """

        async def operation() -> T:
            try:
                if self._lost is not None:
                    raise _Overtaken
                await self._begun_afresh()
                await self._writer.run([_BEGIN])
                result = await work()
                await self._writer.run([_COMMIT])
            except Exception as e:
                self._failed += 1
                error, _ = await self._failure(e)
                _logger.error("commit_failed", writes=0, kind=type(error).__name__, error=str(e))
                raise error from e
            self._committed(0, counted=True)
            then(result)
            return result

        return await self._in_turn(operation)

    async def erase(self, user: str, session: str | None = None) -> Erased:
        """Delete everything of a user, or of one session, and leave a note."""

        async def work() -> tuple[Erased, Sequence[int]]:
            return await delete_rows(self._writer, user, session)

        erased, _ = await self._in_transaction(work, lambda outcome: self._gone.update(outcome[1]))
        return erased

    async def erased(self, number: int) -> None:
        """The note goes."""

        async def work() -> None:
            await self._writer.execute("DELETE FROM erasures WHERE number = ?", (number,))

        await self._in_transaction(work)
        await self._emptied()

    async def trim(self, limits: Retention, now_us: int) -> int:
        """Remove archived originals beyond the limits, and give back what room that makes."""
        count = 0
        async for wanted in messages_beyond(self._read, limits, now_us):
            left = wanted
            while left:

                async def work(left: Mapping[int, int] = left) -> tuple[int, dict[int, int]]:
                    return await trim_rows(self._writer, left)

                gone, left = await self._in_transaction(work)
                count += gone
        if count:
            await self._give_back()
            _logger.info("journal_trimmed", messages=count)
        return count

    async def _give_back(self) -> None:
        """Keep the number of free pages bounded."""
        ((incremental,),) = await self._read("PRAGMA auto_vacuum")
        ((pages,),) = await self._read("PRAGMA page_count")

        async def free() -> int:
            ((count,),) = await self._read("PRAGMA freelist_count")
            return int(count)

        if not incremental:  # it was made by an older remora, and cannot give pages back one by one
            if await free() > max(16 * _FREE_PAGES, pages // 2):
                await self._in_turn(self._compact)
            return

        async def some() -> None:
            # the statement frees a page at each step
            await self._vacuumed(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")

        before = await free()
        while before > _FREE_PAGES:
            await self._in_turn(some)
            after = await free()
            if after >= before:
                break
            before = after

    async def _vacuumed(self, *statements: str) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            for statement in statements:
                await self._writer.execute_fetchall(statement)
        except sqlite3.Error as e:
            raise StorageError(
                f"the journal cannot be made smaller ({e}); nothing that it holds was changed"
            ) from e

    async def _compact(self) -> None:
        await self._vacuumed("PRAGMA auto_vacuum = INCREMENTAL", "VACUUM")

    async def scrub(self) -> None:
        """Write the file anew without what was deleted, and empty the write-ahead log, which may
        hold it.
        """
        await self._in_turn(self._compact)
        await self._emptied()

    async def _emptied(self) -> None:
        """Return when the write-ahead log holds nothing, whoever reads."""
        deadline = anyio.current_time() + _SCRUB_S
        while not await self._in_turn(self._empty_wal):
            if anyio.current_time() > deadline:
                raise StorageError(
                    "the write-ahead log cannot be emptied: a reader has been in the way for too "
                    "long"
                )
            await anyio.sleep(0.05)

    async def _empty_wal(self) -> bool:
        """Whether there is no byte left in it; a reader that needs it is not waited for."""
        try:
            await self._writer.execute("PRAGMA busy_timeout = 0")
            try:
                ((busy, _, _),) = await self._writer.execute_fetchall(
                    "PRAGMA wal_checkpoint(TRUNCATE)"
                )
            finally:
                await self._writer.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        except sqlite3.Error as e:
            raise StorageError(f"the write-ahead log cannot be emptied: {e}") from e
        self._mark.put(self._commit_number, 0)
        self._mark.put(self._commit_number, 0)  # the other slot, too
        return not busy

    # -- settings ----------------------------------------------------------------------------------

    async def setting(self, name: str, value: str | None = None) -> str | None:
        """Read a setting, after setting it if it never was."""
        if value is not None:
            await self._read(
                f"INSERT OR IGNORE INTO settings SELECT ?, ? WHERE {_OWNER} = ?",
                (name, value, self._epoch),
            )
        rows = await self._read("SELECT value FROM settings WHERE name = ?", (name,))
        if value is not None and not rows:
            raise self._overtaken()
        return str(rows[0][0]) if rows else None

    async def change(self, settings: Mapping[str, str]) -> None:
        """Set these settings, whatever they were, in one statement."""
        changed = await self._read(
            "INSERT INTO settings (name, value) SELECT w.value ->> 0, w.value ->> 1 FROM "
            "json_each(?) AS w "
            f"WHERE {_OWNER} = ? ON CONFLICT DO UPDATE SET value = excluded.value RETURNING name",
            (msgspec.json.encode(list(settings.items())).decode(), self._epoch),
        )
        if settings and not changed:
            raise self._overtaken()

    # -- upkeep ------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Move the write-ahead log into the main file, as far as no reader is in the way, and see
        to its size.

        SQLite begins it anew once all of it was moved and nobody reads it any more. When it has
        outgrown its bound, one look later still, somebody reads a very old state: the log says so,
        once for each time, and so do `statistics`.
        """
        ((_, frames, moved),) = await self._read("PRAGMA wal_checkpoint(PASSIVE)")
        log = self.path.with_name(f"{self.path.name}-wal")
        if await _size(log) > self._max_wal and frames == moved and not self._closed:
            await self._in_turn(self._empty_wal)
        self._wal_bytes = size = await _size(log)
        if size <= self._max_wal:
            if self._wal_since:
                _logger.info("wal_released", bytes=size, held_s=time.monotonic() - self._wal_since)
            self._wal_since, self._alarmed = 0.0, False
        elif not self._wal_since:
            self._wal_since, self._alarmed = time.monotonic(), False
        elif not self._alarmed:
            self._alarmed = True
            _logger.error(
                "wal_held_back", path=str(log), bytes=size, bound=self._max_wal, held_s=time.monotonic() - self._wal_since,  # noqa: E501
                hint="a reader, a backup or another program, has had the journal open for long",
            )  # fmt: skip

    async def backup(self, path: Path) -> None:
        """Copy the journal to a new file while it is in use.

        All that was acknowledged before is in it, synced (G3).

        The copy is of one moment. It is a journal of its own: whoever opens it misses nothing that
        came after that moment.

        Raises:
            InvalidInput: there is something at `path`, or no directory for it.
            StorageError: it cannot be read, or the disk refused; nothing stands at `path` then.
        """
        await anyio.to_thread.run_sync(snapshot, self.path, path)

    async def verify(self) -> list[Finding]:
        """Everything that is amiss in the journal, by looking at every row (kinds ``journal`` and
        ``wal``), while it is in use.

        It takes seconds for a gigabyte, and the write-ahead log grows meanwhile.

        Raises:
            StorageError: it cannot be read at all.
        """
        return await anyio.to_thread.run_sync(check_journal, self.path)

    async def aclose(self) -> None:
        """Commit what is queued, fold the write-ahead log into the main file, and let the threads
        end.
        """
        with anyio.CancelScope(shield=True):
            self._closed = True
            try:
                await self._commit_queued()
                self._settle_all()
                await self._reader.close()
                await self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error:
                _logger.exception(
                    "journal_close"
                )  # the write-ahead log stays, and is read at the next start
            finally:
                await self._reader.close()
                await self._writer.close()
                self._mark.close()

    def abandon(self) -> None:
        """Give up the file of the commit mark and nothing else, as if the process had died.

        For simulations of that.
        """
        self._mark.close()


async def _size(path: Path) -> int:
    try:
        return (await anyio.to_thread.run_sync(os.stat, path)).st_size
    except OSError:
        return 0
