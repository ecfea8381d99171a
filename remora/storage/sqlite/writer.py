"""The journal's writer: one connection, group commit across all sessions.

Invariants
----------
1. Either plain commits use the writing connection, which `write` hands to the connection's thread
   and whose end calls `_on_stored`, or the task `run` does, for all that is rare.
   aiosqlite runs a cancelled call to its end and drops the result, so a caller's cancellation must
   never reach it: callers queue a `Write`, or other work (`run_exclusively`), and wait elsewhere.
   Before `run` starts, the caller that queues work does it.
2. What is queued shares a commit: one statement per kind of row, one commit and one call to the
   connection's thread, however many sessions take part. Senders are answered a few at a time,
   during the next commit. The fsync is shared: with `synchronous=FULL` the cost is nearly that of
   NORMAL from 16 writers on (NORMAL lost acknowledged rows in 447 of 840 enumerated crash states,
   FULL in 0 of 1 000). With many senders a second commit waits in the connection's thread, which
   begins it when the first ends: half of the senders are answered and send again while the other
   half's messages are stored. If the first fails, the thread does not begin the second.
3. Writes of one session are acknowledged in the order in which they were queued. When one fails,
   all committed before it are acknowledged first, and its cell fences those behind it before
   anything else is committed. So a later record is never stored without an earlier one.
4. A failed statement is rolled back and left nothing: `CommitFailed`. A failed write or sync of the
   files may have left frames in the write-ahead log that a crash brings back: `OutcomeUnknown`.
5. A write that cannot be stored because of its own content fails alone: the batch is halved until
   that write is by itself.
6. The newest opener owns the journal. Every commit checks the owner's epoch: a writer that lost the
   journal (for example, a second process found the lock gone) stores nothing more:
   `OwnershipLost`. So does one whose files were removed or replaced (`place`), which each commit
   checks before any sender is answered.
7. The commit mark (`mark`) is written after a commit and before any sender is answered.
8. Erasing, trimming, settings and compacting run in the same task, between batches: they see
   everything written before them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from zlib import crc32

import anyio
import msgspec

from remora.errors import CommitFailed, OutcomeUnknown, OwnershipLost
from remora.logging import get_logger
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.log import Write
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread, switch_as_before, switch_often
from remora.storage.files import FilesGone
from remora.storage.queueing import OwnershipWatch, WriteQueue
from remora.storage.records import ENTRY_KIND
from remora.storage.rows import HALF, ROLE_CODES, SEQ_BITS, SHARES, RecordRows, RowKind
from remora.storage.sqlite.connection import (
    EarlierFailed,
    JournalConnection,
    NothingChanged,
    Step,
    Submitted,
)
from remora.storage.sqlite.opening import Ownership
from remora.storage.sqlite.place import JournalPlace
from remora.storage.sqlite.uses import MANY_HELD, SessionUses

T = TypeVar("T")

_logger = get_logger(__name__)
_BEGIN = Step("BEGIN IMMEDIATE; UPDATE settings SET value = value + 1 WHERE name = 'commits'")
"""Begins a counted commit (see `mark`); fails for a writer that lost the journal."""
_COMMIT = Step("COMMIT", [()])
_FEW = 4  # writes of a commit
_HALVED = 16  # writes on their way of which a commit takes half, and leaves half to the next
_NEVER = sys.maxsize
_SMOOTHED = 8  # commits over which times are averaged
_ROUND_S = 0.02  # the event loop takes no longer: after that, nobody was there
# Pages of write-ahead log from which SQLite moves it into the main file and starts it again. A log
# that grows makes each sync twice as long as one that is overwritten: with few writers, whose
# commits are all sync, it must stay short. With many writers, moving it that often costs more.
AUTO_CHECKPOINT_PAGES = 1_000
_BUSY_CHECKPOINT_PAGES = 16_384
_BUSY_WRITES = 16  # a commit of so many writes means that there are many writers
_BUSY = Step(f"PRAGMA wal_autocheckpoint = {_BUSY_CHECKPOINT_PAGES}")
_FAILURES = (sqlite3.Error, OverflowError, TypeError, ValueError, MemoryError, FilesGone)


class _NotOwner(Exception):
    """Another process owns the journal by now."""


class _Commit(NamedTuple):
    """A plain commit that is on its way."""

    rows: Rows
    submitted: Submitted | None


class JournalWriter(WriteQueue):
    """The writing half of a journal.

    Args:
        path: the file.
        writer: the connection; only `run` and work passed to `run_exclusively` use it.
        ownership: what taking the journal over gave.
        max_batch_writes: writes joined in one group commit.

    Attributes:
        path: the file.
        instance: six hex digits that tell its message ids from another journal's.
    """

    _owned: FileOwnershipWatch

    def __init__(
        self,
        path: Path,
        writer: JournalConnection,
        ownership: Ownership,
        *,
        max_batch_writes: int,
    ) -> None:
        owned = FileOwnershipWatch(path, ownership.epoch, lambda: writer.place)
        super().__init__(owned, max_batch_writes=max_batch_writes)
        self.path = path
        self.instance = ownership.instance
        self._writer = writer
        self._mark = ownership.mark
        self._uses = SessionUses(complete=ownership.uses_complete)
        self._epoch = ownership.epoch
        self._commit_number = ownership.commits
        self._stage: Literal["idle", "storing", "task"] = "idle"
        """Whose turn it is to use the connection: nobody's, `_on_stored`'s after a plain commit,
        or the task's.
        """
        self._attended = False
        """`run` is there."""
        self._context = contextvars.copy_context()
        """Of `run`: senders are answered in it, and never in the context of another sender."""
        self._few = True
        """The last commit had few writes: the next one need not wait for others."""
        self._storing: deque[_Commit] = deque()
        """Plain commits that the connection's thread has: the one that runs, and one behind it."""
        self._enough = _NEVER
        """As soon as so many writes are queued, they go behind the commit that runs."""
        self._ended = 0.0
        """When the connection's thread ended its last plain commit."""
        self._round_s = self._waited_s = 0.0
        """How long it is from there until the next commit's writes are queued; and how long a
        commit does not compute. Averages.
        """
        self._handed: list[tuple[Sequence[Write], BaseException | None]] = []
        """What plain commits leave to the task, in order, and why they failed."""
        self._busy = False
        """There have been many writers at a time."""

    @property
    def commit_number(self) -> int:
        """See `remora.storage.ports.Journal.commit_number`."""
        return self._commit_number

    @property
    def alternates(self) -> bool:
        """Return whether two commits at a time are worth it.

        They cost a second sync, and save what the thread waits for the event loop. With 16 senders
        they stored 1.4 times as much on a disk that syncs a page in 0.2 to 0.4 ms, and 0.7 times if
        each commit took 1 ms longer.
        """
        return self._round_s > self._waited_s

    def write(self, write: Write) -> None:
        """Queue a write for the next group commit; if none runs, begin it."""
        self._queue.append(write)
        if self._stage != "idle":
            if len(self._queue) >= self._enough:
                self._begin_behind_soon()
            return
        if not self._attended:
            self._event.set()
        elif self._few and not self._erased:
            self._begin()
        else:
            self._begin_soon()

    async def run(self) -> None:
        """See to all but plain commits, until cancelled."""
        async with self._committing:
            self._attended = True
            self._context = contextvars.copy_context()
            try:
                while True:
                    queued = self._stage == "idle" and self._queue
                    if queued or self._work or self._stage == "task":
                        await self._commit_queued()
                    else:
                        await self._wait()
            finally:
                self._attended = False

    # -- plain commits: no task, two turns of the event loop ---------------------------------------

    def _begin_soon(self) -> None:
        """Commit after those who were just answered, who most often send the next message."""
        self._stage = "storing"
        asyncio.get_running_loop().call_soon(self._begin, context=self._context)

    def _begin(self) -> None:
        """Hand what is queued to the connection's thread; `_on_stored` goes on from there."""
        if not self._attended or not (self._queue or self._work):
            self._stage = "idle"
            switch_as_before()
            if not self._attended:  # who closes the journal commits the rest
                self._event.set()
            return
        if self._work:
            self._hand_over()
            return
        batch = self._take(self._share())
        rows = Rows(batch)
        if not batch or rows.large or self._owned.lost is not None or self._writer.in_transaction:
            self._hand_over(batch)
        else:
            self._submit(rows)

    def _begin_behind_soon(self) -> None:
        """With all that come in this turn of the loop."""
        self._enough = _NEVER
        asyncio.get_running_loop().call_soon(self._begin_behind, context=self._context)

    def _begin_behind(self) -> None:
        """Submit what is queued behind the one commit that runs, unless the task has to."""
        if self._stage != "storing" or len(self._storing) != 1 or self._handed:
            return
        if self._work or self._owned.lost is not None or not self._attended:
            return
        if len(self._uses.held) >= MANY_HELD:  # only one commit at a time writes them
            return
        some = self._queue[: self._share()]
        if len(some) < len(self._storing[0].rows.batch):
            return
        if self._erased and any(map(self._is_erased, some)):  # told after the first
            return
        batch = self._take(len(some))
        rows = Rows(batch)
        if rows.large:
            self._put_back(batch)
        else:
            self._submit(rows)

    def _share(self) -> int:
        """How many writes the next commit takes."""
        share = len(self._queue)
        for commit in self._storing:
            share += len(commit.rows.batch)
        if share >= _HALVED and self.alternates:
            share = (share + len(self._storing)) // 2  # the odd one goes into the second
        return min(self._max_batch, share)

    def _submit(self, rows: Rows) -> None:
        batch = rows.batch
        self._stage = "storing"
        submitted = None
        try:
            steps = self._make_steps(rows)
            if steps:
                switch_often()
                submitted = self._writer.submit(
                    steps,
                    self._on_stored,
                    self._context,
                    self._storing[-1].submitted if self._storing else None,
                )
        except _FAILURES as e:
            if self._storing:  # it fails again, after the commit that runs
                self._put_back(batch)
            else:
                self._hand_over(batch, e)
            return
        if submitted is None and self._storing:  # answered in its turn
            self._put_back(batch)
            return
        self._few = len(batch) < _FEW
        round_s = time.perf_counter() - self._ended
        if not self._few and round_s < _ROUND_S:
            self._round_s += (round_s - self._round_s) / _SMOOTHED
        if self._storing:
            probe("commit_behind")
        self._storing.append(_Commit(rows, submitted))
        if submitted is not None:
            if not self._few:
                self._await_enough()
        else:
            asyncio.get_running_loop().call_soon(self._on_stored, None, context=self._context)

    def _await_enough(self) -> None:
        """Behind one commit of many goes another, as soon as as many writes are queued."""
        most = len(self._storing[0].rows.batch) if len(self._storing) == 1 else 0
        self._enough = most if most >= _FEW and self.alternates else _NEVER
        if len(self._queue) >= self._enough:
            self._begin_behind_soon()

    def _on_stored(self, error: BaseException | None) -> None:
        """On the event loop, after the connection's thread."""
        rows, submitted = self._storing.popleft()
        self._enough = _NEVER
        try:
            if error is None:
                began = time.perf_counter() if submitted is None else submitted.began
                if submitted is not None:
                    self._ended = submitted.ended
                    self._waited_s += (submitted.waited_s - self._waited_s) / _SMOOTHED
                self._note_stored(rows, began)
            else:
                failure = _NotOwner() if isinstance(error, NothingChanged) else error
                self._handed.append((rows.batch, failure))
        finally:
            if self._storing:
                self._await_enough()
            elif self._handed:
                self._hand_over()
            elif self._few:
                self._begin()
            else:
                self._begin_soon()

    def _hand_over(self, batch: Sequence[Write] = (), error: BaseException | None = None) -> None:
        """Leave what is rare to the task; until it has ended, nothing is committed from here."""
        if batch:
            self._handed.append((batch, error))
        self._enough = _NEVER
        self._stage = "task"
        switch_as_before()
        self._event.set()

    async def _wait(self) -> None:
        if self._event.is_set():
            self._event = anyio.Event()
        await self._event.wait()

    # -- committing in the task --------------------------------------------------------------------

    async def _commit_queued(self) -> None:
        while self._stage == "storing":
            await self._wait()
        self._stage = "task"
        with anyio.CancelScope(shield=True):
            await self._commit_handed()
            await super()._commit_queued()
        self._stage = "idle"
        if self._queue:
            self._begin_soon()

    @property
    def _commits_here(self) -> bool:
        """See `WriteQueue`: only where nobody else does, or where all of it fails."""
        return not self._attended or self._owned.lost is not None

    async def _commit_handed(self) -> None:
        handed, self._handed = self._handed, []
        for batch, error in handed:
            if isinstance(error, EarlierFailed):
                probe("commit_behind_not_begun")
            if error is None or isinstance(error, EarlierFailed):
                unfenced = [write for write in batch if not write.fenced]
                if unfenced:
                    await self._commit(unfenced)
            elif isinstance(error, (*_FAILURES, _NotOwner)):
                self._uses.take_back()
                await self._commit_failed(batch, error)
            else:
                raise error

    async def _commit(self, batch: Sequence[Write]) -> None:
        rows = Rows(batch)
        try:
            if self._owned.lost is not None:
                raise _NotOwner
            steps = await run_in_thread_if(rows.large, self._make_steps, rows)
            began = time.perf_counter()
            await self._store(steps)
        except (*_FAILURES, _NotOwner) as e:
            self._uses.take_back()
            await self._commit_failed(batch, e)
            return
        self._note_stored(rows, began)

    def _note_stored(self, rows: Rows, began: float) -> None:
        batch = rows.batch
        if rows.records:
            if rows.counted:  # it may have written earlier uses
                self._uses.committed()
            self._uses.held.update(rows.uses)
            self._busy = self._busy or len(batch) >= _BUSY_WRITES
            self._note_marked(rows.newest, counted=rows.counted)
        self._acknowledge(batch, rows.records, time.perf_counter() - began)

    async def _commit_failed(self, batch: Sequence[Write], e: Exception) -> None:
        error, one_write = await self._failure(e)
        await self._fail(batch, error, one_write=one_write)

    def _make_steps(self, rows: Rows) -> list[Step]:
        """The statements of one transaction; messages alone are one, which commits itself."""
        rows.make()
        message_step = rows.message_step(self._epoch)
        others = rows.steps()
        if len(self._uses.held) >= MANY_HELD:
            others += self._uses.take()
        rows.counted = bool(others)
        steps = [] if message_step is None else [message_step]
        if others:
            steps = [_BEGIN, *steps, *others, _COMMIT]
        if steps and len(rows.batch) >= _BUSY_WRITES and not self._busy:
            steps.insert(0, _BUSY)
        return steps

    async def _store(self, steps: Sequence[Step]) -> None:
        """One transaction by one call to the connection's thread."""
        await self._roll_back_leftover()
        if steps:
            try:
                await self._writer.run(steps)
            except NothingChanged:
                raise _NotOwner from None

    def _note_marked(self, newest: int, *, counted: bool) -> None:
        """Note a commit, and write it into the mark."""
        self._commit_number += counted
        self._mark.put(self._commit_number, newest)
        self._note_commit()

    def reset_mark(self) -> None:
        """Name no message in either slot of the mark: the write-ahead log holds none."""
        self._mark.put(self._commit_number, 0)
        self._mark.put(self._commit_number, 0)

    # -- failures ------------------------------------------------------------------------------

    async def _failure(self, error: Exception) -> tuple[CommitFailed | OutcomeUnknown, bool]:
        """The error to report, and whether it may be the fault of one write alone.

        A failure before anything is synced is rolled back and gone. After a failed sync, the frames
        in the write-ahead log may come back at the next crash.
        """
        name = getattr(error, "sqlite_errorname", "")
        rolled_back = await self._roll_back()
        if isinstance(error, _NotOwner) or name == "SQLITE_CONSTRAINT_TRIGGER":
            return self._owned.taken_over(), False
        failed: CommitFailed | OutcomeUnknown
        if isinstance(error, FilesGone):
            failed = OutcomeUnknown(
                f"{self._owned.files_gone(error)}; what was written last may be lost"
            )
            failed.__cause__ = error
            return failed, False
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
        transient = isinstance(error, sqlite3.OperationalError | sqlite3.InternalError)
        return failed, rolled_back and not transient

    async def _recount(self) -> None:
        """Read the number of commits: one that was reported as failed may be there."""
        if self._writer.in_transaction:  # it would count what is going to be rolled back
            return
        with contextlib.suppress(sqlite3.Error):
            ((count,),) = await self._writer.execute_fetchall(
                "SELECT value FROM settings WHERE name = 'commits'"
            )
            self._commit_number = int(count)

    async def _roll_back_leftover(self) -> None:
        """Close a transaction that a failed rollback left open, so that the next is its own."""
        if self._writer.in_transaction:
            await self._writer.execute("ROLLBACK")
            await self._recount()

    async def _roll_back(self) -> bool:
        try:
            if self._writer.in_transaction:
                await self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            probe("rollback_failed")
            _logger.exception("rollback_failed")
            return False
        return True

    # -- other work ----------------------------------------------------------------------------

    async def transaction(
        self, work: Callable[[], Awaitable[T]], then: Callable[[T], None] = lambda _: None
    ) -> T:
        """Run `work` exclusively as one counted commit, and `then` before any other write.

        Raises:
            CommitFailed: nothing was changed.
            OutcomeUnknown: all of it was done, or nothing.
        """

        async def operation() -> T:
            try:
                if self._owned.lost is not None:
                    raise _NotOwner
                await self._roll_back_leftover()
                await self._writer.run([_BEGIN])
                result = await work()
                await self._writer.run([_COMMIT])
            except Exception as e:
                error, one_write = await self._failure(e)
                self.meter.fail(None if one_write else error)
                self._log_failure(error, 0)
                raise error from e
            self._note_marked(0, counted=True)
            then(result)
            return result

        return await self.run_exclusively(operation)

    async def _finish(self) -> None:
        await super()._finish()
        steps = self._uses.finish()
        if steps and self._owned.lost is None:
            try:
                await self._store([_BEGIN, *steps, _COMMIT])
                self._note_marked(0, counted=True)
            except _FAILURES:  # the next start looks at the messages
                await self._roll_back()


# -- the ownership of a SQLite journal and its files -----------------------------------------------


class FileOwnershipWatch(OwnershipWatch):
    """An `OwnershipWatch` of files, which somebody may remove or replace.

    Args:
        path: the journal's file.
        epoch: of its owner, this process.
        find_place: gives where its files must be; None while it is being opened.
    """

    def __init__(
        self, path: Path, epoch: int, find_place: Callable[[], JournalPlace | None]
    ) -> None:
        super().__init__(str(path), epoch, path=str(path))
        self._find_place = find_place

    async def check_place(self) -> None:
        """Notice that the files are gone, though nothing is written."""
        place = self._find_place()
        if place is None or self.lost is not None:
            return
        try:
            await run_in_thread(place.check)
        except FilesGone as e:
            self.files_gone(e)

    def files_gone(self, error: FilesGone) -> OwnershipLost:
        """Return what is written from now on would be in files that no start finds."""
        if self.lost is None:
            probe("journal_files_gone")
        return self._lose(
            "journal_files_gone",
            f"{error} while this runtime had it open; nothing more can be stored here, and the "
            "runtime ends: put the directory back as it was or restore a backup, and start again",
            error=str(error),
        )


# -- the statements that store the rows of one transaction (`remora.storage.rows`) -----------------

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode

# Frequent rows go as JSON; see `_INSERT_MESSAGES`.
_INSERT_ACTOR = (
    "INSERT INTO actors (sid, user, session, created_us, crc) "
    "SELECT a.value ->> 0, a.value ->> 1, a.value ->> 2, a.value ->> 3, a.value ->> 4 FROM "
    "json_each(?) AS a"
)
_COLUMNS = "pos, at_us, tokens, role, epoch, chat, meta, id, key, batch, importance, crc"
_IF_OWNED = ":epoch = (SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'epoch')"
# All messages of a commit by one statement: places and lengths as JSON, content as one blob.
# `executemany` releases the interpreter's lock at every row, and waits up to 5 ms to get it back
# while the event loop is busy: with 128 rows a commit and a busy thread, 324 rows/s by executemany
# and 6 795 by this (39 292 and 26 580 without one). Nothing is inserted if the journal has another
# owner by now: the last condition is evaluated once.
_INSERT_MESSAGES = (
    f"INSERT INTO messages ({_COLUMNS}) "
    "SELECT m.value ->> 0, m.value ->> 1, m.value ->> 2, m.value ->> 3, :epoch, "
    "substr(:content, m.value ->> 4, m.value ->> 5), "
    "CASE WHEN m.value ->> 6 "
    "THEN substr(:content, (m.value ->> 4) + (m.value ->> 5), m.value ->> 6) "
    "END, m.value ->> 7, "
    "CASE WHEN m.value ->> 8 "
    "THEN substr(:content, (m.value ->> 4) + (m.value ->> 5) + (m.value ->> 6), 16) END, "
    f"m.value ->> 8, (m.value ->> 9) / CAST({SHARES} AS REAL), m.value ->> 10 "
    f"FROM json_each(:places) AS m WHERE {_IF_OWNED}"
)
# A message alone; SQLite takes 16 µs for it, and by the statement above 22. Its parameters have no
# names: for each name `sqlite3` releases the interpreter, which a busy thread may take. The epoch
# comes twice.
_INSERT_MESSAGE = (
    f"INSERT INTO messages ({_COLUMNS}) SELECT {', '.join('?' * 12)} "
    f"WHERE {_IF_OWNED.replace(':epoch', '?')}"
)
_REMOVE_MESSAGE = "UPDATE messages SET removed = ? WHERE pos = ? AND removed IS NULL"
_CHANGE_MESSAGE = (
    "UPDATE messages SET tokens = ?, chat = ?, meta = ?, importance = ?, crc = ? WHERE pos = ?"
)
_PRUNE_MESSAGE = (
    "UPDATE messages SET pruned = 1 WHERE pos = ((SELECT sid FROM actors WHERE user = ? AND "
    f"session = ?) << {SEQ_BITS}) + ?"
)
_PRUNE_ENTRY = (
    "DELETE FROM state_items WHERE sid = (SELECT sid FROM actors WHERE user = ? AND session = ?) "
    f"AND kind = '{ENTRY_KIND}' AND name = ?"
)
_UPDATE_WATERMARKS = (
    "UPDATE actors SET generation = m.value ->> 0, summarized = m.value ->> 1, "
    "summarizing = m.value ->> 2, flushing = m.value ->> 3, cleared = m.value ->> 4, "
    "marks_crc = m.value ->> 5 FROM json_each(?) AS m WHERE sid = m.value ->> 6"
)
_UPDATE_INDEXED = "UPDATE actors SET flushed = max(flushed, ?) WHERE sid = ?"
_INSERT_FRONT = (
    "INSERT INTO summaries (sid, at_seq, kind, generation, first, through, prefix, text, tokens, "
    "degraded, model, input_tokens, cover, crc) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ERASE_SUMMARIES = (
    "UPDATE summaries SET text = '', tokens = 0, degraded = 1, model = 'none', cover = NULL, "
    "crc = NULL WHERE sid = ? AND generation < ? AND kind IN ('summary', 'entry') AND EXISTS "
    "(SELECT 1 FROM json_each(?) AS w WHERE w.value BETWEEN first AND through)"
)
_PUT_STATE_ITEM = (
    "INSERT INTO state_items (sid, kind, name, value, crc) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET value = excluded.value, crc = excluded.crc"
)
_DROP_STATE_ITEM = "DELETE FROM state_items WHERE sid = ? AND kind = ? AND name = ?"
_DELETE_MEMORY = "DELETE FROM memories WHERE id = ?"
_INSERT_MEMORY = (
    "INSERT INTO memories (id, sid, session, agent, content, type, importance, created_us, "
    "tokens, details, crc) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_PUT_MEMORY = _INSERT_MEMORY.replace(
    "DO NOTHING",
    "(id) DO UPDATE SET content = excluded.content, importance = excluded.importance, "
    "tokens = excluded.tokens, details = excluded.details, crc = excluded.crc, "
    "session = excluded.session, type = excluded.type, created_us = excluded.created_us",
)
_INSERT_JOB = "INSERT INTO jobs (id, queue, sid, payload, crc) VALUES (?, ?, ?, ?, ?)"
_ADVANCE_JOB = "UPDATE jobs SET payload = ?, crc = ? WHERE id = ?"
_RETRY_JOB = "UPDATE jobs SET attempts = ?, not_before = ?, error = ? WHERE id = ?"
_DEAD_LETTER_JOB = "UPDATE jobs SET attempts = ?, error = ?, dead = 1 WHERE id = ?"
_RETRY_DEAD_LETTER = "UPDATE jobs SET attempts = 0, not_before = 0, dead = 0 WHERE id = ? AND dead"
_DELETE_JOB = "DELETE FROM jobs WHERE id IN (SELECT j.value ->> 0 FROM json_each(?) AS j)"
_AS_JSON = frozenset({"insert_actor", "update_watermarks", "delete_job"})
_STATEMENTS: dict[RowKind, str] = {
    "insert_actor": _INSERT_ACTOR,
    "remove_message": _REMOVE_MESSAGE,
    "change_message": _CHANGE_MESSAGE,
    "prune_message": _PRUNE_MESSAGE,
    "prune_entry": _PRUNE_ENTRY,
    "update_watermarks": _UPDATE_WATERMARKS,
    "insert_front": _INSERT_FRONT,
    "erase_summaries": _ERASE_SUMMARIES,
    "update_indexed": _UPDATE_INDEXED,
    "insert_job": _INSERT_JOB,
    "advance_job": _ADVANCE_JOB,
    "retry_job": _RETRY_JOB,
    "dead_letter_job": _DEAD_LETTER_JOB,
    "retry_dead_letter": _RETRY_DEAD_LETTER,
    "delete_job": _DELETE_JOB,
    "drop_state_item": _DROP_STATE_ITEM,
    "put_state_item": _PUT_STATE_ITEM,
    "delete_memory": _DELETE_MEMORY,
    "insert_memory": _INSERT_MEMORY,
    "put_memory": _PUT_MEMORY,
}


class Rows(RecordRows):
    """The rows of one transaction, as SQLite takes them."""

    __slots__ = ("_content", "_offset")

    def __init__(self, batch: Sequence[Write]) -> None:
        super().__init__(batch)
        self._content: list[bytes] = []
        self._offset = 1  # SQL counts from 1

    def _append(self, sid: int, entries: tuple[Any, ...], key: bytes | None) -> None:
        base = sid << SEQ_BITS
        digest = key
        keyed = len(entries) if key is not None else None
        for e in entries:
            pos, at_us, tokens, role, chat, meta, id_, importance = (
                base | e.seq,
                e.at_us,
                e.tokens,
                ROLE_CODES[e.role],
                e.chat,
                e.meta or None,
                e.id,
                e.importance,
            )
            share = HALF if importance == 0.5 else int(importance * SHARES)
            crc = crc32(_encode((pos, at_us, tokens, role, chat, meta, id_, share, digest, keyed)))
            length = len(chat)
            rest = len(meta) if meta else 0
            self._messages.append(
                (pos, at_us, tokens, role, self._offset, length, rest, id_, keyed, share, crc)
            )
            self._content.append(chat)
            self._offset += length
            if meta:
                self._content.append(meta)
                self._offset += rest
            if digest is not None:
                self._content.append(digest)
                self._offset += len(digest)
                digest = keyed = None  # the key stands on the first message alone
            self.newest = pos
        if entries:
            self.uses[sid] = entries[-1].at_us

    def message_step(self, epoch: int) -> Step | None:
        """Return what stores the new messages.

        Changes nothing if the writer is not the owner any more.

        Args:
            epoch: the writer's.
        """
        if not self._messages:
            return None
        if len(self._messages) == 1:
            pos, at_us, tokens, role, _, _, length, id_, keyed, share, crc = self._messages[0]
            chat, *rest = self._content
            meta = rest[0] if length else None
            key = rest[-1] if keyed else None
            row = (pos, at_us, tokens, role, epoch, chat, meta, id_, key, keyed, share / SHARES)
            return Step(_INSERT_MESSAGE, [(*row, crc, epoch)], must_change=True)
        parameters = {
            "places": _encode_json(self._messages).decode(),
            "content": b"".join(self._content),
            "epoch": epoch,
        }
        return Step(_INSERT_MESSAGES, [parameters], must_change=True)

    def steps(self) -> list[Step]:
        """Return what stores all but new messages."""
        if not self._rows:
            return []
        return [
            Step(_STATEMENTS[kind], [_as_json(rows)] if kind in _AS_JSON else rows)
            for kind, rows in self.others()
        ]


def _as_json(rows: Iterable[tuple[Any, ...]]) -> tuple[str]:
    return (_encode_json(list(rows)).decode(),)
