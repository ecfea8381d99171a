"""Agents of LlamaIndex over remora: a memory and a chat store, with a scripted model.

LlamaIndex is not among the development requirements: ``python -m benchmarks.frameworks own
llama-index`` runs these in an environment of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import anyio
import anyio.to_thread
import pytest

pytest.importorskip("llama_index.core", reason="`python -m benchmarks.frameworks own llama-index`")
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import (
    AudioBlock,
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus

from remora import BufferPolicy, Runtime, blocking
from remora.adapters.llama_index_agents import RemoraChatStore, RemoraMemory
from remora.adapters.llama_index_messages import chat_messages, llama_messages
from remora.errors import InvalidInput, InvalidMessage, WrongLoop
from remora.testing import HashEmbedder, ScriptedChatModel
from tests.agents import PLAIN, RECALLING

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
]
IMAGE = "iVBORw0KGgo="
BLOCKS: list[list[Any]] = [
    [TextBlock(text="hello")],
    [TextBlock(text="")],
    [],
    [TextBlock(text="one"), TextBlock(text="two")],
    [TextBlock(text="look"), ImageBlock(image=IMAGE, image_mimetype="image/png", detail="low")],
    [TextBlock(text="look"), ImageBlock(url="https://example.org/a.png")],
    [AudioBlock(audio=IMAGE, format="wav"), VideoBlock(video=IMAGE, video_mimetype="video/mp4")],
    [DocumentBlock(data=IMAGE, title="a.pdf", document_mimetype="application/pdf")],
    [CachePoint(cache_control={"type": "ephemeral"}), TextBlock(text="x")],
    [CitableBlock(title="t", source="s", content=[TextBlock(text="c")])],
    [
        CitationBlock(
            cited_content=TextBlock(text="c"), source="s", title="t", additional_location_info={}
        )
    ],
    [ThinkingBlock(content="so", num_tokens=1), TextBlock(text="yes")],
    [
        TextBlock(text="I look."),
        ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"at": "sea"}),
        ToolCallBlock(tool_call_id="c2", tool_name="look", tool_kwargs="{"),
    ],
    [ToolCallBlock(tool_name="look")],
]


def all_messages() -> list[Any]:
    said = [
        ChatMessage(role=role, blocks=blocks) for blocks in BLOCKS for role in ("user", "assistant")
    ]
    others = [
        ChatMessage(role="system", content="Be kind."),
        ChatMessage(role="developer", content="Be brief."),
        ChatMessage(role="model", content="yes", additional_kwargs={"a": {"b": 1}}),
        ChatMessage(role="tool", content="a ship", additional_kwargs={"tool_call_id": "c1"}),
        ChatMessage(
            role="tool", content="a ship", additional_kwargs={"tool_call_id": "c1", "x": 1}
        ),
        ChatMessage(role="tool", content="without an id"),
        ChatMessage(role="function", content="a ship", additional_kwargs={"name": "look"}),
    ]
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    older = ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": calls})
    return [*said, *others, older]


def scripted(*answers: Any) -> tuple[Any, list[list[Any]]]:
    """A model that answers in turn, and what it was shown."""
    seen: list[list[Any]] = []

    def answer(messages: Sequence[Any], **_: Any) -> Any:
        seen.append(list(messages))
        said = answers[min(len(seen), len(answers)) - 1]
        return ChatMessage(role="assistant", content=said) if isinstance(said, str) else said

    return MockFunctionCallingLLM(response_generator=answer), seen


def calls(name: str, arguments: dict[str, Any], id_: str) -> Any:
    block = ToolCallBlock(tool_call_id=id_, tool_name=name, tool_kwargs=arguments)
    return ChatMessage(role="assistant", blocks=[block])


def agent_of(model: Any, *tools: Callable[..., Any]) -> Any:
    return FunctionAgent(tools=list(tools), llm=model, streaming=False)


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(len(all_messages())))
async def test_each_message_comes_back_as_it_was(place: int) -> None:
    """Through the journal, with every block."""
    message = all_messages()[place]
    async with Runtime.in_memory(config=PLAIN) as runtime:
        memory = RemoraMemory(runtime.session("alice", "chat"))
        await memory.aput(message)
        (found,) = await memory.aget_all()
        assert found.model_dump() == message.model_dump()


def test_no_kind_of_block_is_forgotten() -> None:
    """A release with a new one is noticed here."""
    tried = {type(block) for blocks in BLOCKS for block in blocks}
    assert set(get_args(get_args(ContentBlock)[0])) == tried


async def test_other_readers_see_an_ordinary_conversation() -> None:
    """Calls, results and images are those of a chat API; nothing is stored twice."""
    image = ImageBlock(image=IMAGE, image_mimetype="image/png")
    messages = chat_messages(
        [
            ChatMessage(role="user", blocks=[TextBlock(text="look"), image]),
            calls("look", {"at": "sea"}, "c1"),
            ChatMessage(role="tool", content="a ship", additional_kwargs={"tool_call_id": "c1"}),
        ]
    )
    assert messages[0]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{IMAGE}"
    assert messages[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"sea"}'}
    assert messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "a ship"}
    assert not any("metadata" in message for message in messages)
    assert chat_messages(llama_messages(messages)) == messages


async def test_what_is_no_message_is_refused() -> None:
    """The error says which one; nothing of the batch is stored."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        memory = RemoraMemory(runtime.session("alice", "chat"))
        with pytest.raises(InvalidMessage, match="message 1 is a dict, not a ChatMessage"):
            await memory.aput_messages([ChatMessage(content="x"), {"role": "user"}])
        unwritable = ChatMessage(content="x", additional_kwargs={"a": object()})
        with pytest.raises(InvalidMessage, match="message 0 cannot be written as JSON"):
            await memory.aput(unwritable)
        assert await memory.aget_all() == []
        with pytest.raises(InvalidInput, match="NoneType"):
            RemoraMemory.from_defaults()
        with pytest.raises(InvalidInput, match="token_limit"):
            RemoraMemory(runtime.session("alice", "chat"), token_limit="all")  # type: ignore[arg-type]


# -- agents ----------------------------------------------------------------------------------------


async def test_an_agent_remembers_its_conversation() -> None:
    """A second agent sees what the first one said and did."""

    def look(at: str) -> str:
        """Look."""
        return f"a ship at the {at}"

    model, seen = scripted(calls("look", {"at": "sea"}, "c1"), "A ship.", "At the sea.")
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        await agent_of(model, look).run("Look at the sea.", memory=RemoraMemory(chat))
        done = await agent_of(model, look).run("Where did you look?", memory=RemoraMemory(chat))
        assert str(done) == "At the sea."
        assert [message.role.value for message in seen[-1]] == [
            "user", "assistant", "tool", "assistant", "user",
        ]  # fmt: skip
        assert seen[-1][1].blocks[0].tool_kwargs == {"at": "sea"}
        assert seen[-1][2].content == "a ship at the sea"
        assert len(await chat.history()) == 6


async def test_an_agent_recalls_other_conversations() -> None:
    """For the first call of the model as well; as a user's message, which is not stored."""
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        await alice.session("march").append(
            {"role": "user", "content": "My flat is in Lisbon, near the river."}
        )
        model, seen = scripted("In Lisbon.")
        for recall in (True, False):
            june = alice.session(f"june {recall}")
            memory = RemoraMemory(june, recall=recall)
            await agent_of(model).run("Where is my flat near the river?", memory=memory)
            assert len(await june.history()) == 2
            await june.forget()
        first, second = seen
        found = [one for one in first if "My flat is in Lisbon" in (one.content or "")]
        assert [message.role.value for message in found] == ["user"]
        assert first[-1].content.endswith("Where is my flat near the river?")
        assert not any("My flat is in Lisbon" in (one.content or "") for one in second)


async def test_the_model_sees_a_budget() -> None:
    """The summary stands for what left the buffer, and `token_limit` holds."""
    model, seen = scripted("yes")
    async with Runtime.in_memory(
        config=PLAIN,
        policy=BufferPolicy.window(2, fold="summary"),
        chat_model=ScriptedChatModel(["They counted."] * 4),
    ) as runtime:
        chat = runtime.session("alice", "chat")
        for number in range(4):
            await agent_of(model).run(f"question {number}", memory=RemoraMemory(chat))
            await chat.settle()
        assert "They counted." in seen[-1][0].content
        assert seen[-1][-1].content == "question 3"
        await chat.append([{"role": "user", "content": "word " * 500}] * 4)
        small = await RemoraMemory(chat, token_limit=700).aget()
        assert len(small) < len(await RemoraMemory(chat).aget())


async def test_eight_runs_at_once_lose_nothing() -> None:
    """With `Session.exclusive`, each question has its answer right behind it."""

    async def run(number: int) -> None:
        model, _ = scripted(f"answer {number}")
        async with chat.exclusive():
            await agent_of(model).run(f"question {number}", memory=RemoraMemory(chat))

    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(run, number)
        said = [str(message.content) for message in await chat.history()]
        assert sorted(said[::2]) == [f"question {number}" for number in range(8)]
        assert said[1::2] == [text.replace("question", "answer") for text in said[::2]]


async def test_a_history_replaces_the_conversation() -> None:
    """As an agent does with ``chat_history=…``; `areset` empties it."""
    model, seen = scripted("yes")
    async with Runtime.in_memory(config=PLAIN) as runtime:
        memory = RemoraMemory(runtime.session("alice", "chat"))
        await memory.aput(ChatMessage(content="old"))
        given = [ChatMessage(content="new"), ChatMessage(role="assistant", content="so")]
        await agent_of(model).run("and?", chat_history=given, memory=memory)
        assert [message.content for message in seen[-1]] == ["new", "so", "and?"]
        await memory.areset()
        assert await memory.aget_all() == []


async def test_sync_methods_work_in_threads() -> None:
    """On the event loop they are refused, and write nothing."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        memory = RemoraMemory(runtime.session("alice", "chat"))
        with pytest.raises(WrongLoop):
            memory.put(ChatMessage(content="x"))
        await anyio.to_thread.run_sync(memory.put, ChatMessage(content="hello"))
        found = await anyio.to_thread.run_sync(memory.get)
        assert [message.content for message in found] == ["hello"]


def test_without_an_event_loop() -> None:
    """With a session of `remora.blocking`."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        memory = RemoraMemory(runtime.session("ada", "chat"))
        memory.put_messages([ChatMessage(content="a"), ChatMessage(role="assistant", content="b")])
        assert [message.content for message in memory.get("a")] == ["a", "b"]
        memory.set([ChatMessage(content="c")])
        assert [message.content for message in memory.get_all()] == ["c"]
        memory.reset()
        assert memory.get_all() == []


# -- a chat store ----------------------------------------------------------------------------------


async def test_their_memory_keeps_its_messages_in_the_store() -> None:
    """LlamaIndex's `Memory` archives what its limit has no room for, and nothing is lost."""
    async with Runtime.in_memory(config=PLAIN, policy=BufferPolicy.keep_all()) as runtime:
        store = RemoraChatStore(runtime.user("alice"))
        memory = Memory.from_defaults(
            session_id="chat", token_limit=200, token_flush_size=50, chat_store=store,
            tokenizer_fn=str.split,
        )  # fmt: skip
        for number in range(20):
            await memory.aput(ChatMessage(content=f"question {number} " + "word " * 10))
            await memory.aput(ChatMessage(role="assistant", content=f"answer {number}"))
        active = await store.count_messages("chat")
        archived = await store.count_messages("chat", MessageStatus.ARCHIVED)
        assert 0 < active < 40
        assert active + archived == 40
        everything = await store.get_messages("chat", None)
        assert [message.content.split()[1] for message in everything] == [
            str(number) for number in range(20) for _ in "qa"
        ]
        assert await memory.aget() == everything[archived:]
        assert await store.get_keys() == ["chat"]
        await memory.areset()
        assert await store.count_messages("chat", None) == 0


async def test_messages_of_a_store_are_archived_and_deleted() -> None:
    """The oldest first, in pages."""
    async with Runtime.in_memory(config=PLAIN, policy=BufferPolicy.keep_all()) as runtime:
        alice = runtime.user("alice")
        store = RemoraChatStore(alice)

        async def texts(status: Any = MessageStatus.ACTIVE, **page: int) -> str:
            return "".join(one.content for one in await store.get_messages("k", status, **page))

        await store.add_messages("k", [ChatMessage(content=text) for text in "abcdef"])
        await store.add_message("k", ChatMessage(content="g"))
        assert await texts(limit=2, offset=1) == "bc"
        assert [one.content for one in await store.archive_oldest_messages("k", 2)] == ["a", "b"]
        assert await texts(MessageStatus.ARCHIVED) == "ab"
        assert [one.content for one in await store.delete_oldest_messages("k", 1)] == ["c"]
        number = (await alice.session("k").get_messages())[0].seq
        assert number is not None
        deleted = await store.delete_message("k", number)
        assert deleted is not None
        assert deleted.content == "d"
        assert await store.delete_message("k", number) is None
        assert await texts(None) == "abefg"
        await store.set_messages("k", [ChatMessage(content="x")])
        assert (await texts(), await texts(MessageStatus.ARCHIVED)) == ("x", "abefg")
        await store.delete_messages("k", MessageStatus.ACTIVE)
        assert (await texts(), await texts(None)) == ("", "abefg")
        for refused in (
            store.add_message("k", ChatMessage(content="x"), MessageStatus.ARCHIVED),
            store.set_messages("k", [], MessageStatus.ARCHIVED),
            store.delete_messages("k", MessageStatus.ARCHIVED),
        ):
            with pytest.raises(InvalidInput, match="archive_oldest_messages"):
                await refused
        with pytest.raises(InvalidInput, match="NoneType"):
            RemoraChatStore(None)  # type: ignore[arg-type]
