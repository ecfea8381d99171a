"""Faulty ports do what their fault says, at any speed, on any event loop: what tests of G3, G6 and
G7 rest on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest
import trio.testing

from remora.actors.policies.summary import ChatSummarizer
from remora.errors import LongTermError, ModelUnavailable, OutcomeUnknown
from remora.models.extractive import ExtractiveSummarizer
from remora.models.ports import as_reranker
from remora.runtime.log import commit_records
from remora.storage.journal_port import running_journal
from remora.storage.memory import MemoryStore
from remora.storage.ports import MemoryRow, SessionKey
from remora.storage.records import Opened, SavedSession
from remora.testing import (
    FaultyChatModel,
    FaultyEmbedder,
    FaultyJournal,
    FaultyReranker,
    FaultyStore,
    FaultySummarizer,
    HashEmbedder,
    ScriptedChatModel,
    during,
    long_term_row,
)
from tests.harness import COUNTER

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Trio's time jumps; asyncio's is real, so what is slow there is slow by milliseconds."""
    return (
        ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})
        if request.param == "trio"
        else "asyncio"
    )


@pytest.fixture
def slow_s(anyio_backend: Any) -> float:
    return 0.02 if anyio_backend == "asyncio" else 1_000.0


async def took_s(operation: Callable[[], Any]) -> float:
    before = anyio.current_time()
    await operation()
    return anyio.current_time() - before


def row(number: int) -> MemoryRow:
    return long_term_row(f"r{number}", "tea", seq=number, created_us=number)


def plan(*faults: Any) -> Callable[[], Any]:
    left = list(faults)
    return lambda: left.pop(0) if left else None


def store_of(*faults: Any, **options: Any) -> FaultyStore:
    return FaultyStore(MemoryStore(None), plan(*faults), **options)


# -- the journal


@pytest.mark.parametrize("fault", [None, "hang", "kept", "lost"])
async def test_a_commit_that_hangs_succeeds_late(
    fault: Any, slow_s: float, anyio_backend: Any
) -> None:
    """G3: of the commits that do not simply succeed, that which hangs is acknowledged, and no
    other.
    """
    journal = FaultyJournal(plan(fault), hang_s=slow_s)
    async with running_journal(journal):
        before = anyio.current_time()
        try:
            await commit_records(journal, [Opened(1, "alice", "chat", 0)])
        except OutcomeUnknown:
            assert fault in {"kept", "lost"}
        else:
            assert fault in {None, "hang"}
        if fault == "hang" or anyio_backend != "asyncio":  # where others may have been slow
            assert (anyio.current_time() - before > slow_s / 2) == (fault == "hang")
        (image,) = await journal.hydrate([SessionKey("alice", "chat")])
        assert isinstance(image, SavedSession)
        assert image.opened == (fault != "lost")


# -- long-term memory


async def test_a_write_that_fails_is_done_or_not_as_its_fault_says() -> None:
    """G7: ``kept`` was done, the others were not; whoever asked is told the same, and tries again."""  # noqa: E501
    for fault in ("refused", "conflict", "kept"):
        store = store_of(fault, None, fault)
        with pytest.raises(LongTermError, match="injected") as told:
            await store.add([row(1)], None, may_exist=False)
        assert told.value.retryable
        assert await store.inner.row_ids() == (["r1"] if fault == "kept" else [])
        await store.add([row(1)], None, may_exist=True)
        assert await store.inner.row_ids() == ["r1"]
        with pytest.raises(LongTermError):
            await store.delete("alice", ["r1"])
        assert await store.inner.row_ids() == ([] if fault == "kept" else ["r1"])


async def test_a_write_that_times_out_may_have_been_done(slow_s: float) -> None:
    """G7: its outcome is unknown, and is both in the long run."""
    store = store_of(*["timeout"] * 20, timeout_s=slow_s, rng=random.Random(1))
    for number in range(20):
        with pytest.raises(LongTermError, match="too long"):
            await store.add([row(number)], None, may_exist=False)
    assert 0 < len(await store.inner.row_ids()) < 20


async def test_a_write_that_hangs_is_done_in_the_end(slow_s: float) -> None:
    """G6: it is slow, and nothing else."""
    store = store_of("hang", hang_s=slow_s)
    assert await took_s(lambda: store.add([row(1)], None, may_exist=False)) > slow_s / 2
    assert await store.row_ids() == ["r1"]


async def test_every_operation_fails_when_it_is_told_to() -> None:
    """G6: reads fail whatever the fault; none of them is ever half an answer."""
    verbs: dict[str, Callable[[FaultyStore], Any]] = {
        "rows": lambda store: store.rows("alice"),
        "embedded_rows": lambda store: store.embedded_rows("alice"),
        "search": lambda store: store.search("alice", "tea", None, depth=3),
        "row_ids": lambda store: store.row_ids(),
        "statistics": lambda store: store.statistics(),
        "verify": lambda store: store.verify(),
        "compact": lambda store: store.compact(),
        "erase": lambda store: store.erase("digest"),
    }
    for ask in verbs.values():
        for fault in ("refused", "kept", "conflict", "timeout"):
            store = store_of(fault, timeout_s=0.0)
            with pytest.raises(LongTermError):
                await ask(store)
            await ask(store)


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)  # in time that jumps
async def test_an_outage_is_over_when_it_is_over(slow_s: float) -> None:
    """G6: a store that is down for minutes."""
    start = anyio.current_time()
    store = FaultyStore(MemoryStore(None), during(start, start + slow_s, "refused"))
    with pytest.raises(LongTermError):
        await store.row_ids()
    await anyio.sleep(slow_s)
    assert await store.row_ids() == []


# -- models


def embedder(fault: Any, **options: Any) -> FaultyEmbedder:
    return FaultyEmbedder(HashEmbedder(4), lambda: fault, **options)


def models(fault: Any) -> list[Callable[[], Any]]:
    summarizer = FaultySummarizer(ExtractiveSummarizer(COUNTER.count), lambda: fault)
    chat = FaultyChatModel(ScriptedChatModel(["fine"] * 9), lambda: fault)
    vectors = embedder(fault)
    reranker = FaultyReranker(as_reranker(lambda _, texts: [0.0] * len(texts)), lambda: fault)
    return [
        lambda: summarizer.summarize("before", [], max_tokens=50),
        lambda: chat.complete([]),
        lambda: vectors.embed(["a", "b"]),
        lambda: reranker.rank("q", ["a", "b"]),
    ]


async def test_a_model_fails_by_whatever_exception() -> None:
    """G6: remora's own error, and those of a user's client; one that hangs is ended by nothing but
    cancellation.
    """
    for ask in models("fail"):
        seen = set()
        for _ in range(20):
            with pytest.raises(Exception) as raised:
                await ask()
            seen.add(raised.type)
        assert ModelUnavailable in seen
        assert seen - {ModelUnavailable}
    for ask in models("hang"):
        with anyio.move_on_after(0.05) as scope:
            await ask()
        assert scope.cancelled_caught


async def test_an_answer_comes_late(slow_s: float) -> None:
    """G5: the right one, when nobody may want it any longer."""
    chat = FaultyChatModel(ScriptedChatModel(["fine"]), lambda: "late", late_s=slow_s)
    before = anyio.current_time()
    assert await chat.complete([]) == "fine"
    assert anyio.current_time() - before > slow_s / 2


async def test_garbage_is_what_was_asked_for() -> None:
    """G6: texts that are none, vectors that do not fit; the models' names are the inner ones'."""
    chat = FaultyChatModel(ScriptedChatModel([]), lambda: "garbage", garbage=[None])
    assert await chat.complete([]) is None
    assert ChatSummarizer(chat).name == "scripted"
    faulty = embedder(
        "garbage", garbage=[lambda rows, dimension: np.full((rows, dimension), np.nan)]
    )
    assert np.isnan(await faulty.embed(["a", "b"])).all()
    assert (faulty.name, faulty.dimension) == ("hash-4", 4)
