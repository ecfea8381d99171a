"""A whole runtime over ports that fail: messages stay, contexts come, and the work is done when the
fault is over (G5 to G7).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio.testing

from remora import Config, Runtime, Session
from remora.errors import CommitFailed, OutcomeUnknown
from remora.ids import SessionKey, row_id
from remora.models.extractive import ExtractiveSummarizer
from remora.runtime.probes import count_probes
from remora.storage.memory.store import MemoryStore
from remora.testing import (
    FaultyChatModel,
    FaultyEmbedder,
    FaultyJournal,
    FaultyStore,
    FaultySummarizer,
    HashEmbedder,
    ScriptedChatModel,
    during,
)
from remora.testing.faulty_models import GARBAGE_TEXTS, GARBAGE_VECTORS
from tests.harness import COUNTER, LoopClock

pytestmark = pytest.mark.anyio

DIMENSION = 8
BUDGET = 300
TEXTS = [
    f"message {n}: we spoke of tea, of boats and of the weather in the north" for n in range(24)
]
CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "buffer": {"token_limit": BUDGET, "summary_tokens": 80},
        "supervisor": {
            "backoff_s": 0.01,
            "max_backoff_s": 0.02,
            "max_attempts": 3,
            "breaker_rest_s": 0.02,
        },
        "models": {"timeout_s": 2.0},
        "synopsis": {"deadline_s": 5.0},
    }
)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Both loops; ``virtual`` is a trio whose time jumps while all wait, for what takes minutes."""
    return (
        ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})
        if request.param == "virtual"
        else request.param
    )


virtual = pytest.mark.parametrize("anyio_backend", ["virtual"], indirect=True)


def times(count: int, fault: Any) -> Callable[[], Any]:
    left = [fault] * count
    return lambda: left.pop() if left else None


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[Runtime, Session]]:
    options = {
        "store": MemoryStore(DIMENSION),
        "embedder": HashEmbedder(DIMENSION),
        "clock": LoopClock(),
        **options,
    }
    async with Runtime.in_memory(config=options.pop("config", CONFIG), **options) as runtime:
        yield runtime, runtime.session("alice", "chat")


async def say(chat: Session, texts: list[str] = TEXTS) -> None:
    for text in texts:
        await chat.append({"role": "user", "content": text})
        assert (await chat.load()).tokens <= BUDGET


async def all_is_there(chat: Session) -> None:
    assert [message.content for message in await chat.history()] == TEXTS
    context = await chat.load()
    assert context.messages[-1]["content"] == TEXTS[-1]
    assert context.tokens <= BUDGET


def everything() -> list[str]:
    return sorted(row_id(SessionKey("alice", "chat"), seq) for seq in range(1, len(TEXTS) + 1))


# -- the journal


@pytest.mark.parametrize("fault", ["refused", "lost", "kept", "hang"])
async def test_a_journal_that_fails(fault: Any) -> None:
    """G3, G4, G7: sent again with its key until it is acknowledged, each message is there once."""
    turns = iter(range(1_000_000))
    faults: list[Any] = [fault]
    journal = FaultyJournal(lambda: faults[0] if next(turns) % 3 == 1 else None, hang_s=0.03)
    async with running(journal=journal) as (runtime, chat):
        for number, text in enumerate(TEXTS):
            while True:
                try:
                    await chat.append({"role": "user", "content": text}, key=f"k{number}")
                    break
                except (CommitFailed, OutcomeUnknown):
                    assert fault != "hang"
        faults[0] = None
        await chat.flush()
        await runtime.settle()
        await all_is_there(chat)
        assert await runtime.dead_letters() == []


# -- long-term memory


@pytest.mark.parametrize("fault", ["refused", "kept", "conflict", "timeout", "hang"])
async def test_a_store_that_fails(fault: Any) -> None:
    """G5, G6, G7: contexts come without it, and each message is in it once, when it is well again."""  # noqa: E501
    inner = MemoryStore(DIMENSION)
    store = FaultyStore(inner, times(9, fault), hang_s=0.03, timeout_s=0.03)
    async with running(store=store) as (runtime, chat):
        await say(chat)
        context = await chat.load("tea and boats")
        assert context.messages[-1]["content"] == TEXTS[-1]
        await chat.flush()
        await runtime.settle()
        await all_is_there(chat)
        assert sorted(await inner.row_ids()) == everything()
        assert await runtime.dead_letters() == []
        assert await runtime.user("alice").recall("boats")


@virtual
async def test_a_store_that_is_down_for_minutes() -> None:
    """G6: however long it is away, its jobs wait for it."""
    inner = MemoryStore(DIMENSION)
    start = anyio.current_time()
    config = Config.from_dict(
        {
            "tokens": {"counter": "heuristic"},
            "buffer": {"token_limit": BUDGET, "summary_tokens": 80},
        }
    )
    async with running(
        config=config, store=FaultyStore(inner, during(start, start + 600, "refused"))
    ) as (runtime, chat):
        await say(chat)
        await chat.flush()
        await all_is_there(chat)
        assert await inner.row_ids() == []
        await runtime.settle()
        assert anyio.current_time() >= start + 600
        assert sorted(await inner.row_ids()) == everything()


# -- summarizers


def extract() -> ExtractiveSummarizer:
    return ExtractiveSummarizer(COUNTER.count)


@pytest.mark.parametrize("garbage", GARBAGE_TEXTS, ids=lambda one: repr(one)[:16])
@pytest.mark.parametrize("kind", ["summarizer", "chat_model"])
async def test_a_summarizer_that_answers_garbage(kind: str, garbage: Any) -> None:
    """G5, G6: a summary comes all the same, within its bound; no message is lost, and no session is
    stuck.
    """
    options: dict[str, Any] = {
        "summarizer": FaultySummarizer(extract(), lambda: "garbage", garbage=[garbage])
    }
    if kind == "chat_model":
        options = {
            "chat_model": FaultyChatModel(
                ScriptedChatModel([]), lambda: "garbage", garbage=[garbage]
            )
        }
    async with running(**options) as (runtime, chat):
        await say(chat)
        await runtime.settle()
        await all_is_there(chat)
        context = await chat.load()
        assert context.summary
        assert context.summary.encode()
        assert context.pending == 0
        assert await runtime.dead_letters() == []
        synopsis = await runtime.user("alice").synopsis()
        assert synopsis.identity.encode() or synopsis.context.encode() or synopsis.state


@pytest.mark.parametrize("kind", ["summarizer", "chat_model"])
async def test_a_summarizer_that_fails(kind: str) -> None:
    """G6: whatever it raises, an extract stands in, and says so."""
    options: dict[str, Any] = {"summarizer": FaultySummarizer(extract(), lambda: "fail")}
    if kind == "chat_model":
        options = {"chat_model": FaultyChatModel(ScriptedChatModel([]), lambda: "fail")}
    async with running(**options) as (runtime, chat):
        await say(chat)
        await runtime.settle()
        await all_is_there(chat)
        assert (await chat.load()).sources["summary"].status == "degraded"
        assert await runtime.dead_letters() == []


@virtual
async def test_a_summarizer_that_hangs() -> None:
    """G5, G6: it is given up when its time is over; no append and no load waits for it."""
    async with running(summarizer=FaultySummarizer(extract(), lambda: "hang")) as (runtime, chat):
        await say(chat)
        await all_is_there(chat)
        await runtime.settle()
        await all_is_there(chat)
        assert (await chat.load()).sources["summary"].status == "degraded"
        assert await runtime.dead_letters() == []


@virtual
async def test_a_summary_that_comes_after_a_clear() -> None:
    """G1, G6: what was cleared does not come back with a summary that is late."""
    config = Config.from_dict({
        "tokens": {"counter": "heuristic"},
        "buffer": {"token_limit": BUDGET, "summary_tokens": 80},
        "models": {"timeout_s": 200.0},
    })  # fmt: skip
    with count_probes() as counts:
        async with running(
            config=config, summarizer=FaultySummarizer(extract(), times(1, "late"))
        ) as (runtime, chat):
            for text in TEXTS[:16]:
                await chat.append({"role": "user", "content": text})
            assert (await chat.load()).pending
            await chat.clear()
            await chat.append({"role": "user", "content": "afresh"})
            await runtime.settle()
            context = await chat.load()
            assert [message["content"] for message in context.messages] == ["afresh"]
            assert context.summary is None
    assert counts["job_cancelled_running"] or counts["stale_summary_dropped"]


# -- embedders


@pytest.mark.parametrize("garbage", range(len(GARBAGE_VECTORS)))
async def test_an_embedder_that_answers_garbage(garbage: int) -> None:
    """G5, G6: the conversation is shown without it; what it cannot embed waits, as a dead letter,
    until it can.
    """
    faulty = [True]
    embedder = FaultyEmbedder(
        HashEmbedder(DIMENSION),
        lambda: "garbage" if faulty[0] else None,
        garbage=[GARBAGE_VECTORS[garbage]],
    )
    inner = MemoryStore(DIMENSION)
    async with running(store=inner, embedder=embedder) as (runtime, chat):
        await say(chat)
        context = await chat.load("tea and boats")
        assert context.messages[-1]["content"] == TEXTS[-1]
        await chat.flush()
        await runtime.settle()
        await all_is_there(chat)
        faulty[0] = False
        await runtime.retry_dead_letters()
        await runtime.settle()
        assert await runtime.dead_letters() == []
        assert sorted(await inner.row_ids()) == everything()


async def test_an_embedder_that_fails() -> None:
    """G5, G6: whatever it raises, its jobs wait for it, and each message is embedded once in the
    end.
    """
    inner = MemoryStore(DIMENSION)
    async with running(
        store=inner, embedder=FaultyEmbedder(HashEmbedder(DIMENSION), times(8, "fail"))
    ) as (runtime, chat):
        await say(chat)
        assert (await chat.load("tea and boats")).messages[-1]["content"] == TEXTS[-1]
        await chat.flush()
        await runtime.settle()
        await all_is_there(chat)
        assert await runtime.dead_letters() == []
        assert sorted(await inner.row_ids()) == everything()


@virtual
@pytest.mark.parametrize("fault", ["hang", "late"])
async def test_an_embedder_that_does_not_answer(fault: Any) -> None:
    """G5, G6: contexts come at their deadline without it, and its jobs give it up and ask again."""
    inner = MemoryStore(DIMENSION)
    async with running(
        store=inner, embedder=FaultyEmbedder(HashEmbedder(DIMENSION), times(4, fault))
    ) as (runtime, chat):
        await say(chat)
        context = await chat.load("tea and boats")
        assert context.messages[-1]["content"] == TEXTS[-1]
        await chat.flush()
        await runtime.settle()
        await all_is_there(chat)
        assert await runtime.dead_letters() == []
        assert sorted(await inner.row_ids()) == everything()
