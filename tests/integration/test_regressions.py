"""What a review found, each kept as a test: plugged-in parts that misbehave, and the edges of the
life cycle.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timezone
from datetime import timedelta as delta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from msgspec.structs import replace

from remora import BufferPolicy, Config, Context, Runtime
from remora.errors import (
    CommitFailed,
    InvalidMessage,
    JournalDamaged,
    KeyConflict,
    OutcomeUnknown,
    RuntimeClosed,
)
from remora.messages import Entry
from remora.storage.memory import MemoryJournal, MemoryStore
from remora.storage.ports import SessionKey
from remora.testing import HashEmbedder
from remora.tokens import CallableCounter, HeuristicCounter, count_message
from tests.harness import user
from tests.patience import until
from tests.sqlite import Connections, change_rows, refuse_full_disk, row_in_the_way

pytestmark = pytest.mark.anyio

CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 100, "fold_ratio": 0.7, "summary_tokens": 40},
        "long_term": {"enabled": False},
        "tokens": {"counter": "heuristic"},
        "supervisor": {"max_attempts": 2, "backoff_s": 0.01, "max_backoff_s": 0.02},
    }
)
ROOMY = replace(CONFIG, buffer=replace(CONFIG.buffer, token_limit=100_000))


def sentence(number: int) -> dict[str, Any]:
    return user(f"Sentence number {number} is about gardens and about trees.")


async def test_aclose_spares_its_caller(tmp_path: Path) -> None:
    """G12: closing inside the block, or from another task, cancels nothing of the host's."""
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        await runtime.session("alice", "one").append(user("hello"))
        await runtime.aclose()
        await anyio.lowlevel.checkpoint()
    async with (
        anyio.create_task_group() as tasks,
        Runtime(tmp_path, config=CONFIG) as runtime,
    ):
        tasks.start_soon(runtime.aclose)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeClosed):
            await runtime.session("alice", "one").load()


class Panic(BaseException):
    """What an extension module may raise."""


async def compact(runtime: Runtime) -> Context:
    """Append more than a new session's buffer holds: it ends summarized, and nothing is lost."""
    chat = runtime.session("alice", "one")
    for number in range(12):
        await chat.append(sentence(number))
    await chat.settle()
    context = await chat.load()
    assert context.pending == 0
    assert context.summary
    assert len(await chat.history()) == 12
    return context


async def test_models_that_misbehave(tmp_path: Path) -> None:
    """G6, G11, S4.30: whatever a plugged-in model returns or raises, the fold ends, the host lives,
    and nothing is lost. What is no `Exception` ends an extract as any other failure.
    """

    async def model(_: str) -> Any:
        if outcome == "cancelled":
            raise anyio.get_cancelled_exc_class()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    for number, outcome in enumerate(
        (
            None, b"bytes", 7, "", "cut emoji \ud83d", "word " * 50_000, Panic("p"), KeyError("k"),
            "cancelled",
        )
    ):  # fmt: skip
        path, told = tmp_path / str(number), repr(outcome)[:20]
        async with Runtime(path, config=CONFIG, chat_model=model) as runtime:
            context = await compact(runtime)
            assert context.tokens <= 100, told
            usable = outcome == "cut emoji \ud83d"  # what is too long is never cut
            assert context.sources["summary"].status == ("ok" if usable else "degraded"), told

    class Extract:
        name = "panics"
        extracts = True

        async def summarize(self, *_: Any, max_tokens: int) -> str:
            raise Panic("p")

    async with Runtime(tmp_path / "extract", config=CONFIG, summarizer=Extract()) as runtime:
        await compact(runtime)
        assert await runtime.dead_letters() == []


async def test_embedders_that_misbehave() -> None:
    """G6: a load with a query goes on without them and says so."""

    class Bad(HashEmbedder):
        async def embed(self, texts: Any) -> Any:
            if isinstance(returned, Exception):
                raise returned
            return returned

    config = Config.from_dict({"recall": {"deadline_s": 600}})
    nan = np.full((1, 64), np.nan)
    for returned in (None, [[1.0]], "text", nan, ValueError("boom"), ConnectionError("away")):
        async with Runtime.in_memory(config=config, embedder=Bad()) as runtime:
            chat = runtime.session("alice", "one")
            await chat.append(user("hello"))
            context = await chat.load(query="hello \ud800")
            assert context.sources["long_term"].status == "failed", returned
            assert context.messages == [user("hello")], returned


async def test_slow_sync_embedder_meets_the_deadline(tmp_path: Path) -> None:
    """G5: a synchronous embedder that sleeps in a thread cannot hold a load beyond its deadline."""
    config = Config.from_dict({"recall": {"deadline_s": 0.2}, "models": {"embedding_dimension": 4}})

    answered = threading.Event()

    def slow(texts: list[str]) -> Any:
        answered.wait()
        return np.ones((len(texts), 4))

    async with Runtime(tmp_path, config=config, embedder=slow) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("hello"))
        try:
            assert (await chat.load(query="hello")).sources["long_term"].status == "late"
        finally:
            answered.set()


async def test_commit_that_failed_and_was_kept(tmp_path: Path, connections: Connections) -> None:
    """G4, G7: a commit reported as failed that is there after all: its messages, keys and jobs all
    count.
    """
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        journal: Any = runtime.internals.journal
        chat = runtime.session("alice", "one")
        armed = [False]

        def lie() -> None:
            if armed[0]:
                armed[0] = False
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
                raise error

        connections[0].after_commit = lie
        number = 0
        while not (await chat.inspect()).pending:  # fails the very commit that starts a fold
            armed[0] = (await chat.inspect()).buffered_tokens > 50
            try:
                await chat.append(sentence(number), key=f"k{number}")
            except OutcomeUnknown:
                again = await chat.append(sentence(number), key=f"k{number}")
                assert again.duplicate
            number += 1
            if (await chat.inspect()).summary:
                break
        await chat.settle()
        assert (await chat.load()).pending == 0
        assert len(await chat.history()) == number
        assert await journal.jobs() == []


async def test_failed_commit_with_one_place_for_a_live_session(
    tmp_path: Path, connections: Connections
) -> None:
    """G10, G11: a session that must be restored does not wait for the place that it holds itself."""  # noqa: E501
    config = replace(CONFIG, activation=replace(CONFIG.activation, max_live=1))
    async with Runtime(tmp_path, config=config) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("one"))
        connections[0].before_commit = refuse_full_disk
        with pytest.raises(CommitFailed):
            await chat.append(user("two"))
        connections[0].before_commit = None
        assert (await chat.append(user("two"))).seqs == (2,)
        assert (await runtime.session("bob", "one").append(user("one"))).seqs == (1,)


async def test_nobody_hangs_when_the_runtime_closes(tmp_path: Path) -> None:
    """G12: loads, keyed retries and settles under way get an answer."""
    outcomes: list[str] = []

    async def attempt(work: Any) -> None:
        try:
            await work()
            outcomes.append("done")
        except RuntimeClosed:
            outcomes.append("closed")

    class Hanging:
        async def complete(self, _: Any) -> str:
            await anyio.sleep_forever()
            raise AssertionError

    async with anyio.create_task_group() as tasks:
        async with Runtime(tmp_path, config=CONFIG, chat_model=Hanging()) as runtime:
            chat = runtime.session("alice", "one")
            for number in range(12):
                await chat.append(sentence(number), key=f"k{number}")
            tasks.start_soon(attempt, chat.settle)
            for number in range(200):
                tasks.start_soon(attempt, runtime.session("bob", f"{number}").load)
                tasks.start_soon(
                    attempt, lambda n=number % 12: chat.append(sentence(n), key=f"k{n}")
                )
            for _ in range(2):
                await anyio.lowlevel.checkpoint()
    assert len(outcomes) == 401


async def test_what_cannot_be_read_back_is_not_taken() -> None:
    """S1.18, S4.28: refused at the door, not at the next reading; a tuple comes back
    as the list that JSON makes of it.
    """
    deep: Any = "leaf"
    for _ in range(200):
        deep = [deep]
    last = datetime.max.replace(tzinfo=timezone(delta(hours=-5)))
    first = datetime.min.replace(tzinfo=timezone(delta(hours=5)))
    async with Runtime.in_memory(config=CONFIG) as runtime:
        chat = runtime.session("alice", "one")
        for beyond, told in (
            ({"metadata": {1: 2}}, None),
            ({"created_at": last}, None),
            ({"created_at": first}, None),
            ({"created_at": float("nan")}, None),
            ({"id": "\ud800"}, None),
            ({"metadata": {"blob": "y " * 8_500_000}}, None),
            ({"extra": deep}, "deeper"),
        ):
            with pytest.raises(InvalidMessage, match=told):
                await chat.append({**user("x"), **beyond})
        early = datetime(1969, 1, 1, tzinfo=UTC)
        await chat.append({**user("x"), "annotations": ({"a": 1},), "created_at": early})
        assert (await chat.load()).messages == [{**user("x"), "annotations": [{"a": 1}]}]
        assert (await chat.history())[0].created_at == early


async def test_a_damaged_session_fails_alone(tmp_path: Path) -> None:
    """G11: one unreadable row is that session's trouble, although hundreds are read at once."""
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    message: dict[str, Any] = {"role": "assistant", "tool_calls": [call]}
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        for number in range(10):
            await runtime.session("alice", f"{number}").append(message)
        sid = (await runtime.session("alice", "3").inspect()).sid
        damage = "UPDATE messages SET chat = x'81aa746f6f6c5f63616c6c73c1' WHERE pos >> 32 = "
        await change_rows(tmp_path / "journal.db", f"{damage}{sid}")
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        outcomes: dict[int, Any] = {}

        async def look(number: int) -> None:
            try:
                outcomes[number] = (await runtime.session("alice", f"{number}").inspect()).last_seq
            except JournalDamaged as e:
                outcomes[number] = e

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(look, number)
        assert isinstance(outcomes.pop(3), JournalDamaged)
        assert set(outcomes.values()) == {1}


async def test_appends_started_in_order_stay_in_order(tmp_path: Path) -> None:
    """G2: one sender's appends, even if it does not wait for each, keep their order."""
    async with Runtime(tmp_path, config=ROOMY) as runtime:
        chat = runtime.session("alice", "one")
        async with anyio.create_task_group() as tasks:
            for number in range(300):
                tasks.start_soon(chat.append, user(f"{number}"))
        assert [m.content for m in await chat.history()] == [f"{number}" for number in range(300)]


async def test_one_bad_write_does_not_split_everyones_commit(tmp_path: Path) -> None:
    """G11: a row that cannot be stored costs its neighbours a handful of commits, not one each."""
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        journal: Any = runtime.internals.journal
        chats = [runtime.session("alice", f"{number}") for number in range(200)]
        for chat in chats:
            await chat.append(user("first"))
        sid = (await chats[77].inspect()).sid
        await change_rows(tmp_path / "journal.db", row_in_the_way(sid, 2))
        before = journal.statistics().commits
        failed = []

        async def send(number: int) -> None:
            try:
                await chats[number].append(user("second"))
            except CommitFailed:
                failed.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(send, number)
        assert failed == [77]
        assert journal.statistics().commits - before < 40


async def test_flush_jobs_left_by_an_earlier_configuration(tmp_path: Path) -> None:
    """G11: with long-term memory switched off, jobs for it wait in the journal and harm nobody;
    switched on again, they run.
    """

    class Hanging(HashEmbedder):
        async def embed(self, texts: Any) -> Any:
            await anyio.sleep_forever()

    async with Runtime(tmp_path, embedder=Hanging()) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("the key is under the flowerpot"))
        await chat.flush()
    async with Runtime(
        tmp_path, config=Config.from_dict({"long_term": {"enabled": False}})
    ) as runtime:
        assert len(await runtime.session("alice", "one").history()) == 1
        await runtime.session("bob", "one").append(user("hello"))
        await runtime.settle()
    async with Runtime(tmp_path, embedder=HashEmbedder()) as runtime:
        await runtime.settle()
        assert len(await runtime.user("alice").recall("flowerpot")) == 1


async def test_disk_that_fails_longer_than_any_job_tries(
    tmp_path: Path, connections: Connections
) -> None:
    """G6, G7: a disk that is full for many attempts delays folds; it buries none."""
    is_full = anyio.Event()

    class Waiting:
        name = "waiting"

        async def summarize(self, *_: Any, **__: Any) -> str:
            await is_full.wait()
            return "gardens"

    async with Runtime(tmp_path, config=CONFIG, summarizer=Waiting()) as runtime:
        chat = runtime.session("alice", "one")
        attempts, broken = [0], [False]

        def fail() -> None:
            if broken[0]:
                attempts[0] += 1
                refuse_full_disk()

        connections[0].before_commit = fail
        while not (await chat.inspect()).pending:
            await chat.append(sentence(1))
        broken[0] = True
        is_full.set()
        await until(lambda: attempts[0] >= 12, "commits fail")
        broken[0] = False
        await chat.settle()
        assert (await chat.load()).summary
        assert await runtime.dead_letters() == []


async def test_fold_of_messages_that_cannot_be_read(tmp_path: Path) -> None:
    """G6: a fold has no way to fail for good: at worst its summary says how many messages there
    were.
    """
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        journal: Any = runtime.internals.journal

        async def unreadable(*_: Any) -> Any:
            raise JournalDamaged("gone")

        journal.read = unreadable
        chat = runtime.session("alice", "one")
        for number in range(8):
            await chat.append(sentence(number))
        await chat.settle()
        context = await chat.load()
        assert "could not be read" in (context.summary or "")
        assert context.sources["summary"].status == "degraded"


async def test_job_that_closes_the_runtime(tmp_path: Path) -> None:
    """G11: refused at once, since closing waits for that job."""
    holder: list[Runtime] = []

    class Closing:
        async def complete(self, _: Any) -> str:
            await holder[0].aclose()
            return "unreachable"

    async with Runtime(tmp_path, config=CONFIG, chat_model=Closing()) as runtime:
        holder.append(runtime)
        chat = runtime.session("alice", "one")
        for number in range(8):
            await chat.append(sentence(number))
        await chat.settle()
        assert (await chat.load()).sources["summary"].status == "degraded"


async def test_counters_there_and_back(tmp_path: Path) -> None:
    """G9: rows counted by several counters keep the budget of the one in force."""
    for counter in (CallableCounter(len), HeuristicCounter(), CallableCounter(len)):
        async with Runtime(tmp_path, config=ROOMY, counter=counter) as runtime:
            chat = runtime.session("alice", "one")
            for number in range(20):
                await chat.append(sentence(number))
            context = await chat.load(max_tokens=600)
            counted = sum(count_message(counter, m) for m in context.messages)
            assert 0 < context.tokens == counted <= 600


async def test_native_cancellation_while_closing(tmp_path: Path) -> None:
    """G12: a host that cancels twice, as asyncio does on a second Ctrl-C, leaves nobody hanging and
    no lock behind.
    """
    outcomes: list[str] = []

    async def send(chat: Any) -> None:
        try:
            await chat.append(user("x"))
            outcomes.append("done")
        except (RuntimeClosed, OutcomeUnknown):
            # it did not run, or it did and its commit is not known
            outcomes.append("closed")

    async def host() -> None:
        async with Runtime(tmp_path, config=CONFIG) as runtime:
            for number in range(3):
                chat = runtime.session("alice", f"{number}")
                sends.append(asyncio.create_task(send(chat)))
            await asyncio.sleep(3600)

    sends: list[asyncio.Task[None]] = []
    task = asyncio.create_task(host())
    await until(lambda: sends, "the runtime is open")
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task, *sends])
    assert len(outcomes) == 3
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        await runtime.session("alice", "0").load()


async def test_odd_queries(tmp_path: Path) -> None:
    """S2.12: half an emoji, quotes and operators are text to search for."""
    queries = ("cut \ud83d", "", "   ", '"unclosed', "a AND (b OR", "the", "🚀", "x" * 5_000)
    config = Config.from_dict({"recall": {"deadline_s": 600}})
    async with Runtime(tmp_path, config=config, embedder=HashEmbedder()) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("hello there"))
        await chat.flush()
        await chat.settle()
        for query in queries:
            await runtime.user("alice").recall(query)
            assert (await chat.load(query=query)).sources["long_term"].status == "ok", query


async def test_closed_is_closed(tmp_path: Path) -> None:
    """G12: every verb of a runtime that is not open says so."""
    runtime = Runtime(tmp_path, config=CONFIG)
    alice = runtime.user("alice")
    chat = alice.session("one")
    for closed in (False, True):
        for verb in (
            runtime.long_term_statistics,
            runtime.counts,
            runtime.settle,
            runtime.dead_letters,
            alice.sessions,
            alice.synopsis,
            alice.forget,
            chat.load,
            chat.history,
            chat.settle,
        ):
            with pytest.raises(RuntimeClosed, match="is closed" if closed else "open the runtime"):
                await verb()
        with pytest.raises(RuntimeClosed):
            _ = runtime.internals
        if not closed:
            async with runtime:
                assert (await chat.load()).messages == []  # a handle from before


@pytest.mark.parametrize("given", [False, True])
async def test_a_closed_runtime_gives_no_store(*, given: bool) -> None:
    """G12: what still holds a way to long-term memory, as a memory block may, is refused."""
    store = MemoryStore(dimension=None) if given else None
    config = replace(CONFIG, long_term=Config().long_term)
    async with Runtime.in_memory(config=config, store=store) as runtime:
        way = runtime.internals.index.store
        await way()
    with pytest.raises(RuntimeClosed, match="is closed"):
        await way()


async def test_key_with_fewer_messages() -> None:
    """G4: a key names one append; whoever comes under it with fewer messages is refused."""
    async with Runtime.in_memory(config=CONFIG) as runtime:
        chat = runtime.session("alice", "one")
        first = await chat.append([sentence(0), sentence(1), sentence(2)], key="k")
        with pytest.raises(KeyConflict):
            await chat.append([sentence(0)], key="k")
        assert [one.id for one in await chat.history()] == list(first.ids)


class Held(MemoryJournal):
    """Reads when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.go_on = anyio.Event(), anyio.Event()

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        self.reading.set()
        await self.go_on.wait()
        return await super().read(key, first, last, at=at)


async def test_history_is_of_one_moment() -> None:
    """G2: `history` is what was there at one moment, also while messages come and go beside it."""
    journal = Held()
    async with (
        Runtime.in_memory(config=CONFIG, journal=journal) as runtime,
        anyio.create_task_group() as tasks,
    ):
        chat = runtime.session("alice", "one")
        first = await chat.append([sentence(0), sentence(1)])
        found: list[tuple[int | None, ...]] = []

        async def look() -> None:
            found.append(tuple(message.seq for message in await chat.history()))

        tasks.start_soon(look)
        await journal.reading.wait()
        await chat.append(sentence(2))
        await chat.delete([first.ids[0]])
        journal.go_on.set()
        while not found:
            await anyio.lowlevel.checkpoint()
        assert found == [(2,)], "what was deleted since is not shown either"
        assert [message.seq for message in await chat.history()] == [2, 3]


async def test_an_abandoned_call_that_is_being_summarized_holds_no_flush() -> None:
    """G7, G8: its messages are handed over by the compaction, and later ones by a flush."""
    done = anyio.Event()

    class Waiting:
        name = "waiting"

        async def summarize(self, *_: Any, **__: Any) -> str:
            await done.wait()
            return "gardens"

    call: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    }
    config = Config.from_dict({"tokens": {"counter": "heuristic"}})
    policy = BufferPolicy(above_tokens=60, keep_tokens=30, overdraft_tokens=240)
    store = MemoryStore(64)
    async with Runtime.in_memory(
        config=config, policy=policy, summarizer=Waiting(), store=store, embedder=HashEmbedder()
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user("Look."), call])
        await chat.append(user("Never mind. " + "rose " * 20))
        await chat.append(user("Tell me. " + "tulip " * 20))
        assert (await chat.inspect()).pending
        assert await chat.flush() == 1
        done.set()
        await runtime.settle()
        marks = (await chat.inspect()).watermarks
        assert marks.indexing_through == 4
