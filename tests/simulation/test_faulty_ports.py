"""A whole runtime over ports that fail: messages stay, contexts come, and the work is done when the
fault is over (G5 to G7).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio.testing

from remora import Config, Runtime, Session
from remora.errors import CommitFailed, OutcomeUnknown
from remora.ids import row_id
from remora.models.extractive import ExtractiveSummarizer
from remora.storage.memory import MemoryStore
from remora.storage.ports import SessionKey
from remora.testing import (
    FaultyChatModel,
    FaultyEmbedder,
    FaultyJournal,
    FaultyStore,
    FaultySummarizer,
    HashEmbedder,
    ScriptedChatModel,
    count_probes,
    during,
)
from remora.testing.models import GARBAGE_TEXTS, GARBAGE_VECTORS
from tests.harness import COUNTER, LoopClock

pytestmark = pytest.mark.anyio

DIMENSION = 8
BUDGET = 300
EXTRACTS = ExtractiveSummarizer(COUNTER.count)
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
        "models": {"timeout_s": 120.0},
        "synopsis": {"deadline_s": 120.0},
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


# -- the others


def failing(port: str, fault: Any, garbage: Any) -> dict[str, Any]:
    """A port of the runtime that fails: models for summaries always, the others for a while."""
    match port:
        case "store":
            inner = MemoryStore(DIMENSION)
            return {port: FaultyStore(inner, times(9, fault), hang_s=0.03, timeout_s=0.03)}
        case "embedder":
            faults = times(4 if fault in {"hang", "late"} else 8, fault)
            return {port: FaultyEmbedder(HashEmbedder(DIMENSION), faults, garbage=[garbage])}
        case "summarizer":
            return {port: FaultySummarizer(EXTRACTS, lambda: fault, garbage=[garbage])}
        case _:
            model = ScriptedChatModel([])
            return {port: FaultyChatModel(model, lambda: fault, garbage=[garbage])}


FAULTS: Sequence[tuple[str, Sequence[str], Sequence[Any]]] = (
    ("store", ("refused", "kept", "conflict", "timeout", "hang"), ()),
    ("embedder", ("fail", "hang", "late"), GARBAGE_VECTORS),
    ("summarizer", ("fail", "hang"), GARBAGE_TEXTS),
    ("chat_model", ("fail",), GARBAGE_TEXTS),
)


def cases() -> Iterator[Any]:
    """Every fault on both loops; what takes minutes on a virtual one."""
    for port, faults, garbage in FAULTS:
        for fault in faults:
            for loop in ["virtual"] if fault in {"hang", "late"} else ["asyncio", "trio"]:
                yield pytest.param(loop, port, fault, None, id=f"{port} {fault} {loop}")
        for number, one in enumerate(garbage):
            for loop in ("asyncio", "trio"):
                yield pytest.param(loop, port, "garbage", one, id=f"{port} {number} {loop}")


@pytest.mark.parametrize(
    ("anyio_backend", "port", "fault", "garbage"), [*cases()], indirect=["anyio_backend"]
)
async def test_a_port_that_fails(port: str, fault: str, garbage: Any) -> None:
    """G5, G6, G7: contexts come without it at once, within their budget; a summary comes all the
    same, and says so where it is an extract; no session is stuck, and each message is in long-term
    memory once when all is well again: what could not be embedded waits, as a dead letter, until
    it can.
    """
    async with running(**failing(port, fault, garbage)) as (runtime, chat):
        await say(chat)
        context = await chat.load("tea and boats")
        assert context.messages[-1]["content"] == TEXTS[-1]
        await chat.flush()
        await runtime.settle()
        await all_is_there(chat)
        while await runtime.dead_letters():
            assert (port, fault) == ("embedder", "garbage")
            await runtime.retry_dead_letters()
            await runtime.settle()
        store = await runtime.internals.long_term()
        assert sorted(await store.row_ids()) == everything()
        if fault not in {"hang", "late"}:  # which a recall may still wait for
            assert await runtime.user("alice").recall("boats")
        context = await chat.load()
        assert context.summary
        assert context.summary.encode()
        assert context.pending == 0
        if port not in {"summarizer", "chat_model"}:
            return
        if fault != "garbage":
            assert context.sources["summary"].status == "degraded"
            return
        synopsis = await runtime.user("alice").synopsis()
        assert synopsis.identity.encode() or synopsis.context.encode() or synopsis.state


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
            config=config, summarizer=FaultySummarizer(EXTRACTS, times(1, "late"))
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
