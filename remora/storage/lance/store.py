"""Long-term memory in LanceDB: one writer task, Arrow in and out, user-keyed shards, exact search.

What LanceDB 0.40 does and does not, and what follows (all measured):

* A commit costs 3.4 ms whatever its size, and leaves a fragment that slows every filtered search.
  So rows of many flushes are joined for up to `batch_ms`, and shards are compacted.
* `merge_insert` run twice at once doubles rows, without an error. So only this writer merges, only
  where an earlier attempt's outcome is in doubt, with ids deduplicated in the batch and
  `use_index(False)`; a first attempt is a plain `add`.
* Cancelling a caller does not cancel its write. So callers wait for a promise, and the writer task
    is shielded.
* A vector index under a user filter loses most of its recall. So there is none: search is exact
    within the user's rows.
* User text in a filter can be injected. So rows are found by a fixed-width digest of the user id,
  and every row that comes back is checked against the id itself.
* It never syncs, and notices no flipped bit. So what was written is synced and recorded before
  anybody is told that it is there (`lance_files`), and each row carries a check of its own
  (`lance_rows`).
* Deleting leaves the bytes: in old versions, in fragments of which little was deleted, in indices,
  and the predicate in the log. So erasing writes the shard anew (`lance_shard`).
* Errors are untyped: `lance_errors` turns them into `LongTermError`, in one place.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from remora.config import LongTermConfig
from remora.errors import LongTermError
from remora.ids import session_key, user_key
from remora.logging import get_logger
from remora.runtime.guard import guarded_call
from remora.runtime.probes import probe
from remora.runtime.promise import Promise, new_promise
from remora.storage.lance.errors import map_errors
from remora.storage.lance.files import (
    Opened,
    ShardFiles,
    clear_refill,
    refill_needed,
    remove_store,
    shard_names,
)
from remora.storage.lance.rows import CHECK, COLUMNS, SEARCHED, Read, RowFormat, owned_by
from remora.storage.lance.shard import IndexTools, Shard
from remora.storage.ports import (
    EVERYTHING,
    Candidate,
    Finding,
    LongTermStatistics,
    MemoryRow,
    Scope,
    Vector,
)

__all__ = ["LanceStore"]

_logger = get_logger("remora.longterm")
_DELETE_AT_ONCE = 500
_LONG_QUERY_CHARS = 2_000
_MOST_QUERY_WORDS = 200
_LONGEST_READ_S = 60.0


class _Add(msgspec.Struct):
    rows: Sequence[MemoryRow]
    vectors: Any
    may_exist: bool
    promise: Promise


class LanceStore:
    """Implements `remora.storage.ports.LongTermStore`. Made by `open`; its writer is `run`.

    Attributes:
        refill_needed: part of it was found damaged and put aside, so that the journal has to fill
            it again; until `clear_refill`.
    """

    def __init__(
        self,
        database: Any,
        rows: RowFormat,
        tools: IndexTools,
        config: LongTermConfig,
        *,
        base: Path | None,
        sync: bool,
        secret_address: str | None,
    ) -> None:
        self._database = database
        self._rows = rows
        self._tools = tools
        self._config = config
        self._base = base
        self._sync = sync
        self._secret_address = secret_address
        self._expr = importlib.import_module("lancedb.expr")
        self._query = importlib.import_module("lancedb.query")
        self._shards: dict[int, Shard] = {}
        self._queue: list[_Add] = []
        self._committing = anyio.Lock()
        self._event = anyio.Event()
        self._full = anyio.Event()
        # More searches at once than this only take memory: each uses several threads of LanceDB's
        # own.
        self._searches = anyio.Semaphore(2 * (os.cpu_count() or 1))
        # no read outlives the version that it began with
        self._read_timeout = timedelta(
            seconds=max(1.0, min(_LONGEST_READ_S, config.keep_versions_s))
        )
        self._commits = self._merges = self._compactions = self._damaged = 0
        self._opening_findings: list[Finding] = []
        self.refill_needed = False

    @classmethod
    async def open(
        cls,
        path: Path | str | None,
        *,
        dimension: int | None,
        config: LongTermConfig,
        sync: bool = True,
    ) -> LanceStore:
        """Open or create a store.

        In a directory of this machine, what a crash left is put right first: what is not known to
        be on disk, and what is damaged, is put aside, and told in the log and by `refill_needed`
        (G6, G7).

        Args:
            path: a directory; or, as text, an address that LanceDB understands, which is treated as
                a secret; None keeps it in memory.
            dimension: of the vectors; None for rows without.
            config: sizes and intervals.
            sync: what is written is on disk when its writer is told so, and survives loss of power;
                else it survives the process.

        Raises:
            LongTermError: the directory cannot be read, or a table at an address is not of this
                schema.
        """
        secret_address = path if isinstance(path, str) else None
        problem, retryable = "", False
        try:
            return await cls._open(path, dimension, config, sync=sync)
        except LongTermError as e:
            if secret_address is None:
                raise
            problem, retryable = str(e).replace(secret_address, "long_term.uri"), e.retryable
        raise LongTermError(
            problem, retryable=retryable
        )  # outside of `except`: the cause quotes the address

    @classmethod
    async def _open(
        cls, path: Path | str | None, dimension: int | None, config: LongTermConfig, *, sync: bool
    ) -> LanceStore:
        lancedb = await anyio.to_thread.run_sync(importlib.import_module, "lancedb")
        base = None if path is None or (isinstance(path, str) and "://" in path) else Path(path)
        with map_errors("opening"):
            if base is not None:
                await anyio.to_thread.run_sync(partial(base.mkdir, parents=True, exist_ok=True))
            database = await lancedb.connect_async(
                "memory://" if path is None else str(path),
                session=lancedb.Session(
                    index_cache_size_bytes=64 << 20, metadata_cache_size_bytes=32 << 20
                ),
            )
            tools = IndexTools(importlib.import_module("lancedb.index"))
            secret_address = path if isinstance(path, str) else None
            store = cls(
                database,
                RowFormat(dimension),
                tools,
                config,
                base=base,
                sync=sync,
                secret_address=secret_address,
            )
            try:
                await store._load()
            except BaseException:
                await store.aclose()
                raise
        return store

    async def _load(self) -> None:
        if self._base is not None:
            names = await anyio.to_thread.run_sync(shard_names, self._base)
        else:
            names = [
                name
                for name in (await self._database.list_tables(limit=10_000)).tables
                if name.startswith("mem_")
            ]
        for name in names:
            files = self._files(name)
            settled = Opened(usable=True, recorded=True)
            if files is not None:
                settled = await anyio.to_thread.run_sync(files.settle)
            if settled.usable:
                shard = await self._load_shard(name, files, settled)
                if shard is not None:
                    self._shards[int(name.removeprefix("mem_"))] = shard
            if files is not None:
                self._opening_findings += files.settled
        if self._base is not None:
            self.refill_needed = await anyio.to_thread.run_sync(refill_needed, self._base)

    async def _load_shard(
        self, name: str, files: ShardFiles | None, settled: Opened
    ) -> Shard | None:
        table = await self._database.open_table(name)
        found = await table.schema()
        fits = self._rows.fits(found)
        if fits is None:
            problem = f"its columns are {found.names}, not {self._rows.schema.names}: it is damaged, or another version's"  # noqa: E501
            if files is None:
                raise LongTermError(
                    f"the table {name}: {problem}; move it away and it is filled again",
                    retryable=False,
                )
            table.close()
            await anyio.to_thread.run_sync(files.put_aside, problem)
            return None
        statistics = await table.stats()
        indices = {index.columns[0] for index in await table.list_indices()}
        shard = self._make_shard(name, table, files, checked=fits)
        shard.fragments = statistics["fragment_stats"]["num_fragments"]
        shard.searchable = indices.issuperset(SEARCHED)
        if settled.indices:
            await shard.rebuild_indices(settled.indices)
        if settled.indices or not settled.recorded:
            await shard.record(time.time())
        return shard

    def _make_shard(
        self, name: str, table: Any, files: ShardFiles | None, *, checked: bool
    ) -> Shard:
        return Shard(
            name,
            table,
            files=files,
            reopen=lambda: self._database.open_table(name),
            rows=self._rows,
            tools=self._tools,
            checked=checked,
        )

    def _files(self, name: str) -> ShardFiles | None:
        return None if self._base is None else ShardFiles(self._base, name, sync=self._sync)

    async def clear_refill(self) -> None:
        """Whoever read `refill_needed` has noted it where it outlives the process."""
        self.refill_needed = False
        self._opening_findings.clear()
        if self._base is not None:
            await anyio.to_thread.run_sync(clear_refill, self._base)

    def _map_errors(
        self, doing: str, *shards: Shard, writing: bool = False
    ) -> AbstractContextManager[None]:
        def mark_suspect() -> None:
            for shard in shards:
                if shard.files is not None:
                    shard.files.mark_suspect()

        return map_errors(
            doing, writing=writing, secret_address=self._secret_address, mark_suspect=mark_suspect
        )

    @staticmethod
    async def drop(address: str) -> None:
        """Remove all of a store that an address names.

        Raises:
            LongTermError: it is not known to be gone.
        """
        problem: str | None = None
        try:
            with map_errors("dropping its tables"):
                if "://" not in address:
                    await anyio.to_thread.run_sync(remove_store, Path(address))
                    return
                lancedb = await anyio.to_thread.run_sync(importlib.import_module, "lancedb")
                database = await lancedb.connect_async(address)
                for name in (await database.list_tables(limit=10_000)).tables:
                    if name.startswith("mem_"):
                        await database.drop_table(name)
        except LongTermError as e:
            problem = str(e).replace(address, "long_term.uri")
        if problem is not None:
            raise LongTermError(
                problem, retryable=True
            )  # outside of `except`: the cause quotes the address

    # -- writing -----------------------------------------------------------------------------------

    async def add(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        """Store rows with the next commit; they are on disk when this returns (G6, G7)."""
        if not rows:
            return
        if (vectors is None) == self._rows.embedded:
            raise LongTermError(
                "these rows and this store disagree on whether there are vectors", retryable=False
            )
        if vectors is not None and vectors.shape != (len(rows), self._rows.dimension):
            raise LongTermError(
                f"vectors of shape {vectors.shape} do not fit; nothing was stored", retryable=False
            )
        for row in rows:  # here, before it is joined with others' rows, which would fail with it
            if not (isinstance(row.user, str) and row.user and isinstance(row.content, str)):
                raise LongTermError(
                    f"the row {row.id} has no user or no content; nothing was stored",
                    retryable=False,
                )
        promise = new_promise()
        self._queue.append(_Add(rows, vectors, may_exist, promise))
        self._event.set()
        if sum(len(add.rows) for add in self._queue) >= self._config.batch_rows:
            self._full.set()
        await promise.wait()

    async def run(self) -> None:
        """Join what is queued into commits, for ever: the writer task."""
        while True:
            if not self._queue:
                self._event, self._full = anyio.Event(), anyio.Event()
                await self._event.wait()
            with anyio.move_on_after(self._config.batch_ms / 1000):
                await self._full.wait()
            await self._commit_queued()

    async def _commit_queued(self) -> None:
        with anyio.CancelScope(shield=True):
            while self._queue:
                await self._commit_some()

    async def _commit_some(self) -> None:
        async with self._committing:
            batch: list[_Add] = []
            rows = 0
            while self._queue and rows < self._config.batch_rows:
                batch.append(self._queue.pop(0))
                rows += len(batch[-1].rows)
            try:
                await guarded_call(self._commit, batch)
            except Exception as e:  # the writer must outlive whatever the driver raises
                error = (
                    e
                    if isinstance(e, LongTermError)
                    else LongTermError(f"{type(e).__name__}: {e}", retryable=False)
                )
                for add in batch:
                    add.promise.reject(error)
            else:
                for add in batch:
                    add.promise.resolve(None)

    async def _commit(self, batch: Sequence[_Add]) -> None:
        # (shard, doubtful) -> id -> (row, vector); one id is written once, and by a merge if any
        # attempt at it is in doubt
        parts: dict[tuple[int, bool], dict[str, tuple[MemoryRow, Any]]] = {}
        for add in sorted(batch, key=lambda one: not one.may_exist):
            for number, row in enumerate(add.rows):
                home = self._shard_of(user_key(row.user))
                if row.id in parts.get((home, True), ()):
                    continue
                vector = None if add.vectors is None else add.vectors[number]
                parts.setdefault((home, add.may_exist), {})[row.id] = (row, vector)
        began: dict[int, float] = {}
        for (number, may_exist), rows in parts.items():
            shard = await self._shard(number)
            async with shard.lock:
                with self._map_errors("writing", shard, writing=True):
                    await shard.roll_back_uncertain()
                    began.setdefault(number, time.time())
                    table = await anyio.to_thread.run_sync(
                        partial(self._rows.table, rows.values(), checked=shard.checked)
                    )
                    if may_exist:
                        probe("doubtful_add_merged")
                        await shard.merge(table)
                        self._merges += 1
                    else:
                        await shard.add(table)
                    self._commits += 1
                    if not shard.searchable:
                        await shard.make_searchable()
        outcomes = await asyncio.gather(
            *[self._record_shard(self._shards[number], at) for number, at in began.items()],
            return_exceptions=True,
        )
        for error in outcomes:
            if error is not None:
                raise error

    async def _record_shard(self, shard: Shard, began: float) -> None:
        async with shard.lock:
            with self._map_errors("syncing", shard, writing=True):
                await shard.record(began)

    def _shard_of(self, key: str) -> int:
        return int(key[:8], 16) % self._config.shards

    async def _shard(self, number: int) -> Shard:
        shard = self._shards.get(number)
        if shard is None:
            name = f"mem_{number:03d}"
            with self._map_errors("making a table", writing=True):
                table = await self._database.create_table(
                    name, schema=self._rows.schema, exist_ok=True
                )
                await table.set_unenforced_primary_key("id")
                shard = self._make_shard(name, table, self._files(name), checked=True)
                await shard.record(time.time())
            self._shards[number] = shard
        return shard

    # -- searching ---------------------------------------------------------------------------------

    async def search(
        self, user: str, text: str, vector: Vector | None, *, depth: int, scope: Scope = EVERYTHING
    ) -> Sequence[Candidate]:
        """The user's rows in `scope` that match, each with its scores."""
        key = user_key(user)
        shard = self._shards.get(self._shard_of(key))
        if shard is None:
            return ()
        if (
            len(text) > _LONG_QUERY_CHARS
        ):  # a list of every word of a document takes LanceDB minutes
            text = " ".join(list(dict.fromkeys(text.split()))[:_MOST_QUERY_WORDS])
        results: dict[str, Any] = {}
        mine = self._within(key, scope)

        async def one(name: str, query: Any) -> None:
            score = "_distance" if name == "vector" else "_score"
            query = query.where(mine).limit(depth).select([*self._columns(shard), score])
            results[name] = await query.to_arrow(timeout=self._read_timeout)

        async with self._searches:
            with self._map_errors("searching", shard), shard.reading() as table:
                # `vector` arrives as one vector; a store without a vector column searches by text
                # alone.
                searches: dict[str, Any] = {}
                if text.strip():
                    for column in SEARCHED:
                        searches[column] = table.query().nearest_to_text(
                            self._query.MatchQuery(text, column=column)
                        )
                if vector is not None and self._rows.embedded:
                    searches["vector"] = table.query().nearest_to(vector).distance_type("cosine")
                # at once: the work is in LanceDB's own threads
                coroutines: list[Coroutine[Any, Any, None]] = [
                    one(name, query) for name, query in searches.items()
                ]
                await asyncio.gather(*coroutines)
        return self._candidates(user, results)

    @staticmethod
    def _columns(shard: Shard) -> list[str]:
        return [*COLUMNS, CHECK] if shard.checked else [*COLUMNS]

    def _within(self, key: str, scope: Scope) -> Any:
        """The filter.

        An `Expr` is safe for any text in queries and deletes (not in `update`, nor as SQL).
        """
        col, lit = self._expr.col, self._expr.lit
        found = col("user_key") == lit(key)
        if scope.session is not None:
            found = found & (col("session_id") == lit(scope.session))
        if scope.agent is not None:
            found = found & (col("agent_id") == lit(scope.agent))
        if scope.types:
            found = found & col("memory_type").isin(list(scope.types))
        return found

    async def rows(self, user: str, scope: Scope = EVERYTHING) -> Sequence[MemoryRow]:
        """All of the user's rows in `scope`, oldest first."""
        found = await self._query_rows(user, scope, [])
        if found is None:
            return ()
        return self._report(
            await anyio.to_thread.run_sync(self._rows.sorted_rows, user, found)
        ).rows

    async def embedded_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """The same with their vectors."""
        if not self._rows.embedded:
            return await self.rows(user, scope), None
        found = await self._query_rows(user, scope, ["vector"])
        if found is None:
            found = self._rows.schema.empty_table()
        read, vectors = await anyio.to_thread.run_sync(self._rows.embedded_rows, user, found)
        return self._report(read).rows, vectors

    async def _query_rows(self, user: str, scope: Scope, more: list[str]) -> Any:
        key = user_key(user)
        shard = self._shards.get(self._shard_of(key))
        if shard is None:
            return None
        with self._map_errors("reading", shard), shard.reading() as table:
            query = (
                table.query().where(self._within(key, scope)).select([*self._columns(shard), *more])
            )
            return await query.to_arrow(timeout=self._read_timeout)

    def _report(self, read: Read) -> Read:
        """What is left out of an answer is told of."""
        for id_ in read.foreign:
            _logger.error("foreign_row_refused", row=id_)
        for id_ in read.damaged:
            _logger.error("row_damaged", row=id_)
        self._damaged += len(read.damaged)
        return read

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        """Remove some of the user's rows; at most five hundred a commit.

        Their bytes stay until the shard is written anew.
        """
        key = user_key(user)
        shard = self._shards.get(self._shard_of(key))
        if shard is None or not ids:
            return 0
        col, lit = self._expr.col, self._expr.lit
        gone = 0
        for start in range(0, len(ids), _DELETE_AT_ONCE):
            among = col("id").isin(list(ids[start : start + _DELETE_AT_ONCE]))
            async with shard.lock:
                with (
                    anyio.CancelScope(shield=True),
                    self._map_errors("deleting", shard, writing=True),
                ):
                    await shard.roll_back_uncertain()
                    began = time.time()
                    gone += await shard.delete((col("user_key") == lit(key)) & among)
                    await shard.record(began)
            self._commits += 1
        return gone

    def _candidates(self, user: str, results: dict[str, Any]) -> list[Candidate]:
        scores: dict[str, dict[str, float]] = {}
        rows: dict[str, MemoryRow] = {}
        seen: set[str] = set()
        for name, found in results.items():
            ids = found.column("id").to_pylist()
            values = found.column("_distance" if name == "vector" else "_score").to_pylist()
            for id_, value in zip(ids, values, strict=True):
                scores.setdefault(id_, {})[name] = 1.0 - value if name == "vector" else value
            new = [position for position, id_ in enumerate(ids) if id_ not in seen]
            seen.update(ids)
            fresh = self._report(self._rows.read(user, self._rows.take(found, new)))
            rows.update((row.id, row) for row in fresh.rows)
        return [Candidate(row, scores[id_]) for id_, row in rows.items()]

    # -- erasing -----------------------------------------------------------------------------------

    async def erase(self, user_key: str, session_key: str = "") -> int:
        """Write the user's shard anew without the user, or without one of their sessions, and
        remove all that was before (G13).

        Rows of theirs that are queued, by somebody who has left, say, are not written any more. New
        ones are to be none: the caller has stopped whoever makes them.
        """
        async with (
            self._committing
        ):  # a batch under way is in the table before that is written anew
            self._drop_queued(user_key, session_key)
        number = self._shard_of(user_key)
        shard = self._shards.get(number)
        if shard is None:
            if (files := self._files(f"mem_{number:03d}")) is not None:
                with self._map_errors("erasing"):
                    await anyio.to_thread.run_sync(files.purge)
            return 0
        async with shard.lock:
            with anyio.CancelScope(shield=True), self._map_errors("erasing", shard, writing=True):
                await shard.roll_back_uncertain()
                removed = await shard.rewrite(
                    owned_by(user_key, session_key), index_rows=self._config.index_user_rows
                )
                await shard.forget_versions()
                if shard.files is not None:
                    await anyio.to_thread.run_sync(shard.files.purge)
                    # the digests that stand in files as they are: text is compressed, and is proven
                    # gone by the tests
                    traces = (
                        []
                        if session_key
                        else await anyio.to_thread.run_sync(shard.files.traces, [user_key.encode()])
                    )
                    if traces:
                        _logger.error("erasure_left_traces", table=shard.name, files=traces)
                        raise LongTermError(
                            f"the table {shard.name} still holds what was to be erased; it is "
                            "tried again",
                            retryable=True,
                        )
        _logger.info("erased", table=shard.name, rows=removed)
        return removed

    def _drop_queued(self, key: str, session: str) -> None:
        for place, add in enumerate(self._queue):
            kept = [n for n, row in enumerate(add.rows) if not _is_of(row, key, session)]
            if len(kept) < len(add.rows):
                probe("queued_rows_dropped")
                vectors = None if add.vectors is None else add.vectors[kept]
                self._queue[place] = _Add(
                    [add.rows[n] for n in kept], vectors, add.may_exist, add.promise
                )

    # -- upkeep ------------------------------------------------------------------------------------

    async def compact(self) -> int:
        """Compact shards that many commits have fragmented, and remove versions that no reader can
        still need.
        """
        compacted = 0
        for shard in list(self._shards.values()):
            if not shard.wants_compacting(
                self._config.compact_fragments, keep_s=self._config.keep_versions_s
            ):
                continue
            async with shard.lock:
                with (
                    anyio.CancelScope(shield=True),
                    self._map_errors("compacting", shard, writing=True),
                ):
                    await shard.roll_back_uncertain()
                    await shard.compact(
                        keep_s=self._config.keep_versions_s, index_rows=self._config.index_user_rows
                    )
            compacted += 1
            self._compactions += 1
        return compacted

    async def delete_row_ids(self, table: str, places: Sequence[int]) -> int:
        """Remove the rows that stand at these places of a table (LanceDB's row ids), whosever they
        are; returns how many.

        For repairs: places are known to whoever has the store for himself, and has read them since
        the last write.

        Raises:
            LongTermError: it is not known which are gone; look again.
        """
        shard = self._shards[int(table.removeprefix("mem_"))]
        gone = 0
        async with shard.lock:
            with (
                anyio.CancelScope(shield=True),
                self._map_errors("discarding", shard, writing=True),
            ):
                await shard.roll_back_uncertain()
                gone = await self._delete_row_ids(shard, places)
                await shard.record(time.time())
        return gone

    async def _delete_row_ids(self, shard: Shard, places: Sequence[int]) -> int:
        gone = 0
        for start in range(0, len(places), _DELETE_AT_ONCE):
            gone += await shard.delete(
                self._expr.col("_rowid").isin(list(places[start : start + _DELETE_AT_ONCE]))
            )
            self._commits += 1
        return gone

    async def repair_tables(self) -> Sequence[str]:
        """Make of each table what can be made of it, and say what that was.

        The journal has to fill what is lacking then (G7).

        For repairs: nobody else uses the store. Rows that are not as they were written are removed.
        Damaged indices are made again. A table of which anything else is damaged is written anew
        from its rows, and put aside if those cannot all be read.
        """
        done: list[str] = []
        for number, shard in sorted(self._shards.items()):
            async with shard.lock:
                with anyio.CancelScope(shield=True):
                    try:
                        with self._map_errors("mending", shard):
                            done += await self._repair_shard(shard)
                    except LongTermError as e:
                        if shard.files is None:
                            raise
                        shard.table.close()
                        await anyio.to_thread.run_sync(shard.files.put_aside, str(e))
                        del self._shards[number]
                        done.append(
                            f"the table {shard.name} was put aside, for its rows cannot be read: "
                            f"{e}"
                        )
        return done

    async def _repair_shard(self, shard: Shard) -> list[str]:
        await shard.roll_back_uncertain()
        done = []
        indices: tuple[str, ...] | None = ()
        if shard.files is not None:
            indices = await anyio.to_thread.run_sync(shard.files.damaged_indices)
        damaged = await self._damaged_row_ids(shard) if shard.checked else []
        if damaged:
            removed = await self._delete_row_ids(shard, damaged)
            await shard.record(time.time())
            done.append(
                f"{removed} rows of the table {shard.name} were removed, for they were not as "
                "they were written"
            )
        if indices is None:
            await shard.rewrite(None, index_rows=self._config.index_user_rows)
            done.append(
                f"the table {shard.name} was written anew, for some of its files were damaged"
            )
        elif indices:
            await shard.rebuild_indices(indices)
            await shard.record(time.time())
            done.append(
                f"{len(indices)} indices of the table {shard.name} were made again, for they were "
                "damaged"
            )
        return done

    async def _damaged_row_ids(self, shard: Shard) -> list[int]:
        columns = [*COLUMNS, CHECK, *(["vector"] if self._rows.embedded else [])]
        batches = await shard.table.query().select(columns).with_row_id().to_batches()
        found: list[int] = []
        async for batch in batches:
            found += await anyio.to_thread.run_sync(self._rows.damaged_row_ids, batch)
        return found

    async def verify(self, *, deep: bool = False) -> Sequence[Finding]:
        """What is damaged, doubled, or in the wrong place.

        With `deep`, every file's digest and every row's check.

        What opening found and put right is reported as well, until the rows that were lost with it
        have been filled again.
        """
        found = list(self._opening_findings)
        for number, shard in sorted(self._shards.items()):
            async with shard.lock:
                with anyio.CancelScope(shield=True):
                    if shard.files is not None:
                        found += await anyio.to_thread.run_sync(
                            partial(shard.files.findings, deep=deep)
                        )
                    found += await self._row_findings(number, shard, deep=deep)
        return found

    async def _row_findings(self, number: int, shard: Shard, *, deep: bool) -> list[Finding]:
        columns = ["user_key", *(COLUMNS if deep else ("id", "user_id"))]
        if deep and shard.checked:
            columns += [CHECK, "vector"] if self._rows.embedded else [CHECK]
        try:
            with self._map_errors("verifying", shard), shard.reading() as table:
                batches = await table.query().select(columns).to_batches(timeout=self._read_timeout)
                return await self._rows.verify_rows(
                    batches, shard.name, home=lambda key: self._shard_of(key) == number
                )
        except LongTermError as e:
            return [Finding("table", shard.name, str(e), repairable=True)]

    async def statistics(self) -> LongTermStatistics:
        """Rows and counters."""
        counts: list[int] = []
        for shard in self._shards.values():
            with self._map_errors("counting", shard), shard.reading() as table:
                counts.append(await table.count_rows())
        shards = self._shards.values()
        return LongTermStatistics(
            sum(counts),
            self._commits,
            self._merges,
            sum(shard.fragments for shard in shards),
            self._compactions,
            self._damaged,
            sum(shard.rewritten_bytes for shard in shards),
        )

    async def row_ids(self) -> Sequence[str]:
        """Every row's id."""
        ids: list[str] = []
        for shard in self._shards.values():
            with self._map_errors("listing", shard), shard.reading() as table:
                found = await table.query().select(["id"]).to_arrow(timeout=self._read_timeout)
                ids.extend(found.column("id").to_pylist())
        return ids

    async def aclose(self) -> None:
        """Commit what is queued and close the tables."""
        await self._commit_queued()
        for shard in self._shards.values():
            shard.table.close()
        self._database.close()


def _is_of(row: MemoryRow, key: str, session: str) -> bool:
    return user_key(row.user) == key and (
        not session or session_key(row.user, row.session) == session
    )
