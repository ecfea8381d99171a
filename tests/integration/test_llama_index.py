"""Agents of LlamaIndex over remora: a memory and a chat store, with a scripted model.

LlamaIndex is not among the development requirements: ``python -m benchmarks.lab.frameworks own
llama-index`` runs these in an environment of their own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import anyio.to_thread
import pytest

pytest.importorskip(
    "llama_index.core", reason="`python -m benchmarks.lab.frameworks own llama-index`"
)
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms import types
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.workflow import (
    Context,
    HumanResponseEvent,
    InputRequiredEvent,
    JsonPickleSerializer,
    JsonSerializer,
)
from llama_index.core.workflow.errors import WorkflowCancelledByUser

from remora import BufferPolicy, Runtime, blocking
from remora.adapters.llama_index_agents import (
    RemoraChatStore,
    RemoraMemory,
    RemoraSerializer,
    chat_messages,
    llama_messages,
)
from remora.errors import InvalidInput, InvalidMessage, WrongLoop
from tests.configs import PLAIN
from tests.conformance import (
    THOUGHT,
    URL,
    Blocking,
    Call,
    Connected,
    Conversations,
    Driver,
    Given,
    Messages,
    Recalling,
    look_at,
    parts_of,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
]
IMAGE = URL.partition(",")[2]
BLOCKS: list[list[Any]] = [
    [TextBlock(text="hello")],
    [TextBlock(text="")],
    [],
    [TextBlock(text="one"), TextBlock(text="two")],
    [TextBlock(text="look"), ImageBlock(image=IMAGE, image_mimetype="image/png", detail="low")],
    [TextBlock(text="look"), ImageBlock(url="https://example.org/a.png")],
    [
        types.AudioBlock(audio=IMAGE, format="wav"),
        types.VideoBlock(video=IMAGE, video_mimetype="video/mp4"),
    ],
    [types.DocumentBlock(data=IMAGE, title="a.pdf", document_mimetype="application/pdf")],
    [types.CachePoint(cache_control={"type": "ephemeral"}), TextBlock(text="x")],
    [types.CitableBlock(title="t", source="s", content=[TextBlock(text="c")])],
    [
        types.CitationBlock(
            cited_content=TextBlock(text="c"), source="s", title="t", additional_location_info={}
        )
    ],
    [types.ThinkingBlock(content="so", num_tokens=1), TextBlock(text="yes")],
    [
        TextBlock(text="I look."),
        ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"at": "sea"}),
        ToolCallBlock(tool_call_id="c2", tool_name="look", tool_kwargs="{"),
    ],
    [ToolCallBlock(tool_name="look")],
]


def called(*calls: Call) -> list[Any]:
    return [
        ToolCallBlock(tool_call_id=one.id, tool_name=one.name, tool_kwargs=one.arguments)
        for one in calls
    ]


async def look(at: str) -> str:
    """Look."""
    return await look_at(at)


class LlamaIndex(Driver):
    whole = False  # an agent stores the question first
    prompt = ["Be kind."]  # noqa: RUF012

    def model(self, *answers: Any) -> Any:
        seen: list[list[Any]] = []

        def answer(messages: Sequence[Any], **_: Any) -> Any:
            seen.append(list(messages))
            said = answers[len(seen) - 1]
            if isinstance(said, Exception):
                raise said
            blocks = [
                called(one)[0] if isinstance(one, Call) else TextBlock(text=one)
                for one in parts_of(said)
            ]
            return ChatMessage(role="assistant", blocks=blocks)

        return MockFunctionCallingLLM(response_generator=answer), seen

    def shown(self, model: Any) -> list[list[str]]:
        return [[one.content for one in messages if one.content] for messages in model[1]]

    def agent(self, model: Any, given: Given) -> Any:
        """An agent, and its memory."""
        agent = FunctionAgent(tools=[look], llm=model[0], streaming=False, system_prompt="Be kind.")
        return agent, RemoraMemory(given.session, recall=given.recall)

    async def ask(self, agent: Any, said: str) -> None:
        await agent[0].run(said, memory=agent[1])

    def ask_blocking(self, agent: Any, said: str) -> None:
        asyncio.run(self.ask(agent, said))


class TestAgents(LlamaIndex, Conversations, Connected, Recalling, Blocking):
    async def test_a_limit_of_tokens_holds(self, tmp_path: Path) -> None:
        async with self.memory(tmp_path) as memory:
            chat = self.session(memory)
            await chat.append([{"role": "user", "content": "word " * 500}] * 4)
            small = await RemoraMemory(chat, token_limit=700).aget()
            large = await RemoraMemory(chat).aget()
            sizes = [sum(len(one.content or "") for one in found) for found in (small, large)]
            assert 0 < sizes[0] < 700 * 5 < sizes[1]


class TestMessages(Messages):
    def to_chat(self, messages: Iterable[Any]) -> list[Any]:
        return list(chat_messages(messages))

    def of_chat(self, stored: Iterable[Any]) -> list[Any]:
        return list(llama_messages(stored))

    def plain(self, message: Any) -> Any:
        return message.model_dump()

    def every(self) -> list[Any]:
        known = {"tool_call_id": "c1"}
        function = {"name": "f", "arguments": "{}"}
        older = {"tool_calls": [{"id": "c1", "type": "function", "function": function}]}
        said = [
            ChatMessage(role=role, blocks=blocks)
            for blocks in BLOCKS
            for role in ("user", "assistant")
        ]
        others: list[tuple[str, str, dict[str, Any]]] = [
            ("system", "Be kind.", {}),
            ("developer", "Be brief.", {}),
            ("model", "yes", {"a": {"b": 1}}),
            ("tool", "a ship", known),
            ("tool", "a ship", {**known, "x": 1}),
            ("tool", "without an id", {}),
            ("function", "a ship", {"name": "look"}),
            ("assistant", "", older),
        ]
        return said + [
            ChatMessage(role=role, content=content, additional_kwargs=more)
            for role, content, more in others
        ]

    def heavy(self) -> list[Any]:
        blocks = [types.ThinkingBlock(content=THOUGHT), TextBlock(text="ok")]
        return [ChatMessage(role="assistant", blocks=blocks)]

    def ordinary(self) -> list[Any]:
        image = ImageBlock(image=IMAGE, image_mimetype="image/png")
        looks = called(Call("c1", {"at": "sea"}), Call("c2", {"at": "bay"}))
        results = [
            ChatMessage(role="tool", content=found, additional_kwargs={"tool_call_id": id_})
            for id_, found in (("c1", "a ship"), ("c2", "a gull"))
        ]
        return [
            ChatMessage(role="system", content="Be kind."),
            ChatMessage(role="user", blocks=[TextBlock(text="What is there?"), image]),
            ChatMessage(role="assistant", blocks=looks),
            *results,
            ChatMessage(role="assistant", content="A ship and a gull."),
        ]

    def unwritable(self) -> list[Any]:
        return [ChatMessage(content="x", additional_kwargs={"a": object()})]

    def test_no_kind_of_block_is_forgotten(self) -> None:
        """A release with a new one is noticed here."""
        tried = {type(block) for blocks in BLOCKS for block in blocks}
        assert set(get_args(get_args(types.ContentBlock)[0])) == tried


# -- a memory --------------------------------------------------------------------------------------


async def approve(ctx: Context, what: str) -> str:
    """Ask a person."""
    question = InputRequiredEvent(prefix=what)
    found = await ctx.wait_for_event(HumanResponseEvent, waiter_event=question)
    return f"{what}: {found.response}"


approve.__annotations__ |= {"ctx": Context}  # LlamaIndex finds it by its type, and not by a name


async def interrupted(agent: Any, memory: Any) -> Any:
    """The context of a run that waits for a person; the run itself is gone."""
    ctx = Context(agent)
    handler = agent.run("pay it", ctx=ctx, memory=memory)
    async for event in handler.stream_events():
        if isinstance(event, InputRequiredEvent):
            break
    return handler


async def test_a_run_that_waits_for_a_person_is_resumed(tmp_path: Path) -> None:
    """In another process, and by further runs in its context."""
    driver = LlamaIndex()
    model = driver.model([Call("c1", {"what": "rent"}, "approve")], "Paid.", "You paid.")
    agent = FunctionAgent(tools=[approve], llm=model[0], streaming=False)
    async with driver.memory(tmp_path, kept=True) as runtime:
        memory = RemoraMemory(runtime.session("alice", "chat"), token_limit=5_000)
        handler = await interrupted(agent, memory)
        written = json.dumps(handler.ctx.to_dict(serializer=JsonSerializer()))
        await handler.cancel_run()
    async with driver.memory(tmp_path, kept=True) as runtime:
        serializer = RemoraSerializer(runtime.user("alice"))
        handler = agent.run(ctx=Context.from_dict(agent, json.loads(written), serializer))
        handler.ctx.send_event(HumanResponseEvent(response="yes"))
        assert str(await handler) == "Paid."
        await agent.run("What was it?", ctx=handler.ctx)
        said = ["pay it", None, "rent: yes", "Paid.", "What was it?", "You paid."]
        history = await runtime.session("alice", "chat").history()
        assert [one.content for one in history] == said
        assert driver.shown(model)[-1] == [one for one in said[:-1] if one]
        # a serializer that does not know the runtime says so, and loses nothing in silence
        with pytest.raises(ValueError, match="read by RemoraSerializer"):
            agent.run("And now?", ctx=Context.from_dict(agent, json.loads(written)))


async def test_several_runs_in_one_context() -> None:
    driver = LlamaIndex()
    model = driver.model("one", "two")
    async with Runtime.in_memory(config=PLAIN) as runtime:
        agent, memory = driver.agent(model, driver.give(runtime))
        ctx = Context(agent, serializer=RemoraSerializer(runtime.user("alice")))
        await agent.run("a", ctx=ctx, memory=memory)
        await agent.run("b", ctx=ctx)
        assert driver.shown(model)[-1][1:] == ["a", "one", "b"]


async def test_a_context_names_no_memory_of_another_user() -> None:
    async with Runtime.in_memory(config=PLAIN) as runtime:
        alice, bob = (RemoraSerializer(runtime.user(name)) for name in ("alice", "bob"))
        memory = RemoraMemory(runtime.session("alice", "chat"), token_limit=700, recall=False)
        await memory.aput(ChatMessage(content="hello"))
        written = JsonPickleSerializer().serialize({"memory": memory})
        found = RemoraSerializer(runtime.user("alice"), allowed_types=[]).with_types(ChatMessage)
        again = found.deserialize(written)["memory"]
        assert [one.content for one in await again.aget_all()] == ["hello"]
        assert alice.serialize({"memory": again}) == written
        value = json.loads(written)["memory"]
        with pytest.raises(InvalidInput, match="user"):
            bob.deserialize(written)
        for wrong in ({}, 7, {"user": "alice"}, {"user": "alice", "session": 7}):
            with pytest.raises(InvalidInput):
                alice.deserialize_value({**value, "value": wrong})


async def test_a_stream_that_is_left_keeps_the_question() -> None:
    """A reader that goes away in the middle of an answer, and asks again."""
    driver = LlamaIndex()
    model = driver.model("A ship at the sea.", "Yes, a ship.")
    async with Runtime.in_memory(config=PLAIN) as runtime:
        agent, memory = driver.agent(model, driver.give(runtime))
        handler = agent.run("What is there?", memory=memory)
        async for _ in handler.stream_events():
            break
        await handler.cancel_run()
        with suppress(WorkflowCancelledByUser):
            await handler
        await agent.run("Again?", memory=memory)
        assert driver.shown(model)[-1][1:] == ["What is there?", "Again?"]


async def test_what_is_wrong_is_refused() -> None:
    """Nothing of a batch is stored."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        memory = RemoraMemory(chat)
        with pytest.raises(InvalidMessage):
            await memory.aput_messages([ChatMessage(content="x"), {"role": "user"}])
        assert await memory.aget_all() == []
        with pytest.raises(InvalidInput, match="NoneType"):
            RemoraMemory.from_defaults()
        with pytest.raises(InvalidInput, match="token_limit"):
            RemoraMemory(chat, token_limit="all")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="NoneType"):
            RemoraChatStore(None)  # type: ignore[arg-type]


async def test_a_history_replaces_the_conversation() -> None:
    """As an agent does with ``chat_history=…``; `areset` empties it."""
    driver = LlamaIndex()
    model = driver.model("yes")
    async with Runtime.in_memory(config=PLAIN) as runtime:
        agent, memory = driver.agent(model, driver.give(runtime))
        await memory.aput(ChatMessage(content="old"))
        given = [ChatMessage(content="new"), ChatMessage(role="assistant", content="so")]
        await agent.run("and?", chat_history=given, memory=memory)
        assert driver.shown(model) == [["Be kind.", "new", "so", "and?"]]
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
