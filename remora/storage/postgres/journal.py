"""The journal in PostgreSQL: one schema, a writing connection, and a pool that reads.

`writer` has the invariants of writing, `reading` those of reading.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Self

import anyio
import asyncpg

from remora.config import Durability
from remora.errors import CommitFailed, InvalidInput, OutcomeUnknown, OwnershipLost, StorageError
from remora.ids import SessionKey
from remora.runtime.log import LogStatistics
from remora.runtime.threads import run_in_thread
from remora.storage.attachments import Attachments
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
from remora.storage.postgres.connection import READERS, WRITING, Address, connect
from remora.storage.postgres.lease import Lease, Tenure, check_network, check_tenure
from remora.storage.postgres.opening import (
    Ownership,
    check_schema_name,
    check_server,
    migrate,
    open_error,
    take_ownership,
)
from remora.storage.postgres.reading import PostgresReader, Read
from remora.storage.postgres.schema import JOURNAL_ROW
from remora.storage.postgres.writer import JournalWriter
from remora.storage.rows import SEQ_BITS
from remora.storage.sql.queries import Query
from remora.storage.sql.trimming import Archive, choose_batch, trim_beyond


class PostgresJournal(PostgresReader, JournalWriter):
    """Implements `remora.storage.ports.Journal` in one schema of a database. Made by `open`.

    Attributes:
        instance: six hex digits that tell its message ids from another journal's.
        epoch: the number of its owners so far, this one included.
    """

    def __init__(
        self,
        address: Address,
        connection: asyncpg.Connection[Any],
        pool: asyncpg.Pool[Any],
        ownership: Ownership,
        lease: Callable[..., Lease] | None,
        *,
        max_batch_writes: int,
        reconnect_s: float,
    ) -> None:
        PostgresReader.__init__(
            self,
            pool,
            address.schema,
            numbers=ownership.numbers,
            reconnect_s=reconnect_s,
        )
        JournalWriter.__init__(
            self,
            address,
            connection,
            ownership,
            max_batch_writes=max_batch_writes,
            reconnect_s=reconnect_s,
        )
        self.attachments = Attachments(
            BlobRows(self._read, ownership.epoch), self, self._referring, self._all_users
        )
        self._lease = None
        if lease is not None:
            self._lease = lease(owned=self._owned, known=lambda: self.commit_number)
        if self._lease is not None:
            self._lease.start()

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        schema: str = "remora",
        memory: str = "",
        durability: Durability = "power",
        command_timeout_s: float = 10.0,
        reconnect_s: float = 15.0,
        max_batch_writes: int = 8_192,
        first_settings: Mapping[str, str] | None = None,
        lease_s: float = 10.0,
        wait_s: float | None = None,
        address: str = "",
    ) -> Self:
        """Open or create a journal, bring its schema up to date, and own it until `aclose`.

        While another process owns it, this waits for that one's lease to end.

        Args:
            dsn: the address, ``postgresql://user@host/database``. Several hosts may be named; the
                one that takes writes is used.
            schema: that holds the journal and nothing else; it is made if it does not exist.
            memory: whose journal it is. A journal that was made under a name is opened under that
                name only.
            durability: ``power`` refuses a server that acknowledges commits before they are on the
                disk.
            command_timeout_s: after so many seconds without an answer a connection counts as
                broken.
            reconnect_s: how long a commit and a query wait for PostgreSQL to come back.
            max_batch_writes: writes joined in one group commit.
            first_settings: what a new journal's settings are to be; those that exist stay.
            lease_s: others wait so long for this process when it renews nothing, and it answers
                for two thirds of that. 0: no lease, and who opens the journal next takes it over.
            wait_s: how long to wait for the owner's lease to end; None for as long as that of a
                process that has died lasts, infinity for ever.
            address: where this process takes connections, for `remora owners`.

        Raises:
            ConfigError: the server, the role or the schema cannot be used; the text says why.
            JournalTooNew: a newer remora wrote it; it was not touched.
            StorageError: PostgreSQL cannot be reached, or another process owns the journal and
                did not leave in time.
        """
        if min(command_timeout_s, reconnect_s) <= 0 or max_batch_writes < 1:
            raise InvalidInput(
                "command_timeout_s, reconnect_s and max_batch_writes must be above 0"
            )
        tenure = Tenure(lease_s, wait_s, address)
        check_tenure(tenure, command_timeout_s)
        place = Address(dsn, check_schema_name(schema), command_timeout_s)
        connections: list[asyncpg.Connection[Any]] = []
        try:
            writer = await connect(place)
            connections.append(writer)
            other = await connect(place)
            connections.append(other)
            await check_server(writer, other, durability)
            if lease_s:
                await check_network(writer, lease_s)
            await migrate(writer, schema, tenure)
            ownership = await take_ownership(writer, schema, memory, first_settings or {}, tenure)
            lease = None
            if lease_s:
                lease = partial(
                    Lease, place, other, ownership.epoch, lease_s, granted=ownership.granted
                )
            else:
                await other.close()
            pool = await asyncpg.create_pool(
                dsn,
                min_size=0,  # it would log a traceback for each failure to keep more
                max_size=READERS,
                timeout=command_timeout_s,
                command_timeout=command_timeout_s,
                reset=_keep,
                target_session_attrs=WRITING,
            )
        except BaseException as e:
            for connection in connections:
                connection.terminate()
            error = open_error(e, place)
            if error is None:
                raise
            raise error from e
        return cls(
            place,
            writer,
            pool,
            ownership,
            lease,
            max_batch_writes=max_batch_writes,
            reconnect_s=reconnect_s,
        )

    def statistics(self) -> LogStatistics:
        return self.meter.figures(len(self._queue), lost=str(self._owned.lost or ""))

    # -- settings ----------------------------------------------------------------------------------

    async def init_setting(self, name: str, value: str) -> str:
        current = await self.setting(name)
        if current is not None:
            self._owned.check()
            return current
        await self._set({name: value}, only_new=True)
        found = await self.setting(name)
        assert found is not None
        return found

    async def change_settings(self, settings: Mapping[str, str]) -> None:
        if settings:
            await self._set(settings, only_new=False)

    async def _set(self, settings: Mapping[str, str], *, only_new: bool) -> None:
        async def work() -> None:
            await self._change(
                "SELECT remora.set_settings($1, $2, $3, $4, $5)",
                list(settings),
                [value.encode() for value in settings.values()],
                only_new,
            )

        try:
            await self.run_exclusively(work)
        except OwnershipLost:
            raise
        except (CommitFailed, OutcomeUnknown) as e:
            raise StorageError(f"the journal's settings cannot be changed ({e})") from e

    # -- erasure and retention ---------------------------------------------------------------------

    async def erase(self, user: str, session: str | None = None) -> Erased:
        async def work() -> Erased:
            self._owned.check()
            erased, sids = await delete_rows(self._read, self._change, user, session)
            self._erased.update(sids)
            return erased

        async with self.attachments.removing([user], session, whole=session is None):
            erased = await self.run_exclusively(work)
            try:
                await self._delete_messages()
            except CommitFailed as e:
                raise OutcomeUnknown(f"not all messages are deleted yet ({e})") from e
        return erased

    async def _delete_messages(self) -> None:
        """Delete what erasures have left to do, of all who asked for them."""

        async def work() -> tuple[int, bool]:
            return await delete_messages(self._change)

        more = bool(await self._read("SELECT 1 FROM remora.erased LIMIT 1"))
        while more:
            _, more = await self.run_exclusively(work)

    async def finish_erasure(self, number: int) -> None:
        async def work() -> None:
            await self._change("SELECT remora.finish_erasure($1, $2, $3)", number)

        await self.run_exclusively(work)

    async def scrub(self) -> None:
        """Delete what an interrupted `erase` left.

        Bytes of deleted rows stay in pages, logs, replicas and backups until PostgreSQL's
        administrator removes them (docs/how-to/postgresql.md).
        """
        await self._delete_messages()
        await self.attachments.sweep()

    async def trim(self, limits: Retention, now_us: int) -> int:
        archive = Archive(self.query)

        async def remove(wanted: Mapping[int, int]) -> tuple[int, dict[int, int]]:
            users = await archive.attaching(wanted)

            async def work() -> tuple[int, dict[int, int]]:
                self._owned.check()
                return await trim_rows(self.query, self._change, wanted)

            async with self.attachments.removing(users):
                return await self.run_exclusively(work)

        count = await trim_beyond(archive, limits, now_us, remove)
        await self.attachments.sweep()
        return count

    # -- upkeep ------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Notice a newer owner or lost commits, though nothing is written."""
        if self._owned.lost is not None:
            return
        known = self.commit_number
        ((epoch, commits),) = await self._read(JOURNAL_ROW)
        self._owned.check_row(epoch, commits, known)

    def check_lease(self) -> None:
        self._owned.check()
        if self._lease is not None:
            self._lease.check()

    async def _reconnected(self) -> None:
        await self._pool.expire_connections()

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self._finish()
            finally:
                self._disconnect()
                if self._lease is not None:
                    await self._lease.release()
                self._pool.terminate()


async def _keep(_: object) -> None:
    """Leave a reading connection as it is: it has no state, and to reset it takes a round trip."""


# -- attachments in a table of the journal's schema ------------------------------------------------


class BlobRows:
    """Implements `remora.storage.attachments.BlobStore`.

    Args:
        query: runs a statement; it may run one twice.
        epoch: of the owner; nothing is removed for an earlier one.
    """

    def __init__(self, query: Read, epoch: int) -> None:
        self._query = query
        self._epoch = epoch

    async def put(self, name: str, blobs: Mapping[bytes, bytes]) -> None:
        """See `BlobStore`."""
        for digest, data in blobs.items():
            await self._query(
                "INSERT INTO remora.attachments (owner, digest, data) VALUES ($1, $2, $3) "
                "ON CONFLICT DO NOTHING",
                name,
                digest,
                data,
            )

    async def get(self, name: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """See `BlobStore`."""
        rows = await self._query(
            "SELECT a.digest, a.data FROM remora.attachments AS a WHERE a.owner = $1 AND "
            "a.digest = ANY($2::bytea[])",
            name,
            list(digests),
        )
        return dict(rows)

    async def digests(self, name: str) -> set[bytes]:
        """See `BlobStore`."""
        sql = "SELECT a.digest FROM remora.attachments AS a WHERE a.owner = $1"
        return {digest for (digest,) in await self._query(sql, name)}

    async def remove(self, name: str, digests: Collection[bytes]) -> None:
        """See `BlobStore`."""
        await self._query(
            "DELETE FROM remora.attachments AS a WHERE a.owner = $1 AND a.digest = "
            "ANY($2::bytea[]) AND EXISTS (SELECT 1 FROM remora.journal WHERE epoch = $3 FOR SHARE)",
            name,
            list(digests),
            self._epoch,
        )

    async def names(self) -> list[str]:
        """See `BlobStore`."""
        rows = await self._query("SELECT DISTINCT a.owner FROM remora.attachments AS a ORDER BY 1")
        return [name for (name,) in rows]


# -- erasure: deletes a user or a session, in commits of the writer (G13) --------------------------
#
# The first commit deletes the actors and all their rows but the messages, which nothing finds
# without their actor; it leaves the note, and the numbers of the actors. Messages are then deleted
# in slices, so that other sessions' appends wait for one slice at most. What is to be deleted is
# read before: between two commits of its owner nothing changes in a journal.

_SLICE_MESSAGES = 500  # some milliseconds
_SLICE_ACTORS = 200


async def delete_rows(
    read: Read, change: Callable[..., Awaitable[Any]], user: str, session: str | None
) -> tuple[Erased, Sequence[int]]:
    """Delete their rows but the messages, and leave the note.

    Also returns the numbers of their actors.
    """
    rows = await read("SELECT session, sid FROM remora.actors AS s WHERE s.user = $1", user)
    found: dict[str, int] = {name: sid for name, sid in rows}  # noqa: C416
    own, items = None, list[tuple[str, bytes]]()
    if session is not None:
        own = found.get("")
        kept = await read(
            "SELECT kind, name, value FROM remora.state_items WHERE sid = $1 AND "
            "kind = ANY($2::text[])",
            own,
            list(ERASED_KINDS),
        )
        sid = found.get(session, -1)
        ((newest,),) = await read(
            f"SELECT coalesce(max(pos) & {SEQ_MASK}, 0) FROM remora.messages "
            f"WHERE pos BETWEEN $1::bigint << {SEQ_BITS} AND (($1::bigint + 1) << {SEQ_BITS}) - 1",
            sid,
        )
        key = SessionKey(user, session)
        named = [(kind, name.decode(), value) for kind, name, value in kept]
        gone = await run_in_thread(lambda: find_erased(key, newest, named))
        items = [(kind, name.encode()) for kind, name in gone]
        found = {session: found[session]} if session in found else {}
    ((messages,),) = await read(
        "SELECT count(*) FROM unnest($1::bigint[]) AS w JOIN remora.messages AS m ON m.pos BETWEEN "
        f"w << {SEQ_BITS} AND ((w + 1) << {SEQ_BITS}) - 1",
        list(found.values()),
    )
    keys = await read("SELECT value FROM remora.settings WHERE name = $1", DIGEST_KEYS)
    owners = encode_owners(user, session, keys[0][0].decode() if keys else None)
    answer = await change(
        "SELECT remora.erase($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        list(found.values()),
        own,
        session,
        [kind for kind, _ in items],
        [name for _, name in items],
        ERROR_REMOVED.encode(),
        *owners,
    )
    if answer is None:
        raise OutcomeUnknown(
            "the connection broke when all was deleted but the messages; erase again"
        )
    note, actors, summaries, state_items, memories, jobs = answer
    removed = dict.fromkeys(ERASED_TABLES, 0)
    removed.update(
        actors=actors, summaries=summaries, state_items=state_items, memories=memories, jobs=jobs
    )
    removed["messages"] = messages
    return Erased(decode_note(note, *owners), removed), list(found.values())


async def delete_messages(change: Callable[..., Awaitable[Any]]) -> tuple[int, bool]:
    """Delete some messages of erased actors: how many went, and whether there may be more."""
    answer = await change(
        "SELECT remora.delete_messages($1, $2, $3, $4)", _SLICE_MESSAGES, _SLICE_ACTORS
    )
    return (0, True) if answer is None else (answer[0], bool(answer[1]))


async def trim_rows(
    query: Query, change: Callable[..., Awaitable[Any]], wanted: Mapping[int, int]
) -> tuple[int, dict[int, int]]:
    """Delete up to these messages, a bounded number: how many went, and what is left to do."""
    chosen, left = await choose_batch(Archive(query), wanted)
    if not chosen:
        return 0, left
    gone = await change(
        "SELECT remora.trim($1, $2, $3, $4)",
        [one.sid for one in chosen],
        [one.through for one in chosen],
    )
    if gone is None:  # stored, and its answer was lost
        gone = sum(one.through - one.trimmed for one in chosen)
    return gone, left
