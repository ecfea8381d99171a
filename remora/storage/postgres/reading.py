"""The reader of a journal in PostgreSQL: queries over connections of their own."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import anyio
import asyncpg
import msgspec

from remora.errors import StorageError
from remora.storage.decoding import SEQ_MASK
from remora.storage.listing import (
    ListingPage,
    SessionListing,
    UserListing,
    prefix_end,
    session_listing,
    user_listing,
)
from remora.storage.postgres.connection import BROKEN, describe, is_broken
from remora.storage.postgres.schema import in_schema
from remora.storage.rows import SEQ_BITS
from remora.storage.sql.queries import load_queries
from remora.storage.sql.reading import JournalReader, Row

Read: TypeAlias = Callable[..., Awaitable[list[Row]]]
"""Runs one statement with its arguments by place, in a transaction of its own."""

_PARAMETER = re.compile(r"(?<!:):(\w+)")
_ITS_MESSAGES = f"m.pos BETWEEN s.sid << {SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {SEQ_MASK}"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 0.5
_PADDING = (None,) * 7  # a row of an actor has the columns of a summary and of a message at least


class _Statement(NamedTuple):
    """A query with parameters by place.

    Attributes:
        sql: the statement, with ``$1`` for the first parameter.
        parameters: their names in that order, and whether each is sent as JSON.
    """

    sql: str
    parameters: Sequence[tuple[str, bool]]


def _number_parameters(sql: str) -> _Statement:
    names = list(dict.fromkeys(_PARAMETER.findall(sql)))
    places = {name: f"${place}" for place, name in enumerate(names, start=1)}
    as_json = [(name, f":{name}::jsonb" in sql) for name in names]
    return _Statement(_PARAMETER.sub(lambda found: places[found[1]], sql), as_json)


QUERIES: Mapping[str, _Statement] = {
    name: _number_parameters(sql)
    for name, sql in load_queries(Path(__file__).with_name("queries.sql")).items()
}


class PostgresReader(JournalReader):
    """The reading half of `remora.storage.ports.Journal`, over a pool of connections.

    Args:
        pool: of connections; used by nothing else.
        schema: that has the tables.
        numbers: of the actors to come.
        reconnect_s: how long a query waits for PostgreSQL to come back.
    """

    def __init__(
        self, pool: asyncpg.Pool[Any], schema: str, *, numbers: Iterator[int], reconnect_s: float
    ) -> None:
        super().__init__(numbers=numbers)
        self._pool = pool
        self._schema = schema
        self._patience_s = reconnect_s

    async def query(self, name: str, /, **parameters: Any) -> list[Row]:
        sql, names = QUERIES[name]
        arguments = [
            msgspec.json.encode(parameters[one]).decode() if as_json else parameters[one]
            for one, as_json in names
        ]
        rows = await self._read(sql, *arguments)
        if name == "actors":  # a row of each kind has a record with columns of its own
            return [(kind, *record, *_PADDING[len(record) - 1 :]) for kind, record in rows]
        return rows

    async def list_sessions(self, user: str, page: ListingPage) -> Sequence[SessionListing]:
        return await list_sessions(self._read, user, page)

    async def list_users(self, page: ListingPage) -> Sequence[UserListing]:
        return await list_users(self._read, page)

    async def _read(self, sql: str, *arguments: Any) -> list[Row]:
        """The rows of a query; one whose connection broke is asked again.

        Raises:
            StorageError: PostgreSQL does not answer, or refuses.
        """
        deadline, wait = time.monotonic() + self._patience_s, _FIRST_WAIT_S
        while True:
            try:
                found = await self._pool.fetch(in_schema(sql, self._schema), *arguments)
                return [tuple(row) for row in found]
            except BROKEN as e:
                if not is_broken(e) or self._pool.is_closing() or time.monotonic() >= deadline:
                    raise StorageError(f"the journal cannot be read: {describe(e)}") from e
            await anyio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)


# -- the listings of users and sessions of a journal in PostgreSQL, page by page -------------------
#
# When a session was last used is when its newest message was created: one look into the index of
# messages for each session. A page of a user's sessions looks at all of that user's, and a page of
# users by use at all sessions.

_NEWEST = (
    f"LEFT JOIN LATERAL (SELECT m.at_us, m.pos & {SEQ_MASK} AS seq FROM remora.messages AS m "
    f"WHERE {_ITS_MESSAGES} ORDER BY m.pos DESC LIMIT 1) AS newest ON true"
)
_DIRECTIONS = {"name": (">", "ASC"), "newest": ("<", "DESC"), "oldest": (">", "ASC")}


async def list_sessions(read: Read, user: str, page: ListingPage) -> Sequence[SessionListing]:
    """A page of a user's sessions; see `Journal.list_sessions`."""
    arguments: list[Any] = [user]
    where = _named("s.session", page.prefix, arguments)
    behind, order = _place("name", page, arguments)
    rows = await read(
        # numbers have no gaps, so that nothing but the removed messages needs to be counted
        "SELECT name, messages, used FROM (SELECT s.session AS name, coalesce(newest.seq, 0) - "
        "s.trimmed - (SELECT count(*) FROM remora.messages AS m WHERE "
        f"{_ITS_MESSAGES} AND m.removed IS NOT NULL) AS messages, coalesce(newest.at_us, 0) AS "
        f"used FROM remora.actors AS s {_NEWEST} WHERE s.user = $1 AND s.session <> ''{where}) "
        f"AS found WHERE messages > {-1 if page.empty else 0}{behind} ORDER BY {order}"
        f"{_limit(page)}",
        *arguments,
    )
    return [session_listing(user, name, count, used, page.order) for name, count, used in rows]


async def list_users(read: Read, page: ListingPage) -> Sequence[UserListing]:
    """A page of all users; see `Journal.list_users`."""
    arguments: list[Any] = []
    where = _named("s.user", page.prefix, arguments)
    if page.order == "name":
        behind, order = _place("u.name", page, arguments)
        users = (
            f"SELECT u.name FROM (SELECT DISTINCT s.user AS name FROM remora.actors AS s WHERE "
            f"true{where}) AS u WHERE true{behind} ORDER BY {order}{_limit(page)}"
        )
        rows = await read(
            "SELECT u.name, count(*) FILTER (WHERE s.session <> ''), max(newest.at_us) FROM "
            f"({users}) AS u JOIN remora.actors AS s ON s.user = u.name {_NEWEST} "
            "GROUP BY u.name ORDER BY u.name",
            *arguments,
        )
    else:
        behind, order = _place("name", page, arguments)
        rows = await read(
            "SELECT name, sessions, used FROM (SELECT s.user AS name, count(*) FILTER (WHERE "
            "s.session <> '') AS sessions, coalesce(max(newest.at_us), 0) AS used FROM "
            f"remora.actors AS s {_NEWEST} WHERE true{where} GROUP BY s.user) AS found "
            f"WHERE true{behind} ORDER BY {order}{_limit(page)}",
            *arguments,
        )
    return [user_listing(name, count, used or 0, page.order) for name, count, used in rows]


def _named(column: str, prefix: str, arguments: list[Any]) -> str:
    """A condition for ids with a prefix; never shared scopes."""
    arguments.append(max(prefix, " "))
    condition = f" AND {column} >= ${len(arguments)}"
    if (end := prefix_end(prefix)) is not None:
        arguments.append(end)
        condition += f" AND {column} < ${len(arguments)}"
    return condition


def _place(name: str, page: ListingPage, arguments: list[Any]) -> tuple[str, str]:
    """A condition for what follows the page before, and the order."""
    than, direction = _DIRECTIONS[page.order]
    columns = [name] if page.order == "name" else ["used", name]
    order = ", ".join(f"{column} {direction}" for column in columns)
    if not page.after:
        return "", order
    if page.order == "name":
        arguments.append(page.after)
        return f" AND {name} {than} ${len(arguments)}", order
    arguments += [page.after_us, page.after]
    place = f"(${len(arguments) - 1}::bigint, ${len(arguments)}::text)"
    return f" AND (used, {name}) {than} {place}", order


def _limit(page: ListingPage) -> str:
    return "" if page.limit is None else f" LIMIT {int(page.limit)}"
