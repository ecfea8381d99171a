"""The reading half of `remora.storage.ports.Journal`, over any database with SQL.

The SQL stands in the `queries.sql` of each database. A query is a transaction of its own, so it
never holds a checkpoint back. It sees committed rows only, which is all that an inactive session
has. Every row is verified (`remora.storage.decoding`), and what is long is decoded in a thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from remora.ids import SessionKey, UserKey, actor_key
from remora.logging import get_logger
from remora.messages import Entry
from remora.messages.attachments import MAGIC
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.jobs import Job
from remora.storage.attachments import Encoded
from remora.storage.decoding import (
    ACTOR,
    DIGEST,
    MESSAGE,
    SEQ_MASK,
    STATE_ITEM,
    SUMMARY,
    WITH_IDS,
    RowDamaged,
    are_long,
    as_text,
    checksum_differs,
    decode_entry,
    decode_jobs,
    decode_key,
    decode_memory,
    decode_state_item,
    decode_summary,
    row_damage,
)
from remora.storage.erasure_notes import decode_note
from remora.storage.journal_port import Erasure, JournalCounts, SummaryFigures
from remora.storage.keyed_values import KEYED_KIND
from remora.storage.listing import ListingPage, SessionListing, UserListing
from remora.storage.lookups import (
    RAREST,
    Answer,
    BufferStart,
    Erasable,
    ErasableLookup,
    IdLookup,
    KeyedAppend,
    KeyLookup,
    MemoryLookup,
    OriginalAppend,
    PastLookup,
    PinnedLookup,
    SessionPart,
    TurnLookup,
    buffer_start_from,
    earlier_buffer,
    entry_ranges,
    ids_by_place,
    messages_by_id,
    numbered_ids,
    read_instructions,
)
from remora.storage.records import (
    BLANK_CHAT,
    ENTRY_KIND,
    HOT_KEYS,
    MemoryItem,
    SavedSession,
    SavedUser,
    StateItem,
    StoredMessage,
    Summary,
    Watermarks,
)
from remora.storage.rows import SEQ_BITS

_logger = get_logger(__name__)
_CHAT, _CONTENT, _VALUE = 6, 4, 3  # columns of what can be long
_KEY, _BATCH = 8, 9  # of ENTRY_COLUMNS
_BEFORE_ALL = (-(1 << 63), "")  # a place in the listing of memories
Row: TypeAlias = tuple[Any, ...]


class JournalReader(ABC):
    """The queries of `remora.storage.ports.Journal`; a database's reader gives `query`.

    Args:
        numbers: of the actors to come.
    """

    instance: str
    hot_keys = HOT_KEYS
    """Idempotency keys that an image holds at most; the others are looked up."""

    def __init__(self, *, numbers: Iterator[int]) -> None:
        self._numbers = numbers

    @abstractmethod
    async def query(self, name: str, /, **parameters: Any) -> list[Row]:
        """Run a query; see `remora.storage.sql.queries.Query`.

        Raises:
            StorageError: the database does not answer, or refuses.
        """

    @abstractmethod
    async def list_sessions(self, user: str, page: ListingPage) -> Sequence[SessionListing]: ...

    @abstractmethod
    async def list_users(self, page: ListingPage) -> Sequence[UserListing]: ...

    # -- activation --------------------------------------------------------------------------------

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[SavedActor | Exception]:
        names = [_name(key) for key in dict.fromkeys(keys)]
        rows = await self.query(
            "actors", names=names, digests=self.hot_keys + 1, entry_kind=ENTRY_KIND
        )
        return await save_actors(rows, keys, self._numbers.__next__, self.hot_keys)

    async def fetch(self, key: Hashable, query: object) -> Answer:
        match query:
            case MemoryLookup(ids=ids):
                assert isinstance(key, UserKey)
                return {item.id: item for item in await self.memories(key.user, ids)}
        assert isinstance(key, SessionKey)
        whose = key._asdict()
        match query:
            case PastLookup(at=at):
                return await earlier_buffer(self, key, at)
            case PinnedLookup(after=after, through=through):
                return await read_instructions(self, key, after, through)
            case IdLookup(ids=ids, after=after):
                rows = await self.query("messages_by_id", **whose, ids=list(ids), after=after)
                return messages_by_id(_stored_messages(key, rows))
            case ErasableLookup(ids=ids, seqs=seqs):
                rows = await self.query(
                    "erasable_messages", **whose, ids=list(ids), seqs=list(seqs)
                )
                ranges = entry_ranges(await self.state_items(key))
                return Erasable(_erasable_messages(key, rows), ranges)
            case TurnLookup(root=root):
                rows = await self.query(
                    "appends_of_turn", **whose, first=root + bytes(4), last=root + b"\xff" * 4
                )
                return tuple(_keyed_appends(key, rows))
            case _:
                assert isinstance(query, KeyLookup)
                rows = await self.query("append_of_key", **whose, digest=query.digest)
                return _original_append(key, rows)

    # -- a session's past --------------------------------------------------------------------------

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        rows = await self.query("messages", **key._asdict(), **_bounds(first, last))
        return await _read_range(key, rows, first, at)

    async def read_ranges(
        self, ranges: Sequence[tuple[SessionKey, int, int]], *, max_bytes: int
    ) -> Sequence[SessionPart] | None:
        wanted = [(*key, first, last) for key, first, last in ranges]
        ((size,),) = await self.query("size_of_ranges", ranges=wanted)
        if size > max_bytes:
            return None
        rows = await self.query("messages_of_ranges", ranges=wanted)
        found = {place: list(some) for place, some in groupby(rows, key=itemgetter(0))}
        parts = []
        for place, (key, first, _) in enumerate(ranges):
            some = found.get(place, [])
            entries = await _read_range(key, [row[2:] for row in some], first, None)
            pruned = frozenset(row[4] & SEQ_MASK for row in some if row[1])
            parts.append(SessionPart(key, entries, pruned))
        return parts

    async def any_removed(self, key: SessionKey, first: int, last: int, *, since: int) -> bool:
        asked = {**key._asdict(), **_bounds(first, last), "since": since}
        return bool(await self.query("any_removed", **asked))

    async def buffer_start(self, key: SessionKey, at: int) -> BufferStart:
        rows = await self.query("summaries_until", **key._asdict(), at=at)
        changes = [row for _, *row in rows if row[0] is not None]  # a session may have none
        try:
            return buffer_start_from(
                [decode_summary(row) for row in changes], trimmed=_first(rows, 0)
            )
        except RowDamaged as e:
            raise row_damage(key, e) from e

    async def summary_figures(self, key: SessionKey) -> SummaryFigures:
        (figures,) = await self.query("summary_figures", **key._asdict())
        return SummaryFigures(*figures)

    async def pruned_seqs(self, key: SessionKey) -> Sequence[int]:
        return [seq for (seq,) in await self.query("pruned_seqs", **key._asdict())]

    async def state_items(self, key: SessionKey | UserKey) -> Sequence[StateItem]:
        user, session = _name(key)
        rows = await self.query("state_items", user=user, session=session)
        try:
            return await run_in_thread_if(
                are_long(rows, _VALUE), lambda: [decode_state_item(row) for row in rows]
            )
        except RowDamaged as e:
            raise row_damage(key, e) from e

    # -- memories ----------------------------------------------------------------------------------

    async def memories(self, user: str, ids: Sequence[str] | None = None) -> Sequence[MemoryItem]:
        if ids is None:
            return await self._memories("memories", user)
        return await self._memories("memories_by_id", user, ids=list(dict.fromkeys(ids)))

    async def list_memories(
        self, user: str, *, after: tuple[int, str] | None, limit: int
    ) -> Sequence[MemoryItem]:
        at_us, id_ = after or _BEFORE_ALL
        return await self._memories("memories_after", user, after_us=at_us, after=id_, limit=limit)

    async def facts(
        self, user: str, *, session: str | None = None, topics: Collection[str] | None = None
    ) -> Sequence[MemoryItem]:
        if topics is None:
            found = await self._memories("facts", user, session=session)
        else:
            found = await self._memories(
                "facts_of_topics", user, session=session, topics=list(topics)
            )
        return [item for item in found if item.topic]

    async def instructions(self, user: str, *, limit: int) -> Sequence[MemoryItem]:
        return await self._memories("instructions", user, limit=limit)

    async def _memories(self, name: str, user: str, **parameters: Any) -> list[MemoryItem]:
        rows = await self.query(name, user=user, **parameters)
        try:
            return await run_in_thread_if(
                are_long(rows, _CONTENT), lambda: [decode_memory(row) for row in rows]
            )
        except RowDamaged as e:
            raise row_damage(UserKey(user), e) from e

    # -- messages by place and by id ---------------------------------------------------------------

    async def removed_messages(
        self, user: str, messages: Collection[tuple[str, int]]
    ) -> Collection[tuple[str, int]]:
        rows = await self.query("removed_messages", user=user, places=list(messages))
        return {(session, seq) for session, seq in rows}

    async def message_ids(
        self, user: str, messages: Collection[tuple[str, int]]
    ) -> Mapping[tuple[str, int], str]:
        rows = await self.query("message_ids", user=user, places=list(messages))
        return ids_by_place(self.instance, rows)

    async def sessions_of(self, user: str, ids: Collection[str]) -> Sequence[tuple[str, str]]:
        numbered = numbered_ids(self.instance, ids)
        own = await self.query("sessions_by_number", user=user, numbered=numbered)
        given = await self.query(
            "sessions_by_message_id", user=user, ids=list(ids), blank=BLANK_CHAT
        )
        return [(id_, session) for id_, session in (*own, *given)]

    # -- indexing and jobs -------------------------------------------------------------------------

    async def indexed_through(self) -> Sequence[tuple[SessionKey | UserKey, int]]:
        found = []
        for mark, *row in await self.query("indexed_through"):
            try:
                found.append((decode_key(*row), mark))
            except RowDamaged as e:  # its owner is not known
                _logger.error("actor_unreadable", sid=row[0], error=str(e))
        return found

    async def session_indexed_through(self, key: SessionKey) -> int:
        return int(_first(await self.query("session_indexed_through", **key._asdict()), 0))

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        return decode_jobs(await self.query("jobs", dead=int(dead)))

    async def user_jobs(self, user: str) -> Sequence[Job]:
        return decode_jobs(await self.query("jobs_of_user", user=user))

    async def find_unindexed(
        self, user: str, words: Sequence[str], limit: int
    ) -> Sequence[tuple[SessionKey, int]]:
        rows = await self.query(
            "unindexed_with_words", user=user, words=list(words), rarest=RAREST, limit=limit
        )
        return [(SessionKey(user, session), seq) for session, seq in rows]

    async def unindexed(
        self, user: str, limit: int, sessions: Collection[str] | None = None
    ) -> Sequence[tuple[SessionKey, int]]:
        if sessions is None:
            rows = await self.query("unindexed", user=user, limit=limit)
        else:
            rows = await self.query(
                "unindexed_of_sessions", user=user, sessions=list(sessions), limit=limit
            )
        return [(SessionKey(user, session), seq) for session, seq in rows]

    async def sessions_to_flush(self, limit: int) -> Sequence[SessionKey]:
        return [SessionKey(*row) for row in await self.query("sessions_to_flush", limit=limit)]

    async def sessions_with_fallbacks(self, limit: int) -> Sequence[SessionKey]:
        rows = await self.query("sessions_with_fallbacks", limit=limit)
        return [SessionKey(*row) for row in rows]

    # -- the whole journal -------------------------------------------------------------------------

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        return await self.list_sessions(user, ListingPage())

    async def counts(self, user: str | None = None) -> JournalCounts:
        name, whose = ("counts", {}) if user is None else ("counts_of_user", {"user": user})
        (figures,) = await self.query(name, **whose, keyed_kind=KEYED_KIND)
        return JournalCounts(*figures)

    async def setting(self, name: str) -> str | None:
        value = _first(await self.query("setting", name=name), None)
        return None if value is None else as_text(value)

    async def erasures(self) -> Sequence[Erasure]:
        return [decode_note(*row) for row in await self.query("erasures")]

    async def _referring(self, user: str) -> Sequence[Encoded]:
        """A user's messages that refer to attachments."""
        found: Sequence[Any] = await self.query("messages_with_attachments", user=user, magic=MAGIC)
        return found

    async def _all_users(self) -> Sequence[str]:
        return [user for (user,) in await self.query("users")]


# -- from rows to answers --------------------------------------------------------------------------


def _name(key: Hashable) -> tuple[str, str]:
    """The user and the session of an actor; a user's own actor has no session."""
    if isinstance(key, SessionKey):
        return key.user, key.session
    assert isinstance(key, UserKey)
    return key.user, ""


def _bounds(first: int, last: int) -> dict[str, int]:
    return {"first": max(first, 1), "last": max(min(last, SEQ_MASK), 0)}


def _first(rows: Sequence[Row], default: Any) -> Any:
    return rows[0][0] if rows else default


async def _read_range(
    key: SessionKey, rows: Sequence[Row], first: int, at: int | None
) -> list[Entry]:
    """The messages of a range, none of which may be missing; see `Journal.read`.

    Args:
        key: the session.
        rows: `trimmed` of the session, `removed` and `ENTRY_COLUMNS`, in order.
        first: the first message of the range.
        at: those that existed when this message was the newest; None for today's.

    Raises:
        JournalDamaged: one of them is missing or damaged.
    """
    if not rows:
        return []
    return await run_in_thread_if(are_long(rows, _CHAT), _decode_range, key, rows, first, at)


def _decode_range(key: SessionKey, rows: Sequence[Row], first: int, at: int | None) -> list[Entry]:
    trimmed = rows[0][0]
    if not isinstance(trimmed, int):
        raise row_damage(key, "its figures are not as they were written")
    for number, row in enumerate(rows, start=max(first, trimmed + 1, 1)):
        if row[2] & SEQ_MASK != number:
            raise row_damage(key, f"message {number} is missing")
    return _decode_entries(
        key,
        [
            row[2:]
            for row in rows
            if row[1] is None or (at is not None and row[1] > at and row[_CHAT] != BLANK_CHAT)
        ],
    )


def _keyed_appends(key: SessionKey, rows: Iterable[Row]) -> Iterator[KeyedAppend]:
    """The appends in rows of a key, `removed` and `ENTRY_COLUMNS`, in the order of keys."""
    for digest, group in groupby(rows, key=itemgetter(0)):
        batch = list(group)
        there = _decode_entries(key, [row[2:] for row in batch if row[1] is None])
        yield KeyedAppend(digest, tuple(there), len(batch) - len(there))


def _stored_messages(key: SessionKey, rows: Sequence[Row]) -> list[StoredMessage]:
    """Messages with their keys, from rows of `ENTRY_COLUMNS`."""
    pairs = zip(rows, _decode_entries(key, rows), strict=True)
    return [StoredMessage(entry, row[_KEY], row[_BATCH]) for row, entry in pairs]


def _erasable_messages(key: SessionKey, rows: Sequence[Row]) -> tuple[StoredMessage, ...]:
    """Return those whose content is still there, from rows of `removed` and `ENTRY_COLUMNS`."""
    left = [row[1:] for row in rows if row[0] is None or row[_CHAT - 1] != BLANK_CHAT]
    return tuple(_stored_messages(key, left))


def _original_append(key: SessionKey, rows: Iterable[Row]) -> OriginalAppend | None:
    """The append whose messages these are; None without any."""
    entries = _decode_entries(key, rows)
    if not entries:
        return None
    return OriginalAppend(
        tuple(entry.seq for entry in entries),
        tuple(entry.id for entry in entries),
        tuple(entry.chat for entry in entries),
    )


def _decode_entries(key: SessionKey, rows: Iterable[Row]) -> list[Entry]:
    """The messages of a session in rows of `ENTRY_COLUMNS`.

    Raises:
        JournalDamaged: one of them is damaged.
    """
    try:
        return [decode_entry(row) for row in rows]
    except RowDamaged as e:
        raise row_damage(key, e) from e


# -- the images of actors: hundreds of them by one query -------------------------------------------
#
# A row is its kind (`ACTOR` …), a number to sort by where the order matters, and its columns.

SavedActor: TypeAlias = SavedSession | SavedUser

_LONG = (5, 6)  # columns of state items' values and of messages


async def save_actors(
    found_rows: Sequence[Sequence[Any]],
    keys: Sequence[Hashable],
    new_sid: Callable[[], int],
    hot_keys: int,
) -> list[SavedActor | Exception]:
    """Return what the journal has of each actor; a new one gets its number from `new_sid`."""
    rows = await run_in_thread_if(are_long(found_rows, *_LONG), _ActorRows, found_rows)
    found = rows.actors
    saved: list[SavedActor | Exception] = []
    for key in keys:
        if isinstance(key, UserKey):
            sid = found[key][0] if key in found else new_sid()
            if sid in rows.damaged:
                saved.append(row_damage(key, rows.damaged[sid]))
            else:
                saved.append(
                    SavedUser(
                        sid,
                        key in found,
                        tuple(rows.state_items.get(sid, ())),
                        tuple(rows.jobs.get(sid, ())),
                    )
                )
        elif key in found:
            saved.append(rows.session(key, *found[key], hot_keys))
        else:
            # A number that is never written leaves a gap, which costs nothing.
            saved.append(
                SavedSession(new_sid(), False, Watermarks(), 1, (), None, frozenset(), True)
            )
    return saved


class _ActorRows:
    """The rows of some actors, by their number."""

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self.actors: dict[Hashable, tuple[int, Watermarks]] = {}
        self.entries: dict[int, list[Entry]] = {}
        self.bounds: dict[int, list[int]] = {}
        """First and last message behind the front, removed ones included."""
        self.damaged: dict[int, RowDamaged] = {}
        self.summaries: dict[int, list[tuple[str, Summary]]] = {}
        self.digests: dict[int, list[bytes]] = {}
        self.with_ids: set[int] = set()
        self.state_items: dict[int, list[StateItem]] = {}
        self.jobs: dict[int, list[Job]] = {}
        numbered: list[Sequence[Any]] = []
        for row in rows:
            if row[0] == MESSAGE:
                self._message(row)
            elif row[0] == ACTOR:
                self._actor(*row[2:13])
            else:
                numbered.append(row)
        for row in sorted(numbered, key=itemgetter(0, 1)):
            try:
                self._take(row[0], row[2:])
            except RowDamaged as e:
                self._damage(row[2], e)

    def _actor(
        self,
        sid: int,
        user: str,
        session: str,
        created_us: int,
        crc: int,
        marks_crc: int,
        *watermarks: int,
    ) -> None:
        self.actors[actor_key(user, session)] = (sid, Watermarks(*watermarks))
        if checksum_differs(crc, (sid, user, session, created_us)):
            self._damage(sid, RowDamaged("its name is not as it was written"))
        elif checksum_differs(marks_crc, (sid, *watermarks)) or not all(
            isinstance(mark, int) for mark in watermarks
        ):
            self._damage(sid, RowDamaged("its marks are not as they were written"))

    def _message(self, row: Sequence[Any]) -> None:
        pos = row[2]
        sid, seq = pos >> SEQ_BITS, pos & SEQ_MASK
        bounds = self.bounds.get(sid)
        if bounds is None:
            bounds = self.bounds[sid] = [seq, seq]
            entries = self.entries[sid] = []
        else:
            if seq != bounds[1] + 1:
                self._damage(sid, RowDamaged(f"message {bounds[1] + 1} is missing"))
            bounds[1] = seq
            entries = self.entries[sid]
        if row[1] is None:
            try:
                entries.append(decode_entry(tuple(row[2:13])))
            except RowDamaged as e:
                self._damage(sid, e)

    def _take(self, kind: int, row: Sequence[Any]) -> None:
        if kind == SUMMARY:
            name, _, summary = decode_summary(row[:14])
            self.summaries.setdefault(row[0], []).append((name, summary))
        elif kind == DIGEST:
            self.digests.setdefault(row[0], []).append(row[1])
        elif kind == WITH_IDS:
            self.with_ids.add(row[0])
        elif kind == STATE_ITEM:
            self.state_items.setdefault(row[0], []).append(decode_state_item(row[:5]))
        else:
            self.jobs.setdefault(row[9], []).extend(decode_jobs([row[:11]]))

    def _damage(self, sid: int, error: RowDamaged) -> None:
        self.damaged.setdefault(sid, error)

    def session(
        self, key: Hashable, sid: int, watermarks: Watermarks, hot_keys: int
    ) -> SavedSession | Exception:
        if sid in self.damaged:
            return row_damage(key, self.damaged[sid])
        first, last = self.bounds.get(
            sid, (watermarks.archived_through + 1, watermarks.archived_through)
        )
        if first != watermarks.archived_through + 1:
            return row_damage(key, f"message {watermarks.archived_through + 1} is missing")
        summary = None
        entries: dict[int, Summary] = {}
        for kind, one in self.summaries.get(sid, ()):
            if kind == "entry":
                entries[one.through] = one  # a later one replaces it
            else:
                summary = one
        covered = summary.through if summary else 0
        hot = self.digests.get(sid, [])
        return SavedSession(
            sid,
            opened=True,
            watermarks=watermarks,
            next_seq=last + 1,
            entries=tuple(self.entries.get(sid, ())),
            summary=summary,
            summaries=tuple(one for one in entries.values() if one.through > covered),
            keys=frozenset(hot[:hot_keys]),
            keys_complete=len(hot) <= hot_keys,
            has_ids=sid in self.with_ids,
            state_items=tuple(self.state_items.get(sid, ())),
            jobs=tuple(self.jobs.get(sid, ())),
        )
