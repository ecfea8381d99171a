"""The listings of users and sessions of a journal in PostgreSQL, page by page.

When a session was last used is when its newest message was created: one look into the index of
messages for each session. A page of a user's sessions looks at all of that user's, and a page of
users by use at all sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remora.storage.decoding import SEQ_MASK
from remora.storage.listing import (
    ListingPage,
    SessionListing,
    UserListing,
    prefix_end,
    session_listing,
    user_listing,
)
from remora.storage.postgres.restore import Query
from remora.storage.rows import SEQ_BITS

__all__ = ["list_sessions", "list_users"]

_ITS_MESSAGES = f"m.pos BETWEEN s.sid << {SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {SEQ_MASK}"
_NEWEST = (
    f"LEFT JOIN LATERAL (SELECT m.at_us, m.pos & {SEQ_MASK} AS seq FROM remora.messages AS m "
    f"WHERE {_ITS_MESSAGES} ORDER BY m.pos DESC LIMIT 1) AS newest ON true"
)
_DIRECTIONS = {"name": (">", "ASC"), "newest": ("<", "DESC"), "oldest": (">", "ASC")}


async def list_sessions(read: Query, user: str, page: ListingPage) -> Sequence[SessionListing]:
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


async def list_users(read: Query, page: ListingPage) -> Sequence[UserListing]:
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
