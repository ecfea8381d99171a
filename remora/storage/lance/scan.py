"""Scan every row of long-term memory, user by user, to compare it with the journal.

A search reads one user's rows in that user's table, so it never shows a row in the wrong table or
under the wrong key. A scan reads whole tables, a few narrow columns of each: about 200 bytes a row,
one table at a time. Requires exclusive access: rows are named by their places.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from remora.config import ObjectStoreConfig
from remora.errors import LongTermError
from remora.ids import UNKEYED, Digests
from remora.runtime.threads import run_in_thread
from remora.storage.lance.directory import TABLE_PREFIX, table_of
from remora.storage.lance.loading import load_lancedb
from remora.storage.lance.objects import is_object_store, lance_options

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = (
    "id",
    "user_key",
    "user_id",
    "session_id",
    "agent_id",
    "seq",
    "memory_type",
    "created_at",
)


class ScannedRow(msgspec.Struct, frozen=True, gc=False):
    """A row without its text.

    Attributes:
        place: its row id in LanceDB, until the table is written to.
        id: its id, which is unique unless the row is doubled.
        user_key: the key that it is found by.
        user: the user that it names.
        session: the session that it names.
        agent: the agent that it names.
        seq: the message's number in the session.
        memory_type: see `remora.storage.ports.MemoryRow`.
        created_us: microseconds since the epoch.
    """

    place: int
    id: str
    user_key: str
    user: str
    session: str
    agent: str
    seq: int
    memory_type: str
    created_us: int


class ScannedUser(msgspec.Struct, frozen=True):
    """All rows of one table that are found by one key.

    Attributes:
        table: the table's name.
        key: the key.
        home: rows of this key belong in this table.
        rows: in the order of their places.
    """

    table: str
    key: str
    home: bool
    rows: Sequence[ScannedRow]


class TableScan:
    """A scan of long-term memory's tables. Made by `open_scan`.

    Attributes:
        digests: what users are found by.
        broken: tables that cannot be read, and why.
        rows: rows read so far.
    """

    def __init__(
        self, tables: Mapping[str, Any], broken: Mapping[str, str], shards: int, digests: Digests
    ) -> None:
        self.digests = digests
        self.broken = dict(broken)
        self.rows = 0
        self._tables = dict(tables)
        self._shards = shards

    async def count(self) -> int:
        """Rows in all tables that can be read."""
        total = 0
        for name, table in list(self._tables.items()):
            try:
                total += await table.count_rows()
            except (RuntimeError, ValueError, OSError) as e:
                self._mark_broken(name, e)
        return total

    async def users(self) -> AsyncIterator[ScannedUser]:
        """Each table's rows, by key; tables that cannot be read are left out, and in `broken`."""
        for name in sorted(self._tables):
            try:
                query = self._tables[name].query().select(list(_COLUMNS)).with_row_id()
                found = (await query.to_arrow()).sort_by("user_key")
            except (RuntimeError, ValueError, OSError, KeyError) as e:
                self._mark_broken(name, e)
                continue
            start = 0
            keys = found.column("user_key").to_pylist()
            for end in range(1, len(keys) + 1):
                if end < len(keys) and keys[end] == keys[start]:
                    continue
                rows = await run_in_thread(_to_rows, found.slice(start, end - start))
                self.rows += len(rows)
                yield ScannedUser(name, keys[start], self._belongs(name, keys[start]), rows)
                start = end

    def _belongs(self, name: str, key: str) -> bool:
        try:
            return table_of(key, self._shards) == name
        except ValueError:  # no digest at all
            return False

    def is_unreadable(self, user_key: str) -> bool:
        """Return whether this key's own table cannot be read."""
        return table_of(user_key, self._shards) in self.broken

    def _mark_broken(self, name: str, error: Exception) -> None:
        self.broken[name] = _first_line(error)
        self._tables.pop(name, None)


def _to_rows(found: pa.Table) -> list[ScannedRow]:
    import pyarrow as pa  # noqa: PLC0415 -- with lancedb, at first use

    # As a number: a zoned timestamp needs the machine's time zone files.
    found = found.set_column(
        found.schema.get_field_index("created_at"),
        "created_at",
        found.column("created_at").cast(pa.int64()),
    ).sort_by("_rowid")
    columns = [found.column(name).to_pylist() for name in ("_rowid", *_COLUMNS)]
    return [ScannedRow(*values) for values in zip(*columns, strict=True)]


@asynccontextmanager
async def open_scan(
    place: Path | str,
    *,
    shards: int,
    digests: Digests = UNKEYED,
    lost: Mapping[str, str] | None = None,
    config: ObjectStoreConfig | None = None,
    versions: Mapping[str, int] | None = None,
) -> AsyncIterator[TableScan]:
    """Open long-term memory for a scan.

    Args:
        place: its directory, or an address that LanceDB understands.
        shards: tables over which its users are spread.
        digests: what users are found by.
        lost: tables that are gone, and why: they count as broken.
        config: how an object store is reached.
        versions: the versions that count at an object store; None for the newest.

    Raises:
        LongTermError: the directory cannot be read. A table that cannot is no error, but in
            `TableScan.broken`.
    """
    lancedb = await load_lancedb()
    try:
        options = None if config is None or not is_object_store(place) else lance_options(config)
        database = await lancedb.connect_async(str(place), storage_options=options)
        names = [
            name
            for name in (await database.list_tables(limit=10_000)).tables
            if name.startswith(TABLE_PREFIX) and (versions is None or name in versions)
        ]
    except (RuntimeError, ValueError, OSError) as e:
        raise LongTermError(f"long-term memory cannot be opened: {e}", retryable=True) from e
    tables: dict[str, Any] = {}
    broken = dict(lost or {})
    try:
        for name in names:
            try:
                table = tables[name] = await database.open_table(name)
                if versions is not None:
                    await table.checkout(versions[name])
                columns = set((await table.schema()).names)
            except (RuntimeError, ValueError, OSError) as e:
                broken[name] = _first_line(e)
            else:
                if not columns.issuperset(
                    _COLUMNS
                ):  # a manifest full of zeros opens as a table without columns
                    broken[name] = f"it has the columns {sorted(columns)}"
        yield TableScan(
            {name: table for name, table in tables.items() if name not in broken},
            broken,
            shards,
            digests,
        )
    finally:
        for table in tables.values():
            table.close()
        database.close()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
