"""Deletes a user or a session from the journal's tables, in transactions of the writer (G13).

The first transaction deletes the actors and all their rows but the messages, which nothing finds
without their actor; it leaves the note, and the numbers of the actors in a setting. Messages are
then deleted in slices, so that other sessions' appends wait for one slice at most. Whatever ends
the process in between, `scrub` goes on with the numbers in the setting.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import aiosqlite
import msgspec

from remora.errors import JournalDamaged
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
from remora.storage.rows import SEQ_BITS

ERASED_ACTORS = "erased_actors"
"""The setting that has the numbers of the actors whose messages are to be deleted, as JSON."""

_SLICE_MESSAGES = 500  # some milliseconds
_SLICE_ACTORS = 200
_BY_ACTOR = ("summaries", "state_items", "memories", "jobs", "actors")
_SELECT_SETTING = "SELECT value FROM settings WHERE name = ?"
_DELETE_SOME = (
    "DELETE FROM messages WHERE pos IN (SELECT m.pos FROM json_each(?) AS w CROSS JOIN messages "
    f"AS m ON m.pos BETWEEN w.value << {SEQ_BITS} AND ((w.value + 1) << {SEQ_BITS}) - 1 LIMIT ?) "
    f"RETURNING pos >> {SEQ_BITS}"
)
_decode_sids = msgspec.json.Decoder(list[int]).decode


async def delete_rows(
    writer: aiosqlite.Connection, user: str, session: str | None
) -> tuple[Erased, Sequence[int]]:
    """Delete their rows but the messages, and leave the note.

    Also returns the numbers of their actors.
    """
    removed = dict.fromkeys(ERASED_TABLES, 0)

    async def delete(table: str, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            removed[table] += (await writer.executemany(statement, rows)).rowcount

    # Numbers of actors are part of the ids of messages and jobs, and never given out again.
    await writer.execute(
        "INSERT INTO settings SELECT 'last_sid', coalesce(max(sid), 0) FROM actors WHERE true "
        "ON CONFLICT DO UPDATE SET value = max(CAST(value AS INTEGER), CAST(excluded.value AS "
        "INTEGER))"
    )
    rows = await writer.execute_fetchall("SELECT session, sid FROM actors WHERE user = ?", (user,))
    found: dict[str, int] = {name: sid for name, sid in rows}  # noqa: C416
    own = found.get("")
    if session is not None:
        if own is not None:
            state_items = await writer.execute_fetchall(
                "SELECT kind, name, value FROM state_items WHERE sid = ? AND kind IN (?, ?, ?)",
                (own, *ERASED_KINDS),
            )
            sid = found.get(session, -1)
            ((newest,),) = await writer.execute_fetchall(
                f"SELECT coalesce(max(pos) & {SEQ_MASK}, 0) FROM messages "
                f"WHERE pos BETWEEN ? << {SEQ_BITS} AND ((? + 1) << {SEQ_BITS}) - 1",
                (sid, sid),
            )
            key = SessionKey(user, session)
            items = [(kind, name, value) for kind, name, value in state_items]
            gone = await run_in_thread(lambda: find_erased(key, newest, items))
            erased = [(own, kind, name) for kind, name in gone]
            await delete(
                "state_items",
                "DELETE FROM state_items WHERE sid = ? AND kind = ? AND name = ?",
                erased,
            )
            await delete(
                "memories", "DELETE FROM memories WHERE sid = ? AND session = ?", [(own, session)]
            )
            await writer.execute(
                "UPDATE jobs SET error = ? WHERE sid = ? AND error != ''", (ERROR_REMOVED, own)
            )
        found = {session: found[session]} if session in found else {}
    sids = [(sid,) for sid in found.values()]
    for table in _BY_ACTOR:
        await delete(table, f"DELETE FROM {table} WHERE sid = ?", sids)
    if sids:
        await _set_erased_actors(writer, [*await _erased_actors(writer), *(sid for (sid,) in sids)])
    keys = await writer.execute_fetchall(_SELECT_SETTING, (DIGEST_KEYS,))
    owners = encode_owners(user, session, next((value for (value,) in keys), None))
    cursor = await writer.execute(
        "INSERT INTO erasures (user_key, session_key) VALUES (?, ?)", owners
    )
    assert cursor.lastrowid is not None
    return Erased(decode_note(cursor.lastrowid, *owners), removed), [sid for (sid,) in sids]


async def delete_message_slice(writer: aiosqlite.Connection) -> tuple[Counter[int], bool]:
    """Delete some messages of erased actors, within a transaction.

    How many of each actor went, and whether there may be more.
    """
    sids = await _erased_actors(writer)
    if not sids:
        return Counter(), False
    some = msgspec.json.encode(sids[:_SLICE_ACTORS]).decode()
    rows = await writer.execute_fetchall(_DELETE_SOME, (some, _SLICE_MESSAGES))
    gone = Counter(sid for (sid,) in rows)
    if gone.total() < _SLICE_MESSAGES:
        del sids[:_SLICE_ACTORS]
        await _set_erased_actors(writer, sids)
    return gone, bool(sids)


def read_erased_actors(database: sqlite3.Connection) -> list[int]:
    """The numbers of actors whose messages are still to be deleted."""
    return _decode_rows(database.execute(_SELECT_SETTING, (ERASED_ACTORS,)))


async def _erased_actors(writer: aiosqlite.Connection) -> list[int]:
    return _decode_rows(await writer.execute_fetchall(_SELECT_SETTING, (ERASED_ACTORS,)))


async def _set_erased_actors(writer: aiosqlite.Connection, sids: Sequence[int]) -> None:
    value = msgspec.json.encode(sids).decode()
    await writer.execute(
        "INSERT INTO settings VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
        (ERASED_ACTORS, value),
    )


def _decode_rows(rows: Iterable[Any]) -> list[int]:
    try:
        return next((_decode_sids(value) for (value,) in rows), [])
    except msgspec.DecodeError as e:
        raise JournalDamaged(
            f"the setting {ERASED_ACTORS} of the journal is not as it was written ({e}): messages "
            "that were being erased are not found; restore a backup"
        ) from e
