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
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import msgspec

from remora.config import Durability
from remora.errors import CommitFailed, DirectoryUnusable, JournalDamaged, JournalTooNew, OutcomeUnknown, StorageError
from remora.identity import SessionKey
from remora.logs import get_logger
from remora.messages import Entry, decode_chat
from remora.runtime.log import Job, JobBuried, JobDone, JobRetried, LogStatistics, Write
from remora.storage.ports import JournalCounts, SessionListing
from remora.storage.records import (
    HOT_KEYS,
    Appended,
    Cleared,
    Flushed,
    FlushSpec,
    FlushStarted,
    FoldStarted,
    KeyLookup,
    Marks,
    Opened,
    OriginalAppend,
    SessionImage,
    Summarized,
    SummarizeSpec,
    Summary,
)
from remora.storage.schema import APPLICATION_ID, FORMAT, MIGRATIONS, SEQ_BITS

__all__ = ["SqliteJournal"]

_logger = get_logger("remora.journal")
_SYNCHRONOUS: dict[Durability, str] = {"power": "FULL", "process": "NORMAL", "none": "OFF"}
_ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLE_CODES = {role: code for code, role in enumerate(_ROLES)}
_SEQ_MASK = (1 << SEQ_BITS) - 1
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_decode_payload = msgspec.msgpack.Decoder(SummarizeSpec | FlushSpec).decode

_INSERT_SESSION = "INSERT INTO sessions (sid, user, session, created_us) VALUES (?, ?, ?, ?)"
# All messages of a commit by one statement: places and lengths as JSON, what they point into as one blob. `executemany` gives the
# interpreter's lock away and takes it back at every row, and waits up to 5 ms for it each time while the event loop is
# busy: 128 rows a commit beside a busy thread, measured, 324 rows/s by executemany and 6 795 by this (39 292 and 26 580 alone).
_INSERT_MESSAGES = (
    "INSERT INTO messages (pos, at_us, tokens, role, epoch, chat, meta, id, key, batch) "
    "SELECT m.value ->> 0, m.value ->> 1, m.value ->> 2, m.value ->> 3, ?3, substr(?2, m.value ->> 4, m.value ->> 5), "
    "CASE WHEN m.value ->> 6 THEN substr(?2, (m.value ->> 4) + (m.value ->> 5), m.value ->> 6) END, m.value ->> 7, "
    "CASE WHEN m.value ->> 8 THEN substr(?2, (m.value ->> 4) + (m.value ->> 5) + (m.value ->> 6), 16) END, m.value ->> 8 "
    "FROM json_each(?1) AS m"
)
_UPDATE_MARKS = "UPDATE sessions SET generation = ?, summarized = ?, folding = ?, flushing = ? WHERE sid = ?"
_INSERT_SUMMARY = (
    "INSERT INTO summaries (sid, generation, through, prefix, text, tokens, degraded, model) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE_FLUSHED = "UPDATE sessions SET flushed = max(flushed, ?) WHERE sid = ?"
_INSERT_JOB = "INSERT INTO jobs (id, lane, sid, payload) VALUES (?, ?, ?, ?)"
_RETRY_JOB = "UPDATE jobs SET attempts = ?, not_before = ?, error = ? WHERE id = ?"
_BURY_JOB = "UPDATE jobs SET attempts = ?, error = ?, dead = 1 WHERE id = ?"
_DELETE_JOB = "DELETE FROM jobs WHERE id = ?"
# The order of storing: a row before what refers to it, a job's start before its end. Within a kind, the order of the turns.
_STATEMENTS = (
    _INSERT_SESSION,
    _UPDATE_MARKS,
    _INSERT_SUMMARY,
    _UPDATE_FLUSHED,
    _INSERT_JOB,
    _RETRY_JOB,
    _BURY_JOB,
    _DELETE_JOB,
)


class _Rows:
    """The rows of one transaction, by statement."""

    __slots__ = ("content", "messages", "offset", "records", "rows")

    def __init__(self) -> None:
        self.records = 0
        self.messages: list[tuple[Any, ...]] = []
        self.content: list[bytes] = []
        self.offset = 1  # SQL counts from 1
        self.rows: dict[str, list[tuple[Any, ...]]] = {statement: [] for statement in _STATEMENTS}

    def add(self, record: Any) -> None:
        self.records += 1
        rows = self.rows
        match record:
            case Appended(sid=sid, entries=entries, key=key):
                base = sid << SEQ_BITS
                digest = key
                for e in entries:
                    length, meta = len(e.chat), len(e.meta) if e.meta else 0
                    keyed = len(entries) if digest is not None else None
                    place = (base | e.seq, e.at_us, e.tokens, _ROLE_CODES[e.role], self.offset, length, meta, e.id, keyed)
                    self.messages.append(place)
                    self.content.append(e.chat)
                    if e.meta:
                        self.content.append(e.meta)
                    self.offset += length + meta
                    if digest is not None:
                        self.content.append(digest)
                        self.offset += len(digest)
                        digest = None  # the key stands on the first message alone
            case Opened(sid=sid, user=user, session=session, at_us=at_us):
                rows[_INSERT_SESSION].append((sid, user, session, at_us))
            case FoldStarted(sid=sid, marks=marks, jobs=jobs) | FlushStarted(sid=sid, marks=marks, jobs=jobs):
                self._mark(sid, marks)
                rows[_INSERT_JOB].extend((job.id, job.lane, sid, _encode(job.payload)) for job in jobs)
            case Summarized(sid=sid, marks=marks, summary=s, job=job):
                self._mark(sid, marks)
                rows[_INSERT_SUMMARY].append((sid, marks.generation, s.through, s.prefix, s.text, s.tokens, s.degraded, s.model))
                rows[_DELETE_JOB].append((job,))
            case Cleared(sid=sid, marks=marks, cancelled=cancelled):
                self._mark(sid, marks)
                rows[_DELETE_JOB].extend((id_,) for id_ in cancelled)
            case Flushed(sid=sid, through=through):
                rows[_UPDATE_FLUSHED].append((through, sid))
            case JobDone(id=id_):
                rows[_DELETE_JOB].append((id_,))
            case JobRetried(id=id_, attempts=attempts, not_before=not_before, error=error):
                rows[_RETRY_JOB].append((attempts, not_before, error, id_))
            case JobBuried(id=id_, attempts=attempts, error=error):
                rows[_BURY_JOB].append((attempts, error, id_))
            case _:
                raise TypeError(f"no journal record: {type(record).__name__}")

    def _mark(self, sid: int, marks: Marks) -> None:
        self.rows[_UPDATE_MARKS].append((marks.generation, marks.summarized, marks.folding, marks.flushing, sid))


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
            ((last_sid,),) = await reader.execute_fetchall("SELECT coalesce(max(sid), 0) FROM sessions")
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
        rows = _Rows()
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

    async def _store(self, rows: _Rows) -> None:
        """One transaction. Messages alone are one statement, which commits itself: one call to the connection's thread.

        Each further call waits until the event loop comes round to it, which beside a busy loop takes longer than the commit.
        """
        others = [(statement, parameters) for statement, parameters in rows.rows.items() if parameters]
        if others:
            await self._writer.execute("BEGIN IMMEDIATE")
        if rows.messages:
            places = _encode_json(rows.messages).decode()
            await self._writer.execute(_INSERT_MESSAGES, (places, b"".join(rows.content), self._epoch))
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

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[SessionImage | Exception]:
        """Read hundreds of sessions in four queries; new ones are given their number."""
        wanted = msgspec.json.encode(keys).decode()
        sessions: dict[SessionKey, tuple[int, Marks]] = {}
        for sid, user, session, generation, summarized, folding, flushing in await self._read(
            "SELECT s.sid, s.user, s.session, s.generation, s.summarized, s.folding, s.flushing FROM json_each(?) AS w "
            "JOIN sessions AS s ON s.user = w.value ->> 0 AND s.session = w.value ->> 1",
            (wanted,),
        ):
            sessions[SessionKey(user, session)] = (sid, Marks(generation, summarized, folding, flushing))
        live = msgspec.json.encode([(sid, marks.summarized) for sid, marks in sessions.values()]).decode()
        entries: dict[int, list[Entry]] = {sid: [] for sid, _ in sessions.values()}
        damaged: dict[int, Exception] = {}
        for row in await self._read(
            f"SELECT {_ENTRY_COLUMNS} FROM json_each(?) AS w JOIN messages AS m "
            f"ON m.pos > ((w.value ->> 0) << {SEQ_BITS}) + (w.value ->> 1) AND m.pos < ((w.value ->> 0) + 1) << {SEQ_BITS} "
            "ORDER BY m.pos",
            (live,),
        ):
            sid = row[0] >> SEQ_BITS
            try:
                entries[sid].append(_entry(row))
            except (msgspec.DecodeError, LookupError, TypeError) as e:
                damaged[sid] = e
        summaries: dict[tuple[int, int], Summary] = {}
        for sid, generation, through, prefix, text, tokens, degraded, model in await self._read(
            "SELECT p.sid, p.generation, p.through, p.prefix, p.text, p.tokens, p.degraded, p.model FROM json_each(?) AS w "
            "JOIN summaries AS p ON p.sid = w.value ->> 0 ORDER BY p.sid, p.generation, p.through",
            (live,),
        ):
            summaries[sid, generation] = Summary(through, prefix, text, tokens, bool(degraded), model)
        digests: dict[int, list[bytes]] = {}
        for sid, digest in await self._read(
            "SELECT sid, key FROM (SELECT m.pos >> 32 AS sid, m.key, "
            "row_number() OVER (PARTITION BY m.pos >> 32 ORDER BY m.pos DESC) AS n "
            "FROM json_each(?) AS w JOIN messages AS m ON m.pos >> 32 = w.value ->> 0 AND m.key IS NOT NULL) "
            f"WHERE n <= {HOT_KEYS + 1}",
            (live,),
        ):
            digests.setdefault(sid, []).append(digest)
        jobs: dict[Hashable, list[Job]] = {}
        if sessions:
            for row in await self._read(
                f"SELECT {_JOB_COLUMNS} FROM json_each(?) AS w JOIN jobs AS j ON j.sid = w.value ->> 0 "
                "JOIN sessions AS s ON s.sid = j.sid WHERE NOT j.dead ORDER BY j.number",
                (live,),
            ):
                job = _job(row)
                jobs.setdefault(job.key, []).append(job)
        images: list[SessionImage | Exception] = []
        for key in keys:
            assert isinstance(key, SessionKey)
            if key not in sessions:
                # A number that is never written leaves a gap, which costs nothing.
                images.append(SessionImage(self._next_sid, False, Marks(), 1, (), None, frozenset(), True))
                self._next_sid += 1
                continue
            sid, marks = sessions[key]
            if sid in damaged:
                images.append(JournalDamaged(f"session {key!r} holds a message that cannot be read: {damaged[sid]}"))
                continue
            found, hot = entries[sid], digests.get(sid, [])
            last = found[-1].seq if found else marks.summarized
            if found and found[0].seq != marks.summarized + 1:
                images.append(JournalDamaged(f"session {key!r} lacks message {marks.summarized + 1}"))
                continue
            images.append(
                SessionImage(
                    sid,
                    True,
                    marks,
                    last + 1,
                    tuple(found),
                    summaries.get((sid, marks.generation)),
                    frozenset(hot[:HOT_KEYS]),
                    len(hot) <= HOT_KEYS,
                    tuple(jobs.get(key, ())),
                )
            )
        return images

    async def fetch(self, key: Hashable, query: Any) -> OriginalAppend | None:
        """Which append an idempotency key belongs to."""
        assert isinstance(key, SessionKey)
        assert isinstance(query, KeyLookup)
        rows = await self._read(
            # CROSS JOIN keeps this order; the plus (no affinity) and the third condition let the partial index be used
            "SELECT m.pos, m.id FROM sessions AS s "
            "CROSS JOIN messages AS k ON k.pos >> 32 = +s.sid AND k.key = ? AND k.key IS NOT NULL "
            "CROSS JOIN messages AS m ON m.pos BETWEEN k.pos AND k.pos + k.batch - 1 "
            "WHERE s.user = ? AND s.session = ? ORDER BY m.pos",
            (query.digest, key.user, key.session),
        )
        if not rows:
            return None
        return OriginalAppend(tuple(pos & _SEQ_MASK for pos, _ in rows), tuple(id_ for _, id_ in rows))

    # -- reading ----------------------------------------------------------------------------------------------------

    async def read(self, key: SessionKey, first: int, last: int) -> Sequence[Entry]:
        """Messages `first`…`last`."""
        rows = await self._read(
            f"SELECT {_ENTRY_COLUMNS} FROM sessions AS s JOIN messages AS m "
            f"ON m.pos BETWEEN (s.sid << {SEQ_BITS}) + ? AND (s.sid << {SEQ_BITS}) + ? "
            "WHERE s.user = ? AND s.session = ? ORDER BY m.pos",
            (max(first, 1), min(last, _SEQ_MASK), key.user, key.session),
        )
        return [_entry(row) for row in rows]

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        """Job rows, oldest first."""
        rows = await self._read(
            f"SELECT {_JOB_COLUMNS} FROM jobs AS j JOIN sessions AS s USING (sid) WHERE j.dead = ? ORDER BY j.number",
            (int(dead),),
        )
        return [_job(row) for row in rows]

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        """A user's sessions, the one with the newest message last."""
        rows = await self._read(
            f"SELECT s.session, count(*), max(m.at_us) FROM sessions AS s JOIN messages AS m "
            f"ON m.pos BETWEEN s.sid << {SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {_SEQ_MASK} "
            "WHERE s.user = ? GROUP BY s.sid ORDER BY 3, s.sid",
            (user,),
        )
        return [SessionListing(SessionKey(user, session), count, at_us) for session, count, at_us in rows]

    async def unflushed(self, limit: int) -> Sequence[SessionKey]:
        """Sessions whose last message no flush job covers."""
        rows = await self._read(
            "SELECT s.user, s.session FROM sessions AS s WHERE s.flushing < "
            f"(SELECT m.pos & {_SEQ_MASK} FROM messages AS m WHERE m.pos BETWEEN s.sid << {SEQ_BITS} "
            f"AND (s.sid << {SEQ_BITS}) + {_SEQ_MASK} ORDER BY m.pos DESC LIMIT 1) LIMIT ?",
            (limit,),
        )
        return [SessionKey(user, session) for user, session in rows]

    async def counts(self) -> JournalCounts:
        """How much it holds."""
        ((users, sessions),) = await self._read("SELECT count(DISTINCT user), count(*) FROM sessions")
        ((messages, tokens),) = await self._read("SELECT count(*), coalesce(sum(tokens), 0) FROM messages")
        ((summaries,),) = await self._read("SELECT count(*) FROM summaries")
        ((pending, dead),) = await self._read("SELECT count(*) FILTER (WHERE NOT dead), count(*) FILTER (WHERE dead) FROM jobs")
        return JournalCounts(users, sessions, messages, tokens, summaries, pending, dead)

    async def setting(self, name: str, value: str | None = None) -> str | None:
        """Read a setting, after setting it if it never was."""
        if value is not None:
            await self._read("INSERT OR IGNORE INTO settings VALUES (?, ?)", (name, value))
        rows = await self._read("SELECT value FROM settings WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

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


_ENTRY_COLUMNS = "m.pos, m.at_us, m.tokens, m.role, m.chat, m.meta, m.id"


_JOB_COLUMNS = "j.id, j.lane, s.user, s.session, j.payload, j.attempts, j.not_before, j.dead, j.error"


def _job(row: tuple[Any, ...]) -> Job:
    id_, lane, user, session, payload, attempts, not_before, dead, error = row
    key = SessionKey(user, session)
    return Job(id_, lane, key, _decode_payload(payload), attempts, not_before, resumed=True, dead=bool(dead), error=error)


def _entry(row: tuple[Any, ...]) -> Entry:
    pos, at_us, tokens, code, chat, meta, id_ = row
    role = _ROLES[code]
    calls: tuple[str, ...] = ()
    answers = None
    if role == "assistant" and b"tool_calls" in chat:
        calls = tuple(call["id"] for call in decode_chat(chat).get("tool_calls") or ())
    elif role == "tool":
        answers = decode_chat(chat)["tool_call_id"]
    return Entry(pos & _SEQ_MASK, at_us, tokens, role, chat, meta, id_, calls, answers)


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
