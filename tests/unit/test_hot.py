"""Users' rows in memory: found as the store finds them, bounded, never stale, gone when the user
is.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

from remora import Embedder
from remora.actors.policies.bm25 import text_indices, words
from remora.actors.policies.text_index import make_terms
from remora.config import RecallConfig
from remora.errors import LongTermError
from remora.models.ports import embed_texts
from remora.recall import user_index
from remora.recall.index_cache import UserIndexCache
from remora.recall.question import Question
from remora.recall.recall import Recall
from remora.recall.user_index import UserIndex
from remora.storage.memory import MemoryStore
from remora.storage.ports import BLOCK_TYPE, EVERYTHING, LongTermStore, MemoryRow, Scope
from remora.testing import HashEmbedder, long_term_row

pytestmark = pytest.mark.anyio

EMBEDDER = HashEmbedder(16)


class WatchedStore(MemoryStore):
    """Counts searches of questions, reads and counts; the last two may be held up, or fail."""

    def __init__(self, dimension: int | None = EMBEDDER.dimension) -> None:
        super().__init__(dimension)
        self.searches = self.reads = self.counts = 0
        self.held: dict[str, anyio.Event] = {}
        self.held_counts: set[str] = set()
        self.reading = anyio.Event()
        self.failure: Exception | None = None

    async def search(self, *arguments: Any, **options: Any) -> Any:
        self.searches += arguments[2] is not None  # related words have no vector
        return await super().search(*arguments, **options)

    async def embedded_rows(self, user: str, scope: Scope = EVERYTHING) -> Any:
        self.reads += 1
        found = await super().embedded_rows(user, scope)
        await self._hold(user)
        return found

    async def count(self, user: str) -> int:
        self.counts += 1
        found = await super().count(user)
        if user in self.held_counts:
            await self._hold(user)
        return found

    async def _hold(self, user: str) -> None:
        self.reading.set()
        if user in self.held:
            await self.held[user].wait()
        if self.failure is not None:
            raise self.failure

    async def put(self, *rows: MemoryRow) -> None:
        vectors = await embed_texts(EMBEDDER, [row.content for row in rows])
        await self.add(rows, vectors, may_exist=False)


def recall_over(
    store: LongTermStore, embedder: Embedder | None = EMBEDDER, **config: Any
) -> Recall:
    async def opened() -> LongTermStore:
        return store

    return Recall(opened, embedder, RecallConfig(**{"cache": 0, **config}), importance_weight=0.2)


@asynccontextmanager
async def running(store: LongTermStore, **config: Any) -> AsyncIterator[Recall]:
    recall = recall_over(store, **config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recall.run)
        await anyio.wait_all_tasks_blocked()
        yield recall
        tasks.cancel_scope.cancel()


async def found(
    recall: Recall, query: str = "tea", user: str = "alice", **options: Any
) -> list[str]:
    return [memory.id for memory in await recall(user, query, limit=100, **options)]


def teas(user: str, count: int) -> list[MemoryRow]:
    return [
        long_term_row(f"{user}-{n}", f"tea number {n} of {user}", user=user, created_us=n)
        for n in range(count)
    ]


async def test_rows_are_read_once() -> None:
    """S4.39, G10: the first recall reads the user's rows, the next ones search them in memory,
    whatever they ask, and however many ask at once; recall.hot_mb 0 asks the store each time.
    """
    store = WatchedStore()
    await store.put(
        long_term_row("r1", "green tea"),
        long_term_row("r2", "black coffee"),
        long_term_row("b", "tea", user="bob"),
    )
    async with running(store, hot_mb=0) as recall:
        for _ in range(2):
            assert len(await found(recall)) == 2
        assert (store.reads, store.searches) == (0, 2)
        assert recall.index_statistics().users == 0
    store.held["alice"] = anyio.Event()
    answers: list[list[str]] = []

    async def ask() -> None:
        answers.append(await found(recall))

    async with running(store) as recall:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(ask)
            await store.reading.wait()
            store.held["alice"].set()
        assert [one[0] for one in answers] == ["r1"] * 20
        assert (await found(recall, "coffee"))[0] == "r2"
        assert (store.reads, store.searches) == (1, 2)
        assert await found(recall, user="bob") == ["b"]
        assert await found(recall, user="nobody") == []
        statistics = recall.index_statistics()
        assert (statistics.users, statistics.rows) == (3, 3)
        assert (statistics.hits, statistics.misses) == (1, 22)


@pytest.mark.parametrize("turns", range(12))
async def test_a_recall_that_comes_while_the_runtime_closes_does_not_keep_it_open(
    turns: int,
) -> None:
    """S4.39: in whatever turn of the event loop, while the runtime waits for a read or after it."""
    let_go, closed, scope = anyio.Event(), anyio.Event(), anyio.CancelScope()

    class Uninterrupted(WatchedStore):
        async def embedded_rows(self, user: str, scope: Scope = EVERYTHING) -> Any:
            self.reading.set()
            with anyio.CancelScope(shield=user == "alice"):  # as in a thread
                await let_go.wait()
            return await super().embedded_rows(user, scope)

    store = Uninterrupted()
    await store.put(*teas("alice", 3), *teas("bob", 3))
    recall = recall_over(store)

    async def live() -> None:
        with scope:
            await recall.run()
        closed.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(found, recall, "tea", "alice")
        await store.reading.wait()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        let_go.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks.start_soon(found, recall, "tea", "bob")
        for _ in range(100):
            await asyncio.sleep(0)
        ended = closed.is_set()
        for task in asyncio.all_tasks():
            if task.get_name() == "remora.recall.read":
                task.cancel()
    assert ended


async def test_a_write_is_seen_by_the_next_recall() -> None:
    """S4.39: what the user wrote is found, what was removed is not; nobody else's rows are read
    again.
    """
    for gone in (False, True):
        store = WatchedStore()
        await store.put(*teas("alice", 3), *teas("bob", 2))
        async with running(store) as recall:
            await found(recall)
            await found(recall, user="bob")
            await store.put(long_term_row("new", "white tea"))
            await store.delete("alice", ["alice-0"])
            recall.note_change("alice", gone=gone)
            assert set(await found(recall)) == {"alice-1", "alice-2", "new"}
            await found(recall, user="bob")
            assert store.reads == 3


async def test_a_write_during_a_read() -> None:
    """S4.39: rows that a write overtook answer who asked before it; who asks after it reads anew,
    and only that is kept.
    """
    store = WatchedStore()
    await store.put(*teas("alice", 1))
    answers: dict[str, list[str]] = {}

    async def ask(name: str) -> None:
        answers[name] = await found(recall)

    async with running(store) as recall, anyio.create_task_group() as tasks:
        store.held["alice"] = anyio.Event()
        tasks.start_soon(ask, "before")
        await store.reading.wait()
        await store.put(long_term_row("new", "white tea"))
        recall.note_change("alice", gone=False)
        old, store.held["alice"], store.reading = store.held["alice"], anyio.Event(), anyio.Event()
        tasks.start_soon(ask, "after")
        await store.reading.wait()
        old.set()
        store.held["alice"].set()
        await anyio.wait_all_tasks_blocked()
        assert answers["before"] == ["alice-0"]
        assert set(answers["after"]) == set(await found(recall)) == {"alice-0", "new"}
        assert store.reads == 2


async def test_a_deadline_ends_the_waiting_and_not_the_reading() -> None:
    """G11, S4.39: who gives up takes nothing from others, and what was being read is there for the
    next. A `Recall` whose `run` is not running answers as well, and then the next one reads.
    """

    async def give_up(recall: Recall) -> None:
        store.held["alice"], store.reading = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found, recall)
            await store.reading.wait()
            tasks.cancel_scope.cancel()
        store.held.pop("alice").set()
        await anyio.wait_all_tasks_blocked()

    store = WatchedStore()
    await store.put(*teas("alice", 2))
    async with running(store) as recall:
        await give_up(recall)
        assert recall.index_statistics().users == 1
        assert len(await found(recall)) == 2
        assert store.reads == 1
    alone = recall_over(store)
    await give_up(alone)
    for _ in range(2):
        assert len(await found(alone)) == 2
    assert (store.reads, store.searches) == (3, 0)


async def test_rows_that_cannot_be_read() -> None:
    """G11: then the store is asked; its rows are in memory as soon as it can be read."""
    store = WatchedStore()
    await store.put(*teas("alice", 2))
    async with running(store) as recall:
        for failure in (LongTermError("away", retryable=True), ValueError("a bug of the store's")):
            store.failure = failure
            assert len(await found(recall)) == 2
        assert store.searches == 2
        store.failure = None
        assert len(await found(recall)) == 2
        assert len(await found(recall)) == 2
        assert (store.searches, store.reads) == (2, 3)


# -- bounds ----------------------------------------------------------------------------------------


async def test_users_of_too_many_rows_are_searched_in_the_store() -> None:
    """G10: who has more rows than recall.hot_rows is searched in the store, and the rows, which
    would fill memory, are never read; they are when a removal leaves few enough.
    """
    store = WatchedStore()
    await store.put(*teas("alice", 6))
    async with running(store, hot_rows=5) as recall:
        for _ in range(3):
            assert len(await found(recall)) == 6
            recall.note_change("alice", gone=False)
        assert (store.reads, store.searches) == (0, 3)
        assert recall.index_statistics().passed == 2
        await store.delete("alice", ["alice-0"])
        recall.note_change("alice", gone=True)
        for _ in range(2):
            assert len(await found(recall)) == 5
        assert (store.reads, store.searches) == (1, 3)


async def test_a_removal_overtakes_the_reading_of_too_many() -> None:
    """G10, G13: who was too large when a read began, and was trimmed or forgotten meanwhile, is not
    taken for too large.
    """
    store = WatchedStore()
    await store.put(*teas("alice", 6))
    async with running(store, hot_rows=5) as recall, anyio.create_task_group() as tasks:
        store.held["alice"] = anyio.Event()
        store.held_counts.add("alice")
        tasks.start_soon(found, recall)
        await store.reading.wait()
        await store.delete("alice", ["alice-0"])
        recall.note_change("alice", gone=True)
        store.held.pop("alice").set()
        await anyio.wait_all_tasks_blocked()
        assert len(await found(recall)) == 5
        assert recall.index_statistics().users == 1


async def test_least_recently_used_goes() -> None:
    """G10: rows are held within the bytes that are allowed, those of who recalled last; never one
    user's that are more.
    """
    store = WatchedStore()
    users = [f"user-{n}" for n in range(12)]
    for user in users:
        await store.put(*teas(user, 10))
    await store.put(*teas("large", 200))
    size = UserIndex(*await store.embedded_rows("user-0")).size_bytes

    async def opened() -> LongTermStore:
        return store

    indexes = UserIndexCache(opened, max_bytes=int(4.5 * size), max_rows=1_000)
    for user in [*users, "large"]:
        assert ((await indexes.get(user)).index is None) == (user == "large")
        assert indexes.statistics().size_bytes <= 4.5 * size
    statistics = indexes.statistics()
    assert (statistics.users, statistics.rows, statistics.evictions) == (4, 40, 8)
    store.reads = 0
    await indexes.get("user-8")  # used, so it outlives those that were read after it
    for user in users[:3]:
        await indexes.get(user)
    assert store.reads == 3
    await indexes.get("user-8")
    assert store.reads == 3
    for user in users:
        indexes.note_change(user, gone=True)
    assert (indexes.statistics().users, indexes.statistics().size_bytes) == (0, 0)


async def test_what_is_counted_is_what_it_takes() -> None:
    """G10: the bytes that are counted are within a fifth of what Python's allocator gave."""
    store = WatchedStore(256)
    embedder = HashEmbedder(256)
    said = [
        f"message {n} of the {n % 7}th day about "
        f"{' '.join(f'word{n * k % 900}' for k in range(20))}"
        for n in range(1_000)
    ]
    rows = [
        long_term_row(f"{n:032x}", text, session=f"s{n // 20}", seq=n % 20 + 1, window="\n".join(said[max(n - 2, 0) : n + 3]),  # noqa: E501
                      memory_type="message", role="user", created_us=1_700_000_000_000_000 + n)
        for n, text in enumerate(said)
    ]  # fmt: skip
    await store.add(rows, await embed_texts(embedder, said), may_exist=False)
    UserIndex(*await store.embedded_rows("alice"))  # what is loaded once is no user's
    read, vectors = await store.embedded_rows("alice")
    copies = msgspec.msgpack.decode(
        msgspec.msgpack.encode(read), type=list[MemoryRow]
    )  # no string shared with the store's
    del read
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = UserIndex(copies, vectors)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # ids and contents are the store's own strings, and were there before
    texts = sum(len(row.content) + len(row.id) + 2 * 49 for row in copies)
    assert made.size_bytes == pytest.approx(taken + texts, rel=0.2)


async def test_nothing_is_left_of_who_is_forgotten() -> None:
    """G13: after `forget` none of the user's rows is in memory, not even of a read that was under
    way.
    """
    store = WatchedStore()
    await store.put(*teas("alice", 3))
    recall = recall_over(store, cache=10, hot_rows=2)
    for counts in (1, 2):
        for _ in range(2):
            await found(recall)  # too many: that is remembered, and then forgotten
        assert store.counts == counts
        recall.note_change("alice", gone=True)
    async with running(store, cache=10) as recall:
        await found(recall)
        assert recall.index_statistics().users == 1
        recall.note_change("alice", gone=True)
        assert (recall.index_statistics().users, recall.statistics().size) == (0, 0)
        store.held["alice"] = anyio.Event()
        store.reading = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found, recall)
            await store.reading.wait()
            await store.delete("alice", [f"alice-{n}" for n in range(3)])
            recall.note_change("alice", gone=True)
            store.held["alice"].set()
        assert (recall.index_statistics().users, recall.statistics().size) == (0, 0)
        store.held.clear()
        assert await found(recall) == []


# -- what is found ---------------------------------------------------------------------------------


async def test_scope() -> None:
    """S4.17, S3.15: session, agent and types narrow, all that is given must hold; rows of memory
    blocks are never found.
    """
    store = WatchedStore()
    await store.put(
        long_term_row("a", "tea", session="one", created_us=1), long_term_row("b", "tea one", session="two", created_us=2),  # noqa: E501
        long_term_row("c", "tea two", agent="cook", created_us=3),
        long_term_row("d", "tea three", session="two", agent="cook", memory_type="preference", created_us=4),  # noqa: E501
        long_term_row("e", "tea four", session="two", memory_type=BLOCK_TYPE),
    )  # fmt: skip
    scopes = {
        Scope(): "abcd",
        Scope(session="two"): "bd",
        Scope(agent=""): "ab",
        Scope(agent="cook"): "cd",
        Scope(types=("fact",)): "abc",
        Scope(types=(BLOCK_TYPE,)): "",
        Scope(types=("fact", "preference")): "abcd",
        Scope(session="two", agent="cook", types=("preference", "summary")): "d",
        Scope(session="three"): "",
        Scope(types=("summary",)): "",
        Scope(session="one", agent="cook"): "",
    }
    async with running(store) as warm, running(store, hot_mb=0) as asked:
        for scope, wanted in scopes.items():
            assert (
                set(await found(warm, scope=scope))
                == set(wanted)
                == set(await found(asked, scope=scope))
            )
        assert store.reads == 1


async def test_without_vectors() -> None:
    """S2.28: where nothing is embedded, words alone decide; a query that matches none finds
    nothing. recall.depth bounds each list; of equals the earlier comes first.
    """
    store = WatchedStore(None)
    rows = [
        long_term_row(f"{n:02}", f"tea {'tea ' if n == 7 else ''}number{n}", created_us=n)
        for n in range(30)
    ]
    await store.add([*rows, long_term_row("none", "black coffee")], None, may_exist=False)
    recall = recall_over(store, None, depth=5)
    assert await found(recall) == ["07", "00", "01", "02", "03"]
    assert await found(recall, "where are they?") == await found(recall, "") == []


async def test_many_rows_are_searched_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.02: what would hold the event loop is searched elsewhere, with the same result."""
    store = WatchedStore()
    await store.put(*teas("alice", 300))
    recall = recall_over(store)
    here = await recall("alice", "tea number 7", limit=20)
    monkeypatch.setattr(user_index, "MAX_ON_LOOP", 10)
    assert await recall("alice", "tea number 7", limit=20) == here
    assert here[0].id == "alice-7"


def test_words() -> None:
    """S2.28: runs of letters and digits, folded, stemmed; words of scripts with vowel signs stay
    whole.
    """
    for text, stems in (
        ("Where does Ottilie keep her bees?", ["ottili", "keep", "bee"]),
        ("RUNNING runs Runner's", ["run", "run", "runner", "s"]),
        ("Café déjà-vu, Straße, Łódź", ["cafe", "deja", "vu", "strass", "lodz"]),
        ("snake_case 3.14 e5-small", ["snake", "case", "3", "14", "e5", "small"]),
        ("x" * 41 + " " + "z" * 40, ["z" * 40]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("がく 東京 서울", ["がく", "東京", "서울"]),
        ("the and of", []),
        ("\x00 \ud800 🙂", []),
        ("", []),
    ):
        assert words(text) == stems


def test_words_of_lines_with_a_date() -> None:
    lines = [
        "(8 May 2023) User: I moved (again) to Lisbon.",
        "User: I moved (again) to Lisbon.",
        "(8 May 2023) ",
        "(a) (b) (c) d",
        "(8 мая 2023) Анна: Ἀθῆναι",
        "(not closed",
        "() ",
    ]
    texts = [*lines, "\n".join(lines)]
    (index,) = text_indices([texts])
    held = [Counter(words(text)) for text in texts]
    for word in set().union(*held):
        found = index.look_up(index.find(make_terms([word]).hashes))
        assert dict(zip(found.places.tolist(), found.times.tolist(), strict=True)) == {
            place: one[word] for place, one in enumerate(held) if one[word]
        }
    assert index.lengths.tolist() == [one.total() for one in held]


def test_texts_without_words() -> None:
    """S2.28: a user without rows, rows without words and a query without words are searched as any
    other.
    """
    empty, blank = text_indices([[]])[0], text_indices([["", "the", "?!"]])[0]
    assert empty.scores(["tea"]).tolist() == []
    assert blank.scores(["tea"]).tolist() == [0, 0, 0]
    (one,) = text_indices([["tea", "tea tea", "coffee"]])
    assert one.scores([]).tolist() == [0, 0, 0]
    assert one.scores(["tea", "tea"]).tolist() == one.scores(["tea"]).tolist()
    assert (one.scores(["tea"]) > 0).tolist() == [True, True, False]
    assert one.scores(words("zeppelin " * 100_000 + "tea"))[1] > 0


async def test_vectors_of_any_length() -> None:
    """S2.28: a row without a vector is near to nothing; one whose vector is not of unit length is
    as near as its direction is.
    """
    query = np.full(16, 0.25, np.float32)
    for length, near in ((0.0, []), (2.0, [1.0] * 4)):
        made = UserIndex(teas("alice", 4), np.full((4, 16), length, np.float32))
        ranked = await made.rank(Question("zeppelin", query), EVERYTHING, RecallConfig())
        assert [one.parts["vector"] for one in ranked] == near


async def _ids(made: UserIndex, query: str) -> Sequence[str]:
    return [one.row.id for one in await made.rank(Question(query), EVERYTHING, RecallConfig())]


async def test_the_order_of_reading_does_not_matter() -> None:
    """S2.29: whichever order a store gives its rows in, the ranking is the same."""
    rows = [
        long_term_row(
            str(n), f"tea of {n % 3}", created_us=n % 4, seq=n, session="s", memory_type="message"
        )
        for n in range(1, 30)
    ]
    assert await _ids(UserIndex(rows, None), "tea of 1") == await _ids(
        UserIndex(rows[::-1], None), "tea of 1"
    )
