"""The one task that adds rows: rows of many callers are joined into commits.

A commit costs 3.4 ms whatever its size, and leaves a fragment that slows every filtered search. So
rows are joined while others come within `batch_ms`. Two merges that run at once double rows without
an error, so nothing else merges. Cancelling a caller does not cancel its write, so callers wait for
a promise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import msgspec

from remora.errors import LongTermError, StorageError
from remora.runtime.guard import call_guarded
from remora.runtime.probes import probe
from remora.runtime.promise import Promise, new_promise
from remora.runtime.threads import compute_in_thread
from remora.storage.lance.shard import Shard
from remora.storage.lance.tables import LanceTables
from remora.storage.ports import MemoryRow, Vector

_LONGEST_JOIN_S = 2.0


class _Add(msgspec.Struct):
    rows: Sequence[MemoryRow]
    vectors: Any
    may_exist: bool
    promise: Promise


class LanceWriter:
    """Adds rows to the tables.

    Attributes:
        commits: commits so far.
        merges: those of rows that might have existed.
    """

    def __init__(self, tables: LanceTables) -> None:
        self.commits = self.merges = 0
        self._tables = tables
        self._queue: list[_Add] = []
        self._committing = anyio.Lock()
        self._event = anyio.Event()
        self._full = anyio.Event()
        self._written = anyio.Event()

    @property
    def queued(self) -> int:
        """Calls of `add` that wait for a commit."""
        return len(self._queue)

    async def add(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        """See `LanceStore.add`."""
        if not rows:
            return
        form = self._tables.rows
        if (vectors is None) == form.embedded:
            raise LongTermError(
                "these rows and this store disagree on whether there are vectors", retryable=False
            )
        if vectors is not None and vectors.shape != (len(rows), form.dimension):
            raise LongTermError(
                f"vectors of shape {vectors.shape} do not fit; nothing was stored", retryable=False
            )
        for row in rows:  # before they are joined with other callers' rows, which would fail too
            if not (isinstance(row.user, str) and row.user and isinstance(row.content, str)):
                raise LongTermError(
                    f"the row {row.id} has no user or no content; nothing was stored",
                    retryable=False,
                )
        promise = new_promise()
        self._queue.append(_Add(rows, vectors, may_exist, promise))
        self._event.set()
        if sum(len(add.rows) for add in self._queue) >= self._tables.config.batch_rows:
            self._full.set()
        await promise.wait()

    async def run(self) -> None:
        """Commit what is queued, without end."""
        while True:
            if not self._queue:
                self._event, self._full = anyio.Event(), anyio.Event()
                await self._event.wait()
            await self._wait_for_more()
            await self.commit_queued()

    async def _wait_for_more(self) -> None:
        """Return when enough rows wait, or when none have come for a moment."""
        pause_s = self._tables.config.batch_ms / 1000
        with anyio.move_on_after(_LONGEST_JOIN_S):
            joined = 0
            while not self._full.is_set() and joined < len(self._queue):
                joined = len(self._queue)
                with anyio.move_on_after(pause_s):
                    await self._full.wait()

    async def wait_for_commit(self) -> None:
        """Return after the next commit."""
        await self._written.wait()

    async def commit_queued(self) -> None:
        """Commit all that is queued now; a caller that is cancelled does not stop it."""
        try:
            with self._tables.finishing.shielded():
                while self._queue:
                    await self._commit_some()
        except LongTermError as e:  # given up; callers do it again with the next store
            queued, self._queue = self._queue, []
            for add in queued:
                add.promise.reject(e)

    async def _commit_some(self) -> None:
        async with self._committing:
            batch: list[_Add] = []
            rows = 0
            while self._queue and rows < self._tables.config.batch_rows:
                batch.append(self._queue.pop(0))
                rows += len(batch[-1].rows)
            try:
                await call_guarded(self._commit, batch)
            except Exception as e:  # the writer must outlive whatever the driver raises
                error = (
                    e
                    if isinstance(e, StorageError)
                    else LongTermError(f"{type(e).__name__}: {e}", retryable=False)
                )
                for add in batch:
                    add.promise.reject(error)
            except BaseException:
                self._queue[:0] = batch  # `commit_queued` answers them
                raise
            else:
                for add in batch:
                    add.promise.resolve(None)
            written, self._written = self._written, anyio.Event()
            written.set()

    async def _commit(self, batch: Sequence[_Add]) -> None:
        tables = self._tables
        began: dict[str, float] = {}
        await tables.check_place()
        parts = self._by_table(batch)
        if tables.at_object_store:  # each waits for a server, and is recorded with its commit
            writes = [self._write(name, doubt, rows) for (name, doubt), rows in parts.items()]
            _raise_first(await asyncio.gather(*writes, return_exceptions=True))
            return
        for (name, may_exist), rows in parts.items():
            began.setdefault(name, time.time())
            await self._write(name, may_exist, rows)
        outcomes = await asyncio.gather(
            *[self._record_shard(tables.shards[name], at) for name, at in began.items()],
            return_exceptions=True,
        )
        _raise_first(outcomes)

    async def _write(
        self, name: str, may_exist: bool, rows: dict[str, tuple[MemoryRow, Any]]
    ) -> None:
        """Write rows to a table; at an object store, record them as well."""
        tables = self._tables
        shard = await tables.get_or_create(name)
        async with shard.lock:
            with tables.map_errors("writing", shard, writing=True):
                table = await compute_in_thread(
                    partial(tables.rows.table, rows.values(), shard.schema)
                )
                write = partial(self._write_table, shard, table, may_exist=may_exist)
                if shard.objects is not None:
                    await shard.commit(write)
                else:
                    await shard.roll_back_uncertain()
                    await write()

    async def _write_table(self, shard: Shard, table: Any, *, may_exist: bool) -> None:
        if may_exist:
            probe("doubtful_add_merged")
            await shard.merge(table)
            self.merges += 1
        else:
            await shard.add(table)
        self.commits += 1

    def _by_table(
        self, batch: Sequence[_Add]
    ) -> dict[tuple[str, bool], dict[str, tuple[MemoryRow, Any]]]:
        """Rows and vectors by table and `may_exist`, each id once.

        An id is merged if any call said that it may exist.
        """
        parts: dict[tuple[str, bool], dict[str, tuple[MemoryRow, Any]]] = {}
        names: dict[str, str] = {}
        for add in sorted(batch, key=lambda one: not one.may_exist):
            for number, row in enumerate(add.rows):
                name = names.get(row.user)
                if name is None:
                    key = self._tables.digests.user(row.user)
                    name = names[row.user] = self._tables.name_of(key)
                if row.id in parts.get((name, True), ()):
                    continue
                vector = None if add.vectors is None else add.vectors[number]
                parts.setdefault((name, add.may_exist), {})[row.id] = (row, vector)
        return parts

    async def _record_shard(self, shard: Shard, began: float) -> None:
        async with shard.lock:
            with self._tables.map_errors("syncing", shard, writing=True):
                await shard.record(began)

    async def drop_queued(self, user_key: str, session_key: str) -> None:
        """Forget queued rows of a user, or of one of their sessions, once no commit is running."""
        async with self._committing:
            for place, add in enumerate(self._queue):
                kept = [
                    n
                    for n, row in enumerate(add.rows)
                    if not self._is_of(row, user_key, session_key)
                ]
                if len(kept) < len(add.rows):
                    probe("queued_rows_dropped")
                    vectors = None if add.vectors is None else add.vectors[kept]
                    self._queue[place] = _Add(
                        [add.rows[n] for n in kept], vectors, add.may_exist, add.promise
                    )

    def _is_of(self, row: MemoryRow, key: str, session: str) -> bool:
        digests = self._tables.digests
        return digests.user(row.user) == key and (
            not session or digests.session(row.user, row.session) == session
        )


def _raise_first(outcomes: Sequence[BaseException | None]) -> None:
    for error in outcomes:
        if error is not None:
            raise error
