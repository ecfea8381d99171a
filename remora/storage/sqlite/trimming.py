"""Removing archived originals beyond their limits.

The reader finds what is beyond the limits, in chunks. The writer deletes in bounded transactions,
and checks again first: what a session needs may have changed, and must not be removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import aiosqlite
import msgspec

from remora.storage.journal_port import Retention
from remora.storage.pending import first_message_needed
from remora.storage.records import Spec
from remora.storage.retention import (
    ArchivedRange,
    MessageSizes,
    choose_oldest,
    last_removable,
)
from remora.storage.rows import SEQ_BITS
from remora.storage.sqlite.connection import Query

__all__ = ["BATCH_MESSAGES", "messages_beyond", "trim_rows"]

BATCH_MESSAGES = 1_000
"""Messages deleted in one transaction, at most: writes queued behind it wait some milliseconds."""

_MASK = (1 << SEQ_BITS) - 1
_SESSIONS_AT_ONCE = 500
_ROWS_AT_ONCE = 65_536  # of all sessions, in memory while the oldest are searched
_DAY_US = 86_400_000_000
_decode_payload = msgspec.msgpack.Decoder(Spec).decode

_ACTORS = (
    "SELECT sid FROM actors WHERE sid > ? AND session != '' AND summarized > trimmed ORDER BY sid "
    "LIMIT ?"
)
# The first message that a flush job still has to index: after `flushed`, up to `flushing`, neither
# pruned nor removed. Messages after `flushing` left the buffer without long-term memory.
_BOUNDS = (
    "SELECT s.sid, s.trimmed, s.summarized, (SELECT m.pos FROM messages AS m "
    f"WHERE m.pos > (s.sid << {SEQ_BITS}) + max(s.flushed, s.trimmed) "
    f"AND m.pos <= (s.sid << {SEQ_BITS}) + min(s.flushing, s.summarized) "
    "AND m.pruned IS NULL AND m.removed IS NULL ORDER BY m.pos LIMIT 1) "
    "FROM json_each(?) AS w CROSS JOIN actors AS s ON s.sid = w.value"
)
_JOBS = "SELECT j.sid, j.payload FROM json_each(?) AS w CROSS JOIN jobs AS j ON j.sid = w.value"
_RANGE = "m.pos BETWEEN ? AND ?"
_FIRST_YOUNG = (
    f"SELECT m.pos FROM messages AS m WHERE {_RANGE} AND m.at_us >= ? ORDER BY m.pos LIMIT 1"
)
_NEWEST_BEYOND = (
    f"SELECT m.pos FROM messages AS m WHERE {_RANGE} AND m.removed IS NULL ORDER BY m.pos DESC "
    "LIMIT 1 OFFSET ?"
)
_ARCHIVED_BYTES = (
    "SELECT coalesce(sum(length(m.chat) + coalesce(length(m.meta), 0)), 0) "
    "FROM json_each(?) AS w CROSS JOIN actors AS s ON s.sid = w.value "
    f"CROSS JOIN messages AS m ON m.pos > s.sid << {SEQ_BITS} AND m.pos <= (s.sid << {SEQ_BITS}) "
    "+ s.summarized"
)
_SIZES = (
    "SELECT m.pos, m.at_us, length(m.chat) + coalesce(length(m.meta), 0) "
    f"FROM messages AS m WHERE {_RANGE} ORDER BY m.pos LIMIT ?"
)


def _range(sid: int, first: int, last: int) -> tuple[int, int]:
    """The parameters of `_RANGE` for these messages of a session."""
    return (sid << SEQ_BITS) + first, (sid << SEQ_BITS) + last


async def _archives(read: Query, sids: Sequence[int]) -> list[ArchivedRange]:
    """What may be removed of these sessions."""
    wanted = (msgspec.json.encode(sids).decode(),)
    needed: dict[int, list[int | None]] = {}
    for sid, payload in await read(_JOBS, wanted):
        try:
            first = first_message_needed(_decode_payload(payload))
        except msgspec.DecodeError:
            first = 1  # it may need any message
        needed.setdefault(sid, []).append(first)
    found = []
    for sid, trimmed, archived_through, unflushed in await read(_BOUNDS, wanted):
        through = last_removable(
            archived_through, None if unflushed is None else unflushed & _MASK, needed.get(sid, ())
        )
        if through > trimmed:
            found.append(ArchivedRange(sid, trimmed, through))
    return found


async def messages_beyond(
    read: Query, limits: Retention, now_us: int
) -> AsyncIterator[dict[int, int]]:
    """By session, the last message that is beyond the limits and may go.

    Some sessions at a time.
    """
    aged = limits.max_age_days > 0 or limits.max_messages > 0
    if aged:
        async for sids in _sessions(read):
            if found := await _beyond_each(read, await _archives(read, sids), limits, now_us):
                yield found
    if limits.max_bytes > 0 and (found := await _beyond_bytes(read, limits.max_bytes)):
        yield found


async def _sessions(read: Query) -> AsyncIterator[list[int]]:
    last = 0
    while sids := [sid for (sid,) in await read(_ACTORS, (last, _SESSIONS_AT_ONCE))]:
        yield sids
        last = sids[-1]


async def _beyond_each(
    read: Query, archives: Sequence[ArchivedRange], limits: Retention, now_us: int
) -> dict[int, int]:
    found: dict[int, int] = {}
    for sid, trimmed, through in ((one.sid, one.trimmed, one.through) for one in archives):
        last = 0
        if limits.max_age_days > 0:
            oldest = now_us - int(limits.max_age_days * _DAY_US)
            young = list(await read(_FIRST_YOUNG, (*_range(sid, trimmed + 1, through), oldest)))
            last = (young[0][0] & _MASK) - 1 if young else through
        if limits.max_messages > 0:
            ((archived_through,),) = await read(
                "SELECT summarized FROM actors WHERE sid = ?", (sid,)
            )
            if archived_through - trimmed > limits.max_messages:
                archived = _range(sid, trimmed + 1, archived_through)
                surplus = list(await read(_NEWEST_BEYOND, (*archived, limits.max_messages)))
                last = max(last, min(surplus[0][0] & _MASK, through)) if surplus else last
        if last > trimmed:
            found[sid] = last
    return found


async def _beyond_bytes(read: Query, limit: int) -> dict[int, int]:
    ((pages,),) = await read("PRAGMA page_count", ())
    ((free,),) = await read("PRAGMA freelist_count", ())
    ((size,),) = await read("PRAGMA page_size", ())
    if (pages - free) * size <= limit:  # all messages are larger than the archived ones
        return {}
    total = 0
    archives: list[ArchivedRange] = []
    async for sids in _sessions(read):
        ((size,),) = await read(_ARCHIVED_BYTES, (msgspec.json.encode(sids).decode(),))
        total += size
        archives.extend(await _archives(read, sids))
    if total <= limit:
        return {}
    at_once = max(_ROWS_AT_ONCE // max(len(archives), 1), 1)

    async def sizes(archive: ArchivedRange, first: int) -> MessageSizes:
        rows = await read(_SIZES, (*_range(archive.sid, first, archive.through), at_once))
        return [(pos & _MASK, at_us, size) for pos, at_us, size in rows]

    return await choose_oldest(archives, total - limit, sizes)


async def trim_rows(
    writer: aiosqlite.Connection, wanted: Mapping[int, int]
) -> tuple[int, dict[int, int]]:
    """Delete up to these messages, `BATCH_MESSAGES` at most.

    How many went, and what is left to do. Within a transaction.
    """

    async def read(statement: str, parameters: Iterable[Any] = ()) -> list[Any]:
        return list(await writer.execute_fetchall(statement, parameters))

    room, count = BATCH_MESSAGES, 0
    left: dict[int, int] = {}
    for archive in await _archives(read, list(wanted)):
        last = min(wanted[archive.sid], archive.through)
        if last <= archive.trimmed:
            continue
        through = min(last, archive.trimmed + room)
        if through > archive.trimmed:
            cursor = await writer.execute(
                f"DELETE FROM messages AS m WHERE {_RANGE}",
                _range(archive.sid, archive.trimmed + 1, through),
            )
            await writer.execute(
                "UPDATE actors SET trimmed = ? WHERE sid = ?", (through, archive.sid)
            )
            count += cursor.rowcount
            room -= through - archive.trimmed
        if through < last:
            left[archive.sid] = last
    return count, left
