"""aiosqlite's connection, and a whole transaction as one call to its thread.

Each call waits for the event loop's next round, and for the thread to get the interpreter, up to
5 ms while the loop is busy. A commit of six statements by six calls delayed all appends six times
as long as one call does.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aiosqlite

from remora.storage.sqlite.place import JournalPlace

_driver_log = logging.getLogger("aiosqlite")
# Its DEBUG lines have the parameters of every statement: all that users say. The level saves the
# formatting, and the filter holds where an application sets another level.
if _driver_log.level == logging.NOTSET:
    _driver_log.setLevel(logging.INFO)
_driver_log.addFilter(lambda record: record.levelno > logging.DEBUG)


class Query(Protocol):
    """Runs one query, in a transaction of its own."""

    def __call__(self, sql: str, parameters: Sequence[Any] = ..., /) -> Awaitable[list[Any]]: ...


class NothingChanged(Exception):
    """A step that must change something changed nothing."""


class EarlierFailed(Exception):
    """A transaction that was submitted before this one failed, so this one was not begun."""


class Step(NamedTuple):
    """One statement of a transaction.

    Attributes:
        sql: the statement; without parameters it may be several.
        rows: its parameters, once for each time that it is run: by place for ``?``, by name for
            ``:name``; None for none.
        must_change: whether it must change something.
    """

    sql: str
    rows: Sequence[tuple[Any, ...] | dict[str, Any]] | None = None
    must_change: bool = False


def run_steps(connection: sqlite3.Connection, steps: Sequence[Step]) -> None:
    """Run them in order, up to the first that fails; an open transaction stays open. Blocks.

    Raises:
        NothingChanged: one that must change something changed nothing.
        sqlite3.Error: SQLite refused one.
    """
    for sql, rows, must_change in steps:
        if rows is None:
            connection.executescript(sql)
        else:
            cursor = (
                connection.execute(sql, rows[0])
                if len(rows) == 1
                else connection.executemany(sql, rows)
            )
            if must_change and not cursor.rowcount:
                raise NothingChanged


class Submitted:
    """A transaction that was submitted; what aiosqlite's thread takes for a future.

    A real future takes another turn of the loop, and the thread calls back without any context: a
    clock may need one, and logs do.

    Args:
        on_done: called on the event loop with the error, or None.
        context: in which it is called.
        earlier: one that was submitted before; this one is not begun if that one failed.

    Attributes:
        began, ended: when the thread did so (`time.perf_counter`), or when it was submitted.
        waited_s: how long the thread waited for the disk and the interpreter, if it ended well.
        failed: the thread says so before it begins the next.
    """

    __slots__ = (
        "_context",
        "_earlier",
        "_loop",
        "_on_done",
        "began",
        "ended",
        "failed",
        "waited_s",
    )

    def __init__(
        self,
        on_done: Callable[[BaseException | None], None],
        context: Context,
        earlier: Submitted | None = None,
    ) -> None:
        self.began = self.ended = time.perf_counter()
        self.waited_s = 0.0
        self.failed = False
        self._on_done = on_done
        self._context = context
        self._earlier = earlier
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Say that it begins; raise `EarlierFailed` if the earlier one failed."""
        self.began = time.perf_counter()
        earlier, self._earlier = self._earlier, None  # which would have kept its own, and so on
        if earlier is not None and earlier.failed:
            raise EarlierFailed

    def get_loop(self) -> Submitted:
        """Return this: the thread asks the loop of a future to set the future's outcome."""
        return self

    def call_soon_threadsafe(self, _set: object, _future: Submitted, outcome: Any) -> None:
        """Have the event loop call `on_done`; called in the thread, with None or the error."""
        self._loop.call_soon_threadsafe(
            self._on_done, outcome if self.failed else None, context=self._context
        )


def run_submitted(
    submitted: Submitted,
    run: Callable[[sqlite3.Connection, Sequence[Step]], None],
    connection: sqlite3.Connection,
    steps: Sequence[Step],
) -> None:
    """Run a transaction in its turn: nothing of it if the earlier one failed. Blocks.

    Raises:
        EarlierFailed: it was not begun.
    """
    try:
        submitted.begin()
        computed_s = time.thread_time()
        run(connection, steps)
        computed_s = time.thread_time() - computed_s
        submitted.ended = time.perf_counter()
        submitted.waited_s = submitted.ended - submitted.began - computed_s
    except BaseException:
        submitted.failed = True
        raise


class JournalConnection(aiosqlite.Connection):
    """A connection in autocommit mode: its user begins and ends transactions.

    Args:
        place: the file, or its address (a URI) with options.
    """

    def __init__(self, place: Path | str) -> None:
        super().__init__(
            lambda: sqlite3.connect(place, isolation_level=None, uri=isinstance(place, str)),
            iter_chunk_size=64,
        )
        self.place: JournalPlace | None = None
        """Where its files must be after each transaction."""
        # The process may end with an open connection (a second Ctrl-C): no shutdown step is needed.
        self._thread.daemon = True

    def submit(
        self,
        steps: Sequence[Step],
        on_done: Callable[[BaseException | None], None],
        context: Context,
        earlier: Submitted | None = None,
    ) -> Submitted:
        """Do what `run` does, without a task: the event loop calls `on_done` with the error.

        Args:
            steps: the transaction.
            on_done: is told what became of it.
            context: in which it is called.
            earlier: what was submitted before and has not ended. The thread goes from one to the
                other without waiting for the loop; if that one fails, this one is not begun, and
                its error is `EarlierFailed`.

        Raises:
            ValueError: the connection is closed; nothing was done.
        """
        submitted = Submitted(on_done, context, earlier)
        queue: Any = self._tx  # what `_execute` fills
        queue.put_nowait(
            (submitted, partial(run_submitted, submitted, self.run_in_place, self._conn, steps))
        )
        return submitted

    async def run(self, steps: Sequence[Step]) -> None:
        """`run_steps` in the connection's thread.

        Raises:
            FilesGone: it was done, but in files that nobody will find.
        """
        execute: Any = self._execute  # the base of all its methods
        await execute(self.run_in_place, self._conn, steps)

    def run_in_place(self, connection: sqlite3.Connection, steps: Sequence[Step]) -> None:
        """Do what `run` does, in the connection's thread."""
        run_steps(connection, steps)
        if self.place is not None and not connection.in_transaction:
            self.place.check()
