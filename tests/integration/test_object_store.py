"""Long-term memory at an S3-compatible object store."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from remora import Config, Runtime
from remora.config import LongTermConfig, ObjectStoreConfig, Secret
from remora.errors import ConfigError, LongTermError, OwnershipLost
from remora.ids import user_key
from remora.maintenance.repair import repair
from remora.maintenance.verify import verify
from remora.storage.lance.object_table import ForeignWrite, ObjectTable
from remora.storage.lance.objects import ObjectStore, lance_options
from remora.storage.lance.store import LanceStore
from remora.storage.lance.versions import JournalVersions
from remora.storage.memory import MemoryJournal
from remora.storage.ports import LongTermStore
from remora.testing import HashEmbedder, long_term_suite
from remora.testing.stores import DIMENSION
from tests.lance import put, rows_of
from tests.object_store import ObjectServer, serve_objects
from tests.postgres import Cluster, open_journal

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


@pytest.fixture(scope="module")
def served() -> Iterator[ObjectServer]:
    with serve_objects() as server:
        yield server


@pytest.fixture
def server(served: ObjectServer) -> Iterator[ObjectServer]:
    """The server, without faults."""
    yield served
    served.away, served.denied, served.conditional, served.gate = False, frozenset(), True, None


@pytest.fixture
def faulty(server: ObjectServer) -> ObjectServer:
    if not server.faulty:
        pytest.skip("faults of this server cannot be switched on")
    return server


@asynccontextmanager
async def opened(
    server: ObjectServer, address: str, journal: MemoryJournal, **options: Any
) -> AsyncIterator[LanceStore]:
    versions = options.pop("versions", None) or JournalVersions(journal, "longterm")
    values = {"shards": 1, "batch_ms": 1, "object_store": server.config, **options}
    store = await LanceStore.open(
        address,
        dimension=DIMENSION,
        config=LongTermConfig(**values),
        versions=versions,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        yield store
        tasks.cancel_scope.cancel()
    await store.aclose()


async def flushed(runtime: Runtime, *texts: str) -> None:
    """Have alice say this, and long-term memory have it."""
    chat = runtime.user("alice").session("1")
    await chat.append([{"role": "user", "content": text} for text in texts])
    await chat.flush()
    await runtime.settle()


async def raw_table(server: ObjectServer, address: str, name: str = "mem_000") -> Any:
    """A table as another program opens it."""
    import lancedb  # noqa: PLC0415

    database = await lancedb.connect_async(address, storage_options=lance_options(server.config))
    return await database.open_table(name)


# -- the store -------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", long_term_suite, ids=lambda check: check.__name__)
async def test_suite(
    check: Callable[[LongTermStore], Awaitable[None]], server: ObjectServer
) -> None:
    """S4.19, G13: it does what a store in a directory does."""
    async with opened(server, server.address(), MemoryJournal(), shards=2) as store:
        await check(store)


async def test_few_requests(server: ObjectServer) -> None:
    """A take-over does not wait for long: opening, and a user's first search."""
    journal, address = MemoryJournal(), server.address()
    async with opened(server, address, journal, compact_fragments=1) as store:
        for start in range(0, 60, 10):
            await put(store, rows_of("alice", range(start, start + 10)))
        with server.counted() as adding:
            await put(store, rows_of("alice", range(60, 70)))
        await store.compact()
    with server.counted() as opening:
        async with opened(server, address, journal.restart()) as store:
            with server.counted() as reading:
                found, _ = await store.embedded_rows("alice")
            assert len(found) == 70
    assert sum(adding.values()) <= 6
    assert sum(reading.values()) <= 4
    assert sum(opening.values()) <= 30


async def test_versions_are_cleaned_up(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: versions that nobody reads any more are removed, and what they alone had."""
    monkeypatch.setattr("remora.storage.lance.shard.CLOCK_SLACK_S", 0.0)
    monkeypatch.setattr("remora.storage.lance.shard.COMMIT_GRAIN_S", 0.0)
    journal, address = MemoryJournal(), server.address()
    async with opened(
        server, address, journal, compact_fragments=1, keep_versions_s=0.001
    ) as store:
        for number in range(8):
            await put(store, rows_of("alice", [number]))
        (shard,) = store.tables.shards.values()
        assert shard.objects is not None
        before = await shard.objects.sizes()
        await store.compact()
        await put(store, rows_of("bob", [0]))
        await store.compact()  # what the first one made superfluous is old by now
        after = await shard.objects.sizes()
        assert len([path for path in after if path.startswith("data/")]) < 8
        assert set(before) - set(after)
        assert len(await store.rows("alice")) == 8
        assert await store.verify(deep=True) == []


async def test_erased_objects_are_gone(server: ObjectServer) -> None:
    """G13: after an erasure no object has the user's text, or the name of anything of theirs."""
    journal, address = MemoryJournal(), server.address()
    objects = ObjectStore(address, server.config)
    async with opened(server, address, journal) as store:
        for start in (0, 10):
            await put(store, rows_of("alice", range(start, start + 10)))
            await put(store, rows_of("bob", range(start, start + 10)))
        await store.delete("alice", ["alice-1"])
        before = await objects.sizes("mem_000.lance")
        assert await store.erase(user_key("alice")) == 19
        after = await objects.sizes("mem_000.lance")
        assert not set(before) & set(after)
        for name in after:
            content = await objects.read(name)
            assert b"alice" not in content, name
            assert user_key("alice").encode() not in content, name
        assert len(await store.rows("bob")) == 20


# -- another process -------------------------------------------------------------------------------


async def test_what_another_process_adds_is_undone(server: ObjectServer) -> None:
    """G7: a write that another one came between is done again, and theirs is gone."""
    journal, address = MemoryJournal(), server.address()
    async with opened(server, address, journal) as store:
        await put(store, rows_of("alice", range(3)))
        other = await raw_table(server, address)
        await other.add((await other.query().to_arrow()).slice(0, 2))
        assert len(await store.row_ids()) == 3
        await put(store, rows_of("bob", range(2)))
        assert sorted(await store.row_ids()) == ["alice-0", "alice-1", "alice-2", "bob-0", "bob-1"]
        await other.checkout_latest()
        await other.add((await other.query().to_arrow()).slice(0, 2), mode="overwrite")
        await store.delete("alice", ["alice-2"])
        assert sorted(await store.row_ids()) == ["alice-0", "alice-1", "bob-0", "bob-1"]


async def test_the_lineage_of_versions(server: ObjectServer) -> None:
    """G7: a version made between those of this process is found, and a compaction's own are not."""
    journal, address = MemoryJournal(), server.address()
    async with opened(server, address, journal) as store:
        for number in range(5):
            await put(store, rows_of("alice", [number]))
        await store.search("alice", "number1", None, depth=1)  # the words are indexed for it
        await put(store, rows_of("alice", range(5, 8)))
    versions = JournalVersions(journal, "longterm")
    noted = await versions.read()
    assert noted is not None
    ours, theirs = [await raw_table(server, address) for _ in range(2)]
    first = await ours.version()
    table = ObjectTable(
        "mem_000", ObjectStore(address, server.config), versions, noted.tables["mem_000"]
    )
    assert table.version == first
    await ours.optimize()
    assert await ours.version() > first + 2  # fragments reserved, compacted, indices
    await table.record(await ours.version())
    await ours.delete("id = 'nobody'")
    await theirs.checkout_latest()
    rows = (await theirs.query().to_arrow()).slice(0, 1)
    await ours.delete("id = 'nobody'")
    await theirs.add(rows)  # made on the version before, and committed behind it
    await ours.add(rows)
    with pytest.raises(ForeignWrite):
        await table.record(await ours.version())
    again = await versions.read()
    assert again is not None
    assert again.tables["mem_000"] == table.version


async def test_a_read_sees_only_what_counts(server: ObjectServer) -> None:
    """G7: rows whose version is not noted yet may still be undone."""
    journal, address = MemoryJournal(), server.address()
    versions = JournalVersions(journal, "longterm")
    async with opened(server, address, journal, versions=versions) as store:
        await put(store, rows_of("alice", [0]))
        seen: list[Any] = []
        note = versions.note

        async def look(*arguments: Any, **options: Any) -> None:
            seen.append(await store.row_ids())
            await note(*arguments, **options)

        versions.note = look  # type: ignore[method-assign]
        await put(store, rows_of("alice", [1]))
        assert seen == [["alice-0"]]
        assert sorted(await store.row_ids()) == ["alice-0", "alice-1"]


async def test_an_uncertain_note(server: ObjectServer) -> None:
    """G7: a journal that does not say whether a version counts is asked; the rest is undone."""
    journal, address = MemoryJournal(), server.address()
    versions = JournalVersions(journal, "longterm")
    async with opened(server, address, journal, versions=versions) as store:
        await put(store, rows_of("alice", [0]))
        note = versions.note
        for stored in (True, False):

            async def fail(*arguments: Any, stored: bool = stored, **options: Any) -> None:
                versions.note = note  # type: ignore[method-assign]
                if stored:
                    await note(*arguments, **options)
                raise OSError("the journal's connection broke")

            versions.note = fail  # type: ignore[method-assign]
            rows = rows_of(f"of-{stored}", [0])
            with pytest.raises(LongTermError) as told:
                await put(store, rows)
            assert told.value.retryable
            await put(store, rows, may_exist=True)
            assert len(await store.rows(f"of-{stored}")) == 1


async def test_tables_that_no_journal_noted(server: ObjectServer) -> None:
    """G7: what an older remora has stored counts; later, a table that is not noted is removed."""
    journal, address = MemoryJournal(), server.address()
    config = LongTermConfig(shards=1, batch_ms=1, object_store=server.config)
    unfenced = await LanceStore.open(address, dimension=DIMENSION, config=config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(unfenced.run)
        await put(unfenced, rows_of("alice", range(3)))
        async with opened(server, address, journal) as store:
            assert len(await store.row_ids()) == 3
        tasks.cancel_scope.cancel()
    await unfenced.aclose()
    await journal.change_settings({"versions:longterm": '{"tables":{}}'})
    async with opened(server, address, journal.restart()) as store:
        assert await store.row_ids() == []
        assert await ObjectStore(address, server.config).sizes("mem_000.lance") == {}


async def test_readers_and_former_owners_change_nothing(server: ObjectServer) -> None:
    """G12: who only reads takes the tables at their versions, and writes nothing. G7: writes of a
    former owner are refused with `OwnershipLost`, which ends its runtime.
    """
    journal, address = MemoryJournal(), server.address()
    async with opened(server, address, journal) as store:
        await put(store, rows_of("alice", range(3)))
        reading = journal.restart()
        reading.epoch = 0
        with server.counted() as made:
            async with opened(server, address, reading) as reader:
                assert len(await reader.rows("alice")) == 3
        assert set(made) <= {"GET", "HEAD"}
        journal.restart()
        with pytest.raises(OwnershipLost):
            await put(store, rows_of("alice", [3]))


@pytest.mark.parametrize("lost", ["data/", "_indices/", "_versions/", "mem_000.lance/"])
async def test_lost_objects(server: ObjectServer, lost: str) -> None:
    """G7: a table whose objects are gone is filled again from the journal; an index is rebuilt."""
    journal, address = MemoryJournal(), server.address()
    objects = ObjectStore(address, server.config)
    async with opened(server, address, journal) as store:
        await put(store, rows_of("alice", range(3)))
    await objects.remove([name for name in await objects.sizes("mem_000.lance") if lost in name])
    async with opened(server, address, journal.restart()) as store:
        kept = lost == "_indices/"
        assert store.refill_needed is not kept
        assert len(await store.row_ids()) == (3 if kept else 0)
        await put(store, rows_of("bob", range(2)))
        found = await store.search("bob", "number1", None, depth=5) if kept else ()
        assert not kept or found
    async with opened(server, address, journal.restart()) as store:
        assert store.refill_needed is not kept  # until the journal has the rebuild
        await store.clear_refill()
        assert await store.verify(deep=True) == []
    async with opened(server, address, journal.restart()) as store:
        assert not store.refill_needed


# -- configuration, and what is refused ------------------------------------------------------------


def config_of(server: ObjectServer, address: str, **options: Any) -> Config:
    found = Config.from_dict(
        {
            "tokens": {"counter": "heuristic"},
            "long_term": {"batch_ms": 1, "shards": 2, "uri": address},
            "recall": {"deadline_s": 600},
            "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.02},
            **options,
        }
    )
    there = msgspec.structs.replace(found.long_term, object_store=server.config)
    return msgspec.structs.replace(found, long_term=there)


def runtime(directory: Path, config: Config) -> Runtime:
    return Runtime(directory, config=config, embedder=HashEmbedder(32))


async def test_a_runtime(server: ObjectServer, tmp_path: Path) -> None:
    """S4.19: append, recall, forget, verify, repair, another embedder: all of it at an address."""
    config = config_of(server, server.address())
    async with runtime(tmp_path, config) as memory:
        await flushed(memory, *[f"the kelp number{number} is green" for number in range(8)])
        await memory.user("bob").session("1").append({"role": "user", "content": "opal is mine"})
        await memory.user("bob").session("1").flush()
        assert await memory.user("alice").recall("kelp number3", limit=1)
        receipt = await memory.user("alice").forget()
        assert receipt.long_term == 8
        assert await memory.user("alice").recall("kelp", limit=1) == []
    assert not list(tmp_path.glob("longterm*"))
    with server.counted() as made:
        assert (await verify(tmp_path, config, deep=True)).findings == ()
    assert set(made) <= {"GET", "HEAD"}
    assert (await repair(tmp_path, config)).done == ()
    other = Runtime(tmp_path, config=config, embedder=HashEmbedder(48), reembed=True)
    async with other as memory:
        await memory.reembedded()
        assert (await memory.user("bob").recall("opal", limit=1))[0].text == "opal is mine"
    assert (await verify(tmp_path, config, deep=True)).findings == ()


async def test_while_the_store_is_away(faulty: ObjectServer, tmp_path: Path) -> None:
    """G3, G8: appends go on, recall says so in `sources`, jobs are done when it is back."""
    config = config_of(faulty, faulty.address())
    async with runtime(tmp_path, config) as memory:
        await flushed(memory, "the kelp is green")
    async with runtime(tmp_path, config) as memory:
        chat = memory.user("alice").session("1")
        faulty.denied = frozenset({"GET", "HEAD", "PUT"})  # to 503, LanceDB would ask for seconds
        await chat.append({"role": "user", "content": "the opal is blue"})
        context = await chat.load(query="kelp")
        assert context.sources.long_term.status == "failed"
        assert "the opal is blue" in str(context.messages)
        faulty.denied = frozenset()
        await chat.flush()
        await memory.settle()
        assert len(await memory.user("alice").recall("kelp opal", limit=5)) == 2


async def test_a_start_without_the_store(faulty: ObjectServer, tmp_path: Path) -> None:
    """G3: a runtime starts, and stores messages, though the object store cannot be reached."""
    config = config_of(faulty, faulty.address())
    faulty.away = True
    async with runtime(tmp_path, config) as memory:
        await memory.user("alice").session("1").append({"role": "user", "content": "opal"})
        faulty.away = False
        await flushed(memory, "kelp")
        assert await memory.user("alice").recall("kelp", limit=1)


@contextmanager
def silent(server: ObjectServer) -> Iterator[threading.Event]:
    """The server takes requests and answers none; set when there is one."""
    asked, back = threading.Event(), threading.Event()

    def wait(_method: str, _path: str) -> None:
        asked.set()
        back.wait()

    server.gate = wait
    try:
        yield asked
    finally:
        server.gate = None
        back.set()


@pytest.fixture
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a store until its client gives up waits for an hour."""
    import obstore.store  # noqa: PLC0415

    from_url: Any = obstore.store.from_url

    def patient(address: str, *, client_options: Any, **options: Any) -> Any:
        options["retry_config"] = {"retry_timeout": timedelta(hours=1)}
        return from_url(address, client_options={**client_options, "timeout": "1h"}, **options)

    monkeypatch.setattr("obstore.store.from_url", patient)
    monkeypatch.setattr(
        "remora.storage.lance.store.lance_options",
        lambda config: {**lance_options(config), "timeout": "1h"},
    )


@pytest.mark.usefixtures("patient_clients")
async def test_a_start_while_the_store_is_silent(
    faulty: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: an owner that takes over does not wait for a store that does not answer."""
    monkeypatch.setattr("remora.storage.lance.objects.CHECK_S", 0.1)
    config = config_of(faulty, faulty.address())
    with silent(faulty):
        memory = await runtime(tmp_path, config).start()
        await memory.user("alice").session("1").append({"role": "user", "content": "kelp"})
    await memory.user("alice").session("1").flush()
    assert await memory.user("alice").recall("kelp", limit=1)
    await memory.aclose()


@pytest.mark.usefixtures("patient_clients")
async def test_an_end_while_the_store_is_silent(
    faulty: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: an owner that is told to leave does not keep the next one waiting for a write that is not
    answered; that one does it again, once.
    """
    monkeypatch.setattr("remora.storage.lance.store.CLOSE_S", 0.1)
    config = config_of(faulty, faulty.address())
    memory = await runtime(tmp_path, config).start()
    await memory.user("alice").remember("the kelp is green")
    await memory.settle()
    with silent(faulty) as asked:
        await memory.user("alice").remember("the opal is blue")
        await anyio.to_thread.run_sync(asked.wait)
        await memory.aclose()
    async with runtime(tmp_path, config) as memory:
        await memory.settle()
        found = [row.text for row in await memory.user("alice").memories()]
    assert found == ["the kelp is green", "the opal is blue"]


async def test_a_bucket_that_cannot_be_used(faulty: ObjectServer, tmp_path: Path) -> None:
    """Refused at the start, with what to do, and without an address or a key."""
    address, taken = faulty.address(), faulty.address()
    nowhere = address.replace(faulty.bucket, "nobodys-bucket")
    async with runtime(tmp_path / "other", config_of(faulty, taken)):
        pass
    for where, denied, conditional, expected in (
        (nowhere, "", True, "no such bucket"),
        (address, "PUT", True, "get, put and delete"),
        (address, "GET", True, "get, put and delete"),
        (address, "", False, "conditional writes"),
        (taken, "", True, "another memory's tables"),
    ):
        faulty.denied, faulty.conditional = frozenset({denied}), conditional
        with pytest.raises(ConfigError, match=expected) as told:
            async with runtime(tmp_path / "memory", config_of(faulty, where)):
                pass
        assert told.value.key == "long_term.uri"
        for secret in (where, faulty.endpoint):
            assert secret not in repr(told.value), expected


def test_options() -> None:
    """What is configured is passed on, and what does not go together is refused before anything is
    sent; the rest is the environment's.
    """
    for values, match in (
        ({"endpoint": "localhost:9000"}, "https://host:port"),
        ({"endpoint": "http://10.0.0.5:9000"}, "in the clear"),
        ({"access_key_id": Secret("AK")}, "go together"),
        ({"secret_access_key": Secret("SK")}, "go together"),
    ):
        with pytest.raises(ConfigError, match=match):
            lance_options(ObjectStoreConfig(**values))
    config = Config.from_dict(
        {
            "long_term": {
                "uri": "s3://bucket/memory",
                "object_store": {
                    "endpoint": "http://10.0.0.5:9000",
                    "allow_http": True,
                    "access_key_id": "${{ secrets.ID }}",
                    "secret_access_key": "${{ secrets.KEY }}",
                },
            }
        },
        secrets={"ID": "id", "KEY": "key"},
    )
    assert lance_options(config.long_term.object_store) == {
        "aws_access_key_id": "id",
        "aws_secret_access_key": "key",
        "aws_endpoint": "http://10.0.0.5:9000",
        "allow_http": "true",
    }
    assert lance_options(ObjectStoreConfig()) == {}
    assert "key" not in repr(config.long_term.object_store.secret_access_key)


async def test_credentials_of_the_environment(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not configured is found where the store's own tools look."""
    config = server.config
    for name, value in {
        "AWS_ENDPOINT_URL": config.endpoint,
        "AWS_REGION": config.region,
        "AWS_ACCESS_KEY_ID": config.access_key_id.reveal(),
        "AWS_SECRET_ACCESS_KEY": config.secret_access_key.reveal(),
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    journal, address = MemoryJournal(), server.address()
    await ObjectStore(address, ObjectStoreConfig()).claim(journal.instance)
    async with opened(server, address, journal, object_store=ObjectStoreConfig()) as store:
        await put(store, rows_of("alice", range(2)))
        assert len(await store.rows("alice")) == 2


async def test_a_runtime_over_postgresql_is_replaced(
    server: ObjectServer, cluster: Cluster, tmp_path: Path
) -> None:
    """G7, G12: two processes of one memory, of which the first does not know of the second."""
    config = config_of(server, server.address())

    def on(directory: str) -> Runtime:
        async def journal() -> Any:
            return await open_journal(cluster.dsn(), "remora", lease_s=0)

        return Runtime(
            tmp_path / directory, config=config, embedder=HashEmbedder(32), journal=journal
        )

    former = on("one")
    await former.start()
    former.reschedule("checkpoint", 3_600)  # it would notice
    await flushed(former, "the kelp is green")
    store = await former.internals.long_term()
    async with on("two") as memory:
        await flushed(memory, "the opal is blue")
        (row, *_) = await store.rows("alice")
        with pytest.raises(OwnershipLost):
            await store.delete("alice", [row.id])
        await flushed(memory, "the reed is brown")
        found = await memory.user("alice").recall("kelp opal reed", limit=5)
        assert {one.text for one in found} == {
            "the kelp is green",
            "the opal is blue",
            "the reed is brown",
        }
        receipt = await memory.user("alice").forget()
        assert receipt.long_term == 3
    with pytest.raises(OwnershipLost):
        await flushed(former, "the moss is soft")
    await former.aclose()
