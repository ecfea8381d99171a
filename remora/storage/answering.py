"""Answers about a session's messages, made of the rows that a database has of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from remora.ids import SessionKey
from remora.messages import Entry
from remora.storage.decoding import SEQ_MASK, RowDamaged, decode_entry, row_damage
from remora.storage.lookups import KeyedAppend, OriginalAppend

__all__ = ["decode_entries", "keyed_appends", "original_append", "read_range"]


def read_range(
    key: SessionKey, rows: Sequence[tuple[Any, ...]], first: int, at: int | None
) -> list[Entry]:
    """The messages of a range, none of which may be missing; see `Journal.read`.

    Args:
        key: the session.
        rows: `trimmed` of the session, `removed` and `ENTRY_COLUMNS`, in order; at least one.
        first: the first message of the range.
        at: those that existed when this message was the newest; None for today's.

    Raises:
        JournalDamaged: one of them is missing or damaged.
    """
    trimmed = rows[0][0]
    if not isinstance(trimmed, int):
        raise row_damage(key, "its figures are not as they were written")
    for number, row in enumerate(rows, start=max(first, trimmed + 1, 1)):
        if row[2] & SEQ_MASK != number:
            raise row_damage(key, f"message {number} is missing")
    return decode_entries(
        key, [row[2:] for row in rows if row[1] is None or (at is not None and row[1] > at)]
    )


def keyed_appends(key: SessionKey, rows: Iterable[tuple[Any, ...]]) -> Iterator[KeyedAppend]:
    """The appends in rows of a key, `removed` and `ENTRY_COLUMNS`, in the order of keys."""
    for digest, group in groupby(rows, key=itemgetter(0)):
        batch = list(group)
        there = decode_entries(key, [row[2:] for row in batch if row[1] is None])
        yield KeyedAppend(digest, tuple(there), len(batch) - len(there))


def decode_entries(key: SessionKey, rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
    """The messages of a session in rows of `ENTRY_COLUMNS`.

    Raises:
        JournalDamaged: one of them is damaged.
    """
    try:
        return [decode_entry(row) for row in rows]
    except RowDamaged as e:
        raise row_damage(key, e) from e


def original_append(key: SessionKey, rows: Iterable[tuple[Any, ...]]) -> OriginalAppend | None:
    """The append whose messages these are; None without any."""
    entries = decode_entries(key, rows)
    if not entries:
        return None
    return OriginalAppend(
        tuple(entry.seq for entry in entries),
        tuple(entry.id for entry in entries),
        tuple(entry.chat for entry in entries),
    )
