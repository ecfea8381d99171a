"""Archived originals in SQLite: what there is, and removing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import aiosqlite
import msgspec

from remora.messages.attachments import MAGIC
from remora.storage.decoding import SEQ_MASK
from remora.storage.retention import ArchivedRange, MessageSizes
from remora.storage.rows import SEQ_BITS
from remora.storage.sqlite.connection import Query
from remora.storage.trimming import choose_batch

__all__ = ["SqliteArchive", "trim_rows"]

_BOUNDS = (
    "SELECT s.sid, s.trimmed, s.summarized, (SELECT m.pos FROM messages AS m "
    f"WHERE m.pos > (s.sid << {SEQ_BITS}) + max(s.flushed, s.trimmed) "
    f"AND m.pos <= (s.sid << {SEQ_BITS}) + min(s.flushing, s.summarized) "
    "AND m.pruned IS NULL AND m.removed IS NULL ORDER BY m.pos LIMIT 1) "
    "FROM json_each(?) AS w CROSS JOIN actors AS s ON s.sid = w.value"
)
_SIZE = "length(m.chat) + coalesce(length(m.meta), 0)"
_RANGE = "m.pos BETWEEN ? AND ?"


class SqliteArchive:
    """Implements `remora.storage.trimming.Archive`.

    Args:
        read: runs its queries.
    """

    def __init__(self, read: Query) -> None:
        self._read = read

    async def sessions(self, after: int, limit: int) -> list[int]:
        rows = await self._read(
            "SELECT sid FROM actors WHERE sid > ? AND session != '' AND summarized > trimmed "
            "ORDER BY sid LIMIT ?",
            (after, limit),
        )
        return [sid for (sid,) in rows]

    async def jobs(self, sids: Sequence[int]) -> Sequence[tuple[int, bytes]]:
        return await self._read(
            "SELECT j.sid, j.payload FROM json_each(?) AS w CROSS JOIN jobs AS j "
            "ON j.sid = w.value",
            (_encode(sids),),
        )

    async def bounds(self, sids: Sequence[int]) -> Sequence[tuple[int, int, int, int | None]]:
        return await self._read(_BOUNDS, (_encode(sids),))

    async def first_since(self, archive: ArchivedRange, at_us: int) -> int | None:
        rows = await self._read(
            f"SELECT m.pos FROM messages AS m WHERE {_RANGE} AND m.at_us >= ? ORDER BY m.pos "
            "LIMIT 1",
            (*_positions(archive), at_us),
        )
        return _first_seq(rows)

    async def newest_beyond(self, archive: ArchivedRange, count: int) -> int | None:
        rows = await self._read(
            "SELECT m.pos FROM actors AS s CROSS JOIN messages AS m ON m.pos > ? AND "
            f"m.pos <= (s.sid << {SEQ_BITS}) + s.summarized WHERE s.sid = ? AND "
            "s.summarized - s.trimmed > ? AND m.removed IS NULL ORDER BY m.pos DESC "
            "LIMIT 1 OFFSET ?",
            ((archive.sid << SEQ_BITS) + archive.trimmed, archive.sid, count, count),
        )
        return _first_seq(rows)

    async def may_exceed(self, limit: int) -> bool:
        ((pages,),) = await self._read("PRAGMA page_count", ())
        ((free,),) = await self._read("PRAGMA freelist_count", ())
        ((size,),) = await self._read("PRAGMA page_size", ())
        return bool((pages - free) * size > limit)

    async def attaching(self, wanted: Mapping[int, int]) -> Sequence[str]:
        """The users whose messages up to these refer to attachments."""
        rows = await self._read(
            "SELECT DISTINCT s.user FROM json_each(?) AS w CROSS JOIN actors AS s ON s.sid = "
            f"w.value ->> 0 CROSS JOIN messages AS m ON m.pos > s.sid << {SEQ_BITS} AND m.pos <= "
            f"(s.sid << {SEQ_BITS}) + (w.value ->> 1) WHERE instr(m.chat, ?) OR instr(m.meta, ?)",
            (msgspec.json.encode(list(wanted.items())).decode(), MAGIC, MAGIC),
        )
        return [user for (user,) in rows]

    async def size(self, sids: Sequence[int]) -> int:
        ((size,),) = await self._read(
            f"SELECT coalesce(sum({_SIZE}), 0) FROM json_each(?) AS w "
            "CROSS JOIN actors AS s ON s.sid = w.value "
            f"CROSS JOIN messages AS m ON m.pos > s.sid << {SEQ_BITS} AND m.pos <= (s.sid << "
            f"{SEQ_BITS}) + s.summarized",
            (_encode(sids),),
        )
        return int(size)

    async def sizes(self, limit: int, archive: ArchivedRange, first: int) -> MessageSizes:
        rows = await self._read(
            f"SELECT m.pos, m.at_us, {_SIZE} FROM messages AS m WHERE {_RANGE} ORDER BY m.pos "
            "LIMIT ?",
            (*_positions(ArchivedRange(archive.sid, first - 1, archive.through)), limit),
        )
        return [(pos & SEQ_MASK, at_us, size) for pos, at_us, size in rows]


async def trim_rows(
    writer: aiosqlite.Connection, wanted: Mapping[int, int]
) -> tuple[int, dict[int, int]]:
    """Delete up to these messages, a bounded number, within a transaction.

    How many went, and what is left to do.
    """

    async def read(statement: str, parameters: Iterable[Any] = ()) -> list[Any]:
        return list(await writer.execute_fetchall(statement, parameters))

    chosen, left = await choose_batch(SqliteArchive(read), wanted)
    count = 0
    for one in chosen:
        delete = f"DELETE FROM messages AS m WHERE {_RANGE}"
        count += (await writer.execute(delete, _positions(one))).rowcount
        await writer.execute("UPDATE actors SET trimmed = ? WHERE sid = ?", (one.through, one.sid))
    return count, left


def _encode(sids: Sequence[int]) -> str:
    return msgspec.json.encode(sids).decode()


def _positions(archive: ArchivedRange) -> tuple[int, int]:
    """The parameters of `_RANGE` for the messages of a range."""
    start = archive.sid << SEQ_BITS
    return start + archive.trimmed + 1, start + archive.through


def _first_seq(rows: Sequence[tuple[Any, ...]]) -> int | None:
    return rows[0][0] & SEQ_MASK if rows else None
