"""Lists that the server gives page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

_PAGE = 1_000


async def list_all(
    read: Callable[[int, str | None], Awaitable[list[Any]]], limit: int | None, after: str | None
) -> list[Any]:
    """All items behind the cursor `after`, at most `limit`.

    Args:
        read: gives at most so many items, behind a cursor; each has a `cursor` of its own.
        limit: how many at most; None for all.
        after: where they begin; None for the first one.
    """
    found: list[Any] = []
    while limit is None or len(found) < limit:
        size = _PAGE if limit is None else min(limit - len(found), _PAGE)
        page = await read(size, after)
        found += page
        if len(page) < size:
            break
        after = page[-1].cursor
    return found
