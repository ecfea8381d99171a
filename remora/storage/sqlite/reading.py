"""The journal's reader: queries over a connection of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from remora.errors import RuntimeClosed, StorageError
from remora.runtime.concurrency import run_in_thread_if
from remora.storage.listing import ListingPage, SessionListing, UserListing
from remora.storage.sql.queries import load_queries
from remora.storage.sql.reading import JournalReader, Row
from remora.storage.sqlite.listing import (
    read_session_rows,
    read_user_rows,
    session_query,
    user_query,
)

QUERIES = load_queries(Path(__file__).with_name("queries.sql"))
_IN_THREAD = 500  # listings from which on making them is a thread's work


Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Statements(Protocol):
    """A connection's statements, as aiosqlite has them."""

    text_factory: Any

    def execute(self, sql: str, parameters: Parameters = ..., /) -> Awaitable[Any]:
        """Run a statement; its cursor."""
        ...

    def executemany(self, sql: str, parameters: Iterable[Parameters], /) -> Awaitable[Any]:
        """Run a statement once for each; its cursor."""
        ...

    def execute_fetchall(
        self, sql: str, parameters: Parameters = ..., /
    ) -> Awaitable[Iterable[Any]]:
        """Run a query; its rows."""
        ...


class SqliteReader(JournalReader):
    """The reading half of `remora.storage.ports.Journal`, over one connection.

    Args:
        reader: the connection; used by nothing else.
        numbers: of the actors to come.
    """

    def __init__(self, reader: Statements, *, numbers: Iterator[int]) -> None:
        super().__init__(numbers=numbers)
        # Text that is not UTF-8 is damage of one row, and must not fail a query over others.
        reader.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        self._reader = reader

    async def query(self, name: str, /, **parameters: Any) -> list[Row]:
        return await self._read(QUERIES[name], bind(parameters))

    async def list_sessions(self, user: str, page: ListingPage) -> Sequence[SessionListing]:
        indexed = page.order != "name" and await self._uses_are_indexed("WHERE user = ?", user)
        rows = await self._read(*session_query(user, page, by_index=indexed))
        large = len(rows) > _IN_THREAD
        return await run_in_thread_if(large, read_session_rows, rows, user, page)

    async def list_users(self, page: ListingPage) -> Sequence[UserListing]:
        rows = await self._read(*user_query(page, by_index=await self._uses_are_indexed("")))
        return await run_in_thread_if(len(rows) > _IN_THREAD, read_user_rows, rows, page)

    async def _uses_are_indexed(self, where: str, *parameters: str) -> bool:  # noqa: ARG002
        """Return whether `actors.used_us` of these actors can be relied on."""
        return False

    async def _read(self, sql: str, parameters: Parameters = ()) -> list[Any]:
        try:
            return list(await self._reader.execute_fetchall(sql, parameters))
        except (sqlite3.Error, UnicodeDecodeError) as e:  # what SQLite says of damage may quote it
            raise StorageError(f"the journal cannot be read: {e}") from e
        except ValueError as e:
            if type(e) is not ValueError:
                raise
            raise RuntimeClosed("the journal is closed") from e  # aiosqlite says it so


def bind(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a query as SQLite takes them: a list is a JSON array."""
    return {
        name: msgspec.json.encode(value).decode() if isinstance(value, list) else value
        for name, value in parameters.items()
    }
