"""A journal in memory: `Runtime.in_memory()`, and the reference for testing the others.

It runs on any event loop, so the property tests drive it on trio. As a real one does, it commits
queued writes in groups, and shows only what is committed.
"""

from __future__ import annotations

import copy
import secrets
import time
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from heapq import nsmallest
from typing import Self

import anyio
import anyio.lowlevel

from remora.errors import CommitFailed, OwnershipLost
from remora.ids import SHARED_PREFIX, SessionKey, UserKey
from remora.messages import Entry
from remora.messages.attachments import has_attachments
from remora.runtime.jobs import Job
from remora.runtime.log import LogStatistics, Write
from remora.storage.attachments import Attachments, BlobsInMemory, Encoded
from remora.storage.erasure_notes import (
    DIGEST_KEYS,
    ERASED_TABLES,
    ERROR_REMOVED,
    decode_note,
    encode_owners,
    find_erased,
)
from remora.storage.journal_port import (
    Erased,
    Erasure,
    JournalCounts,
    Retention,
    SummaryFigures,
)
from remora.storage.keyed_values import KEYED_KIND
from remora.storage.listing import (
    ListingPage,
    SessionListing,
    UserListing,
    first_page,
    session_listing,
    user_listing,
)
from remora.storage.lookups import (
    RAREST,
    Answer,
    BufferStart,
    Erasable,
    ErasableLookup,
    IdLookup,
    KeyLookup,
    MemoryLookup,
    OriginalAppend,
    PastLookup,
    PinnedLookup,
    SessionPart,
    TurnLookup,
    earlier_buffer,
    entry_ranges,
    ids_by_place,
    messages_by_id,
    newest_instructions,
    numbered_ids,
    read_instructions,
    select_facts,
)
from remora.storage.memory.tables import Actor, MemoryTables, as_resumed
from remora.storage.pending import (
    ArchivedRange,
    MessageSizes,
    choose_oldest,
    first_message_needed,
    last_removable,
)
from remora.storage.queueing import CommitMeter
from remora.storage.records import (
    BLANK_CHAT,
    HOT_KEYS,
    MemoryItem,
    SavedSession,
    SavedUser,
    StateItem,
)

# -- the writing half of the journal in memory: group commit, and one owner at a time --------------


class _Commits:
    """The commits that all owners of the same rows share.

    Attributes:
        epoch: how many owners there were so far.
        number: how many commits there were so far.
    """

    __slots__ = ("epoch", "number")

    def __init__(self) -> None:
        self.epoch = 1
        self.number = 0


class MemoryWriter(MemoryTables):
    """Commits queued writes while no other owner has the rows.

    Args:
        hot_keys: idempotency keys that an image holds at most; the others are looked up.

    Attributes:
        epoch: the number of its owners so far, this one included.
    """

    def __init__(self, *, hot_keys: int = HOT_KEYS) -> None:
        super().__init__(hot_keys=hot_keys)
        self.epoch = 1
        self._owners = _Commits()
        self._queue: list[Write] = []
        self._event = anyio.Event()
        self._lost: OwnershipLost | None = None
        self._lost_event = anyio.Event()
        self.meter = CommitMeter()

    def restart(self) -> Self:
        """Open it again, as a new process would: the new owner has what is committed.

        This one stores nothing more.
        """
        found = copy.copy(self)
        self._owners.epoch += 1
        vars(found).update(
            epoch=self._owners.epoch,
            _queue=[],
            _event=anyio.Event(),
            _lost=None,
            _lost_event=anyio.Event(),
            meter=CommitMeter(),
        )
        return found

    @property
    def commit_number(self) -> int:
        """See `remora.storage.ports.Journal.commit_number`."""
        return self._owners.number

    def write(self, write: Write) -> None:
        self._queue.append(write)
        self._event.set()

    async def run(self) -> None:
        while True:
            await self._event.wait()
            self._event = anyio.Event()
            await anyio.lowlevel.checkpoint()
            await self.commit()

    async def wait_until_lost(self) -> None:
        await self._lost_event.wait()

    def check_lease(self) -> None: ...

    def statistics(self) -> LogStatistics:
        lost = "" if self._lost is None else str(self._lost)
        return self.meter.figures(len(self._queue), lost=lost)

    async def commit(self) -> None:
        """Commit what is queued."""
        batch, self._queue = self._queue, []
        self._apply_batch(batch)

    async def checkpoint(self) -> None:
        await anyio.lowlevel.checkpoint()
        self._is_overtaken()

    def _apply_batch(self, batch: Sequence[Write]) -> None:
        if self._is_overtaken():
            self.meter.fail(self._lost)
            for write in batch:
                if not write.fenced:
                    write.acknowledge(self._lost)
            return
        began, writes, records = time.perf_counter(), 0, 0
        applied: list[Write] = []
        for write in batch:
            if write.fenced:
                continue
            try:
                self._check(write)
            except CommitFailed as e:
                self.meter.fail(None)
                _acknowledge(applied)  # in the order of queueing
                write.acknowledge(e)
                continue
            for record in write.records:
                self.apply(record)
                records += 1
            writes += 1
            applied.append(write)
        self._count_commit()
        self.meter.add(writes, records, time.perf_counter() - began)
        _acknowledge(applied)

    def _count_commit(self) -> None:
        self.meter.count()
        self._owners.number += 1

    def _is_overtaken(self) -> bool:
        """Return whether there is a newer owner; notices it for `wait_until_lost`."""
        if self._lost is None and self.epoch != self._owners.epoch:
            self._lost = OwnershipLost(
                "another owner has taken this journal over; nothing more can be stored here"
            )
            self._lost_event.set()
        return self._lost is not None

    async def _begin_work(self) -> None:
        """Commit what is queued before other work, which is a commit of its own.

        Raises:
            OwnershipLost: there is a newer owner.
        """
        await self.commit()
        if self._is_overtaken():
            assert self._lost is not None
            raise self._lost
        self._count_commit()


def _acknowledge(applied: list[Write]) -> None:
    """Tell the owners of these writes, and forget them."""
    told = applied.copy()
    applied.clear()
    for write in told:
        if not write.fenced:
            write.acknowledge(None)


_DAY_US = 86_400_000_000


class MemoryJournal(MemoryWriter):
    """Implements `remora.storage.ports.Journal`; nothing survives it.

    Args:
        hot_keys: idempotency keys that an image holds at most; the others are looked up.
    """

    def __init__(self, *, hot_keys: int = HOT_KEYS) -> None:
        super().__init__(hot_keys=hot_keys)
        self.instance = secrets.token_hex(3)
        self._erasures: dict[int, Erasure] = {}
        self._last_erasure = 0
        self._settings: dict[str, str] = {}
        self.attachments = Attachments(BlobsInMemory(), self, self._referring, self._all_users)

    async def _referring(self, user: str) -> list[Encoded]:
        return [
            (entry.chat, entry.meta)
            for key, actor in self._sessions()
            if key.user == user
            for entry in actor.entries
            if has_attachments(entry.chat, entry.meta)
        ]

    async def _all_users(self) -> set[str]:
        return {actor.key.user for actor in self._actors.values()}

    async def hydrate(
        self, keys: Sequence[Hashable]
    ) -> Sequence[SavedSession | SavedUser | Exception]:
        """The image of each actor."""
        await anyio.lowlevel.checkpoint()
        return [self.saved(key) for key in keys]

    async def fetch(self, key: Hashable, query: object) -> Answer:
        await anyio.lowlevel.checkpoint()
        if isinstance(query, MemoryLookup):
            assert isinstance(key, UserKey)
            return {item.id: item for item in await self.memories(key.user, query.ids)}
        actor = self._find(key)
        if isinstance(query, PastLookup):
            assert isinstance(key, SessionKey)
            return await earlier_buffer(self, key, query.at)
        if isinstance(query, PinnedLookup):
            assert isinstance(key, SessionKey)
            return await read_instructions(self, key, query.after, query.through)
        if isinstance(query, IdLookup):
            among = actor.visible(query.after + 1, actor.last) if actor else []
            found = [one for one in among if one.id is not None and one.id in query.ids]
            return messages_by_id(actor.stored(found) if actor else ())
        if isinstance(query, ErasableLookup):
            if actor is None:
                return Erasable((), ())
            there = [
                one
                for one in actor.entries
                if (one.id in query.ids or one.seq in query.seqs)
                and (one.seq not in actor.removed or one.chat != BLANK_CHAT)
            ]
            assert isinstance(key, SessionKey)
            return Erasable(tuple(actor.stored(there)), entry_ranges(await self.state_items(key)))
        if isinstance(query, TurnLookup):
            return tuple(actor.keyed_appends(query.root)) if actor else ()
        assert isinstance(query, KeyLookup)
        seqs = actor.keys.get(query.digest) if actor else None
        if actor is None or seqs is None:
            return None
        entries = [actor.entries[seq - actor.trimmed - 1] for seq in seqs]
        return OriginalAppend(
            seqs, tuple(entry.id for entry in entries), tuple(entry.chat for entry in entries)
        )

    # -- reads -------------------------------------------------------------------------------------

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        await anyio.lowlevel.checkpoint()
        actor = self._find(key)
        return actor.visible(first, last, at) if actor else ()

    async def read_ranges(
        self, ranges: Sequence[tuple[SessionKey, int, int]], *, max_bytes: int
    ) -> Sequence[SessionPart] | None:
        await anyio.lowlevel.checkpoint()
        parts = []
        for key, first, last in ranges:
            actor = self._find(key)
            entries = actor.visible(first, last) if actor else []
            pruned = frozenset(actor.pruned) if actor else frozenset[int]()
            parts.append(SessionPart(key, entries, pruned))
        size = sum(len(entry.chat) for part in parts for entry in part.entries)
        return parts if size <= max_bytes else None

    async def any_removed(self, key: SessionKey, first: int, last: int, *, since: int) -> bool:
        await anyio.lowlevel.checkpoint()
        actor = self._find(key)
        removed = actor.removed if actor else {}
        return any(first <= seq <= last and at > since for seq, at in removed.items())

    async def buffer_start(self, key: SessionKey, at: int) -> BufferStart:
        await anyio.lowlevel.checkpoint()
        actor = self._find(key)
        return actor.buffer_start(at) if actor else BufferStart(0, None, ())

    async def summary_figures(self, key: SessionKey) -> SummaryFigures:
        await anyio.lowlevel.checkpoint()
        actor = self._find(key)
        made = [one for _, _, _, one in actor.changes if one.input_tokens > 0] if actor else []
        return SummaryFigures(
            len(made),
            sum(one.input_tokens for one in made),
            sum(one.tokens for one in made),
            sum(one.degraded for one in made),
        )

    async def memories(self, user: str, ids: Sequence[str] | None = None) -> Sequence[MemoryItem]:
        await anyio.lowlevel.checkpoint()
        sid = self._sids.get(UserKey(user))
        return [
            item
            for owner, item in self._memories.values()
            if owner == sid and (ids is None or item.id in ids)
        ]

    async def list_memories(
        self, user: str, *, after: tuple[int, str] | None, limit: int
    ) -> Sequence[MemoryItem]:
        places = [((item.created_us, item.id), item) for item in await self.memories(user)]
        wanted = [place for place in places if after is None or place[0] > after]
        return [item for _, item in nsmallest(limit, wanted, key=lambda place: place[0])]

    async def facts(
        self, user: str, *, session: str | None = None, topics: Collection[str] | None = None
    ) -> Sequence[MemoryItem]:
        return select_facts(await self.memories(user), session, topics)

    async def instructions(self, user: str, *, limit: int) -> Sequence[MemoryItem]:
        return newest_instructions(await self.memories(user), limit)

    async def removed_messages(
        self, user: str, messages: Collection[tuple[str, int]]
    ) -> Collection[tuple[str, int]]:
        await anyio.lowlevel.checkpoint()
        found = ((self._find(SessionKey(user, one[0])), one) for one in messages)
        return {one for actor, one in found if actor is not None and one[1] in actor.removed}

    async def message_ids(
        self, user: str, messages: Collection[tuple[str, int]]
    ) -> Mapping[tuple[str, int], str]:
        await anyio.lowlevel.checkpoint()
        rows = []
        for session, seq in messages:
            actor = self._find(SessionKey(user, session))
            if actor is not None and actor.trimmed < seq <= actor.last:
                entry = actor.entries[seq - actor.trimmed - 1]
                rows.append((session, actor.sid, seq, entry.id))
        return ids_by_place(self.instance, rows)

    async def sessions_of(self, user: str, ids: Collection[str]) -> Sequence[tuple[str, str]]:
        await anyio.lowlevel.checkpoint()
        mine = [one for one in self._actors.values() if one.key.user == user]
        sessions = {one.sid: one.key.session for one in mine if isinstance(one.key, SessionKey)}
        numbered = numbered_ids(self.instance, ids)
        own = [(id_, sessions[sid]) for id_, sid in numbered if sid in sessions]
        given = {
            (entry.id, sessions[actor.sid])
            for actor in mine
            if actor.sid in sessions
            for entry in actor.entries
            if entry.id is not None
            and entry.id in ids
            and (entry.seq not in actor.removed or entry.chat != BLANK_CHAT)
        }
        return [*own, *sorted(given)]

    async def pruned_seqs(self, key: SessionKey) -> Sequence[int]:
        await anyio.lowlevel.checkpoint()
        actor = self._find(key)
        return sorted(actor.pruned) if actor else ()

    async def state_items(self, key: SessionKey | UserKey) -> Sequence[StateItem]:
        await anyio.lowlevel.checkpoint()
        actor = self._find(key)
        return (
            [StateItem(kind, name, value) for (kind, name), value in actor.state_items.items()]
            if actor
            else ()
        )

    async def indexed_through(self) -> Sequence[tuple[SessionKey | UserKey, int]]:
        await anyio.lowlevel.checkpoint()
        return [(actor.key, actor.flushed) for actor in self._actors.values()]

    async def session_indexed_through(self, key: SessionKey) -> int:
        await anyio.lowlevel.checkpoint()
        actor = self._find(key)
        return actor.flushed if actor else 0

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        await anyio.lowlevel.checkpoint()
        return [as_resumed(job) for job in self._jobs.values() if job.dead == dead]

    async def user_jobs(self, user: str) -> Sequence[Job]:
        await anyio.lowlevel.checkpoint()
        return [
            as_resumed(job) for job in self._jobs.values() if getattr(job.key, "user", "") == user
        ]

    async def unindexed(
        self, user: str, limit: int, sessions: Collection[str] | None = None
    ) -> Sequence[tuple[SessionKey, int]]:
        await anyio.lowlevel.checkpoint()
        found = []
        for key, actor in self._sessions():
            if key.user == user and (sessions is None or key.session in sessions):
                tail = actor.visible(actor.watermarks.indexing_through + 1, actor.last)
                found += [
                    (e.at_us, actor.sid, e.seq, key) for e in tail if e.seq not in actor.pruned
                ]
        found.sort(key=lambda one: one[:3], reverse=True)
        return [(key, seq) for *_, seq, key in found[:limit]]

    async def find_unindexed(
        self, user: str, words: Sequence[str], limit: int
    ) -> Sequence[tuple[SessionKey, int]]:
        await anyio.lowlevel.checkpoint()
        found = []
        for key, actor in self._sessions():
            for entry in actor.visible(actor.flushed + 1, actor.last) if key.user == user else ():
                text = bytes(entry.chat).lower()
                hits = [word for word in words if word.encode() in text]
                if hits and entry.seq not in actor.pruned:
                    found.append(((entry.at_us, actor.sid, entry.seq), key, hits))
        counts = Counter(word for *_, hits in found for word in hits)
        found.sort(
            key=lambda one: (sum(RAREST // counts[word] for word in one[2]), one[0]), reverse=True
        )
        return [(key, place[2]) for place, key, _ in found[:limit]]

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        return await self.list_sessions(user, ListingPage())

    async def list_sessions(self, user: str, page: ListingPage) -> Sequence[SessionListing]:
        await anyio.lowlevel.checkpoint()
        sessions = [(key, actor) for key, actor in self._sessions() if key.user == user]
        found = [
            (key.session, len(seen), actor.used_us)
            for key, actor in sessions
            if (seen := actor.visible(1, actor.last)) or page.empty
        ]
        wanted = first_page(found, page, lambda one: (one[2], one[0]))
        return [session_listing(user, *one, page.order) for one in wanted]

    async def list_users(self, page: ListingPage) -> Sequence[UserListing]:
        await anyio.lowlevel.checkpoint()
        users: dict[str, list[Actor]] = {
            actor.key.user: []
            for actor in self._actors.values()
            if not actor.key.user.startswith(SHARED_PREFIX)
        }
        for key, actor in self._sessions():
            users[key.user].append(actor)
        found = [
            (user, len(actors), max((actor.used_us for actor in actors), default=0))
            for user, actors in users.items()
        ]
        wanted = first_page(found, page, lambda one: (one[2], one[0]))
        return [user_listing(*one, page.order) for one in wanted]

    def _sessions(self) -> list[tuple[SessionKey, Actor]]:
        return [
            (actor.key, actor)
            for actor in self._actors.values()
            if isinstance(actor.key, SessionKey)
        ]

    async def sessions_to_flush(self, limit: int) -> Sequence[SessionKey]:
        await anyio.lowlevel.checkpoint()
        tails = [
            actor.key
            for actor in self._actors.values()
            if isinstance(actor.key, SessionKey)
            and actor.visible(actor.watermarks.indexing_through + 1, actor.last)
        ]
        return tails[:limit]

    async def sessions_with_fallbacks(self, limit: int) -> Sequence[SessionKey]:
        await anyio.lowlevel.checkpoint()
        found = [
            actor.key
            for actor in reversed(self._actors.values())
            if isinstance(actor.key, SessionKey)
            and any(
                generation == actor.watermarks.generation and (one.lost or one.verbatim)
                for _, _, generation, one in actor.changes
            )
        ]
        return found[:limit]

    async def counts(self, user: str | None = None) -> JournalCounts:
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
                kind in {"summary", "entry"} for actor in actors for _, kind, _, _ in actor.changes
            ),
            pending_jobs=sum(not job.dead for job in jobs),
            dead_jobs=sum(job.dead for job in jobs),
            memories=sum(sid in sids for sid, _ in self._memories.values()),
            state_keys=sum(kind == KEYED_KIND for one in actors for kind, _ in one.state_items),
        )

    async def setting(self, name: str) -> str | None:
        await anyio.lowlevel.checkpoint()
        return self._settings.get(name)

    async def init_setting(self, name: str, value: str) -> str:
        await anyio.lowlevel.checkpoint()
        if name not in self._settings:
            await self._begin_work()
        return self._settings.setdefault(name, value)

    async def change_settings(self, settings: Mapping[str, str]) -> None:
        await anyio.lowlevel.checkpoint()
        await self._begin_work()
        self._settings.update(settings)

    async def erase(self, user: str, session: str | None = None) -> Erased:
        await anyio.lowlevel.checkpoint()
        await self._begin_work()
        async with self.attachments.removing([user], session, whole=session is None):
            return self._erase(user, session)

    def _erase(self, user: str, session: str | None) -> Erased:
        removed = dict.fromkeys(ERASED_TABLES, 0)
        own = self._find(UserKey(user))
        if session is None:
            gone = [actor for actor in self._actors.values() if actor.key.user == user]
        else:
            actor = self._find(SessionKey(user, session))
            gone = [] if actor is None else [actor]
            if own is not None:
                self._erase_from_user(own, session, removed)
        for actor in gone:
            self._delete(actor, removed)
        self._last_erasure = number = self._last_erasure + 1
        owners = encode_owners(user, session, self._settings.get(DIGEST_KEYS))
        erasure = decode_note(number, *owners)
        self._erasures[number] = erasure
        return Erased(erasure, removed)

    def _erase_from_user(self, own: Actor, session: str, removed: dict[str, int]) -> None:
        key = SessionKey(own.key.user, session)
        actor = self._find(key)
        newest = 0 if actor is None else actor.last
        items = [(kind, name, value) for (kind, name), value in own.state_items.items()]
        for one in find_erased(key, newest, items):
            del own.state_items[one]
            removed["state_items"] += 1
        for id_, (sid, item) in list(self._memories.items()):
            if sid == own.sid and item.session == session:
                del self._memories[id_]
                removed["memories"] += 1
        for id_, job in list(self._jobs.items()):
            if job.key == own.key and job.error:
                self._change_job(id_, error=ERROR_REMOVED)

    async def erasures(self) -> Sequence[Erasure]:
        await anyio.lowlevel.checkpoint()
        return list(self._erasures.values())

    async def finish_erasure(self, number: int) -> None:
        await anyio.lowlevel.checkpoint()
        await self._begin_work()
        self._erasures.pop(number, None)

    async def scrub(self) -> None:
        await anyio.lowlevel.checkpoint()
        await self.attachments.sweep()

    async def trim(self, limits: Retention, now_us: int) -> int:
        await anyio.lowlevel.checkpoint()
        await self._begin_work()
        wanted: dict[int, int] = {}
        for archive in self._archives():
            actor = self._actors[archive.sid]
            last = 0
            if limits.max_age_days > 0:
                oldest = now_us - int(limits.max_age_days * _DAY_US)
                among = actor.entries[: archive.through - actor.trimmed]
                last = next(
                    (entry.seq - 1 for entry in among if entry.at_us >= oldest), archive.through
                )
            if limits.max_messages > 0:
                there = [entry.seq for entry in actor.visible(1, actor.watermarks.archived_through)]
                last = max(last, *there[: -limits.max_messages][-1:], 0)
            wanted[archive.sid] = min(last, archive.through)
        count = await self._trim(wanted)
        if limits.max_bytes > 0:
            total = sum(entry.size for actor in self._actors.values() for entry in actor.archive())

            async def sizes(archive: ArchivedRange, first: int) -> MessageSizes:
                entries = self._actors[archive.sid].entries
                start = first - archive.trimmed - 1
                return [
                    (one.seq, one.at_us, one.size)
                    for one in entries[start : archive.through - archive.trimmed]
                ]

            count += await self._trim(
                await choose_oldest(self._archives(), total - limits.max_bytes, sizes)
            )
        return count

    def _archives(self) -> list[ArchivedRange]:
        found = []
        for actor in self._actors.values():
            last = min(actor.watermarks.indexing_through, actor.watermarks.archived_through)
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
                found.append(ArchivedRange(actor.sid, actor.trimmed, through))
        return found

    async def _trim(self, wanted: Mapping[int, int]) -> int:
        users = {self._actors[sid].key.user for sid in wanted}
        async with self.attachments.removing(users):
            count = sum(self._actors[sid].trim(last) for sid, last in wanted.items())
        await self.attachments.sweep()
        return count

    async def aclose(self) -> None:
        await self.commit()
