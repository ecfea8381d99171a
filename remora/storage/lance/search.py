"""Reading one user's rows: by search, or all of them. Each row that is read is checked."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from remora.logging import get_logger
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.threads import run_in_thread
from remora.storage.lance.indices import MANY_ROWS, REFINE
from remora.storage.lance.rows import SEARCHED, Read
from remora.storage.lance.shard import Shard
from remora.storage.lance.tables import LanceTables
from remora.storage.ports import BLOCK_TYPE, Candidate, MemoryRow, RowOrder, Scope, Vector
from remora.storage.windows import with_windows

if TYPE_CHECKING:
    from lancedb import AsyncTable

_logger = get_logger(__name__)
_ALL_PARTITIONS = 10_000  # of an index; one has 8 192 rows
_LONG_QUERY_CHARS = 2_000
_MOST_QUERY_WORDS = 200
_READ_ON_LOOP = 100  # rows; 300 take 5 ms
_ROWS_AT_ONCE = 1_000


class LanceSearch:
    """Reads the tables.

    Attributes:
        damaged: rows left out of an answer so far, because they are not as they were written.
    """

    def __init__(self, tables: LanceTables) -> None:
        self.damaged = 0
        self._tables = tables
        self._expr = importlib.import_module("lancedb.expr")
        self._query = importlib.import_module("lancedb.query")
        # More searches at once only take memory: each uses several threads of LanceDB.
        self._searches = anyio.Semaphore(2 * (os.cpu_count() or 1))
        self._turns = anyio.Lock()

    async def search(
        self, user: str, text: str, vector: Vector | None, *, depth: int, scope: Scope
    ) -> Sequence[Candidate]:
        """See `LanceStore.search`."""
        key = self._tables.digests.user(user)
        shard = self._tables.of_user(key)
        if shard is None:
            return ()
        if len(text) > _LONG_QUERY_CHARS:  # every word of a document takes LanceDB minutes
            text = " ".join(list(dict.fromkeys(text.split()))[:_MOST_QUERY_WORDS])
        mine = self.within(key, scope)

        async def one(name: str, query: Any) -> Any:
            query = query.where(mine).limit(depth).select(["id", _score_of(name)])
            return await query.with_row_id().to_arrow(timeout=self._tables.read_timeout)

        async with self._searches, self._tables.reading("searching", shard) as table:
            queries: dict[str, Any] = {}
            if text.strip():
                for column in SEARCHED:
                    match = self._query.MatchQuery(text, column=column)
                    queries[column] = table.query().nearest_to_text(match)
            if vector is not None and self._tables.rows.embedded:
                queries["vector"] = await _vector_query(shard, table, vector, key)
            # at once: the work is in LanceDB's own threads
            lists = await asyncio.gather(*[one(name, query) for name, query in queries.items()])
            scores, places = _scores(dict(zip(queries, lists, strict=True)))
            found = await self.fetch(table, shard.columns, places, mine)
        async with self._turns:  # answers that come together have one turn of the event loop each
            large = len(found) > _READ_ON_LOOP
            read = await run_in_thread_if(large, self._tables.rows.read, user, found)
        rows = {row.id: row for row in self._report(read).rows}
        return [Candidate(rows[id_], scores[id_]) for id_ in scores if id_ in rows]

    async def fetch(
        self, table: AsyncTable, columns: list[str], places: dict[str, int], mine: Any
    ) -> Any:
        """The rows with these ids, each once: the lists of a search have many in common.

        Columns of a hundred rows, here and there in a large table, take as long as the search.

        Args:
            table: a handle.
            columns: to read.
            places: of each id, the row id that it had a moment ago; compaction changes it.
            mine: the filter of the search.
        """
        timeout = self._tables.read_timeout
        query = table.take_row_ids(list(places.values())).select(columns)
        found = await query.to_arrow(timeout=timeout)
        if set(found.column("id").to_pylist()) == places.keys():
            return found
        there = mine & self._expr.col("id").isin(list(places))
        return await table.query().where(there).select(columns).to_arrow(timeout=timeout)

    async def rows(
        self,
        user: str,
        scope: Scope,
        *,
        limit: int | None = None,
        by: RowOrder = "created",
    ) -> Sequence[MemoryRow]:
        """See `LanceStore.rows`."""
        if limit is None:
            found = await self._query_rows(user, scope, [])
        else:
            found = await self._query_first(user, scope, limit, by)
        if found is None:
            return ()
        form = self._tables.rows
        rows = self._report(await run_in_thread(form.read_sorted, user, found, by)).rows
        if limit is None:
            return rows
        return [row for row in rows if row.memory_type != BLOCK_TYPE][:limit]

    async def count(self, user: str) -> int:
        """See `LanceStore.count`."""
        key = self._tables.digests.user(user)
        shard = self._tables.of_user(key)
        if shard is None:
            return 0
        # both are remora's own words: a digest, and a type
        mine = f"user_key = '{key}' AND memory_type <> '{BLOCK_TYPE}'"
        async with self._tables.reading("counting", shard) as table:
            return int(await table.count_rows(mine))

    async def embedded_rows(
        self, user: str, scope: Scope
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """See `LanceStore.embedded_rows`."""
        rows, vectors = await self._rows_with_vectors(user, scope)
        chars = self._tables.config.window_chars
        return await run_in_thread_if(len(rows) > _READ_ON_LOOP, with_windows, rows, chars), vectors

    async def _rows_with_vectors(
        self, user: str, scope: Scope
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        form = self._tables.rows
        if not form.embedded:
            return await self.rows(user, scope), None
        found = await self._query_rows(user, scope, ["vector"])
        if found is None:
            found = form.schema.empty_table()
        read, vectors = await run_in_thread(form.read_with_vectors, user, found)
        return self._report(read).rows, vectors

    async def all_rows(self) -> AsyncIterator[tuple[Sequence[MemoryRow], Vector | None]]:
        """See `LanceStore.all_rows`."""
        form = self._tables.rows
        for shard in list(self._tables.shards.values()):
            async with self._tables.reading("reading", shard) as table:
                columns = [*shard.columns, "user_key", *(["vector"] if form.embedded else [])]
                async for some in _gather(await table.query().select(columns).to_batches()):
                    read, vectors = await run_in_thread(form.read_batches, some)
                    yield self._report(read).rows, vectors

    async def _query_rows(self, user: str, scope: Scope, more: list[str]) -> Any:
        key = self._tables.digests.user(user)
        shard = self._tables.of_user(key)
        if shard is None:
            return None
        async with self._tables.reading("reading", shard) as table:
            query = table.query().where(self.within(key, scope)).select([*shard.columns, *more])
            return await query.to_arrow(timeout=self._tables.read_timeout)

    async def _query_first(self, user: str, scope: Scope, limit: int, by: RowOrder) -> Any:
        """The rows that come first: of the others only what their order needs is read."""
        key = self._tables.digests.user(user)
        shard = self._tables.of_user(key)
        if shard is None:
            return None
        form = self._tables.rows
        col, lit = self._expr.col, self._expr.lit
        mine = self.within(key, scope) & (col("memory_type") != lit(BLOCK_TYPE))
        async with self._tables.reading("reading", shard) as table:
            query = table.query().where(mine).select(["id", *form.order_of(by)]).with_row_id()
            every = await query.to_arrow(timeout=self._tables.read_timeout)
            places = await run_in_thread(form.first_places, every, limit, by)
            found = await self.fetch(table, shard.columns, places, mine)
        if len(found) == len(places):
            return found
        return await self._query_rows(user, scope, [])  # rows were removed between the two reads

    def within(self, key: str, scope: Scope) -> Any:
        """The filter for a user's rows in a scope.

        An `Expr` is safe for any text in queries and deletes, but not in `update`, nor as SQL.
        """
        col, lit = self._expr.col, self._expr.lit
        found = col("user_key") == lit(key)
        if scope.session is not None:
            found = found & (col("session_id") == lit(scope.session))
        if scope.agent is not None:
            found = found & (col("agent_id") == lit(scope.agent))
        if scope.types:
            found = found & col("memory_type").isin(list(scope.types))
        if scope.ids is not None:
            found = found & col("id").isin(list(scope.ids))
        return found

    def _report(self, read: Read) -> Read:
        """Log the rows that are left out of an answer."""
        for id_ in read.foreign:
            _logger.error("foreign_row_refused", row=id_)
        for id_ in read.damaged:
            _logger.error("row_damaged", row=id_)
        self.damaged += len(read.damaged)
        return read


async def _vector_query(shard: Shard, table: AsyncTable, vector: Vector, key: str) -> Any:
    query = table.query().nearest_to(vector).distance_type("cosine")
    if not shard.vectors_indexed:
        return query
    if key not in shard.large_users:
        mine = f"user_key = '{key}'"  # remora's own digest: nothing needs quoting
        if await table.count_rows(mine) < MANY_ROWS:
            return query.bypass_vector_index()
        shard.large_users.add(key)
    return query.nprobes(_ALL_PARTITIONS).refine_factor(REFINE)


def _score_of(name: str) -> str:
    """The column of a list's scores."""
    return "_distance" if name == "vector" else "_score"


def _scores(lists: dict[str, Any]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """The scores of each row that a list has, by list, and its row id."""
    scores: dict[str, dict[str, float]] = {}
    places: dict[str, int] = {}
    for name, found in lists.items():
        columns = [found.column(one).to_pylist() for one in ("id", "_rowid", _score_of(name))]
        for id_, place, value in zip(*columns, strict=True):
            scores.setdefault(id_, {})[name] = 1.0 - value if name == "vector" else value
            places[id_] = place
    return scores, places


async def _gather(batches: AsyncIterator[Any]) -> AsyncIterator[Sequence[Any]]:
    """Record batches, some at a time: a table that was not compacted has one for each commit."""
    some: list[Any] = []
    rows = 0
    async for batch in batches:
        some.append(batch)
        rows += len(batch)
        if rows >= _ROWS_AT_ONCE:
            yield some
            some, rows = [], 0
    if some:
        yield some
