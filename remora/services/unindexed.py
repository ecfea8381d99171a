"""Rows of messages that are not indexed yet, which recall searches: acknowledged is known.

An index job runs when a session is compacted, idle or flushed; recall must not wait for that. So it
searches the user's tail as well: messages without an index job, messages and recorded memories
whose job has not ended, and those of dead letters.

*From the journal.* It has what is acknowledged and nothing else, so a tail is read there, for live
sessions as for others. The user's first recall finds the sessions by an index; for later ones, the
owner's quota tells which sessions had a write since (`remora.runtime.cell.Quota.changed`). An
append adds a key to a set, if its user recalled before, and does nothing else. A user without
writes is answered without reading anything.

*A load's own session is left out*, if the load shows all of it that is not indexed: that is not
recalled. So what a session says is neither read nor embedded for its own turns, and counts for
nothing in the weights of words; unless loads of several sessions wait at once, which then share the
tail of all rows.

*Rows are made once.* A message's row is kept until the message is indexed, and its vector is handed
to the job that indexes it (`remora.jobs.rows.KnownVectors`).

*Bounded.* The newest `limit` rows of a user are searched; older messages that have words of the
question, as they stand, are looked for in the journal, and `Tail.note` says so. One recall has at
most `_EMBEDDED_AT_ONCE` texts embedded; the others are found by their words, and embedded by later
recalls. Tails of many users together are bounded, too. Before either bound is reached, sessions of
which much is not indexed are: to drop what is asked for again and again would have each recall read
all of its user's messages, and none would end in time.

*Never what was removed.* Each change of the user's rows, in the journal or in long-term memory, has
the sessions concerned read again; a user who is forgotten, or whose memory is pruned, is dropped.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from operator import itemgetter
from typing import TypeAlias

import anyio
import anyio.abc
import msgspec

from remora.errors import JournalDamaged, ModelError
from remora.ids import SessionKey, UserKey, entry_id, row_id
from remora.jobs.rows import IndexAccess, embedding_text, memory_row, message_rows
from remora.languages.search_words import reading_size
from remora.logging import get_logger
from remora.recall.question import Question
from remora.recall.tail import EMPTY_TAIL, Tail
from remora.runtime.cell import Quota
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.jobs import Job
from remora.runtime.probes import probe
from remora.runtime.shared_call import SharedCall
from remora.runtime.threads import run_in_thread
from remora.storage.journal_port import read_undamaged
from remora.storage.lookups import SessionPart
from remora.storage.pending import NEIGHBOURS, first_row_written
from remora.storage.ports import MemoryRow, Vector
from remora.storage.records import INSTRUCTION, DiscardSpec, FlushSpec, RecordSpec, UnflushSpec
from remora.storage.windows import with_windows
from remora.tokens import INLINE_CHARACTERS, TokenCounter

_logger = get_logger(__name__)
_BYTES_TOGETHER = 16 << 20  # of messages that are read at once
_OLDER = 64  # messages that are older than those of a tail, and have words of a question
_EMBEDDED_AT_ONCE = 256  # texts: 15 ms of the embedded embedder, one request to another
_MAX_USERS = 10_000  # whose tails are held
_MAX_ROWS = 60_000  # of all tails that are held: some 270 MB
_INDEXED_FROM = 20_000  # rows of all tails, from which on they are large
_MOST_COUNTED = 10_000  # messages without an index job, of a user
_LEAST_LEFT = 32  # messages of a user that need not be indexed
_READS = 4  # users whose tails are read at once: more would keep the event loop from its turn
_NEW_ON_LOOP = 16  # rows, whose index takes half a millisecond
_ON_LOOP = 500  # rows, of which most are known: 2 ms
_MOST_TAILS = 2  # that are made of one reading; more loads at once share that of all rows
_MOST_OWN = 64  # sessions of a user, of which is known how far a load's were read
_CHARACTERS = 10_000  # of texts that are searched, of English: 2 ms
_IN_THREAD = 500  # messages that jobs remove
Key: TypeAlias = SessionKey | UserKey


class UnindexedRows:
    """The tails of the users who recalled last; implements `remora.recall.recall.Tails`.

    Args:
        access: the journal, the embedder, redaction, and the vectors that jobs need not make.
        quota: the quota of an actor's owner.
        has_jobs: whether an actor has jobs that wait or run.
        index: has a session's messages indexed soon, those that have no index job.
        counter: for a row's size in a context.
        window_chars: how much of each neighbour a row's window holds.
        limit: rows of a user that are searched at most.
    """

    def __init__(
        self,
        access: IndexAccess,
        quota: Callable[[Hashable], Quota],
        has_jobs: Callable[[Hashable], bool],
        index: Callable[[SessionKey], object],
        counter: TokenCounter,
        *,
        window_chars: int,
        limit: int,
    ) -> None:
        self._access = access
        self._journal = access.journal
        self._quota = quota
        self._has_jobs = has_jobs
        self._index = index
        self._counter = counter
        self._window_chars = window_chars
        self._limit = limit
        self._users: OrderedDict[str, _UserTail] = OrderedDict()
        self._rows = 0
        self._slots = anyio.Semaphore(_READS)
        self._versions = count(1)
        self._tasks: anyio.abc.TaskGroup | None = None

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Read tails in this group: a deadline ends a caller's wait, and not the reading."""
        self._tasks = tasks

    async def get(
        self, user: str, without: Collection[tuple[str, int]] = (), newest: int = 0
    ) -> Tail:
        """The user's tail, no older than this call: all that was acknowledged before is in it.

        Args:
            user: the user.
            without: messages that are not recalled, by session and number.
            newest: see `Tails.get`.
        """
        own = _own_session(user, without, newest) if newest else None
        readings = 0
        while True:
            held = self._hold(user)
            # the second reading began after this call
            if held.reading is None and (readings > 1 or not held.is_outdated(self._has_jobs, own)):
                tail = held.find_tail(own)
                if tail is not None:
                    held.note = tail.note
                    return tail
            held.asked.append(own)
            if held.reading is None:
                assert self._tasks is not None
                held.reading = SharedCall(partial(self._refresh, user, held))
                held.reading.start(self._tasks)
            reading = held.reading
            await reading.wait()
            if held.reading is reading:  # it was cut off: the runtime closes
                return _nearest(held.tails, None)
            readings += self._users.get(user) is held

    async def widen(self, user: str, tail: Tail, question: Question) -> Tail:
        """A tail that is cut, with older messages that have most of the question's words.

        The journal looks for the words: reading and indexing all that an import brought would take
        seconds.
        """
        words = await run_in_thread_if(question.is_long, getattr, question, "parts_of_words")
        if not words:
            return tail
        known = {row.id for row in tail.rows}
        found: dict[SessionKey, set[int]] = {}
        for key, seq in await self._journal.find_unindexed(user, words, _OLDER):
            if row_id(key, seq) not in known:
                found.setdefault(key, set()).add(seq)
        parts = [_Part(key, seqs, {}) for key, seqs in found.items()]
        rows = [row for one in await self._make_rows(parts) for row in one.values()]
        if not rows:
            return tail
        probe("older_messages_found")
        return await run_in_thread(tail.with_more, rows)

    def _hold(self, user: str) -> _UserTail:
        """Return what is held of the user: another one than before, if that was dropped."""
        held = self._users.get(user)
        if held is None:
            held = self._users[user] = _UserTail(self._quota(UserKey(user)))
            self._make_room()
        self._users.move_to_end(user)
        return held

    def note(self, user: str) -> str:
        """Return what of the user's tail is not searched, for people; empty if all is."""
        held = self._users.get(user)
        return "" if held is None else held.note

    def note_change(self, user: str, *, gone: bool) -> None:
        """The user's rows of long-term memory changed, or may have.

        Args:
            user: the user.
            gone: rows were removed: nothing of the user stays in memory (G13).
        """
        if gone:
            self._access.known.clear()
        held = self._users.get(user)
        if held is not None and gone:
            self._drop(user)
        elif held is not None:
            held.suspect.update(held.rows, held.hidden)

    def _drop(self, user: str) -> None:
        held = self._users.pop(user)
        held.quota.changed = None
        self._rows -= len(held.newest)

    def _make_room(self) -> None:
        while len(self._users) > _MAX_USERS or (self._rows > _MAX_ROWS and len(self._users) > 1):
            self._drop(next(iter(self._users)))

    # -- reading -----------------------------------------------------------------------------------

    async def _refresh(self, user: str, held: _UserTail) -> None:
        async with self._slots:
            await self._read_changes(user, held)

    async def _read_changes(self, user: str, held: _UserTail) -> None:
        if self._users.get(user) is not held:
            held.reading = None
            return  # dropped: what changed is for the one that is held now
        keys, first_asked = held.take_changes(self._has_jobs), held.asked.copy()
        before, built = len(held.newest), held.tails
        try:
            await self._read(user, held, keys)
            asked, held.asked = held.asked, []
            # nothing was read: a load that waits for another tail finds the one that it asked for
            held.tails = {} if keys is None or keys else built.copy()
            wanted = set(map(held.left_out, asked))
            for own in wanted if len(wanted) <= _MOST_TAILS else [None]:
                rows = held.rows_without(own)
                await self._embed(held, rows)
                held.tails[own] = await self._build(held, rows, _nearest(built, own))
            held.note_read(first_asked)
        except Exception as e:
            probe("tail_unread")
            held.put_back(keys)
            _logger.warning("tail_unread", error=f"{type(e).__name__}: {e}")
            note = f"what is not indexed yet could not be read: {type(e).__name__}"
            held.failed = Tail(next(self._versions), hidden=held.hidden_rows, note=note)
            held.asked = []
        else:
            held.failed = None
        finally:
            held.reading = None
            if self._users.get(user) is held:
                self._rows += len(held.newest) - before
                self._index_largest(held)
                self._make_room()

    def _index_largest(self, held: _UserTail) -> None:
        """Have the user's largest sessions indexed, so that half of what may be searched is left.

        Where the tails of all users are large, what users have in the mean is left.
        """
        most, left = self._limit // 2, sum(held.without_job.values())
        if self._rows > _INDEXED_FROM:
            most = min(most, max(self._rows // len(self._users), _LEAST_LEFT))
        if left <= most:
            return
        largest = sorted(held.without_job.items(), key=itemgetter(1), reverse=True)
        for key, messages in largest:
            if left <= most:
                break
            probe("tail_indexed")
            self._index(key)
            del held.without_job[key]
            left -= messages

    async def _read(self, user: str, held: _UserTail, keys: Collection[Key] | None) -> None:
        """Read what changed.

        Args:
            user: the user.
            held: what is held of them.
            keys: the actors that changed; None for all.
        """
        jobs: Sequence[Job] = ()
        if keys is None or any(self._has_jobs(key) or key in held.with_jobs for key in keys):
            jobs = await self._journal.user_jobs(user)
            held.note_jobs(jobs)
        if held.more and not held.waits:
            # only now: older messages are found by their words, and are being indexed. To take some
            # of them in each time others are indexed would read thousands of messages
            keys = None
        size = sum(len(getattr(job.payload, "seqs", ())) for job in jobs)
        found = await run_in_thread_if(size > _IN_THREAD, _read_jobs, jobs, keys, self._limit)
        wanted = found.messages
        await self._leave_out_removed(user, held, wanted)
        changed = [key for key in keys or () if isinstance(key, SessionKey)]
        if keys is None or changed:
            names = None if keys is None else [key.session for key in changed]
            messages = await self._journal.unindexed(user, self._limit + 1, names)
            held.more = (held.more and keys is not None) or len(messages) > self._limit
            for key, seq in messages[: self._limit]:
                wanted.setdefault(key, set()).add(seq)
            for key in changed:
                held.without_job.pop(key, None)
            if len(messages) > self._limit:  # of which sessions there is more
                messages = await self._journal.unindexed(user, _MOST_COUNTED)
            held.without_job.update(Counter(key for key, _ in messages))
        if keys is None:
            changed = [key for key in {*wanted, *held.rows} if isinstance(key, SessionKey)]
        parts = [_Part(key, wanted.get(key, set()), held.rows.get(key, {})) for key in changed]
        for part, of_it in zip(parts, await self._make_rows(parts), strict=True):
            held.put(part.key, of_it)
        if keys is None or UserKey(user) in keys:
            items = await self._journal.memories(user, found.memories) if found.memories else ()
            rows = await self._as_stored(
                [memory_row(user, item) for item in items if item.type != INSTRUCTION]
            )
            held.put(UserKey(user), {row.id: row for row in rows})
        held.hide(found.removed, found.rewritten, keys)
        held.cut(self._limit)

    async def _leave_out_removed(
        self, user: str, held: _UserTail, wanted: Mapping[SessionKey, set[int]]
    ) -> None:
        """A job names all messages, also those that were removed since their rows were made."""
        known = [
            (key.session, seq)
            for key, seqs in wanted.items()
            for seq in seqs & held.rows.get(key, {}).keys()
        ]
        if not known:
            return
        left = {*await self._journal.message_ids(user, known)}
        left.difference_update(await self._journal.removed_messages(user, known))
        for key in {SessionKey(user, session) for session, _ in known}:
            pruned = await self._journal.pruned_seqs(key)
            left.difference_update((key.session, seq) for seq in pruned)
        for session, seq in known:
            if (session, seq) not in left:
                probe("removed_message_in_job")
                wanted[SessionKey(user, session)].discard(seq)

    async def _make_rows(self, parts: Sequence[_Part]) -> list[dict[int | str, MemoryRow]]:
        """The rows of messages of several sessions, by number."""
        spans = [(part, first, last) for part in parts for first, last in part.spans()]
        read = await self._read_spans(spans)
        build = partial(self._build_rows, spans, read)
        size = sum(len(entry.chat) for one in read for entry in one.entries)
        made = await self._as_stored(await run_in_thread_if(size > INLINE_CHARACTERS, build))
        # those around them are cut at the edge of what was read
        wanted = {
            (part.key, seq)
            for part, first, last in spans
            for seq in part.seqs.intersection(range(first, last + 1))
        }
        wanted.difference_update((one.key, seq) for one in read for seq in one.pruned)
        rows = {part.key: part.kept() for part in parts}
        for row in made:
            key = SessionKey(row.user, row.session)
            if (key, row.seq) in wanted:
                rows[key][row.seq] = row
        return [rows[part.key] for part in parts]

    async def _read_spans(self, spans: Sequence[tuple[_Part, int, int]]) -> Sequence[SessionPart]:
        """The messages of spans with their neighbours, without those that are damaged."""
        ranges = [(part.key, first - NEIGHBOURS, last + NEIGHBOURS) for part, first, last in spans]
        found = None
        if ranges:
            with suppress(JournalDamaged):
                found = await self._journal.read_ranges(ranges, max_bytes=_BYTES_TOGETHER)
        if found is not None:
            return found
        parts = []
        for key, first, last in ranges:
            try:
                entries = await self._journal.read(key, first, last)
            except JournalDamaged:
                entries, _ = await read_undamaged(self._journal, key, max(first, 1), last)
            pruned = frozenset(await self._journal.pruned_seqs(key))
            parts.append(SessionPart(key, entries, pruned))
        return parts

    def _build_rows(
        self, spans: Sequence[tuple[_Part, int, int]], read: Sequence[SessionPart]
    ) -> list[MemoryRow]:
        whole = self._access.redact is not None
        return [
            row
            for (part, first, last), one in zip(spans, read, strict=True)
            for row in message_rows(part.key, one.entries, first, last, self._counter, whole=whole)
        ]

    async def _as_stored(self, rows: Sequence[MemoryRow]) -> Sequence[MemoryRow]:
        """The rows as long-term memory would have them, without those that cannot be redacted."""
        redacted, failed = self._access.redacted(rows, self._counter)
        if failed:  # their index jobs say so
            probe("tail_not_redacted")
        return with_windows(await self._access.make_searchable(redacted), self._window_chars)

    # -- searching ---------------------------------------------------------------------------------

    async def _embed(self, held: _UserTail, rows: Sequence[MemoryRow]) -> None:
        """Embed the newest of these rows that have no vector yet."""
        embedder = self._access.embedder
        if embedder is None:
            return
        held.vectors = {
            row.id: held.vectors[row.id] for row in held.newest if row.id in held.vectors
        }
        new = [row for row in rows if row.id not in held.vectors][:_EMBEDDED_AT_ONCE]
        if not new:
            return
        texts = [embedding_text(row) for row in new]
        try:
            vectors = await self._access.known.embed(embedder, texts)
        except ModelError as e:
            probe("tail_not_embedded")
            _logger.warning("tail_not_embedded", error=f"{type(e).__name__}: {e}")
            return
        self._access.known.keep(texts, vectors)  # for the job that indexes them
        held.vectors.update(zip([row.id for row in new], vectors, strict=True))

    async def _build(self, held: _UserTail, rows: Sequence[MemoryRow], before: Tail) -> Tail:
        hidden = held.hidden_rows
        rewritten = frozenset(one for ids in held.rewritten.values() for one in ids) - hidden
        if not rows and not hidden and not held.more:
            return EMPTY_TAIL
        embedded = sum(row.id in held.vectors for row in rows)
        note = self._describe(len(rows), embedded, more=held.more)
        unchanged = (hidden, rewritten, note) == (before.hidden, before.rewritten, before.note)
        if unchanged and rows == before.rows:
            return before
        version = next(self._versions)
        dimension = None if self._access.embedder is None else self._access.embedder.dimension

        def build() -> Tail:
            vectors = None if dimension is None else _stack(rows, held.vectors, dimension)
            return Tail(
                version,
                rows,
                vectors,
                before.index,
                hidden=hidden,
                rewritten=rewritten,
                note=note,
                cut=held.more,
            )

        known = {row.id for row in before.rows}
        new = sum(row.id not in known for row in rows)
        same = {id(row) for row in before.rows}  # others are read again: a neighbour came
        size = reading_size([row.turn for row in rows if id(row) not in same])
        large = new > _NEW_ON_LOOP or len(rows) > _ON_LOOP or size > _CHARACTERS
        return await run_in_thread_if(large, build)

    def _describe(self, rows: int, embedded: int, *, more: bool) -> str:
        notes = []
        if more:
            probe("tail_cut")
            searched = f"the newest {rows} rows were" if rows else "nothing was"
            notes.append(
                f"of what is not indexed yet, {searched} searched whole, and older messages by "
                "words as they stand (recall.unindexed_rows)"
            )
        if self._access.embedder is not None and embedded < rows:
            notes.append(
                f"{rows - embedded} rows that are not indexed yet were searched by words alone"
            )
        return "; ".join(notes)


class _Part(msgspec.Struct, frozen=True):
    """Messages of a session whose rows are wanted, and the rows that are known.

    Attributes:
        key: the session.
        seqs: the messages' numbers.
        known: rows by number.
    """

    key: SessionKey
    seqs: set[int]
    known: Mapping[int | str, MemoryRow]

    def kept(self) -> dict[int | str, MemoryRow]:
        """The known rows that are wanted."""
        return {seq: self.known[seq] for seq in self.seqs if seq in self.known}

    def spans(self) -> list[tuple[int, int]]:
        """First and last of each run of messages whose rows are to be made.

        Known ones are made again only if a neighbour, whose text they hold, came or went, or may
        have: nobody says so of one that is indexed.
        """
        rows, seqs = self.kept(), self.seqs
        changed = {seq for seq in seqs if seq not in self.known}
        changed.update(row.seq for row in self.known.values() if row.seq not in rows)
        reach = range(-NEIGHBOURS, NEIGHBOURS + 1)
        again = {seq + step for seq in changed for step in reach} & seqs
        newest = max(seqs, default=0)
        again.update(
            seq
            for seq in seqs
            for step in reach
            if 0 < seq + step <= newest and seq + step not in rows and seq + step not in changed
        )
        return _spans(again)


class _Own(msgspec.Struct, frozen=True):
    """The session of a load, and which of its messages are not recalled.

    Attributes:
        key: the session.
        seqs: the messages' numbers.
        newest: the number of its newest message.
    """

    key: SessionKey
    seqs: frozenset[int]
    newest: int


def _own_session(user: str, without: Collection[tuple[str, int]], newest: int) -> _Own | None:
    """The only session of these messages; None if there are none, or several."""
    sessions = {session for session, _ in without}
    if len(sessions) != 1:
        return None
    return _Own(SessionKey(user, sessions.pop()), frozenset(seq for _, seq in without), newest)


def _nearest(built: Mapping[SessionKey | None, Tail], own: SessionKey | None) -> Tail:
    """The tail that a new one has most in common with."""
    return built[own] if own in built else next(iter(built.values()), EMPTY_TAIL)


class _UserTail:
    """The held rows of one user.

    Attributes:
        quota: tells which of the user's actors changed.
        tails: what recalls search: all rows, or those of other sessions than one.
        failed: what they search since the last reading failed.
        note: what of the tail that was given last is not searched, for people.
        asked: the loads that wait for the next reading; None for a recall of no load.
        rows: by actor, and by number of the message or id of the memory.
        newest: all of them, the newest first.
        vectors: of rows, by id.
        hidden: ids of indexed rows that were removed, by actor.
        rewritten: ids of indexed rows that are indexed again, by actor.
        with_jobs: actors that had index jobs, or dead letters, when they were read last.
        suspect: actors to read again.
        without_job: how many messages of a session have no index job.
        more: there are more rows than may be searched.
        reading: the reading that runs.
    """

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.tails: dict[SessionKey | None, Tail] = {}
        self.failed: Tail | None = None
        self.note = ""
        self.asked: list[_Own | None] = []
        self.rows: dict[Key, dict[int | str, MemoryRow]] = {}
        self.newest: Sequence[MemoryRow] = ()
        self.vectors: dict[str, Vector] = {}
        self.hidden: dict[Key, Collection[str]] = {}
        self.rewritten: dict[Key, Collection[str]] = {}
        self.with_jobs: set[Hashable] = set()
        self.suspect: set[Key] = set()
        self.without_job: dict[SessionKey, int] = {}
        self.more = False
        self.reading: SharedCall[None] | None = None
        self._unread = True
        self._pending: set[Key] = set()
        self._read_through: dict[SessionKey, int] = {}

    def is_outdated(self, has_jobs: Callable[[Hashable], bool], own: _Own | None) -> bool:
        """Return whether something outside of the load may have changed since it was read."""
        if self._unread or self.suspect:
            return True
        if self.quota.changed and not (
            own is not None
            and self.quota.changed == {own.key}
            and not has_jobs(own.key)
            and self._shows_all(own)
        ):
            return True
        return any(not has_jobs(key) for key in self._pending)

    def _shows_all(self, own: _Own) -> bool:
        """Return whether a load shows all of its session that is not indexed."""
        before = self._read_through.get(own.key)
        return (
            before is not None
            and self.left_out(own) is not None
            and all(seq in own.seqs for seq in range(before + 1, own.newest + 1))
        )

    def note_read(self, asked: Iterable[_Own | None]) -> None:
        """Note that these loads were acknowledged before the reading that has ended."""
        for own in asked:
            if own is not None:
                before = self._read_through.pop(own.key, 0)
                self._read_through[own.key] = max(before, own.newest)
        while len(self._read_through) > _MOST_OWN:
            del self._read_through[next(iter(self._read_through))]

    @property
    def hidden_rows(self) -> frozenset[str]:
        """Ids of all indexed rows that were removed."""
        return frozenset(one for ids in self.hidden.values() for one in ids)

    def left_out(self, own: _Own | None) -> SessionKey | None:
        """The session whose rows a load need not search; None if it searches all."""
        if own is None or self.more:
            return None
        unindexed = self.rows.get(own.key, {})
        return own.key if all(seq in own.seqs for seq in unindexed) else None

    def rows_without(self, own: SessionKey | None) -> Sequence[MemoryRow]:
        """The rows without a session's messages; what was recorded there is no message."""
        if own is None:
            return self.newest
        return [row for row in self.newest if row.session != own.session or not row.seq]

    def find_tail(self, own: _Own | None) -> Tail | None:
        """Return what a load searches; None if that was not made when it was read last.

        The tail of all rows has those of the load's session as well, which are not recalled.
        """
        if self.failed is not None:
            return self.failed
        return self.tails.get(self.left_out(own), self.tails.get(None))

    def take_changes(self, has_jobs: Callable[[Hashable], bool]) -> set[Key] | None:
        """The actors to read; None for all. What changes from now on is for the next reading."""
        changed, self.quota.changed = self.quota.changed or set(), set()
        ended = {key for key in self._pending if not has_jobs(key)}
        suspect, self.suspect = self.suspect, set()
        self._pending -= ended
        unread, self._unread = self._unread, False
        if unread:
            return None
        return {one for one in changed if isinstance(one, (SessionKey, UserKey))} | ended | suspect

    @property
    def waits(self) -> bool:
        """Return whether messages are being indexed."""
        return bool(self._pending)

    def put_back(self, keys: Collection[Key] | None) -> None:
        """Read these actors again: the reading failed."""
        self._unread = self._unread or keys is None
        self.suspect.update(keys or ())

    def note_jobs(self, jobs: Iterable[Job]) -> None:
        """Note which actors have index jobs: they are read again when these end."""
        mine = [job for job in jobs if isinstance(job.payload, _INDEX_JOBS)]
        self.with_jobs = {job.key for job in mine}
        pending = [job.key for job in mine if not job.dead]
        self._pending = {key for key in pending if isinstance(key, (SessionKey, UserKey))}

    def put(self, key: Key, rows: dict[int | str, MemoryRow]) -> None:
        """Set the rows of an actor."""
        if rows:
            self.rows[key] = rows
        else:
            self.rows.pop(key, None)

    def hide(
        self,
        removed: Mapping[Key, Collection[str]],
        rewritten: Mapping[Key, Collection[str]],
        among: Collection[Key] | None,
    ) -> None:
        """Set the rows to hide, and those that are written again, of all actors or of these."""

        def others(before: Mapping[Key, Collection[str]]) -> dict[Key, Collection[str]]:
            return {} if among is None else {k: v for k, v in before.items() if k not in among}

        self.hidden = {**others(self.hidden), **removed}
        self.rewritten = {**others(self.rewritten), **rewritten}

    def cut(self, limit: int) -> None:
        """Keep the newest `limit` rows only."""
        rows = [row for of_actor in self.rows.values() for row in of_actor.values()]
        rows.sort(key=lambda row: (-row.created_us, -row.seq, row.id))
        self.newest = rows[:limit]
        left_out = {row.id for row in rows[limit:]}
        if left_out:
            self.more = True
            for key, of_actor in list(self.rows.items()):
                kept = {name: row for name, row in of_actor.items() if row.id not in left_out}
                self.put(key, kept)


_INDEX_JOBS = (FlushSpec, UnflushSpec, DiscardSpec, RecordSpec)


class _FoundInJobs(msgspec.Struct, frozen=True):
    """The state of long-term memory, as jobs show it.

    Attributes:
        messages: that are to be indexed, or indexed again, by session.
        removed: ids of rows that are to be removed, by session.
        rewritten: ids of indexed rows that are to be written again, by session.
        memories: ids of memories that are to be indexed.
    """

    messages: dict[SessionKey, set[int]]
    removed: dict[Key, set[str]]
    rewritten: dict[Key, set[str]]
    memories: list[str]


def _read_jobs(jobs: Iterable[Job], keys: Collection[Key] | None, limit: int) -> _FoundInJobs:
    """Return what the jobs of these actors say; of each, the newest `limit` messages."""
    found = _FoundInJobs({}, {}, {}, [])
    gone: dict[SessionKey, set[int]] = {}
    for job in jobs:
        key, spec = job.key, job.payload
        if keys is not None and key not in keys:
            continue
        if isinstance(key, UserKey) and isinstance(spec, RecordSpec):
            found.memories.extend(spec.ids)
        elif isinstance(key, SessionKey) and isinstance(spec, FlushSpec):
            first = max(first_row_written(spec), spec.through - limit)
            found.messages.setdefault(key, set()).update(range(first, spec.through + 1))
            again = range(first, spec.first)
            found.rewritten.setdefault(key, set()).update(row_id(key, seq) for seq in again)
        elif isinstance(key, SessionKey) and isinstance(spec, (UnflushSpec, DiscardSpec)):
            ids = found.removed.setdefault(key, set())
            ids.update(row_id(key, seq) for seq in spec.seqs)
            if isinstance(spec, UnflushSpec):
                ids.update(entry_id(key, seq) for seq in spec.entries)
                gone.setdefault(key, set()).update(set(spec.seqs).difference(spec.changed))
                near = _rewritten(spec)
                found.messages.setdefault(key, set()).update(near)
                found.rewritten.setdefault(key, set()).update(row_id(key, seq) for seq in near)
    for key, seqs in gone.items():  # a job before may still index them
        found.messages[key].difference_update(seqs)
    return found


def _rewritten(spec: UnflushSpec) -> set[int]:
    """The messages whose rows are removed and written again, without the words of removed ones."""
    removed = set(spec.seqs)
    reach = range(-NEIGHBOURS, NEIGHBOURS + 1)
    near = {seq + step for seq in removed for step in reach} - removed
    return {seq for seq in near if 0 < seq <= spec.flushing}


def _spans(seqs: Collection[int]) -> list[tuple[int, int]]:
    """First and last of each run of numbers; runs whose neighbours meet are one."""
    spans: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if spans and seq - spans[-1][1] <= 2 * NEIGHBOURS:
            spans[-1] = (spans[-1][0], seq)
        else:
            spans.append((seq, seq))
    return spans


def _stack(rows: Sequence[MemoryRow], vectors: Mapping[str, Vector], dimension: int) -> Vector:
    """The rows' vectors, shape (rows, dimension); zeros for those without."""
    import numpy as np  # noqa: PLC0415

    stacked = np.zeros((len(rows), dimension), np.float32)
    for place, row in enumerate(rows):
        vector = vectors.get(row.id)
        if vector is not None:
            stacked[place] = vector
    return stacked
