"""Moving a memory between its directory and PostgreSQL, in one piece or in several shards: all of
it survives, and every crash.
"""

from __future__ import annotations

import itertools
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
import pytest

import remora
from remora.api.database import open_database
from remora.api.shards import locate_shard
from remora.cluster.moving import move_to_database, move_to_directory, without_database
from remora.cluster.reshard import NothingToDivide, reshard
from remora.cluster.sharding import shard_of
from remora.config import Secret
from remora.errors import ConfigError, DirectoryUnusable, InvalidInput, RemoraError, StorageError
from remora.maintenance.verify import verify
from remora.storage.copying import TABLES, with_checksums
from remora.storage.layout import read_layout
from remora.storage.postgres.cluster import open_cluster
from remora.testing import HashEmbedder
from tests import filled
from tests.copies import copy_memory
from tests.filled import CONFIG, PLAIN, USERS, Templates, look, opened, poison, said
from tests.machines import SECRET
from tests.nodes import connected, node, serve
from tests.object_store import ObjectServer, serve_objects
from tests.postgres import Cluster
from tests.sqlite import rows_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
SHARDS = 3
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with serve_objects() as found:
        yield found


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def in_database(cluster: Cluster, config: remora.Config = CONFIG) -> remora.Config:
    """The configuration with a journal in a new schema."""
    there = msgspec.structs.replace(
        config.journal,
        dsn=Secret(cluster.dsn()),
        schema=f"moved_{next(_numbers)}",
        memory="shop",
        durability="process",
        lease_s=600.0,
    )
    return msgspec.structs.replace(config, journal=there)


def at(server: ObjectServer, config: remora.Config) -> remora.Config:
    """The configuration with long-term memory at an object store."""
    there = msgspec.structs.replace(
        config.long_term, uri=Secret(server.address()), object_store=server.config
    )
    return msgspec.structs.replace(config, long_term=there)


def in_shards(cluster: Cluster, config: remora.Config) -> remora.Config:
    """The configuration of nodes, with journals in a new schema."""
    config = in_database(cluster, config)
    machines = msgspec.structs.replace(
        config.cluster, shards=SHARDS, secret=Secret(SECRET), listen="127.0.0.1:0"
    )
    return msgspec.structs.replace(config, cluster=machines)


def alone(config: remora.Config) -> remora.Config:
    """The configuration without a number of shards."""
    machines = msgspec.structs.replace(config.cluster, shards=None)
    return msgspec.structs.replace(config, cluster=machines)


def make(path: Path, config: remora.Config) -> remora.Runtime:
    embedder = HashEmbedder(16) if config.long_term.enabled else None
    return remora.Runtime(path, config=config, embedder=embedder, redact_long_term=poison)


async def looked(path: Path, config: remora.Config) -> dict[str, Any]:
    """What every reading verb says."""
    if not config.journal.dsn.reveal():
        return await filled.looked(path, config)
    memory: Any = make(path, config)
    async with memory:
        return await look(memory)


@asynccontextmanager
async def served(path: Path, config: remora.Config) -> AsyncIterator[Any]:
    """The memory as a worker sees it, with a node of another directory that serves it."""
    async with (
        node(make(path / "node" / "memory", config)),
        connected(make(path / "worker" / "memory", config)) as memory,
    ):
        yield memory


# -- in one piece ----------------------------------------------------------------------------------


async def test_there_and_back(cluster: Cluster, templates: Templates, tmp_path: Path) -> None:
    """S2.04, G4: ids, keys, state, jobs, dead letters and order survive, from shards and into
    shards.
    """
    memory = tmp_path / "memory"
    before = await templates.full(memory)
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
    async with make(memory, config) as moved:
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


async def test_every_row_is_as_it_was(
    cluster: Cluster, templates: Templates, tmp_path: Path
) -> None:
    """G4: there and back, each row is the same, with its number. Rows of old formats get the
    checksum that they would have been written with.
    """
    memory = tmp_path / "memory"
    await templates.full(memory)
    before = await rows_of(memory / "journal.db")
    for table in TABLES:
        if table != "erasures":
            assert before[table], table
            crc = TABLES[table].names.index("crc")
            without = [(*row[:crc], None, *row[crc + 1 :]) for row in before[table]]
            assert with_checksums(table, without) == before[table], table
    config = in_database(cluster)
    await move_to_database(memory, config)
    await move_to_directory(memory, config)
    assert await rows_of(memory / "journal.db") == before
    assert (await verify(memory, CONFIG, deep=True)).findings == ()


async def test_a_memory_of_an_earlier_release(cluster: Cluster, tmp_path: Path) -> None:
    """G3: its journal is brought up to date before it moves."""
    memory = tmp_path / "memory"
    golden = Path(__file__).parents[1] / "golden" / "version-0.1" / "files.tar.xz"
    with tarfile.open(golden) as files:
        # Python 3.11.0 to 3.11.3 have no filters
        options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        files.extractall(tmp_path, **options)
    before = await verify(memory, CONFIG)
    report = await move_to_database(memory, in_database(cluster, CONFIG))
    assert report.counts == before.counts


async def test_to_an_object_store(
    cluster: Cluster, server: ObjectServer, templates: Templates, tmp_path: Path
) -> None:
    """S2.31: long-term memory in the directory is copied with its vectors, from each shard."""
    memory = tmp_path / "memory"
    before = await templates.full(memory)
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
async def test_a_crash_on_the_way_there_and_back(
    cluster: Cluster, templates: Templates, tmp_path: Path, step: str
) -> None:
    """G4: the same command goes on; until then one journal counts, and the other is refused."""
    memory, config = tmp_path / "memory", in_database(cluster)
    before = await templates.full(memory)
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


async def crash(move: Any, memory: Path, config: remora.Config, step: str, times: int = 1) -> None:
    """End a move when a step was done so many times."""
    seen = itertools.count(1)

    def at_step(name: str) -> None:
        if name == step and next(seen) == times:
            raise Crash

    with pytest.raises(BaseException) as told:
        await move(memory, config, on_step=at_step)
    error: BaseException = told.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, Crash)


async def test_what_is_refused(cluster: Cluster, templates: Templates, tmp_path: Path) -> None:
    """Nothing is changed."""
    memory = tmp_path / "memory"
    await templates.full(memory)
    config = in_database(cluster)
    with pytest.raises(ConfigError, match=r"journal\.dsn"):
        await move_to_database(memory, CONFIG)
    with pytest.raises(InvalidInput, match="no memory"):
        await move_to_database(tmp_path / "nothing", config)
    elsewhere = msgspec.structs.replace(config.long_term, uri=Secret(str(tmp_path / "x")))
    with pytest.raises(ConfigError, match="object store only"):
        await move_to_database(memory, msgspec.structs.replace(config, long_term=elsewhere))
    async with make(tmp_path / "other", config) as other:
        await other.user(USERS[0]).session("1").append(said("hello"))
    with pytest.raises(InvalidInput, match="has a journal already"):
        await move_to_database(memory, config)
    with pytest.raises(InvalidInput, match="has a journal already"):
        await move_to_directory(memory, config)
    async with await opened(memory) as runtime:
        with pytest.raises(RemoraError):
            await move_to_database(memory, in_database(cluster))
        assert (await runtime.counts()).users


# -- in several shards ----------------------------------------------------------------------------


async def test_all_of_it_survives_in_shards(
    cluster: Cluster, server: ObjectServer, templates: Templates, tmp_path: Path
) -> None:
    """S2.04, S2.31, G4: ids, keys, state, memories with their vectors, jobs and dead letters; and
    numbers of sessions that are made later are those of the session's own shard.
    """
    path = tmp_path / "memory"
    before = await templates.full(path)
    config = at(server, in_shards(cluster, CONFIG))
    report = await move_to_database(path, config)
    assert (report.counts, report.rows) == (before["counts"], before["rows"])
    assert [one.name for one in path.iterdir() if one.name != "remora.lock"] == ["moving.json"]
    async with served(tmp_path, config) as memory:
        after = await look(memory)
        for name, value in before.items():
            assert after[name] == value, name
        again = await memory.session("user 0", "chat").append(
            [said(f"fact 0.{n} about tea and trains") for n in range(12)], key="first"
        )
        assert again.duplicate
        earlier = await sids(cluster, config)
        for user in USERS:
            await memory.session(user, "later").append(said("a new session"))
        assert {one.text for one in await memory.user("user 0").recall("trains")}
    with pytest.raises(DirectoryUnusable, match="moved into PostgreSQL"):
        await looked(path, CONFIG)
    with pytest.raises(NothingToDivide):
        await move_to_database(path, config)
    rows = await sids(cluster, config)
    assert {user for *_, user in rows} >= set(USERS)
    assert all(shard_of(user, SHARDS) == number for number, _, user in rows)
    assert len({sid for _, sid, _ in rows}) == len(rows)
    later = set(rows) - set(earlier)
    assert {user for *_, user in later} == set(USERS)
    assert all(sid % SHARDS == number for number, sid, _ in later)


async def sids(cluster: Cluster, config: remora.Config) -> list[tuple[int, int, str]]:
    """Shard, number and user of each actor."""
    found = []
    for number in range(SHARDS):
        table = f"{config.journal.schema}_{number:02}.actors"
        sql = f'SELECT sid, "user" FROM {table}'
        found += [(number, *row) for row in await anyio.to_thread.run_sync(cluster.execute, sql)]
    return found


@pytest.mark.parametrize(
    ("step", "times"),
    [
        ("made", 1),
        ("marked", 1),
        ("copied", 1),
        ("copied", SHARDS),
        ("compared", 2),
        ("complete", 1),
        ("released", 1),
        ("released", SHARDS),
    ],
)
async def test_a_crash_on_the_way_into_shards(
    cluster: Cluster, templates: Templates, tmp_path: Path, step: str, times: int
) -> None:
    """G4: until all is copied, the directory counts, and no node can serve the copy; afterwards
    the directory is refused. The same command goes on.
    """
    path, config = tmp_path / "memory", in_shards(cluster, PLAIN)
    before = await templates.plain(path)
    await crash(move_to_database, path, config, step, times)
    if step in {"complete", "released"}:
        with pytest.raises(DirectoryUnusable, match="is being moved"):
            await looked(path, PLAIN)
    else:
        async with await opened(path, PLAIN) as memory:
            assert await look(memory) == before
            await memory.session("user 1", "chat").append(said("three"))
            before = await look(memory)
    with pytest.raises((ConfigError, StorageError)):
        await serve(make(path, config))
    if (step, times) != ("released", SHARDS):  # a node of another directory waits
        layout = read_layout(path)
        assert layout is not None
        place = layout.places[-1]
        journal = locate_shard(config, layout, place.number).journal
        with pytest.raises(ConfigError, match="is being moved"):
            await open_database(journal, tmp_path / "other", place=place)
    report = await move_to_database(path, config)
    assert report.resumed is (step in {"complete", "released"})
    async with served(tmp_path, config) as memory:
        assert await look(memory) == before


async def test_a_crash_while_files_are_removed(
    cluster: Cluster, templates: Templates, tmp_path: Path
) -> None:
    """G4: the directory has some of its shards left; the same command removes them."""
    path, config = tmp_path / "memory", in_shards(cluster, PLAIN)
    before = await templates.plain(path)
    await crash(move_to_database, path, config, "released", SHARDS)
    for one in sorted((path / "shard-00").iterdir()):
        one.unlink()
    (path / "shard-00").rmdir()
    with pytest.raises(DirectoryUnusable, match="is being moved"):
        await looked(path, PLAIN)
    with pytest.raises(InvalidInput, match="3 shards"):
        await move_to_database(path, alone(config), shards=2)
    assert (await move_to_database(path, config)).counts == before["counts"]
    async with served(tmp_path, config) as memory:
        assert await look(memory) == before


async def test_a_crash_while_tables_are_copied(
    cluster: Cluster, server: ObjectServer, templates: Templates, tmp_path: Path
) -> None:
    """G4: rows that an interrupted copy has left at the object store are not there twice."""
    path, config = tmp_path / "memory", at(server, in_shards(cluster, CONFIG))
    before = await templates.full(path)
    await crash(move_to_database, path, config, "tables copied", 2)
    assert await looked(path, CONFIG) == before
    assert (await move_to_database(path, config)).rows == before["rows"]
    async with served(tmp_path, config) as memory:
        assert await look(memory) == before


async def test_what_is_not_moved_into_shards(
    cluster: Cluster, server: ObjectServer, templates: Templates, tmp_path: Path
) -> None:
    """The directory is as it was: in one piece."""
    path = tmp_path / "memory"
    await templates.full(path)
    config = in_shards(cluster, CONFIG)
    with pytest.raises(ConfigError, match="must be at an object store"):
        await move_to_database(path, config)
    off = msgspec.structs.replace(config.long_term, enabled=False)
    with pytest.raises(ConfigError, match=r"name one in long_term\.uri"):
        await move_to_database(path, msgspec.structs.replace(config, long_term=off))
    config = at(server, in_shards(cluster, CONFIG))
    with pytest.raises(InvalidInput, match=r"cluster\.shards says 3"):
        await move_to_database(path, config, shards=2)
    with pytest.raises(InvalidInput, match="1 to 256"):
        await move_to_database(path, alone(config), shards=257)
    where = config.journal
    await open_cluster(
        cluster.dsn(), where.schema, SHARDS, lease_s=where.lease_s, durability="process"
    )
    with pytest.raises(InvalidInput, match="has a memory already"):
        await move_to_database(path, config)
    one = at(server, in_shards(cluster, CONFIG))
    await move_to_database(copy_memory(path, tmp_path / "two"), alone(one))
    with pytest.raises(InvalidInput, match="has a memory already"):
        await move_to_database(path, one)
    assert (path / "journal.db").exists()

    # its long-term memory is at the object store, where nothing divides it
    there = tmp_path / "two"
    await move_to_directory(there, alone(one))
    at_store = msgspec.structs.replace(in_shards(cluster, CONFIG), long_term=one.long_term)
    with pytest.raises(InvalidInput, match="is at an object store"):
        await move_to_database(there, at_store)
    with pytest.raises(InvalidInput, match="is at an object store"):
        await reshard(there, 2, CONFIG)  # without long_term.uri
    assert (there / "journal.db").exists()
    assert (await looked(there, without_database(alone(one))))["rows"]


async def test_a_shard_that_another_memory_has(
    cluster: Cluster, templates: Templates, tmp_path: Path
) -> None:
    """Nothing of it is replaced, and the directory has its memory, in shards."""
    path, config = tmp_path / "memory", in_shards(cluster, PLAIN)
    before = await templates.plain(path)
    await reshard(path, SHARDS, PLAIN)
    layout, where = read_layout(path), config.journal
    assert layout is not None
    # what a move leaves that ends before its first shard's journal is made
    await open_cluster(
        cluster.dsn(), where.schema, SHARDS, lease_s=where.lease_s, durability="process",
        instance=layout.instance,
    )  # fmt: skip
    async with served(tmp_path, config) as memory:
        await memory.session("user 0", "chat").append(said("of a node that was first"))
    with pytest.raises(InvalidInput, match="has a journal already"):
        await move_to_database(path, config)
    async with served(tmp_path, config) as memory:
        assert [one.content for one in await memory.session("user 0", "chat").history()] == [
            "of a node that was first"
        ]
    await reshard(path, 1, PLAIN)
    assert await looked(path, PLAIN) == before
