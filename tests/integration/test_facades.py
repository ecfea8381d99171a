"""The documents' own names over remora's sessions and users."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remora import BufferPolicy, Config, Message, MessageLike, Runtime
from remora.adapters.llama_index import ChatMemory
from remora.adapters.massgen import ConversationMemory, PersistentMemory
from remora.adapters.muxi import BufferMemory
from remora.adapters.synaptic import ConversationSummaryBufferMemory
from remora.blocks import StaticMemoryBlock
from remora.errors import (
    ConfigError,
    IndexOutOfRange,
    InvalidInput,
    InvalidMessage,
    RecordingFailed,
    RuntimeClosed,
)
from remora.messages import encode_message
from remora.storage.ports import SessionKey
from remora.testing import (
    MEMORY_CHECKS,
    CommitFault,
    FaultyJournal,
    HashEmbedder,
    ScriptedChatModel,
)
from tests.harness import user

pytestmark = pytest.mark.anyio
PLAIN = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
    }
)
TOKENS = Config.from_dict(
    {"tokens": {"counter": "heuristic", "unit": "characters"}, "models": {"embedder": "none"}}
)


def said(messages: Sequence[Any]) -> list[str]:
    return [one["content"] for one in messages]


# -- LlamaIndex: put and get -----------------------------------------------------------------------


class ListMemory:
    """A memory of one's own, in twenty lines: the newest ten messages, and nothing else."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    async def put(self, message: MessageLike) -> None:
        _, chat = encode_message(message)  # refuses what is no chat message
        self._messages.append(copy.deepcopy(chat))
        del self._messages[:-10]

    async def get(self) -> list[dict[str, Any]]:
        return copy.deepcopy(self._messages)


class Shared:
    """Forgets to copy, and takes anything."""

    def __init__(self) -> None:
        self._messages: list[Any] = []

    async def put(self, message: Any) -> None:
        self._messages.append(message)

    async def get(self) -> list[Any]:
        return self._messages


async def test_the_checks_of_a_memory() -> None:
    """S3.01: a custom memory of twenty lines follows the protocol, and so does remora's. One that
    hands out its own list, and takes what is no message, is found out.
    """
    failed = []
    for check in MEMORY_CHECKS:
        await check(ListMemory())
        async with Runtime.in_memory(config=PLAIN) as runtime:
            await check(ChatMemory.from_defaults(runtime=runtime))
        try:
            await check(Shared())
        except AssertionError:
            failed.append(check.__name__)
    assert failed == ["what_it_gives_is_the_callers_own", "what_is_no_message_is_refused"]


async def test_chat_memory_from_defaults() -> None:
    """S3.02, S3.04, S3.25: the document's factory and its example; a bad batch leaves nothing."""
    memory = ChatMemory.from_defaults(
        session_id="my_session", token_limit=40_000, chat_history_token_ratio=0.7, config=PLAIN
    )
    assert (memory.session_id, memory.token_limit) == ("my_session", 40_000)
    async with memory:
        assert memory.runtime.config.buffer.fold_above_tokens == 28_000
        await memory.put_messages([user("Hello, world!"), Message.ai("Hello, world to you too!")])
        assert said(await memory.get()) == ["Hello, world!", "Hello, world to you too!"]
        with pytest.raises(InvalidMessage):
            await memory.put_messages([user("good"), dict[str, Any](role="user"), user("never")])
        assert len(await memory.aget_all()) == 2
        await memory.set([user("another")])
        assert said(await memory.get_all()) == ["another"]
        await memory.reset()
        assert await memory.get() == []
    with pytest.raises(RuntimeClosed):
        await memory.get()


async def test_chat_memory_keeps_to_its_limit() -> None:
    """S3.02, S3.04, S3.30: what is beyond its share leaves, oldest first, and no model is asked."""
    memory = ChatMemory.from_defaults(
        token_limit=100,
        chat_history_token_ratio=0.5,
        config=PLAIN,
        chat_model=ScriptedChatModel([]),
    )
    async with memory:
        for number in range(30):
            await memory.put(user(f"{number:012d}"))  # 3 tokens each, by bytes
        kept = said(await memory.get())
        assert kept == [f"{number:012d}" for number in range(30 - len(kept), 30)]
        assert 10 <= len(kept) <= 16
        assert len(await memory.session.history()) == 30


async def test_chat_memory_names_its_session(tmp_path: Path) -> None:
    """S3.27: no id given makes a new one each time; a used one carries on, after a restart as well."""  # noqa: E501
    one, two = ChatMemory.from_defaults(config=PLAIN), ChatMemory.from_defaults(config=PLAIN)
    assert uuid.UUID(one.session_id) != uuid.UUID(two.session_id)
    async with ChatMemory.from_defaults(config=PLAIN, directory=tmp_path) as memory:
        await memory.put(user("before"))
    async with ChatMemory.from_defaults(
        memory.session_id, config=PLAIN, directory=tmp_path
    ) as again:
        await again.put(user("after"))
        assert said(await again.get()) == ["before", "after"]
    async with ChatMemory.from_defaults(config=PLAIN, directory=tmp_path) as other:
        assert await other.get() == []


async def test_chat_memory_with_blocks_and_with_a_runtime() -> None:
    """S3.02, S3.30: blocks speak in what `get` gives; a runtime that is given decides all but
    session and budget.
    """
    blocks = [StaticMemoryBlock(name="core_info", static_content="My name is Logan.")]
    async with ChatMemory.from_defaults(
        memory_blocks=blocks, insert_method="user", config=PLAIN
    ) as memory:
        await memory.put(user("hello"))
        (message,) = await memory.get()
        assert "My name is Logan." in message["content"]
        shared = ChatMemory.from_defaults(
            memory.session_id, runtime=memory.runtime, token_limit=5_000
        )
        async with shared:
            assert await shared.get() == [message]
        assert await shared.get() == [message], "leaving it left the runtime open"
        with pytest.raises(ConfigError, match="token_flush_size, memory_blocks"):
            ChatMemory.from_defaults(
                runtime=memory.runtime, token_flush_size=10, memory_blocks=blocks
            )
    with pytest.raises(ConfigError):
        ChatMemory.from_defaults(token_limit=0, config=PLAIN)


# -- Synaptic --------------------------------------------------------------------------------------


async def test_synaptic_example() -> None:
    """S1.03, S1.05, S1.20: append, load and clear by session; the document's own example is
    summarized above 50 tokens.
    """
    model = ScriptedChatModel(["The user asked about Rust and ownership."])
    async with Runtime.in_memory(
        config=TOKENS, chat_model=model, policy=BufferPolicy.summary_buffer(50)
    ) as runtime:
        memory = ConversationSummaryBufferMemory(runtime)
        roles = [one("a").role for one in (Message.human, Message.ai, Message.system)]
        assert roles == ["user", "assistant", "system"]
        await memory.append("test", Message.human("What is Rust?"))
        await memory.append("other", Message.human("Hello"))
        await memory.append(
            "test",
            Message.ai(
                "Rust is a systems programming language focused on safety, speed, and concurrency."
            ),
        )
        await memory.append("test", Message.human("How does ownership work?"))
        rules = "Ownership is a set of rules the compiler checks at compile time. Each value has a single owner."  # noqa: E501
        await memory.append("test", Message.ai(rules))
        await runtime.settle()
        history = await memory.load("test")
        summary = "Summary of earlier conversation: The user asked about Rust and ownership."
        assert history[0] == {"role": "system", "content": summary}
        assert said(history[1:]) == [rules]
        await memory.clear("test")
        assert await memory.load("test") == []
        assert said(await memory.load("other")) == ["Hello"]


async def test_the_default_is_a_summary_buffer() -> None:
    """S1.20, S1.22: without a word of configuration, older messages are summarized, and their
    originals can be read.
    """
    buffer = {"token_limit": 200, "summary_tokens": 60}
    config = Config.from_dict(
        {"tokens": {"counter": "heuristic"}, "buffer": buffer, "long_term": {"enabled": False}}
    )
    async with Runtime.in_memory(config=config) as runtime:
        chat = runtime.session("alice", "chat")
        texts = [f"On day {n} I walked {n} kilometres along the coast." for n in range(24)]
        for text in texts:
            await chat.append(user(text))
        await chat.settle()
        policy = BufferPolicy.summary_buffer(140, overdraft_tokens=400)
        assert (await chat.inspect()).policy == msgspec.structs.replace(
            policy, result_tokens=64, above_bytes=4_194_304
        )
        context = await chat.load()
        assert context.summary
        assert texts[0] not in said(context.messages)
        history = await chat.history(include_archived=True)
        assert [message.content for message in history] == texts
        recent = await chat.history(include_archived=False)
        assert 0 < len(recent) < len(texts)
        assert recent == history[-len(recent) :]


# -- MUXI ------------------------------------------------------------------------------------------


async def test_muxi_buffer() -> None:
    """S0.04, S0.14, S0.15, S0.17, S0.19, S0.20, S3.30: MUXI's calls and shapes over a window with a
    summary.
    """
    model = ScriptedChatModel(["They greeted."])
    async with Runtime.in_memory(
        config=PLAIN, policy=BufferPolicy.window(2, fold="summary"), chat_model=model
    ) as runtime:
        buffer = BufferMemory(runtime.session("alice", "chat"))
        assert await buffer.get_summary() is None
        await buffer.add_message("user", "Hello")
        await buffer.add_message("user", "I'm Alice", metadata={"user_id": "user1"})
        await buffer.add_message("user", "I'm Bob", metadata={"user_id": "user2"})
        await runtime.settle()
        first, second = await buffer.get_messages()
        assert set(first) == {"role", "content", "timestamp", "metadata"}
        assert datetime.fromisoformat(first["timestamp"]).tzinfo is not None
        assert await buffer.get_messages(filter_metadata={"user_id": "user2"}) == [second]
        formatted = await buffer.get_formatted_messages()
        assert formatted[0] == {
            "role": "system",
            "content": "Previous conversation summary: They greeted.",
        }
        assert said((await buffer.get_context())[1:]) == ["I'm Alice", "I'm Bob"]
        text = await buffer.to_json()
        assert json.loads(text)["buffer_size"] == 2
        copy_ = await BufferMemory.from_json(text, runtime.session("alice", "copy"))
        assert await copy_.get_messages() == [first, second]
        assert await copy_.get_summary() == await buffer.get_summary() == "They greeted."
        plain = BufferMemory(runtime.session("alice", "plain"))
        await plain.add_message("user", "Hello", metadata={})
        assert "metadata" not in (await plain.get_messages())[0]
        with pytest.raises(InvalidMessage):
            await plain.add_message("nobody", "Hello")  # type: ignore[arg-type]


# -- MassGen and agentscope ------------------------------------------------------------------------


async def test_conversation_memory_has_its_verbs() -> None:
    """S4.06, S4.10, S4.12, S4.14, S4.15, S4.16, S4.28: the eight verbs and the three beside them,
    as the document uses them. What is no message is a `TypeError` before anything is written, the
    good ones of the batch included.
    """
    async with Runtime.in_memory(config=PLAIN) as runtime:
        memory = ConversationMemory(runtime.session("alice", "chat"))
        await memory.add(None)
        await memory.add([])
        assert (await memory.size(), await memory.get_last_message()) == (0, None)
        await memory.add({"role": "user", "content": "Hello"})
        await memory.add(
            [
                {"role": "assistant", "content": "Hi", "id": "mine", "metadata": {"a": 1}},
                user("Where is Lisbon?"),
            ]
        )
        await memory.add({"role": "assistant", "content": "Hi again", "id": "mine"})
        assert await memory.size() == 3, "an id that is there was skipped"
        await memory.add(
            {"role": "assistant", "content": "Hi again", "id": "mine"}, allow_duplicates=True
        )
        messages = await memory.get_messages()
        assert messages[0]["id"].startswith("msg_")
        assert messages[1] == {
            "role": "assistant",
            "content": "Hi",
            "id": "mine",
            "metadata": {"a": 1},
        }
        assert await memory.get_messages(limit=1) == messages[-1:]
        assert await memory.get_messages_by_role("user") == [messages[0], messages[2]]
        assert await memory.get_last_message() == messages[-1]
        assert said(await memory.retrieve("Lisbon", limit=1)) == ["Where is Lisbon?"]
        state = await memory.state_dict()
        assert json.loads(json.dumps(state)) == state
        with pytest.raises(IndexError, match="7"):
            await memory.delete([0, 7])
        with pytest.raises(IndexOutOfRange):
            await memory.delete(-1)
        await memory.delete([0, 1])
        assert said(await memory.get_messages()) == ["Where is Lisbon?", "Hi again"]
        await memory.truncate_to_size(1)
        assert await memory.size() == 1
        await memory.clear()
        assert await memory.size() == 0
        await memory.load_state_dict(state)
        assert await memory.get_messages() == messages
        with pytest.raises(ValueError, match="messages"):
            await memory.load_state_dict({})
        await memory.load_state_dict({}, strict=False)
        assert await memory.size() == 0
        wrong: Any
        for wrong in (
            "hello",
            7,
            [user("good"), "hello"],
            [user("good"), {"role": "user"}],
            {"content": "x"},
            object(),
        ):
            with pytest.raises(TypeError):
                await memory.add(wrong)
        assert await memory.size() == 0


async def test_persistent_memory_from_models(tmp_path: Path) -> None:
    """S4.07, S4.24: made from models; what the developer recorded and what the agent saved is found
    after a restart.
    """

    async def backend(prompt: str) -> str:
        return prompt[:10]

    def made() -> PersistentMemory:
        return PersistentMemory(
            "my_agent", llm_backend=backend, embedding_backend=HashEmbedder(), directory=tmp_path
        )

    async with made() as memory:
        await memory.record([user("My birthday is on March 15."), Message.ai("Noted!")])
        answer = await memory.save_to_memory(
            thinking="They like it.", content=["Favourite cake: walnut"]
        )
        assert answer["success"]
        assert len(answer["memory_ids"]) == 1
        await memory.settle()
    with pytest.raises(RuntimeClosed):
        await memory.retrieve("birthday")
    async with made() as memory:
        assert "March 15" in await memory.retrieve("When is the birthday?")
        answer = await memory.recall_from_memory(keywords=["cake"], limit=3)
        assert answer["memories"][0]["content"] == "Favourite cake: walnut"
        aliases = (memory.record_to_memory, memory.retrieve_from_memory)
        assert (await aliases[0]("Because.", ["Shoe size: 41"]))["success"]
        await memory.settle()
        assert (await aliases[1](["shoe size"]))["memories"]
        assert [spec["name"] for spec in memory.tools.specs()] == [
            "save_to_memory",
            "recall_from_memory",
        ]


async def test_persistent_memory_from_a_configuration_or_a_runtime(tmp_path: Path) -> None:
    """S4.24, S4.07: made from a whole configuration, or over a runtime that is open; agents keep
    apart.
    """
    config = Config.from_dict(
        {
            "directory": str(tmp_path),
            "models": {"embedder": "none"},
            "tokens": {"counter": "heuristic"},
        }
    )
    async with PersistentMemory("researcher", config=config) as memory:
        await memory.record(user("The report is due in May."))
        await memory.settle()
        other = PersistentMemory("writer", runtime=memory.runtime)
        assert "May" in await memory.retrieve("report due")
        assert await other.retrieve("report due") == ""
        everybody = PersistentMemory(user_name="default", runtime=memory.runtime)
        assert "May" in await everybody.retrieve("report due")
        session = PersistentMemory(user_name="default", session_name="s1", runtime=memory.runtime)
        await session.record(user("The garden needs water."))
        await session.settle()
        assert "garden" in await session.retrieve("garden report")
        assert "report" not in await session.retrieve("garden report")


def test_persistent_memory_says_what_is_missing() -> None:
    """S4.24: neither models nor a configuration: an error that says which; nor anybody's name; nor
    both ways at once.
    """
    with pytest.raises(ConfigError, match="llm_backend is missing, embedding_backend is missing"):
        PersistentMemory("my_agent")
    with pytest.raises(InvalidInput, match="agent_name, user_name or session_name"):
        PersistentMemory(config=PLAIN)
    with pytest.raises(ConfigError, match="pass embedding_backend to the given runtime"):
        PersistentMemory(
            "my_agent", runtime=Runtime.in_memory(config=PLAIN), embedding_backend=HashEmbedder()
        )
    with pytest.raises(ConfigError, match="embedder"):
        PersistentMemory("my_agent", embedding_backend=7)  # type: ignore[arg-type]


async def test_persistent_memory_errors() -> None:
    """S4.28, S4.30: a bad message is a `TypeError`; a failing journal is a `RuntimeError` that says
    where; nothing is left.
    """
    broken: list[CommitFault] = []
    journal = FaultyJournal(lambda: broken.pop() if broken else None)
    config = Config.from_dict({"models": {"embedder": "none"}, "tokens": {"counter": "heuristic"}})
    async with Runtime.in_memory(config=config, journal=journal) as runtime:
        memory = PersistentMemory("my_agent", "alice", "s1", runtime=runtime)
        with pytest.raises(TypeError):
            await memory.record([user("good"), 7])  # type: ignore[list-item]
        broken.append("refused")
        with pytest.raises(RecordingFailed, match=SessionKey("alice", "s1").words) as caught:
            await memory.record(user("Figaro is a cat."))
        assert (caught.value.op, caught.value.session) == ("record", "s1")
        assert isinstance(caught.value, RuntimeError)
        assert caught.value.__cause__ is not None
        broken.append("refused")
        answer = await memory.save_to_memory("Because.", ["Figaro is a cat."])
        assert answer["success"] is False
        await memory.settle()
        assert await memory.retrieve("Figaro") == ""
        assert await memory.record(user("Figaro is a cat."))
        await memory.settle()
        assert "Figaro" in await memory.retrieve("Figaro")
