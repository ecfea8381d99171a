"""Removes damaged rows from a journal, so that the rest can be used again. Everything here blocks.

For a journal that no process has open, when its owner has agreed: what is removed is lost. A
message is replaced by a removed one with its number, so its session counts on and nothing shows it.
The messages of a removed summary stay in the history. The work of a removed job is done by a later
job where the journal still shows it. An actor whose own row is damaged cannot be helped: its owner
is unknown.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from remora.errors import JournalDamaged, StorageError
from remora.storage.decoding import (
    ENTRY_COLUMNS,
    JOB_COLUMNS,
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
from remora.storage.records import BLANK_CHAT
from remora.storage.rows import ROLES, SEQ_BITS, SHARES, row_crc

_SUMMARIZE_QUEUE = "summarize"
_UNKNOWN = "an unknown actor"
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
                for drop in (_messages, _summaries, _state_items, _memories, _jobs)
                for line in drop(database)
            ]
            if done:  # a counted commit, so that the mark is not ahead
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
        crc = row_crc((pos, when, 0, _ROLE, BLANK_CHAT, None, None, share, None, None))
        database.execute(_INSERT, (pos, when, _ROLE, BLANK_CHAT, pos & SEQ_MASK, crc))
        yield f"given up: message {pos & SEQ_MASK} of {names.get(pos >> SEQ_BITS, _UNKNOWN)}; {why}"


def _unreadable(
    database: sqlite3.Connection, table: str, columns: str, read: Callable[[list[Any]], object]
) -> Iterator[list[Any]]:
    """Remove the unreadable rows of a table, and yield them."""
    for number, *row in list(database.execute(f"SELECT {columns} ORDER BY 1")):
        try:
            read(row)
        except RowDamaged:
            database.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
            yield row


def _summaries(database: sqlite3.Connection) -> Iterator[str]:
    names = _names(database)
    for row in _unreadable(
        database, "summaries", f"f.number, {SUMMARY_COLUMNS} FROM summaries AS f", decode_summary
    ):
        name = names.get(row[0], _UNKNOWN)
        yield f"given up: a summary of {name}; its messages are in the history"


def _state_items(database: sqlite3.Connection) -> Iterator[str]:
    names = _names(database)
    for row in _unreadable(
        database,
        "state_items",
        f"x.rowid, {STATE_ITEM_COLUMNS} FROM state_items AS x",
        decode_state_item,
    ):
        yield f"given up: the state item {row[1]!a} of {names.get(row[0], _UNKNOWN)}"


def _memories(database: sqlite3.Connection) -> Iterator[str]:
    names = _names(database)
    for row in _unreadable(
        database, "memories", f"m.number, {MEMORY_COLUMNS} FROM memories AS m", decode_memory
    ):
        yield f"given up: the memory {_printable(row[0])} of {names.get(row[1], _UNKNOWN)}"


def _jobs(database: sqlite3.Connection) -> Iterator[str]:
    names = _names(database)
    rows = list(
        database.execute(
            f"SELECT j.number, {JOB_COLUMNS} FROM jobs AS j LEFT JOIN actors AS s USING "
            "(sid) ORDER BY j.number"
        )
    )
    for number, *row in rows:
        if decode_jobs([row]):
            continue
        sid, queue = row[-2], row[1]
        database.execute("DELETE FROM jobs WHERE number = ?", (number,))
        if queue == _SUMMARIZE_QUEUE:  # the next job summarizes its messages
            for watermarks in list(
                database.execute(
                    "SELECT generation, summarized, summarized, flushing, cleared FROM actors "
                    "WHERE sid = ?",
                    (sid,),
                )
            ):
                database.execute(
                    "UPDATE actors SET summarizing = summarized, marks_crc = CASE WHEN "
                    "marks_crc IS NOT NULL THEN ? END WHERE sid = ?",
                    (row_crc((sid, *watermarks)), sid),
                )
        yield f"given up: a job of the queue {queue!a} for {names.get(sid, _UNKNOWN)}"


def _names(database: sqlite3.Connection) -> dict[int, str]:
    return {
        sid: _printable(f"{user} / {session}" if session else str(user))
        for sid, user, session in database.execute("SELECT sid, user, session FROM actors")
    }


def _printable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
