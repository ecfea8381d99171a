"""Tokens that a thread counts: order, cancellation, deadlines, failures, and the same counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from remora import Config, Context, Receipt, Runtime, Session
from remora.errors import InvalidInput, MailboxFull
from remora.runtime.threads import run_in_thread
from remora.services import intake
from remora.testing import count_probes
from remora.tokens import TiktokenCounter
from tests.harness import user
from tests.patience import until

pytestmark = pytest.mark.anyio
CONFIG = Config.from_dict(
    {
        "long_term": {"enabled": False},
        "mailbox": {"max_messages": 4},
        "buffer": {"token_limit": 1_000_000},  # nothing is folded, at whatever time
    }
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # elsewhere all is counted at once


@pytest.fixture(autouse=True)
def always() -> Iterator[None]:
    with patch.multiple(intake, _FEW=0, _FEW_LONG=0):
        yield


class Gate:
    """Holds the counting thread up; hears what it counts."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = threading.Event()
        self.counted: list[str] = []
        self.fails_on = ""

    def count_all(self, texts: list[str], then: Callable[[list[str]], list[int]]) -> list[int]:
        self.counted += texts
        self.begun.set()
        self.open.wait()
        if self.fails_on in texts:
            raise _Panic
        return then(texts)


class _Panic(BaseException):
    """As tiktoken's, which is no Exception."""


@pytest.fixture
def gate() -> Iterator[Gate]:
    held, real = Gate(), TiktokenCounter.count_all

    def count_all(self: TiktokenCounter, texts: list[str]) -> list[int]:
        return held.count_all(texts, lambda some: real(self, some))

    with patch.object(TiktokenCounter, "count_all", count_all):
        yield held
        held.open.set()


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with Runtime.in_memory(config=CONFIG) as opened:
        yield opened


@pytest.fixture
async def chat(runtime: Runtime) -> Session:
    session = runtime.session("alice", "one")
    with patch.object(intake, "_FEW", 100):
        await session.append(user("first"))  # the session is in memory
    return session


def begin(*calls: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(call) for call in calls]


async def held_up(gate: Gate) -> None:
    """Return when the thread counts, and all that was begun waits."""
    await until(gate.begun.is_set, "the thread counts")
    for _ in range(20):
        await asyncio.sleep(0)


def said(context: Context) -> list[Any]:
    return [message["content"] for message in context.messages]


async def test_nothing_overtakes_a_message_that_is_counted(
    gate: Gate, runtime: Runtime, chat: Session
) -> None:
    """G2, G10: not a load, not a message that needs no counting, not a clear; and only the session
    waits whose message is counted.
    """
    tool: Any = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip
    append, load, called, again = begin(
        chat.append(user("second")), chat.load(), chat.append(tool), chat.clear()
    )
    await held_up(gate)
    assert said(await runtime.session("bob", "one").load()) == []
    assert not any(task.done() for task in (append, load, called, again))
    gate.open.set()
    assert (await append).seqs == (2,)
    assert said(await load) == ["first", "second"]
    assert (await called).seqs == (3,)
    assert await again == 3


async def test_counts_are_those_of_the_loop(runtime: Runtime) -> None:
    """G9: for names, odd keys, two blanks and characters outside of ASCII, one by one and many."""
    messages: list[Any] = [
        {"role": "user", "content": f"{n}  two  blanks\n\n  é 漢字 🙂 {'word ' * n}", **more}
        for n in range(100)
        for more in ({}, {"name": "Bo"}, {"name": ""}, {"mood": "glad"})
    ]
    session, other = runtime.session("alice", "one"), runtime.session("alice", "two")
    with count_probes() as probes:
        await asyncio.gather(*map(session.append, messages[:-2]))
        await session.append(messages[-2:])
    assert probes["counted_in_thread"] > len(messages) // 2
    with patch.object(intake, "_FEW", 1_000_000):
        for message in messages:
            await other.append(message)
    tokens = [(await one.load()).tokens for one in (session, other)]
    assert tokens[0] == tokens[1] > 10_000


async def test_a_sender_who_leaves_is_not_heard(gate: Gate, chat: Session) -> None:
    """A message that was not handled is not stored, and does not hold up those behind it."""
    gone, stays, load = begin(chat.append(user("gone")), chat.append(user("stays")), chat.load())
    await held_up(gate)
    gone.cancel()
    gate.open.set()
    assert (await stays).seqs == (2,)
    assert said(await load) == ["first", "stays"]
    gate.open.clear()
    gate.begun.clear()
    gone, load = begin(chat.append(user("gone")), chat.load(timeout_s=600))
    await held_up(gate)
    gone.cancel()
    gate.open.set()
    assert said(await load) == ["first", "stays"]


async def test_a_deadline_passes_while_it_is_counted(gate: Gate, chat: Session) -> None:
    """G10: nothing ran, and the sender is told so in time."""
    append, after = begin(chat.append(user("late"), timeout_s=0.05), chat.append(user("after")))
    with pytest.raises(MailboxFull) as refused:
        await append
    assert refused.value.limit == "age"
    assert not after.done()
    gate.open.set()
    assert (await after).seqs == (2,)
    assert said(await chat.load()) == ["first", "after"]


async def test_what_waits_behind_it_is_bounded(gate: Gate, chat: Session) -> None:
    """G10: a mailbox takes no more than it and the gate of replies would."""
    tasks = begin(*(chat.append(user(f"text {n}")) for n in range(1_100)))
    await held_up(gate)
    refused = [task.exception() for task in tasks if task.done()]
    assert len(refused) == 1_100 - 4 - 1_024
    assert all(isinstance(error, MailboxFull) for error in refused)
    gate.open.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    seqs = [receipt.seqs for receipt in ended if isinstance(receipt, Receipt)]
    assert seqs == [(n,) for n in range(2, 4 + 1_024 + 2)]


async def test_an_erased_session_gets_nothing(gate: Gate, runtime: Runtime, chat: Session) -> None:
    """G13: what is counted when its session is forgotten is refused, and stored nowhere."""
    (append,) = begin(chat.append(user("secret")))
    await held_up(gate)
    (erasure,) = begin(chat.forget())
    for _ in range(50):
        await asyncio.sleep(0)
    gate.open.set()
    receipt = await asyncio.gather(append, return_exceptions=True)
    await erasure
    assert said(await runtime.session("alice", "one").load()) == []
    assert isinstance(receipt[0], Receipt | Exception)


async def test_a_text_that_cannot_be_counted_fails_alone(gate: Gate, runtime: Runtime) -> None:
    """G11: the others of its batch are stored."""
    gate.fails_on = "bad"
    sessions = [runtime.session(name, "one") for name in ("alice", "bob", "carol")]
    for session in sessions:
        await session.load()
    with count_probes() as probes:
        tasks = begin(
            sessions[0].append(user("good")),
            sessions[1].append(user("bad")),
            sessions[2].append([user("good"), user("as well")]),
            sessions[1].append(user("better")),
        )
        await held_up(gate)
        gate.open.set()
        with pytest.raises(InvalidInput) as refused:
            await tasks[1]
    assert isinstance(refused.value.__cause__, _Panic)
    assert [(await tasks[place]).seqs for place in (0, 2, 3)] == [(1,), (1, 2), (1,)]
    assert said(await sessions[1].load()) == ["better"]
    assert probes["batch_counted_one_by_one"]


async def test_a_flood_is_counted_at_once(gate: Gate, runtime: Runtime) -> None:
    """G10: whoever comes behind many waits for a bounded number of them."""
    sessions = [runtime.session(f"user-{n}", "one") for n in range(400)]
    for session in sessions:
        await session.load()
    with count_probes() as probes:
        tasks = begin(*(session.append(user("text")) for session in sessions))
        await held_up(gate)
        assert 256 <= probes["counted_in_thread"] <= 256 + 64
        gate.open.set()
        assert [(await task).seqs for task in tasks] == [(1,)] * 400


async def test_the_thread_ends_with_the_runtime() -> None:
    """S5: a closed runtime leaves no thread behind."""
    before = set(threading.enumerate())
    async with Runtime.in_memory(config=CONFIG) as runtime:
        await runtime.session("alice", "one").append(user("text"))
        (thread,) = [
            one for one in {*threading.enumerate()} - before if one.name == "remora-tokens"
        ]
    await run_in_thread(thread.join)
    assert not thread.is_alive()
