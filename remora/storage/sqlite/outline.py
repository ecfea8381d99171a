"""A session without its messages: which are gone, and how its summaries came about."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from remora.ids import SessionKey
from remora.storage.decoding import (
    SEQ_MASK,
    SUMMARY_COLUMNS,
    RowDamaged,
    decode_summary,
    row_damage,
)
from remora.storage.records import MessageRange, Summary
from remora.storage.rows import SEQ_BITS
from remora.storage.sqlite.connection import Query

_MOST_COMPACTIONS = 200


class Compaction(msgspec.Struct, frozen=True):
    """One change of a session's buffer.

    Attributes:
        number: in the journal; later ones have larger numbers.
        kind: ``summary``, ``entry`` (of a summary list), ``dropped``, ``cleared`` or ``restated``.
        at_seq: the newest message at that time.
        current: no later ``clear``, ``rewind`` or deletion has replaced it.
        summary: the summary; without text where only the front of the buffer moved.
    """

    number: int
    kind: str
    at_seq: int
    current: bool
    summary: Summary


class SessionOutline(msgspec.Struct, frozen=True):
    """A session without its messages.

    Attributes:
        trimmed: messages up to here are gone from the journal.
        removed: messages that were deleted or rewound, as ranges without gaps.
        compactions: the newest of them first, 200 at most.
    """

    trimmed: int
    removed: tuple[MessageRange, ...]
    compactions: tuple[Compaction, ...]


async def read_outline(read: Query, key: SessionKey) -> SessionOutline:
    """A session without its messages; empty if there is none.

    Raises:
        JournalDamaged: a summary is not as it was written.
        StorageError: the journal cannot be read.
    """
    actors = await read(
        "SELECT sid, generation, trimmed FROM actors WHERE user = ? AND session = ?", tuple(key)
    )
    if not actors:
        return SessionOutline(0, (), ())
    ((sid, generation, trimmed),) = actors
    removed = await read(
        f"SELECT pos & {SEQ_MASK} FROM messages INDEXED BY messages_removed "
        "WHERE removed IS NOT NULL AND pos BETWEEN ? AND ? ORDER BY pos",
        (sid << SEQ_BITS, (sid << SEQ_BITS) + SEQ_MASK),
    )
    rows = await read(
        f"SELECT f.number, f.at_seq, {SUMMARY_COLUMNS} FROM summaries AS f WHERE f.sid = ? "
        "ORDER BY f.number DESC LIMIT ?",
        (sid, _MOST_COMPACTIONS),
    )
    try:
        compactions = [
            Compaction(number, kind, at_seq, of == generation, summary)
            for number, at_seq, *row in rows
            for kind, of, summary in [decode_summary(row)]
        ]
    except RowDamaged as e:
        raise row_damage(key, e) from e
    ranges = _join_runs(seq for (seq,) in removed)
    return SessionOutline(trimmed, tuple(ranges), tuple(compactions))


def _join_runs(seqs: Iterable[int]) -> list[MessageRange]:
    """Ranges without gaps that hold these numbers, which ascend."""
    ranges: list[MessageRange] = []
    for seq in seqs:
        if ranges and ranges[-1].last == seq - 1:
            first = ranges[-1].first
            ranges[-1] = MessageRange(first, seq, seq - first + 1)
        else:
            ranges.append(MessageRange(seq, seq, 1))
    return ranges
