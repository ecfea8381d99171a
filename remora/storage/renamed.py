"""Ports of an application that still have earlier method names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection
from typing import Any, TypeVar, cast

import anyio

from remora.ids import SHARED_PREFIX, SessionKey
from remora.storage.listing import (
    ListingPage,
    SessionListing,
    UserListing,
    first_page,
    session_listing,
    user_listing,
)
from remora.storage.long_term_port import BLOCK_TYPE
from remora.storage.lookups import select_facts
from remora.storage.records import MemoryItem

__all__ = ["with_current_names"]

Port = TypeVar("Port")

_RENAMED = {
    "buffer_start": "past",
    "change_settings": "change",
    "finish_erasure": "erased",
    "indexed_through": "flushed",
    "init_setting": "setting",
    "pruned_seqs": "pruned",
    "sessions_to_flush": "unflushed",
    "state_items": "facets",
    "summary_figures": "folds",
}
"""Methods of `Journal`, and what they were called."""


_ADDED = (
    "check_lease",
    "facts",
    "list_memories",
    "list_sessions",
    "list_users",
    "message_ids",
    "removed_messages",
    "session_indexed_through",
    "sessions_of",
    "unindexed",
    "user_jobs",
    "wait_until_lost",
)
"""Methods of `Journal` that earlier ones do not have."""

_COUNTED = ("epoch", "commit_number")
"""Numbers of `Journal` that earlier ones do not have."""


class _Renamed:
    """Passes calls on, under the old names where the port has them."""

    def __init__(self, port: Any, names: dict[str, str], *, doubtful: bool) -> None:
        self._port = port
        self._names = names
        self._doubtful = doubtful

    def __getattr__(self, name: str) -> Any:
        if name == "add" and self._doubtful:
            return self._add
        if name in _COUNTED and not hasattr(self._port, name):
            return 0
        if name == "count" and not hasattr(self._port, name):
            return self._count
        if name in _ADDED and not hasattr(self._port, name):
            return getattr(self, f"_{name}")
        return getattr(self._port, self._names.get(name, name))

    async def _unindexed(self, *_: Any) -> tuple[()]:
        return ()  # recall finds what is indexed

    async def _facts(
        self, user: str, *, session: str | None = None, topics: Collection[str] | None = None
    ) -> list[MemoryItem]:
        return select_facts(await self._port.memories(user), session, topics)

    async def _removed_messages(self, *_: Any) -> tuple[()]:
        return ()

    async def _message_ids(self, *_: Any) -> dict[tuple[str, int], str]:
        return {}

    async def _sessions_of(self, *_: Any) -> tuple[()]:
        return ()

    async def _user_jobs(self, *_: Any) -> tuple[()]:
        return ()

    def _check_lease(self) -> None: ...

    async def _wait_until_lost(self) -> None:
        await anyio.sleep_forever()

    async def _session_indexed_through(self, key: SessionKey) -> int:
        return int(dict(await self.indexed_through()).get(key, 0))

    async def _list_memories(
        self, user: str, *, after: tuple[int, str] | None, limit: int
    ) -> list[MemoryItem]:
        places = [((one.created_us, one.id), one) for one in await self._port.memories(user)]
        places.sort(key=lambda place: place[0])
        return [one for place, one in places if after is None or place > after][:limit]

    async def _list_sessions(self, user: str, page: ListingPage) -> list[SessionListing]:
        found = [
            (one.key.session, one.messages, one.last_at_us)
            for one in await self._port.sessions(user)
        ]
        wanted = first_page(found, page, lambda one: (one[2], one[0]))
        return [session_listing(user, *one, page.order) for one in wanted]

    async def _list_users(self, page: ListingPage) -> list[UserListing]:
        found = []
        for user in {key.user for key, _ in await self.indexed_through()}:
            if not user.startswith(SHARED_PREFIX):
                times = [one.last_at_us for one in await self._port.sessions(user)]
                found.append((user, len(times), max(times, default=0)))
        wanted = first_page(found, page, lambda one: (one[2], one[0]))
        return [user_listing(*one, page.order) for one in wanted]

    async def _count(self, user: str) -> int:
        return sum(row.memory_type != BLOCK_TYPE for row in await self._port.rows(user))

    async def _add(self, rows: Any, vectors: Any, *, may_exist: bool) -> None:
        await self._port.add(rows, vectors, doubtful=may_exist)


def with_current_names(port: Port) -> Port:
    """The `Journal` or `LongTermStore` itself, or a stand-in for one that has old names."""
    names = {
        name: old
        for name, old in _RENAMED.items()
        if hasattr(port, old) and (old != "setting" or not hasattr(port, name))
    }
    add = getattr(port, "add", None)
    doubtful = add is not None and "doubtful" in inspect.signature(add).parameters
    incomplete = hasattr(port, "indexed_through") and any(
        not hasattr(port, name) for name in (*_ADDED, *_COUNTED)
    )
    incomplete = incomplete or (add is not None and not hasattr(port, "count"))
    if not names and not doubtful:
        if not incomplete:
            return port
        return cast("Port", _Renamed(port, names, doubtful=doubtful))
    old = [*names.values(), *(["add(doubtful=)"] if doubtful else [])]
    warnings.warn(
        f"{type(port).__name__} has old names of methods: {', '.join(old)}; see "
        "docs/reference/storage-ports.md",
        DeprecationWarning,
        stacklevel=2,
    )
    return cast("Port", _Renamed(port, names, doubtful=doubtful))
