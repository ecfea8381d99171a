"""Extracted facts as they stand: what they still rest on, and which newer fact took their place.

Nothing of this is stored. A fact stands as long as one of its messages is there, and the newest
fact of a topic holds, by when its last message was said. So deleting messages, forgetting a session
or importing an older one leaves the right fact in place, in whatever order things happen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

import msgspec

from remora.ids import fact_id, topic_of_fact
from remora.languages.instructions import Noticed, find_takers
from remora.runtime.concurrency import run_in_thread_if
from remora.storage.journal_port import Journal
from remora.storage.records import INSTRUCTION, MemoryItem

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


# -- standing instructions -------------------------------------------------------------------------

WITHDRAWS = "withdraws"
"""The key in the metadata of what takes instructions back; see `Noticed.withdraws`."""

_COMPARED_AT_ONCE = 4
MOST_INSTRUCTIONS = 128
"""Of a user, the newest, that are looked at; a context of 30,000 tokens has room for some 70."""


class InstructionStanding(msgspec.Struct, frozen=True):
    """How an instruction stands.

    Attributes:
        item: the instruction.
        withdrawn_by: the id of what took it back, or of the newer one that took its place; empty if
            it holds.
    """

    item: MemoryItem
    withdrawn_by: str


async def find_instructions_standing(journal: Journal, user: str) -> list[InstructionStanding]:
    """The user's newest instructions, and what takes others back, newest first.

    Those whose messages were deleted are left out.

    Raises:
        StorageError: the journal cannot be read.
    """
    found = await journal.instructions(user, limit=MOST_INSTRUCTIONS)
    places = {(item.session, seq) for item in found for seq in item.sources}
    removed = await journal.removed_messages(user, places) if places else ()
    there = [
        item
        for item in found
        if not item.sources or any((item.session, seq) not in removed for seq in item.sources)
    ]
    there.sort(key=_order, reverse=True)
    noticed = [as_noticed(item) for item in there]
    several = sum(bool(one.withdraws) for one in noticed) > _COMPARED_AT_ONCE
    takers = await run_in_thread_if(several, find_takers, noticed)
    return [
        InstructionStanding(item, "" if taker is None else there[taker].id)
        for item, taker in zip(there, takers, strict=True)
    ]


def as_noticed(item: MemoryItem) -> Noticed:
    """An instruction of the journal as `find_takers` takes it."""
    withdraws = None
    if WITHDRAWS in item.metadata:
        named = msgspec.json.decode(item.metadata).get(WITHDRAWS)
        withdraws = named if isinstance(named, str) else None
    source = (item.session, item.sources)
    return Noticed(topic_of_fact(item.id), item.content, source, withdraws)


def is_trace(item: MemoryItem) -> bool:
    """Return whether a memory is what is left of a deleted instruction: nothing shows it."""
    return item.type == INSTRUCTION and as_noticed(item).withdraws == ""


def trace_of(item: MemoryItem, user: str, at_us: int) -> MemoryItem:
    """The trace of an instruction that its user deletes: its message, too, holds no more.

    Args:
        item: the instruction.
        user: whose it is.
        at_us: when it is deleted, in microseconds since the epoch.
    """
    topic, seq = topic_of_fact(item.id), item.sources[-1]
    return msgspec.structs.replace(
        item,
        id=fact_id(topic, user, item.session, seq, f"{WITHDRAWS} {item.id}"),
        content=WITHDRAWS,
        created_us=max(at_us, item.created_us + 1),
        tokens=1,
        metadata=msgspec.json.encode({WITHDRAWS: ""}).decode(),
        revision=0,
        updated_us=0,
        topic=topic,
    )


def _order(item: MemoryItem) -> tuple[int, int]:
    return item.created_us, item.sources[-1] if item.sources else 0
