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
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar
from zlib import crc32

import anyio
import asyncpg
import msgspec

from remora.errors import CommitFailed, OutcomeUnknown, OwnershipLost
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.log import Write
from remora.runtime.probes import probe
from remora.storage.postgres.connection import (
    BROKEN,
    Address,
    connect,
    describe,
    is_broken,
    is_of_content,
)
from remora.storage.postgres.lease import CommitsOwnershipWatch
from remora.storage.postgres.opening import Ownership
from remora.storage.postgres.schema import JOURNAL_ROW, NEXT_NUMBER, OVERTAKEN, in_schema
from remora.storage.queueing import WriteQueue
from remora.storage.rows import HALF, ROLE_CODES, SEQ_BITS, SHARES, RecordRows, RowKind

T = TypeVar("T")

_COMMIT = "SELECT remora.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"
_NOT_OURS = (OVERTAKEN, NEXT_NUMBER)
_MOST_BYTES = 32 << 20  # of one commit; PostgreSQL takes less than 1 GB
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 0.5


class JournalWriter(WriteQueue):
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

    _owned: CommitsOwnershipWatch

    def __init__(
        self,
        address: Address,
        connection: asyncpg.Connection[Any],
        ownership: Ownership,
        *,
        max_batch_writes: int,
        reconnect_s: float,
    ) -> None:
        owned = CommitsOwnershipWatch(address.schema, ownership.epoch)
        super().__init__(owned, max_batch_writes=max_batch_writes)
        self.instance = ownership.instance
        self.epoch = ownership.epoch
        self._address = address
        self._connection: asyncpg.Connection[Any] | None = connection
        self._commit_number = ownership.commits
        self._doubtful = False
        """Nobody knows yet whether the commit after `_commit_number` was stored."""
        self._reconnect_s = reconnect_s

    @property
    def commit_number(self) -> int:
        """See `remora.storage.ports.Journal.commit_number`."""
        return self._commit_number

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

    def _take(self, room: int) -> list[Write]:
        size = count = 0
        for write in self._queue[:room]:
            size += write.size
            if count and size > _MOST_BYTES:
                break
            count += 1
        return super()._take(count)

    # -- commits -----------------------------------------------------------------------------------

    async def _commit(self, batch: Sequence[Write]) -> None:
        began = time.perf_counter()
        rows = Rows(batch)
        try:
            arguments = await run_in_thread_if(rows.large, rows.make_arguments)
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
        self._acknowledge(batch, rows.records, time.perf_counter() - began)

    async def _commit_failed(
        self, batch: Sequence[Write], error: CommitFailed | OutcomeUnknown
    ) -> None:
        cause = error.__cause__
        one_write = cause is not None and (
            is_of_content(cause) or isinstance(cause, TypeError | OverflowError)
        )
        await self._fail(batch, error, one_write=one_write)

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
                raise await self._refused(connection, e) from e
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
        self._note_commit()
        return found

    async def _send(self, connection: asyncpg.Connection[Any], sql: str, *arguments: Any) -> Any:
        return await connection.fetchval(sql, *arguments)

    async def _refused(
        self, connection: asyncpg.Connection[Any], error: BaseException
    ) -> CommitFailed:
        """PostgreSQL said that it did nothing."""
        if getattr(error, "sqlstate", "") in _NOT_OURS:
            return await self._lost_to(connection, error)
        probe("commit_refused")
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            self._disconnect()  # the primary may be another server by now
        return CommitFailed(_REFUSED.format(describe(error)))

    async def _lost_to(
        self, connection: asyncpg.Connection[Any], error: BaseException
    ) -> OwnershipLost:
        """Why the fence refused: another owner, or a server without some commits."""
        lost = None
        with suppress(*BROKEN):
            row = await connection.fetchrow(in_schema(JOURNAL_ROW, self._address.schema))
            lost = self._owned.check_row(row["epoch"], row["commits"], self._commit_number)
        if lost is None and getattr(error, "sqlstate", "") == OVERTAKEN:
            return self._owned.taken_over()
        return lost or self._owned.commits_lost(self._commit_number)

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
                    self._connection = await connect(self._address)
                    await self._reconnected()
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

    async def _reconnected(self) -> None:
        """The writing connection is a new one, and maybe to another server."""

    async def _find_out(self, connection: asyncpg.Connection[Any]) -> None:
        """Learn what became of the commit in doubt; it waits for one that still runs."""
        number = self._commit_number + 1
        sql = in_schema("SELECT remora.take($1, $2)", self._address.schema)
        try:
            self._settled = await connection.fetchval(sql, self.epoch, number)
        except asyncpg.PostgresError as e:
            if e.sqlstate not in _NOT_OURS:
                raise
            await self._lost_to(connection, e)
            raise OutcomeUnknown(
                f"the connection broke during the commit, and then: {self._owned.lost}"
            ) from e
        self._doubtful = False
        self._commit_number = number

    # -- other work --------------------------------------------------------------------------------

    async def _change(self, sql: str, *arguments: Any) -> Any:
        """`_store`, for work that is not a group commit: its failures are counted and logged."""
        try:
            return await self._store(sql, *arguments)
        except (CommitFailed, OutcomeUnknown) as e:
            self.meter.fail(e)
            self._log_failure(e, 0)
            raise


_REFUSED = "the journal cannot store this ({}); nothing of it was kept"


# -- the rows of one transaction, as the function `remora.commit` takes them -----------------------

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_COLUMNS = 11
_TEXTS: dict[RowKind, tuple[int, ...]] = {
    "prune_entry": (2,),
    "insert_front": (6, 7, 10),
    "retry_job": (2,),
    "dead_letter_job": (1,),
    "drop_state_item": (2,),
    "put_state_item": (2,),
    "insert_memory": (3, 4, 5),
    "put_memory": (3, 4, 5),
}
"""Columns of text that go as bytes."""
_UPDATED_BY: dict[RowKind, int] = {
    "change_message": 5,
    "advance_job": 2,
    "retry_job": 3,
    "dead_letter_job": 2,
}
"""Column of the id where the last of several rows counts: an UPDATE takes any of them."""


class Rows(RecordRows):
    """The rows of one transaction, as PostgreSQL takes them."""

    __slots__ = ()

    def _append(self, sid: int, entries: tuple[Any, ...], key: bytes | None) -> None:
        base = sid << SEQ_BITS
        digest = key
        keyed = len(entries) if key is not None else None
        for e in entries:
            pos, role, meta = base | e.seq, ROLE_CODES[e.role], e.meta or None
            at_us, tokens, chat, id_, importance = e.at_us, e.tokens, e.chat, e.id, e.importance
            share = HALF if importance == 0.5 else int(importance * SHARES)
            crc = crc32(_encode((pos, at_us, tokens, role, chat, meta, id_, share, digest, keyed)))
            self._messages.append(
                (pos, at_us, tokens, role, chat, meta, id_, digest, keyed, importance, crc)
            )
            digest = keyed = None  # the key stands on the first message alone

    def make_arguments(self) -> list[Any]:
        """Return what the function takes after epoch and number; empty without any row."""
        self.make()
        kinds, rows = [], []
        for kind, found in self.others():
            kinds.append(kind)
            rows.append(_encode_json(_plain(kind, found)).decode())
        if not kinds and not self._messages:
            return []
        columns = [list(one) for one in zip(*self._messages, strict=True)]
        return [*(columns or [[] for _ in range(_COLUMNS)]), kinds, rows]


def _plain(kind: RowKind, rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows without bytes, each place once where one row must win."""
    texts = _TEXTS.get(kind, ())
    if kind in _UPDATED_BY:
        rows = list({row[_UPDATED_BY[kind]]: row for row in rows}.values())
    elif kind == "remove_message":
        rows = list({row[1]: row for row in reversed(rows)}.values())  # the first removal counts
    return [
        [
            value.hex()
            if isinstance(value, bytes)
            else value.encode().hex()
            if place in texts
            else value
            for place, value in enumerate(row)
        ]
        for row in rows
    ]
