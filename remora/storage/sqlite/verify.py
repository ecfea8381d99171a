"""Checks every row of a journal: whether it is as it was written, and consistent with others.

Everything here blocks. It reads in one transaction of its own connection: one moment of a journal
that may be in use. Restoring an actor stops at its first damaged row; here all of them are found.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from remora.errors import JournalDamaged, StorageError
from remora.storage.decoding import (
    ENTRY_COLUMNS,
    MEMORY_COLUMNS,
    SEQ_MASK,
    STATE_ITEM_COLUMNS,
    SUMMARY_COLUMNS,
    RowDamaged,
    checksum_differs,
    decode_entry,
    decode_memory,
    decode_state_item,
    decode_summary,
)
from remora.storage.journal_port import Finding
from remora.storage.records import Spec
from remora.storage.rows import SEQ_BITS
from remora.storage.sqlite.changes import read_erased_actors
from remora.storage.sqlite.mark import mark_path, missing_commits, read_mark
from remora.storage.sqlite.schema import FORMAT

_MOST = 100
"""Findings of one kind of row that are listed one by one."""

_BUSY_S = 30.0
_NOT_DAMAGE = (
    "SQLITE_CANTOPEN",
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_IOERR",
    "SQLITE_PERM",
    "SQLITE_READONLY",
    "SQLITE_NOMEM",
)
_decode_payload = msgspec.msgpack.Decoder(Spec).decode
_check = msgspec.msgpack.Decoder(dict[str, Any]).decode


class _Actor(msgspec.Struct):
    """The actor that its rows are compared with."""

    name: str
    session: bool
    watermarks: tuple[
        int, int, int, int, int
    ]  # generation, summarized, summarizing, flushing, cleared
    flushed: int
    trimmed: int
    last: int = 0


def check_journal(path: Path) -> list[Finding]:
    """All damage in a journal, in use or not; empty for none.

    Raises:
        StorageError: it cannot be read at all.
    """
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_S)
        ) as database:
            database.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
            database.isolation_level = None
            database.execute("BEGIN")
            found: list[Finding] = []
            for look in (
                _structure,
                _check_mark,
                _actors_and_messages,
                _summaries,
                _state_items,
                _memories,
                _jobs,
                _notes,
            ):
                try:
                    found.extend(_limit(look(path, database)))
                except (TypeError, JournalDamaged) as e:  # a number that is none, say
                    found.append(_finding(path.name, f"it holds what was never written ({e})"))
                if look is _structure and any(one.kind == "journal" for one in found):
                    break  # the rows of a malformed file say nothing
            return found
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
    ) as e:  # what SQLite says of damage may quote it
        if getattr(e, "sqlite_errorname", "").startswith(_NOT_DAMAGE):
            raise StorageError(f"{path} cannot be read: {e}") from e
        return [_finding(path.name, f"SQLite cannot read it: {e}")]


def _finding(where: str, detail: str) -> Finding:
    return Finding("journal", where, detail, repairable=False)


def _limit(found: Iterator[Finding]) -> Iterator[Finding]:
    count = 0
    for count, one in enumerate(found, start=1):
        if count <= _MOST:
            yield one
    if count > _MOST:
        yield _finding("more", f"and {count - _MOST:,} more of the same kind")


def _structure(path: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    ((number,),) = database.execute("PRAGMA user_version")
    if number != FORMAT:
        yield _finding(path.name, f"it has the format {number}, and not {FORMAT}")
        return
    for (text,) in database.execute(f"PRAGMA integrity_check({_MOST})"):
        if text != "ok":
            yield _finding(path.name, f"SQLite: {text}")


def _check_mark(path: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    mark = read_mark(mark_path(path))
    if mark is not None and (lost := missing_commits(mark, database)):
        detail = f"the journal lacks {lost}; promised at durability {mark.durability}"
        yield Finding("wal", mark_path(path).name, detail, repairable=True)


def _actors_and_messages(_: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    actors: dict[int, _Actor] = {}
    for (
        sid,
        user,
        session,
        created_us,
        crc,
        marks_crc,
        *watermarks,
        flushed,
        trimmed,
    ) in database.execute(
        "SELECT sid, user, session, created_us, crc, marks_crc, "
        "generation, summarized, summarizing, flushing, cleared, flushed, trimmed FROM actors"
    ):
        name = f"session {session!r} of user {user!r}" if session else f"user {user!r}"
        actors[sid] = _Actor(name, bool(session), tuple(watermarks), flushed, trimmed)
        if checksum_differs(crc, (sid, user, session, created_us)):
            yield _finding(name, "its name is not as it was written")
        if checksum_differs(marks_crc, (sid, *watermarks)):
            yield _finding(name, "its marks are not as they were written")
    yield from _messages(database, actors)
    for actor in actors.values():
        yield from _marks(actor)


def _marks(actor: _Actor) -> Iterator[Finding]:
    _, archived_through, summarizing_through, flushing, cleared = actor.watermarks
    last = max(
        actor.last, archived_through
    )  # of a session without rows behind the front, the front says it
    for low, high, what in (
        (cleared, archived_through, "more was cleared than left the buffer"),
        (
            archived_through,
            summarizing_through,
            "more left the buffer than is summarized",
        ),
        (summarizing_through, last, "more is being summarized than was appended"),
        (flushing, last, "more is being indexed than was appended"),
        (actor.flushed, flushing, "more is in long-term memory than was indexed"),
        (actor.trimmed, max(archived_through - 2, 0), "more was trimmed than may be"),
    ):
        if low > high:
            yield _finding(actor.name, f"{what} ({low} > {high})")


def _messages(database: sqlite3.Connection, actors: dict[int, _Actor]) -> Iterator[Finding]:
    sid, wanted, within = 0, 0, 0
    actor: _Actor | None = None
    orphans = set(read_erased_actors(database))
    for row in database.execute(f"SELECT {ENTRY_COLUMNS} FROM messages AS m ORDER BY m.pos"):
        pos, batch = row[0], row[9]
        if pos >> SEQ_BITS != sid or actor is None:
            if within and actor is not None:
                yield _finding(
                    actor.name,
                    f"message {wanted} is missing: it came under the same key as the one before",
                )
            sid, within = pos >> SEQ_BITS, 0
            actor = actors.get(sid)
            if actor is None:
                if sid not in orphans:
                    orphans.add(sid)
                    yield _finding(
                        f"actor {sid}",
                        "there are messages of it, and it is not known whose they are",
                    )
                continue
            wanted = actor.trimmed + 1
        seq = pos & SEQ_MASK
        if seq != wanted:
            which = (
                f"message {wanted} is"
                if seq == wanted + 1
                else f"messages {wanted} to {seq - 1} are"
            )
            yield _finding(
                actor.name,
                f"{which} missing"
                if seq > wanted
                else f"message {seq} is there although it was trimmed",
            )
        wanted, actor.last = seq + 1, seq
        within = max(within - 1, 0) if batch is None else batch - 1
        try:
            entry = decode_entry(row)
            if row[10] is None:
                _check(entry.chat)
        except (RowDamaged, msgspec.DecodeError) as e:
            yield _finding(
                actor.name,
                str(e) if isinstance(e, RowDamaged) else f"message {seq} cannot be read ({e})",
            )
    if within and actor is not None:
        yield _finding(
            actor.name, f"message {wanted} is missing: it came under the same key as the one before"
        )


def _summaries(_: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    names = _names(database)
    for user, session, archived_through, generation, *row in database.execute(
        f"SELECT s.user, s.session, s.summarized, s.generation, {SUMMARY_COLUMNS} FROM "
        "summaries AS f "
        "LEFT JOIN actors AS s ON s.sid = f.sid ORDER BY f.number"
    ):
        where = names.get(row[0], f"actor {row[0]}")
        if user is None or session is None:
            yield _finding(where, "there is a summary of it, and it is not known whose it is")
            continue
        try:
            _kind, of, summary = decode_summary(row)
        except RowDamaged as e:
            yield _finding(where, str(e))
            continue
        if summary.first > summary.through + 1 or (
            of == generation and summary.through > archived_through
        ):
            yield _finding(
                where,
                f"a summary covers messages {summary.first} to {summary.through}, past "
                f"{archived_through}",
            )


def _state_items(_: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    names = _names(database)
    for row in database.execute(
        f"SELECT {STATE_ITEM_COLUMNS} FROM state_items AS x ORDER BY x.rowid"
    ):
        if row[0] not in names:
            yield _finding(
                f"actor {row[0]}", f"{row[1]!r} is kept for it, and it is not known whose it is"
            )
        try:
            decode_state_item(row)
        except RowDamaged as e:
            yield _finding(names.get(row[0], f"actor {row[0]}"), str(e))


def _memories(_: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    users = {sid for (sid,) in database.execute("SELECT sid FROM actors WHERE session = ''")}
    names = _names(database)
    for row in database.execute(f"SELECT {MEMORY_COLUMNS} FROM memories AS m ORDER BY m.number"):
        where = names.get(row[1], f"actor {row[1]}")
        if row[1] not in users:
            yield _finding(where, f"the memory {row[0]} is of no user")
        try:
            decode_memory(row)
        except RowDamaged as e:
            yield _finding(where, str(e))


def _jobs(_: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    names = _names(database)
    for id_, queue, sid, payload, crc in database.execute(
        "SELECT id, queue, sid, payload, crc FROM jobs ORDER BY number"
    ):
        where = names.get(sid, f"actor {sid}")
        if sid not in names:
            yield _finding(where, f"the job {id_} is for no actor")
        if checksum_differs(crc, (id_, queue, sid, payload)):
            yield _finding(where, f"the job {id_} is not as it was written")
            continue
        try:
            _decode_payload(payload)
        except (msgspec.DecodeError, TypeError) as e:
            yield _finding(where, f"the job {id_} cannot be read ({e})")


def _notes(_: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    for number, *texts in database.execute("SELECT number, user_key, session_key FROM erasures"):
        users, sessions = (str(one).split() for one in texts)
        if (
            any(len(one) != 32 for one in (*users, *sessions))
            or not users
            or len(sessions) not in {0, len(users)}
        ):
            yield _finding("erasures", f"the note {number} names no user")
    settings = dict(database.execute("SELECT name, value FROM settings"))
    for name in ("epoch", "commits"):
        if not str(settings.get(name, "0")).isdecimal():
            yield _finding("settings", f"{name} is {settings.get(name)!r}, which is no number")


def _names(database: sqlite3.Connection) -> dict[int, str]:
    return {
        sid: f"session {session!r} of user {user!r}" if session else f"user {user!r}"
        for sid, user, session in database.execute("SELECT sid, user, session FROM actors")
    }
