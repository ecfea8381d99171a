"""The indices of a table: of words, of users, and of vectors.

Words are indexed where somebody asks for them: who has few rows is searched in memory, and an index
costs 110 µs a row, each time. In a table of 165 000 rows of one user, words that are in no
full-text index cost a search 60 to 90 µs a row, and a search of all vectors takes 780 ms. With an
index of scalar-quantized vectors it takes 30 ms, and finds the same rows: all of its partitions are
searched, so the query is compared with every vector, at eight bits a number, and with the best of
them again at full precision. It pays for users of many rows; those of few are searched without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remora.runtime.threads import run_in_thread
from remora.storage.lance.rows import SEARCHED

if TYPE_CHECKING:
    import pyarrow as pa
    from lancedb import AsyncTable

MANY_ROWS = 10_000
"""Rows of one user from which on their vectors are searched by an index."""
_MOST_UNKEYED = 20_000  # rows that a search for a user's rows looks at: 1 ms
REFINE = 2
"""So many times the rows that are wanted are compared at full precision: of 200 none was missed."""


class IndexTools:
    """The index types that remora uses, from LanceDB's module."""

    def __init__(self, index: Any) -> None:
        self._index = index

    def of_column(self, column: str) -> Any:
        """The kind of index that a column gets."""
        if column in SEARCHED:
            return self._index.FTS(with_position=False)
        if column == "vector":
            return self._index.IvfSq(distance_type="cosine")
        return self._index.BTree()


async def index_words(table: AsyncTable, tools: IndexTools) -> None:
    """Index the text columns."""
    for column in SEARCHED:
        await table.create_index(column, config=tools.of_column(column), replace=True)


async def index_users(table: AsyncTable, tools: IndexTools, *, least_rows: int) -> None:
    """Index the users' keys if the table has so many rows and no such index."""
    if await table.count_rows() >= least_rows and "user_key" not in await indexed_columns(table):
        await table.create_index("user_key", config=tools.of_column("user_key"))


async def index_vectors(table: AsyncTable, tools: IndexTools) -> None:
    """Index the vectors if a user has many, and they are in no index."""
    if "vector" in await indexed_columns(table):
        return
    if await table.count_rows() < MANY_ROWS or "vector" not in (await table.schema()).names:
        return
    if await count_most_of_a_user(table) >= MANY_ROWS:
        await table.create_index("vector", config=tools.of_column("vector"))


async def optimize(table: AsyncTable, tools: IndexTools, **options: Any) -> Any:
    """Have LanceDB compact the table, extend its indices and remove versions.

    An index of vectors that lacks rows is made again, in 10 µs a row: LanceDB would add a second
    one to it, and then a search finds 97 of the 100 nearest rows.
    """
    for index in await table.list_indices():
        if index.columns == ["vector"] and index.num_unindexed_rows:
            await table.drop_index(index.name)
    done = await table.optimize(**options)
    await index_vectors(table, tools)
    return done


async def count_most_of_a_user(table: AsyncTable) -> int:
    """How many rows the user has who has most."""
    keys = (await table.query().select(["user_key"]).to_arrow()).column("user_key")
    return await run_in_thread(_most_equal, keys)


def _most_equal(column: pa.ChunkedArray) -> int:
    counts: list[int] = column.value_counts().field("counts").to_pylist()
    return max([*counts, 0])


async def indexed_columns(table: AsyncTable) -> set[str]:
    """The columns that have an index."""
    return {index.columns[0] for index in await table.list_indices()}


async def count_unindexed(table: AsyncTable) -> int:
    """Rows that are not in every full-text index; 0 if there is none."""
    unindexed = await _unindexed_by_column(table)
    return max(unindexed.get(column, 0) for column in SEARCHED)


async def lacks_users(table: AsyncTable) -> bool:
    """Return whether many rows are not in the index of users' keys, if there is one."""
    return (await _unindexed_by_column(table)).get("user_key", 0) > _MOST_UNKEYED


async def _unindexed_by_column(table: AsyncTable) -> dict[str, int]:
    indices = await table.list_indices()
    return {index.columns[0]: index.num_unindexed_rows or 0 for index in indices}
