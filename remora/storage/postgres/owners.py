"""Who owns the journals of a database: for people."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from remora.storage.postgres.cluster import Database
from remora.storage.postgres.connection import Address
from remora.storage.postgres.opening import check_schema_name
from remora.storage.postgres.schema import in_schema

_TIMEOUT_S = 10.0
_SCHEMAS = """
SELECT s.nspname::text FROM pg_namespace AS s
WHERE has_schema_privilege(s.oid, 'USAGE') AND 3 = (
    SELECT count(*) FROM pg_class AS c WHERE c.relnamespace = s.oid AND c.relkind = 'r'
    AND c.relname IN ('journal', 'lease', 'messages') AND has_table_privilege(c.oid, 'SELECT'))
ORDER BY 1
"""
_LEASE = """
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
                rows = await connection.fetch(in_schema(_LEASE, name))
                found += [JournalOwner(name, **row) for row in rows]
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            return []
        return found

    with Database(Address(dsn, schema or "remora", _TIMEOUT_S)) as database:
        return await database.use(read)
