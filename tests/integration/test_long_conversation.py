"""A user of many rows: what is found does not depend on indices, and upkeep keeps up by itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt
import pytest

from remora.config import LongTermConfig
from remora.ids import row_id, user_key
from remora.storage.lance import indices, search
from remora.storage.lance.search import LanceSearch
from remora.storage.lance.shard import MOST_UNINDEXED
from remora.storage.lance.store import LanceStore
from remora.storage.ports import MemoryRow, Scope, SessionKey
from tests.patience import until

pytestmark = pytest.mark.anyio
DIMENSION = 32
WORDS = ["amber", "bridge", "copper", "delta", "ember", "fjord", "garnet", "harbour", "island"]


def rows_of(user: str, first: int, count: int) -> list[MemoryRow]:
    rows = []
    for seq in range(first, first + count):
        text = f"{WORDS[seq % 9]} {WORDS[seq // 9 % 9]} item{seq} lot{seq % 97}"
        session = f"s{seq % 3}"
        rows.append(
            MemoryRow(
                row_id(SessionKey(user, session), seq),
                user,
                session,
                seq,
                "user",
                "",
                text,
                f"User: {text}",
                f"User: {text}\nUser: lot{(seq + 1) % 97}",
                "message",
                0.5,
                1_700_000_000_000_000 + seq,
                9,
            )
        )
    return rows


def vectors_of(rows: Sequence[MemoryRow]) -> npt.NDArray[np.float32]:
    found = np.array(
        [np.random.default_rng(row.seq).standard_normal(DIMENSION) for row in rows], np.float32
    )
    found[[row.seq % 50 == 0 for row in rows]] = 0  # without a word that the embedder knows
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(found / np.where(lengths == 0, 1, lengths), np.float32)


async def fill(store: LanceStore, user: str, count: int, *, first: int = 0) -> None:
    rows = rows_of(user, first, count)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        for start in range(0, count, 500):
            some = rows[start : start + 500]
            await store.add(some, vectors_of(some), may_exist=False)
        tasks.cancel_scope.cancel()


async def answers(
    store: LanceStore, user: str, scope: Scope
) -> list[dict[str, list[tuple[str, float]]]]:
    """For some questions, each list's rows and scores, best first."""
    found = []
    for seq in (5, 77, 400):
        (row,) = rows_of(user, seq, 1)
        near = vectors_of([row])[0] + vectors_of(rows_of(user, seq + 1, 1))[0]
        hits = await store.search(
            user, f"lot{seq % 97} item{seq}", near / np.linalg.norm(near), depth=40, scope=scope
        )
        lists: dict[str, list[tuple[str, float]]] = {}
        for hit in hits:
            for name, score in hit.scores.items():
                lists.setdefault(name, []).append((hit.row.id, round(score, 4)))
        found.append(
            {
                name: sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
                for name, pairs in lists.items()
            }
        )
    return found


def config(**changes: object) -> LongTermConfig:
    return LongTermConfig(shards=1, batch_ms=0, index_user_rows=100, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("scope", [Scope(), Scope(session="s1")], ids=["all", "session"])
async def test_vectors_found_do_not_depend_on_their_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: Scope
) -> None:
    """A search by vector finds the same rows, in the same order, with the same scores, before the
    compaction that indexes vectors, after it, with rows that came later, and after erasing another
    user.
    """
    async with aclosing(
        await LanceStore.open(tmp_path / "lance", dimension=DIMENSION, config=config())
    ) as store:
        await fill(store, "alice", 2_000)
        await fill(store, "bob", 300)
        (shard,) = store.tables.shards.values()
        before = await answers(store, "alice", scope)
        indexed_before = shard.vectors_indexed
        monkeypatch.setattr(indices, "MANY_ROWS", 1_000)
        monkeypatch.setattr(search, "MANY_ROWS", 1_000)
        await fill(store, "dora", 1_600)
        await store.index_written()
        assert (indexed_before, shard.vectors_indexed) == (False, True)
        assert shard.unindexed == 0
        after = await answers(store, "alice", scope)
        few = await answers(store, "bob", scope)
        await fill(store, "carol", 2_000)
        await store.index_written()  # extends the index of vectors
        after += await answers(store, "alice", scope)
        await store.erase(user_key("bob"))
        assert shard.vectors_indexed
        erased = await answers(store, "alice", scope)
        vectors = [lists["vector"] for lists in before]
        assert [lists["vector"] for lists in after + erased] == 3 * vectors
        assert all(len(lists["vector"]) == 40 for lists in before + few)
        assert await answers(store, "bob", scope) == [{}, {}, {}]


async def test_rows_that_move_during_a_search_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction gives rows other places after a search has found them, and before it reads them:
    the answer is the same.
    """
    fetch = LanceSearch.fetch

    async def compact_and_fetch(self: LanceSearch, table: Any, *rest: Any) -> Any:
        await table.optimize()
        return await fetch(self, table, *rest)

    async with aclosing(
        await LanceStore.open(tmp_path / "lance", dimension=DIMENSION, config=config())
    ) as store:
        await fill(store, "alice", 1_200)
        before = await answers(store, "alice", Scope(session="s1"))
        monkeypatch.setattr(LanceSearch, "fetch", compact_and_fetch)
        moved = await answers(store, "alice", Scope(session="s1"))
        assert [lists["vector"] for lists in moved] == [lists["vector"] for lists in before]
        assert all(len(lists["vector"]) == 40 for lists in before)


async def test_words_found_do_not_depend_on_compaction(tmp_path: Path) -> None:
    """A search by words finds the same rows, and the same best row, before and after compaction;
    and the same scores when the table is opened again. (LanceDB scores rows that are in no index
    by the statistics of those that are, so other scores change a little.)
    """
    path = tmp_path / "lance"
    store = await LanceStore.open(path, dimension=DIMENSION, config=config(compact_fragments=1))
    await fill(store, "alice", 900)
    before = await answers(store, "alice", Scope())
    assert await store.compact() == 1
    after = await answers(store, "alice", Scope())
    await store.aclose()
    store = await LanceStore.open(path, dimension=DIMENSION, config=config())
    again = await answers(store, "alice", Scope())
    await store.aclose()
    for old, new, reopened in zip(before, after, again, strict=True):
        assert {id_ for id_, _ in old["turn"]} == {id_ for id_, _ in new["turn"]}
        assert old["turn"][0][0] == new["turn"][0][0]
        assert new["turn"] == reopened["turn"]
        assert old["vector"] == new["vector"] == reopened["vector"]


async def test_rows_that_came_in_bulk_are_indexed_without_waiting_for_the_interval(
    tmp_path: Path,
) -> None:
    """The writer has the words of a bulk indexed at once, while it runs."""
    async with aclosing(
        await LanceStore.open(
            tmp_path / "lance", dimension=DIMENSION, config=config(), words_from=MOST_UNINDEXED
        )
    ) as store:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            rows = rows_of("alice", 0, 3 * MOST_UNINDEXED)
            await store.add(rows, vectors_of(rows), may_exist=False)
            more = rows_of("alice", len(rows), MOST_UNINDEXED + 1)
            await store.add(more, vectors_of(more), may_exist=False)
            (shard,) = store.tables.shards.values()
            await until(lambda: shard.searchable and not shard.unindexed, "all rows are indexed")
            tasks.cancel_scope.cancel()


async def test_a_large_table_is_rewritten_in_parts(tmp_path: Path) -> None:
    """G13: an erasure that copies the table in several parts leaves every other row, in order, in
    one fragment, and none of the user's.
    """
    async with aclosing(
        await LanceStore.open(tmp_path / "lance", dimension=None, config=config())
    ) as store:
        others = [row for user in ("zoe", "adam") for row in rows_of(user, 0, 9_000)]
        mine = rows_of("bob", 0, 500)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            await store.add([*others[::2], *mine, *others[1::2]], None, may_exist=False)
            tasks.cancel_scope.cancel()
        assert await store.erase(user_key("bob")) == len(mine)
        (shard,) = store.tables.shards.values()
        assert shard.files is not None
        manifest = await anyio.to_thread.run_sync(shard.files.manifest)
        assert manifest is not None
        assert [one.rows for one in manifest.fragments] == [len(others)]
        assert sorted(await store.row_ids()) == sorted(row.id for row in others)
        for user in ("zoe", "adam"):
            found = await store.rows(user)
            assert [row.seq for row in found] == list(range(9_000))
        assert list(await store.verify(deep=True)) == []
