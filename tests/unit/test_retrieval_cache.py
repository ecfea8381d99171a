"""A repeated retrieval costs nothing, and no retrieval is ever older than its user's last write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.errors import InvalidInput
from remora.recall.result_cache import RetrievalCache, RetrievalCacheStatistics


def test_a_repeated_query_hits() -> None:
    """S4.39: what was found is found again, for this user and this key alone."""
    cache: RetrievalCache[str] = RetrievalCache(10)
    assert cache.get("alice", ("cats", 5)) is None
    assert cache.put("alice", ("cats", 5), "tabby", cache.version("alice"))
    assert cache.get("alice", ("cats", 5)) == "tabby"
    assert cache.get("alice", ("cats", 6)) is None
    assert cache.get("bob", ("cats", 5)) is None
    assert cache.statistics() == RetrievalCacheStatistics(hits=1, misses=3, size=1)


def test_a_write_invalidates_its_user_alone() -> None:
    """S4.39: after a write none of the user's results is served; others keep theirs."""
    cache: RetrievalCache[str] = RetrievalCache(10)
    for user in ("alice", "bob"):
        for key in ("cats", "dogs"):
            cache.put(user, key, f"{user}'s {key}", cache.version(user))
    cache.invalidate("alice")
    assert [cache.get("alice", key) for key in ("cats", "dogs")] == [None, None]
    assert cache.get("bob", "dogs") == "bob's dogs"
    assert cache.statistics().size == 2


def test_a_late_result_is_not_taken() -> None:
    """S4.39: a search begins, a write lands, the search's result comes: it is not served, nor does
    it replace a newer one.
    """
    cache: RetrievalCache[str] = RetrievalCache(10)
    early = cache.version("alice")
    cache.invalidate("alice")
    assert not cache.put("alice", "cats", "before the write", early)
    assert cache.get("alice", "cats") is None
    assert cache.put("alice", "cats", "after it", cache.version("alice"))
    assert not cache.put("alice", "cats", "before the write", early)
    assert cache.get("alice", "cats") == "after it"


def test_a_forgotten_version_is_no_way_round() -> None:
    """S4.39, G10: writes of others push a user's version out of the table; a late result of that
    user is refused still.
    """
    cache: RetrievalCache[str] = RetrievalCache(4)
    early = cache.version("alice")
    cache.invalidate("alice")
    for number in range(20):
        cache.invalidate(f"user {number}")
    assert len(cache._versions) == 4
    assert not cache.put("alice", "cats", "before the write", early)
    assert cache.put("alice", "cats", "after it", cache.version("alice"))


def test_least_recently_used_goes() -> None:
    """S4.39, G10: the results are bounded; what was asked for last stays."""
    cache: RetrievalCache[int] = RetrievalCache(3)
    for number in range(3):
        cache.put(f"user {number}", "q", number, 0)
    cache.get("user 0", "q")
    cache.put("user 3", "q", 3, 0)
    assert [cache.get(f"user {number}", "q") for number in range(4)] == [0, None, 2, 3]
    assert set(cache._keys) == {"user 0", "user 2", "user 3"}
    cache.put("user 0", "q", 7, 0)
    assert (cache.get("user 0", "q"), cache.statistics().size) == (7, 3)


def test_nonsense_is_refused() -> None:
    """S4.39: no cache of nothing, and no None in it."""
    with pytest.raises(InvalidInput):
        RetrievalCache(0)
    cache: RetrievalCache[Any] = RetrievalCache(1)
    with pytest.raises(InvalidInput):
        cache.put("alice", "q", None, 0)


users = st.sampled_from("abcdefg")
keys = st.sampled_from(["x", "y"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), users, keys),
        st.tuples(st.just("finish"), st.integers(0, 5), st.none()),
        st.tuples(st.just("write"), users, st.none()),
        st.tuples(st.just("get"), users, keys),
    ),
    max_size=80,
)


@given(st.integers(1, 5), steps)
def test_never_stale(size: int, history: list[tuple[str, Any, Any]]) -> None:
    """S4.39: however searches and writes interleave, what is served is the present truth, and every
    table stays bounded.
    """
    cache: RetrievalCache[tuple[str, str, int]] = RetrievalCache(size)
    truth = dict.fromkeys("abcdefg", 0)
    searches: list[tuple[str, str, int, tuple[str, str, int]]] = []
    for verb, one, other in history:
        if verb == "begin":
            searches.append((one, other, cache.version(one), (one, other, truth[one])))
        elif verb == "finish" and searches:
            user, key, version, value = searches.pop(one % len(searches))
            taken = cache.put(user, key, value, version)
            assert cache.get(user, key) == value or not taken
        elif verb == "write":
            truth[one] += 1
            cache.invalidate(one)
        elif verb == "get":
            assert cache.get(one, other) in {None, (one, other, truth[one])}
        for user in truth:
            for key in ("x", "y"):
                assert cache._results.get((user, key)) in {None, (user, key, truth[user])}
        assert len(cache._results) == sum(map(len, cache._keys.values())) <= size
        assert len(cache._versions) <= size
