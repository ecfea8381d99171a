"""Finding archived originals beyond their limits, in a database.

What is beyond the limits is found in chunks, while writes go on. The writer deletes in bounded
commits, and looks again first: what a session needs may have changed, and must not be removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from remora.logging import get_logger
from remora.messages.attachments import MAGIC
from remora.storage.decoding import SEQ_MASK
from remora.storage.journal_port import Retention
from remora.storage.pending import (
    ArchivedRange,
    MessageSizes,
    choose_oldest,
    first_message_needed,
    last_removable,
)
from remora.storage.records import Spec
from remora.storage.sql.queries import Query

BATCH_MESSAGES = 1_000
"""Messages deleted by one commit, at most: writes queued behind it wait some milliseconds."""

_logger = get_logger(__name__)
_SESSIONS_AT_ONCE = 500
_ROWS_AT_ONCE = 65_536  # of all sessions, in memory while the oldest are searched
_DAY_US = 86_400_000_000
_decode_payload = msgspec.msgpack.Decoder(Spec).decode


class Archive:
    """The archived messages of sessions, which a database knows by number.

    Args:
        query: runs its queries.
    """

    def __init__(self, query: Query) -> None:
        self._query = query

    async def sessions(self, after: int, limit: int) -> list[int]:
        """Return those with archived messages, in order, from behind a number on."""
        rows = await self._query("archived_sessions", after=after, limit=limit)
        return [sid for (sid,) in rows]

    async def jobs(self, sids: Sequence[int]) -> Sequence[tuple[int, bytes]]:
        """Session and payload of their jobs."""
        return await self._query("jobs_of_actors", sids=sids)

    async def bounds(self, sids: Sequence[int]) -> Sequence[tuple[int, int, int, int | None]]:
        """Session, last message trimmed, last one archived, and position of the first unflushed.

        A flush job still has to index that one: it is after `flushed`, up to `flushing`, neither
        pruned nor removed. Messages after `flushing` left the buffer without long-term memory.
        """
        return await self._query("archive_bounds", sids=sids)

    async def first_since(self, archive: ArchivedRange, at_us: int) -> int | None:
        """The first message of a range that is not older; None for none."""
        first, last = archive.positions
        rows = await self._query("first_since", first=first, last=last, at_us=at_us)
        return _first_seq(rows)

    async def newest_beyond(self, archive: ArchivedRange, count: int) -> int | None:
        """The newest archived message of a session that is not among its `count` newest."""
        rows = await self._query(
            "newest_beyond", sid=archive.sid, trimmed=archive.trimmed, count=count
        )
        return _first_seq(rows)

    async def may_exceed(self, limit: int) -> bool:
        """Return whether messages may take more bytes, by what is known without reading them."""
        ((size,),) = await self._query("most_bytes")
        return bool(size > limit)

    async def attaching(self, wanted: Mapping[int, int]) -> list[str]:
        """The users whose messages up to these refer to attachments."""
        rows = await self._query("users_with_attachments", ends=list(wanted.items()), magic=MAGIC)
        return [user for (user,) in rows]

    async def size(self, sids: Sequence[int]) -> int:
        """Bytes of their archived messages."""
        ((size,),) = await self._query("archive_size", sids=sids)
        return int(size)

    async def sizes(self, limit: int, archive: ArchivedRange, first: int) -> MessageSizes:
        """Some messages of a range, from this one on, in order."""
        start, last = ArchivedRange(archive.sid, first - 1, archive.through).positions
        rows = await self._query("message_sizes", first=start, last=last, limit=limit)
        return [(pos & SEQ_MASK, at_us, size) for pos, at_us, size in rows]


def _first_seq(rows: Sequence[tuple[int]]) -> int | None:
    return rows[0][0] & SEQ_MASK if rows else None


async def trim_beyond(
    archive: Archive,
    limits: Retention,
    now_us: int,
    remove: Callable[[Mapping[int, int]], Awaitable[tuple[int, dict[int, int]]]],
) -> int:
    """Remove what is beyond the limits; see `remora.storage.ports.Journal.trim`.

    Args:
        archive: what there is.
        limits: how much of it may be there.
        now_us: microseconds since 1970.
        remove: a commit that removes messages, some of those up to the given ones: how many went,
            and what is left to do.

    Returns:
        How many messages went.
    """
    count = 0
    async for wanted in _messages_beyond(archive, limits, now_us):
        left: Mapping[int, int] = wanted
        while left:
            gone, left = await remove(left)
            count += gone
    if count:
        _logger.info("journal_trimmed", messages=count)
    return count


async def choose_batch(
    archive: Archive, wanted: Mapping[int, int]
) -> tuple[list[ArchivedRange], dict[int, int]]:
    """Choose what one commit removes.

    Args:
        archive: as the commit finds it.
        wanted: by session, the last message to remove.

    Returns:
        What it removes, `BATCH_MESSAGES` at most, and what is left to do.
    """
    room = BATCH_MESSAGES
    chosen: list[ArchivedRange] = []
    left: dict[int, int] = {}
    for one in await _ranges(archive, list(wanted)):
        last = min(wanted[one.sid], one.through)
        if last <= one.trimmed:
            continue
        through = min(last, one.trimmed + room)
        if through > one.trimmed:
            chosen.append(ArchivedRange(one.sid, one.trimmed, through))
            room -= through - one.trimmed
        if through < last:
            left[one.sid] = last
    return chosen, left


async def _messages_beyond(
    archive: Archive, limits: Retention, now_us: int
) -> AsyncIterator[dict[int, int]]:
    """By session, the last message that is beyond the limits and may go.

    Some sessions at a time.
    """
    if limits.max_age_days > 0 or limits.max_messages > 0:
        async for sids in _sessions(archive):
            if found := await _beyond_each(archive, sids, limits, now_us):
                yield found
    if limits.max_bytes > 0 and (found := await _beyond_bytes(archive, limits.max_bytes)):
        yield found


async def _sessions(archive: Archive) -> AsyncIterator[list[int]]:
    last = 0
    while sids := await archive.sessions(last, _SESSIONS_AT_ONCE):
        yield sids
        last = sids[-1]


async def _ranges(archive: Archive, sids: Sequence[int]) -> list[ArchivedRange]:
    """Return what may be removed of these sessions."""
    needed: dict[int, list[int | None]] = {}
    for sid, payload in await archive.jobs(sids):
        try:
            first = first_message_needed(_decode_payload(payload))
        except msgspec.DecodeError:
            first = 1  # it may need any message
        needed.setdefault(sid, []).append(first)
    found = []
    for sid, trimmed, archived_through, unflushed in await archive.bounds(sids):
        waiting = None if unflushed is None else unflushed & SEQ_MASK
        through = last_removable(archived_through, waiting, needed.get(sid, ()))
        if through > trimmed:
            found.append(ArchivedRange(sid, trimmed, through))
    return found


async def _beyond_each(
    archive: Archive, sids: Sequence[int], limits: Retention, now_us: int
) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in await _ranges(archive, sids):
        last = 0
        if limits.max_age_days > 0:
            oldest = now_us - int(limits.max_age_days * _DAY_US)
            young = await archive.first_since(one, oldest)
            last = one.through if young is None else young - 1
        if limits.max_messages > 0:
            surplus = await archive.newest_beyond(one, limits.max_messages)
            last = last if surplus is None else max(last, min(surplus, one.through))
        if last > one.trimmed:
            found[one.sid] = last
    return found


async def _beyond_bytes(archive: Archive, limit: int) -> dict[int, int]:
    if not await archive.may_exceed(limit):
        return {}
    total = 0
    ranges: list[ArchivedRange] = []
    async for sids in _sessions(archive):
        total += await archive.size(sids)
        ranges.extend(await _ranges(archive, sids))
    if total <= limit:
        return {}
    at_once = max(_ROWS_AT_ONCE // max(len(ranges), 1), 1)
    return await choose_oldest(ranges, total - limit, partial(archive.sizes, at_once))
