"""A memory on several machines: how many shards it has, and the nodes that share them.

Invariants
----------
1. The number of shards is written once, before there is a shard.
2. A shard is a journal in a schema of its own, with a lease of its own. A memory of one shard has
   its journal in the same schema as these tables.
3. A node's row says that the process lives, and decides nothing: who owns a shard is decided by the
   lease's row alone (`remora.storage.postgres.lease`).
4. All times are PostgreSQL's.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import asyncpg
import msgspec

from remora.config import Durability
from remora.errors import ConfigError, InvalidInput, JournalTooNew
from remora.storage.layout import MAX_SHARDS, ShardLayout, ShardPlace
from remora.storage.membership import NodeInfo, NodeState, Placement, ShardLoad
from remora.storage.postgres.connection import Address, connect
from remora.storage.postgres.lease import Tenure, check_network, check_tenure
from remora.storage.postgres.opening import (
    MEMORY_NAME,
    TRIES,
    check_memory_name,
    check_schema_name,
    check_server,
    migrate,
    open_error,
    read_format,
    try_script,
)
from remora.storage.postgres.schema import FORMAT, in_schema

# -- a connection for what is no journal's: made when it is needed, and again when it broke --------

_Found = TypeVar("_Found")


class Database:
    """One connection. Use it with ``with``, or `close` it.

    Args:
        address: of the database.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection: asyncpg.Connection[Any] | None = None

    async def use(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[_Found]]) -> _Found:
        """Return what `work` returns. If it fails, the next call connects again.

        Raises:
            ConfigError, StorageError: the database cannot be used; the text says why.
        """
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect(self.address)
            return await work(self._connection)
        except BaseException as e:
            self.close()
            error = open_error(e, self.address)
            if error is None:
                raise
            raise error from e

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_FORMAT = 1
_INSTANCE = re.compile("[0-9a-f]{6}")
_PATIENCE_S = 3.0  # a reader's connection that does not answer for so long is broken
_LONGEST_NAME = 36  # a shard's has up to four more
_TABLES = f"""
CREATE TABLE remora.cluster (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format int NOT NULL DEFAULT {_FORMAT},
    shards int NOT NULL,
    instance text NOT NULL,
    memory text NOT NULL DEFAULT ''
);
CREATE TABLE remora.nodes (
    address text PRIMARY KEY,
    node text NOT NULL,
    owner text NOT NULL,
    release text NOT NULL,
    format int NOT NULL,
    fingerprint text NOT NULL,
    state text NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    seconds float8 NOT NULL,            -- how long a beat lasts
    until timestamptz NOT NULL,
    loads json NOT NULL DEFAULT '[]'
) WITH (fillfactor = 20)
"""
_SECONDS = "* interval '1 second'"
# while there was no server, nobody could say that he lives; a clock may have been set back since
_STARTED = f"""CASE WHEN pg_postmaster_start_time() < clock_timestamp()
    THEN pg_postmaster_start_time() + n.seconds {_SECONDS} END"""
_LIVES = f"greatest(n.until, {_STARTED}) > clock_timestamp()"
_JOIN = f"""
INSERT INTO remora.nodes
    (address, node, owner, release, format, fingerprint, state, seconds, until)
VALUES ($1, $2, $3, $4, $5, $6, 'serving', $7, clock_timestamp() + $7::float8 {_SECONDS})
ON CONFLICT (address) DO UPDATE SET node = excluded.node, owner = excluded.owner,
    release = excluded.release, format = excluded.format, fingerprint = excluded.fingerprint,
    state = excluded.state, since = clock_timestamp(), seconds = excluded.seconds,
    until = excluded.until, loads = '[]'
"""
# where the clock was set back, what was renewed before lasts as if it had been renewed now
_BOUND = f"""UPDATE {{table}} AS n SET until = clock_timestamp() + n.seconds {_SECONDS}
    WHERE n.until > clock_timestamp() + n.seconds {_SECONDS}"""
_BEAT = f"""
WITH gone AS (
    DELETE FROM remora.nodes AS n
    WHERE n.address <> $1 AND n.until < clock_timestamp() - n.seconds {_SECONDS} AND NOT {_LIVES}
), late AS (
    {_BOUND.format(table="remora.nodes")} AND n.address <> $1
), me AS (
    UPDATE remora.nodes AS n SET state = $3, loads = $4::text::json,
        until = clock_timestamp() + n.seconds {_SECONDS}
    WHERE n.address = $1 AND n.node = $2 RETURNING 1
)"""
_LEAVE = "DELETE FROM remora.nodes WHERE address = $1 AND node = $2"
_NODES = f"""
coalesce((SELECT json_agg(json_build_array(n.address, n.node, n.owner, n.release, n.format,
    n.fingerprint, n.state, n.since, n.loads, n.until) ORDER BY n.address)
    FROM remora.nodes AS n WHERE {_LIVES}), '[]'::json)"""
_LEASE = f"""
SELECT {{number}} AS number, l.epoch, l.owner, l.address, l.since, CASE WHEN l.until > '-infinity'
    THEN greatest(extract(epoch FROM greatest(l.until, {_STARTED.replace("n.", "l.")})
        - clock_timestamp())::float8, 0) END AS left_s
FROM remora.lease AS l"""
_decode = msgspec.json.Decoder(Placement).decode


def _select_placement(schema: str, layout: ShardLayout | None) -> str:
    """An expression: a `Placement` as JSON.

    Args:
        schema: of the memory.
        layout: of the memory; None for a journal that no node has served.
    """
    divided = layout or ShardLayout(shards=1, instance="")
    leases = " UNION ALL ".join(
        in_schema(_LEASE.format(number=number), divided.schema(schema, number))
        for number in range(divided.shards)
    )
    head = "1, ''" if layout is None else "c.shards, c.instance"
    nodes = "'[]'::json" if layout is None else in_schema(_NODES, schema)
    placement = (
        f"json_build_array({head}, {nodes}, (SELECT json_agg(json_build_array(l.number, l.epoch, "
        f"l.owner, l.address, l.since, l.left_s) ORDER BY l.number) FROM ({leases}) AS l))::text"
    )
    return placement if layout is None else f"{placement} FROM {schema}.cluster AS c"


def _make_beat(schema: str, layout: ShardLayout) -> str:
    """Return the statement of a beat; it has whether the node is one, and a `Placement` as JSON."""
    bounds = "".join(
        f", late_{number} AS ({_BOUND.format(table=f'{layout.schema(schema, number)}.lease')})"
        for number in range(layout.shards)
    )
    placement = _select_placement(schema, layout)
    return f"{in_schema(_BEAT, schema)}{bounds} SELECT (SELECT count(*) FROM me), {placement}"


# -- making it -------------------------------------------------------------------------------------


async def open_cluster(
    dsn: str,
    schema: str,
    shards: int,
    *,
    memory: str = "",
    lease_s: float,
    durability: Durability,
    instance: str = "",
    settings: Mapping[str, str] | None = None,
) -> ShardLayout:
    """The memory in a schema; its tables are made if there is none.

    Args:
        dsn: of the database.
        schema: of the memory. Several shards are in schemas of their own, whose names go on with
            their numbers: ``remora_00``.
        shards: how many it has.
        memory: its name; see `PostgresJournal.open`.
        lease_s: of its shards' leases.
        durability: of their commits.
        instance: what the ids of the memory's messages begin with; empty to draw it for a new one.
        settings: more that new journals of several shards begin with.

    Raises:
        ConfigError: the server, the role or the schema cannot be used, or the memory has another
            number of shards, another name or another instance; the text says what to do.
        JournalTooNew: a newer remora wrote it.
        StorageError: PostgreSQL cannot be reached.
    """
    if not 1 <= shards <= MAX_SHARDS:
        raise ConfigError(
            f"cluster.shards must be 1 to {MAX_SHARDS}, not {shards}", key="cluster.shards"
        )
    if shards > 1 and len(schema) > _LONGEST_NAME:
        raise ConfigError(
            f"journal.schema must have up to {_LONGEST_NAME} letters for a memory in shards",
            key="journal.schema",
        )
    if instance and not _INSTANCE.fullmatch(instance):
        raise InvalidInput(f"instance must be six hex digits, not {instance!r:.80}")
    address = Address(dsn, check_schema_name(schema), min(lease_s, 10.0))
    check_tenure(Tenure(lease_s), address.command_timeout_s)

    async def open_(writer: asyncpg.Connection[Any]) -> ShardLayout:
        other = await connect(address)
        try:
            await check_server(writer, other, durability)
        finally:
            other.terminate()
        await check_network(writer, lease_s)
        layout = await _make_tables(writer, schema, shards, instance)
        for place in layout.places:
            await _make_shard(writer, layout.schema(schema, place.number), place, settings or {})
        await _check_memory(writer, schema, layout, memory)
        return layout

    with Database(address) as database:
        return await database.use(open_)


async def _make_tables(
    writer: asyncpg.Connection[Any], schema: str, shards: int, instance: str
) -> ShardLayout:
    for attempt in range(TRIES):
        found = await _read_cluster(writer, schema)
        if found is not None:
            _check_number(schema, found.shards, shards)
            if instance not in {"", found.instance}:
                raise ConfigError(
                    f"the schema {schema} has another memory: name another journal.schema",
                    key="journal.schema",
                )
            return found
        if await read_format(writer, schema) and shards > 1:
            raise ConfigError(
                f"the schema {schema} has a memory in one piece, not in {shards} shards: leave "
                "cluster.shards out, or name another journal.schema",
                key="cluster.shards",
            )
        name = instance or secrets.token_hex(3) if shards > 1 else ""
        insert = f"INSERT INTO remora.cluster (shards, instance) VALUES ({shards}, '{name}')"
        script = f"BEGIN; CREATE SCHEMA IF NOT EXISTS {schema}; "
        script += in_schema(f"{_TABLES}; {insert}; COMMIT", schema)
        await try_script(writer, script, last=attempt == TRIES - 1)
    raise AssertionError("the last attempt returns or raises")


async def _read_cluster(connection: asyncpg.Connection[Any], schema: str) -> ShardLayout | None:
    try:
        row = await connection.fetchrow(f"SELECT format, shards, instance FROM {schema}.cluster")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None
    assert row is not None
    if row["format"] > _FORMAT:
        raise JournalTooNew(
            f"the memory in the schema {schema} is shared in the format {row['format']}, and this "
            f"remora reads up to {_FORMAT}: upgrade remora on this machine",
            found=row["format"],
            supported=_FORMAT,
        )
    return ShardLayout(shards=row["shards"], instance=row["instance"])


def _check_number(schema: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ConfigError(
            f"the memory in the schema {schema} has {found} shard{'s'[: found - 1]}, which was "
            f"fixed when it was made, and cluster.shards says {wanted}: configure {found} on all "
            "machines, or name another journal.schema for another memory",
            key="cluster.shards",
        )


async def _make_shard(
    writer: asyncpg.Connection[Any], schema: str, place: ShardPlace, more: Mapping[str, str]
) -> None:
    """Make a shard's journal if there is none. One of an older format waits for its next owner."""
    found = await read_format(writer, schema)
    if not found:
        await migrate(writer, schema, Tenure(0, 0))
    elif found > FORMAT:
        raise JournalTooNew(
            f"the journal in the schema {schema} has format {found}, this remora reads up to "
            f"{FORMAT}: upgrade remora on this machine",
            found=found,
            supported=FORMAT,
        )
    if place.shards == 1:
        return
    settings = {MEMORY_NAME: place.title, **place.settings, **more}
    # a journal that had an owner has its settings, or is another memory's
    await writer.execute(
        in_schema(
            "INSERT INTO remora.settings (name, value) SELECT u.* FROM unnest($1::text[], "
            "$2::bytea[]) AS u WHERE EXISTS (SELECT 1 FROM remora.journal WHERE epoch = 0) "
            "ON CONFLICT DO NOTHING",
            schema,
        ),
        list(settings),
        [value.encode() for value in settings.values()],
    )
    name = await writer.fetchval(
        in_schema("SELECT value FROM remora.settings WHERE name = $1", schema), MEMORY_NAME
    )
    if name is None or name.decode() != place.title:
        raise ConfigError(
            f"the schema {schema} has the journal of another memory, and would be the "
            f"{place.title}: name another journal.schema, or remove that one",
            key="journal.schema",
        )


async def _check_memory(
    writer: asyncpg.Connection[Any], schema: str, layout: ShardLayout, name: str
) -> None:
    """Check whose memory it is. One in shards gets its name here, a single journal by its owner."""
    if layout.shards == 1:
        sql = in_schema("SELECT value FROM remora.settings WHERE name = $1", schema)
        value = await writer.fetchval(sql, MEMORY_NAME)
        check_memory_name(schema, "" if value is None else value.decode(), name)
        return
    if name:
        await writer.execute(f"UPDATE {schema}.cluster SET memory = $1 WHERE memory = ''", name)
    check_memory_name(schema, await writer.fetchval(f"SELECT memory FROM {schema}.cluster"), name)


# -- nodes -----------------------------------------------------------------------------------------


class Membership:
    """A node's part in a memory, over one connection. `join` first.

    Args:
        dsn: of the database.
        schema: of the memory.
        layout: of the memory.
        address: where this node takes connections.
        release: of this node's remora.
        fingerprint: of the secret that it knows.
        lease_s: others wait so long for a node that says nothing.

    Attributes:
        me: this node, as it joins.
    """

    def __init__(
        self,
        dsn: str,
        schema: str,
        layout: ShardLayout,
        *,
        address: str,
        release: str,
        fingerprint: str,
        lease_s: float,
    ) -> None:
        self.me = NodeInfo(
            address=address,
            node=secrets.token_hex(8),
            owner=f"{socket.gethostname()}:{os.getpid()}",
            release=release,
            format=FORMAT,
            fingerprint=fingerprint,
            state="serving",
            since=datetime.now(UTC),
        )
        self._database = Database(Address(dsn, schema, lease_s / 4))
        self._lease_s = lease_s
        self._beat = _make_beat(schema, layout)

    async def join(self) -> None:
        """Be one of the nodes, under this address.

        Raises:
            ConfigError, StorageError: the database cannot be used; the text says why.
        """
        me = self.me
        await self._database.use(
            lambda connection: connection.execute(
                in_schema(_JOIN, self._database.address.schema),
                me.address,
                me.node,
                me.owner,
                me.release,
                me.format,
                me.fingerprint,
                self._lease_s,
            )
        )

    async def beat(self, state: NodeState, loads: Sequence[ShardLoad]) -> tuple[bool, Placement]:
        """Say that this node lives; returns whether it is one of the nodes, and what there is.

        Raises:
            ConfigError, StorageError: the database cannot be used; the text says why.
        """
        row = await self._database.use(
            lambda connection: connection.fetchrow(
                self._beat,
                self.me.address,
                self.me.node,
                state,
                msgspec.json.encode(loads).decode(),
            )
        )
        return bool(row[0]), _decode(row[1])

    async def leave(self) -> None:
        """Be none of the nodes.

        Raises:
            ConfigError, StorageError: the database cannot be used; the row ends by itself.
        """
        await self._database.use(
            lambda connection: connection.execute(
                in_schema(_LEAVE, self._database.address.schema), self.me.address, self.me.node
            )
        )

    def close(self) -> None:
        """Disconnect."""
        self._database.close()


class ClusterReader:
    """Reads who has what again and again, over one connection.

    Args:
        dsn: of the database.
        schema: of the memory.
        shards: how many it must have; None for any number.
    """

    def __init__(self, dsn: str, schema: str, shards: int | None = None) -> None:
        self._database = Database(Address(dsn, check_schema_name(schema), _PATIENCE_S))
        self._schema = schema
        self._shards = shards
        self._prepared: asyncpg.Connection[Any] | None = None
        self._sql = ""
        self._reading = asyncio.Lock()

    async def read(self) -> Placement | None:
        """The nodes and shards; None if there is no such memory yet.

        Raises:
            ConfigError: the database cannot be used, or the memory has another number of shards.
            JournalTooNew: a newer remora made it.
            StorageError: the database cannot be reached.
        """
        async with self._reading:
            found = await self._database.use(self._read)
        if found is not None and self._shards is not None:
            _check_number(self._schema, found.shards, self._shards)
        return found

    async def _read(self, connection: asyncpg.Connection[Any]) -> Placement | None:
        try:
            if connection is not self._prepared:
                layout = await _read_cluster(connection, self._schema)
                self._sql = f"SELECT {_select_placement(self._schema, layout)}"
                self._prepared = connection
            row = await connection.fetchrow(self._sql)
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            self._prepared = None
            return None
        return None if row is None else _decode(row[0])

    def close(self) -> None:
        """Disconnect."""
        self._database.close()


# -- who owns the journals of a database: for people -----------------------------------------------

_TIMEOUT_S = 10.0
_SCHEMAS = """
SELECT s.nspname::text FROM pg_namespace AS s
WHERE has_schema_privilege(s.oid, 'USAGE') AND 3 = (
    SELECT count(*) FROM pg_class AS c WHERE c.relnamespace = s.oid AND c.relkind = 'r'
    AND c.relname IN ('journal', 'lease', 'messages') AND has_table_privilege(c.oid, 'SELECT'))
ORDER BY 1
"""
_OWNER_LEASE = """
SELECT l.epoch, l.owner, l.address, l.since, CASE WHEN l.until > '-infinity'
    THEN greatest(extract(epoch FROM l.until - clock_timestamp())::float8, 0) END AS left_s
FROM remora.lease AS l
"""


class JournalOwner(msgspec.Struct, frozen=True):
    """Who owns a journal, or did last.

    Attributes:
        schema: of the journal.
        owner: host and process.
        address: where it takes connections; empty if it takes none.
        epoch: the number of the journal's owners so far.
        since: when it became the owner.
        left_s: how much of its lease is left by PostgreSQL's clock; 0 for one that ran out, None
            for an owner that has left, or has no lease.
    """

    schema: str
    owner: str
    address: str
    epoch: int
    since: datetime
    left_s: float | None


async def read_owner(dsn: str, schema: str) -> JournalOwner | None:
    """The owner of one journal; None if there is no such journal yet.

    Raises:
        ConfigError, StorageError: the database cannot be used; the text says why.
    """
    check_schema_name(schema)
    found = await _read(dsn, schema)
    return found[0] if found else None


async def read_owners(dsn: str) -> list[JournalOwner]:
    """The owners of all journals in a database that the role may read.

    Raises:
        ConfigError, StorageError: the database cannot be used; the text says why.
    """
    return await _read(dsn, None)


async def _read(dsn: str, schema: str | None) -> list[JournalOwner]:
    async def read(connection: asyncpg.Connection[Any]) -> list[JournalOwner]:
        schemas = [schema]
        if schema is None:
            schemas = [name for (name,) in await connection.fetch(_SCHEMAS)]
        found = []
        try:
            for name in schemas:
                assert name is not None
                rows = await connection.fetch(in_schema(_OWNER_LEASE, name))
                found += [JournalOwner(name, **row) for row in rows]
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            return []
        return found

    with Database(Address(dsn, schema or "remora", _TIMEOUT_S)) as database:
        return await database.use(read)
