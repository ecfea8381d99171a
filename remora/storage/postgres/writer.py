"""The writer of a journal in PostgreSQL: one connection, group commit across all sessions.

Invariants
----------
1. Only the task `run` uses the writing connection; before it starts, the caller that queues work.
   asyncpg cancels the statement of a cancelled task, so a caller's cancellation must never reach
   it: callers queue a `Write`, or other work (`run_exclusively`), and wait elsewhere.
2. Everything queued when a commit returns goes into the next one: one call of a function, so one
   statement and one round trip, however many sessions take part.
3. Each commit has the next number of the owner's epoch; the function refuses every other
   (`remora.storage.postgres.schema`). When a connection breaks, the number says what became of the
   commit: a new connection takes it, or finds it taken. No later statement is sent before that, so
   a commit that the server still works on is either seen, or never stored.
4. Writes of one session are acknowledged in the order in which they were queued. When one fails,
   all committed before it are acknowledged first.
5. A write that cannot be stored because of its own content fails alone: the batch is halved until
   that write is by itself.
6. Erasing, trimming and settings run in the same task, between batches.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
import asyncpg

from remora.errors import CommitFailed, OutcomeUnknown, StorageError
from remora.logging import get_logger
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.log import Write
from remora.runtime.outage import OutageLog
from remora.runtime.probes import probe
from remora.storage.acknowledging import Acknowledger, ExclusiveWork
from remora.storage.commits import CommitMeter
from remora.storage.postgres.connection import (
    BROKEN,
    Address,
    connect,
    describe,
    is_broken,
    is_of_content,
)
from remora.storage.postgres.opening import Ownership
from remora.storage.postgres.owning import OwnershipWatch
from remora.storage.postgres.rows import Rows
from remora.storage.postgres.schema import NEXT_NUMBER, OVERTAKEN, in_schema
from remora.storage.rows import is_large

__all__ = ["JournalWriter"]

T = TypeVar("T")

_logger = get_logger(__name__)
_COMMIT = "SELECT remora.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"
_MOST_BYTES = 32 << 20  # of one commit; PostgreSQL takes less than 1 GB
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 0.5


class JournalWriter:
    """The writing half of a journal.

    Args:
        address: of the database.
        connection: the writing connection.
        ownership: what taking the journal over gave.
        max_batch_writes: writes joined in one group commit.
        reconnect_s: how long a commit waits for PostgreSQL to come back.

    Attributes:
        instance: six hex digits that tell its message ids from another journal's.
        epoch: the number of its owners so far, this one included.
    """

    def __init__(
        self,
        address: Address,
        connection: asyncpg.Connection[Any],
        ownership: Ownership,
        *,
        max_batch_writes: int,
        reconnect_s: float,
    ) -> None:
        self.instance = ownership.instance
        self.epoch = ownership.epoch
        self._address = address
        self._connection: asyncpg.Connection[Any] | None = connection
        self._commit_number = ownership.commits
        self._doubtful = False
        """Nobody knows yet whether the commit after `_commit_number` was stored."""
        self._max_batch = max_batch_writes
        self._reconnect_s = reconnect_s
        self._queue: list[Write] = []
        self._taken = 0
        """Writes that left the queue since opening."""
        self._work: deque[ExclusiveWork[Any]] = deque()
        self._event = anyio.Event()
        self._committing = anyio.Lock()
        """Held by `run`; before it starts, by the caller that does the queued work."""
        self._acknowledger = Acknowledger()
        self._owned = OwnershipWatch(address.schema, ownership.epoch)
        self._erased: set[int] = set()
        """Actors erased since opening."""
        self._closed = False
        self._outage = OutageLog(
            _logger, "commit_failed", ended="commits_resumed", monotonic=time.monotonic
        )
        self._meter = CommitMeter()

    @property
    def commit_number(self) -> int:
        """See `remora.storage.ports.Journal.commit_number`."""
        return self._commit_number

    @property
    def closed(self) -> bool:
        """No work is accepted any more."""
        return self._closed

    def check_ownership(self) -> None:
        """Raise `OwnershipLost` where that is known."""
        self._owned.check()

    async def wait_until_lost(self) -> None:
        """See `remora.storage.ports.Journal.wait_until_lost`."""
        await self._owned.wait_until_lost()

    def write(self, write: Write) -> None:
        """Queue a write for the next group commit."""
        self._queue.append(write)
        self._event.set()

    async def run(self) -> None:
        """Commit what is queued, until cancelled."""
        async with self._committing:
            while True:
                if not self._queue and not self._work:
                    await self._event.wait()
                self._event = anyio.Event()
                await self._commit_queued()

    async def _commit_queued(self) -> None:
        """Commit and work until nothing is queued. The caller holds `_committing`."""
        with anyio.CancelScope(shield=True):
            while self._queue or self._work:
                room = self._max_batch
                if self._work:
                    room = min(room, self._work[0].after - self._taken)
                    if not room:
                        self._acknowledger.answer_all()
                        await self._work.popleft().run()
                        continue
                batch = self._take(room)
                if batch:
                    await self._commit(batch)

    def _take(self, room: int) -> list[Write]:
        """The next writes to commit; they leave the queue before any sender writes again."""
        size = count = 0
        for write in self._queue[:room]:
            size += write.size
            if count and size > _MOST_BYTES:
                break
            count += 1
        taken = self._queue[:count]
        self._taken += count
        del self._queue[:count]
        return [write for write in taken if not write.fenced and not self._refuse(write)]

    def _refuse(self, write: Write) -> bool:
        """Refuse a write for an erased actor; returns whether it was one."""
        if not self._erased or not any(
            getattr(record, "sid", 0) in self._erased for record in write.records
        ):
            return False
        probe("write_of_erased_refused")
        self._acknowledger.answer_all()
        write.acknowledge(
            CommitFailed("this was forgotten in the meantime; nothing of it was kept")
        )
        return True

    # -- commits -----------------------------------------------------------------------------------

    async def _commit(self, batch: Sequence[Write]) -> None:
        began = time.perf_counter()
        rows = Rows()
        try:
            arguments = await run_in_thread_if(is_large(batch), _make_rows, rows, batch)
            if arguments:
                await self._store(_COMMIT, *arguments)
            else:  # what was written before is decided, and the journal is still ours
                self._owned.check()
                if self._doubtful:
                    await self._connect()
        except (CommitFailed, OutcomeUnknown) as e:
            await self._commit_failed(batch, e)
            return
        except (TypeError, OverflowError, ValueError) as e:  # a record that no row can hold
            failed = CommitFailed(_REFUSED.format(type(e).__name__))
            failed.__cause__ = e
            await self._commit_failed(batch, failed)
            return
        self._meter.add(len(batch), rows.records, time.perf_counter() - began)
        self._acknowledger.add(batch)

    async def _commit_failed(
        self, batch: Sequence[Write], error: CommitFailed | OutcomeUnknown
    ) -> None:
        cause = error.__cause__
        one_write = cause is not None and (
            is_of_content(cause) or isinstance(cause, TypeError | OverflowError)
        )
        self._meter.fail(None if one_write else error)
        if one_write and len(batch) > 1:
            probe("batch_halved")
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                unfenced = [write for write in half if not write.fenced]  # by an earlier failure
                if unfenced:
                    await self._commit(unfenced)
            return
        if self._owned.lost is None:  # why it lost the journal is logged already, once
            self._outage.fail(error, writes=len(batch))
        self._acknowledger.answer_all()
        for write in batch:
            if not write.fenced:
                write.acknowledge(error)

    async def _store(self, sql: str, *arguments: Any) -> Any:
        """One counted call of a function.

        Returns:
            What the function returns; None if it was stored and its answer was lost.

        Raises:
            CommitFailed: nothing was changed.
            OutcomeUnknown: PostgreSQL could not be asked what became of it.
        """
        connection = await self._connect()
        number = self._commit_number + 1
        try:
            found = await self._send(
                connection, in_schema(sql, self._address.schema), self.epoch, number, *arguments
            )
        except BROKEN as e:
            found = None
            if not is_broken(e):
                raise self._refused(e) from e
            probe("commit_unknown")
            self._disconnect()
            self._doubtful = True
            try:
                await self._connect()
            except OutcomeUnknown:
                raise
            except CommitFailed as failed:
                raise OutcomeUnknown(
                    f"the connection broke during the commit ({describe(e)}), and PostgreSQL "
                    f"cannot be asked what became of it ({failed}); retry with the same key"
                ) from e
            if self._settled is False:
                raise CommitFailed(
                    f"the connection broke before the commit ({describe(e)}); nothing of it was "
                    "kept, and the journal is connected again"
                ) from e
        else:
            self._commit_number = number
        self._meter.count()
        self._outage.succeed()
        return found

    async def _send(self, connection: asyncpg.Connection[Any], sql: str, *arguments: Any) -> Any:
        return await connection.fetchval(sql, *arguments)

    def _refused(self, error: BaseException) -> CommitFailed:
        """PostgreSQL said that it did nothing."""
        state = getattr(error, "sqlstate", "")
        if state == OVERTAKEN:
            return self._owned.taken_over()
        if state == NEXT_NUMBER:
            return self._owned.commits_lost(self._commit_number)
        probe("commit_refused")
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            self._disconnect()  # the primary may be another server by now
        return CommitFailed(_REFUSED.format(describe(error)))

    # -- the connection ----------------------------------------------------------------------------

    _settled: bool | None = None
    """Whether the last commit in doubt was stored."""

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None

    async def _connect(self) -> asyncpg.Connection[Any]:
        """The connection, with no commit in doubt.

        Raises:
            CommitFailed: PostgreSQL does not answer; nothing was sent.
            OwnershipLost: the journal is not ours any more.
        """
        self._owned.check()
        if self._connection is not None and self._connection.is_closed():
            self._disconnect()
        deadline, wait = time.monotonic() + self._reconnect_s, _FIRST_WAIT_S
        while self._connection is None or self._doubtful:
            try:
                if self._connection is None:
                    self._connection = await connect(self._address, writing=True)
                if self._doubtful:
                    await self._find_out(self._connection)
            except BROKEN as e:
                self._disconnect()
                if time.monotonic() >= deadline:
                    raise CommitFailed(
                        f"PostgreSQL cannot be reached ({describe(e)}); nothing of it was kept"
                    ) from e
                await anyio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_S)
        return self._connection

    async def _find_out(self, connection: asyncpg.Connection[Any]) -> None:
        """Learn what became of the commit in doubt; it waits for one that still runs."""
        number = self._commit_number + 1
        sql = in_schema("SELECT remora.take($1, $2)", self._address.schema)
        try:
            self._settled = await connection.fetchval(sql, self.epoch, number)
        except asyncpg.PostgresError as e:
            if e.sqlstate == OVERTAKEN:
                self._owned.taken_over()
            elif e.sqlstate == NEXT_NUMBER:
                self._owned.commits_lost(self._commit_number)
            else:
                raise
            raise OutcomeUnknown(
                f"the connection broke during the commit, and then: {self._owned.lost}"
            ) from e
        self._doubtful = False
        self._commit_number = number

    # -- other work --------------------------------------------------------------------------------

    async def run_exclusively(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Run this after everything written before. A caller that leaves does not stop it."""
        if self._closed:
            raise StorageError("the journal is closed")
        work = ExclusiveWork(operation, self._taken + len(self._queue))
        self._work.append(work)
        self._event.set()
        if not self._committing.locked():  # `run` has not started
            self._committing.acquire_nowait()
            try:
                await self._commit_queued()
            finally:
                self._committing.release()
        return await work.result()

    async def _change(self, sql: str, *arguments: Any) -> Any:
        """`_store`, for work that is not a group commit: its failures are counted and logged."""
        try:
            return await self._store(sql, *arguments)
        except (CommitFailed, OutcomeUnknown) as e:
            self._meter.fail(e)
            if self._owned.lost is None:
                self._outage.fail(e, writes=0)
            raise

    async def _finish(self) -> None:
        """Commit what is queued, and accept no further work. `run` has ended."""
        self._closed = True
        await self._commit_queued()
        self._acknowledger.answer_all()


_REFUSED = "the journal cannot store this ({}); nothing of it was kept"


def _make_rows(rows: Rows, batch: Sequence[Write]) -> list[Any]:
    for write in batch:
        for record in write.records:
            rows.add(record)
    return rows.arguments
