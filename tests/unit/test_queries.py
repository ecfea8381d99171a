"""The journals' queries: both databases have the same, and none of a user's reads a whole table."""

import re
import sqlite3

import pytest

from remora.storage.postgres.reading import QUERIES as IN_POSTGRESQL
from remora.storage.sqlite.reading import QUERIES as IN_SQLITE
from remora.storage.sqlite.schema import MIGRATIONS

WHOLE = {  # they ask for all that there is, or for some of it in the order of a table
    "indexed_through", "jobs", "sessions_to_flush", "sessions_with_fallbacks", "counts",
    "erasures", "users", "most_bytes",
}  # fmt: skip


def parameters_of(sql: str) -> set[str]:
    return set(re.findall(r"(?<!:):(\w+)", sql))


@pytest.fixture(scope="module")
def journal() -> sqlite3.Connection:
    """A journal without rows: its planner knows the schema alone."""
    database = sqlite3.connect(":memory:")
    database.executescript(MIGRATIONS[0])
    return database


def test_both_databases_answer_the_same_queries() -> None:
    named = {name: parameters_of(sql) for name, sql in IN_SQLITE.items()}
    assert named == {name: {one for one, _ in q.parameters} for name, q in IN_POSTGRESQL.items()}


@pytest.mark.parametrize("name", sorted(set(IN_SQLITE) - WHOLE))
def test_a_query_of_one_user_finds_rows_by_an_index(name: str, journal: sqlite3.Connection) -> None:
    """G10: SQLite's program goes to the first or the last row of no table, to read all of it."""
    sql = IN_SQLITE[name]
    program = journal.execute(f"EXPLAIN {sql}", dict.fromkeys(parameters_of(sql), "[]")).fetchall()
    tables = {cursor: root for _, step, cursor, root, *_ in program if step == "OpenRead"}
    begun = {tables.get(cursor) for _, step, cursor, *_ in program if step in {"Rewind", "Last"}}
    names = dict(journal.execute("SELECT rootpage, tbl_name FROM sqlite_schema"))
    assert not [names[root] for root in begun if root in names]
