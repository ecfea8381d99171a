"""The SQLite journal's connections and file, as tests look at them and break them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import anyio.to_thread

from remora.storage.copying import TABLES
from remora.storage.sqlite.connection import JournalConnection, Step
from remora.storage.sqlite.copying import JournalRows

__all__ = [
    "BreakableConnection",
    "Connections",
    "change_rows",
    "free_pages",
    "refuse_full_disk",
    "row_in_the_way",
    "rows_of",
]


class BreakableConnection(JournalConnection):
    """A connection of a journal; what its thread calls before and after each commit may raise."""

    before_commit: Callable[[], None] | None = None
    after_commit: Callable[[], None] | None = None

    def run_in_place(self, connection: sqlite3.Connection, steps: Sequence[Step]) -> None:
        if self.before_commit is not None:
            self.before_commit()
        super().run_in_place(connection, steps)
        if self.after_commit is not None:
            self.after_commit()


Connections: TypeAlias = list[BreakableConnection]
"""Of the journals opened in a test: the writer and the reader of each, in turn."""


def refuse_full_disk() -> None:
    """Fail as SQLite does when the disk is full."""
    raise sqlite3.OperationalError("database or disk is full")


async def change_rows(path: Path, statement: str) -> None:
    """Change a journal's rows without its knowledge, while it is open."""

    def change() -> None:
        with closing(sqlite3.connect(path)) as database, database:
            assert database.execute(statement).rowcount > 0, statement

    await anyio.to_thread.run_sync(change)


def row_in_the_way(sid: int, seq: int) -> str:
    """The statement that puts a row where message `seq` of a session is to go."""
    values = "0, 0, 0, 0, x'80', NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL"
    return f"INSERT INTO messages VALUES ({sid << 32 | seq}, {values})"


async def free_pages(path: Path) -> int:
    """Pages of a journal's file that hold nothing."""

    def count() -> int:
        with closing(sqlite3.connect(path)) as database:
            ((free,),) = database.execute("PRAGMA freelist_count").fetchall()
        return int(free)

    return await anyio.to_thread.run_sync(count)


async def rows_of(journal: Path) -> dict[str, list[Any]]:
    """All rows of a journal that nobody has open, by table."""
    async with JournalRows.open(journal) as rows:
        return {table: [row async for some in rows.read(table) for row in some] for table in TABLES}
