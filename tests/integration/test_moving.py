"""Moving a memory between its directory and PostgreSQL: all of it survives, and every crash."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import remora
from remora.cluster.moving import move_to_database, move_to_directory, without_database
from remora.cluster.reshard import NothingToDivide, reshard
from remora.config import Secret
from remora.errors import ConfigError, DirectoryUnusable, InvalidInput, RemoraError
from remora.maintenance.verify import verify
from remora.storage.copying import TABLES, with_checksums
from remora.storage.layout import read_layout
from remora.storage.sqlite.copying import read_rows
from remora.testing import HashEmbedder
from tests.copies import copy_memory
from tests.integration.test_reshard import CONFIG, USERS, fill, look, opened, poison, said
from tests.object_store import ObjectServer, serve_objects
from tests.postgres import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with serve_objects() as found:
        yield found


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory with something of each kind, to be copied."""
    return tmp_path_factory.mktemp("filled") / "memory"


@pytest.fixture
async def memory(filled: Path, tmp_path: Path) -> Path:
    if not filled.exists():
        await fill(filled)
    return copy_memory(filled, tmp_path / "memory")


def in_database(cluster: Cluster, config: remora.Config = CONFIG) -> remora.Config:
    """The configuration with a journal in a new schema."""
    there = msgspec.structs.replace(
        config.journal,
        dsn=Secret(cluster.dsn()),
        schema=f"moved_{next(_numbers)}",
        memory="shop",
        durability="process",
    )
    return msgspec.structs.replace(config, journal=there)


def at(server: ObjectServer, config: remora.Config) -> remora.Config:
    """The configuration with long-term memory at an object store."""
    there = msgspec.structs.replace(
        config.long_term, uri=Secret(server.address()), object_store=server.config
    )
    return msgspec.structs.replace(config, long_term=there)


def rows_of(journal: Path) -> dict[str, list[Any]]:
    return {table: [row for some in read_rows(journal, table) for row in some] for table in TABLES}


async def memory_of(path: Path, config: remora.Config) -> Any:
    """The memory, in as many shards as it has; not opened."""
    if config.journal.dsn.reveal():  # always one
        embedder = HashEmbedder(16)
        return remora.Runtime(path, config=config, embedder=embedder, redact_long_term=poison)
    return await opened(path, config)


async def looked(path: Path, config: remora.Config) -> dict[str, Any]:
    """What every reading verb says."""
    async with await memory_of(path, config) as memory:
        return await look(memory)


async def test_there_and_back(cluster: Cluster, memory: Path) -> None:
    """S2.04, G4: ids, keys, state, jobs, dead letters and order survive, from shards and into
    shards.
    """
    before = await looked(memory, CONFIG)
    config = in_database(cluster)
    await reshard(memory, 3, CONFIG)
    steps: list[str] = []
    report = await move_to_database(memory, config, on_step=steps.append)
    assert steps == ["made", "marked", "copied", "compared", "complete", "released"]
    assert report.counts == before["counts"]
    assert not list(memory.glob("journal.*"))
    assert read_layout(memory) is None
    assert await looked(memory, config) == before
    with pytest.raises(DirectoryUnusable, match="moved into PostgreSQL"):
        await looked(memory, CONFIG)  # a new memory would hide the one in PostgreSQL
    with pytest.raises(NothingToDivide):
        await move_to_database(memory, config)
    with pytest.raises(InvalidInput, match=r"journal\.schema is "):
        await move_to_database(memory, in_database(cluster))
    async with await memory_of(memory, config) as moved:
        again = moved.user("user 0").session("chat")
        (receipt, *_) = [await again.append([said("other")], key="later")]
        assert receipt.seqs
    before = await looked(memory, config)
    await move_to_directory(memory, config, shards=2)
    layout = read_layout(memory)
    assert layout is not None
    assert layout.shards == 2
    assert await looked(memory, without_database(config)) == before
    with pytest.raises(InvalidInput, match="no memory in the schema"):
        await move_to_directory(memory.parent / "other", config)


async def test_every_row_is_as_it_was(cluster: Cluster, memory: Path) -> None:
    """G4: there and back, each row is the same, with its number."""
    before = rows_of(memory / "journal.db")
    assert all(before[table] for table in TABLES if table != "erasures")
    config = in_database(cluster)
    await move_to_database(memory, config)
    await move_to_directory(memory, config)
    assert rows_of(memory / "journal.db") == before
    assert (await verify(memory, CONFIG, deep=True)).findings == ()


@pytest.mark.parametrize("table", [one for one in TABLES if one != "erasures"])
async def test_rows_of_old_formats_get_their_checksum(memory: Path, table: str) -> None:
    """G4: the same that they would have been written with."""
    crc = TABLES[table].names.index("crc")
    rows = rows_of(memory / "journal.db")[table]
    assert rows
    without = [(*row[:crc], None, *row[crc + 1 :]) for row in rows]
    assert with_checksums(table, without) == rows


async def test_to_an_object_store(cluster: Cluster, server: ObjectServer, memory: Path) -> None:
    """S2.31: long-term memory in the directory is copied with its vectors, from each shard."""
    before = await looked(memory, CONFIG)
    config = at(server, in_database(cluster))
    await reshard(memory, 2, CONFIG)
    report = await move_to_database(memory, config)
    assert report.rows == before["rows"]
    assert not list(memory.rglob("*.lance"))
    assert await looked(memory, config) == before
    await move_to_directory(memory, config)
    assert await looked(memory, without_database(config)) == before


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", ["marked", "copied", "compared", "complete", "released"])
async def test_a_crash_on_the_way_there(cluster: Cluster, memory: Path, step: str) -> None:
    """G4: the same command goes on; until then one journal counts, and the other is refused."""
    before, config = await looked(memory, CONFIG), in_database(cluster)
    await crash(move_to_database, memory, config, step)
    if step in {"marked", "copied", "compared"}:
        assert await looked(memory, CONFIG) == before
    else:
        with pytest.raises(DirectoryUnusable, match="is being moved"):
            await looked(memory, CONFIG)
    with pytest.raises((ConfigError, DirectoryUnusable)):
        await looked(memory, config)
    report = await move_to_database(memory, config)
    assert report.resumed is (step in {"complete", "released"})
    assert await looked(memory, config) == before


@pytest.mark.parametrize("step", ["copied", "compared", "marked", "complete", "released"])
async def test_a_crash_on_the_way_back(cluster: Cluster, memory: Path, step: str) -> None:
    """G4: the same."""
    before, config = await looked(memory, CONFIG), in_database(cluster)
    await move_to_database(memory, config)
    await crash(move_to_directory, memory, config, step)
    with pytest.raises(DirectoryUnusable, match="is being moved"):
        await looked(memory, CONFIG)
    if step in {"copied", "compared"}:
        assert await looked(memory, config) == before
    else:
        with pytest.raises(ConfigError):
            await looked(memory, config)
    await move_to_directory(memory, config)
    assert await looked(memory, CONFIG) == before


async def crash(move: Any, memory: Path, config: remora.Config, step: str) -> None:
    def at_step(name: str) -> None:
        if name == step:
            raise Crash

    with pytest.raises(BaseException) as told:
        await move(memory, config, on_step=at_step)
    error: BaseException = told.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, Crash)


async def test_what_is_refused(cluster: Cluster, memory: Path, tmp_path: Path) -> None:
    """Nothing is changed."""
    config = in_database(cluster)
    with pytest.raises(ConfigError, match=r"journal\.dsn"):
        await move_to_database(memory, CONFIG)
    with pytest.raises(InvalidInput, match="no memory"):
        await move_to_database(tmp_path / "nothing", config)
    elsewhere = msgspec.structs.replace(config.long_term, uri=Secret(str(tmp_path / "x")))
    with pytest.raises(ConfigError, match="object store only"):
        await move_to_database(memory, msgspec.structs.replace(config, long_term=elsewhere))
    async with await memory_of(tmp_path / "other", config) as other:
        await other.user(USERS[0]).session("1").append(said("hello"))
    with pytest.raises(InvalidInput, match="has a journal already"):
        await move_to_database(memory, config)
    with pytest.raises(InvalidInput, match="has a journal already"):
        await move_to_directory(memory, config)
    async with await opened(memory) as runtime:
        with pytest.raises(RemoraError):
            await move_to_database(memory, in_database(cluster))
        assert (await runtime.counts()).users
