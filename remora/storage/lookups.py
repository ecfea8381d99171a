"""Lookups in a session's past, and their answers; and its buffer at an earlier message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

import msgspec

from remora.errors import InvalidInput, JournalDamaged
from remora.ids import SessionKey, message_id, message_number, topic_of_fact
from remora.messages import Entry, leading_instructions
from remora.storage.pending import NEIGHBOURS
from remora.storage.records import (
    ENTRY_KIND,
    INSTRUCTION,
    EntryFlushSpec,
    MemoryItem,
    StateItem,
    StoredMessage,
    Summary,
)

__all__ = [
    "RAREST",
    "Answer",
    "BufferStart",
    "EarlierBuffer",
    "Erasable",
    "ErasableLookup",
    "IdLookup",
    "KeyLookup",
    "KeyedAppend",
    "MemoryLookup",
    "OriginalAppend",
    "PastLookup",
    "PinnedLookup",
    "SessionPart",
    "TurnLookup",
    "entry_ranges",
    "ids_by_place",
    "messages_by_id",
    "newest_instructions",
    "numbered_ids",
    "select_facts",
]

_MOST_OF_TOPIC = 3  # that `Journal.instructions` returns

RAREST = 1_000_000
"""What a word of one message counts in `Journal.find_unindexed`; of n messages, the n-th part."""

_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode


class KeyLookup(msgspec.Struct, frozen=True):
    """Was there an append under this key?"""

    digest: bytes


class IdLookup(msgspec.Struct, frozen=True):
    """Which messages after `after` have these ids? Answered by a dict to `StoredMessage`s."""

    ids: tuple[str, ...]
    after: int


class ErasableLookup(msgspec.Struct, frozen=True):
    """Which messages have these ids or numbers, and can be erased? Answered by an `Erasable`."""

    ids: tuple[str, ...]
    seqs: tuple[int, ...]


class Erasable(msgspec.Struct, frozen=True):
    """Messages, removed ones included, whose content is still in the journal.

    Attributes:
        messages: by number.
        entries: the ranges of the session's summary entries that are in long-term memory.
    """

    messages: tuple[StoredMessage, ...]
    entries: tuple[tuple[int, int], ...]


class MemoryLookup(msgspec.Struct, frozen=True):
    """Which of these memories does the user have? Answered by a dict from id to `MemoryItem`."""

    ids: tuple[str, ...]


class PastLookup(msgspec.Struct, frozen=True):
    """Ask for an `EarlierBuffer`: the buffer when message `at` was its newest."""

    at: int


class PinnedLookup(msgspec.Struct, frozen=True):
    """Which messages right behind `after`, up to `through`, instruct a model?

    Answered by a tuple of `Entry`: the first messages of the session, as far as their roles are
    system or developer.
    """

    after: int
    through: int


class BufferStart(msgspec.Struct, frozen=True):
    """Where a session's buffer began at an earlier message.

    Attributes:
        front: messages up to here were out of the buffer.
        summary: the running summary then.
        summaries: the entries then that it did not cover.
        cleared: messages up to here had been cleared.
        trimmed: messages up to here are gone from the journal today (`Journal.trim`).
    """

    front: int
    summary: Summary | None
    summaries: tuple[Summary, ...]
    cleared: int = 0
    trimmed: int = 0


class EarlierBuffer(BufferStart, frozen=True):
    """A session's buffer at an earlier message.

    Attributes:
        entries: its messages.
        exists: the message that was the newest then was not removed since.
    """

    entries: tuple[Entry, ...] = ()
    exists: bool = True


class OriginalAppend(msgspec.Struct, frozen=True):
    """The append under a key.

    Attributes:
        seqs: the numbers of its messages.
        ids: their ids; None where the message has the session's own.
        chats: what they say, as in `remora.messages.Entry`.
    """

    seqs: tuple[int, ...]
    ids: tuple[str | None, ...]
    chats: tuple[bytes, ...]


class TurnLookup(msgspec.Struct, frozen=True):
    """Which appends came under keys that begin with `root`?

    Answered by a tuple of `KeyedAppend`, ordered by key.
    """

    root: bytes


class KeyedAppend(msgspec.Struct, frozen=True):
    """An append whose first message is still in the journal.

    Attributes:
        key: digest of its key.
        entries: its messages that were not removed.
        removed: how many of its messages were removed.
    """

    key: bytes
    entries: tuple[Entry, ...]
    removed: int = 0


class SessionPart(msgspec.Struct, frozen=True):
    """Messages of a session, and which of them were pruned from long-term memory.

    Attributes:
        key: the session.
        entries: the messages that were not removed, in order.
        pruned: their numbers.
    """

    key: SessionKey
    entries: Sequence[Entry]
    pruned: frozenset[int] = frozenset()


Answer: TypeAlias = (
    OriginalAppend
    | EarlierBuffer
    | Erasable
    | dict[str, StoredMessage]
    | dict[str, MemoryItem]
    | tuple[KeyedAppend, ...]
    | tuple[Entry, ...]
    | None
)
"""What `remora.runtime.log.Log.fetch` answers for a session or a user."""


def entry_ranges(items: Iterable[StateItem]) -> tuple[tuple[int, int], ...]:
    """The ranges of the summary entries among an actor's state items."""
    entries = [_decode_entry(one.value).entry for one in items if one.kind == ENTRY_KIND]
    return tuple([(one.first, one.through) for one in entries])


def select_facts(
    memories: Iterable[MemoryItem], session: str | None, topics: Collection[str] | None
) -> list[MemoryItem]:
    """The extracted facts among these memories, of one session and of these topics if given."""
    return [
        one
        for one in memories
        if one.topic and session in {None, one.session} and (topics is None or one.topic in topics)
    ]


def newest_instructions(memories: Sequence[MemoryItem], limit: int) -> list[MemoryItem]:
    """Return of all memories, oldest first, those of `Journal.instructions`."""
    found = [one for one in reversed(memories) if one.type == INSTRUCTION]
    found = sorted(found, key=lambda one: -one.created_us)[: 4 * limit]
    counts: Counter[str] = Counter()
    newest = []
    for one in found:
        counts[topic_of_fact(one.id)] += 1
        if counts[topic_of_fact(one.id)] <= _MOST_OF_TOPIC:
            newest.append(one)
    return newest[:limit]


def messages_by_id(found: Iterable[StoredMessage]) -> dict[str, StoredMessage]:
    """Return those of the messages that have ids of their own, by these."""
    return {one.entry.id: one for one in found if one.entry.id is not None}


def ids_by_place(
    instance: str, rows: Iterable[tuple[str, int, int, str | None]]
) -> dict[tuple[str, int], str]:
    """Messages' ids by session and number, from each one's session, `sid`, number and own id."""
    return {
        (session, seq): id_ or message_id(instance, sid, seq) for session, sid, seq, id_ in rows
    }


def numbered_ids(instance: str, ids: Iterable[str]) -> list[tuple[str, int]]:
    """Return those of these ids that are made of numbers, with their session's."""
    found = ((id_, message_number(instance, id_)) for id_ in ids)
    return [(id_, number[0]) for id_, number in found if number is not None]


_AT_ONCE = 16  # messages


class History(Protocol):
    """The part of `Journal` that shows a session's past."""

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        """See `Journal`."""
        ...

    async def any_removed(self, key: SessionKey, first: int, last: int, *, since: int) -> bool:
        """See `Journal`."""
        ...

    async def buffer_start(self, key: SessionKey, at: int) -> BufferStart:
        """See `Journal`."""
        ...


def buffer_start_from(
    changes: Sequence[tuple[str, int, Summary]], *, trimmed: int = 0
) -> BufferStart:
    """Where the buffer begins after these changes of its front and summaries.

    Args:
        changes: oldest first, each with its kind and generation. Where only the front moved, the
            summary's `through` is the front, and its `first` the last message that was cleared.
        trimmed: messages up to here are gone from the journal.
    """
    if not changes:
        return BufferStart(0, None, (), 0, trimmed)
    current = changes[-1][1]
    mine = [(kind, summary) for kind, generation, summary in changes if generation == current]
    running = [summary for kind, summary in mine if kind == "summary"]
    summary = running[-1] if running else None
    covered = summary.through if summary else 0
    # a later entry up to the same message replaces the one before
    listed = {one.through: one for kind, one in mine if kind == "entry" and one.through > covered}
    entries = tuple(listed.values())
    cleared = [one.first for kind, _, one in changes if kind not in {"summary", "entry"}]
    front = max(one.through for _, one in mine)
    return BufferStart(front, summary, entries, cleared[-1] if cleared else 0, trimmed)


async def read_instructions(
    journal: History, key: SessionKey, after: int, through: int, *, at: int | None = None
) -> tuple[Entry, ...]:
    """The messages behind `after`, up to `through`, before the first of a user, model or tool.

    Those that are damaged are left out: the conversation can be shown without them.
    """
    found: list[Entry] = []
    with suppress(JournalDamaged):
        for first in range(after + 1, through + 1, _AT_ONCE):
            read = await journal.read(key, first, min(first + _AT_ONCE - 1, through), at=at)
            count = leading_instructions(read)
            found.extend(read[:count])
            if count < len(read) or not read:  # trimmed, or deleted
                break
    return tuple(found)


async def earlier_buffer(
    journal: History, key: SessionKey, at: int, *, as_it_was: bool = False
) -> EarlierBuffer:
    """The session's buffer when message `at` was its newest.

    With `as_it_was`, it has messages that were removed later. Without, it has none of them: a
    summary that covers one is left out, and the messages that it covered are in the buffer again.

    Raises:
        InvalidInput: with `as_it_was`, if messages of that buffer were trimmed.
    """
    start = await journal.buffer_start(key, at)
    if as_it_was:
        if start.front < start.trimmed:
            raise InvalidInput(
                f"what the session was at message {at} is not kept any more: messages up to "
                f"{start.trimmed} are gone"
            )
        if any(one.blank for one in _summaries(start)):  # it covered a deleted message
            start = BufferStart(start.cleared, None, (), start.cleared, start.trimmed)
        return _fill(start, await journal.read(key, start.front + 1, at, at=at))
    if start.trimmed and start.front < start.trimmed + NEIGHBOURS:
        return _fill(start, (), exists=False)
    exists = at == 0 or bool(await journal.read(key, at, at))
    summaries = _summaries(start)
    if summaries:
        covered = max(one.through for one in summaries)
        lacks = any(one.blank for one in summaries)
        if lacks or await journal.any_removed(key, start.cleared + 1, covered, since=at):
            start = BufferStart(start.cleared, None, (), start.cleared)
    return _fill(start, await journal.read(key, start.front + 1, at), exists=exists)


def _summaries(start: BufferStart) -> tuple[Summary, ...]:
    return (*((start.summary,) if start.summary else ()), *start.summaries)


def _fill(start: BufferStart, entries: Iterable[Entry], *, exists: bool = True) -> EarlierBuffer:
    return EarlierBuffer(
        start.front,
        start.summary,
        start.summaries,
        start.cleared,
        start.trimmed,
        tuple(entries),
        exists,
    )
