"""The queries of a journal in PostgreSQL: saved actors, cold records, histories.

They use connections of their own, and see committed rows only. Each is one statement, so one
moment. Every row is verified (`remora.storage.decoding`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import anyio
import asyncpg

from remora.errors import StorageError
from remora.ids import SessionKey, UserKey
from remora.logging import get_logger
from remora.messages import Entry
from remora.messages.attachments import MAGIC
from remora.runtime.jobs import Job
from remora.storage.answering import (
    decode_marks,
    decode_memories,
    decode_state_items,
    erasable_messages,
    ids_by_place,
    keyed_appends,
    messages_by_id,
    numbered_ids,
    original_append,
    read_range,
    session_parts,
    stored_messages,
)
from remora.storage.attachments import Encoded
from remora.storage.decoding import (
    CHECKED_JOB_COLUMNS,
    ENTRY_COLUMNS,
    MEMORY_COLUMNS,
    SEQ_MASK,
    STATE_ITEM_COLUMNS,
    SUMMARY_COLUMNS,
    RowDamaged,
    decode_jobs,
    decode_memory,
    decode_state_item,
    decode_summary,
    row_damage,
)
from remora.storage.erasure_notes import decode_note
from remora.storage.journal_port import Erasure, JournalCounts, SummaryFigures
from remora.storage.keyed_values import KEYED_KIND
from remora.storage.listing import (
    ListingPage,
    SessionListing,
    UserListing,
    prefix_end,
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
    PastLookup,
    PinnedLookup,
    SessionPart,
    TurnLookup,
    entry_ranges,
)
from remora.storage.past import buffer_start_from, earlier_buffer, read_instructions
from remora.storage.postgres.connection import BROKEN, describe, is_broken
from remora.storage.postgres.schema import in_schema
from remora.storage.records import BLANK_CHAT, ENTRY_KIND, HOT_KEYS, MemoryItem, StateItem
from remora.storage.restoring import (
    ACTOR,
    DIGEST,
    JOB,
    MESSAGE,
    STATE_ITEM,
    SUMMARY,
    WITH_IDS,
    SavedActor,
    save_actors,
)
from remora.storage.rows import SEQ_BITS

# -- rows in which text that is stored as bytes is text again; see `remora.storage.decoding` -------


def summary_texts(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of `SUMMARY_COLUMNS`."""
    return (*row[:6], _text(row[6]), _text(row[7]), *row[8:10], _text(row[10]), *row[11:])


def state_item_texts(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of `STATE_ITEM_COLUMNS`."""
    return (*row[:2], _text(row[2]), *row[3:])


def memory_texts(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of `MEMORY_COLUMNS`."""
    return (*row[:3], _text(row[3]), _text(row[4]), _text(row[5]), *row[6:])


def job_texts(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of `CHECKED_JOB_COLUMNS`."""
    return (*row[:8], _text(row[8]), *row[9:])


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")  # what differs is damage of one row


_logger = get_logger(__name__)
_OF_RANGES = (
    "FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY "
    "AS w (name, session, first, last, place) "
    "JOIN remora.actors AS s ON s.user = w.name AND s.session = w.session "
    f"JOIN remora.messages AS m ON m.pos BETWEEN (s.sid << {SEQ_BITS}) + w.first "
    f"AND (s.sid << {SEQ_BITS}) + w.last"
)
_ITS_MESSAGES = f"m.pos BETWEEN s.sid << {SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {SEQ_MASK}"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 0.5


class JournalReader:
    """The queries of `remora.storage.ports.Journal`, over a pool of connections.

    Args:
        pool: of connections; used by nothing else.
        schema: that has the tables.
        numbers: of the actors to come.
        reconnect_s: how long a query waits for PostgreSQL to come back.
    """

    instance: str

    def __init__(
        self, pool: asyncpg.Pool[Any], schema: str, *, numbers: Iterator[int], reconnect_s: float
    ) -> None:
        self._pool = pool
        self._schema = schema
        self._numbers = numbers
        self._patience_s = reconnect_s

    # -- activation --------------------------------------------------------------------------------

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[SavedActor | Exception]:
        return await restore_actors(self._read, keys, self._numbers.__next__)

    async def fetch(self, key: Hashable, query: object) -> Answer:
        if isinstance(query, MemoryLookup):
            assert isinstance(key, UserKey)
            return {item.id: item for item in await self.memories(key.user, query.ids)}
        assert isinstance(key, SessionKey)
        if isinstance(query, PastLookup):
            return await earlier_buffer(self, key, query.at)
        if isinstance(query, PinnedLookup):
            return await read_instructions(self, key, query.after, query.through)
        if isinstance(query, IdLookup):
            rows = await self._read(
                f"SELECT {ENTRY_COLUMNS} FROM remora.actors AS s JOIN remora.messages AS m ON "
                f"m.pos >> {SEQ_BITS} = s.sid AND m.id = ANY($1::text[]) AND m.id IS NOT NULL "
                "WHERE s.user = $2 AND s.session = $3 AND m.removed IS NULL AND "
                f"m.pos & {SEQ_MASK} > $4",
                list(query.ids),
                *key,
                query.after,
            )
            return messages_by_id(stored_messages(key, rows))
        if isinstance(query, ErasableLookup):
            rows = await self._read(
                f"SELECT m.removed, {ENTRY_COLUMNS} FROM remora.actors AS s JOIN remora.messages "
                f"AS m ON {_ITS_MESSAGES} WHERE s.user = $1 AND s.session = $2 AND "
                f"((m.pos >> {SEQ_BITS} = s.sid AND m.id = ANY($3::text[])) OR m.pos = "
                f"ANY(SELECT (s.sid << {SEQ_BITS}) + unnest($4::bigint[]))) ORDER BY m.pos",
                *key,
                list(query.ids),
                list(query.seqs),
            )
            ranges = entry_ranges(await self.state_items(key))
            return Erasable(erasable_messages(key, rows), ranges)
        if isinstance(query, TurnLookup):
            rows = await self._read(
                f"SELECT k.key, m.removed, {ENTRY_COLUMNS} FROM remora.actors AS s "
                f"JOIN remora.messages AS k ON k.pos >> {SEQ_BITS} = s.sid AND k.key BETWEEN $1 "
                "AND $2 AND k.key IS NOT NULL "
                "JOIN remora.messages AS m ON m.pos BETWEEN k.pos AND k.pos + k.batch - 1 "
                "WHERE s.user = $3 AND s.session = $4 ORDER BY k.key, m.pos",
                query.root + bytes(4),
                query.root + b"\xff" * 4,
                *key,
            )
            return tuple(keyed_appends(key, rows))
        assert isinstance(query, KeyLookup)
        rows = await self._read(
            f"SELECT {ENTRY_COLUMNS} FROM remora.actors AS s "
            f"JOIN remora.messages AS k ON k.pos >> {SEQ_BITS} = s.sid AND k.key = $1 "
            "JOIN remora.messages AS m ON m.pos BETWEEN k.pos AND k.pos + k.batch - 1 "
            "WHERE s.user = $2 AND s.session = $3 ORDER BY m.pos",
            query.digest,
            *key,
        )
        return original_append(key, rows)

    # -- reading -----------------------------------------------------------------------------------

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        rows = await self._read(
            f"SELECT s.trimmed, m.removed, {ENTRY_COLUMNS} FROM remora.actors AS s "
            f"JOIN remora.messages AS m ON m.pos BETWEEN (s.sid << {SEQ_BITS}) + $1 AND "
            f"(s.sid << {SEQ_BITS}) + $2 WHERE s.user = $3 AND s.session = $4 ORDER BY m.pos",
            max(first, 1),
            max(min(last, SEQ_MASK), 0),
            *key,
        )
        return await read_range(key, rows, first, at)

    async def read_ranges(
        self, ranges: Sequence[tuple[SessionKey, int, int]], *, max_bytes: int
    ) -> Sequence[SessionPart] | None:
        wanted = (
            [key.user for key, _, _ in ranges],
            [key.session for key, _, _ in ranges],
            [first for _, first, _ in ranges],
            [last for _, _, last in ranges],
        )
        ((size,),) = await self._read(
            f"SELECT coalesce(sum(length(m.chat)), 0)::bigint {_OF_RANGES}", *wanted
        )
        if size > max_bytes:
            return None
        rows = await self._read(
            f"SELECT w.place - 1, m.pruned, s.trimmed, m.removed, {ENTRY_COLUMNS} {_OF_RANGES} "
            "ORDER BY w.place, m.pos",
            *wanted,
        )
        return await session_parts(ranges, rows)

    async def any_removed(self, key: SessionKey, first: int, last: int, *, since: int) -> bool:
        rows = await self._read(
            "SELECT 1 FROM remora.actors AS s JOIN remora.messages AS m ON m.pos BETWEEN "
            f"(s.sid << {SEQ_BITS}) + $1 AND (s.sid << {SEQ_BITS}) + $2 WHERE s.user = $3 AND "
            "s.session = $4 AND m.removed IS NOT NULL AND m.removed > $5 LIMIT 1",
            max(first, 1),
            max(min(last, SEQ_MASK), 0),
            *key,
            since,
        )
        return bool(rows)

    async def buffer_start(self, key: SessionKey, at: int) -> BufferStart:
        rows = await self._read(
            f"SELECT {SUMMARY_COLUMNS}, s.trimmed FROM remora.actors AS s LEFT JOIN remora.folds "
            "AS f ON f.sid = s.sid AND f.at_seq <= $3 "
            "WHERE s.user = $1 AND s.session = $2 ORDER BY f.number",
            *key,
            at,
        )
        changes = [summary_texts(row[:-1]) for row in rows if row[0] is not None]
        try:
            return buffer_start_from(
                [decode_summary(row) for row in changes], trimmed=rows[0][-1] if rows else 0
            )
        except RowDamaged as e:
            raise row_damage(key, e) from e

    async def summary_figures(self, key: SessionKey) -> SummaryFigures:
        ((count, taken, made, degraded),) = await self._read(
            "SELECT count(*), coalesce(sum(f.input_tokens), 0)::bigint, "
            "coalesce(sum(f.tokens), 0)::bigint, coalesce(sum(f.degraded), 0)::bigint "
            "FROM remora.actors AS s JOIN remora.folds AS f USING (sid) "
            "WHERE s.user = $1 AND s.session = $2 AND f.input_tokens > 0",
            *key,
        )
        return SummaryFigures(count, taken, made, degraded)

    async def memories(self, user: str, ids: Sequence[str] | None = None) -> Sequence[MemoryItem]:
        if ids is None:
            return await self._memories(user, " ORDER BY m.number")
        return await self._memories(
            user, " AND m.id = ANY($2::text[]) ORDER BY m.number", list(ids)
        )

    async def list_memories(
        self, user: str, *, after: tuple[int, str] | None, limit: int
    ) -> Sequence[MemoryItem]:
        behind = "" if after is None else " AND (m.created_us, m.id) > ($3::bigint, $4::text)"
        rest = f"{behind} ORDER BY m.created_us, m.id LIMIT $2"
        return await self._memories(user, rest, limit, *(after or ()))

    async def facts(
        self, user: str, *, session: str | None = None, topics: Collection[str] | None = None
    ) -> Sequence[MemoryItem]:
        rest, arguments = " AND m.details IS NOT NULL", list[Any]()
        if session is not None:
            arguments.append(session)
            rest += f" AND m.session = ${len(arguments) + 1}"
        if topics is not None:  # an id begins with its topic
            arguments.append(list(topics))
            rest += (
                f" AND EXISTS (SELECT 1 FROM unnest(${len(arguments) + 1}::text[]) AS w (topic) "
                "WHERE m.id BETWEEN w.topic AND w.topic || 'g')"
            )
        found = await self._memories(user, f"{rest} ORDER BY m.number", *arguments)
        return [item for item in found if item.topic]

    async def _memories(self, user: str, rest: str, *arguments: Any) -> Sequence[MemoryItem]:
        rows = await self._read(
            f"SELECT {MEMORY_COLUMNS} FROM remora.actors AS s JOIN remora.memories AS m "
            f"ON m.sid = s.sid WHERE s.user = $1 AND s.session = ''{rest}",
            user,
            *arguments,
        )
        return await decode_memories(user, rows, lambda row: decode_memory(memory_texts(row)))

    async def removed_messages(
        self, user: str, messages: Collection[tuple[str, int]]
    ) -> Collection[tuple[str, int]]:
        rows = await self._read(
            f"SELECT s.session, m.pos & {SEQ_MASK} FROM unnest($2::text[], $3::bigint[]) "
            "AS w (session, seq) JOIN remora.actors AS s ON s.user = $1 AND s.session = w.session "
            f"JOIN remora.messages AS m ON m.pos = (s.sid << {SEQ_BITS}) + w.seq "
            "WHERE m.removed IS NOT NULL",
            user,
            [session for session, _ in messages],
            [seq for _, seq in messages],
        )
        return {(session, seq) for session, seq in rows}

    async def message_ids(
        self, user: str, messages: Collection[tuple[str, int]]
    ) -> Mapping[tuple[str, int], str]:
        rows = await self._read(
            f"SELECT s.session, s.sid, m.pos & {SEQ_MASK}, m.id FROM unnest($2::text[], "
            "$3::bigint[]) AS w (session, seq) JOIN remora.actors AS s ON s.user = $1 AND "
            "s.session = w.session "
            f"JOIN remora.messages AS m ON m.pos = (s.sid << {SEQ_BITS}) + w.seq",
            user,
            [session for session, _ in messages],
            [seq for _, seq in messages],
        )
        return ids_by_place(self.instance, rows)

    async def sessions_of(self, user: str, ids: Collection[str]) -> Sequence[tuple[str, str]]:
        numbered = numbered_ids(self.instance, ids)
        own = await self._read(
            "SELECT w.id, s.session FROM unnest($2::text[], $3::bigint[]) AS w (id, sid) "
            "JOIN remora.actors AS s ON s.sid = w.sid WHERE s.user = $1",
            user,
            [id_ for id_, _ in numbered],
            [sid for _, sid in numbered],
        )
        given = await self._read(
            f"SELECT DISTINCT m.id, s.session FROM remora.actors AS s JOIN remora.messages AS m "
            f"ON m.pos >> {SEQ_BITS} = s.sid AND m.id = ANY($2::text[]) AND m.id IS NOT NULL "
            "WHERE s.user = $1 AND s.session <> '' AND (m.removed IS NULL OR m.chat <> $3)",
            user,
            list(ids),
            BLANK_CHAT,
        )
        return [*own, *given]

    async def pruned_seqs(self, key: SessionKey) -> Sequence[int]:
        rows = await self._read(
            f"SELECT m.pos & {SEQ_MASK} FROM remora.actors AS s JOIN remora.messages AS m "
            f"ON {_ITS_MESSAGES} WHERE s.user = $1 AND s.session = $2 AND m.pruned = 1 "
            "ORDER BY m.pos",
            *key,
        )
        return [seq for (seq,) in rows]

    async def state_items(self, key: SessionKey | UserKey) -> Sequence[StateItem]:
        user, session = key if isinstance(key, SessionKey) else (key.user, "")
        rows = await self._read(
            f"SELECT {STATE_ITEM_COLUMNS} FROM remora.actors AS s JOIN remora.facets AS x "
            "USING (sid) WHERE s.user = $1 AND s.session = $2 ORDER BY x.number",
            user,
            session,
        )
        return await decode_state_items(
            key, rows, lambda row: decode_state_item(state_item_texts(row))
        )

    async def indexed_through(self) -> Sequence[tuple[SessionKey | UserKey, int]]:
        rows = await self._read(
            "SELECT flushed, sid, s.user, session, created_us, crc FROM remora.actors AS s "
            "ORDER BY sid"
        )
        return decode_marks(rows)

    async def session_indexed_through(self, key: SessionKey) -> int:
        rows = await self._read(
            "SELECT flushed FROM remora.actors AS s WHERE s.user = $1 AND session = $2", *key
        )
        return int(rows[0][0]) if rows else 0

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        return await self._jobs("j.dead = $1", int(dead))

    async def user_jobs(self, user: str) -> Sequence[Job]:
        return await self._jobs("s.user = $1", user)

    async def _jobs(self, where: str, *arguments: Any) -> Sequence[Job]:
        rows = await self._read(
            f"SELECT {CHECKED_JOB_COLUMNS} FROM remora.jobs AS j JOIN remora.actors AS s "
            f"USING (sid) WHERE {where} ORDER BY j.number",
            *arguments,
        )
        return decode_jobs([job_texts(row) for row in rows])

    async def find_unindexed(
        self, user: str, words: Sequence[str], limit: int
    ) -> Sequence[tuple[SessionKey, int]]:
        rows = await self._read(
            "WITH told AS MATERIALIZED (SELECT s.session, m.pos, m.at_us, "
            "lower(encode(m.chat, 'escape')) AS text FROM remora.actors AS s JOIN "
            f"remora.messages AS m ON m.pos > (s.sid << {SEQ_BITS}) + s.flushed AND "
            f"m.pos <= (s.sid << {SEQ_BITS}) + {SEQ_MASK} WHERE s.user = $1 AND "
            "s.session <> '' AND m.removed IS NULL AND m.pruned IS NULL), "
            "hits AS MATERIALIZED (SELECT session, pos, at_us, n FROM told JOIN "
            "unnest($3::bytea[]) WITH ORDINALITY AS u (word, n) ON "
            "position(encode(u.word, 'escape') IN text) > 0), "
            f"weights AS (SELECT n, {RAREST} / count(*) AS weight FROM hits GROUP BY n) "
            f"SELECT session, pos & {SEQ_MASK} FROM hits JOIN weights USING (n) "
            "GROUP BY session, pos, at_us ORDER BY sum(weight) DESC, at_us DESC, pos DESC "
            "LIMIT $2",
            user,
            limit,
            [word.encode() for word in words],
        )
        return [(SessionKey(user, session), seq) for session, seq in rows]

    async def unindexed(
        self, user: str, limit: int, sessions: Collection[str] | None = None
    ) -> Sequence[tuple[SessionKey, int]]:
        rows = await self._read(
            f"SELECT s.session, m.pos & {SEQ_MASK} FROM remora.actors AS s "
            f"JOIN remora.messages AS m ON m.pos > (s.sid << {SEQ_BITS}) + s.flushing AND "
            f"m.pos <= (s.sid << {SEQ_BITS}) + {SEQ_MASK} WHERE s.user = $1 AND s.session <> '' "
            "AND ($3::text[] IS NULL OR s.session = ANY($3)) AND m.removed IS NULL AND "
            "m.pruned IS NULL ORDER BY m.at_us DESC, m.pos DESC LIMIT $2",
            user,
            limit,
            None if sessions is None else list(sessions),
        )
        return [(SessionKey(user, session), seq) for session, seq in rows]

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        return await self.list_sessions(user, ListingPage())

    async def list_sessions(self, user: str, page: ListingPage) -> Sequence[SessionListing]:
        return await list_sessions(self._read, user, page)

    async def list_users(self, page: ListingPage) -> Sequence[UserListing]:
        return await list_users(self._read, page)

    async def sessions_to_flush(self, limit: int) -> Sequence[SessionKey]:
        rows = await self._read(
            "SELECT s.user, s.session FROM remora.actors AS s WHERE s.session <> '' AND s.flushing "
            f"< (SELECT m.pos & {SEQ_MASK} FROM remora.messages AS m WHERE {_ITS_MESSAGES} AND "
            "m.removed IS NULL ORDER BY m.pos DESC LIMIT 1) LIMIT $1",
            limit,
        )
        return [SessionKey(user, session) for user, session in rows]

    async def sessions_with_fallbacks(self, limit: int) -> Sequence[SessionKey]:
        rows = await self._read(
            "SELECT s.user, s.session FROM remora.actors AS s WHERE s.sid IN (SELECT f.sid FROM "
            "remora.folds AS f WHERE f.cover IS NOT NULL) AND EXISTS (SELECT 1 FROM remora.folds "
            "AS f WHERE f.sid = s.sid AND f.generation = s.generation AND f.cover IS NOT NULL) "
            "ORDER BY s.sid DESC LIMIT $1",
            limit,
        )
        return [SessionKey(user, session) for user, session in rows]

    async def counts(self, user: str | None = None) -> JournalCounts:
        own = "" if user is None else " WHERE s.user = $1"
        of_them = "" if user is None else f"JOIN remora.actors AS s ON {_ITS_MESSAGES}{own}"
        by_sid = "" if user is None else f"JOIN remora.actors AS s USING (sid){own}"
        (
            (users, sessions, messages, tokens, summaries, pending, dead, memories, keys),
        ) = await self._read(
            f"SELECT (SELECT count(DISTINCT s.user) FROM remora.actors AS s{own}), "
            "(SELECT count(*) FILTER (WHERE s.session <> '') FROM remora.actors "
            f"AS s{own}), a.messages, a.tokens, "
            "(SELECT count(*) FILTER (WHERE f.kind IN ('summary', 'entry')) FROM "
            f"remora.folds AS f {by_sid}), j.pending, j.dead, "
            f"(SELECT count(*) FROM remora.memories AS m {by_sid}), "
            f"(SELECT count(*) FILTER (WHERE x.kind = '{KEYED_KIND}') FROM remora.facets "
            f"AS x {by_sid}) "
            "FROM (SELECT count(*) AS messages, coalesce(sum(m.tokens), 0)::bigint AS tokens "
            f"FROM remora.messages AS m {of_them}) AS a, "
            "(SELECT count(*) FILTER (WHERE j.dead = 0) AS pending, "
            "count(*) FILTER (WHERE j.dead = 1) AS dead FROM remora.jobs AS j "
            f"{by_sid}) AS j",
            *(() if user is None else (user,)),
        )
        return JournalCounts(
            users, sessions, messages, tokens, summaries, pending, dead, memories, keys
        )

    async def setting(self, name: str) -> str | None:
        rows = await self._read("SELECT value FROM remora.settings WHERE name = $1", name)
        return bytes(rows[0][0]).decode() if rows else None

    async def erasures(self) -> Sequence[Erasure]:
        rows = await self._read(
            "SELECT number, user_key, session_key FROM remora.erasures ORDER BY number"
        )
        return [decode_note(*row) for row in rows]

    async def _referring(self, user: str) -> Sequence[Encoded]:
        """A user's messages that refer to attachments."""
        return await self._read(
            "SELECT m.chat, m.meta FROM remora.actors AS s JOIN remora.messages AS m ON m.pos "
            "BETWEEN s.sid << 32 AND ((s.sid + 1) << 32) - 1 WHERE s.user = $1 AND "
            "(position($2::bytea IN m.chat) > 0 OR position($2::bytea IN m.meta) > 0)",
            user,
            MAGIC,
        )

    async def _all_users(self) -> Sequence[str]:
        rows = await self._read("SELECT DISTINCT s.user FROM remora.actors AS s")
        return [user for (user,) in rows]

    async def _read(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """The rows of a query; one whose connection broke is asked again.

        Raises:
            StorageError: PostgreSQL does not answer, or refuses.
        """
        deadline, wait = time.monotonic() + self._patience_s, _FIRST_WAIT_S
        while True:
            try:
                found = await self._pool.fetch(in_schema(sql, self._schema), *arguments)
                return [tuple(row) for row in found]
            except BROKEN as e:
                if not is_broken(e) or self._pool.is_closing() or time.monotonic() >= deadline:
                    raise StorageError(f"the journal cannot be read: {describe(e)}") from e
            await anyio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)


# -- the listings of users and sessions of a journal in PostgreSQL, page by page -------------------
#
# When a session was last used is when its newest message was created: one look into the index of
# messages for each session. A page of a user's sessions looks at all of that user's, and a page of
# users by use at all sessions.

_NEWEST = (
    f"LEFT JOIN LATERAL (SELECT m.at_us, m.pos & {SEQ_MASK} AS seq FROM remora.messages AS m "
    f"WHERE {_ITS_MESSAGES} ORDER BY m.pos DESC LIMIT 1) AS newest ON true"
)
_DIRECTIONS = {"name": (">", "ASC"), "newest": ("<", "DESC"), "oldest": (">", "ASC")}


async def list_sessions(read: Query, user: str, page: ListingPage) -> Sequence[SessionListing]:
    """A page of a user's sessions; see `Journal.list_sessions`."""
    arguments: list[Any] = [user]
    where = _named("s.session", page.prefix, arguments)
    behind, order = _place("name", page, arguments)
    rows = await read(
        # numbers have no gaps, so that nothing but the removed messages needs to be counted
        "SELECT name, messages, used FROM (SELECT s.session AS name, coalesce(newest.seq, 0) - "
        "s.trimmed - (SELECT count(*) FROM remora.messages AS m WHERE "
        f"{_ITS_MESSAGES} AND m.removed IS NOT NULL) AS messages, coalesce(newest.at_us, 0) AS "
        f"used FROM remora.actors AS s {_NEWEST} WHERE s.user = $1 AND s.session <> ''{where}) "
        f"AS found WHERE messages > {-1 if page.empty else 0}{behind} ORDER BY {order}"
        f"{_limit(page)}",
        *arguments,
    )
    return [session_listing(user, name, count, used, page.order) for name, count, used in rows]


async def list_users(read: Query, page: ListingPage) -> Sequence[UserListing]:
    """A page of all users; see `Journal.list_users`."""
    arguments: list[Any] = []
    where = _named("s.user", page.prefix, arguments)
    if page.order == "name":
        behind, order = _place("u.name", page, arguments)
        users = (
            f"SELECT u.name FROM (SELECT DISTINCT s.user AS name FROM remora.actors AS s WHERE "
            f"true{where}) AS u WHERE true{behind} ORDER BY {order}{_limit(page)}"
        )
        rows = await read(
            "SELECT u.name, count(*) FILTER (WHERE s.session <> ''), max(newest.at_us) FROM "
            f"({users}) AS u JOIN remora.actors AS s ON s.user = u.name {_NEWEST} "
            "GROUP BY u.name ORDER BY u.name",
            *arguments,
        )
    else:
        behind, order = _place("name", page, arguments)
        rows = await read(
            "SELECT name, sessions, used FROM (SELECT s.user AS name, count(*) FILTER (WHERE "
            "s.session <> '') AS sessions, coalesce(max(newest.at_us), 0) AS used FROM "
            f"remora.actors AS s {_NEWEST} WHERE true{where} GROUP BY s.user) AS found "
            f"WHERE true{behind} ORDER BY {order}{_limit(page)}",
            *arguments,
        )
    return [user_listing(name, count, used or 0, page.order) for name, count, used in rows]


def _named(column: str, prefix: str, arguments: list[Any]) -> str:
    """A condition for ids with a prefix; never shared scopes."""
    arguments.append(max(prefix, " "))
    condition = f" AND {column} >= ${len(arguments)}"
    if (end := prefix_end(prefix)) is not None:
        arguments.append(end)
        condition += f" AND {column} < ${len(arguments)}"
    return condition


def _place(name: str, page: ListingPage, arguments: list[Any]) -> tuple[str, str]:
    """A condition for what follows the page before, and the order."""
    than, direction = _DIRECTIONS[page.order]
    columns = [name] if page.order == "name" else ["used", name]
    order = ", ".join(f"{column} {direction}" for column in columns)
    if not page.after:
        return "", order
    if page.order == "name":
        arguments.append(page.after)
        return f" AND {name} {than} ${len(arguments)}", order
    arguments += [page.after_us, page.after]
    place = f"(${len(arguments) - 1}::bigint, ${len(arguments)}::text)"
    return f" AND (used, {name}) {than} {place}", order


def _limit(page: ListingPage) -> str:
    return "" if page.limit is None else f" LIMIT {int(page.limit)}"


# -- the images of actors: hundreds of actors by one query -----------------------------------------


class Query(Protocol):
    """Runs one query, in a transaction of its own."""

    def __call__(self, sql: str, /, *arguments: Any) -> Awaitable[list[tuple[Any, ...]]]: ...


# what is selected of them, and from where
_PARTS: dict[int, tuple[str, str]] = {
    ACTOR: (
        (
            "0, s.sid, s.user, s.session, s.created_us, s.crc, s.marks_crc, s.generation, "
            "s.summarized, s.folding, s.flushing, s.cleared"
        ),
        "asked AS s",
    ),
    MESSAGE: (
        f"m.removed, {ENTRY_COLUMNS}",
        (
            f"asked AS s JOIN remora.messages AS m ON m.pos > (s.sid << {SEQ_BITS}) + "
            f"s.summarized AND m.pos < (s.sid + 1) << {SEQ_BITS}"
        ),
    ),
    SUMMARY: (
        f"f.number, {SUMMARY_COLUMNS}",
        (
            "asked AS s JOIN remora.folds AS f ON f.sid = s.sid AND f.generation = s.generation "
            "AND f.kind IN ('summary', 'entry')"
        ),
    ),
    DIGEST: (
        "n, sid, key",
        (
            "(SELECT s.sid, m.key, row_number() OVER (PARTITION BY s.sid ORDER BY m.pos DESC) AS n "
            f"FROM asked AS s JOIN remora.messages AS m ON m.pos >> {SEQ_BITS} = s.sid AND "
            f"m.key IS NOT NULL) AS k WHERE n <= {HOT_KEYS + 1}"
        ),
    ),
    WITH_IDS: (
        "0, s.sid",
        (
            "asked AS s WHERE EXISTS (SELECT 1 FROM remora.messages AS m WHERE "
            f"m.pos >> {SEQ_BITS} = s.sid AND m.id IS NOT NULL AND m.removed IS NULL AND "
            f"m.pos & {SEQ_MASK} > s.cleared AND m.pos & {SEQ_MASK} <= s.summarized)"
        ),
    ),
    STATE_ITEM: (
        f"x.number, {STATE_ITEM_COLUMNS}",
        f"asked AS s JOIN remora.facets AS x ON x.sid = s.sid AND x.kind <> '{ENTRY_KIND}'",
    ),
    JOB: (
        f"j.number, {CHECKED_JOB_COLUMNS}",
        "asked AS s JOIN remora.jobs AS j ON j.sid = s.sid WHERE j.dead = 0",
    ),
}
# Everything about some actors by one statement: of one moment, in one round trip. A row is its
# kind and a record: a number to sort by where the order matters, and columns.
_SELECT_ACTORS = (
    "WITH asked AS MATERIALIZED (SELECT s.* FROM unnest($1::text[], $2::text[]) AS w (u, n) "
    "JOIN remora.actors AS s ON s.user = w.u AND s.session = w.n) "
) + " UNION ALL ".join(
    f"(SELECT {kind}, ROW({columns}) FROM {rest}{' ORDER BY m.pos' if kind == MESSAGE else ''})"
    for kind, (columns, rest) in _PARTS.items()
)
_PADDING = (None,) * 5  # every row has the columns that can be long
_TEXTS: dict[int, Callable[[Sequence[Any]], tuple[Any, ...]]] = {
    SUMMARY: summary_texts,
    STATE_ITEM: state_item_texts,
    JOB: job_texts,
}


async def restore_actors(
    read: Query, keys: Sequence[Hashable], new_sid: Callable[[], int]
) -> list[SavedActor | Exception]:
    """Return what the journal has of each actor; a new one gets its number from `new_sid`."""
    names: list[Any] = list(dict.fromkeys(keys))
    sessions = [one.session if isinstance(one, SessionKey) else "" for one in names]
    found = await read(_SELECT_ACTORS, [one.user for one in names], sessions)
    rows = []
    for kind, record in found:
        number, *row = record
        texts = _TEXTS.get(kind)
        row = row if texts is None else texts(row)
        rows.append((kind, number, *row, *_PADDING[len(row) :]))
    return await save_actors(rows, keys, new_sid)
