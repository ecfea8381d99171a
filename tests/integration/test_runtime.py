"""The whole runtime on real SQLite, real LanceDB, the real tokenizer and embedder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import remora
from remora import Config, Message, Runtime
from remora.errors import (
    InvalidId,
    InvalidInput,
    InvalidMessage,
    ReentrantAsk,
    RuntimeClosed,
)
from remora.ids import row_id
from remora.messages import split_tool_calls
from remora.testing import ScriptedChatModel
from remora.tokens import count_message
from tests.configs import PLAIN, PLAIN_TREE
from tests.harness import user
from tests.patience import until

pytestmark = pytest.mark.anyio


async def test_the_screen_of_the_design(tmp_path: Path) -> None:
    """S5.01: append, load, clear, as design.md writes them."""
    async with remora.Runtime(tmp_path / "memory") as runtime:
        alice = runtime.user("alice")
        chat = alice.session("chat-42")
        receipt = await chat.append(user("I moved to Lisbon."), key="req-1")
        assert (receipt.seqs, receipt.duplicate) == ((1,), False)
        assert receipt.ids[0].startswith("msg_")
        context = await chat.load()
        assert context.messages == [user("I moved to Lisbon.")]
        assert context.tokens == count_message(runtime.internals.counter, context.messages[0])
        context.messages.clear()
        assert len((await chat.load()).messages) == 1
        assert await chat.clear() == 1
        assert (await chat.load()).messages == []
        again = await chat.append(user("I moved to Lisbon."), key="req-1")
        assert (again.seqs, again.ids, again.duplicate) == (receipt.seqs, receipt.ids, True)
        assert [m.content for m in await chat.history()] == ["I moved to Lisbon."]


async def test_fold_flush_recall(tmp_path: Path, small: Config) -> None:
    """S5.02, G6, G7, S1.01, S1.12, S1.13, S4.01: overflow is summarized and flushed; another
    session recalls it.
    """
    recall = msgspec.structs.replace(small.recall, deadline_s=600.0)
    config = msgspec.structs.replace(small, recall=recall)
    async with Runtime(tmp_path, config=config) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("one")
        await chat.append(
            user("My sister Ottilie keeps bees near Coimbra and sells lavender honey.")
        )
        for number in range(30):
            await chat.append(
                [
                    user(f"Tell me something about topic {number}."),
                    Message.assistant(f"Topic {number} is fine."),
                ]
            )
            assert (await chat.load()).tokens <= 300
        await chat.settle()
        context = await chat.load()
        assert context.pending == 0
        assert context.messages[0]["role"] == "user", "an extract repeats what was said"
        assert (
            context.messages[0]["content"] == f"Summary of earlier conversation: {context.summary}"
        )
        assert "Ottilie" in (context.summary or "")
        (hit,) = await alice.recall("who keeps bees?", limit=1)
        assert (hit.text.split()[2], hit.session, hit.seq) == ("Ottilie", "one", 1)
        other = alice.session("two")
        await other.append(user("Where does my sister keep her bees?"))
        context = await other.load(query="Where does my sister keep her bees?")
        assert any("Coimbra" in memory.text for memory in context.memories)
        assert context.messages[-1] == user("Where does my sister keep her bees?")
        assert "Coimbra" in context.messages[-2]["content"]
        assert context.sources.long_term.status == "omitted", "300 tokens have no room for 16"
        assert context.sources.long_term.count == len(context.memories)
        assert await runtime.user("bob").recall("who keeps bees?") == []
        await chat.flush()
        await chat.settle()
        ids = await (await runtime.internals.long_term()).row_ids()
        assert sorted(ids) == sorted(
            row_id(chat.key, message.seq or 0) for message in await chat.history()
        )


async def test_restart_gives_the_same(tmp_path: Path, small: Config) -> None:
    """G12, S0.21, S4.05: after a restart, the same context, byte for byte; jobs left over are done."""  # noqa: E501
    async with Runtime(tmp_path, config=small) as runtime:
        chat = runtime.session("alice", "one")
        for number in range(25):
            await chat.append(
                {**user(f"Sentence number {number} is about gardens."), "metadata": {"n": number}}
            )
        await chat.settle()
        before = await chat.load()
        history = await chat.history()
    async with Runtime(tmp_path, config=small) as runtime:
        chat = runtime.session("alice", "one")
        after = await chat.load()
        assert msgspec.json.encode(after.messages) == msgspec.json.encode(before.messages)
        assert (after.tokens, after.summary) == (before.tokens, before.summary)
        assert await chat.history() == history
        assert [m.metadata for m in history] == [{"n": n} for n in range(25)]
        assert [m.seq for m in history] == list(range(1, 26))


async def test_append_never_waits_for_the_model(tmp_path: Path, small: Config) -> None:
    """G5, G6, S1.21: while a summarizer hangs, appends and loads go on, and nothing is missing from
    what is loaded.
    """
    asked, release = anyio.Event(), anyio.Event()

    class Slow:
        async def complete(self, messages: Any) -> str:
            asked.set()
            await release.wait()
            return "They talked about gardens."

    async with Runtime(tmp_path, config=small, chat_model=Slow()) as runtime:
        chat = runtime.session("alice", "one")
        for number in range(24):
            await chat.append(user(f"Sentence number {number} is about gardens and about trees."))
        await asked.wait()
        await chat.append(user("And one more."))
        context = await chat.load(max_tokens=10_000)
        assert len(context.messages) == 25
        assert context.pending > 0
        release.set()
        await chat.settle()
        context = await chat.load()
        assert context.summary == "They talked about gardens."
        assert context.messages[-1] == user("And one more.")
        assert context.prefix_changed
        assert not (await chat.load()).prefix_changed


async def test_golden_summary_buffer() -> None:
    """S1.25, S1.08, S1.10: the document's example, to the token: 52 > 50 on the fourth append, half
    is 25, the last stays.
    """
    texts = [
        "What is Rust?",
        "Rust is a systems programming language focused on safety, speed, and concurrency.",
        "How does ownership work?",
        (
            "Ownership is a set of rules the compiler checks at compile time. "
            "Each value has a single owner."
        ),
    ]
    model = ScriptedChatModel(["The user asked about Rust and ownership."])
    config = Config.from_dict(
        {**PLAIN_TREE, "buffer": {"token_limit": 50, "fold_ratio": 1.0, "summary_tokens": 40}}
    )
    async with Runtime.in_memory(config=config, chat_model=model) as runtime:
        chat = runtime.session("test", "test")
        for text, role in zip(texts, ("user", "assistant") * 2, strict=True):
            await chat.append(dict[str, Any](role=role, content=text))
        await chat.settle()
        summary = "Summary of earlier conversation: The user asked about Rust and ownership."
        assert (await chat.load()).messages == [
            {"role": "system", "content": summary},
            {"role": "assistant", "content": texts[3]},
        ]
        (request,) = model.requests
        asked = request[-1]["content"]
        assert [text in asked for text in texts] == [True, True, True, False]


async def test_tool_calls_stay_whole(tmp_path: Path, small: Config) -> None:
    """G8, G9: through folds, flushes and tight budgets, no context splits a call from its result."""  # noqa: E501
    function = {"name": "look_up", "arguments": '{"what": "the weather"}'}
    async with Runtime(tmp_path, config=small) as runtime:
        chat = runtime.session("alice", "tools")
        for number in range(12):
            calls: list[dict[str, Any]] = [
                {"id": f"call_{n}", "type": "function", "function": function}
                for n in range(number % 3 + 1)
            ]
            await chat.append(user(f"Question {number}: what about the weather there?"))
            await chat.append({"role": "assistant", "content": None, "tool_calls": calls})
            for call in calls:
                for budget in (100, 150, None):
                    context = await chat.load(max_tokens=budget)
                    assert split_tool_calls(context.messages) == 0
                    assert context.tokens <= (300 if budget is None else budget)
                    assert context.tokens == sum(
                        count_message(runtime.internals.counter, m) for m in context.messages
                    )
                content = "sunny, 21 degrees " * 5
                await chat.append({"role": "tool", "tool_call_id": call["id"], "content": content})
            await chat.append(Message.assistant(f"Answer {number}: sunny."))
        await chat.settle()


@pytest.mark.parametrize("folds", [False, True])
async def test_cleared_and_concurrent(tmp_path: Path, small: Config, folds: bool) -> None:
    """G2, S1.14, S0.18, S3.25: with nothing configured, and while folds are made, 32 callers on one
    session lose nothing, and a restart has it all; clearing one session leaves another alone.
    """
    config = small if folds else None
    async with Runtime(tmp_path, config=config) as runtime:
        one, two = runtime.session("alice", "one"), runtime.session("alice", "two")
        await two.append(user("untouched"))

        async def caller(number: int) -> None:
            for n in range(20):
                await one.append(user(f"{number}/{n}"))

        async with anyio.create_task_group() as tasks:
            for number in range(32):
                tasks.start_soon(caller, number)
        assert (len((await one.load()).messages) == 640) != folds
        await one.settle()
    async with Runtime(tmp_path, config=config) as runtime:
        one, two = runtime.session("alice", "one"), runtime.session("alice", "two")
        said = [str(m.content) for m in await one.history()]
        assert len(said) == 640
        for number in range(32):
            mine = [text for text in said if text.startswith(f"{number}/")]
            assert mine == [f"{number}/{n}" for n in range(20)]
        await one.clear()
        context = await one.load()
        assert (context.messages, context.summary) == ([], None)
        assert (await two.load()).messages == [user("untouched")]


NAMES = (
    "a:b",
    "O'Brien",
    'say "hi"',
    "a' OR '1'='1",
    "zz\\' OR 1=1) --",
    "org/../x",
    "漢字 🚀",
    "%_*",
)


async def test_hostile_ids_are_only_names(tmp_path: Path, small: Config) -> None:
    """S2.31: quotes, slashes and the like name users and sessions as any text does; no search
    crosses users.
    """
    users = [*NAMES, "victim", *(name + "x" for name in NAMES)]
    async with Runtime(tmp_path / "me mory #1", config=small) as runtime:
        for number, who in enumerate(users):
            chat = runtime.session(who, NAMES[number % len(NAMES)])
            await chat.append(user(f"The secret of {who} is a purple walrus."))
            await chat.flush()
        await runtime.settle()
        for who in users:
            hits = await runtime.user(who).recall("purple walrus secret", limit=10)
            assert [hit.text for hit in hits] == [f"The secret of {who} is a purple walrus."]
            assert await runtime.user(who).recall("' OR 1=1 --", limit=3) is not None


async def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    """S4.28, S3.04: a bad message refuses its whole batch; bad ids, keys, budgets are refused by
    name.
    """
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        chat = runtime.session("alice", "one")
        bad: Any
        for bad in (
            "hello",
            None,
            7,
            [],
            [user("fine"), {"role": "robot", "content": "x"}],
            [user("fine"), "x"],
        ):
            with pytest.raises(InvalidMessage):
                await chat.append(bad)
        for bad in ("", "a\nb", "x" * 513):
            with pytest.raises(InvalidId):
                await chat.append(user("fine"), key=bad)
            with pytest.raises(InvalidId):
                runtime.user(bad)
            with pytest.raises(InvalidId):
                runtime.session("alice", bad)
        with pytest.raises(InvalidInput):
            await chat.load(max_tokens=-1)
        with pytest.raises(InvalidInput):
            await runtime.user("alice").recall("x", limit=0)
        assert await chat.history() == []
        assert (await runtime.counts()).sessions == 0


async def test_keys_have_one_effect(tmp_path: Path) -> None:
    """G4: the same key from many callers at once has one effect, and all learn the same numbers;
    keys older than those held in memory are found in the journal.
    """
    receipts = []
    async with Runtime(tmp_path) as runtime:
        chat = runtime.session("alice", "one")

        async def send() -> None:
            receipts.append(await chat.append([user("a"), user("b")], key="same"))

        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(send)
            for number in range(900):
                tasks.start_soon(partial(chat.append, user(f"{number}"), key=f"k{number}"))
        assert len({receipt.seqs for receipt in receipts}) == 1
        assert sum(not receipt.duplicate for receipt in receipts) == 1
        for number in range(900, 1_200):
            await chat.append(user(f"{number}"), key=f"k{number}")
    async with Runtime(tmp_path) as runtime:
        chat = runtime.session("alice", "one")
        for number in (0, 5, 700, 1_199):
            assert (await chat.append(user(f"{number}"), key=f"k{number}")).duplicate
        assert not (await chat.append(user("new"), key="k1200")).duplicate
        assert len(await chat.history()) == 1_203


async def test_life_cycle(tmp_path: Path) -> None:
    """G12: closed means closed, and the handle says what to do; an exception in the body is the
    caller's, unwrapped, and what was acknowledged is kept.
    """
    runtime = Runtime(tmp_path, config=PLAIN)
    chat = runtime.session("alice", "one")
    with pytest.raises(RuntimeClosed, match="async with"):
        await chat.append(user("too early"))
    async with runtime:
        await chat.append(user("in time"))
        await runtime.aclose()
        with pytest.raises(RuntimeClosed):
            await chat.append(user("too late"))
        await runtime.aclose()
    with pytest.raises(RuntimeClosed, match="closed"):
        await chat.load()
    with pytest.raises(ZeroDivisionError):
        async with runtime:  # once more
            await chat.append(user("kept"))
            raise ZeroDivisionError
    async with runtime:
        assert [message.content for message in await chat.history()] == ["in time", "kept"]


async def test_closing_keeps_what_was_accepted(tmp_path: Path) -> None:
    """G12: an append that was under way when the runtime closed is acknowledged and kept, or
    refused and absent.
    """
    acknowledged, refused = [], []

    async def send(runtime: Runtime, number: int) -> None:
        try:
            await runtime.session("alice", f"{number % 7}").append(user(f"{number}"))
        except RuntimeClosed:
            refused.append(number)
        else:
            acknowledged.append(number)

    async with anyio.create_task_group() as tasks, Runtime(tmp_path, config=PLAIN) as runtime:
        for number in range(200):
            tasks.start_soon(send, runtime, number)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
    assert len(acknowledged) + len(refused) == 200
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        sessions = [runtime.session("alice", f"{number}") for number in range(7)]
        kept = [int(str(one.content)) for chat in sessions for one in await chat.history()]
    assert sorted(kept) == sorted(acknowledged)


async def test_job_that_waits_for_its_own_session(tmp_path: Path, small: Config) -> None:
    """G11: a summarizer that settles its own session would wait for itself: refused at once, and
    the fold degrades.
    """
    caught: list[BaseException] = []
    holder: list[Runtime] = []

    class Reentrant:
        async def complete(self, messages: Any) -> str:
            try:
                await holder[0].session("alice", "one").settle()
            except ReentrantAsk as e:
                caught.append(e)
                raise
            return "unreachable"

    config = msgspec.structs.replace(
        small, supervisor=msgspec.structs.replace(small.supervisor, max_attempts=1)
    )
    async with Runtime(tmp_path, config=config, chat_model=Reentrant()) as runtime:
        holder.append(runtime)
        chat = runtime.session("alice", "one")
        for number in range(20):
            await chat.append(user(f"Sentence number {number} is about gardens and about trees."))
        await chat.settle()
        assert caught
        assert (await chat.load()).sources["summary"].status == "degraded"


async def test_idle_session_is_flushed_and_leaves(tmp_path: Path, small: Config) -> None:
    """G12, S4.01: what an idle session said is recallable from other sessions, and what one said
    before a restart, if nobody returns to it.
    """
    key = "The spare key is under the third flowerpot."
    async with Runtime(tmp_path, config=small) as runtime:
        await runtime.session("alice", "one").append(user(key))
    config = msgspec.structs.replace(
        small, activation=msgspec.structs.replace(small.activation, idle_s=0.05)
    )
    async with Runtime(tmp_path, config=config) as runtime:

        async def indexed(rows: int) -> Any:
            return (await runtime.long_term_statistics()).rows == rows

        await until(lambda: indexed(1), "the tail of the earlier run is indexed")
        await runtime.session("bob", "one").append(user("My cat is called Figaro."))
        await until(lambda: indexed(2), "the idle session is indexed")
        await until(lambda: not runtime.statistics().registry.live, "it has left")
        for name, text in (("alice", key), ("bob", "My cat is called Figaro.")):
            (hit,) = await runtime.user(name).recall("the cat? the key?")
            assert hit.text == text


async def test_compaction_keeps_rows(tmp_path: Path, small: Config) -> None:
    """G7: many small commits are compacted; every row is still found, once."""
    long_term = msgspec.structs.replace(
        small.long_term, shards=1, compact_fragments=10, index_user_rows=20
    )
    async with Runtime(
        tmp_path, config=msgspec.structs.replace(small, long_term=long_term)
    ) as runtime:
        chat = runtime.session("alice", "one")
        for number in range(25):
            await chat.append(user(f"Fact {number}: the colour is blue{number}."))
            await chat.flush()
            await chat.settle()
        store = await runtime.internals.long_term()
        assert await store.compact() == 1
        assert (await store.statistics()).fragments == 0
        ids = await store.row_ids()
        assert len(ids) == len(set(ids)) == 25
        (hit,) = await runtime.user("alice").recall("blue17", limit=1)
        assert hit.seq == 18
