"""Listings of users and of sessions, page by page.

A page begins behind a cursor, which names the last one of the page before: not its position. So
pages stay right while others are added, used or forgotten between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from heapq import nlargest, nsmallest
from typing import Literal, TypeAlias, TypeVar

import msgspec

from remora.errors import InvalidInput
from remora.ids import MAX_ID_BYTES, SessionKey

ListingOrder: TypeAlias = Literal["name", "newest", "oldest"]

_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_BY_USE = re.compile(r"(-?\d{1,18})/(.+)", re.DOTALL)
_MAX_CURSOR = MAX_ID_BYTES + 20
Listing = TypeVar("Listing")


class SessionListing(msgspec.Struct, frozen=True):
    """One session in a listing.

    Attributes:
        key: its user and its id.
        messages: how many it has; deleted ones, and originals that are not kept, do not count.
        last_at: when its newest message was created, aware UTC, also if that was deleted since.
        cursor: give it as `after` to have the sessions that follow this one.
    """

    key: SessionKey
    messages: int
    last_at: datetime
    cursor: str = ""

    @property
    def user(self) -> str:
        """The user's id."""
        return self.key.user

    @property
    def session(self) -> str:
        """The session's id."""
        return self.key.session


class UserListing(msgspec.Struct, frozen=True):
    """One user in a listing.

    Attributes:
        user: the id.
        sessions: how many sessions the user has.
        last_at: when the newest message in any of them was created, aware UTC; None without any.
        cursor: give it as `after` to have the users that follow this one.
    """

    user: str
    sessions: int
    last_at: datetime | None
    cursor: str = ""


class ListingPage(msgspec.Struct, frozen=True):
    """Which part of a listing is wanted.

    Attributes:
        order: ``name``; ``newest``: the one used last comes first; ``oldest``: it comes last.
        prefix: what ids begin with.
        limit: how many at most; None for all.
        after: id of the last one of the page before; empty for the first page.
        after_us: when that one was last used; 0 in the order ``name``.
        empty: sessions without a message, which have state, are wanted as well.
    """

    order: ListingOrder = "oldest"
    prefix: str = ""
    limit: int | None = None
    after: str = ""
    after_us: int = 0
    empty: bool = False

    @classmethod
    def behind(
        cls, cursor: str | None, *, order: ListingOrder, prefix: str, limit: int | None
    ) -> ListingPage:
        """The page behind a cursor; None for the first page.

        Raises:
            InvalidInput: it is no cursor of a listing in this order.
        """
        if cursor is None:
            return cls(order, prefix, limit)
        if order == "name":
            return cls(order, prefix, limit, cursor)
        found = _BY_USE.fullmatch(cursor) if len(cursor) <= _MAX_CURSOR else None
        if found is None:
            raise InvalidInput(
                f"after must be the cursor of a listing in the order {order!r}, not {cursor!r:.80}"
            )
        return cls(order, prefix, limit, found[2], int(found[1]))


def session_listing(
    user: str, session: str, messages: int, used_us: int, order: ListingOrder
) -> SessionListing:
    """A session of a listing in this order; when it was last used in microseconds."""
    at = _BEGIN + used_us * _US
    return SessionListing(SessionKey(user, session), messages, at, _cursor(order, session, used_us))


def user_listing(user: str, sessions: int, used_us: int, order: ListingOrder) -> UserListing:
    """A user of a listing in this order; 0 for a user without messages."""
    at = _BEGIN + used_us * _US if used_us else None
    return UserListing(user, sessions, at, _cursor(order, user, used_us))


def _cursor(order: ListingOrder, name: str, used_us: int) -> str:
    return name if order == "name" else f"{used_us}/{name}"


def prefix_end(prefix: str) -> str | None:
    """The first text behind all that begin with `prefix`; None if nothing is."""
    while prefix:
        code = ord(prefix[-1]) + 1
        if code in _SURROGATES:
            code = _SURROGATES.stop
        if code <= _LAST_CODE_POINT:
            return prefix[:-1] + chr(code)
        prefix = prefix[:-1]
    return None


def first_page(
    rows: Iterable[Listing], page: ListingPage, place: Callable[[Listing], tuple[int, str]]
) -> list[Listing]:
    """The page's part of rows that are all in memory.

    Args:
        rows: all of them, in any order.
        page: what is wanted.
        place: when one was last used, in microseconds, and its id.
    """

    def key(row: Listing) -> tuple[int, str]:
        used, name = place(row)
        return (0, name) if page.order == "name" else (used, name)

    begin = (page.after_us, page.after)
    newest = page.order == "newest"

    def follows(row: Listing) -> bool:
        return not page.after or (key(row) < begin if newest else key(row) > begin)

    wanted = [row for row in rows if place(row)[1].startswith(page.prefix) and follows(row)]
    if page.limit is None:
        return sorted(wanted, key=key, reverse=newest)
    return (nlargest if newest else nsmallest)(page.limit, wanted, key=key)


def merge_users(listings: Sequence[Sequence[UserListing]], page: ListingPage) -> list[UserListing]:
    """The page of the whole memory's users.

    Args:
        listings: the same page of each shard. A cursor names a user, and not a place in a shard: so
            it is right for all of them.
        page: what was asked for.
    """

    def place(one: UserListing) -> tuple[int, str]:
        return (0 if one.last_at is None else (one.last_at - _BEGIN) // _US, one.user)

    rows = [row for listing in listings for row in listing]
    return first_page(rows, ListingPage(page.order, limit=page.limit), place)
