"""All rows of a journal in PostgreSQL, as they are, and a journal that is filled with another's.

Requires to own the journal (`PostgresJournal.open`). Filling is one transaction of its own
connection, which another owner's claim before it makes fail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from remora.errors import OwnershipLost, StorageError
from remora.storage.copying import OWN_SETTINGS, TABLES, Column, Rows, with_checksums
from remora.storage.postgres.connection import BROKEN, Address, connect
from remora.storage.postgres.opening import open_error
from remora.storage.postgres.schema import in_schema
from remora.storage.rows import SEQ_BITS

_AT_ONCE = 1_000
_COMMAND_S = 3_600.0  # a table is copied by one statement
_OWNED = {
    "messages": f"WHERE pos >> {SEQ_BITS} IN (SELECT sid FROM remora.actors)",
    "actors": "",
    "erasures": "",
}
_OF_ACTORS = "WHERE sid IN (SELECT sid FROM remora.actors)"
_EMPTY = "TRUNCATE remora.erased, remora.settings, remora.attachments, " + ", ".join(
    f"remora.{one}" for one in TABLES
)


class JournalFacts(msgspec.Struct, frozen=True):
    """The facts of a journal apart from its rows.

    Attributes:
        instance: six hex digits in the ids of its messages.
        epoch: how many owners there were so far.
        last_sid: the highest number of an actor, of those that were erased as well.
        settings: the settings that another engine takes as they are.
    """

    instance: str
    epoch: int
    last_sid: int
    settings: Mapping[str, str]


class DatabaseRows:
    """The rows of one journal. Made by `open`."""

    def __init__(self, connection: asyncpg.Connection[Any], schema: str) -> None:
        self._connection = connection
        self._schema = schema

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str, schema: str) -> AsyncIterator[DatabaseRows]:
        """Connect.

        Raises:
            ConfigError, StorageError: PostgreSQL cannot be used.
        """
        address = Address(dsn, schema, _COMMAND_S)
        try:
            connection = await connect(address)
        except BROKEN as e:
            raise open_error(e, address) or e from e
        try:
            yield cls(connection, schema)
        except BROKEN as e:
            if isinstance(e, StorageError):
                raise
            raise open_error(e, address) or e from e
        finally:
            connection.terminate()

    async def read_facts(self) -> JournalFacts:
        """Return what the journal knows apart from its rows."""
        row = await self._connection.fetchrow(self._sql("SELECT * FROM remora.journal"))
        assert row is not None
        last = await self._connection.fetchval(self._sql("SELECT max(sid) FROM remora.actors"))
        found = await self._connection.fetch(self._sql("SELECT name, value FROM remora.settings"))
        return JournalFacts(
            row["instance"],
            row["epoch"],
            max(row["last_sid"], last or 0),
            {name: value.decode() for name, value in found if name not in OWN_SETTINGS},
        )

    async def is_empty(self) -> bool:
        """Return whether the journal never had a row."""
        facts = await self.read_facts()
        return not facts.last_sid and not facts.settings

    async def read(self, table: str) -> AsyncIterator[Rows]:
        """See `remora.storage.copying.RowSource`."""
        spec = TABLES[table]
        names = ", ".join(f'"{name}"' for name in spec.names)
        where = _OWNED.get(table, _OF_ACTORS)
        sql = f"SELECT {names} FROM remora.{table} {where} ORDER BY {spec.order}"
        async with self._connection.transaction():
            cursor = await self._connection.cursor(self._sql(sql))
            while rows := await cursor.fetch(_AT_ONCE):
                plain = [tuple(map(_plain, row.values())) for row in rows]
                yield with_checksums(table, plain)

    @asynccontextmanager
    async def filled(
        self, epoch: int, facts: JournalFacts, settings: Mapping[str, str]
    ) -> AsyncIterator[None]:
        """An empty journal while the body writes its rows: it gets all of them or stays as it was.

        Args:
            epoch: the caller's.
            facts: instance, last number and settings that it gets.
            settings: more settings.

        Raises:
            OwnershipLost: another process owns the journal; nothing was changed.
        """
        connection = self._connection
        async with connection.transaction():
            await self._take(epoch, facts.instance, facts.last_sid)
            await connection.execute(self._sql(_EMPTY))
            yield
            for table, spec in TABLES.items():
                if spec.counted:
                    await connection.execute(
                        self._sql(
                            f"SELECT setval(pg_get_serial_sequence('remora.{table}', 'number'), "
                            f"coalesce(max(number), 0) + 1, false) FROM remora.{table}"
                        )
                    )
            await connection.executemany(
                self._sql("INSERT INTO remora.settings VALUES ($1, $2)"),
                [(name, value.encode()) for name, value in {**facts.settings, **settings}.items()],
            )

    async def write(self, table: str, rows: Rows) -> None:
        """Add rows to a table."""
        spec = TABLES[table]
        await self._connection.copy_records_to_table(
            table,
            schema_name=self._schema,
            columns=spec.names,
            records=[_record(spec.columns, row) for row in rows],
        )

    async def clear(self, epoch: int) -> None:
        """Leave an empty journal.

        Raises:
            OwnershipLost: another process owns it; nothing was changed.
        """
        async with self._connection.transaction():
            facts = await self.read_facts()
            await self._take(epoch, facts.instance, 0)
            await self._connection.execute(self._sql(_EMPTY))

    async def _take(self, epoch: int, instance: str, last_sid: int) -> None:
        done = await self._connection.fetchval(
            self._sql(
                "UPDATE remora.journal SET instance = $2, last_sid = $3 WHERE epoch = $1 "
                "RETURNING true"
            ),
            epoch,
            instance,
            last_sid,
        )
        if not done:
            raise OwnershipLost("another process has taken this journal over; it was not changed")

    def _sql(self, sql: str) -> str:
        return in_schema(sql, self._schema)


def _plain(value: object) -> Any:
    return value.encode() if isinstance(value, str) else value


def _record(columns: Sequence[Column], row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        value.decode() if column.kind == "name" and value is not None else value
        for column, value in zip(columns, row, strict=True)
    )
