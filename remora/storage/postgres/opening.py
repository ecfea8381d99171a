"""Opening a journal in PostgreSQL: what is checked, brought up to date, and taken over."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import asyncpg
import msgspec

from remora.config import Durability
from remora.errors import ConfigError, InvalidInput, JournalTooNew, RemoraError, StorageError
from remora.logging import get_logger
from remora.storage.layout import number_actors
from remora.storage.postgres.connection import (
    BROKEN,
    CONNECTIONS,
    ESCAPED,
    Address,
    describe,
    is_over_time,
)
from remora.storage.postgres.lease import Tenure
from remora.storage.postgres.schema import FORMAT, MIGRATIONS, OTHER_FORMAT, in_schema
from remora.system.clock import boot_time

_logger = get_logger(__name__)
OLDEST = 14
"""The oldest major version of PostgreSQL that is supported."""
MEMORY_NAME = "memory_name"
"""The setting that has whose journal it is."""
CLUSTER_TABLES = frozenset({"cluster", "nodes"})
"""Which machines share a memory, and in how many shards; see `storage/postgres/cluster`."""
_OF_SHARDS = ["instance", "sid_step", "sid_offset"]  # see `ShardPlace.settings`
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
TRIES = 5
"""How often what several processes may make at a time is tried."""
_PAUSE_S = 0.25
_MARGIN_S = 2.0
_ANOTHER_WAS_FIRST = (
    asyncpg.DivisionByZeroError,
    asyncpg.DuplicateFunctionError,
    asyncpg.DuplicateObjectError,
    asyncpg.DuplicateSchemaError,
    asyncpg.DuplicateTableError,
    asyncpg.UniqueViolationError,
)
"""How a migration fails that another process did in the same moment."""


class Ownership(msgspec.Struct, frozen=True):
    """The result of taking a journal over.

    Attributes:
        epoch: the number of its owners so far, this one included.
        commits: the number of its commits so far.
        instance: six hex digits that tell its message ids from another journal's.
        numbers: of the actors to come.
        granted: when the claim was sent; see `boot_time`.
    """

    epoch: int
    commits: int
    instance: str
    numbers: Iterator[int]
    granted: float


def check_schema_name(schema: object) -> str:
    """The name of a schema.

    Raises:
        InvalidInput: it is none that this journal takes.
    """
    if not isinstance(schema, str) or not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidInput(
            "schema must be up to 40 lower-case letters, digits and underscores, not beginning "
            f"with pg_ or a digit, not {schema!r:.80}"
        )
    return schema


async def check_server(
    writer: asyncpg.Connection[Any], other: asyncpg.Connection[Any], durability: Durability
) -> None:
    """Check that it is a server that a journal can rely on.

    Raises:
        ConfigError: it is not; the text says what to do.
    """
    version = writer.get_server_version()
    if version.major < OLDEST:
        raise ConfigError(
            f"PostgreSQL {version.major} is too old for the journal: use {OLDEST} or newer"
        )
    row = await writer.fetchrow(
        "SELECT current_setting('server_encoding') AS encoding, "
        "current_setting('transaction_read_only') AS read_only, pg_is_in_recovery() AS standby, "
        "current_setting('synchronous_commit') AS commits, current_setting('fsync') AS fsync"
    )
    assert row is not None
    if row["standby"] or row["read_only"] == "on":
        raise ConfigError(_READ_ONLY)
    if row["encoding"] != "UTF8":
        raise ConfigError(
            f"the database has the encoding {row['encoding']}: make one with CREATE DATABASE … "
            "ENCODING 'UTF8' TEMPLATE template0"
        )
    off = [name for name, key in (("synchronous_commit", "commits"), ("fsync", "fsync"))
           if row[key] == "off"]  # fmt: skip
    if off and durability == "power":
        raise ConfigError(
            f"PostgreSQL has {' and '.join(off)} off, so that acknowledged messages can be lost: "
            "set it to on (ALTER ROLE … SET synchronous_commit = on), or open the journal with "
            'durability="process"'
        )
    await _check_session(writer, other)


_READ_ONLY = (
    "PostgreSQL takes no writes here: it is a standby, or default_transaction_read_only is on. "
    "Name the primary, or all servers (postgresql://user@one,two/database)"
)


async def _check_session(writer: asyncpg.Connection[Any], other: asyncpg.Connection[Any]) -> None:
    """Notice a pooler in transaction mode: connections share a session of the server there."""
    tokens = [secrets.token_hex(8) for _ in range(2)]
    for connection, token in zip((writer, other), tokens, strict=True):
        await connection.execute(f"SET remora.session = '{token}'")
    for connection, token in zip((writer, other), tokens, strict=True):
        (row, *_) = await connection.fetch("SELECT current_setting('remora.session', true)")
        if row[0] != token:
            raise ConfigError(_POOLER)


_POOLER = (
    "there is a pooler in transaction mode between here and PostgreSQL: a statement is not in the "
    "session of the one before. Connect to PostgreSQL itself, or to a pool in session mode"
)


async def migrate(writer: asyncpg.Connection[Any], schema: str, tenure: Tenure) -> None:
    """Make the schema, or bring it up to date: one transaction, of one round trip.

    Tables of an older format change when nobody's lease runs: an owner of an earlier release goes
    on until it leaves.

    Raises:
        JournalTooNew: a newer remora made it; nothing was changed.
        ConfigError: something else is in the schema, or the role may not use it.
        StorageError: it has an older format, and its owner did not leave in time.
    """
    await _check_one_piece(writer, schema)
    owner, left = _OwnerWait(schema, tenure), TRIES
    while True:
        format_ = await read_format(writer, schema)
        if format_ > FORMAT:
            raise _too_new(schema, format_)
        if format_ == FORMAT:
            return
        if format_ not in MIGRATIONS:
            raise ConfigError(
                f"the journal in the schema {schema} has the format {format_} from before the "
                "first release, which no release reads: name another schema"
            )
        # no row: another process did it first, and the division by zero rolls all back
        check = "SELECT 1 / count(*) FROM remora.journal WHERE format = {}; "
        create = f"CREATE SCHEMA IF NOT EXISTS {schema}; "
        begin = f"{_IN_TURN}; {check.format(format_)}{_take(format_)}; " if format_ else create
        script = f"BEGIN ISOLATION LEVEL READ COMMITTED; {begin}{MIGRATIONS[format_]}; "
        script += f"UPDATE remora.journal SET format = {FORMAT} WHERE format = {format_}; "
        script += f"{check.format(FORMAT)}COMMIT"
        if await try_script(writer, in_schema(script, schema), last=not left):
            continue
        if format_ and await read_format(writer, schema) == format_:
            await owner.wait(writer)
        else:
            left -= 1


def _too_new(schema: str, format_: int) -> JournalTooNew:
    return JournalTooNew(
        f"the journal in the schema {schema} has format {format_}, this remora reads up to "
        f"{FORMAT}: upgrade remora on this machine",
        found=format_,
        supported=FORMAT,
    )


_CLAIMED_WITHOUT_FORMAT = 3
# PostgreSQL refuses one of two that replace a function at once, and no claim of the format before
# may come after the migration.
_IN_TURN = "SELECT pg_advisory_xact_lock(hashtext('remora.migrate'))"


def _take(format_: int) -> str:
    """How a migration takes the journal over: a former owner stores nothing from then on."""
    format_said = "" if format_ == _CLAIMED_WITHOUT_FORMAT else f"{format_}, "
    return f"SELECT 1 / count(j.epoch) FROM remora.claim({format_said}'', '', 0) AS j"


async def try_script(writer: asyncpg.Connection[Any], script: str, *, last: bool) -> bool:
    """Run a transaction, or nothing of it if another process made the same things first.

    Args:
        writer: a connection that is in no transaction.
        script: from ``BEGIN`` to ``COMMIT``.
        last: being second is an error as well.

    Returns:
        Whether it ran.
    """
    try:
        await writer.execute(script)
    except BaseException as e:
        if not writer.is_closed():
            await writer.execute("ROLLBACK")
        if last or not isinstance(e, _ANOTHER_WAS_FIRST):
            raise
        return False
    return True


async def read_format(writer: asyncpg.Connection[Any], schema: str) -> int:
    """The format of the journal in the schema; 0 if there is none.

    Raises:
        ConfigError: something else is in the schema.
    """
    tables = await writer.fetch(
        "SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = "
        "c.relnamespace WHERE s.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm')",
        schema,
    )
    names = {name for (name,) in tables}
    if not names - CLUSTER_TABLES:
        return 0
    if "journal" not in names or "messages" not in names:
        raise ConfigError(
            f"the schema {schema} has tables that are not a journal's: name another schema"
        )
    (row,) = await writer.fetch(f"SELECT format FROM {schema}.journal")
    return int(row[0])


async def _check_one_piece(writer: asyncpg.Connection[Any], schema: str) -> None:
    try:
        shards = await writer.fetchval(f"SELECT shards FROM {schema}.cluster")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return
    if shards > 1:
        raise ConfigError(
            f"the schema {schema} has a memory in {shards} shards, each with a schema of its own: "
            "`remora serve` and remora.connect open it, and one Runtime does not"
        )


def check_memory_name(schema: str, found: str, name: str) -> None:
    """Check that a schema has the memory of this name, or one that has no name yet.

    Raises:
        ConfigError: it has another.
    """
    if found and found != name:
        raise ConfigError(
            f"the schema {schema} has the journal of the memory {found!r}, not of {name!r}: two "
            f"memories cannot share one schema. Name another schema, or open it with "
            f"memory={found!r}",
            key="journal.memory",
        )


async def take_ownership(
    writer: asyncpg.Connection[Any],
    schema: str,
    name: str,
    first_settings: Mapping[str, str],
    tenure: Tenure,
) -> Ownership:
    """Take the journal over when nobody's lease runs: a former owner can store nothing from then.

    Raises:
        ConfigError: it is the journal of another memory; it was not taken over.
        JournalTooNew: a newer remora migrated it while this process waited for its owner.
        StorageError: another process owns it, and did not leave in time.
    """
    if name:
        first_settings = {**first_settings, MEMORY_NAME: name}
    found = await writer.fetchval(
        in_schema("SELECT value FROM remora.settings WHERE name = $1", schema), MEMORY_NAME
    )
    check_memory_name(schema, "" if found is None else found.decode(), name)
    row, granted = await _claim(writer, schema, tenure)
    if first_settings:
        await writer.execute(
            in_schema("SELECT remora.set_settings($1, $2, $3, $4, true)", schema),
            row["epoch"],
            row["commits"] + 1,
            list(first_settings),
            [value.encode() for value in first_settings.values()],
        )
    commits = row["commits"] + bool(first_settings)
    found = await writer.fetch(
        in_schema("SELECT name, value FROM remora.settings WHERE name = ANY($1)", schema),
        _OF_SHARDS,
    )
    settings = {name: value.decode() for name, value in found}
    instance = settings.get("instance", row["instance"])
    numbers = number_actors(row["last_sid"], settings)
    return Ownership(row["epoch"], commits, instance, numbers, granted)


async def _claim(
    writer: asyncpg.Connection[Any], schema: str, tenure: Tenure
) -> tuple[asyncpg.Record, float]:
    """The journal's row after the claim, and when that was sent."""
    owner = _OwnerWait(schema, tenure)
    claim = in_schema("SELECT * FROM remora.claim($1, $2, $3, $4)", schema)
    us = f"{socket.gethostname()}:{os.getpid()}"
    while True:
        sent = boot_time()
        try:
            row = await writer.fetchrow(claim, FORMAT, us, tenure.address, tenure.lease_s)
        except asyncpg.PostgresError as e:
            if e.sqlstate != OTHER_FORMAT:
                raise
            raise _too_new(schema, await read_format(writer, schema)) from e
        assert row is not None
        if row["epoch"] is not None:
            return row, sent
        await owner.wait(writer)


class _OwnerWait:
    """Waits for the lease of a journal's owner to end."""

    def __init__(self, schema: str, tenure: Tenure) -> None:
        self._schema = schema
        self._wait_s = tenure.wait_s
        self._began, self._told = boot_time(), False

    async def wait(self, writer: asyncpg.Connection[Any]) -> None:
        """Wait for a moment.

        Raises:
            StorageError: the owner had the time that it gets.
        """
        schema = self._schema
        held = await writer.fetchrow(
            in_schema("SELECT owner, since, seconds FROM remora.lease", schema)
        )
        assert held is not None
        wait_s = held["seconds"] + _MARGIN_S if self._wait_s is None else self._wait_s
        if not self._told:
            self._told = True
            _logger.info("journal_owned", schema=schema, owner=held["owner"], wait_s=wait_s)
        if boot_time() - self._began >= wait_s:
            raise StorageError(
                f"the journal in the schema {schema} is owned by {held['owner']} since "
                f"{held['since']:%Y-%m-%d %H:%M:%S}Z, which renews its lease: stop that process, "
                "or name another schema"
            )
        await anyio.sleep(_PAUSE_S)


def open_error(error: BaseException, address: Address) -> StorageError | ConfigError | None:
    """Return what a failure to open it means; None for a failure that is not PostgreSQL's."""
    if isinstance(error, RemoraError):  # said what it means already
        return None
    if isinstance(error, asyncpg.exceptions.TargetServerAttributeNotMatched):
        return ConfigError(_READ_ONLY)
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return ConfigError(_READ_ONLY)
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return ConfigError(
            f"the role may not use the schema {address.schema}: as an administrator, run CREATE "
            f"SCHEMA {address.schema} AUTHORIZATION the_role, or GRANT CREATE ON DATABASE"
        )
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        return ConfigError(
            f"PostgreSQL refuses the role or its password ({describe(error)}): check both in the "
            f"address, {ESCAPED}; a password that is not there is taken from PGPASSWORD or .pgpass"
        )
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return ConfigError("there is no such database: make it with createdb, or name another")
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return StorageError(
            f"PostgreSQL has no connection left for the role; a journal uses {CONNECTIONS}: raise "
            "the role's CONNECTION LIMIT, or the server's max_connections"
        )
    if isinstance(error, asyncpg.CantChangeRuntimeParamError | asyncpg.UndefinedObjectError):
        return ConfigError(
            f"PostgreSQL refuses an option of the address ({describe(error)}), or knows none of "
            "this name: correct what follows the question mark"
        )
    if type(error) is ConnectionError and "SSL" in str(error):
        return ConfigError(
            "the address asks for TLS (sslmode), and PostgreSQL has none: switch ssl on there"
        )
    if isinstance(error, socket.gaierror):
        return StorageError(
            "the host in the address of PostgreSQL is not known (gaierror): check its name, and "
            f"that the address is written {ESCAPED}"
        )
    prepared = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
    if isinstance(error, prepared):
        return ConfigError(_POOLER)
    if is_over_time(error):
        return StorageError(
            f"PostgreSQL gave a statement up ({describe(error)}): raise the limit of the role, as "
            "ALTER ROLE … SET statement_timeout = 0 does; the journal has a limit of its own"
        )
    if isinstance(error, BROKEN):
        return StorageError(
            f"PostgreSQL cannot be reached, or refuses ({describe(error)}): check that it runs, "
            "and the address"
        )
    return None
