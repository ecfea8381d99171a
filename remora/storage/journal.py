"""The write-ahead journal: SQLite in WAL mode, one writer task, group commit across all sessions.

Invariants
----------
1. One task, `run`, owns the writing connection. aiosqlite runs a cancelled call to its end and drops the result, so a
   caller's cancellation must never reach it: callers queue a `Write` and wait for its promise elsewhere.
2. Whatever is queued when the last commit returns goes into the next one: one statement per kind of row and one commit,
   however many sessions take part. With `synchronous=FULL` the cost of the fsync is shared, and FULL costs nearly what
   NORMAL does from 16 writers on (NORMAL lost acknowledged rows in 447 of 840 enumerated crash states, FULL in 0 of 1 000).
3. Writes of one session settle in the order in which they were handed over. When one fails, its cell fences those behind it
   before this task takes the next batch, so a later record can never be stored without an earlier one.
4. A failed statement is rolled back and provably left nothing: `CommitFailed`. A failed write or sync of the files may have left
   frames in the write-ahead log that a crash brings back: `OutcomeUnknown`.
5. A write that cannot be stored (not the disk's fault but its own) fails alone: the batch is halved until it stands by itself.

A second connection reads: activation, history, listings. Each of its statements is a transaction of its own, so it never
holds a checkpoint back. It sees committed rows only, which is all that a session which is not live has.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import msgspec

from remora.config import Durability
from remora.errors import CommitFailed, DirectoryUnusable, JournalDamaged, JournalTooNew, OutcomeUnknown, StorageError
from remora.identity import SessionKey, UserKey
from remora.logs import get_logger
from remora.messages import Entry
from remora.runtime.log import Job, LogStatistics, Write
from remora.storage.images import (
    ENTRY_COLUMNS,
    JOB_COLUMNS,
    SEQ_MASK,
    SUMMARY_COLUMNS,
    Image,
    actor_key,
    entry_of,
    jobs_of,
    read_images,
    summary_of,
)
from remora.storage.ports import FoldFigures, JournalCounts, Past, SessionListing, earlier_buffer, past_of
from remora.storage.records import EarlierBuffer, Facet, IdLookup, KeyLookup, MemoryItem, OriginalAppend, PastLookup
from remora.storage.rows import INSERT_MESSAGES, Rows
from remora.storage.schema import APPLICATION_ID, FORMAT, MIGRATIONS, SEQ_BITS

__all__ = ["SqliteJournal"]

_logger = get_logger("remora.journal")
_SYNCHRONOUS: dict[Durability, str] = {"power": "FULL", "process": "NORMAL", "none": "OFF"}


class SqliteJournal:
    """Implements `remora.storage.ports.Journal` in one SQLite file. Made by `open`."""

    def __init__(
        self, writer: aiosqlite.Connection, reader: aiosqlite.Connection, *, max_batch_writes: int, next_sid: int
    ) -> None:
        self.instance = ""
        self._writer = writer
        self._reader = reader
        self._max_batch = max_batch_writes
        self._epoch = 0
        self._next_sid = next_sid
        self._queue: list[Write] = []
        self._event = anyio.Event()
        self._commits = self._failed = self._writes = self._records = 0

    @classmethod
    async def open(cls, path: Path, *, durability: Durability, max_batch_writes: int = 8_192) -> SqliteJournal:
        """Open or create a journal, and bring its schema up to date.

        Raises:
            JournalTooNew: a newer remora wrote it; it was not touched.
            JournalDamaged: it is not a journal, or SQLite finds it malformed.
            DirectoryUnusable: it cannot be opened for writing.
        """
        connections: list[aiosqlite.Connection] = []
        try:
            writer = await _daemonic(aiosqlite.connect(path, isolation_level=None))
            connections.append(writer)
            await _check_and_migrate(writer, path)
            await writer.execute("PRAGMA journal_mode = WAL")
            await writer.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
            await writer.execute("PRAGMA cache_size = -65536")
            await writer.execute("PRAGMA journal_size_limit = 67108864")
            # The supervisor checkpoints from the other connection; this bound is for when it cannot keep up.
            await writer.execute("PRAGMA wal_autocheckpoint = 16384")
            reader = await _daemonic(aiosqlite.connect(path, isolation_level=None))
            connections.append(reader)
            await reader.execute("PRAGMA busy_timeout = 5000")
            await reader.execute("PRAGMA cache_size = -65536")
            ((last_sid,),) = await reader.execute_fetchall("SELECT coalesce(max(sid), 0) FROM actors")
            journal = cls(writer, reader, max_batch_writes=max_batch_writes, next_sid=last_sid + 1)
            await journal._take_ownership()
        except BaseException as e:
            with anyio.CancelScope(shield=True):
                for connection in connections:
                    await connection.close()
            if isinstance(e, sqlite3.Error):
                raise _open_error(e, path) from e
            raise
        return journal

    async def _take_ownership(self) -> None:
        await self._writer.execute(
            "INSERT INTO settings VALUES ('epoch', '1') ON CONFLICT DO UPDATE SET value = CAST(value AS INTEGER) + 1"
        )
        await self._writer.execute("INSERT OR IGNORE INTO settings VALUES ('instance', ?)", (secrets.token_hex(3),))
        self._epoch = int(await self.setting("epoch") or 0)
        self.instance = await self.setting("instance") or ""

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        """Queue a write for the next group commit."""
        self._queue.append(write)
        self._event.set()

    async def run(self) -> None:
        """Commit what is queued, for ever: the writer task."""
        while True:
            if not self._queue:
                self._event = anyio.Event()
                await self._event.wait()
            await self._commit_queued()

    async def _commit_queued(self) -> None:
        with anyio.CancelScope(shield=True):
            while self._queue:
                batch = [write for write in self._queue[: self._max_batch] if not write.fenced]
                del self._queue[: self._max_batch]
                if batch:
                    await self._commit(batch)

    async def _commit(self, batch: Sequence[Write]) -> None:
        rows = Rows()
        error: Exception
        try:
            for write in batch:
                for record in write.records:
                    rows.add(record)
            await self._store(rows)
        except (sqlite3.Error, OverflowError, TypeError, ValueError) as e:
            self._failed += 1
            # What fails before anything is synced is rolled back and gone. After a failed sync, the frames in the write-ahead
            # log may still come back at the next crash.
            uncertain = getattr(e, "sqlite_errorname", "").startswith("SQLITE_IOERR")
            rolled_back = await self._rolled_back()
            own_fault = not isinstance(e, sqlite3.OperationalError | sqlite3.InternalError)
            if own_fault and rolled_back and len(batch) > 1:
                # one of them cannot be stored: halve the batch until it stands alone
                for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                    standing = [write for write in half if not write.fenced]  # an earlier failure may have fenced it
                    if standing:
                        await self._commit(standing)
                return
            if uncertain or not rolled_back:
                error = OutcomeUnknown(f"the journal's commit failed ({e}); retry with the same key")
            else:
                error = CommitFailed(f"the journal cannot store this ({e}); nothing of it was kept")
            error.__cause__ = e
            _logger.error("commit_failed", writes=len(batch), uncertain=uncertain, error=str(e))
            for write in batch:
                if not write.fenced:
                    write.settle(error)
            return
        self._commits += 1
        self._writes += len(batch)
        self._records += rows.records
        for write in batch:
            write.settle(None)

    async def _store(self, rows: Rows) -> None:
        """One transaction. Messages alone are one statement, which commits itself: one call to the connection's thread.

        Each further call waits until the event loop comes round to it, which beside a busy loop takes longer than the commit.
        """
        others, messages = list(rows.others()), rows.messages
        if others:
            await self._writer.execute("BEGIN IMMEDIATE")
        if messages is not None:
            await self._writer.execute(INSERT_MESSAGES, (*messages, self._epoch))
        for statement, parameters in others:
            await self._writer.executemany(statement, parameters)
        if others:
            await self._writer.execute("COMMIT")

    async def _rolled_back(self) -> bool:
        try:
            if self._writer.in_transaction:
                await self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            _logger.exception("rollback_failed")
            return False
        return True

    def statistics(self) -> LogStatistics:
        """Counters since opening."""
        return LogStatistics(self._commits, self._failed, self._writes, self._records, len(self._queue))

    # -- activation -------------------------------------------------------------------------------------------------

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[Image | Exception]:
        """The image of each actor; new ones are given their number."""
        return await read_images(self._read, keys, self._number)

    def _number(self) -> int:
        self._next_sid += 1
        return self._next_sid - 1

    async def fetch(self, key: Hashable, query: Any) -> OriginalAppend | EarlierBuffer | dict[str, int] | None:
        """Which append an idempotency key belongs to; which numbers message ids have; how the buffer was."""
        assert isinstance(key, SessionKey)
        if isinstance(query, PastLookup):
            return await earlier_buffer(self, key, query.at)
        if isinstance(query, IdLookup):
            rows = await self._read(
                f"SELECT m.id, m.pos & {SEQ_MASK} FROM actors AS s CROSS JOIN json_each(?) AS w "
                "CROSS JOIN messages AS m ON m.pos >> 32 = +s.sid AND m.id = w.value AND m.id IS NOT NULL "
                f"WHERE s.user = ? AND s.session = ? AND m.removed IS NULL AND m.pos & {SEQ_MASK} > ?",
                (msgspec.json.encode(query.ids).decode(), key.user, key.session, query.after),
            )
            return dict(rows)
        assert isinstance(query, KeyLookup)
        rows = await self._read(
            # CROSS JOIN keeps this order; the plus (no affinity) and the third condition let the partial index be used
            "SELECT m.pos, m.id FROM actors AS s "
            "CROSS JOIN messages AS k ON k.pos >> 32 = +s.sid AND k.key = ? AND k.key IS NOT NULL "
            "CROSS JOIN messages AS m ON m.pos BETWEEN k.pos AND k.pos + k.batch - 1 "
            "WHERE s.user = ? AND s.session = ? ORDER BY m.pos",
            (query.digest, key.user, key.session),
        )
        if not rows:
            return None
        return OriginalAppend(tuple(pos & SEQ_MASK for pos, _ in rows), tuple(id_ for _, id_ in rows))

    # -- reading ----------------------------------------------------------------------------------------------------

    async def read(self, key: SessionKey, first: int, last: int, *, at: int | None = None) -> Sequence[Entry]:
        """Messages `first`…`last`."""
        rows = await self._read(
            f"SELECT {ENTRY_COLUMNS} FROM actors AS s JOIN messages AS m "
            f"ON m.pos BETWEEN (s.sid << {SEQ_BITS}) + ? AND (s.sid << {SEQ_BITS}) + ? "
            "WHERE s.user = ? AND s.session = ? AND (m.removed IS NULL OR m.removed > ?) ORDER BY m.pos",
            (max(first, 1), min(last, SEQ_MASK), key.user, key.session, SEQ_MASK if at is None else at),
        )
        return [entry_of(row) for row in rows]

    async def past(self, key: SessionKey, at: int) -> Past:
        """What the session's buffer began with when message `at` was its newest."""
        rows = await self._read(
            f"SELECT f.kind, f.generation, {SUMMARY_COLUMNS} FROM actors AS s JOIN folds AS f USING (sid) "
            "WHERE s.user = ? AND s.session = ? AND f.at_seq <= ? ORDER BY f.number",
            (key.user, key.session, at),
        )
        return past_of([(kind, generation, summary_of(summary)) for kind, generation, *summary in rows])

    async def folds(self, key: SessionKey) -> FoldFigures:
        """How often the session's past was summarized, and what that took."""
        ((count, taken, made, degraded),) = await self._read(
            "SELECT count(*), coalesce(sum(f.input_tokens), 0), coalesce(sum(f.tokens), 0), coalesce(sum(f.degraded), 0) "
            "FROM actors AS s JOIN folds AS f USING (sid) WHERE s.user = ? AND s.session = ? AND f.input_tokens > 0",
            (key.user, key.session),
        )
        return FoldFigures(count, taken, made, degraded)

    async def memories(self, user: str, ids: Sequence[str] | None = None) -> Sequence[MemoryItem]:
        """What was recorded of a user on purpose, oldest first; with `ids`, those alone."""
        among = "" if ids is None else " AND m.id IN (SELECT w.value FROM json_each(?) AS w)"
        parameters = (user,) if ids is None else (user, msgspec.json.encode(ids).decode())
        rows = await self._read(
            "SELECT m.id, m.session, m.agent, m.content, m.type, m.importance, m.created_us, m.tokens FROM actors AS s "
            f"JOIN memories AS m USING (sid) WHERE s.user = ? AND s.session = ''{among} ORDER BY m.number",
            parameters,
        )
        return [MemoryItem(*row) for row in rows]

    async def pruned(self, key: SessionKey) -> Sequence[int]:
        """Numbers of the messages that long-term memory is not to have."""
        rows = await self._read(
            f"SELECT m.pos & {SEQ_MASK} FROM actors AS s JOIN messages AS m "
            f"ON m.pos BETWEEN s.sid << {SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {SEQ_MASK} "
            "WHERE s.user = ? AND s.session = ? AND m.pruned",
            (key.user, key.session),
        )
        return [seq for (seq,) in rows]

    async def facets(self, key: SessionKey | UserKey) -> Sequence[Facet]:
        """All of an actor's facets, in the order in which they were first put."""
        user, session = key if isinstance(key, SessionKey) else (key.user, "")
        rows = await self._read(
            "SELECT x.kind, x.name, x.value FROM actors AS s JOIN facets AS x USING (sid) WHERE s.user = ? AND s.session = ? "
            "ORDER BY x.rowid",
            (user, session),
        )
        return [Facet(*row) for row in rows]

    async def flushed(self) -> Sequence[tuple[SessionKey | UserKey, int]]:
        """Every actor, in a fixed order, and up to which message it is in long-term memory."""
        rows = await self._read("SELECT user, session, flushed FROM actors ORDER BY sid", ())
        return [(actor_key(user, session), flushed) for user, session, flushed in rows]

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        """Job rows, oldest first."""
        rows = await self._read(
            f"SELECT {JOB_COLUMNS} FROM jobs AS j JOIN actors AS s USING (sid) WHERE j.dead = ? ORDER BY j.number",
            (int(dead),),
        )
        return jobs_of(rows)

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        """A user's sessions, the one with the newest message last."""
        rows = await self._read(
            f"SELECT s.session, count(*), max(m.at_us) FROM actors AS s JOIN messages AS m "
            f"ON m.pos BETWEEN s.sid << {SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {SEQ_MASK} "
            "WHERE s.user = ? AND m.removed IS NULL GROUP BY s.sid ORDER BY 3, s.sid",
            (user,),
        )
        return [SessionListing(SessionKey(user, session), count, at_us) for session, count, at_us in rows]

    async def unflushed(self, limit: int) -> Sequence[SessionKey]:
        """Sessions whose last message no flush job covers."""
        rows = await self._read(
            "SELECT s.user, s.session FROM actors AS s WHERE s.session != '' AND s.flushing < "
            f"(SELECT m.pos & {SEQ_MASK} FROM messages AS m WHERE m.pos BETWEEN s.sid << {SEQ_BITS} "
            f"AND (s.sid << {SEQ_BITS}) + {SEQ_MASK} AND m.removed IS NULL ORDER BY m.pos DESC LIMIT 1) LIMIT ?",
            (limit,),
        )
        return [SessionKey(user, session) for user, session in rows]

    async def counts(self, user: str | None = None) -> JournalCounts:
        """How much it holds, of everybody or of one user."""
        own = "" if user is None else " WHERE s.user = ?"
        who = () if user is None else (user,)
        ((users, sessions),) = await self._read(
            f"SELECT count(DISTINCT s.user), count(*) FILTER (WHERE s.session != '') FROM actors AS s{own}", who
        )
        of_them = "" if user is None else f"JOIN actors AS s ON s.sid = m.pos >> {SEQ_BITS} {own}"
        ((messages, tokens),) = await self._read(f"SELECT count(*), coalesce(sum(m.tokens), 0) FROM messages AS m {of_them}", who)
        by_sid = "" if user is None else f"JOIN actors AS s USING (sid) {own}"
        ((summaries,),) = await self._read(
            f"SELECT count(*) FILTER (WHERE f.kind IN ('summary', 'entry')) FROM folds AS f {by_sid}", who
        )
        ((memories,),) = await self._read(f"SELECT count(*) FROM memories AS m {by_sid}", who)
        ((pending, dead),) = await self._read(
            f"SELECT count(*) FILTER (WHERE NOT j.dead), count(*) FILTER (WHERE j.dead) FROM jobs AS j {by_sid}", who
        )
        return JournalCounts(users, sessions, messages, tokens, summaries, pending, dead, memories)

    async def setting(self, name: str, value: str | None = None) -> str | None:
        """Read a setting, after setting it if it never was."""
        if value is not None:
            await self._read("INSERT OR IGNORE INTO settings VALUES (?, ?)", (name, value))
        rows = await self._read("SELECT value FROM settings WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    async def change(self, settings: Mapping[str, str]) -> None:
        """Set these settings, whatever they were, in one statement."""
        await self._read(
            "INSERT INTO settings (name, value) SELECT w.value ->> 0, w.value ->> 1 FROM json_each(?) AS w WHERE true "
            "ON CONFLICT DO UPDATE SET value = excluded.value",
            (msgspec.json.encode(list(settings.items())).decode(),),
        )

    async def _read(self, sql: str, parameters: Iterable[Any] = ()) -> list[Any]:
        try:
            return list(await self._reader.execute_fetchall(sql, parameters))
        except sqlite3.Error as e:
            raise StorageError(f"the journal cannot be read: {e}") from e

    # -- upkeep -----------------------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Move the write-ahead log into the main file, as far as no reader is in the way."""
        await self._read("PRAGMA wal_checkpoint(PASSIVE)")

    async def aclose(self) -> None:
        """Commit what is queued, fold the write-ahead log into the main file, and let the threads end."""
        with anyio.CancelScope(shield=True):
            try:
                await self._commit_queued()
                await self._reader.close()
                await self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error:
                _logger.exception("journal_close")  # the write-ahead log stays, and is read at the next start
            finally:
                await self._reader.close()
                await self._writer.close()


def _daemonic(connection: aiosqlite.Connection) -> aiosqlite.Connection:
    """Let the process end although a connection was left open, by a second Ctrl-C, say: a journal needs no farewell."""
    thread: Any = getattr(connection, "_thread", connection)
    thread.daemon = True
    return connection


async def _check_and_migrate(connection: aiosqlite.Connection, path: Path) -> None:
    async def pragma(name: str) -> int:
        ((value,),) = await connection.execute_fetchall(f"PRAGMA {name}")
        return int(value)

    found, application = await pragma("user_version"), await pragma("application_id")
    if application not in {0, APPLICATION_ID} or (application == 0 and (found or await pragma("schema_version"))):
        raise JournalDamaged(f"{path} is an SQLite file, but no remora journal; it was not touched")
    if found > FORMAT:
        raise JournalTooNew(
            f"{path} has the format {found}, this remora reads up to {FORMAT}: upgrade remora; nothing was touched",
            found=found,
            supported=FORMAT,
        )
    if found == FORMAT:
        return
    begun = time.monotonic()
    for number, script in enumerate(MIGRATIONS[found:], start=found + 1):
        await connection.executescript(
            f"BEGIN IMMEDIATE; {script} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number}; COMMIT;"
        )
    _logger.info("journal_migrated", path=str(path), before=found, after=FORMAT, seconds=time.monotonic() - begun)


def _open_error(error: sqlite3.Error, path: Path) -> StorageError:
    name = getattr(error, "sqlite_errorname", "")
    if name in {"SQLITE_NOTADB", "SQLITE_CORRUPT"} or "malformed" in str(error):
        return JournalDamaged(f"{path} is damaged, or no SQLite file: {error}; restore a backup, or move it away")
    return DirectoryUnusable(f"{path} cannot be opened for writing: {error}", path=path)
