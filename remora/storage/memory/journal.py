"""A journal in memory: `Runtime.in_memory()`, and the reference that the others are tested against.

It runs on any event loop, so the property tests drive it on trio. Like a real one it commits in
groups, later than it is asked to, and what is not committed cannot be read.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import anyio
import anyio.lowlevel
import msgspec

from remora.errors import CommitFailed
from remora.ids import SessionKey, UserKey, session_key, user_key
from remora.messages import Entry
from remora.runtime.log import (
    DeadLetterRetried,
    Job,
    JobDeadLettered,
    JobDone,
    JobRetried,
    LogStatistics,
    Write,
)
from remora.storage.ports import (
    NEIGHBOURS,
    BufferStart,
    Erased,
    Erasure,
    JournalCounts,
    Retention,
    SessionListing,
    SummaryFigures,
    buffer_start_from,
    earlier_buffer,
)
from remora.storage.records import (
    ENTRY_KIND,
    HOT_KEYS,
    Appended,
    BufferMoved,
    EarlierBuffer,
    Flushed,
    IdLookup,
    JobsStarted,
    KeyLookup,
    MemoriesRemoved,
    MemoryItem,
    Opened,
    OriginalAppend,
    PastLookup,
    Pruned,
    Remembered,
    SavedSession,
    SavedUser,
    StateChanged,
    StateItem,
    Summary,
    Watermarks,
)
from remora.storage.retention import (
    Archive,
    MessageSizes,
    choose_oldest,
    first_message_needed,
    last_removable,
)
from remora.storage.sqlite.images import actor_key
from remora.storage.telling import ERROR_REMOVED, SYNOPSIS_KIND, WORKING_KIND, session_of_item

__all__ = ["MemoryJournal"]


class _Actor:
    """The rows of one actor."""

    def __init__(self, sid: int, key: SessionKey | UserKey) -> None:
        self.sid = sid
        self.key = key
        self.watermarks = Watermarks()
        self.entries: list[Entry] = []  # entry n is message trimmed + n + 1
        self.trimmed = 0
        self.removed: dict[int, int] = {}  # message -> the newest message when it was taken out
        self.pruned: set[int] = set()
        self.folds: list[
            tuple[int, str, int, Summary]
        ] = []  # (newest message then, kind, generation, summary)
        self.keys: dict[bytes, tuple[int, ...]] = {}
        self.state_items: dict[tuple[str, str], bytes] = {}
        self.flushed = 0

    @property
    def last(self) -> int:
        """The newest message's number."""
        return self.trimmed + len(self.entries)

    def visible(self, first: int, last: int, at: int | None = None) -> list[Entry]:
        return [
            entry
            for entry in self.entries[
                max(first - self.trimmed, 1) - 1 : max(last - self.trimmed, 0)
            ]
            if entry.seq not in self.removed or (at is not None and self.removed[entry.seq] > at)
        ]

    def move_buffer(self, record: BufferMoved) -> None:
        self.watermarks = record.watermarks
        at_seq, generation = record.at_seq, record.watermarks.generation
        if record.reason:
            through, cleared = record.watermarks.archived_through, record.watermarks.cleared
            blank = Summary(through, "", "", 0, degraded=False, model="", first=cleared)
            self.folds.append((at_seq, record.reason, generation, blank))
        if record.summary is not None:
            self.folds.append((at_seq, "summary", generation, record.summary))
        self.folds.extend((at_seq, "entry", generation, one) for one in record.summaries)
        for seq in record.removed:
            self.removed.setdefault(seq, at_seq)


def _found(job: Job) -> Job:
    """The job as whoever reads it finds it.

    Somebody may have begun it, a runtime that had this journal before, say.
    """
    return msgspec.structs.replace(job, resumed=True)


class MemoryJournal:
    """Implements `remora.storage.ports.Journal`; nothing survives it.

    Args:
        hot_keys: idempotency keys that an image holds at most; the others are looked up.
    """

    def __init__(self, *, hot_keys: int = HOT_KEYS) -> None:
        self._hot_keys = hot_keys
        self.instance = secrets.token_hex(3)
        self._actors: dict[int, _Actor] = {}
        self._gone: set[int] = set()
        self._erasures: dict[int, Erasure] = {}
        self._last_erasure = 0
        self._memories: dict[str, tuple[int, MemoryItem]] = {}
        self._sids: dict[Hashable, int] = {}
        self._next_sid = 0
        self._jobs: dict[str, Job] = {}
        self._settings: dict[str, str] = {}
        self._queue: list[Write] = []
        self._event = anyio.Event()
        self._commits = self._failed = self._writes = self._records = 0

    def restarted(self) -> Self:
        """What another process would find if this one died now.

        All that is committed, and nothing else.

        This one is not to be used any more.
        """
        found = copy.copy(self)
        vars(found).update(_queue=[], _event=anyio.Event())
        return found

    # -- the log -----------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        """Queue a write for the next commit."""
        self._queue.append(write)
        self._event.set()

    async def run(self) -> None:
        """Commit what is queued, for ever."""
        while True:
            await self._event.wait()
            self._event = anyio.Event()
            await anyio.lowlevel.checkpoint()
            await self._commit()

    async def _commit(self) -> None:
        batch, self._queue = self._queue, []
        self._land(batch)

    def _land(self, batch: Sequence[Write]) -> None:
        for write in batch:
            if write.fenced:
                continue
            try:
                self._check(write)
            except CommitFailed as e:
                self._failed += 1
                write.acknowledge(e)
                write.fenced = True
                continue
            for record in write.records:
                self._store(record)
                self._records += 1
            self._writes += 1
        self._commits += 1
        for write in batch:
            if not write.fenced:
                write.acknowledge(None)

    def _check(self, write: Write) -> None:
        """Refuse what can not be stored.

        Rows of what was forgotten, and a past that is not kept any more.
        """
        for record in write.records:
            if getattr(record, "sid", 0) in self._gone:
                raise CommitFailed("this was forgotten meanwhile; nothing of it was kept")
            if not isinstance(record, BufferMoved) or record.sid not in self._actors:
                continue
            if (
                0
                < self._actors[record.sid].trimmed
                > record.watermarks.archived_through - NEIGHBOURS
            ):
                raise CommitFailed(
                    "what this goes back to is not kept any more; nothing of it was kept"
                )

    def _store(self, record: Any) -> None:
        match record:
            case Opened(sid=sid, user=user, session=name):
                key = actor_key(user, name)
                self._actors[sid] = _Actor(sid, key)
                self._sids[key] = sid
            case Appended(sid=sid, entries=entries, key=digest):
                actor = self._actors[sid]
                actor.entries.extend(entries)
                if digest is not None:
                    actor.keys[digest] = tuple(entry.seq for entry in entries)
            case BufferMoved(sid=sid):
                self._actors[sid].move_buffer(record)
            case Flushed(sid=sid, through=through):
                self._actors[sid].flushed = max(self._actors[sid].flushed, through)
            case Pruned(key=key, seqs=seqs, entries=entries):
                if key in self._sids:
                    self._actors[self._sids[key]].pruned.update(seqs)
                    for through in entries:
                        self._actors[self._sids[key]].state_items.pop(
                            (ENTRY_KIND, str(through)), None
                        )
            case StateChanged(sid=sid, put=put, dropped=dropped):
                state_items = self._actors[sid].state_items
                state_items.update(
                    ((state_item.kind, state_item.name), state_item.value) for state_item in put
                )
                for place in dropped:
                    state_items.pop(place, None)
            case Remembered(sid=sid, memories=memories):
                for item in memories:
                    self._memories.setdefault(item.id, (sid, item))
            case MemoriesRemoved(ids=ids):
                for id_ in ids:
                    self._memories.pop(id_, None)
            case JobsStarted():
                pass
            case JobDone(id=id_):
                self._jobs.pop(id_, None)
            case JobRetried(id=id_) if id_ in self._jobs:
                self._jobs[id_] = msgspec.structs.replace(
                    self._jobs[id_],
                    attempts=record.attempts,
                    not_before=record.not_before,
                    error=record.error,
                )
            case JobDeadLettered(id=id_) if id_ in self._jobs:
                self._jobs[id_] = msgspec.structs.replace(
                    self._jobs[id_], attempts=record.attempts, dead=True, error=record.error
                )
            case DeadLetterRetried(id=id_) if id_ in self._jobs and self._jobs[id_].dead:
                self._jobs[id_] = msgspec.structs.replace(
                    self._jobs[id_], attempts=0, not_before=0.0, dead=False
                )
            case JobRetried() | JobDeadLettered() | DeadLetterRetried():
                pass  # its actor cancelled it meanwhile
            case _:
                raise TypeError(f"no journal record: {type(record).__name__}")
        self._jobs.update((job.id, job) for job in getattr(record, "jobs", ()))
        for id_ in getattr(record, "ended", ()):
            self._jobs.pop(id_, None)

    async def hydrate(
        self, keys: Sequence[Hashable]
    ) -> Sequence[SavedSession | SavedUser | Exception]:
        """The image of each actor."""
        await anyio.lowlevel.checkpoint()
        return [self._image(key) for key in keys]

    def _image(self, key: Hashable) -> SavedSession | SavedUser:
        actor = self._actors.get(self._sids.get(key, 0))
        sid = actor.sid if actor else self._next_sid + 1
        self._next_sid = max(self._next_sid, sid)
        kept = actor.state_items.items() if actor else ()
        state_items = tuple(
            StateItem(kind, name, value) for (kind, name), value in kept if kind != ENTRY_KIND
        )
        jobs = tuple(_found(job) for job in self._jobs.values() if job.key == key and not job.dead)
        if isinstance(key, UserKey):
            return SavedUser(sid, actor is not None, state_items, jobs)
        if actor is None:
            return SavedSession(sid, False, Watermarks(), 1, (), None, frozenset(), True)
        watermarks = actor.watermarks
        past = buffer_start_from(
            [(kind, generation, one) for _, kind, generation, one in actor.folds]
        )
        return SavedSession(
            sid,
            opened=True,
            watermarks=watermarks,
            next_seq=actor.last + 1,
            entries=tuple(actor.visible(watermarks.archived_through + 1, actor.last)),
            summary=past.summary,
            summaries=past.summaries,
            keys=frozenset(list(actor.keys)[-self._hot_keys :]),
            keys_complete=len(actor.keys) <= self._hot_keys,
            has_ids=any(
                entry.id is not None
                for entry in actor.visible(watermarks.cleared + 1, watermarks.archived_through)
            ),
            state_items=state_items,
            jobs=jobs,
        )

    async def fetch(
        self, key: Hashable, query: Any
    ) -> OriginalAppend | EarlierBuffer | dict[str, int] | None:
        """Which append a key belongs to; which numbers message ids have; how the buffer was."""
        await anyio.lowlevel.checkpoint()
        actor = self._actors.get(self._sids.get(key, 0))
        if isinstance(query, PastLookup):
            assert isinstance(key, SessionKey)
            return await earlier_buffer(self, key, query.at)
        if isinstance(query, IdLookup):
            among = actor.visible(query.after + 1, actor.last) if actor else []
            return {entry.id: entry.seq for entry in among if entry.id in query.ids}
        assert isinstance(query, KeyLookup)
        seqs = actor.keys.get(query.digest) if actor else None
        if actor is None or seqs is None:
            return None
        return OriginalAppend(
            seqs, tuple(actor.entries[seq - actor.trimmed - 1].id for seq in seqs)
        )

    def statistics(self) -> LogStatistics:
        """Counters."""
        return LogStatistics(
            self._commits, self._failed, self._writes, self._records, len(self._queue)
        )

    # -- reads -------------------------------------------------------------------------------------

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        """Messages `first`…`last`."""
        await anyio.lowlevel.checkpoint()
        actor = self._actors.get(self._sids.get(key, 0))
        return actor.visible(first, last, at) if actor else ()

    async def past(self, key: SessionKey, at: int) -> BufferStart:
        """What the session's buffer began with when message `at` was its newest."""
        await anyio.lowlevel.checkpoint()
        actor = self._actors.get(self._sids.get(key, 0))
        folds = actor.folds if actor else []
        then = [(kind, generation, one) for at_seq, kind, generation, one in folds if at_seq <= at]
        return buffer_start_from(then, trimmed=actor.trimmed if actor else 0)

    async def folds(self, key: SessionKey) -> SummaryFigures:
        """How often the session's past was summarized, and what that took."""
        await anyio.lowlevel.checkpoint()
        actor = self._actors.get(self._sids.get(key, 0))
        made = [one for _, _, _, one in actor.folds if one.input_tokens > 0] if actor else []
        return SummaryFigures(
            len(made),
            sum(one.input_tokens for one in made),
            sum(one.tokens for one in made),
            sum(one.degraded for one in made),
        )

    async def memories(self, user: str, ids: Sequence[str] | None = None) -> Sequence[MemoryItem]:
        """What was recorded of a user on purpose."""
        await anyio.lowlevel.checkpoint()
        sid = self._sids.get(UserKey(user))
        return [
            item
            for owner, item in self._memories.values()
            if owner == sid and (ids is None or item.id in ids)
        ]

    async def pruned(self, key: SessionKey) -> Sequence[int]:
        """Numbers of the messages that long-term memory is not to have."""
        await anyio.lowlevel.checkpoint()
        actor = self._actors.get(self._sids.get(key, 0))
        return sorted(actor.pruned) if actor else ()

    async def state_items(self, key: SessionKey | UserKey) -> Sequence[StateItem]:
        """All of an actor's facets, in the order in which they were first put."""
        await anyio.lowlevel.checkpoint()
        actor = self._actors.get(self._sids.get(key, 0))
        return (
            [StateItem(kind, name, value) for (kind, name), value in actor.state_items.items()]
            if actor
            else ()
        )

    async def flushed(self) -> Sequence[tuple[SessionKey | UserKey, int]]:
        """Every actor, and up to which message it is in long-term memory."""
        await anyio.lowlevel.checkpoint()
        return [(actor.key, actor.flushed) for actor in self._actors.values()]

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        """Job rows."""
        await anyio.lowlevel.checkpoint()
        return [_found(job) for job in self._jobs.values() if job.dead == dead]

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        """A user's sessions."""
        await anyio.lowlevel.checkpoint()
        found = []
        for actor in self._actors.values():
            entries = actor.visible(1, actor.last)
            if isinstance(actor.key, SessionKey) and actor.key.user == user and entries:
                found.append(
                    SessionListing(actor.key, len(entries), max(entry.at_us for entry in entries))
                )
        return sorted(found, key=lambda listing: listing.last_at_us)

    async def unflushed(self, limit: int) -> Sequence[SessionKey]:
        """Sessions with an unflushed tail."""
        await anyio.lowlevel.checkpoint()
        tails = [
            actor.key
            for actor in self._actors.values()
            if isinstance(actor.key, SessionKey)
            and actor.visible(actor.watermarks.flushing + 1, actor.last)
        ]
        return tails[:limit]

    async def counts(self, user: str | None = None) -> JournalCounts:
        """How much it holds."""
        await anyio.lowlevel.checkpoint()
        actors = [
            actor for actor in self._actors.values() if user is None or actor.key.user == user
        ]
        sids, keys = {actor.sid for actor in actors}, {actor.key for actor in actors}
        jobs = [job for job in self._jobs.values() if job.key in keys]
        return JournalCounts(
            users=len({key.user for key in keys}),
            sessions=sum(isinstance(key, SessionKey) for key in keys),
            messages=sum(len(actor.entries) for actor in actors),
            tokens=sum(entry.tokens for actor in actors for entry in actor.entries),
            summaries=sum(
                kind in {"summary", "entry"} for actor in actors for _, kind, _, _ in actor.folds
            ),
            pending_jobs=sum(not job.dead for job in jobs),
            dead_jobs=sum(job.dead for job in jobs),
            memories=sum(sid in sids for sid, _ in self._memories.values()),
        )

    async def setting(self, name: str, value: str | None = None) -> str | None:
        """Read a setting, after setting it if it never was."""
        await anyio.lowlevel.checkpoint()
        return self._settings.get(name) if value is None else self._settings.setdefault(name, value)

    async def change(self, settings: Mapping[str, str]) -> None:
        """Set these settings, whatever they were."""
        await anyio.lowlevel.checkpoint()
        self._settings.update(settings)

    async def erase(self, user: str, session: str | None = None) -> Erased:
        """Delete everything of a user, or of one session, and leave a note."""
        await anyio.lowlevel.checkpoint()
        await self._commit()
        removed = dict.fromkeys(("actors", "messages", "folds", "facets", "memories", "jobs"), 0)
        own = self._actors.get(self._sids.get(UserKey(user), 0))
        if session is None:
            gone = [actor for actor in self._actors.values() if actor.key.user == user]
        else:
            gone = [
                actor for actor in self._actors.values() if actor.key == SessionKey(user, session)
            ]
            if own is not None:
                telling = [
                    (kind, name)
                    for (kind, name), value in own.state_items.items()
                    if kind == SYNOPSIS_KIND
                    or (kind == WORKING_KIND and session_of_item(value) == session)
                ]
                for place in telling:
                    del own.state_items[place]
                removed["facets"] += len(telling)
                learned = [
                    id_
                    for id_, (sid, item) in self._memories.items()
                    if sid == own.sid and item.session == session
                ]
                for id_ in learned:
                    del self._memories[id_]
                removed["memories"] += len(learned)
                for id_, job in self._jobs.items():
                    if job.key == own.key and job.error:
                        self._jobs[id_] = msgspec.structs.replace(job, error=ERROR_REMOVED)
        for actor in gone:
            self._delete(actor, removed)
        self._last_erasure = number = self._last_erasure + 1
        erasure = Erasure(
            number, user_key(user), "" if session is None else session_key(user, session)
        )
        self._erasures[number] = erasure
        return Erased(erasure, removed)

    def _delete(self, actor: _Actor, removed: dict[str, int]) -> None:
        memories = [id_ for id_, (sid, _) in self._memories.items() if sid == actor.sid]
        jobs = [job.id for job in self._jobs.values() if job.key == actor.key]
        for id_ in memories:
            del self._memories[id_]
        for id_ in jobs:
            del self._jobs[id_]
        removed["actors"] += 1
        removed["messages"] += len(actor.entries)
        removed["folds"] += len(actor.folds)
        removed["facets"] += len(actor.state_items)
        removed["memories"] += len(memories)
        removed["jobs"] += len(jobs)
        del self._actors[actor.sid], self._sids[actor.key]
        self._gone.add(actor.sid)

    async def erasures(self) -> Sequence[Erasure]:
        """What is still being forgotten, oldest first."""
        await anyio.lowlevel.checkpoint()
        return list(self._erasures.values())

    async def erased(self, number: int) -> None:
        """The note goes."""
        await anyio.lowlevel.checkpoint()
        await self._commit()
        self._erasures.pop(number, None)

    async def scrub(self) -> None:
        """Nothing to do: there are no files."""
        await anyio.lowlevel.checkpoint()

    async def trim(self, limits: Retention, now_us: int) -> int:
        """Remove archived originals beyond the limits."""
        await anyio.lowlevel.checkpoint()
        await self._commit()
        wanted: dict[int, int] = {}
        for archive in self._archives():
            actor = self._actors[archive.sid]
            last = 0
            if limits.max_age_days > 0:
                oldest = now_us - int(limits.max_age_days * 86_400_000_000)
                among = actor.entries[: archive.through - actor.trimmed]
                last = next(
                    (entry.seq - 1 for entry in among if entry.at_us >= oldest), archive.through
                )
            if limits.max_messages > 0:
                there = [entry.seq for entry in actor.visible(1, actor.watermarks.archived_through)]
                last = max(last, *there[: -limits.max_messages][-1:], 0)
            wanted[archive.sid] = min(last, archive.through)
        count = self._trimmed(wanted)
        if limits.max_bytes > 0:
            total = sum(
                entry.size for actor in self._actors.values() for entry in self._archived(actor)
            )

            async def sizes(archive: Archive, first: int) -> MessageSizes:
                entries = self._actors[archive.sid].entries
                start = first - archive.trimmed - 1
                return [
                    (one.seq, one.at_us, one.size)
                    for one in entries[start : archive.through - archive.trimmed]
                ]

            count += self._trimmed(
                await choose_oldest(self._archives(), total - limits.max_bytes, sizes)
            )
        return count

    def _archived(self, actor: _Actor) -> Sequence[Entry]:
        return actor.entries[: max(actor.watermarks.archived_through - actor.trimmed, 0)]

    def _archives(self) -> list[Archive]:
        found = []
        for actor in self._actors.values():
            last = min(actor.watermarks.flushing, actor.watermarks.archived_through)
            waiting = (
                entry.seq
                for entry in actor.visible(actor.flushed + 1, last)
                if entry.seq not in actor.pruned
            )
            needed = (
                first_message_needed(job.payload)
                for job in self._jobs.values()
                if job.key == actor.key
            )
            through = last_removable(actor.watermarks.archived_through, next(waiting, None), needed)
            if isinstance(actor.key, SessionKey) and through > actor.trimmed:
                found.append(Archive(actor.sid, actor.trimmed, through))
        return found

    def _trimmed(self, wanted: Mapping[int, int]) -> int:
        count = 0
        for sid, last in wanted.items():
            actor = self._actors[sid]
            going = max(last - actor.trimmed, 0)
            gone = {entry.seq for entry in actor.entries[:going]}
            del actor.entries[:going]
            actor.trimmed += going
            actor.keys = {
                digest: seqs for digest, seqs in actor.keys.items() if seqs[0] not in gone
            }
            actor.removed = {seq: at for seq, at in actor.removed.items() if seq not in gone}
            actor.pruned -= gone
            count += going
        return count

    async def checkpoint(self) -> None:
        """Nothing to do."""
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Commit what is queued."""
        await self._commit()
