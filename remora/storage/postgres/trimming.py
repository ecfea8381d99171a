"""Archived originals in PostgreSQL: what there is, and removing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from remora.messages.attachments import MAGIC
from remora.storage.decoding import SEQ_MASK
from remora.storage.postgres.reading import Query
from remora.storage.retention import ArchivedRange, MessageSizes
from remora.storage.rows import SEQ_BITS
from remora.storage.trimming import choose_batch

_BOUNDS = (
    "SELECT s.sid, s.trimmed, s.summarized, (SELECT m.pos FROM remora.messages AS m "
    f"WHERE m.pos > (s.sid << {SEQ_BITS}) + greatest(s.flushed, s.trimmed) "
    f"AND m.pos <= (s.sid << {SEQ_BITS}) + least(s.flushing, s.summarized) "
    "AND m.pruned IS NULL AND m.removed IS NULL ORDER BY m.pos LIMIT 1) "
    "FROM remora.actors AS s WHERE s.sid = ANY($1::bigint[]) ORDER BY s.sid"
)
_SIZE = "octet_length(m.chat) + coalesce(octet_length(m.meta), 0)"
_RANGE = "m.pos BETWEEN $1 AND $2"


class PostgresArchive:
    """Implements `remora.storage.trimming.Archive`.

    Args:
        read: runs its queries.
    """

    def __init__(self, read: Query) -> None:
        self._read = read

    async def sessions(self, after: int, limit: int) -> list[int]:
        rows = await self._read(
            "SELECT sid FROM remora.actors WHERE sid > $1 AND session <> '' AND "
            "summarized > trimmed ORDER BY sid LIMIT $2",
            after,
            limit,
        )
        return [sid for (sid,) in rows]

    async def jobs(self, sids: Sequence[int]) -> Sequence[tuple[int, bytes]]:
        return await self._read(
            "SELECT j.sid, j.payload FROM remora.jobs AS j WHERE j.sid = ANY($1::bigint[])", sids
        )

    async def bounds(self, sids: Sequence[int]) -> Sequence[tuple[int, int, int, int | None]]:
        return await self._read(_BOUNDS, sids)

    async def first_since(self, archive: ArchivedRange, at_us: int) -> int | None:
        rows = await self._read(
            f"SELECT m.pos FROM remora.messages AS m WHERE {_RANGE} AND m.at_us >= $3 "
            "ORDER BY m.pos LIMIT 1",
            *_positions(archive),
            at_us,
        )
        return rows[0][0] & SEQ_MASK if rows else None

    async def newest_beyond(self, archive: ArchivedRange, count: int) -> int | None:
        rows = await self._read(
            "SELECT m.pos FROM remora.actors AS s JOIN remora.messages AS m ON m.pos > $1 AND "
            f"m.pos <= (s.sid << {SEQ_BITS}) + s.summarized WHERE s.sid = $2 AND m.removed IS "
            "NULL ORDER BY m.pos DESC LIMIT 1 OFFSET $3",
            (archive.sid << SEQ_BITS) + archive.trimmed,
            archive.sid,
            count,
        )
        return rows[0][0] & SEQ_MASK if rows else None

    async def may_exceed(self, limit: int) -> bool:
        ((size,),) = await self._read("SELECT pg_total_relation_size('remora.messages')")
        return bool(size > limit // 16)  # compressed a good deal, and yet not that much

    async def attaching(self, wanted: Mapping[int, int]) -> Sequence[str]:
        """The users whose messages up to these refer to attachments."""
        rows = await self._read(
            "SELECT DISTINCT s.user FROM unnest($1::bigint[], $2::bigint[]) AS w (sid, last) JOIN "
            "remora.actors AS s ON s.sid = w.sid JOIN remora.messages AS m ON m.pos > s.sid << 32 "
            "AND m.pos <= (s.sid << 32) + w.last WHERE position($3::bytea IN m.chat) > 0 OR "
            "position($3::bytea IN m.meta) > 0",
            list(wanted),
            list(wanted.values()),
            MAGIC,
        )
        return [user for (user,) in rows]

    async def size(self, sids: Sequence[int]) -> int:
        ((size,),) = await self._read(
            f"SELECT coalesce(sum({_SIZE}), 0)::bigint FROM remora.actors AS s JOIN "
            f"remora.messages AS m ON m.pos > s.sid << {SEQ_BITS} AND m.pos <= (s.sid << "
            f"{SEQ_BITS}) + s.summarized WHERE s.sid = ANY($1::bigint[])",
            sids,
        )
        return int(size)

    async def sizes(self, limit: int, archive: ArchivedRange, first: int) -> MessageSizes:
        rows = await self._read(
            f"SELECT m.pos, m.at_us, {_SIZE} FROM remora.messages AS m WHERE {_RANGE} "
            "ORDER BY m.pos LIMIT $3",
            *_positions(ArchivedRange(archive.sid, first - 1, archive.through)),
            limit,
        )
        return [(pos & SEQ_MASK, at_us, size) for pos, at_us, size in rows]


async def trim_rows(
    read: Query, change: Callable[..., Awaitable[Any]], wanted: Mapping[int, int]
) -> tuple[int, dict[int, int]]:
    """Delete up to these messages, a bounded number: how many went, and what is left to do."""
    chosen, left = await choose_batch(PostgresArchive(read), wanted)
    if not chosen:
        return 0, left
    gone = await change(
        "SELECT remora.trim($1, $2, $3, $4)",
        [one.sid for one in chosen],
        [one.through for one in chosen],
    )
    if gone is None:  # stored, and its answer was lost
        gone = sum(one.through - one.trimmed for one in chosen)
    return gone, left


def _positions(archive: ArchivedRange) -> tuple[int, int]:
    """The arguments of `_RANGE` for the messages of a range."""
    start = archive.sid << SEQ_BITS
    return start + archive.trimmed + 1, start + archive.through
