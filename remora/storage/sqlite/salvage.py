"""Taking out of a journal what is damaged in it, so that the rest can be used again.

Everything here blocks.

Only for a journal that nobody has open, and only where whoever owns it has said so: what goes is
lost. A message keeps its number: in its place stands a row that was removed as soon as it was
there, so that its session counts on as before and nothing ever shows it. A summary that goes leaves
its messages in the history; a job that goes is put anew where it can be told what it was for. An
actor whose own row is damaged cannot be helped: nobody knows whose it was.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from remora.errors import JournalDamaged, StorageError
from remora.storage.sqlite.images import (
    CHECKED_JOB_COLUMNS,
    ENTRY_COLUMNS,
    MEMORY_COLUMNS,
    SEQ_MASK,
    STATE_ITEM_COLUMNS,
    SUMMARY_COLUMNS,
    RowDamaged,
    decode_entry,
    decode_jobs,
    decode_memory,
    decode_state_item,
    decode_summary,
)
from remora.storage.sqlite.rows import ROLES, SHARES, row_crc
from remora.storage.sqlite.schema import SEQ_BITS

__all__ = ["drop_damaged"]

_FOLD_LANE = "summarize"
_EMPTY = msgspec.msgpack.encode({"role": "user", "content": ""})
_ROLE = ROLES.index("user")
_INSERT = (
    "INSERT OR REPLACE INTO messages (pos, at_us, tokens, role, epoch, chat, importance, removed, "
    "pruned, crc) "
    "VALUES (?, ?, 0, ?, 0, ?, 0.5, ?, 1, ?)"
)


def drop_damaged(journal: Path) -> list[str]:
    """Remove each row that is not as it was written, all in one transaction.

    What went, a line each.

    Args:
        journal: the file, of the newest format.

    Raises:
        JournalDamaged: SQLite cannot read it; nothing was changed.
        StorageError: it cannot be written; nothing was changed.
    """
    try:
        with closing(sqlite3.connect(journal, isolation_level=None)) as database:
            database.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
            database.execute("PRAGMA secure_delete = ON")
            database.execute("BEGIN IMMEDIATE")
            done = [
                line
                for drop in (_messages, _folds, _facets, _memories, _jobs)
                for line in drop(database)
            ]
            if done:  # it counts as a commit, which its mark must not be ahead of
                database.execute("UPDATE settings SET value = value + 1 WHERE name = 'commits'")
            database.execute("COMMIT")
    except sqlite3.OperationalError as e:
        raise StorageError(f"{journal} cannot be written: {e}") from e
    except sqlite3.DatabaseError as e:
        raise JournalDamaged(
            f"{journal} is damaged so that SQLite cannot read it: {e}; restore a backup"
        ) from e
    return done


def _messages(database: sqlite3.Connection) -> Iterator[str]:
    names = _names(database)
    trimmed = dict(database.execute("SELECT sid, trimmed FROM actors"))
    sid, wanted, at_us = -1, 0, 0
    lost: list[tuple[int, int, str]] = []
    for row in database.execute(f"SELECT {ENTRY_COLUMNS} FROM messages AS m ORDER BY m.pos"):
        pos = row[0]
        if pos >> SEQ_BITS != sid:
            sid, at_us = pos >> SEQ_BITS, 0
            wanted = trimmed.get(sid, 0) + 1
        seq = pos & SEQ_MASK
        if sid in names:
            lost += [
                (sid << SEQ_BITS | gone, at_us, "it was missing") for gone in range(wanted, seq)
            ]
        wanted = seq + 1
        try:
            at_us = decode_entry(row).at_us
        except RowDamaged:
            lost.append((pos, at_us, "it was not as it was written"))
    for pos, when, why in lost:
        share = SHARES // 2
        crc = row_crc((pos, when, 0, _ROLE, _EMPTY, None, None, share, None, None))
        database.execute(_INSERT, (pos, when, _ROLE, _EMPTY, pos & SEQ_MASK, crc))
        yield f"given up: message {pos & SEQ_MASK} of {names[pos >> SEQ_BITS]}; {why}"


def _unreadable(
    database: sqlite3.Connection, table: str, columns: str, read: Callable[[list[Any]], object]
) -> Iterator[list[Any]]:
    """Remove the rows of a table that cannot be read, and give what stood in them."""
    for number, *row in list(database.execute(f"SELECT {columns} ORDER BY 1")):
        try:
            read(row)
        except RowDamaged:
            database.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
            yield row


def _folds(database: sqlite3.Connection) -> Iterator[str]:
    names = _names(database)
    for row in _unreadable(
        database, "folds", f"f.number, {SUMMARY_COLUMNS} FROM folds AS f", decode_summary
    ):
        yield f"given up: a summary of {names.get(row[0], 'nobody')}; its messages are in the history"  # noqa: E501


def _facets(database: sqlite3.Connection) -> Iterator[str]:
    names = _names(database)
    for row in _unreadable(
        database, "facets", f"x.rowid, {STATE_ITEM_COLUMNS} FROM facets AS x", decode_state_item
    ):
        yield f"given up: what was kept of {names.get(row[0], 'nobody')} as {row[1]!a}"


def _memories(database: sqlite3.Connection) -> Iterator[str]:
    names = _names(database)
    for row in _unreadable(
        database, "memories", f"m.number, {MEMORY_COLUMNS} FROM memories AS m", decode_memory
    ):
        yield f"given up: the memory {_shown(row[0])} of {names.get(row[1], 'nobody')}"


def _jobs(database: sqlite3.Connection) -> Iterator[str]:
    names = _names(database)
    rows = list(
        database.execute(
            f"SELECT j.number, {CHECKED_JOB_COLUMNS} FROM jobs AS j LEFT JOIN actors AS s USING "
            "(sid) ORDER BY j.number"
        )
    )
    for number, *row in rows:
        if decode_jobs([row]):
            continue
        sid, lane = row[-2], row[1]
        database.execute("DELETE FROM jobs WHERE number = ?", (number,))
        if lane == _FOLD_LANE:  # its messages are folded by the next
            for watermarks in list(
                database.execute(
                    "SELECT generation, summarized, summarized, flushing, cleared FROM actors "
                    "WHERE sid = ?",
                    (sid,),
                )
            ):
                database.execute(
                    "UPDATE actors SET folding = summarized, marks_crc = CASE WHEN marks_crc IS "
                    "NOT NULL THEN ? END "
                    "WHERE sid = ?",
                    (row_crc((sid, *watermarks)), sid),
                )
        yield f"given up: a job of the lane {lane!a} for {names.get(sid, 'nobody')}"


def _names(database: sqlite3.Connection) -> dict[int, str]:
    return {
        sid: _shown(f"{user} / {session}" if session else str(user))
        for sid, user, session in database.execute("SELECT sid, user, session FROM actors")
    }


def _shown(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
