"""The windows of messages: each with its neighbours, made of their own lines.

Who stores them has the words of a message in the rows of its neighbours, too: LanceDB's tables
would have 2,330 bytes a row instead of 1,450.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remora.storage.ports import NEIGHBOURS, LongTermStore, MemoryRow

__all__ = ["OWN_CHARS", "makes_windows", "with_windows"]

OWN_CHARS = 600
"""Of a message in its own window. Whole, an assistant's long answer counted twice, and a user's
facts around it came after it (BEAM: recall@10 .504, and .547 with this)."""


def makes_windows(store: LongTermStore) -> bool:
    """Return whether a store has the windows of a user's rows, though they are not given to it."""
    return bool(getattr(store, "makes_windows", False))


def with_windows(rows: Sequence[MemoryRow], window_chars: int) -> list[MemoryRow]:
    """All rows of a user, each with its window.

    Args:
        rows: those that have no window get one; of the others nothing changes.
        window_chars: most characters of a neighbour's text.
    """
    short = {
        (row.session, row.seq): _without_date(row, window_chars)
        for row in rows
        if row.memory_type == "message"
    }
    made = []
    for row in rows:
        if row.window:
            made.append(row)
            continue
        window = row.turn
        if row.memory_type == "message":
            around = range(row.seq - NEIGHBOURS, row.seq + NEIGHBOURS + 1)
            lines = [
                _own(row) if seq == row.seq else short[row.session, seq]
                for seq in around
                if (row.session, seq) in short
            ]
            window = "\n".join(lines)
        made.append(msgspec.structs.replace(row, window=window))
    return made


def _own(row: MemoryRow) -> str:
    """The message's line, without the end of a long one."""
    return row.turn[: _end(row, OWN_CHARS)]


def _without_date(row: MemoryRow, window_chars: int) -> str:
    """The message's line without its date, and without the end of a long one."""
    start = row.turn.find(") ") + 2 if row.turn.startswith("(") else 0
    return row.turn[start : _end(row, window_chars)]


def _end(row: MemoryRow, most_chars: int) -> int:
    """Where the line ends that has so much of what was said."""
    over = len(row.content) - most_chars
    if over <= 0:
        return len(row.turn)
    if row.turn.endswith(row.content):
        return len(row.turn) - over
    return row.turn.find(": ") + 2 + most_chars  # of stems, where it is in another language
