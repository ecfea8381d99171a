"""aiosqlite's connection, with one verb more.

A whole transaction as one call to the connection's thread.

Each call waits until the event loop comes round to it, and until the thread is given the
interpreter, up to 5 ms beside a busy loop. A commit of six statements that were six calls kept
everybody's appends waiting for six times as long as one of one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiosqlite

__all__ = ["JournalConnection", "NothingChanged", "Step", "run_steps"]


class NothingChanged(Exception):
    """A step that must change something changed nothing."""


class Step(NamedTuple):
    """One statement of a transaction.

    Attributes:
        sql: the statement; several, where there are no parameters.
        rows: its parameters, once for each time that it is to be run; None for none.
        needed: whether it must change something.
    """

    sql: str
    rows: Sequence[tuple[Any, ...]] | None = None
    needed: bool = False


def run_steps(connection: sqlite3.Connection, steps: Sequence[Step]) -> None:
    """Do them in order, up to the first that fails; what is open then stays open. Blocks.

    Raises:
        NothingChanged: one that was needed changed nothing.
        sqlite3.Error: SQLite refused one.
    """
    for sql, rows, needed in steps:
        if rows is None:
            connection.executescript(sql)
        else:
            cursor = (
                connection.execute(sql, rows[0])
                if len(rows) == 1
                else connection.executemany(sql, rows)
            )
            if needed and not cursor.rowcount:
                raise NothingChanged


class JournalConnection(aiosqlite.Connection):
    """A connection of the journal's, in autocommit mode: it begins and ends transactions by itself.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: sqlite3.connect(path, isolation_level=None), iter_chunk_size=64)
        # The process may end although a connection was left open, by a second Ctrl-C, say: a
        # journal needs no farewell.
        thread: Any = getattr(self, "_thread", self)
        thread.daemon = True

    async def run(self, steps: Sequence[Step]) -> None:
        """Do these steps, as `run_steps` does, in the connection's thread."""
        execute: Any = self._execute  # what all its verbs are made of, in every version
        await execute(run_steps, self._conn, steps)
