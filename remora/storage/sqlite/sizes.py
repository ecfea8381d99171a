"""How much the rows of a journal take, in slices: a process may have it open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from remora.storage.rows import SEQ_BITS
from remora.storage.sqlite.peek import open_to_peek

TABLES = ("messages", "summaries", "memories", "state")
"""What has texts, by the names that users know."""

_SLICE_ROWS = 50_000  # some tens of milliseconds: so long, the write-ahead log cannot start again
_COLUMNS = {  # table, number of the actor, bytes
    "messages": ("messages", f"t.pos >> {SEQ_BITS}", "length(t.chat) + ifnull(length(t.meta), 0)"),
    "summaries": ("summaries", "t.sid", "length(CAST(t.text AS BLOB))"),
    "memories": ("memories", "t.sid", "length(CAST(t.content AS BLOB))"),
    "state": ("state_items", "t.sid", "length(t.value)"),
}


class UserSize(msgspec.Struct, frozen=True):
    """Rows of a user, and bytes of their contents."""

    user: str
    rows: int
    bytes: int


class SliceSize(msgspec.Struct, frozen=True):
    """A slice of a table.

    Attributes:
        users: those who have rows in it.
        last: its last row; None if there is none behind it.
    """

    users: Sequence[UserSize]
    last: int | None


def peek_sizes(journal: Path, table: str, after: int = 0, *, rows: int = _SLICE_ROWS) -> SliceSize:
    """Whose rows a slice of a table has, and how large their contents are.

    What indices, checksums and free pages take is not in it. Blocks on the file system.

    Args:
        journal: the ``journal.db`` of a memory directory, which a running server may own.
        table: one of `TABLES`.
        after: the last row of the slice before.
        rows: how many rows are in a slice.

    Raises:
        JournalTooNew: a newer remora wrote it.
        JournalDamaged: it is no journal, or SQLite finds it malformed.
        DirectoryUnusable: it cannot be read.
    """
    name, sid, size = _COLUMNS[table]
    with open_to_peek(journal) as database:
        behind = database.execute(
            f"SELECT rowid FROM {name} WHERE rowid > ? ORDER BY rowid LIMIT 1 OFFSET ?",
            (after, rows - 1),
        ).fetchone()
        last = None if behind is None else behind[0]
        until = "" if last is None else " AND t.rowid <= ?"
        found = database.execute(
            f"SELECT s.user, sum(u.rows), sum(u.bytes) FROM (SELECT {sid} AS sid, count(*) AS "
            f"rows, sum({size}) AS bytes FROM {name} AS t WHERE t.rowid > ?{until} GROUP BY 1) "
            "AS u CROSS JOIN actors AS s ON s.sid = u.sid GROUP BY s.user",
            (after,) if last is None else (after, last),
        ).fetchall()
    return SliceSize([UserSize(*row) for row in found], last)
