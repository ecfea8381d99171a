"""Long-term memory in LanceDB.

What LanceDB 0.40 does, and what follows (all measured):

* A commit costs 3.4 ms whatever its size, leaves a fragment that slows every filtered search, and
  doubles rows where two merges run at once. So one task writes (`writer`), and tables are compacted
  (`shard`).
* A vector index under a user filter loses most of its recall. So search is exact within the rows of
  a user of fewer than 10 000; beyond that all partitions of an index are searched (`indices`).
* User text in a filter can be injected. So rows are found by a digest of the user id, and each row
  that is read is checked against the id itself.
* It never syncs, and notices no flipped bit. So what was written is synced and recorded before it
  is acknowledged (`files`), and each row carries a checksum (`rows`).
* Deleting leaves the bytes. So erasing rewrites the table (`upkeep`).
* Errors are untyped: `errors` turns them into `LongTermError`, in one place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from remora.config import LongTermConfig, ObjectStoreConfig, RecallConfig
from remora.errors import LongTermError, StorageError
from remora.ids import UNKEYED, Digests
from remora.runtime.guard import call_guarded
from remora.runtime.probes import probe
from remora.runtime.promise import Promise, new_promise
from remora.runtime.threads import compute_in_thread, run_in_thread
from remora.storage.files import make_private_directory
from remora.storage.lance.allocators import limit_arenas, set_arrow_pool
from remora.storage.lance.directory import clear_refill, refill_needed, remove_store
from remora.storage.lance.errors import map_errors
from remora.storage.lance.loading import load_lancedb
from remora.storage.lance.objects import ObjectStore, is_object_store, lance_options
from remora.storage.lance.rows import RowFormat
from remora.storage.lance.search import LanceSearch
from remora.storage.lance.shard import Shard
from remora.storage.lance.tables import LanceTables, table_names
from remora.storage.lance.upkeep import LanceUpkeep
from remora.storage.lance.versions import TableVersions
from remora.storage.ports import (
    EVERYTHING,
    Candidate,
    Finding,
    LongTermStatistics,
    MemoryRow,
    RowOrder,
    Scope,
    Vector,
)

if TYPE_CHECKING:
    from lancedb import AsyncTable

# -- the one task that adds rows: rows of many callers are joined into commits ---------------------
#
# A commit costs 3.4 ms whatever its size, and leaves a fragment that slows every filtered search.
# So rows are joined while others come within `batch_ms`. Two merges that run at once double rows
# without an error, so nothing else merges. Cancelling a caller does not cancel its write, so
# callers wait for a promise.

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
        await promise.answer

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

    async def _write_table(self, shard: Shard, table: AsyncTable, *, may_exist: bool) -> None:
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


CLOSE_S = 5.0
"""How long the end of an owner waits for an object store."""


class LanceStore:
    """Implements `remora.storage.ports.LongTermStore`. Made by `open`; `run` is its writer task.

    Attributes:
        tables: its open tables.
        writer: adds rows.
        reader: searches.
        refill_needed: a damaged part was quarantined, so its rows are to be written again from the
            journal; until `clear_refill`.
    """

    makes_windows = True
    """See `remora.storage.windows.makes_windows`."""

    def __init__(self, tables: LanceTables) -> None:
        self.tables = tables
        self.writer = LanceWriter(tables)
        self.reader = LanceSearch(tables)
        self.refill_needed = False
        self._upkeep = LanceUpkeep(tables)
        self._opening_findings: list[Finding] = []

    @classmethod
    async def open(
        cls,
        path: Path | str | None,
        *,
        dimension: int | None,
        config: LongTermConfig,
        digests: Digests = UNKEYED,
        sync: bool = True,
        words_from: int = RecallConfig().hot_rows // 2,
        versions: TableVersions | None = None,
    ) -> LanceStore:
        """Open or create a store.

        In a local directory, what a crash left is put right first: what is not known to be on disk,
        and what is damaged, is quarantined, and reported in the log and by `refill_needed` (G6,
        G7).

        Args:
            path: a directory; or, as text, an address that LanceDB understands, which is treated as
                a secret; None keeps it in memory.
            dimension: of the vectors; None for rows without.
            config: sizes and intervals.
            digests: what users are found by, always the same for one store.
            sync: acknowledged writes survive loss of power; otherwise they survive the process.
            words_from: rows of one user from which on the words of a table are indexed before
                anybody searches for them; in other tables the first such search does it.
            versions: where the versions that count are noted, at an object store. Without it
                nothing keeps two writers apart.

        Raises:
            LongTermError: the directory cannot be read, or a table at an address is not of this
                schema.
        """
        address = path if isinstance(path, str) else None
        problem, retryable = "", False
        try:
            return await cls._open(path, dimension, config, digests, sync, words_from, versions)
        except LongTermError as e:
            if address is None:
                raise
            problem, retryable = str(e).replace(address, "long_term.uri"), e.retryable
        # outside of `except`: the cause quotes the address
        raise LongTermError(problem, retryable=retryable)

    @classmethod
    async def _open(
        cls,
        path: Path | str | None,
        dimension: int | None,
        config: LongTermConfig,
        digests: Digests,
        sync: bool,
        words_from: int,
        versions: TableVersions | None,
    ) -> LanceStore:
        lancedb = await load_lancedb()
        base = None if path is None or (isinstance(path, str) and "://" in path) else Path(path)
        with map_errors("opening"):
            if base is not None:
                await run_in_thread(make_private_directory, base)
            if config.tune_allocators:
                limit_arenas()
                set_arrow_pool()  # before LanceDB allocates with it

            def connect() -> Awaitable[Any]:
                session = lancedb.Session(
                    index_cache_size_bytes=64 << 20, metadata_cache_size_bytes=32 << 20
                )
                place = "memory://" if path is None else str(path)
                connection: Awaitable[Any] = lancedb.connect_async(
                    place, session=session, storage_options=options
                )
                return connection

            address = path if isinstance(path, str) else None
            remote = is_object_store(address)
            options = lance_options(config.object_store) if remote else None
            objects = None
            if address is not None and remote and versions is not None:
                objects = ObjectStore(address, config.object_store), versions
            rows = RowFormat(dimension, digests)
            tables = LanceTables(
                connect,
                rows,
                config,
                base=base,
                sync=sync,
                words_from=words_from,
                secret_address=address,
                objects=objects,
            )
            store = cls(tables)
            try:
                store._opening_findings = await tables.load()
                store.refill_needed = tables.refill_needed
                if base is not None:
                    store.refill_needed = await run_in_thread(refill_needed, base)
            except BaseException:
                await store.aclose()
                raise
        return store

    async def clear_refill(self) -> None:
        """Forget `refill_needed`: the caller has made it durable that rows are to be rewritten."""
        self.refill_needed = False
        self._opening_findings.clear()
        await self.tables.clear_refill()
        if self.tables.base is not None:
            await run_in_thread(clear_refill, self.tables.base)

    @staticmethod
    async def drop(address: str, config: ObjectStoreConfig) -> None:
        """Remove a store with all that it holds.

        Args:
            address: where it is.
            config: how an object store is reached.

        Raises:
            LongTermError: it is not known to be gone.
        """
        problem: str | None = None
        try:
            with map_errors("dropping its tables"):
                if "://" not in address:
                    await run_in_thread(remove_store, Path(address))
                    return
                lancedb = await load_lancedb()
                options = lance_options(config) if is_object_store(address) else None
                database = await lancedb.connect_async(address, storage_options=options)
                for name in await table_names(database):
                    await database.drop_table(name)
        except LongTermError as e:
            problem = str(e).replace(address, "long_term.uri")
        if problem is not None:  # outside of `except`: the cause quotes the address
            raise LongTermError(problem, retryable=True)

    async def run(self) -> None:
        """The writer task: commit what is queued, and index what comes in bulk, without end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._upkeep.run, self.writer.wait_for_commit)
            if self.tables.at_object_store:
                tasks.start_soon(self._limit_closing)
            await self.writer.run()

    async def _limit_closing(self) -> None:
        """Keep the journal's next owner waiting only so long for a store that does not answer."""
        try:
            await anyio.sleep_forever()
        finally:
            self.tables.finishing.limit(CLOSE_S)

    async def index_written(self) -> None:
        """Extend the indices to all rows that came in bulk: their words can be found then.

        Raises:
            LongTermError: some are not indexed; later compactions try again.
        """
        await self._upkeep.index_written()

    async def aclose(self) -> None:
        """Commit what is queued, and close the tables when what is being read has been read."""
        await self.writer.commit_queued()
        await self.tables.aclose()

    # -- rows --------------------------------------------------------------------------------------

    async def add(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        """Store rows with the next commit; they are on disk when this returns (G6, G7)."""
        await self.writer.add(rows, vectors, may_exist=may_exist)

    async def search(
        self, user: str, text: str, vector: Vector | None, *, depth: int, scope: Scope = EVERYTHING
    ) -> Sequence[Candidate]:
        """The user's rows in `scope` that match, each with its scores."""
        if text.strip():
            await self._upkeep.index_words_of(user)
        return await self.reader.search(user, text, vector, depth=depth, scope=scope)

    async def rows(
        self,
        user: str,
        scope: Scope = EVERYTHING,
        *,
        limit: int | None = None,
        by: RowOrder = "created",
    ) -> Sequence[MemoryRow]:
        """The user's rows in `scope`: all, or the first `limit` that are not of memory blocks."""
        return await self.reader.rows(user, scope, limit=limit, by=by)

    async def count(self, user: str) -> int:
        """How many rows the user has, without those of memory blocks."""
        return await self.reader.count(user)

    async def embedded_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """The same with their vectors."""
        return await self.reader.embedded_rows(user, scope)

    def all_rows(self) -> AsyncIterator[tuple[Sequence[MemoryRow], Vector | None]]:
        """All sound rows of all users, some at a time, with their vectors.

        Requires exclusive access.
        """
        return self.reader.all_rows()

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        """Remove some of the user's rows; their bytes stay until the table is rewritten."""
        return await self._upkeep.delete(user, ids)

    async def remove(self, user_key: str, session_key: str = "") -> int:
        """Remove a user, or one of their sessions; bytes stay until the table is rewritten.

        Queued rows of theirs are dropped. The caller has stopped what would write new ones.
        """
        await self.writer.drop_queued(user_key, session_key)
        return await self._upkeep.remove(user_key, session_key)

    async def erase(self, user_key: str, session_key: str = "") -> int:
        """Remove a user, or one of their sessions, down to the bytes (G13).

        Queued rows of theirs are dropped. The caller has stopped what would write new ones.
        """
        await self.writer.drop_queued(user_key, session_key)
        return await self._upkeep.erase(user_key, session_key)

    # -- tables ------------------------------------------------------------------------------------

    async def compact(self) -> int:
        """Compact fragmented tables, and remove versions that no reader can still need."""
        return await self._upkeep.compact()

    async def verify(self, *, deep: bool = False) -> Sequence[Finding]:
        """Return what is damaged, doubled, or in the wrong place.

        What opening found is reported as well, until `clear_refill`.

        Args:
            deep: check every file's digest and every row's checksum.
        """
        return [*self._opening_findings, *await self._upkeep.findings(deep=deep)]

    async def repair_tables(self) -> Sequence[str]:
        """Repair what can be repaired without the journal; returns what was done.

        Damaged rows are removed, damaged indices rebuilt. A table with other damaged files is
        rewritten from its rows, and quarantined if they cannot all be read. The journal then has to
        provide what is missing (G7). Requires exclusive access.
        """
        return await self._upkeep.repair()

    async def delete_row_ids(self, table: str, row_ids: Sequence[int]) -> int:
        """Remove rows of any user by LanceDB's row ids; returns how many.

        Requires exclusive access, and row ids that were read since the last write.

        Raises:
            LongTermError: it is not known which are gone.
        """
        return await self._upkeep.delete_row_ids(table, row_ids)

    async def statistics(self) -> LongTermStatistics:
        """Rows and counters."""
        shards = list(self.tables.shards.values())
        counts: list[int] = []
        for shard in shards:
            async with self.tables.reading("counting", shard) as table:
                counts.append(await table.count_rows())
        return LongTermStatistics(
            sum(counts),
            self.writer.commits + self._upkeep.commits,
            self.writer.merges,
            sum(shard.fragments for shard in shards),
            self._upkeep.compactions,
            self.reader.damaged,
            sum(shard.rewritten_bytes for shard in shards),
        )

    async def row_ids(self) -> Sequence[str]:
        """Every row's id."""
        ids: list[str] = []
        for shard in list(self.tables.shards.values()):
            async with self.tables.reading("listing", shard) as table:
                found = (
                    await table.query().select(["id"]).to_arrow(timeout=self.tables.read_timeout)
                )
                ids.extend(found.column("id").to_pylist())
        return ids
