"""Who owns the journals of a database: for people, and for those who look for an owner."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from remora.storage.postgres.connection import Address, connect
from remora.storage.postgres.opening import check_schema_name, open_error
from remora.storage.postgres.schema import in_schema

__all__ = ["JournalOwner", "OwnerLookup", "read_owner", "read_owners"]

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
    address = Address(dsn, schema or "remora", _TIMEOUT_S)
    connection = None
    try:
        connection = await connect(address)
        schemas = [schema]
        if schema is None:
            schemas = [name for (name,) in await connection.fetch(_SCHEMAS)]
        found = []
        for name in schemas:
            assert name is not None
            rows = await connection.fetch(in_schema(_LEASE, name))
            found += [JournalOwner(name, **row) for row in rows]
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return []
    except BaseException as e:
        error = open_error(e, address)
        if error is None:
            raise
        raise error from e
    else:
        return found
    finally:
        if connection is not None:
            connection.terminate()


class OwnerLookup:
    """Reads the owner of one journal again and again, over one connection."""

    def __init__(self, dsn: str, schema: str, *, patience_s: float = 3.0) -> None:
        self._address = Address(dsn, check_schema_name(schema), patience_s)
        self._connection: asyncpg.Connection[Any] | None = None
        self._reading = asyncio.Lock()

    async def read(self) -> JournalOwner | None:
        """The owner; None if there is no such journal yet.

        Raises:
            ConfigError, StorageError: the database cannot be used; the text says why.
        """
        async with self._reading:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(self._address)
                row = await self._connection.fetchrow(in_schema(_LEASE, self._address.schema))
            except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
                return None
            except BaseException as e:
                self.close()
                error = open_error(e, self._address)
                if error is None:
                    raise
                raise error from e
        return None if row is None else JournalOwner(self._address.schema, **row)

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None
