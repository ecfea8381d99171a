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
from remora.storage.postgres.reading import Read
from remora.storage.rows import SEQ_BITS
from remora.storage.sql.queries import Query
from remora.storage.sql.trimming import Archive, choose_batch

_SLICE_MESSAGES = 500  # some milliseconds
_SLICE_ACTORS = 200


async def delete_rows(
    read: Read, change: Callable[..., Awaitable[Any]], user: str, session: str | None
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
            "SELECT kind, name, value FROM remora.state_items WHERE sid = $1 AND "
            "kind = ANY($2::text[])",
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
    note, actors, summaries, state_items, memories, jobs = answer
    removed = dict.fromkeys(ERASED_TABLES, 0)
    removed.update(
        actors=actors, summaries=summaries, state_items=state_items, memories=memories, jobs=jobs
    )
    removed["messages"] = messages
    return Erased(decode_note(note, *owners), removed), list(found.values())


async def delete_messages(change: Callable[..., Awaitable[Any]]) -> tuple[int, bool]:
    """Delete some messages of erased actors: how many went, and whether there may be more."""
    answer = await change(
        "SELECT remora.delete_messages($1, $2, $3, $4)", _SLICE_MESSAGES, _SLICE_ACTORS
    )
    return (0, True) if answer is None else (answer[0], bool(answer[1]))


async def trim_rows(
    query: Query, change: Callable[..., Awaitable[Any]], wanted: Mapping[int, int]
) -> tuple[int, dict[int, int]]:
    """Delete up to these messages, a bounded number: how many went, and what is left to do."""
    chosen, left = await choose_batch(Archive(query), wanted)
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
