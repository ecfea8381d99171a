"""Deletes a user or a session from the journal's tables, in a transaction of the writer (G13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiosqlite

from remora.storage.erasure_notes import DIGEST_KEYS, decode_note, encode_owners
from remora.storage.erasure_rules import (
    ERASED_TABLES,
    ERROR_REMOVED,
    SYNOPSIS_KIND,
    WORKING_KIND,
    is_erased_with,
)
from remora.storage.journal_port import Erased
from remora.storage.sqlite.schema import SEQ_BITS

__all__ = ["delete_rows"]

_BY_ACTOR = ("folds", "facets", "memories", "jobs", "actors")


async def delete_rows(
    writer: aiosqlite.Connection, user: str, session: str | None
) -> tuple[Erased, Sequence[int]]:
    """Delete their rows, and leave the note; also returns the numbers of their actors."""
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
                "SELECT kind, name, value FROM facets WHERE sid = ? AND kind IN (?, ?)",
                (own, SYNOPSIS_KIND, WORKING_KIND),
            )
            erased = [
                (own, kind, name)
                for kind, name, value in state_items
                if is_erased_with(session, kind, value)
            ]
            await delete(
                "facets", "DELETE FROM facets WHERE sid = ? AND kind = ? AND name = ?", erased
            )
            await delete(
                "memories", "DELETE FROM memories WHERE sid = ? AND session = ?", [(own, session)]
            )
            await writer.execute(
                "UPDATE jobs SET error = ? WHERE sid = ? AND error != ''", (ERROR_REMOVED, own)
            )
        found = {session: found[session]} if session in found else {}
    sids = [(sid,) for sid in found.values()]
    await delete(
        "messages",
        "DELETE FROM messages WHERE pos BETWEEN ? AND ?",
        [(sid << SEQ_BITS, ((sid + 1) << SEQ_BITS) - 1) for (sid,) in sids],
    )
    for table in _BY_ACTOR:
        await delete(table, f"DELETE FROM {table} WHERE sid = ?", sids)
    keys = await writer.execute_fetchall(
        "SELECT value FROM settings WHERE name = ?", (DIGEST_KEYS,)
    )
    owners = encode_owners(user, session, next((value for (value,) in keys), None))
    cursor = await writer.execute(
        "INSERT INTO erasures (user_key, session_key) VALUES (?, ?)", owners
    )
    assert cursor.lastrowid is not None
    return Erased(decode_note(cursor.lastrowid, *owners), removed), [sid for (sid,) in sids]
