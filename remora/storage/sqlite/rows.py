"""From records to rows: the statements of one transaction of the journal.

Records of many actors are grouped by kind, so a commit is one statement for each kind of row. This
is sound because a record holds what is true after it: watermarks are absolute, a job starts before
it ends, and where the order of two records matters (a state item dropped and put again), the later
one wins here, before SQL sees either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from zlib import crc32

import msgspec

from remora.runtime.jobs import DeadLetterRetried, Job, JobDeadLettered, JobDone, JobRetried
from remora.runtime.log import Write
from remora.storage.records import (
    ENTRY_KIND,
    Appended,
    BufferMoved,
    Flushed,
    JobAdvanced,
    JobsStarted,
    MemoriesRemoved,
    MemoryChanged,
    MemoryItem,
    MessageRange,
    Opened,
    Pruned,
    Remembered,
    StateChanged,
    StateItem,
    Summary,
    Watermarks,
)
from remora.storage.sqlite.schema import SEQ_BITS

__all__ = [
    "INSERT_MESSAGES",
    "ROLES",
    "SHARES",
    "FactDetails",
    "FallbackCover",
    "MemoryDetails",
    "Rows",
    "is_large",
    "row_crc",
]

_ROWS_IN_THREAD = 1_000  # made on the event loop in a few milliseconds
_BYTES_IN_THREAD = 1_000_000
ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLE_CODES = {role: code for code, role in enumerate(ROLES)}
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode

SHARES = 1 << 62
"""Importance goes to SQLite as an integer number of these parts.

SQLite's decimal text does not always keep a float's last bit.
"""

_NO_SUMMARY = ("", "", 0, 0, "", 0)  # prefix to input_tokens, where only the front moved
_HALF = SHARES // 2  # the default importance


def row_crc(values: tuple[Any, ...]) -> int:
    """The checksum of a row: CRC-32 of its immutable columns in msgpack.

    Its input is part of the format, and must never change. It detects every flipped byte and every
    burst of 32 bits, and misses one other error in four thousand million. It does not protect
    against deliberate changes.
    """
    return crc32(_encode(values))


def _count_rows(record: Any) -> int:
    """About how many rows a record becomes."""
    kind = type(record)
    if kind is Appended:
        return len(record.entries)
    if kind is BufferMoved:
        return len(record.removed) + 1
    if kind is Pruned:
        return len(record.seqs) + len(record.entries)
    if kind is Remembered:
        return len(record.memories)
    if kind is MemoriesRemoved:
        return len(record.ids)
    if kind is StateChanged:
        return len(record.put) + len(record.dropped)
    return 1


def is_large(batch: Iterable[Write]) -> bool:
    """Whether making the rows of these writes would hold the event loop."""
    rows = size = 0
    for write in batch:
        size += write.size
        for record in write.records:
            rows += _count_rows(record)
    return rows > _ROWS_IN_THREAD or size > _BYTES_IN_THREAD


# Frequent rows go as JSON; see `INSERT_MESSAGES`.
_INSERT_ACTOR = (
    "INSERT INTO actors (sid, user, session, created_us, crc) "
    "SELECT a.value ->> 0, a.value ->> 1, a.value ->> 2, a.value ->> 3, a.value ->> 4 FROM "
    "json_each(?) AS a"
)
# All messages of a commit by one statement: places and lengths as JSON, content as one blob.
# `executemany` releases the interpreter's lock at every row, and waits up to 5 ms to get it back
# while the event loop is busy: with 128 rows a commit and a busy thread, 324 rows/s by executemany
# and 6 795 by this (39 292 and 26 580 without one). Nothing is inserted if the journal has another
# owner by now: the last condition is evaluated once.
INSERT_MESSAGES = (
    "INSERT INTO messages (pos, at_us, tokens, role, epoch, chat, meta, id, key, batch, "
    "importance, crc) "
    "SELECT m.value ->> 0, m.value ->> 1, m.value ->> 2, m.value ->> 3, :epoch, "
    "substr(:content, m.value ->> 4, m.value ->> 5), "
    "CASE WHEN m.value ->> 6 "
    "THEN substr(:content, (m.value ->> 4) + (m.value ->> 5), m.value ->> 6) "
    "END, m.value ->> 7, "
    "CASE WHEN m.value ->> 8 "
    "THEN substr(:content, (m.value ->> 4) + (m.value ->> 5) + (m.value ->> 6), 16) END, "
    f"m.value ->> 8, (m.value ->> 9) / CAST({SHARES} AS REAL), m.value ->> 10 "
    "FROM json_each(:places) AS m "
    "WHERE :epoch = (SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'epoch')"
)
_REMOVE_MESSAGE = "UPDATE messages SET removed = ? WHERE pos = ? AND removed IS NULL"
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
_AS_JSON = frozenset({_INSERT_ACTOR, _DELETE_JOB})
# The order of storing: a row before what refers to it, a job's start before its end. Rows of one
# kind are in the order of their records.
_STATEMENTS = (
    _INSERT_ACTOR,
    _REMOVE_MESSAGE,
    _PRUNE_MESSAGE,
    _PRUNE_ENTRY,
    _UPDATE_WATERMARKS,
    _INSERT_FRONT,
    _UPDATE_INDEXED,
    _INSERT_JOB,
    _ADVANCE_JOB,
    _RETRY_JOB,
    _DEAD_LETTER_JOB,
    _RETRY_DEAD_LETTER,
    _DELETE_JOB,
)


class MemoryDetails(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a memory's row says beyond format 3; see `remora.storage.records.MemoryItem`."""

    key: str = ""
    metadata: str = ""
    revision: int = 0
    updated_us: int = 0


class FactDetails(MemoryDetails, frozen=True, array_like=True, omit_defaults=True):
    """The same of a fact that was extracted; other rows do not have its last two."""

    sources: tuple[int, ...] = ()
    topic: str = ""


class FallbackCover(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a summary's row says beyond format 2; see `remora.storage.records.Summary`."""

    lost: tuple[MessageRange, ...] = ()
    verbatim: tuple[MessageRange, ...] = ()
    prose: int = 0
    brief: str = ""
    brief_tokens: int = 0


_WHOLE = FallbackCover()
_PLAIN = MemoryDetails()


class Rows:
    """The rows of one transaction."""

    __slots__ = (
        "_changed",
        "_content",
        "_memories",
        "_messages",
        "_offset",
        "_rows",
        "_state_items",
        "_watermarks",
        "counted",
        "newest",
        "records",
        "uses",
    )

    def __init__(self) -> None:
        self.records = 0
        self.counted = False
        """It was stored as a counted commit; see `mark`."""
        self.newest = 0
        """Position of the message that is stored last; 0 without any."""
        self.uses: dict[int, int] = {}
        """When each session's newest message was created, by the session's number."""
        self._messages: list[tuple[Any, ...]] = []
        self._content: list[bytes] = []
        self._offset = 1  # SQL counts from 1
        self._rows: dict[str, list[tuple[Any, ...]]] = {statement: [] for statement in _STATEMENTS}
        # Each actor's first marks, then its second …: a statement updates an actor once, so that
        # the CHECK of the schema sees each of them.
        self._watermarks: list[dict[int, tuple[Any, ...]]] = []
        self._state_items: dict[
            tuple[int, str, str], tuple[bool, bytes | None]
        ] = {}  # place -> (dropped first, then put)
        self._memories: dict[
            str, tuple[bool, int, MemoryItem | None]
        ] = {}  # id -> (removed first, owner, then put)
        self._changed: dict[str, None] = {}  # those that replace what is there

    def add(self, record: Any) -> None:
        """Take one record.

        Raises:
            TypeError: it is none that a journal stores.
        """
        self.records += 1
        rows = self._rows
        match record:
            case Appended(sid=sid, entries=entries, key=key):
                self._append(sid, entries, key)
            case Opened(sid=sid, user=user, session=session, at_us=at_us):
                rows[_INSERT_ACTOR].append(
                    (sid, user, session, at_us, row_crc((sid, user, session, at_us)))
                )
            case BufferMoved():
                self._move_buffer(record)
            case JobsStarted(sid=sid, jobs=jobs):
                self._start_jobs(sid, jobs)
            case JobAdvanced(sid=sid, job=job):
                row = (job.id, job.queue, sid, _encode(job.payload))
                rows[_ADVANCE_JOB].append((row[-1], row_crc(row), job.id))
            case Flushed(sid=sid, through=through):
                rows[_UPDATE_INDEXED].append((through, sid))
            case Pruned(key=key, seqs=seqs, entries=entries):
                rows[_PRUNE_MESSAGE].extend((key.user, key.session, seq) for seq in seqs)
                rows[_PRUNE_ENTRY].extend(
                    (key.user, key.session, str(through)) for through in entries
                )
            case StateChanged(sid=sid, put=put, dropped=dropped):
                for state_item in put:
                    self._put_state_item(sid, state_item)
                for kind, name in dropped:
                    self._state_items.pop((sid, kind, name), None)
                    self._state_items[sid, kind, name] = (True, None)
            case Remembered(sid=sid, memories=memories, jobs=jobs):
                for item in memories:
                    removed, owner, present = self._memories.get(item.id, (False, sid, None))
                    self._memories[item.id] = (removed, owner, present or item)
                self._start_jobs(sid, jobs)
            case MemoryChanged(sid=sid, memory=item, jobs=jobs):
                removed, owner, _ = self._memories.get(item.id, (False, sid, None))
                self._memories[item.id] = (removed, owner, item)
                self._changed[item.id] = None
                self._start_jobs(sid, jobs)
            case MemoriesRemoved(sid=sid, ids=ids, jobs=jobs):
                self._memories.update((id_, (True, sid, None)) for id_ in ids)
                self._start_jobs(sid, jobs)
            case JobDone(id=id_):
                rows[_DELETE_JOB].append((id_,))
            case JobRetried(id=id_, attempts=attempts, not_before=not_before, error=error):
                rows[_RETRY_JOB].append((attempts, not_before, error, id_))
            case JobDeadLettered(id=id_, attempts=attempts, error=error):
                rows[_DEAD_LETTER_JOB].append((attempts, error, id_))
            case DeadLetterRetried(id=id_):
                rows[_RETRY_DEAD_LETTER].append((id_,))
            case _:
                raise TypeError(f"no journal record: {type(record).__name__}")

    def _append(self, sid: int, entries: tuple[Any, ...], key: bytes | None) -> None:
        base = sid << SEQ_BITS
        digest = key
        keyed = len(entries) if key is not None else None
        for e in entries:
            pos, at_us, tokens, role, chat, meta, id_, importance = (
                base | e.seq,
                e.at_us,
                e.tokens,
                _ROLE_CODES[e.role],
                e.chat,
                e.meta or None,
                e.id,
                e.importance,
            )
            share = _HALF if importance == 0.5 else int(importance * SHARES)
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

    def _set_watermarks(self, sid: int, m: Watermarks) -> None:
        watermarks = (
            m.generation,
            m.archived_through,
            m.summarizing_through,
            m.indexing_through,
            m.cleared_through,
        )
        row = (*watermarks, row_crc((sid, *watermarks)), sid)
        for layer in self._watermarks:
            if sid not in layer:
                layer[sid] = row
                return
        self._watermarks.append({sid: row})

    def _move_buffer(self, record: BufferMoved) -> None:
        sid, at_seq, watermarks = record.sid, record.at_seq, record.watermarks
        self._set_watermarks(sid, watermarks)
        generation, front = watermarks.generation, watermarks.archived_through
        if record.reason:
            place = (sid, at_seq, record.reason, generation, watermarks.cleared_through, front)
            self._add_front((*place, *_NO_SUMMARY))
        if record.summary is not None:
            self._add_summary(sid, at_seq, "summary", generation, record.summary)
        for entry in record.summaries:
            self._add_summary(sid, at_seq, "entry", generation, entry)
        if record.removed:
            base = sid << SEQ_BITS
            self._rows[_REMOVE_MESSAGE].extend((at_seq, base | seq) for seq in record.removed)
        self._start_jobs(sid, record.jobs)
        self._rows[_DELETE_JOB].extend((id_,) for id_ in record.ended)

    def _add_summary(self, sid: int, at_seq: int, kind: str, generation: int, s: Summary) -> None:
        told = (
            s.first,
            s.through,
            s.prefix,
            s.text,
            s.tokens,
            int(s.degraded),
            s.model,
            s.input_tokens,
        )
        cover = FallbackCover(s.lost, s.verbatim, s.prose, s.brief, s.brief_tokens)
        encoded = _encode(cover) if cover != _WHOLE else None
        self._add_front((sid, at_seq, kind, generation, *told), encoded)

    def _add_front(self, row: tuple[Any, ...], cover: bytes | None = None) -> None:
        crc = row_crc(row if cover is None else (*row, cover))
        self._rows[_INSERT_FRONT].append((*row, cover, crc))

    def _start_jobs(self, sid: int, jobs: tuple[Job, ...]) -> None:
        for job in jobs:
            row = (job.id, job.queue, sid, _encode(job.payload))
            self._rows[_INSERT_JOB].append((*row, row_crc(row)))

    def _put_state_item(self, sid: int, state_item: StateItem) -> None:
        place = (sid, state_item.kind, state_item.name)
        dropped, value = self._state_items.get(place, (False, None))
        if dropped and value is None:
            del self._state_items[
                place
            ]  # it comes back as the newest of its actor's, as `SavedUser.state_items` promises
        self._state_items[place] = (dropped, state_item.value)

    @property
    def messages(self) -> dict[str, str | bytes] | None:
        """Parameters of `INSERT_MESSAGES`: places as JSON, and what they point into.

        Its third, ``epoch``, is the writer's. None without messages.
        """
        if not self._messages:
            return None
        return {
            "places": _encode_json(self._messages).decode(),
            "content": b"".join(self._content),
        }

    def others(self) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
        """The other statements, in the order of storing, each with its rows; none without rows."""
        self._rows[_UPDATE_WATERMARKS] = [_as_json(layer.values()) for layer in self._watermarks]
        for statement, rows in self._rows.items():
            if rows:
                yield statement, [_as_json(rows)] if statement in _AS_JSON else rows
        dropped: list[tuple[Any, ...]] = [
            place for place, (gone, _) in self._state_items.items() if gone
        ]
        kept = (
            (*place, value) for place, (_, value) in self._state_items.items() if value is not None
        )
        put = [(*row, row_crc(row)) for row in kept]
        deleted: list[tuple[Any, ...]] = [
            (id_,) for id_, (removed, _, _) in self._memories.items() if removed
        ]
        memories = [(sid, item) for _, sid, item in self._memories.values() if item is not None]
        inserted = [_memory(sid, one) for sid, one in memories if one.id not in self._changed]
        changed = [_memory(sid, one) for sid, one in memories if one.id in self._changed]
        for statement, found in (
            (_DROP_STATE_ITEM, dropped),
            (_PUT_STATE_ITEM, put),
            (_DELETE_MEMORY, deleted),
            (_INSERT_MEMORY, inserted),
            (_PUT_MEMORY, changed),
        ):
            if found:
                yield statement, found


def _as_json(rows: Iterable[tuple[Any, ...]]) -> tuple[str]:
    return (_encode_json(list(rows)).decode(),)


def _memory(sid: int, item: MemoryItem) -> tuple[Any, ...]:
    what = (
        item.session,
        item.agent,
        item.content,
        item.type,
        float(item.importance),
        item.created_us,
        item.tokens,
    )
    row: tuple[Any, ...] = (item.id, sid, *what)
    common = (item.key, item.metadata, item.revision, item.updated_us)
    details = MemoryDetails(*common)
    if item.topic:
        details = FactDetails(*common, item.sources, item.topic)
    if details == _PLAIN:  # as a row of format 3
        return (*row, None, row_crc(row))
    encoded = _encode(details)
    return (*row, encoded, row_crc((*row, encoded)))
