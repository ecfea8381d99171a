"""The rows that a division and a move copy: each column is copied, and each row compared."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

import remora
from remora.errors import JournalDamaged, StorageError
from remora.storage.copying import TABLES, Rows, compare_rows
from remora.storage.sqlite.copying import JournalRows, find_actors
from remora.storage.sqlite.journal import SqliteJournal
from tests.configs import PLAIN
from tests.filled import said
from tests.sqlite import rows_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def empty(directory: Path) -> Path:
    directory.mkdir()
    path = directory / "journal.db"
    await (await SqliteJournal.open(path, durability="process")).aclose()
    return path


async def test_every_column_is_copied(tmp_path: Path) -> None:
    """G1: a column that is added to the schema is not left behind."""
    with closing(sqlite3.connect(await empty(tmp_path / "memory"))) as database:
        query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        names = {name for (name,) in database.execute(query)}
        assert names == {*TABLES, "settings"}
        for table, spec in TABLES.items():
            columns = {name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")}
            derived = {"used_us"} if table == "actors" else set()
            assert columns - derived | {"number"} == {*spec.names, "number"}, table


class Listed:
    """Rows of one table, in chunks."""

    def __init__(self, *chunks: Sequence[int]) -> None:
        self._chunks = chunks

    async def read(self, table: str) -> AsyncIterator[Rows]:
        for chunk in self._chunks if table == "messages" else ():
            yield [(one,) for one in chunk]


@pytest.mark.parametrize(
    ("copy", "row"),
    [
        (Listed([1, 2, 3]), None),
        (Listed([1], [2], [3]), None),
        (Listed([1, 2, 4]), 3),
        (Listed([1, 2]), 3),
        (Listed([1, 2, 3, 4]), 4),
        (Listed([1, 2, 3], [4]), 4),
        (Listed(), 1),
    ],
)
async def test_a_row_that_differs_is_named(copy: Listed, row: int | None) -> None:
    told: list[int] = []
    source = Listed([1, 2], [3])
    if row is None:
        await compare_rows(source, copy, told.append)
        assert sum(told) == 3
        return
    with pytest.raises(StorageError, match=f"row {row} of the table messages"):
        await compare_rows(source, copy, told.append)


async def test_some_users_rows_are_copied_as_they_are(tmp_path: Path) -> None:
    """G1: from several journals into one, also what no verb shows; an actor is there once."""
    for name in ("one", "two"):
        async with remora.Runtime(tmp_path / name, config=PLAIN) as memory:
            for user in ("ann", "bea"):
                texts = [said(f"{n} \u0000 of {user}") for n in range(750)]
                for _ in range(2):
                    await memory.session(f"{user} {name}", "chat").append(texts)
                await memory.user(f"{user} {name}").state.set("colour", "red")
    with closing(sqlite3.connect(tmp_path / "two" / "journal.db")) as database, database:
        database.execute("UPDATE messages SET pos = pos + (100 << 32)")
        for table in ("actors", "state_items", "jobs", "summaries"):
            database.execute(f"UPDATE {table} SET sid = sid + 100")
    target = await empty(tmp_path / "target")
    for name in ("one", "two"):
        source, told = tmp_path / name / "journal.db", [0]
        sids = find_actors(source, lambda user: user.startswith("ann"))
        async with JournalRows.open(target, sids) as copy, JournalRows.open(source, sids) as rows:
            await copy.fill(source, told.append)
            compared = [0]
            await compare_rows(rows, copy, compared.append)
            assert sum(told) == sum(compared) > 1_500
            with pytest.raises(StorageError, match="not shards of one memory"):
                await copy.fill(source, told.append)
    there = await rows_of(target)
    assert {row[1] for row in there["actors"]} == {b"ann one", b"ann two"}
    assert [len(there[table]) for table in ("actors", "messages", "state_items")] == [4, 3_000, 2]


async def test_a_file_that_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no journal" * 100)
    with pytest.raises(JournalDamaged, match="cannot be copied"):
        async with JournalRows.open(path) as rows:
            await anext(rows.read("actors"))
