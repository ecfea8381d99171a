"""Recorded memories as the journal has them: an index may still have what was changed or deleted.

A change is in the journal when it is acknowledged, and in long-term memory after a job. So a row of
a recorded memory is only a hint: the journal says whether the memory is still there, whether the
row has its text of now, and its metadata. Of messages it has the ids; their rows change in time. A
fact that was extracted is there as long as one of its messages is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias

import msgspec

from remora.ids import SessionKey, memory_of_row, row_id
from remora.recall.memory import Memory
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.probes import probe
from remora.storage.ports import BLOCK_TYPE, Journal
from remora.storage.records import MemoryItem
from remora.storage.standings import FactStanding, find_standings, holds

FindWithdrawn: TypeAlias = Callable[[str], Awaitable[Mapping[tuple[str, int], str]]]
"""From a user to messages, by session and number, and the id of what took each back."""

_NOT_RECORDED = frozenset({"message", "summary", BLOCK_TYPE})
_IN_THREAD = 500  # memories from which on comparing them is a thread's work
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_recorded(memory_type: str) -> bool:
    """Return whether rows of this type are of recorded memories."""
    return memory_type not in _NOT_RECORDED


class CurrentMemories:
    """Compares what was found with the journal.

    Args:
        journal: has the memories.
        withdrawn: finds a user's messages whose instructions hold no more; None to look for none.
    """

    def __init__(self, journal: Journal, withdrawn: FindWithdrawn | None = None) -> None:
        self._journal = journal
        self._withdrawn = withdrawn

    async def __call__(
        self,
        user: str,
        found: Iterable[Memory],
        *,
        history: bool = False,
        without: Collection[tuple[str, int]] = (),
        as_found: bool = False,
    ) -> list[Memory]:
        """The memories that are there, in their order, each as it is now.

        Args:
            user: the user.
            found: what was found.
            history: facts that newer ones took the place of are left in.
            without: messages, by session and number: facts that rest on them alone are left out.
            as_found: return them as they were found.

        Raises:
            StorageError: the journal cannot be read.
        """
        found = list(found)
        if not as_found:
            found = await self._name_messages(user, found)
            found = await self._mark_withdrawn(user, found)
        large = len(found) >= _IN_THREAD
        ids = await run_in_thread_if(large, _recorded_ids, found)
        if not ids:
            return found
        stored = await self._journal.memories(user, ids)
        standings = await find_standings(self._journal, user, stored)
        compare = partial(_compare, history=history, without=without, as_found=as_found)
        return await run_in_thread_if(large, compare, found, stored, standings)

    async def _name_messages(self, user: str, found: list[Memory]) -> list[Memory]:
        """The memories, those that are messages with the messages' ids."""
        places = [(one.session, one.seq) for one in found if one.type == "message"]
        if not places:
            return found
        ids = await self._journal.message_ids(user, places)

        def name() -> list[Memory]:
            return [
                msgspec.structs.replace(one, id=ids.get((one.session, one.seq), one.id))
                if one.type == "message"
                else one
                for one in found
            ]

        return await run_in_thread_if(len(found) >= _IN_THREAD, name)

    async def _mark_withdrawn(self, user: str, found: list[Memory]) -> list[Memory]:
        """The memories; messages that ask for what holds no more say what took it back."""
        if self._withdrawn is None or not any(one.role == "user" for one in found):
            return found
        takers = await self._withdrawn(user)
        if not takers:
            return found
        probe("withdrawn_message_marked")
        return [
            msgspec.structs.replace(one, superseded_by=takers[one.session, one.seq])
            if one.type == "message" and (one.session, one.seq) in takers
            else one
            for one in found
        ]

    async def row_ids(self, user: str, rows: Sequence[str]) -> frozenset[str]:
        """Return the ids of the recorded memories in `rows` whose text is current."""
        items = await self._journal.memories(user, [memory_of_row(row) for row in rows])
        standings = await find_standings(self._journal, user, items)
        return frozenset(item.row_id for item in items if holds(item, standings))


def rows_of(user: str, memories: Iterable[Memory]) -> tuple[str, ...]:
    """The ids of the rows that memories were found in."""
    return tuple(
        [
            row_id(SessionKey(user, one.session), one.seq) if one.type == "message" else one.id
            for one in memories
        ]
    )


def _recorded_ids(found: Iterable[Memory]) -> list[str]:
    return [memory_of_row(one.id) for one in found if is_recorded(one.type)]


def _compare(
    found: Iterable[Memory],
    stored: Iterable[MemoryItem],
    standings: Mapping[str, FactStanding],
    *,
    history: bool,
    without: Collection[tuple[str, int]],
    as_found: bool,
) -> list[Memory]:
    """Return what was found and is still there, by what the journal has of it."""
    items = {item.row_id: item for item in stored}
    current: list[Memory] = []
    for one in found:
        if not is_recorded(one.type):
            current.append(one)
        elif (item := items.get(one.id)) is not None:
            standing = standings.get(item.id)
            if item.topic and not (holds(item, standings) or (history and standing)):
                probe("fact_left_out")
                continue
            memory = recorded_memory(item, one, standing)
            shown = bool(memory.sources) and all(
                (memory.session, seq) in without for seq in memory.sources
            )
            if not shown:
                current.append(one if as_found else memory)
    return current


_PLAIN = Memory("", "system", "", "", 0, _EPOCH, 0.0, {}, 0)


def recorded_memory(
    item: MemoryItem, found: Memory = _PLAIN, standing: FactStanding | None = None
) -> Memory:
    """A recorded memory as callers get it; with the score of what was found of it."""
    return msgspec.structs.replace(
        found,
        text=found.text or item.content,
        session=item.session,
        created_at=_EPOCH + timedelta(microseconds=item.created_us),
        tokens=item.tokens,
        id=item.id,
        type=item.type,
        importance=item.importance,
        agent=item.agent,
        key=item.key,
        metadata=msgspec.json.decode(item.metadata) if item.metadata else {},
        updated_at=_EPOCH + timedelta(microseconds=item.updated_us) if item.updated_us else None,
        sources=standing.sources if standing is not None else (),
        superseded_by=standing.superseded_by if standing is not None else "",
    )
