"""From records to rows, for journals in a database: what one transaction stores.

Records of many actors are grouped by kind, so a commit is one statement for each kind of row. This
is sound because a record holds what is true after it: watermarks are absolute, a job starts before
it ends, and where the order of two records matters (a state item dropped and put again), the later
one wins here, before SQL sees either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args
from zlib import crc32

import msgspec

from remora.runtime.jobs import DeadLetterRetried, Job, JobDeadLettered, JobDone, JobRetried
from remora.runtime.log import Write
from remora.storage.records import (
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
    StoredMessage,
    Summary,
    Watermarks,
)

__all__ = [
    "HALF",
    "ROLES",
    "ROLE_CODES",
    "ROW_KINDS",
    "SEQ_BITS",
    "SHARES",
    "FactDetails",
    "FallbackCover",
    "MemoryDetails",
    "RecordRows",
    "RowKind",
    "row_crc",
]

RowKind: TypeAlias = Literal[
    "insert_actor",
    "remove_message",
    "change_message",
    "prune_message",
    "prune_entry",
    "update_watermarks",
    "insert_front",
    "erase_summaries",
    "update_indexed",
    "insert_job",
    "advance_job",
    "retry_job",
    "dead_letter_job",
    "retry_dead_letter",
    "delete_job",
    "drop_state_item",
    "put_state_item",
    "delete_memory",
    "insert_memory",
    "put_memory",
]
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)
"""What is done with rows other than new messages, in the order of storing.

A row comes before what refers to it, a job's start before its end. Rows of one kind are in the
order of their records.
"""

SEQ_BITS = 32
"""A message's primary key is ``sid << 32 | seq``: one B-tree, a session's messages side by side, no
second index.
"""

_ROWS_IN_THREAD = 1_000  # made on the event loop in a few milliseconds
_BYTES_IN_THREAD = 1_000_000
ROLES = ("system", "developer", "user", "assistant", "tool")
ROLE_CODES = {role: code for code, role in enumerate(ROLES)}
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode

SHARES = 1 << 62
"""Importance is checksummed, and goes to SQLite, as an integer number of these parts.

A decimal text does not always keep a float's last bit.
"""

_ORDERED = ROW_KINDS[: ROW_KINDS.index("drop_state_item")]
_NO_SUMMARY = ("", "", 0, 0, "", 0)  # prefix to input_tokens, where only the front moved
HALF = SHARES // 2
"""Of the default importance."""


def row_crc(values: tuple[Any, ...]) -> int:
    """The checksum of a row: CRC-32 of its immutable columns in msgpack.

    Its input is part of the format, and must never change. It detects every flipped byte and every
    burst of 32 bits, and misses one other error in four thousand million. It does not protect
    against deliberate changes.
    """
    return crc32(_encode(values))


class MemoryDetails(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The details of a memory's row beyond format 3; see `remora.storage.records.MemoryItem`."""

    key: str = ""
    metadata: str = ""
    revision: int = 0
    updated_us: int = 0


class FactDetails(MemoryDetails, frozen=True, array_like=True, omit_defaults=True):
    """The same of a fact that was extracted; other rows do not have its last two."""

    sources: tuple[int, ...] = ()
    topic: str = ""


class FallbackCover(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The details of a summary's row beyond format 2; see `remora.storage.records.Summary`."""

    lost: tuple[MessageRange, ...] = ()
    verbatim: tuple[MessageRange, ...] = ()
    prose: int = 0
    brief: str = ""
    brief_tokens: int = 0


_WHOLE = FallbackCover()
_PLAIN = MemoryDetails()


class RecordRows:
    """The rows of one transaction; a database adds how it takes new messages.

    Attributes:
        batch: the writes that are stored.
        large: to make the rows would hold the event loop.
        records: in the writes, once the rows are made.
        counted: it was stored as a counted commit; see `mark`.
        newest: position of the message that is stored last; 0 without any.
        uses: when each session's newest message was created, by the session's number.
    """

    __slots__ = (
        "_changed",
        "_memories",
        "_messages",
        "_rows",
        "_state_items",
        "_watermarks",
        "batch",
        "counted",
        "large",
        "newest",
        "records",
        "uses",
    )

    def __init__(self, batch: Sequence[Write]) -> None:
        self.large = _is_large(batch)
        self.records = self.newest = 0
        self.counted = False
        self.uses: dict[int, int] = {}
        self.batch = batch
        self._messages: list[tuple[Any, ...]] = []
        self._rows: dict[RowKind, list[tuple[Any, ...]]] = {}  # empty while all are new messages
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

    def make(self) -> None:
        """Make them.

        Raises:
            TypeError: a record is none that a journal stores.
        """
        for write in self.batch:
            for record in write.records:
                self.records += 1
                if type(record) is Appended:  # nearly all are
                    self._append(record.sid, record.entries, record.key)
                else:
                    self._add(record)

    def _add(self, record: Any) -> None:
        """Take a record other than new messages."""
        rows = self._rows = self._rows or {kind: [] for kind in _ORDERED}
        match record:
            case Opened(sid=sid, user=user, session=session, at_us=at_us):
                rows["insert_actor"].append(
                    (sid, user, session, at_us, row_crc((sid, user, session, at_us)))
                )
            case BufferMoved():
                self._move_buffer(record)
            case JobsStarted(sid=sid, jobs=jobs):
                self._start_jobs(sid, jobs)
            case JobAdvanced(sid=sid, job=job):
                row = (job.id, job.queue, sid, _encode(job.payload))
                rows["advance_job"].append((row[-1], row_crc(row), job.id))
            case Flushed(sid=sid, through=through):
                rows["update_indexed"].append((through, sid))
            case Pruned(key=key, seqs=seqs, entries=entries):
                rows["prune_message"].extend((key.user, key.session, seq) for seq in seqs)
                rows["prune_entry"].extend(
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
                rows["delete_job"].append((id_,))
            case JobRetried(id=id_, attempts=attempts, not_before=not_before, error=error):
                rows["retry_job"].append((attempts, not_before, error, id_))
            case JobDeadLettered(id=id_, attempts=attempts, error=error):
                rows["dead_letter_job"].append((attempts, error, id_))
            case DeadLetterRetried(id=id_):
                rows["retry_dead_letter"].append((id_,))
            case _:
                raise TypeError(f"no journal record: {type(record).__name__}")

    def _append(self, sid: int, entries: tuple[Any, ...], key: bytes | None) -> None:
        """Take new messages, and the digest of their key."""
        raise NotImplementedError

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
        for one in (*record.changed, *record.erased):
            self._rows["change_message"].append(_changed(sid, one))
        if record.erased:
            seqs = [one.entry.seq for one in record.erased]
            self._rows["erase_summaries"].append((sid, generation, _encode_json(seqs).decode()))
        if record.removed:
            base = sid << SEQ_BITS
            self._rows["remove_message"].extend((at_seq, base | seq) for seq in record.removed)
        self._start_jobs(sid, record.jobs)
        self._rows["delete_job"].extend((id_,) for id_ in record.ended)

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
        self._rows["insert_front"].append((*row, cover, crc))

    def _start_jobs(self, sid: int, jobs: tuple[Job, ...]) -> None:
        for job in jobs:
            row = (job.id, job.queue, sid, _encode(job.payload))
            self._rows["insert_job"].append((*row, row_crc(row)))

    def _put_state_item(self, sid: int, state_item: StateItem) -> None:
        place = (sid, state_item.kind, state_item.name)
        dropped, value = self._state_items.get(place, (False, None))
        if dropped and value is None:
            del self._state_items[
                place
            ]  # it comes back as the newest of its actor's, as `SavedUser.state_items` promises
        self._state_items[place] = (dropped, state_item.value)

    def others(self) -> Iterator[tuple[RowKind, list[tuple[Any, ...]]]]:
        """All but new messages, in the order of storing; no kind without rows.

        A kind can come more than once.
        """
        if not self._rows:
            return
        for kind, rows in self._rows.items():
            if rows:
                yield kind, rows
            elif kind == "update_watermarks":
                yield from ((kind, list(layer.values())) for layer in self._watermarks)
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
        rest: tuple[tuple[RowKind, list[tuple[Any, ...]]], ...] = (
            ("drop_state_item", dropped),
            ("put_state_item", put),
            ("delete_memory", deleted),
            ("insert_memory", inserted),
            ("put_memory", changed),
        )
        yield from (one for one in rest if one[1])


def _is_large(batch: Sequence[Write]) -> bool:
    """Return whether making the rows of these writes would hold the event loop."""
    rows = size = 0
    for write in batch:
        size += write.size
        for record in write.records:
            rows += len(record.entries) if type(record) is Appended else _count_rows(record)
    return rows > _ROWS_IN_THREAD or size > _BYTES_IN_THREAD


def _count_rows(record: Any) -> int:
    """About how many rows a record other than new messages becomes."""
    kind = type(record)
    if kind is BufferMoved:
        return len(record.removed) + len(record.changed) + len(record.erased) + 1
    if kind is Pruned:
        return len(record.seqs) + len(record.entries)
    if kind is Remembered:
        return len(record.memories)
    if kind is MemoriesRemoved:
        return len(record.ids)
    if kind is StateChanged:
        return len(record.put) + len(record.dropped)
    return 1


def _changed(sid: int, one: StoredMessage) -> tuple[Any, ...]:
    entry = one.entry
    pos, meta = sid << SEQ_BITS | entry.seq, entry.meta or None
    share = HALF if entry.importance == 0.5 else int(entry.importance * SHARES)
    told = (pos, entry.at_us, entry.tokens, ROLE_CODES[entry.role], entry.chat, meta, entry.id)
    crc = row_crc((*told, share, one.key, one.batch))
    return (entry.tokens, entry.chat, meta, share / SHARES, crc, pos)


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
