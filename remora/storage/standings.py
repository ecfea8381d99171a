"""Extracted facts as they stand: what they still rest on, and which newer fact took their place.

Nothing of this is stored. A fact stands as long as one of its messages is there, and the newest
fact of a topic holds, by when its last message was said. So deleting messages, forgetting a session
or importing an older one leaves the right fact in place, in whatever order things happen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

import msgspec

from remora.runtime.concurrency import run_in_thread_if
from remora.storage.journal_port import Journal
from remora.storage.records import MemoryItem

_IN_THREAD = 500  # facts from which on comparing them is a thread's work


class FactStanding(msgspec.Struct, frozen=True):
    """How a fact stands.

    Attributes:
        sources: the messages of its session that it still rests on.
        superseded_by: the id of the next newer fact of its topic; empty if it holds.
    """

    sources: tuple[int, ...]
    superseded_by: str


async def find_standings(
    journal: Journal, user: str, items: Sequence[MemoryItem]
) -> Mapping[str, FactStanding]:
    """How the extracted facts among these memories stand, by id.

    Facts whose messages were all deleted or rewound are left out: a job removes them.

    Raises:
        StorageError: the journal cannot be read.
    """
    topics = {item.topic for item in items if item.topic}
    if not topics:
        return {}
    related = await journal.facts(user, topics=topics)
    places = {(item.session, seq) for item in related for seq in item.sources}
    removed = await journal.removed_messages(user, places) if places else ()
    return await run_in_thread_if(len(related) >= _IN_THREAD, _standings, related, removed)


def _standings(
    related: Sequence[MemoryItem], removed: Collection[tuple[str, int]]
) -> dict[str, FactStanding]:
    """How these facts stand: all those of their topics."""
    left = {
        item.id: tuple(seq for seq in item.sources if (item.session, seq) not in removed)
        for item in related
    }
    # An imported fact has no source if its messages were not exported.
    standing = [item for item in related if left[item.id] or not item.sources]
    standing.sort(key=lambda item: (item.topic, _order(item), item.id))
    found = {}
    for _, group in groupby(standing, lambda item: item.topic):
        facts = list(group)
        for place, item in enumerate(facts):
            # facts of one message agree with each other
            newer = (one.id for one in facts[place:] if _order(one) > _order(item))
            found[item.id] = FactStanding(left[item.id], next(newer, ""))
    return found


def holds(item: MemoryItem, standings: Mapping[str, FactStanding]) -> bool:
    """Return whether a memory is still true as far as is known, by `find_standings`."""
    if not item.topic:
        return True
    standing = standings.get(item.id)
    return standing is not None and not standing.superseded_by


def _order(item: MemoryItem) -> tuple[int, int]:
    return item.created_us, item.sources[-1] if item.sources else 0
