"""The journal's listings of users and sessions, page by page.

`actors.used_us` has when a session was last used, and is indexed; it is written a while after the
messages (`remora.storage.sqlite.uses`). A listing that does not rely on it looks at the newest
message of every session: some microseconds each. While a process has the journal open, it can say
of which sessions the last use is not written, and another one looks at their messages alone.
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
from remora.storage.rows import SEQ_BITS

_ITS_MESSAGES = f"m.pos BETWEEN s.sid << {SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {SEQ_MASK}"
LAST_USE = (
    f"coalesce((SELECT m.at_us FROM messages AS m WHERE {_ITS_MESSAGES} "
    "ORDER BY m.pos DESC LIMIT 1), 0)"
)
"""When the newest message of the session `s` was created: one look into the table of messages."""
_LAST_SEQ = (
    f"coalesce((SELECT m.pos & {SEQ_MASK} FROM messages AS m WHERE {_ITS_MESSAGES} "
    "ORDER BY m.pos DESC LIMIT 1), 0)"
)
COUNT_ALL = (
    "SELECT count(DISTINCT s.user), count(*) FILTER (WHERE s.session != ''), "
    f"coalesce(sum(max({_LAST_SEQ} - s.trimmed, 0)), 0) - (SELECT count(*) FROM messages AS m "
    "INDEXED BY messages_removed WHERE m.removed IS NOT NULL) FROM actors AS s"
)
"""Users, sessions and messages of a journal: one look into the table of messages a session."""
_UNWRITTEN = "(SELECT value FROM json_each(?))"
_THEIR_USERS = f"(SELECT h.user FROM actors AS h WHERE h.sid IN {_UNWRITTEN})"
_DIRECTIONS = {"name": (">", "ASC"), "newest": ("<", "DESC"), "oldest": (">", "ASC")}


def session_query(
    user: str,
    page: ListingPage,
    *,
    by_index: bool,
    unwritten: str | None = None,
) -> tuple[str, Sequence[Any]]:
    """The statement for a page of a user's sessions, and its parameters.

    Args:
        user: the user.
        page: what is wanted.
        by_index: order by `actors.used_us`, which must be written.
        unwritten: numbers of sessions, as a JSON array, whose `used_us` is not written: with
            `by_index`, the page has the others, otherwise these.
    """
    by_index = by_index and page.order != "name"
    use, by = ("s.used_us", " INDEXED BY actors_by_use") if by_index else (LAST_USE, "")
    # Numbers have no gaps, so that nothing but the removed messages needs to be counted.
    count = (
        f"{_LAST_SEQ} - s.trimmed - (SELECT count(*) FROM messages AS m "
        f"INDEXED BY messages_removed WHERE {_ITS_MESSAGES} AND m.removed IS NOT NULL)"
    )
    where, parameters = _range("s.session", page.prefix)
    if unwritten is not None:
        where += f" AND s.sid {'NOT ' if by_index else ''}IN {_UNWRITTEN}"
        parameters.append(unwritten)
    behind, order, more = _place("used", "session", page)
    sql = (
        f"SELECT session, messages, used FROM (SELECT s.session AS session, {count} AS messages, "
        f"{use} AS used FROM actors AS s{by} WHERE s.user = ? AND s.session != ''{where}) "
        f"WHERE messages > {-1 if page.empty else 0}{behind} ORDER BY {order} LIMIT ?"
    )
    return sql, (user, *parameters, *more, -1 if page.limit is None else page.limit)


def user_query(
    page: ListingPage, *, by_index: bool, unwritten: str | None = None
) -> tuple[str, Sequence[Any]]:
    """The statement for a page of users, and its parameters; see `session_query`.

    With `unwritten`, the page has the users of these sessions, or the others, in an order by use.
    """
    limit = -1 if page.limit is None else page.limit
    sessions = (
        "(SELECT count(*) FROM actors AS s WHERE s.user = u.name AND s.session != '') AS sessions"
    )
    of_user = "FROM actors AS s WHERE s.user = u.name AND s.session != ''"
    use = "s.used_us" if by_index else LAST_USE
    if page.order == "name":
        # One look into the index for each user: a user may have any number of sessions.
        begin, parameters = _range("s.user", page.prefix, behind=page.after)
        upper = prefix_end(page.prefix)
        stop = "" if upper is None else " AND s.user < ?"
        limits = () if upper is None else (upper,)
        sql = (
            "WITH RECURSIVE u (name, number) AS ("
            f"SELECT (SELECT min(s.user) FROM actors AS s WHERE 1{begin}), 1 UNION ALL "
            f"SELECT (SELECT min(s.user) FROM actors AS s WHERE s.user > u.name{stop}), "
            "number + 1 FROM u WHERE name IS NOT NULL AND (? < 0 OR number < ?)) "
            f"SELECT name, {sessions}, (SELECT max({use}) {of_user}) FROM u WHERE name IS NOT NULL"
        )
        return sql, (*parameters, *limits, limit, limit)
    where, parameters = _range("s.user", page.prefix)
    first: tuple[str, ...] = ()
    if unwritten is not None:
        where += f" AND s.user {'NOT ' if by_index else ''}IN {_THEIR_USERS}"
        parameters.append(unwritten)
        if not by_index:
            use = f"CASE WHEN s.sid IN {_UNWRITTEN} THEN {LAST_USE} ELSE s.used_us END"
            first = (unwritten,)
    behind, order, more = _place("used", "name", page)
    if by_index:
        later = "o.used_us > s.used_us OR o.sid > s.sid"
        found = (
            "SELECT s.user AS name, s.used_us AS used FROM actors AS s "
            f"INDEXED BY actors_by_any_use WHERE 1{where} AND NOT EXISTS (SELECT 1 FROM actors "
            f"AS o WHERE o.user = s.user AND o.used_us >= s.used_us AND ({later}))"
        )
    else:
        found = (
            f"SELECT s.user AS name, max({use}) AS used FROM actors AS s "
            f"WHERE 1{where} GROUP BY s.user"
        )
    sql = (
        f"SELECT name, {sessions}, used FROM ({found}) AS u WHERE 1{behind} "
        f"ORDER BY {order} LIMIT ?"
    )
    return sql, (*first, *parameters, *more, limit)


def _range(column: str, prefix: str, behind: str = "") -> tuple[str, list[str]]:
    """A condition for ids with a prefix, behind one of them; never shared scopes."""
    conditions, parameters = [f"{column} >= ?"], [max(prefix, " ")]
    if behind:
        conditions.append(f"{column} > ?")
        parameters.append(behind)
    if (end := prefix_end(prefix)) is not None:
        conditions.append(f"{column} < ?")
        parameters.append(end)
    return "".join(f" AND {one}" for one in conditions), parameters


def _place(use: str, name: str, page: ListingPage) -> tuple[str, str, tuple[Any, ...]]:
    """A condition for what follows the page before, the order, and the condition's parameters."""
    than, direction = _DIRECTIONS[page.order]
    columns = [name] if page.order == "name" else [use, name]
    order = ", ".join(f"{column} {direction}" for column in columns)
    if not page.after:
        return "", order, ()
    if page.order == "name":
        return f" AND {name} {than} ?", order, (page.after,)
    return f" AND ({use}, {name}) {than} (?, ?)", order, (page.after_us, page.after)


def read_session_rows(
    rows: Sequence[Sequence[Any]], user: str, page: ListingPage
) -> list[SessionListing]:
    """The listings in what `session_query` finds."""
    return [
        session_listing(user, session, messages, used, page.order)
        for session, messages, used in rows
    ]


def read_user_rows(rows: Sequence[Sequence[Any]], page: ListingPage) -> list[UserListing]:
    """The listings in what `user_query` finds."""
    return [user_listing(name, count, used or 0, page.order) for name, count, used in rows]
