"""Answers made of the rows that a database has; what is long is decoded in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from remora.ids import SessionKey, UserKey, message_id, message_number
from remora.logging import get_logger
from remora.messages import Entry
from remora.runtime.concurrency import run_in_thread_if
from remora.storage.decoding import (
    SEQ_MASK,
    RowDamaged,
    are_long,
    decode_entry,
    decode_key,
    decode_memory,
    decode_state_item,
    row_damage,
)
from remora.storage.lookups import KeyedAppend, OriginalAppend, SessionPart
from remora.storage.records import BLANK_CHAT, MemoryItem, StateItem, StoredMessage

_logger = get_logger(__name__)
_CHAT, _CONTENT, _VALUE = 6, 4, 3  # columns of what can be long
_KEY, _BATCH = 8, 9  # of ENTRY_COLUMNS


async def read_range(
    key: SessionKey, rows: Sequence[tuple[Any, ...]], first: int, at: int | None
) -> list[Entry]:
    """The messages of a range, none of which may be missing; see `Journal.read`.

    Args:
        key: the session.
        rows: `trimmed` of the session, `removed` and `ENTRY_COLUMNS`, in order.
        first: the first message of the range.
        at: those that existed when this message was the newest; None for today's.

    Raises:
        JournalDamaged: one of them is missing or damaged.
    """
    if not rows:
        return []
    return await run_in_thread_if(are_long(rows, _CHAT), _decode_range, key, rows, first, at)


async def session_parts(
    ranges: Sequence[tuple[SessionKey, int, int]], rows: Sequence[tuple[Any, ...]]
) -> list[SessionPart]:
    """The messages of several sessions; see `Journal.read_ranges`.

    Args:
        ranges: the sessions, each with its first message and the last.
        rows: the place in `ranges`, `pruned`, and the rows that `read_range` takes, in order.

    Raises:
        JournalDamaged: a message is missing or damaged.
    """
    found = {place: list(some) for place, some in groupby(rows, key=itemgetter(0))}
    parts = []
    for place, (key, first, _) in enumerate(ranges):
        some = found.get(place, [])
        entries = await read_range(key, [row[2:] for row in some], first, None)
        pruned = frozenset(row[4] & SEQ_MASK for row in some if row[1])
        parts.append(SessionPart(key, entries, pruned))
    return parts


def _decode_range(
    key: SessionKey, rows: Sequence[tuple[Any, ...]], first: int, at: int | None
) -> list[Entry]:
    trimmed = rows[0][0]
    if not isinstance(trimmed, int):
        raise row_damage(key, "its figures are not as they were written")
    for number, row in enumerate(rows, start=max(first, trimmed + 1, 1)):
        if row[2] & SEQ_MASK != number:
            raise row_damage(key, f"message {number} is missing")
    return _decode_entries(
        key,
        [
            row[2:]
            for row in rows
            if row[1] is None or (at is not None and row[1] > at and row[_CHAT] != BLANK_CHAT)
        ],
    )


def keyed_appends(key: SessionKey, rows: Iterable[tuple[Any, ...]]) -> Iterator[KeyedAppend]:
    """The appends in rows of a key, `removed` and `ENTRY_COLUMNS`, in the order of keys."""
    for digest, group in groupby(rows, key=itemgetter(0)):
        batch = list(group)
        there = _decode_entries(key, [row[2:] for row in batch if row[1] is None])
        yield KeyedAppend(digest, tuple(there), len(batch) - len(there))


def stored_messages(key: SessionKey, rows: Sequence[tuple[Any, ...]]) -> list[StoredMessage]:
    """Messages with their keys, from rows of `ENTRY_COLUMNS`."""
    pairs = zip(rows, _decode_entries(key, rows), strict=True)
    return [StoredMessage(entry, row[_KEY], row[_BATCH]) for row, entry in pairs]


def messages_by_id(found: Iterable[StoredMessage]) -> dict[str, StoredMessage]:
    """Return those of the messages that have ids of their own, by these."""
    return {one.entry.id: one for one in found if one.entry.id is not None}


def erasable_messages(
    key: SessionKey, rows: Sequence[tuple[Any, ...]]
) -> tuple[StoredMessage, ...]:
    """Return those whose content is still there, from rows of `removed` and `ENTRY_COLUMNS`."""
    left = [row[1:] for row in rows if row[0] is None or row[_CHAT - 1] != BLANK_CHAT]
    return tuple(stored_messages(key, left))


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


def original_append(key: SessionKey, rows: Iterable[tuple[Any, ...]]) -> OriginalAppend | None:
    """The append whose messages these are; None without any."""
    entries = _decode_entries(key, rows)
    if not entries:
        return None
    return OriginalAppend(
        tuple(entry.seq for entry in entries),
        tuple(entry.id for entry in entries),
        tuple(entry.chat for entry in entries),
    )


async def decode_memories(
    user: str,
    rows: Sequence[tuple[Any, ...]],
    decode: Callable[[tuple[Any, ...]], MemoryItem] = decode_memory,
) -> list[MemoryItem]:
    """The memories of a user in rows of `MEMORY_COLUMNS`.

    Raises:
        JournalDamaged: one of them is damaged.
    """
    try:
        return await run_in_thread_if(
            are_long(rows, _CONTENT), lambda: [decode(row) for row in rows]
        )
    except RowDamaged as e:
        raise row_damage(UserKey(user), e) from e


async def decode_state_items(
    key: SessionKey | UserKey,
    rows: Sequence[tuple[Any, ...]],
    decode: Callable[[tuple[Any, ...]], StateItem] = decode_state_item,
) -> list[StateItem]:
    """The state items of an actor in rows of `STATE_ITEM_COLUMNS`.

    Raises:
        JournalDamaged: one of them is damaged.
    """
    try:
        return await run_in_thread_if(are_long(rows, _VALUE), lambda: [decode(row) for row in rows])
    except RowDamaged as e:
        raise row_damage(key, e) from e


def decode_marks(
    rows: Iterable[Sequence[Any]],
) -> list[tuple[SessionKey | UserKey, int]]:
    """Actors and their marks, in rows of a mark and what `decode_key` takes.

    An actor whose name is damaged is logged and left out: its owner is not known.
    """
    found = []
    for mark, *row in rows:
        try:
            found.append((decode_key(*row), mark))
        except RowDamaged as e:
            _logger.error("actor_unreadable", sid=row[0], error=str(e))
    return found


def _decode_entries(key: SessionKey, rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
    """The messages of a session in rows of `ENTRY_COLUMNS`.

    Raises:
        JournalDamaged: one of them is damaged.
    """
    try:
        return [decode_entry(row) for row in rows]
    except RowDamaged as e:
        raise row_damage(key, e) from e
