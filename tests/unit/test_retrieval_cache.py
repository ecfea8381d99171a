"""A repeated retrieval costs nothing, and no retrieval is ever older than its user's last write."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.recall import index_cache
from remora.recall.index_cache import ResultStatistics, UserEntry, UserIndexCache
from remora.recall.memory import FoundMemories
from remora.recall.ranking import Ranking
from remora.storage.memory import MemoryStore
from remora.storage.ports import EVERYTHING, LongTermStore, Scope
from remora.testing import long_term_row

pytestmark = pytest.mark.anyio


def cache_of(size: int, store: LongTermStore | None = None, **bounds: int) -> UserIndexCache:
    async def opened() -> LongTermStore:
        return store or MemoryStore(None)

    return UserIndexCache(opened, **{"max_bytes": 0, "max_rows": 10, "max_results": size, **bounds})


def found(*texts: str) -> FoundMemories:
    rows = [long_term_row(text, text) for text in texts]
    ranking = Ranking(rows, np.arange(len(rows)), np.ones(len(rows)), {}, row_bytes=100 * len(rows))
    return FoundMemories(ranking)


def texts(result: FoundMemories | None) -> list[str] | None:
    return None if result is None else [one.text for one in result.best(100)]


def question(text: str) -> tuple[str, Scope]:
    return (text, EVERYTHING)


CATS, DOGS = question("cats"), question("dogs")


async def test_a_repeated_query_hits() -> None:
    """S4.39: what was found is found again, for this user, this query and this scope alone;
    recall.cache 0 holds no result.
    """
    cache = cache_of(10)
    assert cache.result("alice", CATS) is None
    cache.keep("alice", await cache.get("alice"), CATS, found("tabby"))
    assert texts(cache.result("alice", CATS)) == ["tabby"]
    assert cache.result("alice", ("cats", Scope(session="one"))) is None
    assert cache.result("bob", CATS) is None
    assert cache.result_statistics() == ResultStatistics(hits=1, misses=3, size=1)
    cache = cache_of(0)
    cache.keep("alice", await cache.get("alice"), CATS, found("tabby"))
    assert cache.result("alice", CATS) is None
    assert cache.result_statistics() == ResultStatistics()


async def test_a_write_invalidates_its_user_alone() -> None:
    """S4.39: after a write none of the user's results is served, not even that of a search which a
    write overtook, nor does that one replace a newer one; others keep theirs.
    """
    for max_bytes, gone in itertools.product((0, 1 << 20), (False, True)):
        cache = cache_of(10, max_bytes=max_bytes)
        for user in ("alice", "bob"):
            entry = await cache.get(user)
            for one in (CATS, DOGS):
                cache.keep(user, entry, one, found(f"{user}'s {one[0]}"))
        early = await cache.get("alice")
        cache.note_change("alice", gone=gone)
        assert [cache.result("alice", one) for one in (CATS, DOGS)] == [None, None]
        assert texts(cache.result("bob", DOGS)) == ["bob's dogs"]
        assert cache.result_statistics().size == 2
        cache.keep("alice", early, CATS, found("before the write"))
        assert cache.result("alice", CATS) is None
        cache.keep("alice", await cache.get("alice"), CATS, found("after it"))
        cache.keep("alice", early, CATS, found("before the write"))
        assert texts(cache.result("alice", CATS)) == ["after it"]


async def test_an_evicted_user_is_no_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.39, G10: others push a user out; a late result of that user is refused still."""
    monkeypatch.setattr(index_cache, "MAX_WITHOUT_INDEX", 4)
    cache = cache_of(4)
    early = await cache.get("alice")
    cache.keep("alice", early, CATS, found("tabby"))
    cache.note_change("alice", gone=False)
    for number in range(20):
        await cache.get(f"user {number}")
    cache.keep("alice", early, CATS, found("before the write"))
    assert cache.result("alice", CATS) is None
    cache.keep("alice", await cache.get("alice"), CATS, found("after it"))
    assert texts(cache.result("alice", CATS)) == ["after it"]
    for number in range(20):
        await cache.get(f"user {number}")
    assert cache.result("alice", CATS) is None
    assert cache.result_statistics().size == 0


async def test_least_recently_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.39, G10: the results are bounded, also in bytes: a few large ones are held, or many small
    ones; what was asked for last stays.
    """
    cache = cache_of(3)
    for number in range(3):
        user = f"user {number}"
        cache.keep(user, await cache.get(user), CATS, found(user))
    cache.result("user 0", CATS)
    cache.keep("user 3", await cache.get("user 3"), CATS, found("user 3"))
    held = [texts(cache.result(f"user {number}", CATS)) for number in range(4)]
    assert held == [["user 0"], None, ["user 2"], ["user 3"]]
    cache.keep("user 0", await cache.get("user 0"), CATS, found("again"))
    assert texts(cache.result("user 0", CATS)) == ["again"]
    assert cache.result_statistics().size == 3
    one = found("tabby")
    monkeypatch.setattr(index_cache, "MAX_RESULT_BYTES", 3 * one.nbytes)
    cache = cache_of(1_000)
    entry = await cache.get("alice")
    for number in range(10):
        cache.keep("alice", entry, question(f"{number}"), one)
        assert cache.result_statistics().size == min(number + 1, 3)
    cache.keep("alice", entry, CATS, found("one", "two", "three", "four"))
    assert cache.result_statistics().size == 0


def test_a_result_serves_any_number() -> None:
    """S4.39: what is held gives any number of memories, without any messages, and again."""
    rows = [long_term_row(f"{n}", f"tea {n}", session="s", seq=n + 1) for n in range(200)]
    result = FoundMemories(Ranking(rows, np.arange(200), np.ones(200), {}))
    for k, without in ((3, ()), (70, ()), (2, range(1, 150)), (500, ()), (10, (1, 3)), (0, ())):
        wanted = [row.id for row in rows if row.seq not in without][:k]
        for _ in range(2):
            unwanted = {("s", seq) for seq in without}
            assert [one.id for one in result.best(k, unwanted)] == wanted


users = st.sampled_from("abcdefg")
keys = st.sampled_from([CATS, DOGS])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), users, keys),
        st.tuples(st.just("finish"), st.integers(0, 5), st.none()),
        st.tuples(st.just("write"), users, st.booleans()),
        st.tuples(st.just("get"), users, keys),
    ),
    max_size=80,
)


@given(st.integers(1, 5), st.sampled_from([0, 1_500, 1 << 20]), steps)
async def test_never_stale(size: int, max_bytes: int, history: list[tuple[str, Any, Any]]) -> None:
    """S4.39: however searches and writes interleave, what is served is the present truth, whether
    a user's rows are in memory or not; and the number of results stays bounded."""
    store = MemoryStore(None)
    await store.add(
        [long_term_row(user, "tea", user=user) for user in "abc"], None, may_exist=False
    )
    cache = cache_of(size, store, max_bytes=max_bytes)
    truth = dict.fromkeys("abcdefg", 0)
    searches: list[tuple[str, tuple[str, Scope], UserEntry, str]] = []
    for verb, one, other in history:
        if verb == "begin":
            searches.append((one, other, await cache.get(one), f"{one}{other[0]}{truth[one]}"))
        elif verb == "finish" and searches:
            user, key, entry, value = searches.pop(one % len(searches))
            cache.keep(user, entry, key, found(value))
        elif verb == "write":
            truth[one] += 1
            cache.note_change(one, gone=other)
        elif verb == "get":
            served = texts(cache.result(one, other))
            assert served in (None, [f"{one}{other[0]}{truth[one]}"])
        assert cache.result_statistics().size <= size
    for user in truth:
        for key in (CATS, DOGS):
            served = texts(cache.result(user, key))
            assert served in (None, [f"{user}{key[0]}{truth[user]}"])
        cache.note_change(user, gone=True)
    assert cache.result_statistics().size == 0
    assert cache.statistics().size_bytes == 0


async def test_many_results_are_freed_in_turns() -> None:
    """A write of somebody with a thousand held results does not hold the event loop for them."""
    cache = cache_of(1_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cache.run)
        await anyio.lowlevel.checkpoint()
        entry = await cache.get("alice")
        held = []
        for number in range(200):
            result = found(f"text {number}")
            held.append(weakref.ref(result))
            cache.keep("alice", entry, question(f"text {number}"), result)
        del result
        cache.note_change("alice", gone=True)
        assert cache.result("alice", question("text 5")) is None
        assert cache.result_statistics().size == 0
        left = []
        while any(one() is not None for one in held):
            left.append(sum(one() is not None for one in held))
            await anyio.lowlevel.checkpoint()
        assert left[0] == 200
        assert max(before - after for before, after in itertools.pairwise(left)) < 100
        tasks.cancel_scope.cancel()
