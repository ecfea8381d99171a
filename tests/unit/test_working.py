"""Working memory: nearest first, oldest out, and honest about its size."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.actors.user import working
from remora.actors.user.working import WorkingItem, WorkingMemory
from remora.errors import InvalidInput

DIMENSION = 4
AXES = np.eye(DIMENSION, dtype=np.float32)


def unit(numbers: Iterable[float]) -> npt.NDArray[np.float32]:
    vector = np.asarray(list(numbers), dtype=np.float64)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def item(
    id_: str, vector: npt.NDArray[np.float32], *, scope: str = "", text: str = ""
) -> WorkingItem:
    return WorkingItem(
        id_,
        text or f"text of {id_}",
        "tool",
        scope,
        1_700_000_000_000_000,
        12,
        vector.astype("<f4").tobytes(),
    )


def filled(
    *vectors: npt.NDArray[np.float32], dimension: int = DIMENSION, block_rows: int | None = None
) -> WorkingMemory:
    memory = WorkingMemory(dimension, block_rows=block_rows)
    for number, vector in enumerate(vectors):
        assert memory.add(item(str(number), vector))
    return memory


def ids(items: Iterable[WorkingItem]) -> list[str]:
    return [one.id for one in items]


def remove(memory: WorkingMemory, ids: Collection[str]) -> list[WorkingItem]:
    """Remove these items; returns those that were there."""
    removed = [one for one in memory.items if one.id in ids]
    memory.discard(ids)
    return removed


def evict(memory: WorkingMemory, max_bytes: int) -> list[WorkingItem]:
    """Evict as a user's actor does: free rows first, then the oldest items."""
    evicted = remove(memory, memory.excess(max_bytes)) if memory.size_bytes > max_bytes else []
    if memory.size_bytes > max_bytes:
        memory.shrink_to_fit()
    return evicted


def found(memory: WorkingMemory, vector: npt.NDArray[np.float32], **options: Any) -> list[str]:
    return ids(one for one, _ in memory.search(vector, **options))


def test_wrong_vectors_are_refused() -> None:
    """S2.10: a vector of another dimension, or of no unit length, is refused with a clear error,
    and nothing is held.
    """
    memory = WorkingMemory(DIMENSION)
    for vector, message in [
        (np.ones(3), "3 numbers, not 4"),
        (np.ones(5), "5 numbers, not 4"),
        (np.ones(4), "length 2, not 1"),
        (np.full(4, np.nan), "length nan"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            memory.add(item("a", vector.astype(np.float32)))
    with pytest.raises(InvalidInput, match=r"3\.25 numbers"):
        memory.add(msgspec.structs.replace(item("a", AXES[0]), vector=b"0" * 13))
    assert len(memory) == memory.size_bytes == 0
    for query in (np.ones(3), np.ones((1, 4)), np.full(4, np.inf)):
        with pytest.raises(InvalidInput, match="4 finite numbers"):
            memory.search(query.astype(np.float32))
    with pytest.raises(InvalidInput):
        WorkingMemory(0)


def test_items_come_back_whole() -> None:
    """S2.11: text, source, scope, time and vector of an item are those with which it was added. An
    id that is present is neither doubled nor overwritten, nor made younger; evicted, it may come
    again.
    """
    given_items = [item(str(i), unit([1, i, 0, 2]), scope=f"s{i}") for i in range(30)]
    memory = WorkingMemory(DIMENSION)
    for one in given_items:
        memory.add(one)
    assert not memory.add(item("0", AXES[2], text="other"))
    assert list(memory.items) == given_items
    for place in (-1, slice(3, 5), 0):
        assert memory.items[place] == given_items[place]
    assert memory.search(unit([1, 7, 0, 2]), k=1)[0][0] == given_items[7]
    with pytest.raises(IndexError):
        memory.items[30]
    assert ids(remove(memory, ["0", "nobody"])) == ["0"]
    assert memory.add(item("0", AXES[2]))
    assert ids(memory.items) == [*map(str, range(1, 30)), "0"]


def held_bytes() -> int:
    """What Python's allocator gave to working memory and these tests, not to another thread."""
    gc.collect()  # what is garbage already is not held
    modules = (__file__, working.__file__, f"{Path(np.__file__).parent}/*")
    places = [tracemalloc.Filter(True, name) for name in modules]
    found = tracemalloc.take_snapshot().filter_traces(places)
    return sum(trace.size for trace in found.traces)


def test_nearest_first() -> None:
    """S2.10, S2.12: the score is the cosine; the nearest comes first, five by default. A query
    without a known word finds nothing; an item without one is held, and ranks as unrelated.
    """
    angles = [0.9, 0.1, 1.4, 0.5, 3.0, 1.2, 0.0]
    memory = filled(*(unit([np.cos(a), np.sin(a), 0, 0]) for a in angles))
    hits = memory.search(AXES[0])
    assert ids(one for one, _ in hits) == ["6", "1", "3", "0", "5"]
    cosines = [np.cos(a) for a in [0.0, 0.1, 0.5, 0.9, 1.2]]
    assert [score for _, score in hits] == pytest.approx(cosines, abs=1e-6)
    assert found(memory, AXES[0], k=100) == ["6", "1", "3", "0", "5", "2", "4"]
    assert found(memory, AXES[0], k=0) == []
    memory = filled(AXES[0] * 0, AXES[0], -AXES[0])
    assert memory.search(AXES[0] * 0) == []
    assert memory.search(AXES[0])[1][1] == 0
    assert found(memory, AXES[0]) == ["1", "0", "2"]


def test_scope_narrows() -> None:
    """S2.28: a session sees its own items and those of no session, never another's, and still gets
    its `k`.
    """
    memory = WorkingMemory(DIMENSION)
    for number in range(40):
        memory.add(item(f"{number}", AXES[0], scope=["", "a", "b", "c"][number % 4]))
    assert found(memory, AXES[0], scope="a") == ["0", "1", "4", "5", "8"]
    assert found(memory, AXES[0], scope="") == ["0", "4", "8", "12", "16"]
    assert found(memory, AXES[0], scope="nobody's", k=2) == ["0", "4"]
    assert found(memory, AXES[0]) == ["0", "1", "2", "3", "4"]


def test_names_that_came_and_went() -> None:
    """S2.14: sessions that are over leave nothing behind, however many there were."""
    memory = filled(AXES[1])

    def pass_by(numbers: Iterable[int]) -> None:
        for number in numbers:
            memory.add(item("passing", AXES[0], scope=f"session-{number}"))
            assert found(memory, AXES[0], scope=f"session-{number}") == ["passing", "0"]
            remove(memory, ["passing"])

    tracemalloc.start()
    try:
        pass_by(range(200))
        before = held_bytes()
        pass_by(range(200, 1_200))
        grown = held_bytes() - before
    finally:
        tracemalloc.stop()
    assert grown < 50 * 60, "bytes: fifty names"


def test_equals_go_by_age() -> None:
    """S2.12: equal vectors are equally near wherever their rows lie, and the older comes first."""
    rng = np.random.default_rng(7)
    vectors = [unit(rng.normal(size=67)) for _ in range(3)]
    for block_rows in (None, 10, 33):
        memory = filled(*(vectors[i % 3] for i in range(301)), dimension=67, block_rows=block_rows)
        hits = memory.search(vectors[1], k=20)
        assert ids(one for one, _ in hits) == [str(i) for i in range(1, 60, 3)]
        assert len({score for _, score in hits}) == 1


def test_eviction_gives_back_room_before_items() -> None:
    """S2.13: items go only when the matrix, cut to size, still does not fit; then the fewest that
    do.
    """
    memory = filled(*[AXES[0]] * 17)  # in a matrix of 32 rows
    spare = 15 * (DIMENSION * 4 + 12)
    full = memory.size_bytes
    assert evict(memory, full) == []
    assert evict(memory, full - 1) == []
    assert memory.size_bytes == full - spare
    assert ids(evict(memory, full - spare - 1)) == ["0"]
    assert memory.items[0].id == "1"
    assert len(evict(memory, 0)) == 16
    assert memory.size_bytes == 0
    assert not memory.items
    assert evict(memory, 0) == evict(memory, -1) == []
    assert memory.add(item("again", AXES[0]))
    assert ids(evict(memory, -1)) == ["again"]


def test_no_change_copies_everything() -> None:
    """S2.13: to add an item, or to evict the oldest, takes a block or two, however much is held."""
    vector = unit([1.0] * 1_024)
    memory, most = WorkingMemory(1_024), 0

    def change(function: Callable[[], object]) -> None:
        nonlocal most
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        function()
        most = max(most, tracemalloc.get_traced_memory()[1] - before)

    tracemalloc.start()
    try:
        for number in range(6_000):
            change(partial(memory.add, item(str(number), vector)))
        for first in range(0, 5_000, 700):
            change(partial(memory.discard, [str(first + place) for place in range(700)]))
            change(memory.shrink_to_fit)
            change(partial(memory.add, item(f"new {first}", vector)))
    finally:
        tracemalloc.stop()
    assert most < 14 << 20 < 6_000 * 4 * 1_024
    assert len(memory) == 6_000 - 8 * 700 + 8


class Model:
    """The same, the slow way."""

    def __init__(self) -> None:
        self.items: list[WorkingItem] = []

    def search(self, vector: npt.NDArray[np.float32], k: int, scope: str | None) -> list[str]:
        query = vector.astype(np.float64)
        scored = [
            (-float((np.frombuffer(one.vector, "<f4") * query).sum()), age, one.id)
            for age, one in enumerate(self.items)
            if scope is None or one.scope in {"", scope}
        ]
        return [id_ for _, _, id_ in sorted(scored)][:k]


names = st.integers(0, 60).map(str)
vectors = st.lists(st.integers(-2, 2), min_size=DIMENSION, max_size=DIMENSION).filter(any).map(unit)
scopes = st.sampled_from(["", "a", "b"])
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.builds(lambda n, v, s: item(n, v, scope=s), names, vectors, scopes)
        ),
        st.tuples(
            st.just("add"), st.builds(lambda n, v, s: item(n, v, scope=s), names, vectors, scopes)
        ),
        st.tuples(st.just("many"), st.integers(1, 40)),
        st.tuples(st.just("evict"), st.floats(0, 1.1)),
        st.tuples(st.just("remove"), st.lists(names, max_size=20)),
        st.tuples(st.just("search"), st.tuples(vectors, st.integers(0, 8), st.none() | scopes)),
    ),
    max_size=40,
)


@given(steps, st.sampled_from([None, 8, 16, 50]))
def test_any_history(history: list[tuple[str, Any]], block_rows: int | None) -> None:
    """S2.10, S2.12, S2.13: whatever was added, evicted and removed, it holds and finds what a plain
    list would, in however many blocks.

    An eviction takes a prefix by age, ends within the limit, and takes no more than it must.
    """
    memory, model, fresh = WorkingMemory(DIMENSION, block_rows=block_rows), Model(), 0
    for verb, argument in history:
        if verb == "add":
            known = argument.id in ids(model.items)
            assert memory.add(argument) is not known
            if not known:
                model.items.append(argument)
        elif verb == "many":
            for _ in range(argument):
                fresh += 1
                model.items.append(item(f"fresh-{fresh}", AXES[fresh % DIMENSION]))
                assert memory.add(model.items[-1])
        elif verb == "evict":
            limit = int(memory.size_bytes * argument)
            gone = evict(memory, limit)
            assert gone == model.items[: len(gone)]
            model.items = model.items[len(gone) :]
            assert memory.size_bytes <= limit
            if gone:
                again = WorkingMemory(DIMENSION)
                for one in [gone[-1], *model.items]:
                    again.add(one)
                again.shrink_to_fit()
                assert again.size_bytes > limit
        elif verb == "remove":
            assert remove(memory, argument) == [one for one in model.items if one.id in argument]
            model.items = [one for one in model.items if one.id not in argument]
        else:
            vector, k, scope = argument
            assert found(memory, vector, k=k, scope=scope) == model.search(vector, k, scope)
        assert list(memory.items) == model.items
        assert len(memory) == len(memory.items) == len(model.items)


@pytest.mark.parametrize(
    ("dimension", "sessions", "count"),
    [(64, 1, 3_000), (64, 3_000, 3_000), (256, 1, 700), (1_536, 1, 700), (1_536, 3_000, 3_000)],
)
def test_size_is_what_is_held(dimension: int, sessions: int, count: int) -> None:
    """S2.14: the size it states is within 20 % of what Python's allocator counts, growing, full and
    after eviction.
    """
    rng = np.random.default_rng(1)
    source = [unit(rng.normal(size=dimension)) for _ in range(20)]

    def fresh(number: int) -> WorkingItem:
        text = f"{number}: " + "something that a tool said " * (number % 10)
        scope = f"session-{number % sessions}"
        one = item(f"item-{number}-abcdef", source[number % 20], scope=scope, text=text)
        # every string its own, as from a journal
        return msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=WorkingItem)

    def check(memory: WorkingMemory) -> None:
        assert memory.size_bytes == pytest.approx(held_bytes() - before, rel=0.2)

    warm = filled(*[AXES[0]] * 50)  # what is allocated once
    evict(warm, warm.size_bytes // 2)
    remove(warm, [one.id for one in warm.items][5:])
    tracemalloc.start()
    try:
        before = held_bytes()
        memory = WorkingMemory(dimension)
        for number in range(count):
            memory.add(fresh(number))
        check(memory)
        limit = memory.size_bytes // 3
        assert evict(memory, limit)
        assert memory.size_bytes <= limit
        check(memory)
        remove(memory, [one.id for one in memory.items][50:])
        assert len(memory) == 50
        check(memory)
    finally:
        tracemalloc.stop()
