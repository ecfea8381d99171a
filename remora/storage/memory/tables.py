"""The rows of the journal in memory, and how records change them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import msgspec

from remora.errors import CommitFailed
from remora.ids import SessionKey, UserKey, actor_key
from remora.messages import Entry
from remora.runtime.jobs import DeadLetterRetried, Job, JobDeadLettered, JobDone, JobRetried
from remora.runtime.log import Write
from remora.storage.lookups import BufferStart, KeyedAppend, buffer_start_from
from remora.storage.pending import NEIGHBOURS
from remora.storage.records import (
    BLANK_CHAT,
    ENTRY_KIND,
    HOT_KEYS,
    Appended,
    BufferMoved,
    Flushed,
    JobAdvanced,
    JobsStarted,
    MemoriesRemoved,
    MemoryChanged,
    MemoryItem,
    Opened,
    Pruned,
    Remembered,
    SavedSession,
    SavedUser,
    StateChanged,
    StateItem,
    StoredMessage,
    Summary,
    Watermarks,
    erase_text,
)


class Actor:
    """The rows of one actor."""

    def __init__(self, sid: int, key: SessionKey | UserKey) -> None:
        self.sid = sid
        self.key = key
        self.watermarks = Watermarks()
        self.entries: list[Entry] = []  # entry n is message trimmed + n + 1
        self.trimmed = 0
        self.removed: dict[int, int] = {}  # message -> the newest message when it was taken out
        self.pruned: set[int] = set()
        self.changes: list[
            tuple[int, str, int, Summary]
        ] = []  # (newest message then, kind, generation, summary)
        self.keys: dict[bytes, tuple[int, ...]] = {}
        self.state_items: dict[tuple[str, str], bytes] = {}
        self.flushed = 0

    @property
    def last(self) -> int:
        """The newest message's number."""
        return self.trimmed + len(self.entries)

    @property
    def used_us(self) -> int:
        """When its newest message was created; 0 without any."""
        return self.entries[-1].at_us if self.entries else 0

    def visible(self, first: int, last: int, at: int | None = None) -> list[Entry]:
        return [
            entry
            for entry in self.entries[
                max(first - self.trimmed, 1) - 1 : max(last - self.trimmed, 0)
            ]
            if entry.seq not in self.removed
            or (at is not None and self.removed[entry.seq] > at and entry.chat != BLANK_CHAT)
        ]

    def move_buffer(self, record: BufferMoved) -> None:
        self.watermarks = record.watermarks
        at_seq, generation = record.at_seq, record.watermarks.generation
        if record.reason:
            through, cleared = record.watermarks.archived_through, record.watermarks.cleared_through
            blank = Summary(through, "", "", 0, degraded=False, model="", first=cleared)
            self.changes.append((at_seq, record.reason, generation, blank))
        if record.summary is not None:
            self.changes.append((at_seq, "summary", generation, record.summary))
        self.changes.extend((at_seq, "entry", generation, one) for one in record.summaries)
        for seq in record.removed:
            self.removed.setdefault(seq, at_seq)
        for one in (*record.changed, *record.erased):
            self.entries[one.entry.seq - self.trimmed - 1] = one.entry
        gone = [one.entry.seq for one in record.erased]
        self.changes = [
            (then, kind, of, erase_text(summary) if old and _covers(summary, gone) else summary)
            for then, kind, of, summary in self.changes
            for old in [of < generation and kind in {"summary", "entry"}]
        ]

    def stored(self, entries: Iterable[Entry]) -> list[StoredMessage]:
        """The messages with their keys."""
        keys = {seqs[0]: (digest, len(seqs)) for digest, seqs in self.keys.items()}
        return [StoredMessage(entry, *keys.get(entry.seq, ())) for entry in entries]

    def buffer_start(self, at: int | None = None) -> BufferStart:
        """Where the buffer begins, or began when message `at` was the newest."""
        then = [
            (kind, generation, one)
            for at_seq, kind, generation, one in self.changes
            if at is None or at_seq <= at
        ]
        return buffer_start_from(then, trimmed=self.trimmed)

    def keyed_appends(self, root: bytes) -> list[KeyedAppend]:
        """The appends whose keys begin with `root`, ordered by key."""
        found = []
        for key in sorted(one for one in self.keys if one.startswith(root)):
            seqs = self.keys[key]
            there = tuple(self.visible(seqs[0], seqs[-1]))
            found.append(KeyedAppend(key, there, len(seqs) - len(there)))
        return found

    def archive(self) -> Sequence[Entry]:
        """The messages that left the buffer and were not trimmed."""
        return self.entries[: max(self.watermarks.archived_through - self.trimmed, 0)]

    def trim(self, last: int) -> int:
        """Remove messages up to `last`; returns how many."""
        count = max(last - self.trimmed, 0)
        gone = {entry.seq for entry in self.entries[:count]}
        del self.entries[:count]
        self.trimmed += count
        self.keys = {digest: seqs for digest, seqs in self.keys.items() if seqs[0] not in gone}
        self.removed = {seq: at for seq, at in self.removed.items() if seq not in gone}
        self.pruned -= gone
        return count


def _covers(summary: Summary, seqs: Collection[int]) -> bool:
    return any(summary.first <= seq <= summary.through for seq in seqs)


def as_resumed(job: Job) -> Job:
    """The job as a reader finds it: an earlier runtime may have started it."""
    return msgspec.structs.replace(job, resumed=True)


class MemoryTables:
    """The committed rows.

    Args:
        hot_keys: idempotency keys that an image holds at most; the others are looked up.
    """

    def __init__(self, *, hot_keys: int = HOT_KEYS) -> None:
        self._hot_keys = hot_keys
        self._actors: dict[int, Actor] = {}
        self._sids: dict[Hashable, int] = {}
        self._next_sid = 0
        self._erased: set[int] = set()
        self._memories: dict[str, tuple[int, MemoryItem]] = {}
        self._jobs: dict[str, Job] = {}

    def _find(self, key: Hashable) -> Actor | None:
        return self._actors.get(self._sids.get(key, 0))

    def _check(self, write: Write) -> None:
        """Refuse rows of an erased actor, and a past that was trimmed."""
        for record in write.records:
            if getattr(record, "sid", 0) in self._erased:
                raise CommitFailed("this was forgotten in the meantime; nothing of it was kept")
            if not isinstance(record, BufferMoved) or record.sid not in self._actors:
                continue
            trimmed = self._actors[record.sid].trimmed
            if 0 < trimmed > record.watermarks.archived_through - NEIGHBOURS:
                raise CommitFailed(
                    "what this goes back to is not kept any more; nothing of it was kept"
                )

    def apply(self, record: object) -> None:
        """Change the rows as a committed record does."""
        actor: Actor | None
        match record:
            case Opened(sid=sid, user=user, session=name):
                key = actor_key(user, name)
                self._actors[sid] = Actor(sid, key)
                self._sids[key] = sid
            case Appended(sid=sid, entries=entries, key=digest):
                actor = self._actors[sid]
                actor.entries.extend(entries)
                if digest is not None:
                    actor.keys[digest] = tuple(entry.seq for entry in entries)
            case BufferMoved(sid=sid):
                self._actors[sid].move_buffer(record)
            case Flushed(sid=sid, through=through):
                actor = self._actors[sid]
                actor.flushed = max(actor.flushed, through)
            case Pruned(key=key, seqs=seqs, entries=entries):
                if (actor := self._find(key)) is not None:
                    actor.pruned.update(seqs)
                    for through in entries:
                        actor.state_items.pop((ENTRY_KIND, str(through)), None)
            case StateChanged(sid=sid, put=put, dropped=dropped):
                state_items = self._actors[sid].state_items
                state_items.update(((item.kind, item.name), item.value) for item in put)
                for place in dropped:
                    state_items.pop(place, None)
            case Remembered(sid=sid, memories=memories):
                for item in memories:
                    self._memories.setdefault(item.id, (sid, item))
            case MemoryChanged(sid=sid, memory=item):
                self._memories[item.id] = (sid, item)
            case MemoriesRemoved(ids=ids):
                for id_ in ids:
                    self._memories.pop(id_, None)
            case JobsStarted():
                pass
            case JobAdvanced(job=job) if job.id in self._jobs:
                self._change_job(job.id, payload=job.payload)
            case JobDone(id=id_):
                self._jobs.pop(id_, None)
            case JobRetried(id=id_) if id_ in self._jobs:
                attempts, not_before, error = record.attempts, record.not_before, record.error
                self._change_job(id_, attempts=attempts, not_before=not_before, error=error)
            case JobDeadLettered(id=id_) if id_ in self._jobs:
                self._change_job(id_, attempts=record.attempts, dead=True, error=record.error)
            case DeadLetterRetried(id=id_) if id_ in self._jobs and self._jobs[id_].dead:
                self._change_job(id_, attempts=0, not_before=0.0, dead=False)
            case JobAdvanced() | JobRetried() | JobDeadLettered() | DeadLetterRetried():
                pass  # its actor has cancelled it
            case _:
                raise TypeError(f"no journal record: {type(record).__name__}")
        self._jobs.update((job.id, job) for job in getattr(record, "jobs", ()))
        for id_ in getattr(record, "ended", ()):
            self._jobs.pop(id_, None)

    def _change_job(self, id_: str, **changes: Any) -> None:
        self._jobs[id_] = msgspec.structs.replace(self._jobs[id_], **changes)

    def _delete(self, actor: Actor, removed: dict[str, int]) -> None:
        """Delete an actor, and count what it had."""
        memories = [id_ for id_, (sid, _) in self._memories.items() if sid == actor.sid]
        jobs = [job.id for job in self._jobs.values() if job.key == actor.key]
        for id_ in memories:
            del self._memories[id_]
        for id_ in jobs:
            del self._jobs[id_]
        removed["actors"] += 1
        removed["messages"] += len(actor.entries)
        removed["summaries"] += len(actor.changes)
        removed["state_items"] += len(actor.state_items)
        removed["memories"] += len(memories)
        removed["jobs"] += len(jobs)
        del self._actors[actor.sid], self._sids[actor.key]
        self._erased.add(actor.sid)

    def saved(self, key: Hashable) -> SavedSession | SavedUser:
        """Return what an actor is restored from; one without rows gets the next number."""
        actor = self._find(key)
        sid = actor.sid if actor else self._next_sid + 1
        self._next_sid = max(self._next_sid, sid)
        kept = actor.state_items.items() if actor else ()
        state_items = tuple(
            StateItem(kind, name, value) for (kind, name), value in kept if kind != ENTRY_KIND
        )
        jobs = tuple(
            as_resumed(job) for job in self._jobs.values() if job.key == key and not job.dead
        )
        if isinstance(key, UserKey):
            return SavedUser(sid, actor is not None, state_items, jobs)
        if actor is None:
            return SavedSession(sid, False, Watermarks(), 1, (), None, frozenset(), True)
        watermarks = actor.watermarks
        start = actor.buffer_start()
        return SavedSession(
            sid,
            opened=True,
            watermarks=watermarks,
            next_seq=actor.last + 1,
            entries=tuple(actor.visible(watermarks.archived_through + 1, actor.last)),
            summary=start.summary,
            summaries=start.summaries,
            keys=frozenset(list(actor.keys)[-self._hot_keys :]),
            keys_complete=len(actor.keys) <= self._hot_keys,
            has_ids=any(
                entry.id is not None
                for entry in actor.visible(
                    watermarks.cleared_through + 1, watermarks.archived_through
                )
            ),
            state_items=state_items,
            jobs=jobs,
        )
