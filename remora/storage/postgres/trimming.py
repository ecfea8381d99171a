"""Removing archived originals beyond their limits.

What is beyond the limits is found in chunks, while writes go on. The writer deletes in bounded
commits, and looks again first: what a session needs may have changed, and must not be removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from remora.storage.decoding import SEQ_MASK
from remora.storage.journal_port import Retention
from remora.storage.pending import first_message_needed
from remora.storage.postgres.restore import Query
from remora.storage.records import Spec
from remora.storage.retention import ArchivedRange, MessageSizes, choose_oldest, last_removable
from remora.storage.rows import SEQ_BITS

__all__ = ["messages_beyond", "trim_rows"]

_BATCH_MESSAGES = 1_000  # deleted by one commit, at most
_SESSIONS_AT_ONCE = 500
_ROWS_AT_ONCE = 65_536  # of all sessions, in memory while the oldest are searched
_DAY_US = 86_400_000_000
_decode_payload = msgspec.msgpack.Decoder(Spec).decode

# The first message that a flush job still has to index: after `flushed`, up to `flushing`, neither
# pruned nor removed. Messages after `flushing` left the buffer without long-term memory.
_BOUNDS = (
    "SELECT s.sid, s.trimmed, s.summarized, (SELECT m.pos FROM remora.messages AS m "
    f"WHERE m.pos > (s.sid << {SEQ_BITS}) + greatest(s.flushed, s.trimmed) "
    f"AND m.pos <= (s.sid << {SEQ_BITS}) + least(s.flushing, s.summarized) "
    "AND m.pruned IS NULL AND m.removed IS NULL ORDER BY m.pos LIMIT 1) "
    "FROM remora.actors AS s WHERE s.sid = ANY($1::bigint[]) ORDER BY s.sid"
)
_SIZE = "octet_length(m.chat) + coalesce(octet_length(m.meta), 0)"
_RANGE = "m.pos BETWEEN $1 AND $2"


def _range(sid: int, first: int, last: int) -> tuple[int, int]:
    """The arguments of `_RANGE` for these messages of a session."""
    return (sid << SEQ_BITS) + first, (sid << SEQ_BITS) + last


async def _archives(read: Query, sids: Sequence[int]) -> list[ArchivedRange]:
    """What may be removed of these sessions."""
    needed: dict[int, list[int | None]] = {}
    jobs = "SELECT j.sid, j.payload FROM remora.jobs AS j WHERE j.sid = ANY($1::bigint[])"
    for sid, payload in await read(jobs, sids):
        try:
            first = first_message_needed(_decode_payload(payload))
        except msgspec.DecodeError:
            first = 1  # it may need any message
        needed.setdefault(sid, []).append(first)
    found = []
    for sid, trimmed, archived_through, unflushed in await read(_BOUNDS, sids):
        waiting = None if unflushed is None else unflushed & SEQ_MASK
        through = last_removable(archived_through, waiting, needed.get(sid, ()))
        if through > trimmed:
            found.append(ArchivedRange(sid, trimmed, through))
    return found


async def messages_beyond(
    read: Query, limits: Retention, now_us: int
) -> AsyncIterator[dict[int, int]]:
    """By session, the last message that is beyond the limits and may go.

    Some sessions at a time.
    """
    if limits.max_age_days > 0 or limits.max_messages > 0:
        async for sids in _sessions(read):
            if found := await _beyond_each(read, await _archives(read, sids), limits, now_us):
                yield found
    if limits.max_bytes > 0 and (found := await _beyond_bytes(read, limits.max_bytes)):
        yield found


async def _sessions(read: Query) -> AsyncIterator[list[int]]:
    last = 0
    while rows := await read(
        "SELECT sid FROM remora.actors WHERE sid > $1 AND session <> '' AND summarized > trimmed "
        "ORDER BY sid LIMIT $2",
        last,
        _SESSIONS_AT_ONCE,
    ):
        sids = [sid for (sid,) in rows]
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
            young = await read(
                f"SELECT m.pos FROM remora.messages AS m WHERE {_RANGE} AND m.at_us >= $3 "
                "ORDER BY m.pos LIMIT 1",
                *_range(sid, trimmed + 1, through),
                oldest,
            )
            last = (young[0][0] & SEQ_MASK) - 1 if young else through
        if limits.max_messages > 0:
            surplus = await read(
                "SELECT m.pos FROM remora.actors AS s JOIN remora.messages AS m ON m.pos > $1 AND "
                f"m.pos <= (s.sid << {SEQ_BITS}) + s.summarized WHERE s.sid = $2 AND m.removed IS "
                "NULL ORDER BY m.pos DESC LIMIT 1 OFFSET $3",
                (sid << SEQ_BITS) + trimmed,
                sid,
                limits.max_messages,
            )
            last = max(last, min(surplus[0][0] & SEQ_MASK, through)) if surplus else last
        if last > trimmed:
            found[sid] = last
    return found


async def _beyond_bytes(read: Query, limit: int) -> dict[int, int]:
    ((size,),) = await read("SELECT pg_total_relation_size('remora.messages')")
    if size <= limit // 16:  # compressed a good deal, and yet not that much
        return {}
    total = 0
    archives: list[ArchivedRange] = []
    async for sids in _sessions(read):
        ((size,),) = await read(
            f"SELECT coalesce(sum({_SIZE}), 0)::bigint FROM remora.actors AS s JOIN "
            f"remora.messages AS m ON m.pos > s.sid << {SEQ_BITS} AND m.pos <= (s.sid << "
            f"{SEQ_BITS}) + s.summarized WHERE s.sid = ANY($1::bigint[])",
            sids,
        )
        total += size
        archives.extend(await _archives(read, sids))
    if total <= limit:
        return {}
    at_once = max(_ROWS_AT_ONCE // max(len(archives), 1), 1)

    async def sizes(archive: ArchivedRange, first: int) -> MessageSizes:
        rows = await read(
            f"SELECT m.pos, m.at_us, {_SIZE} FROM remora.messages AS m WHERE {_RANGE} "
            "ORDER BY m.pos LIMIT $3",
            *_range(archive.sid, first, archive.through),
            at_once,
        )
        return [(pos & SEQ_MASK, at_us, size) for pos, at_us, size in rows]

    return await choose_oldest(archives, total - limit, sizes)


async def trim_rows(
    read: Query, change: Callable[..., Awaitable[Any]], wanted: Mapping[int, int]
) -> tuple[int, dict[int, int]]:
    """Delete up to these messages, a bounded number: how many went, and what is left to do."""
    room = _BATCH_MESSAGES
    left: dict[int, int] = {}
    chosen: dict[int, int] = {}
    for archive in await _archives(read, list(wanted)):
        last = min(wanted[archive.sid], archive.through)
        if last <= archive.trimmed:
            continue
        through = min(last, archive.trimmed + room)
        if through > archive.trimmed:
            chosen[archive.sid] = through
            room -= through - archive.trimmed
        if through < last:
            left[archive.sid] = last
    if not chosen:
        return 0, left
    gone = await change("SELECT remora.trim($1, $2, $3, $4)", list(chosen), list(chosen.values()))
    return (_BATCH_MESSAGES - room if gone is None else gone), left
