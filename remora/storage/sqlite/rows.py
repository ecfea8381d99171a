"""The statements that store the rows of one transaction (`remora.storage.rows`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from zlib import crc32

import msgspec

from remora.storage.records import ENTRY_KIND
from remora.storage.rows import HALF, ROLE_CODES, SEQ_BITS, SHARES, RecordRows, RowKind
from remora.storage.sqlite.connection import Step

__all__ = ["Rows"]

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode

# Frequent rows go as JSON; see `_INSERT_MESSAGES`.
_INSERT_ACTOR = (
    "INSERT INTO actors (sid, user, session, created_us, crc) "
    "SELECT a.value ->> 0, a.value ->> 1, a.value ->> 2, a.value ->> 3, a.value ->> 4 FROM "
    "json_each(?) AS a"
)
_COLUMNS = "pos, at_us, tokens, role, epoch, chat, meta, id, key, batch, importance, crc"
_IF_OWNED = ":epoch = (SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'epoch')"
# All messages of a commit by one statement: places and lengths as JSON, content as one blob.
# `executemany` releases the interpreter's lock at every row, and waits up to 5 ms to get it back
# while the event loop is busy: with 128 rows a commit and a busy thread, 324 rows/s by executemany
# and 6 795 by this (39 292 and 26 580 without one). Nothing is inserted if the journal has another
# owner by now: the last condition is evaluated once.
_INSERT_MESSAGES = (
    f"INSERT INTO messages ({_COLUMNS}) "
    "SELECT m.value ->> 0, m.value ->> 1, m.value ->> 2, m.value ->> 3, :epoch, "
    "substr(:content, m.value ->> 4, m.value ->> 5), "
    "CASE WHEN m.value ->> 6 "
    "THEN substr(:content, (m.value ->> 4) + (m.value ->> 5), m.value ->> 6) "
    "END, m.value ->> 7, "
    "CASE WHEN m.value ->> 8 "
    "THEN substr(:content, (m.value ->> 4) + (m.value ->> 5) + (m.value ->> 6), 16) END, "
    f"m.value ->> 8, (m.value ->> 9) / CAST({SHARES} AS REAL), m.value ->> 10 "
    f"FROM json_each(:places) AS m WHERE {_IF_OWNED}"
)
# A message alone; SQLite takes 16 µs for it, and by the statement above 22. Its parameters have no
# names: for each name `sqlite3` releases the interpreter, which a busy thread may take. The epoch
# comes twice.
_INSERT_MESSAGE = (
    f"INSERT INTO messages ({_COLUMNS}) SELECT {', '.join('?' * 12)} "
    f"WHERE {_IF_OWNED.replace(':epoch', '?')}"
)
_REMOVE_MESSAGE = "UPDATE messages SET removed = ? WHERE pos = ? AND removed IS NULL"
_CHANGE_MESSAGE = (
    "UPDATE messages SET tokens = ?, chat = ?, meta = ?, importance = ?, crc = ? WHERE pos = ?"
)
_PRUNE_MESSAGE = (
    "UPDATE messages SET pruned = 1 WHERE pos = ((SELECT sid FROM actors WHERE user = ? AND "
    f"session = ?) << {SEQ_BITS}) + ?"
)
_PRUNE_ENTRY = (
    "DELETE FROM facets WHERE sid = (SELECT sid FROM actors WHERE user = ? AND session = ?) "
    f"AND kind = '{ENTRY_KIND}' AND name = ?"
)
_UPDATE_WATERMARKS = (
    "UPDATE actors SET generation = m.value ->> 0, summarized = m.value ->> 1, folding = m.value "
    "->> 2, "
    "flushing = m.value ->> 3, cleared = m.value ->> 4, marks_crc = m.value ->> 5 FROM "
    "json_each(?) AS m "
    "WHERE sid = m.value ->> 6"
)
_UPDATE_INDEXED = "UPDATE actors SET flushed = max(flushed, ?) WHERE sid = ?"
_INSERT_FRONT = (
    "INSERT INTO folds (sid, at_seq, kind, generation, first, through, prefix, text, tokens, "
    "degraded, model, input_tokens, cover, crc) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ERASE_SUMMARIES = (
    "UPDATE folds SET text = '', tokens = 0, degraded = 1, model = 'none', cover = NULL, "
    "crc = NULL WHERE sid = ? AND generation < ? AND kind IN ('summary', 'entry') AND EXISTS "
    "(SELECT 1 FROM json_each(?) AS w WHERE w.value BETWEEN first AND through)"
)
_PUT_STATE_ITEM = (
    "INSERT INTO facets (sid, kind, name, value, crc) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET value = excluded.value, crc = excluded.crc"
)
_DROP_STATE_ITEM = "DELETE FROM facets WHERE sid = ? AND kind = ? AND name = ?"
_DELETE_MEMORY = "DELETE FROM memories WHERE id = ?"
_INSERT_MEMORY = (
    "INSERT INTO memories (id, sid, session, agent, content, type, importance, created_us, "
    "tokens, details, crc) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_PUT_MEMORY = _INSERT_MEMORY.replace(
    "DO NOTHING",
    "(id) DO UPDATE SET content = excluded.content, importance = excluded.importance, "
    "tokens = excluded.tokens, details = excluded.details, crc = excluded.crc, "
    "session = excluded.session, type = excluded.type, created_us = excluded.created_us",
)
_INSERT_JOB = "INSERT INTO jobs (id, lane, sid, payload, crc) VALUES (?, ?, ?, ?, ?)"
_ADVANCE_JOB = "UPDATE jobs SET payload = ?, crc = ? WHERE id = ?"
_RETRY_JOB = "UPDATE jobs SET attempts = ?, not_before = ?, error = ? WHERE id = ?"
_DEAD_LETTER_JOB = "UPDATE jobs SET attempts = ?, error = ?, dead = 1 WHERE id = ?"
_RETRY_DEAD_LETTER = "UPDATE jobs SET attempts = 0, not_before = 0, dead = 0 WHERE id = ? AND dead"
_DELETE_JOB = "DELETE FROM jobs WHERE id IN (SELECT j.value ->> 0 FROM json_each(?) AS j)"
_AS_JSON = frozenset({"insert_actor", "update_watermarks", "delete_job"})
_STATEMENTS: dict[RowKind, str] = {
    "insert_actor": _INSERT_ACTOR,
    "remove_message": _REMOVE_MESSAGE,
    "change_message": _CHANGE_MESSAGE,
    "prune_message": _PRUNE_MESSAGE,
    "prune_entry": _PRUNE_ENTRY,
    "update_watermarks": _UPDATE_WATERMARKS,
    "insert_front": _INSERT_FRONT,
    "erase_summaries": _ERASE_SUMMARIES,
    "update_indexed": _UPDATE_INDEXED,
    "insert_job": _INSERT_JOB,
    "advance_job": _ADVANCE_JOB,
    "retry_job": _RETRY_JOB,
    "dead_letter_job": _DEAD_LETTER_JOB,
    "retry_dead_letter": _RETRY_DEAD_LETTER,
    "delete_job": _DELETE_JOB,
    "drop_state_item": _DROP_STATE_ITEM,
    "put_state_item": _PUT_STATE_ITEM,
    "delete_memory": _DELETE_MEMORY,
    "insert_memory": _INSERT_MEMORY,
    "put_memory": _PUT_MEMORY,
}


class Rows(RecordRows):
    """The rows of one transaction, as SQLite takes them."""

    __slots__ = ("_content", "_offset")

    def __init__(self) -> None:
        super().__init__()
        self._content: list[bytes] = []
        self._offset = 1  # SQL counts from 1

    def _append(self, sid: int, entries: tuple[Any, ...], key: bytes | None) -> None:
        base = sid << SEQ_BITS
        digest = key
        keyed = len(entries) if key is not None else None
        for e in entries:
            pos, at_us, tokens, role, chat, meta, id_, importance = (
                base | e.seq,
                e.at_us,
                e.tokens,
                ROLE_CODES[e.role],
                e.chat,
                e.meta or None,
                e.id,
                e.importance,
            )
            share = HALF if importance == 0.5 else int(importance * SHARES)
            crc = crc32(_encode((pos, at_us, tokens, role, chat, meta, id_, share, digest, keyed)))
            length = len(chat)
            rest = len(meta) if meta else 0
            self._messages.append(
                (pos, at_us, tokens, role, self._offset, length, rest, id_, keyed, share, crc)
            )
            self._content.append(chat)
            self._offset += length
            if meta:
                self._content.append(meta)
                self._offset += rest
            if digest is not None:
                self._content.append(digest)
                self._offset += len(digest)
                digest = keyed = None  # the key stands on the first message alone
            self.newest = pos
        if entries:
            self.uses[sid] = entries[-1].at_us

    def message_step(self, epoch: int) -> Step | None:
        """Return what stores the new messages.

        Changes nothing if the writer is not the owner any more.

        Args:
            epoch: the writer's.
        """
        if not self._messages:
            return None
        if len(self._messages) == 1:
            pos, at_us, tokens, role, _, _, length, id_, keyed, share, crc = self._messages[0]
            chat, *rest = self._content
            meta = rest[0] if length else None
            key = rest[-1] if keyed else None
            row = (pos, at_us, tokens, role, epoch, chat, meta, id_, key, keyed, share / SHARES)
            return Step(_INSERT_MESSAGE, [(*row, crc, epoch)], must_change=True)
        parameters = {
            "places": _encode_json(self._messages).decode(),
            "content": b"".join(self._content),
            "epoch": epoch,
        }
        return Step(_INSERT_MESSAGES, [parameters], must_change=True)

    def steps(self) -> Iterator[Step]:
        """Return what stores all but new messages."""
        for kind, rows in self.others():
            yield Step(_STATEMENTS[kind], [_as_json(rows)] if kind in _AS_JSON else rows)


def _as_json(rows: Iterable[tuple[Any, ...]]) -> tuple[str]:
    return (_encode_json(list(rows)).decode(),)
