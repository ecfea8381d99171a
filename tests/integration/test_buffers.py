"""The buffers of the source documents, as policies of a session, on a runtime in memory with a
heuristic counter.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from remora import BufferPolicy, BufferPreset, Config, Line, Message, Runtime, Session
from remora.adapters.massgen import ConversationMemory
from remora.adapters.muxi import BufferMemory
from remora.errors import IndexOutOfRange, InvalidInput, InvalidMessage, NotFound, RemoraError
from remora.messages import indent
from remora.testing import HashEmbedder, ScriptedChatModel, VirtualClock
from tests.harness import FirstWordsSummarizer, LineCount, user

pytestmark = pytest.mark.anyio
PLAIN = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
    }
)
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    ],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c", "content": "seen"}


def said(messages: Sequence[Any]) -> list[str]:
    return [one["content"] if isinstance(one, dict) else one.content for one in messages]


@asynccontextmanager
async def session(
    policy: Any = None, config: Config = PLAIN, *, where: Path | None = None, **options: Any
) -> AsyncIterator[Session]:
    """One of a runtime in memory, or in a directory."""
    options = {"config": config, "policy": policy, **options}
    async with Runtime(where, **options) if where else Runtime.in_memory(**options) as runtime:
        yield runtime.session("alice", "chat")


class Recording:
    """A summarizer that keeps what it was given."""

    name = "recording"

    def __init__(self) -> None:
        self.given: list[tuple[str | None, list[str]]] = []

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        self.given.append((previous, [line.text for line in lines]))
        return " ".join([*([previous] if previous else []), *(line.text for line in lines)])


# -- keep-all, window ------------------------------------------------------------------------------


async def test_keep_all_keeps_order() -> None:
    """S0.01, S0.13, S1.03, S1.26, S4.08: everything stays, in order; what is read out are copies."""  # noqa: E501
    async with session(BufferPolicy.keep_all()) as chat:
        for number in range(300):
            await chat.append(user(f"Message {number}", metadata={"tags": ["a"]}))
        messages = await chat.get_messages()
        assert said(messages) == [f"Message {number}" for number in range(300)]
        assert said((await chat.load()).messages) == said(messages)
        messages.clear()
        first = (await chat.get_messages())[0]
        assert first.metadata is not None
        first.metadata["tags"].append("b")
        assert (await chat.get_messages())[0].metadata == {"tags": ["a"]}
        assert await chat.size() == 300


async def test_window_keeps_the_newest() -> None:
    """S0.06, S0.07, S1.26, S3.11, G8: size 5, two and ten messages, one by one or at once: Message
    5 to 9 stay; nothing is asked; all is archived. A call and its results leave together.
    """
    newest = [f"Message {number}" for number in range(5, 10)]
    async with session(BufferPolicy.window(5), chat_model=ScriptedChatModel([])) as chat:
        await chat.append([user("Hello, my name is Alice."), Message.assistant("Hello Alice!")])
        for number in range(10):
            await chat.append(user(f"Message {number}"))
        assert said(await chat.get_messages()) == newest
        await chat.settle()
        context = await chat.load()
        assert said(context.messages) == newest
        assert context.summary is None
        assert len(await chat.history()) == 12
        assert said(await chat.history(include_archived=False)) == newest
    async with session(BufferPolicy.window(5)) as chat:
        await chat.append([user(f"Message {number}") for number in range(10)])
        assert said(await chat.get_messages()) == newest
        await chat.append(CALL)
        await chat.append([RESULT, Message.assistant("I looked.")])
        await chat.append([user("one"), user("two"), user("three")])
        roles = [message.role for message in await chat.get_messages()]
        assert roles == ["assistant", "user", "user", "user"], (
            "the call went, and its result with it"
        )
        roles = [message["role"] for message in (await chat.load()).messages]
        assert roles == ["user"] * 3, "a context begins with a user's message where it can"


async def test_window_with_summary() -> None:
    """S0.08, S0.09, S2.03: the summarizer gets exactly what leaves, in order, once, with the
    summary so far.
    """
    summarizer = Recording()
    async with session(BufferPolicy.window(5, fold="summary"), summarizer=summarizer) as chat:
        for number in range(12):
            await chat.append(user(f"m{number}"))
            await chat.settle()
        assert [line for _, lines in summarizer.given for line in lines] == [
            f"m{number}" for number in range(7)
        ]
        assert summarizer.given[0][0] is None
        assert summarizer.given[3][0] == "m0 m1 m2"
        context = await chat.load()
        assert context.summary == "m0 m1 m2 m3 m4 m5 m6"
        assert said(context.messages)[1:] == [f"m{number}" for number in range(7, 12)]


async def test_token_window_and_summary_alone() -> None:
    """S1.26, S3.07, S3.30: a token budget without a summary, where no model is asked, and what is
    shown fits; or the newest turn, and a summary of all before it.
    """
    async with session(BufferPolicy.token_window(20), chat_model=ScriptedChatModel([])) as chat:
        for number in range(30):
            await chat.append(user(f"{number:012d}"))  # 3 tokens each
            await chat.settle()
            assert (await chat.load()).tokens <= 20
        assert said(await chat.get_messages()) == [f"{number:012d}" for number in range(24, 30)]
    async with session(BufferPolicy.summary(), summarizer=FirstWordsSummarizer()) as chat:
        for number in range(6):
            await chat.append(user(f"m{number}"))
            await chat.settle()
        context = await chat.load()
        assert context.summary == "m0 m1 m2 m3 m4"
        assert said(context.messages)[1:] == ["m5"]


async def test_presets() -> None:
    """S0.29: presets for kinds of conversation lie in the document's ranges, and a function may
    choose by session.
    """
    sizes = {preset.name: preset.value.above_messages for preset in BufferPreset}
    assert 3 <= (sizes["SHORT"] or 0) <= 5
    assert 8 <= (sizes["COMPLEX"] or 0) <= 12
    assert 10 <= (sizes["TECHNICAL"] or 0) <= 15

    def chosen(key: Any) -> BufferPreset:
        return BufferPreset.SHORT if key.session == "faq" else BufferPreset.TECHNICAL

    async with Runtime.in_memory(config=PLAIN, policy=chosen) as runtime:
        for name, size in (("faq", 4), ("code", 12)):
            chat = runtime.session("alice", name)
            await chat.append([user(str(number)) for number in range(30)])
            assert await chat.size() == size


async def test_policies_by_name() -> None:
    """S1.26, S1.20, S2.02, S2.33: every strategy can be chosen by configuration; summary-buffer is
    the default.
    """
    assert Config().buffer.policy == "summary_buffer"
    for name, most in (  # of 100 messages with 2 tokens each, where 140 tokens stay
        ("keep_all", 100),
        ("window", 50),
        ("ring", 50),
        ("summary", 1),
        ("token_window", 70),
        ("summary_buffer", 70),
    ):
        buffer = replace(PLAIN.buffer, policy=name, token_limit=200)
        options: Any = {"summarizer": FirstWordsSummarizer()}
        async with session(config=replace(PLAIN, buffer=buffer), **options) as chat:
            for number in range(100):
                await chat.append(user(f"Message {number}"))
            await chat.settle()
            assert 1 <= await chat.size() <= most, name


async def test_policy_that_makes_no_sense() -> None:
    """S0.05, S1.26, S4.27, G11: sizes that are not positive, triggers without an amount, and a
    misspelt fold, which would keep the directory from opening, are refused when the policy is made;
    what is no policy, where it is given, or when a function answers with it.
    """
    for bad in (
        lambda: BufferPolicy.window(0),
        lambda: BufferPolicy.window(-3),
        lambda: BufferPolicy(above_tokens=10),
        lambda: BufferPolicy(keep_messages=10),
        lambda: BufferPolicy(above_tokens=10, keep_tokens=5, batch=2),
        lambda: BufferPolicy.ring(10, multiplier=0),
    ):
        with pytest.raises(InvalidInput):
            bad()
    misspelt: Any
    for misspelt in (
        {"fold": "summry"},
        {"above_messages": "5"},
        {"above_messages": True},
        {"above_messages": 2.5},
        {"above_tokens": float("nan")},
    ):
        with pytest.raises(InvalidInput):
            BufferPolicy(**{"above_messages": 5, "keep_messages": 5, **misspelt})
    for none in ("window", 5):
        with pytest.raises(InvalidInput, match="policy"):
            Runtime.in_memory(config=PLAIN, policy=none)
    async with session(lambda _: None) as chat:
        with pytest.raises(InvalidInput, match="policy"):
            await chat.append(user("a"))


# -- the ring --------------------------------------------------------------------------------------


async def test_ring_golden() -> None:
    """S2.02, S2.03, S2.04, S2.08, S0.26: the 51st message folds 1 to 10 into one entry; 41 are
    left; one call for each batch.
    """
    summarizer = Recording()
    async with session(BufferPolicy.ring(), summarizer=summarizer) as chat:
        for number in range(1, 51):
            await chat.append(user(str(number)))
        await chat.settle()
        assert summarizer.given == []
        await chat.append(user("51"))
        await chat.settle()
        assert summarizer.given == [(None, [str(number) for number in range(1, 11)])]
        assert said(await chat.get_messages()) == [str(number) for number in range(11, 52)]
        view = await chat.inspect()
        assert view.summary is None
        assert [(entry.first, entry.through, entry.text) for entry in view.summaries] == [
            (1, 10, "1 2 3 4 5 6 7 8 9 10")
        ]
        context = await chat.load()
        assert context.messages[0] == {
            "role": "system",
            "content": "Summary of earlier conversation: 1 2 3 4 5 6 7 8 9 10",
        }
        assert context.summary == "1 2 3 4 5 6 7 8 9 10"
        for number in range(52, 101):
            await chat.append(user(str(number)))
            await chat.settle()
        assert len(summarizer.given) <= 100 / 10


async def test_ring_entries_are_folded_into_the_running_summary(tmp_path: Path) -> None:
    """S2.04, S2.08, S0.09, G6: an entry beyond the last is carried on in the running summary, and
    long-term memory has it.
    """
    options: Any = {
        "config": replace(PLAIN, long_term=Config().long_term),
        "policy": BufferPolicy.ring(4, multiplier=1, batch=2),
        "summarizer": Recording(),
    }
    words = [f"w{number}" for number in range(30)]
    async with Runtime(tmp_path, **options) as runtime:
        chat = runtime.session("alice", "chat")
        for word in words:
            await chat.append(user(word))
            await chat.settle()
        view = await chat.inspect()
        assert len(view.summaries) == 4
        assert view.summary is not None
        before = await chat.load()
        shown = (before.summary or "").split()
        assert [*shown, *said(await chat.get_messages())] == words, (
            "every message is in the buffer or in a summary"
        )
        rows = await (await runtime.internals.long_term()).rows("alice")
        entries = [row.content for row in rows if row.memory_type == "summary"]
        assert " ".join(entries) == view.summary.text
    async with session(where=tmp_path, **options) as chat:
        assert (await chat.load()).messages == before.messages


# -- reading ---------------------------------------------------------------------------------------


async def test_times_and_metadata() -> None:
    """S0.02, S0.03, S0.04, S1.05: a time is set within the call, aware; metadata is there only if
    it was given.
    """
    async with session() as chat:
        before = datetime.now(UTC)
        await chat.append(
            [user("with", metadata={"a": {"b": [1]}}), user("without"), user("empty", metadata={})]
        )
        await chat.append(
            [Message.user("human"), Message.assistant("ai"), Message.system("system")]
        )
        after = datetime.now(UTC)
        messages = await chat.get_messages()
        for message in messages:
            assert message.created_at is not None
            assert before.replace(microsecond=0) <= message.created_at <= after
        assert [message.seq for message in messages] == [1, 2, 3, 4, 5, 6], "ties never reorder"
        state = await chat.state_dict()
        assert state["messages"][0]["metadata"] == {"a": {"b": [1]}}
        assert "metadata" not in state["messages"][1]
        assert "metadata" not in state["messages"][2]
        assert datetime.fromisoformat(state["messages"][1]["created_at"]).tzinfo is not None
        assert [message.role for message in messages[3:]] == ["user", "assistant", "system"]


async def test_formatted_messages() -> None:
    """S0.14, S0.15, S0.16, S1.12, S1.13: role and content alone; a summary in front, in either
    document's words.
    """
    async with session(
        BufferPolicy.window(2, fold="summary"), summarizer=FirstWordsSummarizer()
    ) as chat:
        await chat.append([user("one", name="alice", metadata={"k": 1}), user("two")])
        assert await BufferMemory(chat).get_formatted_messages() == [user("one"), user("two")]
        assert await BufferMemory(chat).get_context() == [user("one", name="alice"), user("two")]
        await chat.append(user("three"))
        await chat.settle()
        assert await BufferMemory(chat).get_formatted_messages() == [
            {"role": "system", "content": "Previous conversation summary: one"},
            user("two"),
            user("three"),
        ]
        context = await BufferMemory(chat).get_context()
        assert context[0] == {"role": "system", "content": "Summary of earlier conversation: one"}
        assert context == (await chat.load()).messages


async def test_filters() -> None:
    """S0.17, S0.18, S4.13, S4.15, S2.07: by metadata (all pairs must match), by role, the newest so
    many.
    """
    async with session() as chat:
        await chat.append(
            [
                user("I'm Alice", metadata={"user_id": "user1", "n": 1}),
                {"role": "assistant", "content": "Hello Alice!", "metadata": {"user_id": "user1"}},
                user("I'm Bob", metadata={"user_id": "user2"}),
                user("nobody"),
            ]
        )
        assert said(await chat.get_messages(filter_metadata={"user_id": "user1"})) == [
            "I'm Alice",
            "Hello Alice!",
        ]
        assert said(await chat.get_messages(filter_metadata={"user_id": "user1", "n": 1})) == [
            "I'm Alice"
        ]
        assert await chat.get_messages(filter_metadata={"user_id": "user3"}) == []
        assert len(await chat.get_messages(filter_metadata={})) == 4
        for where, found in (
            ({"user_id": {"$in": ["user2", "user3"]}}, ["I'm Bob"]),
            ({"user_id": {"$ne": "user1"}}, ["I'm Bob", "nobody"]),
            ({"n": {"$gte": 1}}, ["I'm Alice"]),
        ):
            assert said(await chat.get_messages(filter_metadata=where)) == found
        for unknown in ({"$or": [{"n": 1}]}, {"n": {"$near": 1}}, {"n": {"gte": 1}}, {3: 1}, [1]):
            with pytest.raises(InvalidInput, match="filter_metadata"):
                await chat.get_messages(filter_metadata=cast("Any", unknown))
        assert said(await chat.get_messages(role="assistant")) == ["Hello Alice!"]
        assert said(await chat.get_messages(limit=2)) == ["I'm Bob", "nobody"]
        assert len(await chat.get_messages(limit=99)) == 4
        assert await chat.get_messages(limit=0) == []
        last = await ConversationMemory(chat).get_last_message()
        assert last is not None
        assert last["content"] == "nobody"
        with pytest.raises(InvalidInput):
            await chat.get_messages(limit=-1)


async def test_one_users_traffic_leaves_the_other_alone() -> None:
    """S0.18, S1.06: a thousand appends by Bob never change Alice's buffer of twenty."""
    async with Runtime.in_memory(config=PLAIN, policy=BufferPolicy.window(20)) as runtime:
        alice = runtime.session("alice", "chat")
        await alice.append([user(f"mine {number}") for number in range(20)])
        bob = runtime.session("bob", "chat")
        for number in range(10):
            await bob.append([user(f"his {number} {n}") for n in range(100)])
        assert said(await alice.get_messages()) == [f"mine {number}" for number in range(20)]
        assert (await alice.stats()).messages == 20


async def test_buffer_search() -> None:
    """S2.09: by words without an embedder, by meaning with one."""
    texts = [
        "The cat sat on the mat.",
        "Lisbon is lovely in May.",
        "My cat is called Tom.",
        "x" * 20,
    ]
    async with session() as chat:
        await chat.append([user(text) for text in texts])
        hits = await chat.search("what my cat was called", limit=2)
        assert [hit.message.content for hit in hits] == [
            "My cat is called Tom.",
            "The cat sat on the mat.",
        ]
        assert hits[0].score > hits[1].score > 0
        assert await chat.search("zebra") == []
        with pytest.raises(InvalidInput, match="embedder"):
            await chat.search("cat", semantic=True)
        with pytest.raises(InvalidInput):
            await chat.search("cat", limit=0)
    async with session(embedder=HashEmbedder()) as chat:
        await chat.append([user(text) for text in texts])
        hits = await chat.search("Lisbon in May", limit=1)
        assert hits[0].message.content == "Lisbon is lovely in May."
        assert 0 < hits[0].score <= 1.0001
        assert (await chat.search("Lisbon in May", limit=1, semantic=False))[0].message == hits[
            0
        ].message


# -- changing --------------------------------------------------------------------------------------


async def test_delete() -> None:
    """S4.12, S4.06: by place, several, a generator, by id; places out of range or negative are
    refused, and to say nothing in particular is a mistake: nothing goes.
    """
    async with session() as chat:
        receipt = await chat.append([user(str(number)) for number in range(8)])
        assert (await chat.delete(positions=0)).deleted == 1
        assert (await chat.delete(positions=[1, 3])).deleted == 2
        assert said(await chat.get_messages()) == ["1", "3", "5", "6", "7"]
        assert (await chat.delete(positions=(place for place in (0, 1)))).deleted == 2
        assert (await chat.delete([receipt.ids[5], "unknown"])).deleted == 1
        assert said(await chat.get_messages()) == ["6", "7"]
        for bad in (2, -1, [0, 9]):
            with pytest.raises(IndexError) as caught:
                await chat.delete(positions=bad)
            assert isinstance(caught.value, IndexOutOfRange)
            assert str(caught.value.places[0]) in str(caught.value)
        with pytest.raises(InvalidInput, match=r"positions=…"):
            await chat.delete(0)  # type: ignore[arg-type]
        for bad_places in ("0", [0.5]):
            with pytest.raises(InvalidInput, match="integer"):
                await chat.delete(positions=bad_places)  # type: ignore[arg-type]
        for id_ in ("msg_1", ["msg_1", "msg_2"], receipt.ids[5]):
            with pytest.raises(NotFound, match="nothing was deleted"):
                await chat.delete(id_)
        with pytest.raises(InvalidInput, match="say what to delete"):
            await chat.delete()
        assert (await chat.delete(positions=[])).deleted == (await chat.delete([])).deleted == 0
        assert said(await chat.get_messages()) == ["6", "7"]
        assert said(await chat.history()) == ["6", "7"], "what was deleted is in no history"


async def test_truncate() -> None:
    """S4.14, S4.06, G8: sizes n, n + 1, 0; what leaves is archived; never an orphaned tool message."""  # noqa: E501
    async with session() as chat:
        await chat.append([user(str(number)) for number in range(6)])
        assert await chat.truncate_to_size(7) == 0
        assert await chat.truncate_to_size(6) == 0
        assert await chat.truncate_to_size(4) == 2
        assert said(await chat.get_messages()) == ["2", "3", "4", "5"]
        await chat.append(CALL)
        await chat.append(RESULT)
        assert await chat.truncate_to_size(1) == 6
        assert await chat.get_messages() == [], "half a turn is none"
        assert len(await chat.history()) == 8
        await chat.append([user("again"), user("and again")])
        assert await chat.truncate_to_size(0) == 2
        assert await chat.size() == 0
        with pytest.raises(InvalidInput):
            await chat.truncate_to_size(-1)


async def test_what_survives_a_restart(tmp_path: Path) -> None:
    """S0.21, S1.14, S4.05, S4.06, S4.16: the load is the same to the byte, and the runtime's
    summarizer goes on with it. After a clear the size is 0, also after a restart; the other session
    has nothing to do with it.
    """
    options: Any = {
        "config": PLAIN,
        "policy": BufferPolicy.window(3, fold="summary"),
        "summarizer": FirstWordsSummarizer(),
    }
    async with Runtime(tmp_path, **options) as runtime:
        chat, other = runtime.session("alice", "one"), runtime.session("alice", "two")
        for number in range(6):
            for each in (chat, other):
                await each.append(user(f"m{number}"))
                await each.settle()
        before, state = (await other.load()).messages, await other.state_dict()
        assert (await chat.load()).summary == "m0 m1 m2"
        assert await chat.clear() == 3
        assert (await chat.size(), (await chat.load()).messages) == (0, [])
    async with Runtime(tmp_path, **options) as runtime:
        chat, other = runtime.session("alice", "one"), runtime.session("alice", "two")
        assert (await chat.size(), (await chat.load()).messages) == (0, [])
        assert (await other.load()).messages == before
        await chat.append([user(text) for text in "defg"])
        await chat.settle()
        assert (await chat.load()).summary == "d", (
            "the next overflow starts without the old summary"
        )
        copy = runtime.session("alice", "copy")
        await copy.load_state_dict(state)
        await copy.append(user("m6"))
        await copy.settle()
        assert (await copy.load()).summary == "m0 m1 m2 m3"


async def test_duplicates(tmp_path: Path) -> None:
    """S4.09, S4.11: an id is taken once, across restarts and folds; `allow_duplicates` takes it
    again. With a content window, a message equal to one of the newest
    is skipped; without one it is legal.
    """
    policy = BufferPolicy.window(3)
    async with session(policy, where=tmp_path) as chat:
        first = await chat.append([user("one", id="m1"), user("two", id="m2")])
        assert (first.seqs, first.duplicate) == ((1, 2), False)
        again = await chat.append(user("one", id="m1"))
        assert (again.seqs, again.ids, again.duplicate) == ((1,), ("m1",), True)
        await chat.append([user("three"), user("three"), user("three")])
        assert said(await chat.get_messages()) == ["three", "three", "three"]
        assert (await chat.append(user("one", id="m1"))).seqs == (1,), (
            "it left the buffer and is known all the same"
        )
        assert (await chat.append(user("one", id="m1"), allow_duplicates=True)).seqs == (6,)
        own = await chat.append(user("mine"))
        assert own.ids[0].startswith("msg_")
        assert len(set(own.ids)) == 1
    async with session(policy, where=tmp_path) as chat:
        assert (await chat.append(user("two", id="m2"))).seqs == (2,)
        assert (await chat.get_messages())[-1].id == own.ids[0], "stable after reload"
        await chat.clear()
        assert (await chat.append(user("two", id="m2"))).duplicate is False, (
            "what was cleared may come again"
        )
    config = replace(PLAIN, buffer=replace(PLAIN.buffer, dedup_window=2))
    async with session(config=config) as chat:
        assert (await chat.append([user("a"), user("a"), user("b")])).seqs == (1, 1, 2)
        assert (await chat.append(user("a"))).seqs == (1,)
        await chat.append([user("c"), user("d")])
        assert (await chat.append(user("a"))).seqs == (5,)


# -- carrying elsewhere ----------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=20)
states = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": texts}
    ),
    max_size=8,
)


@example([], "\x1f")
@given(states, st.none() | texts)
def test_state_round_trip(messages: list[dict[str, str]], summary: str | None) -> None:
    """S0.19, S0.20, S4.05, S4.10: what `to_json` and `state_dict` wrote restores an equal session,
    summary and ids included. A summary from outside has no hidden characters, and one first line.
    """

    async def check() -> None:
        async with Runtime.in_memory(config=PLAIN, policy=BufferPolicy.window(50)) as runtime:
            one, two, three = (runtime.session("alice", name) for name in ("one", "two", "three"))
            await one.load_state_dict({"messages": messages, "summary": summary})
            text = await BufferMemory(one).to_json()
            data = json.loads(text)
            assert set(data) == {"messages", "buffer_size", "summary"}
            kept = indent(summary or "")
            assert (data["buffer_size"], data["summary"]) == (50, kept if kept.strip() else None)
            assert [
                {"role": m["role"], "content": m["content"]} for m in data["messages"]
            ] == messages
            assert all(message["id"] for message in data["messages"])
            await two.append(user("in the way"))
            await BufferMemory.from_json(text, two)
            assert json.loads(await BufferMemory(two).to_json()) == data
            await three.load_state_dict(await two.state_dict())
            assert await three.state_dict() == await one.state_dict()
            assert (await three.load()).messages == (await one.load()).messages

    anyio.run(check)


async def test_states_that_are_none() -> None:
    """S4.10, S4.28: a state without messages is refused when strict; a bad message leaves
    everything as it was.
    """
    async with session() as chat:
        await chat.append(user("kept"))
        with pytest.raises(InvalidInput, match="messages"):
            await chat.load_state_dict({"other": 1})
        for bad in ([user("a"), {"role": "nobody"}], "text", [3], None):
            with pytest.raises(InvalidMessage):
                await chat.load_state_dict({"messages": bad})
        with pytest.raises(InvalidInput):
            await chat.load_state_dict({"messages": [], "summary": 3})
        text: Any
        for text in ("no json", "[]", '{"messages": null}', None):
            with pytest.raises(RemoraError):
                await BufferMemory.from_json(text, chat)
        assert said(await chat.get_messages()) == ["kept"]
        await chat.load_state_dict({"other": 1}, strict=False)
        assert await chat.get_messages() == []


# -- size ------------------------------------------------------------------------------------------


@pytest.mark.blocking
@pytest.mark.parametrize("kept", ["memory", "directory"])
async def test_history_page_by_page(kept: str, tmp_path: Path) -> None:
    """Pages are the whole history, with gaps that are longer than a page, and while it grows."""
    async with session(where=tmp_path if kept == "directory" else None) as chat:
        await chat.append([user(str(number)) for number in range(700)])
        await chat.delete(positions=range(40, 690))
        whole = await chat.history()
        assert said(whole) == [*map(str, range(40)), *map(str, range(690, 700))]
        for limit in (1, 7, 45, 1000):
            seen: list[Message] = []
            while page := await chat.history(after=seen[-1].seq or 0 if seen else 0, limit=limit):
                assert len(page) <= limit
                seen += page
                if len(seen) == 7:
                    await chat.append(user("later"))
            assert [one for one in seen if one.content != "later"] == whole
        assert await chat.history(after=5_000) == []
        assert await chat.history(after=2, at=4) == (await chat.history(at=4))[2:]
        for bad in ({"limit": 0}, {"after": -1}):
            with pytest.raises(InvalidInput):
                await chat.history(**bad)  # type: ignore[arg-type]


async def test_append_costs_the_same_whatever_is_there() -> None:
    """S0.22, S2.06, S4.08, S4.26: an append takes as many steps beside five thousand messages as
    beside a hundred, and to a full window of two thousand as to one of twenty.
    """

    async def steps(policy: BufferPolicy, count: int) -> int:
        async with session(policy) as chat:
            for first in range(0, count, 1_000):
                size = min(1_000, count - first)
                await chat.append([user("word " * 10) for _ in range(size)])
            await chat.load(max_tokens=100)
            with LineCount("/actors/", "/runtime/") as counted:
                await chat.append(user("one more"))
            return counted.lines

    keep_all, window = BufferPolicy.keep_all(), BufferPolicy.window
    assert await steps(keep_all, 5_000) <= 2 * await steps(keep_all, 100)
    assert await steps(window(2_000), 2_000) <= 2 * await steps(window(20), 20)


async def test_memory_is_flat_and_follows_the_size() -> None:
    """S0.23, S0.24: a full buffer stays as large as it is, and half the size holds about half the
    bytes.
    """
    sizes: dict[int, int] = {}
    for size in (200, 400):
        policy, clock = BufferPolicy.window(size), VirtualClock()
        async with Runtime.in_memory(config=PLAIN, policy=policy, clock=clock) as runtime:
            registry, chat = runtime.internals.registry, runtime.session("alice", "chat")
            await chat.append([user("word " * 40) for _ in range(size)])
            await clock.advance(1)  # it is weighed now and then
            full = registry.statistics().bytes
            for _ in range(20):
                await chat.append([user("word " * 40) for _ in range(500)])
                await clock.advance(1)
            assert registry.statistics().bytes == full
            sizes[size] = full
    assert 1.7 < sizes[400] / sizes[200] < 2.1


async def test_stated_bytes_are_real() -> None:
    """S0.23, G10: what a session says it holds is about what it holds."""
    gc.collect()
    tracemalloc.start()
    try:
        policy, clock = BufferPolicy.keep_all(), VirtualClock()
        async with Runtime.in_memory(config=PLAIN, policy=policy, clock=clock) as runtime:
            registry, chat = runtime.internals.registry, runtime.session("alice", "chat")
            await chat.append(user("first"))
            await clock.advance(1)  # it is weighed now and then
            stated, held = registry.statistics().bytes, tracemalloc.get_traced_memory()[0]
            for _ in range(40):
                await chat.append([user("word " * 100) for _ in range(50)])
            await clock.advance(1)
            gc.collect()
            stated, held = (
                registry.statistics().bytes - stated,
                tracemalloc.get_traced_memory()[0] - held,
            )
            # the journal in memory shares the entries
            assert 0.5 < stated / held < 1.5
    finally:
        tracemalloc.stop()


async def test_stats() -> None:
    """S4.36, S1.19: messages, tokens, summaries, model calls with their tokens."""
    async with session(
        BufferPolicy.window(3, fold="summary"), summarizer=FirstWordsSummarizer()
    ) as chat:
        for number in range(5):
            await chat.append(user(f"message {number}"))
            await chat.settle()
        stats = await chat.stats()
        assert (stats.messages, stats.buffered, stats.pending, stats.summaries.calls) == (
            5,
            3,
            0,
            2,
        )
        assert stats.summaries.tokens_in > 0
        assert stats.summaries.tokens_out > 0
        assert stats.summary_tokens > 0
        await chat.delete(positions=0)
        assert (await chat.stats()).rewritten == 1
