"""Long-term memory in LanceDB: one writer task, Arrow in and out, user-keyed shards, exact search.

What LanceDB 0.40 does and does not, and what follows (all measured):

* A commit costs 3.4 ms whatever its size, and leaves a fragment that slows every filtered search. So rows of many flushes
  are joined for up to `batch_ms`, and shards are compacted.
* `merge_insert` run twice at once doubles rows, without an error. So only this writer merges, only where an earlier attempt's
  outcome is in doubt, with ids deduplicated in the batch and `use_index(False)`; a first attempt is a plain `add`.
* Cancelling a caller does not cancel its write. So callers wait for a promise, and the writer task is shielded.
* A vector index under a user filter loses most of its recall. So there is none: search is exact within the user's rows.
* User text in a filter can be injected. So rows are found by a fixed-width digest of the user id, and every row that
  comes back is checked against the id itself.
* Errors are untyped: `_mapped` turns them into `LongTermError`, in this one place.

It never fsyncs. The journal keeps every message, so a table that a power cut shortened can be filled again.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from remora.config import LongTermConfig
from remora.errors import LongTermError
from remora.identity import user_key
from remora.logs import get_logger
from remora.runtime.containment import contained
from remora.runtime.promise import Promise, new_promise
from remora.storage.ports import EVERYTHING, Candidate, LongTermStatistics, MemoryRow, Scope, Vector

__all__ = ["LanceStore"]

_logger = get_logger("remora.longterm")
_COLUMNS = (
    "id", "user_id", "session_id", "seq", "role", "speaker", "content", "turn", "window", "memory_type", "importance",
    "created_at", "tokens", "agent_id",
)  # fmt: skip
_SEARCHED = ("turn", "window")
_DELETE_AT_ONCE = 500
_LONG_QUERY_CHARS = 2_000
_MOST_QUERY_WORDS = 200


class _Add(msgspec.Struct):
    rows: Sequence[MemoryRow]
    vectors: Any
    doubtful: bool
    promise: Promise


class _Shard:
    """One table, and what it went through since it was last compacted."""

    def __init__(self, name: str, table: Any, *, fragments: int, searchable: bool) -> None:
        self.name = name
        self.table = table
        self.fragments = fragments
        self.searchable = searchable
        self.lock = anyio.Lock()


@contextmanager
def _mapped(doing: str) -> Iterator[None]:
    """LanceDB raises builtins only: I/O, conflicts and time-outs as RuntimeError, bad calls as ValueError or TypeError."""
    try:
        yield
    except (RuntimeError, OSError) as e:
        raise LongTermError(f"long-term memory failed {doing}: {e}", retryable=True) from e
    except (ValueError, TypeError, NotImplementedError) as e:
        raise LongTermError(f"long-term memory cannot go on {doing}: {e}", retryable=False) from e


class LanceStore:
    """Implements `remora.storage.ports.LongTermStore`. Made by `open`; its writer is `run`."""

    def __init__(self, database: Any, schema: Any, shards: dict[int, _Shard], config: LongTermConfig) -> None:
        self._database = database
        self._schema = schema
        self._shards = shards
        self._config = config
        self._pa = importlib.import_module("pyarrow")
        self._expr = importlib.import_module("lancedb.expr")
        self._query = importlib.import_module("lancedb.query")
        self._index = importlib.import_module("lancedb.index")
        self._queue: list[_Add] = []
        self._event = anyio.Event()
        self._full = anyio.Event()
        # More searches at once than this only take memory: each uses several threads of LanceDB's own.
        self._searches = anyio.Semaphore(2 * (os.cpu_count() or 1))
        self._commits = self._merges = self._compactions = 0

    @classmethod
    async def open(cls, path: Path | str | None, *, dimension: int | None, config: LongTermConfig) -> LanceStore:
        """Open or create a store.

        Args:
            path: a directory; or, as text, an address that LanceDB understands, which is treated as a secret; None keeps it in
                memory.
            dimension: of the vectors; None for rows without.
            config: sizes and intervals.

        Raises:
            LongTermError: the directory cannot be read, or a table in it is not of this schema.
        """
        try:
            return await cls._open(path, dimension, config)
        except LongTermError as e:
            if not isinstance(path, str):
                raise
            problem, retryable = str(e).replace(path, "long_term.uri"), e.retryable
        raise LongTermError(problem, retryable=retryable)  # outside of `except`: the cause quotes the address

    @classmethod
    async def _open(cls, path: Path | str | None, dimension: int | None, config: LongTermConfig) -> LanceStore:
        lancedb = await anyio.to_thread.run_sync(importlib.import_module, "lancedb")
        pa = importlib.import_module("pyarrow")
        schema = _schema(pa, dimension)
        with _mapped("opening"):
            database = await lancedb.connect_async(
                "memory://" if path is None else str(path),
                session=lancedb.Session(index_cache_size_bytes=64 << 20, metadata_cache_size_bytes=32 << 20),
            )
            shards: dict[int, _Shard] = {}
            for name in (await database.list_tables(limit=10_000)).tables:
                if not name.startswith("mem_"):
                    continue
                table = await database.open_table(name)
                found = await table.schema()
                # a manifest full of zeros opens as an empty table without columns
                if found.names != schema.names:
                    raise LongTermError(
                        f"the table {name} in {path} has the columns {found.names}, not {schema.names}: it is damaged, or "
                        "another version's; move it away and it is filled again from the journal",
                        retryable=False,
                    )
                statistics = await table.stats()
                indices = {index.columns[0] for index in await table.list_indices()}
                shards[int(name.removeprefix("mem_"))] = _Shard(
                    name,
                    table,
                    fragments=statistics["fragment_stats"]["num_fragments"],
                    searchable=indices.issuperset(_SEARCHED),
                )
        return cls(database, schema, shards, config)

    @staticmethod
    async def erase(address: str) -> None:
        """Drop a store's tables, where it is no directory of this machine.

        Raises:
            LongTermError: they are not known to be gone.
        """
        problem: str | None = None
        try:
            lancedb = await anyio.to_thread.run_sync(importlib.import_module, "lancedb")
            with _mapped("erasing"):
                database = await lancedb.connect_async(address)
                for name in (await database.list_tables(limit=10_000)).tables:
                    if name.startswith("mem_"):
                        await database.drop_table(name)
        except LongTermError as e:
            problem = str(e).replace(address, "long_term.uri")
        if problem is not None:
            raise LongTermError(problem, retryable=True)  # outside of `except`: the cause quotes the address

    # -- writing ----------------------------------------------------------------------------------------------------

    async def add(self, rows: Sequence[MemoryRow], vectors: Vector | None, *, doubtful: bool) -> None:
        """Store rows with the next commit."""
        if not rows:
            return
        if (vectors is None) == ("vector" in self._schema.names):
            raise LongTermError("these rows and this store disagree on whether there are vectors", retryable=False)
        for row in rows:  # here, before it is joined with others' rows, which would fail with it
            if not (isinstance(row.user, str) and row.user and isinstance(row.content, str)):
                raise LongTermError(f"the row {row.id} has no user or no content; nothing was stored", retryable=False)
        promise = new_promise()
        self._queue.append(_Add(rows, vectors, doubtful, promise))
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
                batch: list[_Add] = []
                rows = 0
                while self._queue and rows < self._config.batch_rows:
                    batch.append(self._queue.pop(0))
                    rows += len(batch[-1].rows)
                try:
                    with _mapped("writing"):
                        await contained(self._commit, batch)
                except Exception as e:  # the writer must outlive whatever the driver raises
                    error = e if isinstance(e, LongTermError) else LongTermError(f"{type(e).__name__}: {e}", retryable=False)
                    for add in batch:
                        add.promise.reject(error)
                else:
                    for add in batch:
                        add.promise.resolve(None)

    async def _commit(self, batch: Sequence[_Add]) -> None:
        # (shard, doubtful) -> id -> (row, vector); one id is written once, and by a merge if any attempt at it is in doubt
        parts: dict[tuple[int, bool], dict[str, tuple[MemoryRow, Any]]] = {}
        for add in sorted(batch, key=lambda one: not one.doubtful):
            for number, row in enumerate(add.rows):
                home = self._shard_of(user_key(row.user))
                if row.id in parts.get((home, True), ()):
                    continue
                vector = None if add.vectors is None else add.vectors[number]
                parts.setdefault((home, add.doubtful), {})[row.id] = (row, vector)
        for (number, doubtful), rows in parts.items():
            shard = await self._shard(number)
            table = self._to_arrow(rows.values())
            async with shard.lock:
                if doubtful:
                    merge = shard.table.merge_insert("id").when_not_matched_insert_all().use_index(False)
                    await merge.execute(table)
                    self._merges += 1
                else:
                    await shard.table.add(table)
                self._commits += 1
                shard.fragments += 1
                if not shard.searchable:
                    await self._make_searchable(shard)

    def _shard_of(self, key: str) -> int:
        return int(key[:8], 16) % self._config.shards

    async def _shard(self, number: int) -> _Shard:
        shard = self._shards.get(number)
        if shard is None:
            name = f"mem_{number:03d}"
            table = await self._database.create_table(name, schema=self._schema, exist_ok=True)
            await table.set_unenforced_primary_key("id")
            shard = self._shards[number] = _Shard(name, table, fragments=0, searchable=False)
        return shard

    async def _make_searchable(self, shard: _Shard) -> None:
        for column in _SEARCHED:
            await shard.table.create_index(column, config=self._index.FTS(with_position=False), replace=True)
        shard.searchable = True

    def _to_arrow(self, rows: Iterable[tuple[MemoryRow, Any]]) -> Any:
        pa = self._pa
        pairs = list(rows)
        plain = [row for row, _ in pairs]
        columns: dict[str, Any] = {
            "id": [row.id for row in plain],
            "user_key": [user_key(row.user) for row in plain],
            "user_id": [row.user for row in plain],
            "session_id": [row.session for row in plain],
            "seq": [row.seq for row in plain],
            "role": [row.role for row in plain],
            "speaker": [row.speaker for row in plain],
            "content": [row.content for row in plain],
            "turn": [row.turn for row in plain],
            "window": [row.window for row in plain],
            "memory_type": [row.memory_type for row in plain],
            "importance": [row.importance for row in plain],
            "created_at": [row.created_us for row in plain],
            "tokens": [row.tokens for row in plain],
            "agent_id": [row.agent for row in plain],
        }
        if "vector" in self._schema.names:
            flat = [component for _, vector in pairs for component in vector.tolist()]
            size = self._schema.field("vector").type.list_size
            columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), size)
        return pa.table(columns, schema=self._schema)

    # -- searching --------------------------------------------------------------------------------------------------

    async def search(
        self, user: str, text: str, vector: Vector | None, *, depth: int, scope: Scope = EVERYTHING
    ) -> Sequence[Candidate]:
        """The user's rows in `scope` that match, each with its scores."""
        key = user_key(user)
        shard = self._shards.get(self._shard_of(key))
        if shard is None:
            return ()
        if len(text) > _LONG_QUERY_CHARS:  # a list of every word of a document takes LanceDB minutes
            text = " ".join(list(dict.fromkeys(text.split()))[:_MOST_QUERY_WORDS])
        # `vector` arrives as one vector; a store without a vector column searches by text alone.
        searches: dict[str, Any] = {}
        if text.strip():
            for column in _SEARCHED:
                match = self._query.MatchQuery(text, column=column)
                searches[column] = shard.table.query().nearest_to_text(match)
        if vector is not None and "vector" in self._schema.names:
            searches["vector"] = shard.table.query().nearest_to(vector).distance_type("cosine")
        results: dict[str, Any] = {}
        mine = self._within(key, scope)

        async def one(name: str, query: Any) -> None:
            score = "_distance" if name == "vector" else "_score"
            results[name] = await query.where(mine).limit(depth).select([*_COLUMNS, score]).to_arrow()

        async with self._searches:
            with _mapped("searching"):
                # at once: the work is in LanceDB's own threads
                coroutines = [one(name, query) for name, query in searches.items()]
                await asyncio.gather(*coroutines)
        return self._candidates(user, results)

    def _within(self, key: str, scope: Scope) -> Any:
        """The filter; an `Expr` is safe for any text in queries and deletes (not in `update`, nor as SQL)."""
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
        key = user_key(user)
        shard = self._shards.get(self._shard_of(key))
        if shard is None:
            return ()
        with _mapped("reading"):
            found = await shard.table.query().where(self._within(key, scope)).select(list(_COLUMNS)).to_arrow()
        rows = await anyio.to_thread.run_sync(self._memory_rows, user, found)
        return sorted(rows, key=lambda row: (row.created_us, row.session, row.seq))

    async def embedded_rows(self, user: str, scope: Scope = EVERYTHING) -> tuple[Sequence[MemoryRow], Vector | None]:
        """The same with their vectors."""
        if "vector" not in self._schema.names:
            return await self.rows(user, scope), None
        key = user_key(user)
        shard = self._shards.get(self._shard_of(key))
        found = self._schema.empty_table()
        if shard is not None:
            with _mapped("reading"):
                found = await shard.table.query().where(self._within(key, scope)).select([*_COLUMNS, "vector"]).to_arrow()
        return await anyio.to_thread.run_sync(self._with_vectors, user, found)

    def _with_vectors(self, user: str, found: Any) -> tuple[Sequence[MemoryRow], Vector]:
        rows = sorted(self._memory_rows(user, found), key=lambda row: (row.created_us, row.session, row.seq))
        places = {id_: place for place, id_ in enumerate(found.column("id").to_pylist())}
        flat = found.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
        vectors: Vector = flat.reshape(len(found), self._schema.field("vector").type.list_size)
        return rows, vectors[[places[row.id] for row in rows]]

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        """Remove some of the user's rows; at most a thousand a commit."""
        key = user_key(user)
        shard = self._shards.get(self._shard_of(key))
        if shard is None or not ids:
            return 0
        col, lit = self._expr.col, self._expr.lit
        gone = 0
        for start in range(0, len(ids), _DELETE_AT_ONCE):
            among = col("id").isin(list(ids[start : start + _DELETE_AT_ONCE]))
            async with shard.lock:
                with anyio.CancelScope(shield=True), _mapped("deleting"):
                    result = await shard.table.delete((col("user_key") == lit(key)) & among)
            gone += result.num_deleted_rows
            self._commits += 1
            shard.fragments += 1
        return gone

    def _candidates(self, user: str, results: dict[str, Any]) -> list[Candidate]:
        scores: dict[str, dict[str, float]] = {}
        rows: dict[str, MemoryRow] = {}
        for name, found in results.items():
            ids = found.column("id").to_pylist()
            values = found.column("_distance" if name == "vector" else "_score").to_pylist()
            for id_, value in zip(ids, values, strict=True):
                scores.setdefault(id_, {})[name] = 1.0 - value if name == "vector" else value
            new = [position for position, id_ in enumerate(ids) if id_ not in rows]
            fresh = found.select(list(_COLUMNS)).take(self._pa.array(new, self._pa.int64()))
            rows.update((row.id, row) for row in self._memory_rows(user, fresh))
        return [Candidate(row, scores[id_]) for id_, row in rows.items()]

    def _memory_rows(self, user: str, found: Any) -> list[MemoryRow]:
        """Rows of Arrow columns; one that is not the user's is refused, and reported."""
        # As microseconds: a zoned timestamp would need the machine's time zone files, read on the event loop.
        at = _COLUMNS.index("created_at")
        table = found.select(list(_COLUMNS))
        rows = []
        for record in table.set_column(at, "created_at", table.column(at).cast(self._pa.int64())).to_pylist():
            if record["user_id"] != user:
                _logger.error("foreign_row_refused", row=record["id"])
                continue
            rows.append(
                MemoryRow(
                    record["id"], record["user_id"], record["session_id"], record["seq"], record["role"],
                    record["speaker"], record["content"], record["turn"], record["window"], record["memory_type"],
                    record["importance"], record["created_at"], record["tokens"], record["agent_id"],
                )
            )  # fmt: skip
        return rows

    # -- upkeep -----------------------------------------------------------------------------------------------------

    async def compact(self) -> int:
        """Compact shards that many commits have fragmented, and remove versions that no reader can still need."""
        compacted = 0
        for shard in list(self._shards.values()):
            if shard.fragments < self._config.compact_fragments:
                continue
            async with shard.lock:
                with anyio.CancelScope(shield=True), _mapped("compacting"):
                    if await shard.table.count_rows() >= self._config.index_user_rows:
                        indexed = {index.columns[0] for index in await shard.table.list_indices()}
                        if "user_key" not in indexed:
                            await shard.table.create_index("user_key", config=self._index.BTree())
                    age = timedelta(seconds=self._config.keep_versions_s)
                    await shard.table.optimize(cleanup_older_than=age)
                    shard.fragments = 0
            compacted += 1
            self._compactions += 1
        return compacted

    async def statistics(self) -> LongTermStatistics:
        """Rows and counters."""
        with _mapped("counting"):
            rows = [await shard.table.count_rows() for shard in self._shards.values()]
        fragments = sum(shard.fragments for shard in self._shards.values())
        return LongTermStatistics(sum(rows), self._commits, self._merges, fragments, self._compactions)

    async def row_ids(self) -> Sequence[str]:
        """Every row's id."""
        ids: list[str] = []
        with _mapped("listing"):
            for shard in self._shards.values():
                found = await shard.table.query().select(["id"]).to_arrow()
                ids.extend(found.column("id").to_pylist())
        return ids

    async def aclose(self) -> None:
        """Commit what is queued and close the tables."""
        await self._commit_queued()
        for shard in self._shards.values():
            shard.table.close()
        self._database.close()


def _schema(pa: Any, dimension: int | None) -> Any:
    text = pa.string()
    fields = [
        pa.field("id", text, nullable=False),
        pa.field("user_key", text, nullable=False),
        pa.field("user_id", text, nullable=False),
        pa.field("session_id", text, nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("role", text, nullable=False),
        pa.field("speaker", text, nullable=False),
        pa.field("content", text, nullable=False),
        pa.field("turn", text, nullable=False),
        pa.field("window", text, nullable=False),
        pa.field("memory_type", text, nullable=False),
        pa.field("importance", pa.float32(), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("agent_id", text, nullable=False),
    ]
    if dimension is not None:
        fields.append(pa.field("vector", pa.list_(pa.float32(), dimension), nullable=False))
    return pa.schema(fields)
