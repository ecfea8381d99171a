"""Two long-term stores, one suite; and what LanceDB must do beyond it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt
import pytest

from remora import Runtime
from remora.errors import LongTermError
from remora.ids import user_key
from remora.storage.lance.store import LanceStore
from remora.storage.memory import MemoryStore
from remora.storage.ports import LongTermStore, MemoryRow, Scope
from remora.testing import HashEmbedder, long_term_row, long_term_suite
from remora.testing.stores import DIMENSION
from tests.lance import lance, put, rows_of

pytestmark = pytest.mark.anyio


Check = Callable[[LongTermStore], Awaitable[None]]


@pytest.mark.parametrize("check", long_term_suite, ids=lambda check: check.__name__)
@pytest.mark.parametrize("place", ["directory", "address", "memory"])
async def test_suite(check: Check, place: str, tmp_path: Path) -> None:
    """S4.19, S2.16, S2.17, S2.31, S4.17, G13: LanceDB does what a store must, in a directory and
    where files are out of reach; so does the store in memory.
    """
    if place == "memory":
        await check(MemoryStore(DIMENSION))
        return
    async with lance(tmp_path / "lance" if place == "directory" else None, shards=2) as store:
        await check(store)


async def test_columns(tmp_path: Path) -> None:
    """S2.17: the document's columns, none of which may be null; when and how often a row was read
    is the journal's business.
    """
    async with lance(tmp_path / "lance") as store:
        await put(store, [long_term_row("r", "x")])
        (shard,) = store.tables.shards.values()
        schema = await shard.table.schema()
        wanted = {"id", "user_id", "session_id", "content", "vector", "memory_type", "created_at"}
        assert wanted | {"importance"} < set(schema.names)
        assert not any(field.nullable for field in schema)
        assert schema.field("vector").type.list_size == DIMENSION
        assert not {"accessed_at", "access_count"} & set(schema.names)


async def test_a_bad_row_fails_alone(tmp_path: Path) -> None:
    """S2.17, G11: a row that cannot be stored takes nobody else's down, though they would have
    shared a commit.
    """
    async with lance(tmp_path / "lance", batch_ms=60_000, batch_rows=2) as store:
        failed: list[str] = []

        async def add(user: str) -> None:
            try:
                await put(store, [long_term_row(f"of {user}", "x", user=user)])
            except LongTermError:
                failed.append(user)

        async with anyio.create_task_group() as tasks:
            for user in ("alice", "", "bob"):
                tasks.start_soon(add, user)
        assert failed == [""]
        assert sorted(await store.row_ids()) == ["of alice", "of bob"]


def batch_of(
    first: int, count: int, users: int = 40
) -> tuple[list[MemoryRow], npt.NDArray[np.float32]]:
    """Rows of so many users, and vectors."""
    rows = [
        long_term_row(f"r{n}", f"apple number{n}", user=f"user-{n % users}", created_us=n)
        for n in range(first, first + count)
    ]
    vectors = np.random.default_rng(first).normal(size=(count, DIMENSION)).astype(np.float32)
    return rows, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


async def test_user_key_index_at_scale(tmp_path: Path) -> None:
    """S2.18: from some thousands of rows on, a listing and both kinds of search go through the
    index on the user's key.
    """
    async with lance(tmp_path / "lance", index_user_rows=2_000, compact_fragments=1) as store:
        for batch in range(6):
            await store.add(*batch_of(batch * 1_000, 1_000, 50), may_exist=False)
        await store.compact()  # unless upkeep did it while the rows were written
        assert (await store.statistics()).compactions > 0
        await store.search("user-7", "apple", None, depth=1)  # the words are indexed for it
        (shard,) = store.tables.shards.values()
        table, mine = shard.table, store.reader.within(user_key("user-7"), Scope(types=("fact",)))
        plans = [
            await table.query().where(mine).explain_plan(),
            await table.query()
            .nearest_to(np.ones(DIMENSION, np.float32))
            .where(mine)
            .limit(5)
            .explain_plan(),
            await table.query().nearest_to_text("apple").where(mine).limit(5).explain_plan(),
        ]
        for plan in plans:
            assert f"ScalarIndexQuery: query=[user_key = {user_key('user-7')}]@user_key_idx" in plan
        found = await store.rows("user-7")
        assert len(found) == 120
        assert {row.user for row in found} == {"user-7"}


async def test_words_are_indexed_where_somebody_asks_for_them(tmp_path: Path) -> None:
    """A table of small users has no index of words, which cost more than all else that is written,
    until a user has many rows. Then upkeep makes it, before that user's search has to.
    """

    async def indexed() -> list[str]:
        (shard,) = store.tables.shards.values()
        return [column for one in await shard.table.list_indices() for column in one.columns]

    async with lance(tmp_path / "lance", words_from=100) as store:
        await store.add(*batch_of(0, 300, users=40), may_exist=False)
        await store.index_written()
        assert await indexed() == []
        await store.add(*batch_of(300, 150, users=1), may_exist=False)
        await store.index_written()
        assert await indexed() == ["turn"]
        (best, *_) = await store.search("user-0", "number449", None, depth=5)
        assert best.row.id == "r449"
        await store.erase(user_key("user-0"))
        assert await indexed() == []
        (best, *_) = await store.search("user-7", "number7", None, depth=5)
        assert best.row.id == "r7"


async def test_a_merge_is_for_doubt(tmp_path: Path) -> None:
    """G7, S4.19: first attempts are added, in one commit; where one of two at a row is in doubt it
    is merged, and there once.
    """
    async with lance(tmp_path / "lance", batch_ms=60_000, batch_rows=4) as store:
        rows = [long_term_row(f"r{number}", "apple") for number in range(4)]
        async with anyio.create_task_group() as tasks:
            for row in rows:
                tasks.start_soon(put, store, [row])
        statistics = await store.statistics()
        assert (statistics.commits, statistics.merges) == (1, 0)
        more = [*rows[2:], long_term_row("r4", "apple")]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put, store, more[-1:])
            tasks.start_soon(partial(put, store, more, may_exist=True))
        statistics = await store.statistics()
        assert (statistics.commits, statistics.merges) == (2, 1)
        assert sorted(await store.row_ids()) == ["r0", "r1", "r2", "r3", "r4"]


async def test_upkeep_writes_what_came(tmp_path: Path) -> None:
    """S4.19, G10: small flushes into a large table: fragments and what upkeep writes are bounded,
    and every row is found.
    """
    async with lance(tmp_path / "lance", compact_fragments=10) as store:
        await store.add(*batch_of(0, 10_000), may_exist=False)
        (shard,) = store.tables.shards.values()
        async with shard.lock:
            await shard.rewrite(None, index_rows=2_000)
        assert shard.files is not None
        whole = (await store.statistics()).rewritten_bytes
        most = 0
        for number in range(60):
            await store.add(*batch_of(10_000 + number * 5, 5), may_exist=False)
            await store.compact()
            manifest = await anyio.to_thread.run_sync(shard.files.manifest)
            assert manifest is not None
            most = max(most, len(manifest.fragments))
        written = (await store.statistics()).rewritten_bytes - whole
        assert (await store.statistics()).compactions == 6
        assert written < whole * 0.2  # LanceDB's own would have written it six times
        assert most <= 10 + 5
        assert len(await store.rows("user-7")) == 10_300 // 40 + 1
        for n in (7, 10_007, 10_287):
            found = await store.search("user-7", f"number{n}", None, depth=3)
            assert f"r{n}" in {one.row.id for one in found}
        assert list(await store.verify(deep=True)) == []
        # twice as many: now it pays to write it anew
        await store.add(*batch_of(20_000, 11_000), may_exist=False)
        for number in range(10):
            await store.add(*batch_of(40_000 + number, 1), may_exist=False)
        await store.compact()
        manifest = await anyio.to_thread.run_sync(shard.files.manifest)
        assert manifest is not None
        assert [one.rows for one in manifest.fragments] == [21_310]


async def test_address_is_not_disclosed(tmp_path: Path) -> None:
    """S2.34: an address of long-term memory that does not work is not in the error, nor in what
    caused it.
    """
    await anyio.Path(tmp_path / "hunter2").write_text("no directory")
    uri = str(tmp_path / "hunter2" / "inside")
    with pytest.raises(LongTermError) as caught:
        async with lance(uri):
            pass
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = None if error.__suppress_context__ else (error.__cause__ or error.__context__)


async def test_closing_waits_for_what_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What has begun gets its answer, the rest an error; LanceDB does not panic."""
    answered, refused = list[int](), list[str]()
    vector, begun = np.ones(DIMENSION, np.float32), anyio.Event()

    async def search(store: LanceStore) -> None:
        try:
            found = await store.search("alice", "amber", vector, depth=20)
        except LongTermError as e:
            refused.append(str(e))
        else:
            answered.append(len(found))
            begun.set()

    async with lance(tmp_path / "lance") as store, anyio.create_task_group() as tasks:
        await put(store, rows_of("alice", range(300)))
        for _ in range(60):
            tasks.start_soon(search, store)
        await begun.wait()  # some read by now, and the others wait for their turn
        await store.aclose()
    assert len(answered) + len(refused) == 60
    assert min(answered) >= 20
    assert set(refused) <= {"long-term memory failed searching: it is closed"}
    assert "panicked" not in capfd.readouterr().err


async def test_a_runtime_over_another_store(tmp_path: Path) -> None:
    """S2.16, S4.19: whatever does what a store must is long-term memory: flushed, recorded,
    recalled, pruned, and closed.
    """

    class Closing(MemoryStore):
        async def aclose(self) -> None:
            closed.append(self)

    closed: list[LongTermStore] = []
    embedder, store = HashEmbedder(), Closing(HashEmbedder().dimension)
    async with Runtime(tmp_path, embedder=embedder, store=store) as runtime:
        alice = runtime.user("alice")
        await alice.session("s").append({"role": "user", "content": "I keep bees near Coimbra"})
        await alice.session("s").flush()
        await alice.remember("Ottilie sells honey", importance=0.9)
        await runtime.settle()
        assert [hit.text for hit in await alice.recall("bees", limit=1)] == [
            "I keep bees near Coimbra"
        ]
        assert len(await store.row_ids()) == 2
        await alice.prune(keep=1, strategy="importance")
        assert [row.content for row in await store.rows("alice")] == ["Ottilie sells honey"]
        assert closed == []
    assert closed == [store]
    assert not await anyio.Path(tmp_path / "longterm").exists()
