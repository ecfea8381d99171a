"""The journal's queries: saved actors, cold records, histories, listings.

They use a connection of their own. Each statement is a transaction of its own, so it never holds a
checkpoint back. It sees committed rows only, which is all that an inactive session has. Every row
is verified (`decoding`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import aiosqlite
import msgspec

from remora.errors import RuntimeClosed, StorageError
from remora.ids import SessionKey, UserKey
from remora.logging import get_logger
from remora.messages import Entry
from remora.messages.attachments import MAGIC
from remora.runtime.concurrency import run_in_thread_if
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
    KeyLookup,
    MemoryLookup,
    PastLookup,
    PinnedLookup,
    SessionPart,
    TurnLookup,
    entry_ranges,
)
from remora.storage.past import buffer_start_from, earlier_buffer, read_instructions
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
from remora.storage.sqlite.connection import Query
from remora.storage.sqlite.listing import (
    read_session_rows,
    read_user_rows,
    session_query,
    user_query,
)

_logger = get_logger(__name__)
_IN_THREAD = 500  # listings from which on making them is a thread's work

_BY_USER = "CROSS JOIN memories AS m ON m.sid = s.sid"
# By the index on ids, and not by the one on users: `+` keeps the planner from that.
_BY_ID = (
    "CROSS JOIN json_each(?) AS w CROSS JOIN memories AS m ON m.id = w.value AND +m.sid = s.sid"
)
# An id begins with its topic.
_BY_TOPIC = (
    "CROSS JOIN json_each(?) AS w CROSS JOIN memories AS m "
    "ON m.id BETWEEN w.value AND w.value || 'g' AND +m.sid = s.sid"
)


def _encode_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


_OF_RANGES = (
    "FROM json_each(?) AS w CROSS JOIN actors AS s ON s.user = json_extract(w.value, '$[0]') "
    "AND s.session = json_extract(w.value, '$[1]') CROSS JOIN messages AS m ON m.pos BETWEEN "
    f"(s.sid << {SEQ_BITS}) + json_extract(w.value, '$[2]') AND "
    f"(s.sid << {SEQ_BITS}) + json_extract(w.value, '$[3]')"
)


class JournalReader:
    """The queries of `remora.storage.ports.Journal`, over one connection.

    Args:
        reader: the connection; used by nothing else.
        numbers: of the actors to come.
    """

    instance: str

    def __init__(self, reader: aiosqlite.Connection, *, numbers: Iterator[int]) -> None:
        # Text that is not UTF-8 is damage of one row, and must not fail a query over others.
        reader.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        self._reader = reader
        self._numbers = numbers

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
                f"SELECT {ENTRY_COLUMNS} FROM actors AS s CROSS JOIN json_each(?) AS w "
                "CROSS JOIN messages AS m ON m.pos >> 32 = +s.sid AND m.id = w.value AND m.id IS "
                "NOT NULL "
                f"WHERE s.user = ? AND s.session = ? AND m.removed IS NULL AND m.pos & {SEQ_MASK} "
                "> ?",
                (_encode_json(query.ids), key.user, key.session, query.after),
            )
            return messages_by_id(stored_messages(key, rows))
        if isinstance(query, ErasableLookup):
            rows = await self._read(
                f"SELECT m.removed, {ENTRY_COLUMNS} FROM actors AS s CROSS JOIN json_each(?) AS w "
                "CROSS JOIN messages AS m ON m.pos >> 32 = +s.sid AND m.id = w.value AND m.id IS "
                "NOT NULL WHERE s.user = ? AND s.session = ? UNION "
                f"SELECT m.removed, {ENTRY_COLUMNS} FROM actors AS s CROSS JOIN json_each(?) AS w "
                f"CROSS JOIN messages AS m ON m.pos = (s.sid << {SEQ_BITS}) + w.value "
                "WHERE s.user = ? AND s.session = ? ORDER BY 2",
                (_encode_json(query.ids), *key, _encode_json(query.seqs), *key),
            )
            ranges = entry_ranges(await self.state_items(key))
            return Erasable(erasable_messages(key, rows), ranges)
        if isinstance(query, TurnLookup):
            rows = await self._read(
                f"SELECT k.key, m.removed, {ENTRY_COLUMNS} FROM actors AS s "
                "CROSS JOIN messages AS k ON k.pos >> 32 = +s.sid AND k.key BETWEEN ? AND ? "
                "AND k.key IS NOT NULL "
                "CROSS JOIN messages AS m ON m.pos BETWEEN k.pos AND k.pos + k.batch - 1 "
                "WHERE s.user = ? AND s.session = ? ORDER BY k.key, m.pos",
                (query.root + bytes(4), query.root + b"\xff" * 4, key.user, key.session),
            )
            return tuple(keyed_appends(key, rows))
        assert isinstance(query, KeyLookup)
        rows = await self._read(
            # CROSS JOIN keeps this order; the plus (no affinity) and the third condition let the
            # partial index be used
            f"SELECT {ENTRY_COLUMNS} FROM actors AS s "
            "CROSS JOIN messages AS k ON k.pos >> 32 = +s.sid AND k.key = ? AND k.key IS NOT NULL "
            "CROSS JOIN messages AS m ON m.pos BETWEEN k.pos AND k.pos + k.batch - 1 "
            "WHERE s.user = ? AND s.session = ? ORDER BY m.pos",
            (query.digest, key.user, key.session),
        )
        return original_append(key, rows)

    # -- reading -----------------------------------------------------------------------------------

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        rows = await self._read(
            f"SELECT s.trimmed, m.removed, {ENTRY_COLUMNS} FROM actors AS s JOIN messages AS m "
            f"ON m.pos BETWEEN (s.sid << {SEQ_BITS}) + ? AND (s.sid << {SEQ_BITS}) + ? "
            "WHERE s.user = ? AND s.session = ? ORDER BY m.pos",
            (max(first, 1), min(last, SEQ_MASK), key.user, key.session),
        )
        return await read_range(key, rows, first, at)

    async def read_ranges(
        self, ranges: Sequence[tuple[SessionKey, int, int]], *, max_bytes: int
    ) -> Sequence[SessionPart] | None:
        wanted = _encode_json([(*key, first, last) for key, first, last in ranges])
        ((size,),) = await self._read(
            f"SELECT coalesce(sum(length(m.chat)), 0) {_OF_RANGES}", (wanted,)
        )
        if size > max_bytes:
            return None
        rows = await self._read(
            f"SELECT w.key, m.pruned, s.trimmed, m.removed, {ENTRY_COLUMNS} {_OF_RANGES} "
            "ORDER BY w.key, m.pos",
            (wanted,),
        )
        return await session_parts(ranges, rows)

    async def any_removed(self, key: SessionKey, first: int, last: int, *, since: int) -> bool:
        rows = await self._read(
            "SELECT 1 FROM actors AS s CROSS JOIN messages AS m INDEXED BY messages_removed ON "
            f"m.pos BETWEEN (s.sid << {SEQ_BITS}) + ? AND (s.sid << {SEQ_BITS}) + ? "
            "WHERE s.user = ? AND s.session = ? AND m.removed IS NOT NULL AND m.removed > ? "
            "LIMIT 1",
            (max(first, 1), min(last, SEQ_MASK), *key, since),
        )
        return bool(rows)

    async def buffer_start(self, key: SessionKey, at: int) -> BufferStart:
        rows = await self._read(
            f"SELECT {SUMMARY_COLUMNS} FROM actors AS s JOIN folds AS f USING (sid) "
            "WHERE s.user = ? AND s.session = ? AND f.at_seq <= ? ORDER BY f.number",
            (key.user, key.session, at),
        )
        try:
            return buffer_start_from(
                [decode_summary(row) for row in rows], trimmed=await self._read_trimmed(key)
            )
        except RowDamaged as e:
            raise row_damage(key, e) from e

    async def _read_trimmed(self, key: SessionKey) -> int:
        rows = await self._read(
            "SELECT trimmed FROM actors WHERE user = ? AND session = ?", tuple(key)
        )
        return int(rows[0][0]) if rows else 0

    async def summary_figures(self, key: SessionKey) -> SummaryFigures:
        ((count, taken, made, degraded),) = await self._read(
            "SELECT count(*), coalesce(sum(f.input_tokens), 0), coalesce(sum(f.tokens), 0), "
            "coalesce(sum(f.degraded), 0) "
            "FROM actors AS s JOIN folds AS f USING (sid) WHERE s.user = ? AND s.session = ? AND "
            "f.input_tokens > 0",
            (key.user, key.session),
        )
        return SummaryFigures(count, taken, made, degraded)

    async def memories(self, user: str, ids: Sequence[str] | None = None) -> Sequence[MemoryItem]:
        if ids is None:
            return await self._memories(user, _BY_USER, " ORDER BY m.number", (user,))
        parameters = (_encode_json(list(dict.fromkeys(ids))), user)
        return await self._memories(user, _BY_ID, " ORDER BY m.number", parameters)

    async def list_memories(
        self, user: str, *, after: tuple[int, str] | None, limit: int
    ) -> Sequence[MemoryItem]:
        behind = "" if after is None else " AND (m.created_us, m.id) > (?, ?)"
        rest = f"{behind} ORDER BY m.created_us, m.id LIMIT ?"
        return await self._memories(user, _BY_USER, rest, (user, *(after or ()), limit))

    async def facts(
        self, user: str, *, session: str | None = None, topics: Collection[str] | None = None
    ) -> Sequence[MemoryItem]:
        rest, parameters = " AND m.details IS NOT NULL", [user]
        if session is not None:
            rest += " AND m.session = ?"
            parameters.append(session)
        join = _BY_USER
        if topics is not None:
            join = _BY_TOPIC
            parameters.insert(0, _encode_json(list(topics)))
        found = await self._memories(user, join, f"{rest} ORDER BY m.number", parameters)
        return [item for item in found if item.topic]

    async def removed_messages(
        self, user: str, messages: Collection[tuple[str, int]]
    ) -> Collection[tuple[str, int]]:
        rows = await self._read(
            f"SELECT s.session, m.pos & {SEQ_MASK} FROM json_each(?) AS w CROSS JOIN actors AS s "
            "ON s.user = ? AND s.session = w.value ->> 0 CROSS JOIN messages AS m "
            f"ON m.pos = (s.sid << {SEQ_BITS}) + (w.value ->> 1) WHERE m.removed IS NOT NULL",
            (_encode_json(list(messages)), user),
        )
        return {(session, seq) for session, seq in rows}

    async def message_ids(
        self, user: str, messages: Collection[tuple[str, int]]
    ) -> Mapping[tuple[str, int], str]:
        rows = await self._read(
            f"SELECT s.session, s.sid, m.pos & {SEQ_MASK}, m.id FROM json_each(?) AS w "
            "CROSS JOIN actors AS s ON s.user = ? AND s.session = w.value ->> 0 "
            f"CROSS JOIN messages AS m ON m.pos = (s.sid << {SEQ_BITS}) + (w.value ->> 1)",
            (_encode_json(list(messages)), user),
        )
        return ids_by_place(self.instance, rows)

    async def sessions_of(self, user: str, ids: Collection[str]) -> Sequence[tuple[str, str]]:
        numbered = numbered_ids(self.instance, ids)
        own = await self._read(
            "SELECT w.value ->> 0, s.session FROM json_each(?) AS w CROSS JOIN actors AS s "
            "ON s.sid = w.value ->> 1 WHERE s.user = ?",
            (_encode_json(numbered), user),
        )
        given = await self._read(
            "SELECT DISTINCT w.value, s.session FROM actors AS s CROSS JOIN json_each(?) AS w "
            "CROSS JOIN messages AS m ON m.pos >> 32 = +s.sid AND m.id = w.value AND m.id IS NOT "
            "NULL WHERE s.user = ? AND s.session != '' AND (m.removed IS NULL OR m.chat != ?)",
            (_encode_json(list(ids)), user, BLANK_CHAT),
        )
        return [*own, *given]

    async def _memories(
        self, user: str, join: str, rest: str, parameters: Iterable[Any]
    ) -> Sequence[MemoryItem]:
        rows = await self._read(
            f"SELECT {MEMORY_COLUMNS} FROM actors AS s {join} "
            f"WHERE s.user = ? AND s.session = ''{rest}",
            parameters,
        )
        return await decode_memories(user, rows)

    async def pruned_seqs(self, key: SessionKey) -> Sequence[int]:
        rows = await self._read(
            f"SELECT m.pos & {SEQ_MASK} FROM actors AS s JOIN messages AS m "
            f"ON m.pos BETWEEN s.sid << {SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {SEQ_MASK} "
            "WHERE s.user = ? AND s.session = ? AND m.pruned",
            (key.user, key.session),
        )
        return [seq for (seq,) in rows]

    async def state_items(self, key: SessionKey | UserKey) -> Sequence[StateItem]:
        user, session = key if isinstance(key, SessionKey) else (key.user, "")
        rows = await self._read(
            f"SELECT {STATE_ITEM_COLUMNS} FROM actors AS s JOIN facets AS x USING (sid) WHERE "
            "s.user = ? AND s.session = ? "
            "ORDER BY x.rowid",
            (user, session),
        )
        return await decode_state_items(key, rows)

    async def indexed_through(self) -> Sequence[tuple[SessionKey | UserKey, int]]:
        rows = await self._read(
            "SELECT flushed, sid, user, session, created_us, crc FROM actors ORDER BY sid"
        )
        return decode_marks(rows)

    async def session_indexed_through(self, key: SessionKey) -> int:
        rows = await self._read(
            "SELECT flushed FROM actors WHERE user = ? AND session = ?", (key.user, key.session)
        )
        return int(rows[0][0]) if rows else 0

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        rows = await self._read(
            f"SELECT {CHECKED_JOB_COLUMNS} FROM jobs AS j JOIN actors AS s USING (sid) WHERE "
            "j.dead = ? ORDER BY j.number",
            (int(dead),),
        )
        return decode_jobs(rows)

    async def user_jobs(self, user: str) -> Sequence[Job]:
        rows = await self._read(
            f"SELECT {CHECKED_JOB_COLUMNS} FROM actors AS s CROSS JOIN jobs AS j ON j.sid = s.sid "
            "WHERE s.user = ? ORDER BY j.number",
            (user,),
        )
        return decode_jobs(rows)

    async def find_unindexed(
        self, user: str, words: Sequence[str], limit: int
    ) -> Sequence[tuple[SessionKey, int]]:
        rows = await self._read(
            "WITH told AS MATERIALIZED (SELECT s.session, m.pos, m.at_us, "
            "lower(CAST(m.chat AS TEXT)) AS text FROM actors AS s CROSS JOIN messages AS m ON "
            f"m.pos > (s.sid << {SEQ_BITS}) + s.flushed AND m.pos <= (s.sid << {SEQ_BITS}) + "
            f"{SEQ_MASK} WHERE s.user = ? AND s.session != '' AND m.removed IS NULL AND "
            "m.pruned IS NULL), hits AS MATERIALIZED (SELECT session, pos, at_us, u.key AS n "
            "FROM told CROSS JOIN json_each(?) AS u WHERE instr(text, u.value) > 0), "
            f"weights AS (SELECT n, {RAREST} / count(*) AS weight FROM hits GROUP BY n) "
            f"SELECT session, pos & {SEQ_MASK} FROM hits JOIN weights USING (n) "
            "GROUP BY session, pos, at_us ORDER BY sum(weight) DESC, at_us DESC, pos DESC "
            "LIMIT ?",
            (user, _encode_json(list(words)), limit),
        )
        return [(SessionKey(user, session), seq) for session, seq in rows]

    async def unindexed(
        self, user: str, limit: int, sessions: Collection[str] | None = None
    ) -> Sequence[tuple[SessionKey, int]]:
        among = ""
        parameters: list[Any] = [user, limit]
        if sessions is not None:
            among = " AND s.session IN (SELECT w.value FROM json_each(?) AS w)"
            parameters.insert(1, _encode_json(list(sessions)))
        rows = await self._read(
            f"SELECT s.session, m.pos & {SEQ_MASK} FROM actors AS s CROSS JOIN messages AS m ON "
            f"m.pos > (s.sid << {SEQ_BITS}) + s.flushing AND m.pos <= (s.sid << {SEQ_BITS}) + "
            f"{SEQ_MASK} WHERE s.user = ? AND s.session != ''{among} AND m.removed IS NULL AND "
            "m.pruned IS NULL ORDER BY m.at_us DESC, m.pos DESC LIMIT ?",
            parameters,
        )
        return [(SessionKey(user, session), seq) for session, seq in rows]

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        return await self.list_sessions(user, ListingPage())

    async def list_sessions(self, user: str, page: ListingPage) -> Sequence[SessionListing]:
        indexed = page.order != "name" and await self._uses_are_indexed("WHERE user = ?", user)
        rows = await self._read(*session_query(user, page, by_index=indexed))
        large = len(rows) > _IN_THREAD
        return await run_in_thread_if(large, read_session_rows, rows, user, page)

    async def list_users(self, page: ListingPage) -> Sequence[UserListing]:
        rows = await self._read(*user_query(page, by_index=await self._uses_are_indexed("")))
        return await run_in_thread_if(len(rows) > _IN_THREAD, read_user_rows, rows, page)

    async def _uses_are_indexed(self, where: str, *parameters: str) -> bool:  # noqa: ARG002
        """Return whether `actors.used_us` of these actors can be relied on."""
        return False

    async def sessions_to_flush(self, limit: int) -> Sequence[SessionKey]:
        rows = await self._read(
            "SELECT s.user, s.session FROM actors AS s WHERE s.session != '' AND s.flushing < "
            f"(SELECT m.pos & {SEQ_MASK} FROM messages AS m WHERE m.pos BETWEEN s.sid << "
            f"{SEQ_BITS} "
            f"AND (s.sid << {SEQ_BITS}) + {SEQ_MASK} AND m.removed IS NULL ORDER BY m.pos DESC "
            "LIMIT 1) LIMIT ?",
            (limit,),
        )
        return [SessionKey(user, session) for user, session in rows]

    async def sessions_with_fallbacks(self, limit: int) -> Sequence[SessionKey]:
        rows = await self._read(
            "SELECT s.user, s.session FROM folds AS f JOIN actors AS s ON s.sid = f.sid AND "
            "s.generation = f.generation WHERE f.cover IS NOT NULL "
            "GROUP BY s.sid ORDER BY s.sid DESC LIMIT ?",
            (limit,),
        )
        return [SessionKey(user, session) for user, session in rows]

    async def counts(self, user: str | None = None) -> JournalCounts:
        own = "" if user is None else " WHERE s.user = ?"
        who = () if user is None else (user,)
        ((users, sessions),) = await self._read(
            "SELECT count(DISTINCT s.user), count(*) FILTER (WHERE s.session != '') FROM actors "
            f"AS s{own}",
            who,
        )
        of_them = "" if user is None else f"JOIN actors AS s ON s.sid = m.pos >> {SEQ_BITS} {own}"
        ((messages, tokens),) = await self._read(
            f"SELECT count(*), coalesce(sum(m.tokens), 0) FROM messages AS m {of_them}", who
        )
        by_sid = "" if user is None else f"JOIN actors AS s USING (sid) {own}"
        ((summaries,),) = await self._read(
            "SELECT count(*) FILTER (WHERE f.kind IN ('summary', 'entry')) FROM folds AS f "
            f"{by_sid}",
            who,
        )
        ((memories,),) = await self._read(f"SELECT count(*) FROM memories AS m {by_sid}", who)
        ((pending, dead),) = await self._read(
            "SELECT count(*) FILTER (WHERE NOT j.dead), count(*) FILTER (WHERE j.dead) FROM jobs "
            f"AS j {by_sid}",
            who,
        )
        ((keys,),) = await self._read(
            f"SELECT count(*) FILTER (WHERE x.kind = '{KEYED_KIND}') FROM facets AS x {by_sid}", who
        )
        return JournalCounts(
            users, sessions, messages, tokens, summaries, pending, dead, memories, keys
        )

    async def setting(self, name: str) -> str | None:
        rows = await self._read("SELECT value FROM settings WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    async def erasures(self) -> Sequence[Erasure]:
        rows = await self._read(
            "SELECT number, user_key, session_key FROM erasures ORDER BY number"
        )
        return [decode_note(*row) for row in rows]

    async def _referring(self, user: str) -> Sequence[Encoded]:
        """A user's messages that refer to attachments."""
        return await self._read(
            "SELECT m.chat, m.meta FROM actors AS s JOIN messages AS m ON m.pos BETWEEN s.sid << "
            f"{SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {SEQ_MASK} WHERE s.user = ? AND "
            "(instr(m.chat, ?) OR instr(m.meta, ?))",
            (user, MAGIC, MAGIC),
        )

    async def _all_users(self) -> Sequence[str]:
        return [user for (user,) in await self._read("SELECT DISTINCT user FROM actors")]

    async def _read(self, sql: str, parameters: Iterable[Any] = ()) -> list[Any]:
        try:
            return list(await self._reader.execute_fetchall(sql, parameters))
        except (sqlite3.Error, UnicodeDecodeError) as e:  # what SQLite says of damage may quote it
            raise StorageError(f"the journal cannot be read: {e}") from e
        except ValueError as e:
            if type(e) is not ValueError:
                raise
            raise RuntimeClosed("the journal is closed") from e  # aiosqlite says it so


# -- the images of actors: hundreds of actors by one query -----------------------------------------

# Everything about some actors by one statement: an activation is one call to the connection's
# thread. A call costs as much as reading a session's messages: seven statements took 460 µs for a
# session of 50 messages.
#
# A row is its kind, a number to sort by where the order matters (a part of a compound cannot be
# sorted; messages come in the order of their tree), and its columns, padded with NULLs. CROSS JOIN
# keeps the order of the tables, and the plus (no affinity) lets the partial indices be used.
_WIDTH = 16


def _part(kind: int, columns: str, rest: str, *, distinct: str = "") -> str:
    filled = ", NULL" * (_WIDTH - 2 - columns.count(","))
    return f"SELECT {distinct}{kind}, {columns}{filled} FROM {rest}"


_ASKED = "asked AS s CROSS JOIN "
_SELECT_ACTORS = (
    "WITH asked AS MATERIALIZED (SELECT a.sid, a.user, a.session, a.created_us, a.crc, "
    "a.marks_crc, a.generation, a.summarized, "
    "a.folding, a.flushing, a.cleared FROM json_each(?) AS w "
    "JOIN actors AS a ON a.user = w.value ->> 0 AND a.session = coalesce(w.value ->> 1, '')) "
) + " UNION ALL ".join(
    (
        _part(
            ACTOR,
            "0, s.sid, s.user, s.session, s.created_us, s.crc, s.marks_crc, "
            "s.generation, s.summarized, s.folding, s.flushing, s.cleared",
            "asked AS s",
        ),
        _part(
            MESSAGE,
            f"m.removed, {ENTRY_COLUMNS}",
            f"{_ASKED} messages AS m ON m.pos > (s.sid << {SEQ_BITS}) + s.summarized AND m.pos < "
            f"(s.sid + 1) << {SEQ_BITS}",
        ),
        _part(
            SUMMARY,
            f"f.number, {SUMMARY_COLUMNS}",
            f"{_ASKED} folds AS f ON f.sid = s.sid AND f.generation = s.generation AND f.kind IN "
            "('summary', 'entry')",
        ),
        _part(
            DIGEST,
            "n, sid, key",
            "(SELECT s.sid, m.key, row_number() OVER (PARTITION BY s.sid ORDER BY m.pos DESC) AS n "
            f"FROM {_ASKED} messages AS m ON m.pos >> {SEQ_BITS} = +s.sid AND m.key IS NOT NULL) "
            f"WHERE n <= {HOT_KEYS + 1}",
        ),
        _part(
            WITH_IDS,
            "0, s.sid",
            f"{_ASKED} messages AS m ON m.pos >> {SEQ_BITS} = +s.sid AND m.id IS NOT NULL AND "
            "m.removed IS NULL "
            f"AND m.pos & {SEQ_MASK} > s.cleared AND m.pos & {SEQ_MASK} <= s.summarized",
            distinct="DISTINCT ",
        ),
        _part(
            STATE_ITEM,
            f"x.rowid, {STATE_ITEM_COLUMNS}",
            f"{_ASKED} facets AS x ON x.sid = s.sid AND x.kind != '{ENTRY_KIND}'",
        ),
        _part(
            JOB,
            f"j.number, {CHECKED_JOB_COLUMNS}",
            f"{_ASKED} jobs AS j ON j.sid = s.sid WHERE NOT j.dead",
        ),
    )
)


async def restore_actors(
    read: Query, keys: Sequence[Hashable], new_sid: Callable[[], int]
) -> list[SavedActor | Exception]:
    """Return what the journal has of each actor; a new one gets its number from `new_sid`."""
    found_rows = await read(_SELECT_ACTORS, (msgspec.json.encode(keys).decode(),))
    return await save_actors(found_rows, keys, new_sid)
