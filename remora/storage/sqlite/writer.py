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
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import anyio

from remora.errors import CommitFailed, OutcomeUnknown
from remora.logging import get_logger
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.log import Write
from remora.runtime.probes import probe
from remora.runtime.switching import switch_as_before, switch_often
from remora.storage.identity import FilesGone
from remora.storage.queueing import WriteQueue
from remora.storage.rows import is_large
from remora.storage.sqlite.connection import (
    EarlierFailed,
    JournalConnection,
    NothingChanged,
    Step,
    Submitted,
)
from remora.storage.sqlite.opening import Ownership
from remora.storage.sqlite.owning import FileOwnershipWatch
from remora.storage.sqlite.rows import Rows
from remora.storage.sqlite.uses import SessionUses

__all__ = ["AUTO_CHECKPOINT_PAGES", "JournalWriter"]

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

    batch: Sequence[Write]
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
        unusable = self._owned.lost is not None or self._writer.in_transaction
        if not batch or unusable or is_large(batch):
            self._hand_over(batch)
            return
        self._submit(batch)

    def _begin_behind_soon(self) -> None:
        """With all that come in this turn of the loop."""
        self._enough = _NEVER
        asyncio.get_running_loop().call_soon(self._begin_behind, context=self._context)

    def _begin_behind(self) -> None:
        """Submit what is queued behind the one commit that runs, unless the task has to."""
        if self._stage != "storing" or len(self._storing) != 1 or self._handed:
            return
        if self._work or self._owned.lost is not None or not self._attended or self._uses.many:
            return
        some = self._queue[: self._share()]
        if len(some) < len(self._storing[0].batch) or is_large(some):
            return
        if not any(map(self._is_erased, some)):  # who is refused is told after the first
            self._submit(self._take(len(some)))

    def _share(self) -> int:
        """How many writes the next commit takes."""
        share = len(self._queue) + sum(len(commit.batch) for commit in self._storing)
        if share >= _HALVED and self.alternates:
            share = (share + len(self._storing)) // 2  # the odd one goes into the second
        return min(self._max_batch, share)

    def _submit(self, batch: Sequence[Write]) -> None:
        self._stage = "storing"
        rows, submitted = Rows(), None
        try:
            steps = self._make_steps(rows, batch)
            if steps:
                switch_often()
                # the thread calls back without any context: a clock may need one, and logs do
                submitted = self._writer.submit(
                    steps,
                    lambda e: self._context.run(self._on_stored, e),
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
        self._storing.append(_Commit(batch, rows, submitted))
        if submitted is not None:
            self._await_enough()
        else:
            asyncio.get_running_loop().call_soon(self._on_stored, None, context=self._context)

    def _await_enough(self) -> None:
        """Behind one commit of many goes another, as soon as as many writes are queued."""
        most = len(self._storing[0].batch) if len(self._storing) == 1 else 0
        self._enough = most if most >= _FEW and self.alternates else _NEVER
        if len(self._queue) >= self._enough:
            self._begin_behind_soon()

    def _on_stored(self, error: BaseException | None) -> None:
        """On the event loop, after the connection's thread."""
        batch, rows, submitted = self._storing.popleft()
        self._enough = _NEVER
        try:
            if error is None:
                began = time.perf_counter() if submitted is None else submitted.began
                if submitted is not None:
                    self._ended = submitted.ended
                    self._waited_s += (submitted.waited_s - self._waited_s) / _SMOOTHED
                self._note_stored(batch, rows, began)
            else:
                failure = _NotOwner() if isinstance(error, NothingChanged) else error
                self._handed.append((batch, failure))
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
        rows = Rows()
        try:
            if self._owned.lost is not None:
                raise _NotOwner
            steps = await run_in_thread_if(is_large(batch), self._make_steps, rows, batch)
            began = time.perf_counter()
            await self._store(steps)
        except (*_FAILURES, _NotOwner) as e:
            self._uses.take_back()
            await self._commit_failed(batch, e)
            return
        self._note_stored(batch, rows, began)

    def _note_stored(self, batch: Sequence[Write], rows: Rows, began: float) -> None:
        if rows.records:
            self._count_commit(rows.newest, counted=rows.counted)
            self._uses.committed(rows.uses)
            self._busy = self._busy or len(batch) >= _BUSY_WRITES
        self.meter.add(len(batch), rows.records, time.perf_counter() - began)
        self._acknowledger.add(batch)

    async def _commit_failed(self, batch: Sequence[Write], e: Exception) -> None:
        error, one_write = await self._failure(e)
        await self._fail(batch, error, one_write=one_write)

    def _make_steps(self, rows: Rows, batch: Sequence[Write]) -> list[Step]:
        """The statements of one transaction; messages alone are one, which commits itself."""
        for write in batch:
            for record in write.records:
                rows.add(record)
        message_step = rows.message_step(self._epoch)
        others = list(rows.steps())
        if self._uses.many:
            others += self._uses.take()
        rows.counted = bool(others)
        steps = [] if message_step is None else [message_step]
        if others:
            steps = [_BEGIN, *steps, *others, _COMMIT]
        if steps and len(batch) >= _BUSY_WRITES and not self._busy:
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

    def _count_commit(self, newest: int, *, counted: bool) -> None:
        self.meter.count()
        self._outage.succeed()
        self._commit_number += counted
        self._mark.put(self._commit_number, newest)

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
            self._count_commit(0, counted=True)
            then(result)
            return result

        return await self.run_exclusively(operation)

    async def _finish(self) -> None:
        await super()._finish()
        steps = self._uses.finish()
        if steps and self._owned.lost is None:
            try:
                await self._store([_BEGIN, *steps, _COMMIT])
                self._count_commit(0, counted=True)
            except _FAILURES:  # the next start looks at the messages
                await self._roll_back()
