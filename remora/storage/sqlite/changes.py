"""The changes of a journal besides writes: settings, erasures (G13) and retention.

Each change is a transaction of its own, between the commits of writes. The first transaction of an
erasure deletes the actors and all their rows but the messages, which nothing finds without their
actor; it leaves the note, and the numbers of the actors in a setting. Messages are then deleted in
slices, so that other sessions' appends wait for one slice at most. Whatever ends the process in
between, `scrub` goes on with the numbers in the setting.
"""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from remora.errors import CommitFailed, JournalDamaged, OutcomeUnknown, OwnershipLost, StorageError
from remora.ids import SessionKey
from remora.runtime.threads import run_in_thread
from remora.storage.attachments import Attachments, BlobStore
from remora.storage.decoding import SEQ_MASK
from remora.storage.erasure_notes import (
    DIGEST_KEYS,
    ERASED_KINDS,
    ERASED_TABLES,
    ERROR_REMOVED,
    decode_note,
    encode_owners,
    find_erased,
)
from remora.storage.journal_port import Erased, Retention
from remora.storage.rows import SEQ_BITS
from remora.storage.sql.trimming import Archive, choose_batch, trim_beyond
from remora.storage.sqlite.reading import QUERIES, SqliteReader, Statements, bind

T = TypeVar("T")

ERASED_ACTORS = "erased_actors"
"""The setting that has the numbers of the actors whose messages are to be deleted, as JSON."""

_SLICE_MESSAGES = 500  # some milliseconds
_SLICE_ACTORS = 200
_BY_ACTOR = ("summaries", "state_items", "memories", "jobs", "actors")
_SELECT_SETTING = "SELECT value FROM settings WHERE name = ?"
_DELETE_SOME = (
    "DELETE FROM messages WHERE pos IN (SELECT m.pos FROM json_each(?) AS w CROSS JOIN messages "
    f"AS m ON m.pos BETWEEN w.value << {SEQ_BITS} AND ((w.value + 1) << {SEQ_BITS}) - 1 LIMIT ?) "
    f"RETURNING pos >> {SEQ_BITS}"
)
_PUT_SETTING = "INSERT INTO settings VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_decode_sids = msgspec.json.Decoder(list[int]).decode


class SqliteChanges(SqliteReader):
    """The settings, erasures and retention of a journal that also writes.

    Args:
        reader: the connection for queries.
        writer: the connection for changes; used within transactions only.
        numbers: of the actors to come.
        blobs: where the attachments are.
    """

    _erased: set[int]
    """Actors erased since opening."""

    def __init__(
        self, reader: Statements, writer: Statements, *, numbers: Iterator[int], blobs: BlobStore
    ) -> None:
        super().__init__(reader, numbers=numbers)
        self._statements = writer
        self._deleted: dict[int, int] = {}
        """How many messages went, by actors that are erased: several erasures share a pass."""
        self.attachments = Attachments(blobs, self, self._referring, self._all_users)

    @abstractmethod
    def check_ownership(self) -> None:
        """Raise `OwnershipLost` where that is known."""

    @abstractmethod
    async def transaction(
        self, work: Callable[[], Coroutine[Any, Any, T]], then: Callable[[T], None] = ...
    ) -> T:
        """Run `work` as one commit, and `then` before any other write.

        Raises:
            CommitFailed: nothing was changed.
            OutcomeUnknown: all of it was done, or nothing.
        """

    async def _compute(self, function: Callable[[], T]) -> T:
        """Call what may take long, within a transaction."""
        return await run_in_thread(function)

    @abstractmethod
    async def _release_pages(self) -> None:
        """Give back the room of what was deleted."""

    # -- settings ----------------------------------------------------------------------------------

    async def init_setting(self, name: str, value: str) -> str:
        current = await self.setting(name)
        if current is not None:
            self.check_ownership()
            return current

        async def work() -> str:
            insert = "INSERT OR IGNORE INTO settings VALUES (?, ?)"
            await self._statements.execute(insert, (name, value))
            ((found,),) = await self._statements.execute_fetchall(_SELECT_SETTING, (name,))
            return str(found)

        return await self._write_settings(work)

    async def change_settings(self, settings: Mapping[str, str]) -> None:
        if not settings:
            return

        async def work() -> None:
            await self._statements.executemany(_PUT_SETTING, settings.items())

        await self._write_settings(work)

    async def _write_settings(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self.transaction(work)
        except OwnershipLost:
            raise
        except (CommitFailed, OutcomeUnknown) as e:
            raise StorageError(f"the journal's settings cannot be changed ({e})") from e

    # -- erasure and retention ---------------------------------------------------------------------

    async def erase(self, user: str, session: str | None = None) -> Erased:
        async def work() -> tuple[Erased, Sequence[int]]:
            return await _delete_rows(self._statements, user, session, self._compute)

        def refuse_writes(outcome: tuple[Erased, Sequence[int]]) -> None:
            self._erased.update(outcome[1])

        async with self.attachments.removing([user], session, whole=session is None):
            erased, sids = await self.transaction(work, refuse_writes)
            self._deleted.update(dict.fromkeys(sids, 0))
            try:
                await self._delete_messages()
            except CommitFailed as e:
                raise OutcomeUnknown(f"not all messages are deleted yet ({e})") from e
            finally:
                erased.removed["messages"] = sum([self._deleted.pop(sid) for sid in sids])
        return erased

    async def _delete_messages(self) -> None:
        """Delete what erasures have left to do, of all who asked for them."""

        async def work() -> tuple[Counter[int], bool]:
            return await _delete_message_slice(self._statements)

        more = True
        while more:
            gone, more = await self.transaction(work)
            for sid in gone.keys() & self._deleted.keys():
                self._deleted[sid] += gone[sid]

    async def finish_erasure(self, number: int) -> None:
        async def work() -> None:
            await self._statements.execute("DELETE FROM erasures WHERE number = ?", (number,))

        await self.transaction(work)

    async def scrub(self) -> None:
        await self._delete_messages()
        await self.attachments.sweep()

    async def trim(self, limits: Retention, now_us: int) -> int:
        async def remove(wanted: Mapping[int, int]) -> tuple[int, dict[int, int]]:
            async with self.attachments.removing(await archive.attaching(wanted)):
                return await self.transaction(lambda: _trim_rows(self._statements, wanted))

        archive = Archive(self.query)
        count = await trim_beyond(archive, limits, now_us, remove)
        await self.attachments.sweep()
        if count:
            await self._release_pages()
        return count


# -- erasing, within a transaction -----------------------------------------------------------------


async def _delete_rows(
    writer: Statements,
    user: str,
    session: str | None,
    compute: Callable[[Callable[[], list[tuple[str, str]]]], Awaitable[list[tuple[str, str]]]],
) -> tuple[Erased, Sequence[int]]:
    """Delete their rows but the messages, and leave the note.

    Also returns the numbers of their actors.
    """
    removed = dict.fromkeys(ERASED_TABLES, 0)

    async def delete(table: str, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            removed[table] += (await writer.executemany(statement, rows)).rowcount

    # Numbers of actors are part of the ids of messages and jobs, and never given out again.
    await writer.execute(
        "INSERT INTO settings SELECT 'last_sid', coalesce(max(sid), 0) FROM actors WHERE true "
        "ON CONFLICT DO UPDATE SET value = max(CAST(value AS INTEGER), CAST(excluded.value AS "
        "INTEGER))"
    )
    rows = await writer.execute_fetchall("SELECT session, sid FROM actors WHERE user = ?", (user,))
    found: dict[str, int] = {name: sid for name, sid in rows}  # noqa: C416
    own = found.get("")
    if session is not None:
        if own is not None:
            state_items = await writer.execute_fetchall(
                "SELECT kind, name, value FROM state_items WHERE sid = ? AND kind IN (?, ?, ?)",
                (own, *ERASED_KINDS),
            )
            sid = found.get(session, -1)
            ((newest,),) = await writer.execute_fetchall(
                f"SELECT coalesce(max(pos) & {SEQ_MASK}, 0) FROM messages "
                f"WHERE pos BETWEEN ? << {SEQ_BITS} AND ((? + 1) << {SEQ_BITS}) - 1",
                (sid, sid),
            )
            key = SessionKey(user, session)
            items = [(kind, name, value) for kind, name, value in state_items]
            gone = await compute(lambda: find_erased(key, newest, items))
            erased = [(own, kind, name) for kind, name in gone]
            await delete(
                "state_items",
                "DELETE FROM state_items WHERE sid = ? AND kind = ? AND name = ?",
                erased,
            )
            await delete(
                "memories", "DELETE FROM memories WHERE sid = ? AND session = ?", [(own, session)]
            )
            await writer.execute(
                "UPDATE jobs SET error = ? WHERE sid = ? AND error != ''", (ERROR_REMOVED, own)
            )
        found = {session: found[session]} if session in found else {}
    sids = [(sid,) for sid in found.values()]
    for table in _BY_ACTOR:
        await delete(table, f"DELETE FROM {table} WHERE sid = ?", sids)
    if sids:
        await _set_erased_actors(writer, [*await _erased_actors(writer), *(sid for (sid,) in sids)])
    keys = await writer.execute_fetchall(_SELECT_SETTING, (DIGEST_KEYS,))
    owners = encode_owners(user, session, next((value for (value,) in keys), None))
    cursor = await writer.execute(
        "INSERT INTO erasures (user_key, session_key) VALUES (?, ?)", owners
    )
    assert cursor.lastrowid is not None
    return Erased(decode_note(cursor.lastrowid, *owners), removed), [sid for (sid,) in sids]


async def _delete_message_slice(writer: Statements) -> tuple[Counter[int], bool]:
    """Delete some messages of erased actors, within a transaction.

    How many of each actor went, and whether there may be more.
    """
    sids = await _erased_actors(writer)
    if not sids:
        return Counter(), False
    some = msgspec.json.encode(sids[:_SLICE_ACTORS]).decode()
    rows = await writer.execute_fetchall(_DELETE_SOME, (some, _SLICE_MESSAGES))
    gone = Counter(sid for (sid,) in rows)
    if gone.total() < _SLICE_MESSAGES:
        del sids[:_SLICE_ACTORS]
        await _set_erased_actors(writer, sids)
    return gone, bool(sids)


def read_erased_actors(database: sqlite3.Connection) -> list[int]:
    """The numbers of actors whose messages are still to be deleted."""
    return _decode_rows(database.execute(_SELECT_SETTING, (ERASED_ACTORS,)))


async def _erased_actors(writer: Statements) -> list[int]:
    return _decode_rows(await writer.execute_fetchall(_SELECT_SETTING, (ERASED_ACTORS,)))


async def _set_erased_actors(writer: Statements, sids: Sequence[int]) -> None:
    value = msgspec.json.encode(sids).decode()
    await writer.execute(_PUT_SETTING, (ERASED_ACTORS, value))


def _decode_rows(rows: Iterable[Any]) -> list[int]:
    try:
        return next((_decode_sids(value) for (value,) in rows), [])
    except msgspec.DecodeError as e:
        raise JournalDamaged(
            f"the setting {ERASED_ACTORS} of the journal is not as it was written ({e}): messages "
            "that were being erased are not found; restore a backup"
        ) from e


# -- trimming, within a transaction ----------------------------------------------------------------


async def _trim_rows(writer: Statements, wanted: Mapping[int, int]) -> tuple[int, dict[int, int]]:
    """Delete up to these messages, a bounded number, within a transaction.

    How many went, and what is left to do.
    """

    async def query(name: str, /, **parameters: Any) -> list[Any]:
        return list(await writer.execute_fetchall(QUERIES[name], bind(parameters)))

    chosen, left = await choose_batch(Archive(query), wanted)
    count = 0
    for one in chosen:
        delete = "DELETE FROM messages WHERE pos BETWEEN ? AND ?"
        count += (await writer.execute(delete, one.positions)).rowcount
        await writer.execute("UPDATE actors SET trimmed = ? WHERE sid = ?", (one.through, one.sid))
    return count, left
