"""Reads of the journal: the past of sessions and users, their figures, copies of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from remora.actors.blocks.state import copy_block_items, exclusion_item
from remora.actors.session.messages import Adopt, Inspect, SessionView
from remora.actors.user.messages import InspectUser, UserView
from remora.errors import ErasureInProgress, InvalidInput
from remora.ids import SessionKey, UserKey, message_id
from remora.messages import Entry, Message, restore_message
from remora.messages.attachments import find_blobs
from remora.models.cache import CachingEmbedder
from remora.recall.attached import attach_all
from remora.recall.recall import Recall
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.registry import ActorRegistry
from remora.services.appending import Instructions
from remora.storage.lookups import EarlierBuffer
from remora.storage.ports import (
    Journal,
    JournalCounts,
    ListingPage,
    SessionListing,
    SummaryFigures,
    UserListing,
    earlier_buffer,
)
from remora.storage.records import MessageRange, Summary, find_lost

# -- numbering a session's messages from 1 without gaps, for a copy or an export of it -------------


class Renumbering:
    """New numbers for the messages that are left of a session.

    Args:
        seqs: their present numbers, in order.
        last: the number of the newest message that the session ever had.
    """

    def __init__(self, seqs: Sequence[int], last: int) -> None:
        self._seqs = seqs
        self._last = last
        self.gapless = len(seqs) == last

    def through(self, seq: int) -> int:
        """How many messages are left up to `seq`: the new number of the last of them."""
        return bisect_right(self._seqs, seq)

    def items(self) -> Iterator[tuple[int, int | None]]:
        """Each number up to the last, and its new one; None if the message is gone."""
        new = {seq: number for number, seq in enumerate(self._seqs, start=1)}
        return ((seq, new.get(seq)) for seq in range(1, self._last + 1))

    def summary(self, one: Summary) -> Summary:
        """The summary, of the same messages by their new numbers."""
        through = self.through(one.through)
        first = min(self.through(one.first - 1) + 1, through)
        lost, verbatim = self._ranges(find_lost(one)), self._ranges(one.verbatim)
        return msgspec.structs.replace(
            one, first=first, through=through, lost=lost, verbatim=verbatim
        )

    def _ranges(self, ranges: Sequence[MessageRange]) -> tuple[MessageRange, ...]:
        found = []
        for one in ranges:
            before, last = self.through(one.first - 1), self.through(one.last)
            found.append(MessageRange(before + 1, last, min(last - before, one.count)))
        return tuple(found)


_IN_THREAD = 200  # messages from which on decoding them is a thread's work
_BYTES_IN_THREAD = 200_000
_FOLLOWED_BYTES = 1 << 17
_MOST_AT_ONCE = 256  # numbers that are read at once where some are missing


class SessionStatistics(msgspec.Struct, frozen=True):
    """A session in figures.

    Attributes:
        messages: appended so far; deleted and rewound ones included.
        buffered: messages in the buffer, those that are being summarized included.
        buffered_tokens: their size.
        pending: messages that are being summarized.
        summary_tokens: size of the running summary and the summary entries.
        summaries: summaries that were made, and the tokens that they read and wrote.
        indexed: messages that are in long-term memory, or will be: a job is journalled.
        rewritten: how often the session was cleared, rewound, or had messages deleted.
        degraded: the messages that no summary covers: neither one by a model, nor a fallback with
            all their text; None for none.
        state_keys: keys of keyed state.
    """

    messages: int
    buffered: int
    buffered_tokens: int
    pending: int
    summary_tokens: int
    summaries: SummaryFigures
    indexed: int
    rewritten: int
    degraded: MessageRange | None = None
    state_keys: int = 0


class UserStatistics(msgspec.Struct, frozen=True):
    """A user in figures. Hit rates are those of the runtime since it was opened.

    Attributes:
        sessions: sessions that have ever had a message.
        messages: messages ever appended to them.
        tokens: size of these messages.
        summaries: summaries that were made of them.
        memories: memories recorded explicitly.
        long_term_rows: rows in long-term memory; 0 if it is switched off.
        working_items: items in working memory.
        working_bytes: their size.
        pending_jobs: background jobs that run or wait.
        dead_jobs: dead-lettered jobs.
        synopsis_hit_rate: reads of the synopsis answered without writing it, since the user's
            actor was activated.
        recall_hit_rate: recalls of any user answered from the cache.
        embedding_hit_rate: texts of any user whose vectors were cached.
        state_keys: keys of keyed state, the user's own and those of the sessions.
    """

    sessions: int
    messages: int
    tokens: int
    summaries: int
    memories: int
    long_term_rows: int
    working_items: int
    working_bytes: int
    pending_jobs: int
    dead_jobs: int
    synopsis_hit_rate: float
    recall_hit_rate: float
    embedding_hit_rate: float
    state_keys: int = 0


class Followed(msgspec.Struct, frozen=True):
    """The messages of a session behind a number.

    Attributes:
        messages: oldest first.
        after: the number behind which to go on.
        sid: the session's number in its journal, 0 before its first message: a session that begins
            with the same id after an erasure has another one.
        ended: the session was erased.
    """

    messages: list[Message]
    after: int
    sid: int
    ended: bool = False


def restore_messages(instance: str, sid: int, entries: Sequence[Entry]) -> list[Message]:
    """Entries as messages, with the ids that they were given or that are made of their numbers."""
    return [
        restore_message(entry, entry.id or message_id(instance, sid, entry.seq))
        for entry in entries
    ]


def are_long(entries: Sequence[Entry]) -> bool:
    """Return whether decoding the entries would hold the event loop for some milliseconds."""
    if len(entries) >= _IN_THREAD:
        return True
    return sum(len(entry.chat) for entry in entries) > _BYTES_IN_THREAD


def _cut(entries: list[Entry]) -> list[Entry]:
    """The first of them, of `_FOLLOWED_BYTES` together, or one."""
    size = 0
    for place, entry in enumerate(entries):
        size += len(entry.chat)
        if size > _FOLLOWED_BYTES:
            return entries[: max(place, 1)]
    return entries


class LocalArchive:
    """The archive of a journal in this process.

    Args:
        journal: what is read.
        actors: what knows the present state.
        recall: None if long-term memory is switched off.
        embedder: None if there is none.
        instructions: of users; None where none are noticed.
    """

    def __init__(
        self,
        journal: Journal,
        actors: ActorRegistry,
        recall: Recall | None,
        embedder: CachingEmbedder | None,
        instructions: Instructions | None = None,
    ) -> None:
        self._instructions = instructions
        self._journal = journal
        self._actors = actors
        self._recall = recall
        self._embedder = embedder

    async def history(
        self,
        key: SessionKey,
        *,
        include_archived: bool,
        at: int | None,
        after: int = 0,
        limit: int | None = None,
        attachments: bool = True,
    ) -> list[Message]:
        """See `remora.Session.history`."""
        view: SessionView = await self._actors.ask(key, Inspect())
        if view.last_seq == 0:
            return []
        first = 1 if include_archived else view.watermarks.archived_through + 1
        last = view.last_seq if at is None else min(at, view.last_seq)
        entries: Sequence[Entry]
        entries = await self._read(key, max(first, after + 1), last, limit)
        if attachments:
            entries = await attach_all(entries, key.user, self.blobs)
        return await self._restore(view.sid, entries)

    async def blobs(self, user: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """See `remora.services.parts.Archive`."""
        return await self._journal.attachments.get(user, digests)

    async def follow(
        self, key: SessionKey, *, after: int | None = None, sid: int = 0, limit: int = 100
    ) -> Followed:
        """Messages with numbers larger than `after`, at most `limit`, when there are some.

        They have 128 KiB, about, or are one: a client that reads slowly holds them all that time.

        Args:
            key: of the session.
            after: None to return at once, with the number of the newest message.
            sid: what the session had before; 0 if it is not known.
            limit: how many at most.
        """
        while True:
            with self._actors.watchers.watch(key) as changed:
                try:
                    view: SessionView = await self._actors.ask(key, Inspect())
                except ErasureInProgress:
                    return Followed([], after or 0, sid, ended=True)
                now = view.sid if view.last_seq else 0
                if sid and now != sid:
                    return Followed([], after or 0, sid, ended=True)
                if after is None:
                    return Followed([], view.last_seq, now)
                entries = _cut(await self._read(key, after + 1, view.last_seq, limit))
                if entries and (not changed.is_set() or await self._is(key, view.sid)):
                    whole = await attach_all(entries, key.user, self.blobs)
                    messages = await self._restore(view.sid, whole)
                    return Followed(messages, entries[-1].seq, now)
                if not entries:  # what came was deleted
                    after, sid = max(after, view.last_seq), now or sid
                    await changed.wait()

    async def _is(self, key: SessionKey, sid: int) -> bool:
        """Return whether this is the session of the id, and not one that began again."""
        try:
            view: SessionView = await self._actors.ask(key, Inspect())
        except ErasureInProgress:
            return False
        return view.sid == sid

    async def _restore(self, sid: int, entries: Sequence[Entry]) -> list[Message]:
        instance = self._journal.instance
        return await run_in_thread_if(are_long(entries), restore_messages, instance, sid, entries)

    async def _read(self, key: SessionKey, first: int, last: int, limit: int | None) -> list[Entry]:
        """Entries from `first` to `last`, at most `limit`: numbers may be missing between them.

        As many numbers as are wanted are read at once, and twice as many where some were missing.
        They are those as of `last`, so that a removal during the read changes nothing (G2).
        """
        if first > last:
            return []
        if limit is None:
            return list(await self._journal.read(key, first, last, at=last))
        found: list[Entry] = []
        window = limit
        while first <= last and len(found) < limit:
            upto = min(first + window - 1, last)
            found += await self._journal.read(key, first, upto, at=last)
            first, window = upto + 1, min(window * 2, max(limit, _MOST_AT_ONCE))
        return found[:limit]

    async def stats(self, key: SessionKey) -> SessionStatistics:
        """See `remora.Session.stats`."""
        view: SessionView = await self._actors.ask(key, Inspect())
        figures = await self._journal.summary_figures(key)
        summaries = [*([view.summary] if view.summary else []), *view.summaries]
        return SessionStatistics(
            messages=view.last_seq,
            buffered=view.buffered,
            buffered_tokens=view.buffered_tokens,
            pending=view.pending,
            summary_tokens=sum(one.tokens for one in summaries),
            summaries=figures,
            indexed=min(view.watermarks.indexing_through, view.last_seq),
            rewritten=view.watermarks.generation,
            degraded=view.degraded,
            state_keys=len(view.keyed.values) if view.keyed is not None else 0,
        )

    async def user_stats(self, user: str) -> UserStatistics:
        """See `remora.User.stats`."""
        counts = await self._journal.counts(user)
        view: UserView = await self._actors.ask(UserKey(user), InspectUser())
        rows, recall_rate, embedding_rate = 0, 0.0, 0.0
        if self._recall is not None:
            rows = await self._recall.count(user)
            recalls = self._recall.statistics()
            recall_rate = _rate(recalls.hits, recalls.misses)
        if self._embedder is not None:
            embedded = self._embedder.statistics()
            embedding_rate = _rate(embedded.hits, embedded.misses)
        return UserStatistics(
            sessions=counts.sessions,
            messages=counts.messages,
            tokens=counts.tokens,
            summaries=counts.summaries,
            memories=counts.memories,
            long_term_rows=rows,
            working_items=view.working_items,
            working_bytes=view.working_bytes,
            pending_jobs=counts.pending_jobs,
            dead_jobs=counts.dead_jobs,
            synopsis_hit_rate=_rate(view.synopsis_hits, view.synopsis_misses),
            recall_hit_rate=recall_rate,
            embedding_hit_rate=embedding_rate,
            state_keys=counts.state_keys,
        )

    async def sessions(self, user: str, page: ListingPage) -> Sequence[SessionListing]:
        """See `remora.User.sessions`."""
        return await self._journal.list_sessions(user, page)

    async def users(self, page: ListingPage) -> Sequence[UserListing]:
        """See `remora.Runtime.users`."""
        return await self._journal.list_users(page)

    async def counts(self, user: str | None = None) -> JournalCounts:
        """See `remora.Runtime.counts`."""
        return await self._journal.counts(user)

    async def fork(self, key: SessionKey, copy: SessionKey, at: int | None) -> None:
        """See `remora.Session.fork`."""
        view: SessionView = await self._actors.ask(key, Inspect())
        at = view.last_seq if at is None else at
        if at > view.last_seq:
            raise InvalidInput(f"a session with {view.last_seq} messages has no message {at}")
        earlier = await earlier_buffer(self._journal, key, at, as_it_was=True)
        entries = await self._journal.read(key, 1, at, at=at)
        digests = {one.digest for entry in entries for one in find_blobs(entry.chat, entry.meta)}
        async with self._journal.attachments.holding(key.user, digests):
            if digests:  # what was erased before they were held is not there any more
                entries = await self._journal.read(key, 1, at, at=at)
            adopt = await run_in_thread_if(are_long(entries), _copy, view, earlier, entries, at)
            await self._actors.ask(copy, adopt)
        if self._instructions is not None:
            seqs = {entry.seq: number for number, entry in enumerate(entries, start=1)}
            await self._instructions.copy(key, copy, seqs)


def _copy(view: SessionView, earlier: EarlierBuffer, entries: Sequence[Entry], at: int) -> Adopt:
    """The message that makes another session a copy of one as it was at `at`."""
    numbers = Renumbering([entry.seq for entry in entries], at)
    front = numbers.through(earlier.front)
    items = copy_block_items(view.blocks, front)
    if front:
        items = (*items, exclusion_item(((1, front),)))
    if view.keyed is not None:
        items = (*items, *view.keyed.state_items)
    return Adopt(
        entries=tuple(entry.with_seq(seq) for seq, entry in enumerate(entries, start=1)),
        size=sum(entry.size for entry in entries),
        front=front,
        flushing=numbers.through(view.watermarks.indexing_through),
        summary=numbers.summary(earlier.summary) if earlier.summary else None,
        summaries=tuple(map(numbers.summary, earlier.summaries)),
        state_items=items,
        cleared=numbers.through(earlier.cleared),
    )


def _rate(hits: int, misses: int) -> float:
    return hits / (hits + misses) if hits or misses else 0.0
