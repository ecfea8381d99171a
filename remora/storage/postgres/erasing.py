"""Deletes a user or a session from the tables, in commits of the writer (G13).

The first commit deletes the actors and all their rows but the messages, which nothing finds without
their actor; it leaves the note, and the numbers of the actors. Messages are then deleted in slices,
so that other sessions' appends wait for one slice at most. What is to be deleted is read before:
between two commits of its owner nothing changes in a journal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from remora.errors import OutcomeUnknown
from remora.ids import SessionKey
from remora.messages.attachments import MAGIC
from remora.runtime.threads import run_in_thread
from remora.storage.decoding import SEQ_MASK
from remora.storage.erasure_notes import (
    DIGEST_KEYS,
    ERASED_KINDS,
    ERASED_TABLES,
    ERROR_REMOVED,
    decode_note,
    encode_owners,
    find_erased,
)
from remora.storage.journal_port import Erased
from remora.storage.postgres.reading import Query
from remora.storage.retention import ArchivedRange, MessageSizes
from remora.storage.rows import SEQ_BITS
from remora.storage.trimming import choose_batch

_SLICE_MESSAGES = 500  # some milliseconds
_SLICE_ACTORS = 200


async def delete_rows(
    read: Query, change: Callable[..., Awaitable[Any]], user: str, session: str | None
) -> tuple[Erased, Sequence[int]]:
    """Delete their rows but the messages, and leave the note.

    Also returns the numbers of their actors.
    """
    rows = await read("SELECT session, sid FROM remora.actors AS s WHERE s.user = $1", user)
    found: dict[str, int] = {name: sid for name, sid in rows}  # noqa: C416
    own, items = None, list[tuple[str, bytes]]()
    if session is not None:
        own = found.get("")
        kept = await read(
            "SELECT kind, name, value FROM remora.facets WHERE sid = $1 AND kind = ANY($2::text[])",
            own,
            list(ERASED_KINDS),
        )
        sid = found.get(session, -1)
        ((newest,),) = await read(
            f"SELECT coalesce(max(pos) & {SEQ_MASK}, 0) FROM remora.messages "
            f"WHERE pos BETWEEN $1::bigint << {SEQ_BITS} AND (($1::bigint + 1) << {SEQ_BITS}) - 1",
            sid,
        )
        key = SessionKey(user, session)
        named = [(kind, name.decode(), value) for kind, name, value in kept]
        gone = await run_in_thread(lambda: find_erased(key, newest, named))
        items = [(kind, name.encode()) for kind, name in gone]
        found = {session: found[session]} if session in found else {}
    ((messages,),) = await read(
        "SELECT count(*) FROM unnest($1::bigint[]) AS w JOIN remora.messages AS m ON m.pos BETWEEN "
        f"w << {SEQ_BITS} AND ((w + 1) << {SEQ_BITS}) - 1",
        list(found.values()),
    )
    keys = await read("SELECT value FROM remora.settings WHERE name = $1", DIGEST_KEYS)
    owners = encode_owners(user, session, keys[0][0].decode() if keys else None)
    answer = await change(
        "SELECT remora.erase($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        list(found.values()),
        own,
        session,
        [kind for kind, _ in items],
        [name for _, name in items],
        ERROR_REMOVED.encode(),
        *owners,
    )
    if answer is None:
        raise OutcomeUnknown(
            "the connection broke when all was deleted but the messages; erase again"
        )
    note, actors, folds, facets, memories, jobs = answer
    removed = dict.fromkeys(ERASED_TABLES, 0)
    removed.update(actors=actors, folds=folds, facets=facets, memories=memories, jobs=jobs)
    removed["messages"] = messages
    return Erased(decode_note(note, *owners), removed), list(found.values())


async def delete_messages(change: Callable[..., Awaitable[Any]]) -> tuple[int, bool]:
    """Delete some messages of erased actors: how many went, and whether there may be more."""
    answer = await change(
        "SELECT remora.delete_messages($1, $2, $3, $4)", _SLICE_MESSAGES, _SLICE_ACTORS
    )
    return (0, True) if answer is None else (answer[0], bool(answer[1]))


# -- archived originals in PostgreSQL: what there is, and removing it ------------------------------

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
