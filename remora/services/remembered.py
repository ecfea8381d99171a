"""Recorded memories of the journal: one by one, by page, and those that a filter selects."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

import msgspec

from remora.errors import InvalidInput
from remora.recall.current import recorded_memory
from remora.recall.memory import Memory
from remora.runtime.concurrency import run_in_thread_if
from remora.services.metadata import MetadataFilter
from remora.storage.ports import Journal, Scope
from remora.storage.records import INSTRUCTION, MemoryItem
from remora.storage.standings import find_standings, is_trace

_CHUNK = 500  # memories that are read at once
_IN_THREAD = 50  # memories from which on reading their metadata is a thread's work
_CURSOR = re.compile(r"(-?\d{1,18})/([0-9a-f]{32})")


class MemoryPage(msgspec.Struct, frozen=True):
    """Which recorded memories are wanted.

    Attributes:
        scope: their session, agent and types.
        where: what their metadata says.
        after: creation and id of the last one of the page before.
        limit: how many at most; None for all.
    """

    scope: Scope
    where: MetadataFilter
    after: tuple[int, str] | None = None
    limit: int | None = None


def parse_cursor(cursor: str | None) -> tuple[int, str] | None:
    """Creation and id in a cursor.

    Raises:
        InvalidInput: it is none.
    """
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None:
        raise InvalidInput(f"after must be the cursor of a memory, not {cursor!r:.80}")
    return int(found[1]), found[2]


class Remembered:
    """Reads recorded memories.

    Args:
        journal: has them.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def memory(self, user: str, id_: str, agent: str | None) -> Memory | None:
        """One memory; None if there is none, or it is another agent's."""
        for item in await self._journal.memories(user, [id_]):
            if agent in {None, item.agent} and not is_trace(item):
                return next(iter(await self._memories(user, [item])), None)
        return None

    async def page(self, user: str, page: MemoryPage) -> list[Memory]:
        """The memories of a page, oldest first."""
        found: list[Memory] = []
        async for chunk in self._matching(user, page):
            found += await self._memories(user, chunk)
            if page.limit is not None and len(found) >= page.limit:
                return found[: page.limit]
        return found

    async def _memories(self, user: str, items: Sequence[MemoryItem]) -> list[Memory]:
        """These memories as they stand, without facts whose messages are gone."""
        standings = await find_standings(self._journal, user, items)
        return [
            recorded_memory(item, standing=standings.get(item.id))
            for item in items
            if not item.topic or item.id in standings
        ]

    async def row_ids(self, user: str, page: MemoryPage) -> tuple[str, ...]:
        """Ids of the rows in long-term memory of what matches."""
        return tuple([item.row_id async for some in self._matching(user, page) for item in some])

    async def _matching(self, user: str, page: MemoryPage) -> AsyncIterator[Sequence[MemoryItem]]:
        after = page.after
        while True:
            items = await self._journal.list_memories(user, after=after, limit=_CHUNK)
            many = bool(page.where.conditions) and len(items) > _IN_THREAD
            yield await run_in_thread_if(many, _select, items, page)
            if len(items) < _CHUNK:
                return
            after = items[-1].created_us, items[-1].id


def _select(items: Sequence[MemoryItem], page: MemoryPage) -> list[MemoryItem]:
    scope = page.scope
    return [
        item
        for item in items
        if scope.session in {None, item.session}
        and scope.agent in {None, item.agent}
        and (item.type in scope.types if scope.types else item.type != INSTRUCTION)
        and not is_trace(item)
        and page.where.matches(item.metadata)
    ]
