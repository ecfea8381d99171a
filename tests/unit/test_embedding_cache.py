"""A text that was embedded lately is not embedded again."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import anyio
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import Embedder
from remora.errors import InvalidInput, ModelAnswerInvalid, ModelUnavailable
from remora.models.cache import CachingEmbedder, EmbeddingCacheStatistics
from remora.models.ports import embed_texts
from remora.testing import HashEmbedder

pytestmark = pytest.mark.anyio


class RecordingEmbedder(HashEmbedder):
    """Remembers the texts of each call, and fails or waits when told to."""

    def __init__(self) -> None:
        super().__init__(8)
        self.calls: list[list[str]] = []
        self.failure: Exception | None = None
        self.gate: anyio.Event | None = None
        self.lost = 0

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.calls.append(list(texts))
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return (await super().embed(texts))[self.lost :]


async def test_least_recently_used_goes() -> None:
    """S2.05: 1 001 texts make one eviction, of the least recently used; a repeated text costs no
    call.
    """
    inner = RecordingEmbedder()
    cache = CachingEmbedder(inner)
    assert isinstance(cache, Embedder)
    assert (cache.name, cache.dimension) == (inner.name, inner.dimension)
    await cache.embed([f"text {i}" for i in range(1000)])
    await cache.embed(["text 0"])
    assert len(inner.calls) == 1
    await cache.embed(["text 1000"])
    assert cache.statistics() == EmbeddingCacheStatistics(
        hits=1, misses=1001, evictions=1, size=1000
    )
    await cache.embed(["text 0", "text 2", "text 999", "text 1000"])
    assert inner.calls[2:] == []
    await cache.embed(["text 1"])
    assert inner.calls[2:] == [["text 1"]]


async def test_one_call_for_what_is_missing() -> None:
    """S2.05: what is not held goes into one call, each text once, and the vectors come back in the
    order asked for, as the caller's own array. Who gives up leaves the cache as it was; a cache of
    nothing is refused.
    """
    inner = RecordingEmbedder()
    cache = CachingEmbedder(inner)
    inner.gate = anyio.Event()
    with anyio.move_on_after(0):
        await cache.embed(["held"])
    inner.gate = None
    assert cache.statistics().size == 0
    inner.calls.clear()
    await cache.embed(["held"])
    texts = ["new", "held", "other", "new", "held"]
    expected = await embed_texts(HashEmbedder(8), texts)
    for _ in range(3):
        vectors = await cache.embed(texts)
        assert np.array_equal(vectors, expected)
        vectors[:] = 7
    assert inner.calls == [["held"], ["new", "other"]]
    assert (cache.statistics().hits, cache.statistics().size) == (13, 3)
    assert (await cache.embed([])).shape == (0, 8)
    assert len(inner.calls) == 2
    with pytest.raises(InvalidInput):
        CachingEmbedder(HashEmbedder(), size=0)


async def test_a_failure_leaves_nothing() -> None:
    """S2.05: what the model refused, or answered wrongly, is asked for again; what was held is
    still there.
    """
    inner = RecordingEmbedder()
    cache = CachingEmbedder(inner)
    await cache.embed(["held"])
    inner.failure = ModelUnavailable("down")
    with pytest.raises(ModelUnavailable):
        await cache.embed(["held", "new"])
    inner.failure = None
    inner.lost = 1
    with pytest.raises(ModelAnswerInvalid):
        await cache.embed(["new"])
    inner.lost = 0
    await cache.embed(["held", "new"])
    assert inner.calls[-1] == ["new"]


async def test_concurrent_calls() -> None:
    """S2.05: calls that overlap, with evictions between, all get the right vectors, and the cache
    keeps its bound. Texts that are asked for at once go to the embedder once; the other texts of a
    call do not wait for them.
    """
    cases: tuple[tuple[int, list[str], list[str], int], ...] = (
        (2, ["ab"], ["ac", "ca", "bd", "efg"], 2),
        (1_000, [], ["ab", "b", "ca", "ab"], 3),
    )
    for size, before, asked, held in cases:
        inner = RecordingEmbedder()
        cache = CachingEmbedder(inner, size=size)
        for texts in before:
            await cache.embed(list(texts))
        inner.calls.clear()
        gate = inner.gate = anyio.Event()
        answers: list[tuple[str, npt.NDArray[np.float32]]] = []

        async def ask(texts: str, cache: CachingEmbedder = cache, to: Any = answers) -> None:
            to.append((texts, await cache.embed(list(texts))))

        async with anyio.create_task_group() as group:
            for texts in asked:
                group.start_soon(ask, texts)
                await anyio.wait_all_tasks_blocked()
            assert before or inner.calls == [["a", "b"], ["c"]]
            gate.set()
        assert len(answers) == 4
        for texts, vectors in answers:
            assert np.array_equal(vectors, await embed_texts(HashEmbedder(8), list(texts)))
            vectors[:] = 7
        assert cache.statistics().size == held
    assert inner.calls == [["a", "b"], ["c"]]
    assert cache.statistics() == EmbeddingCacheStatistics(hits=4, misses=3, evictions=0, size=3)
    assert np.array_equal(await cache.embed(["b"]), await embed_texts(HashEmbedder(8), ["b"]))


class FirstFails(RecordingEmbedder):
    """Fails the first call, once the gate opens."""

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        first = not self.calls
        vectors = await super().embed(texts)
        if first:
            raise ModelUnavailable("down")
        return vectors


@pytest.mark.parametrize("cancelled", [True, False])
async def test_who_waits_for_a_call_that_fails(cancelled: bool) -> None:
    """S2.05, G11: when the call that one waits for fails or is cancelled, one's own call is made."""  # noqa: E501
    inner = FirstFails()
    cache = CachingEmbedder(inner)
    gate = inner.gate = anyio.Event()
    answers = []
    scope = anyio.CancelScope()

    async def first() -> None:
        with scope, contextlib.suppress(ModelUnavailable):
            await cache.embed(["a"])

    async def second() -> None:
        answers.append(await cache.embed(["a", "b", "a"]))

    async with anyio.create_task_group() as group:
        for task in (first, second):
            group.start_soon(task)
            await anyio.wait_all_tasks_blocked()
        if cancelled:
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
        gate.set()
    assert inner.calls == [["a"], ["b"], ["a"]]
    assert np.array_equal(answers[0], await embed_texts(HashEmbedder(8), ["a", "b", "a"]))


@given(
    st.integers(1, 6),
    st.lists(st.lists(st.sampled_from("abcdefghi\ud800"), max_size=9), max_size=12),
)
def test_any_calls(size: int, calls: list[list[str]]) -> None:
    """S2.05: vectors are right whatever was asked before; a text is embedded exactly when a plain
    LRU list would not hold it.
    """
    inner = RecordingEmbedder()
    cache = CachingEmbedder(inner, size=size)
    held: OrderedDict[str, None] = OrderedDict()

    async def play() -> None:
        for texts in calls:
            missing = list(dict.fromkeys(text for text in texts if text not in held))
            before = len(inner.calls)
            assert np.array_equal(
                await cache.embed(texts), await embed_texts(HashEmbedder(8), texts)
            )
            assert inner.calls[before:] == ([missing] if missing else [])
            for text in [*(text for text in texts if text not in missing), *missing]:
                held[text] = None
                held.move_to_end(text)
            while len(held) > size:
                held.popitem(last=False)
            assert cache.statistics().size == len(held)

    anyio.run(play)
    assert cache.statistics().hits + cache.statistics().misses == sum(map(len, calls))
