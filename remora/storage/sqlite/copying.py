"""All rows of a journal that no process has open, as they are. Everything here blocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from remora.storage.copying import TABLES, Column, with_checksums
from remora.storage.rows import SEQ_BITS

_AT_ONCE = 1_000
_OWNED = {
    "messages": f"WHERE pos >> {SEQ_BITS} IN (SELECT sid FROM actors)",
    "actors": "",
    "erasures": "",
}
_OF_ACTORS = "WHERE sid IN (SELECT sid FROM actors)"


def read_rows(journal: Path, table: str) -> Iterator[Sequence[tuple[Any, ...]]]:
    """The rows of a table in its order, some at a time; not those that an erasure has left.

    Raises:
        sqlite3.DatabaseError: it cannot be read.
    """
    spec = TABLES[table]
    columns = ", ".join(map(_select, spec.columns))
    number = "rowid" if spec.counted else spec.order
    where = _OWNED.get(table, _OF_ACTORS)
    # each part is read in another thread
    with closing(sqlite3.connect(journal, check_same_thread=False)) as database:
        cursor = database.execute(f"SELECT {columns} FROM {table} {where} ORDER BY {number}")
        while rows := cursor.fetchmany(_AT_ONCE):
            yield with_checksums(table, rows)


def _select(column: Column) -> str:
    if column.name == "number":
        return "rowid"
    name = f'"{column.name}"'
    return f"CAST({name} AS BLOB)" if column.kind in {"name", "text"} else name


def write_rows(journal: Path, table: str, rows: Iterable[Sequence[tuple[Any, ...]]]) -> None:
    """Add rows to a table. They are not synced."""
    spec = TABLES[table]
    names = ", ".join("rowid" if name == "number" else f'"{name}"' for name in spec.names)
    values = ", ".join(
        "CAST(? AS TEXT)" if one.kind in {"name", "text"} else "?" for one in spec.columns
    )
    with closing(sqlite3.connect(journal, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("BEGIN")
        for some in rows:
            database.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", some)
        database.execute("COMMIT")


def write_settings(journal: Path, settings: Mapping[str, str]) -> None:
    """Set settings; sessions are sorted by their last use when the journal is opened next."""
    with closing(sqlite3.connect(journal, isolation_level=None)) as database:
        database.execute("BEGIN")
        database.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", settings.items())
        database.execute("DELETE FROM settings WHERE name = 'uses_complete'")
        database.execute("COMMIT")
