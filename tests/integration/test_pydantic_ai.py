"""Agents of Pydantic AI over remora: a capability, messages and tools; with scripted models."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_args

import anyio
import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai import messages as pydantic_messages
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    BinaryImage,
    CachePoint,
    CapabilityLoadDeltaPart,
    CompactionPart,
    DocumentUrl,
    FilePart,
    ImageUrl,
    InstructionBaselinePart,
    InstructionDeltaPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelSettingsDeltaPart,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    RetryPromptPart,
    SpeechPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDenied

from remora import BufferPolicy, Runtime, blocking
from remora.adapters.pydantic_ai import RemoraMemory, memory_tools
from remora.adapters.pydantic_messages import chat_messages, model_messages
from remora.errors import InvalidInput, InvalidMessage
from remora.testing import HashEmbedder, ScriptedChatModel
from tests.agents import PLAIN, RECALLING

pytestmark = pytest.mark.anyio
AT = datetime(2026, 11, 23, 9, 0, tzinfo=UTC)
IMAGE = BinaryImage(bytes(range(256)), media_type="image/png")
SPEECH = BinaryContent(b"RIFF", media_type="audio/wav")
PARTS_OF_REQUESTS: list[list[Any]] = [
    [SystemPromptPart("Be kind.", timestamp=AT), UserPromptPart("hello", timestamp=AT)],
    [UserPromptPart("", timestamp=AT)],
    [UserPromptPart(["look", "again"], timestamp=AT), UserPromptPart([], timestamp=AT)],
    [
        UserPromptPart(
            [
                "look",
                TextContent("here", metadata={"of": 1}),
                ImageUrl("https://example.org/a.png"),
                IMAGE,
                SPEECH,
                AudioUrl("https://example.org/a.mp3"),
                VideoUrl("https://example.org/a.mp4"),
                DocumentUrl("https://example.org/a.pdf"),
                CachePoint(),
            ],
            timestamp=AT,
        )
    ],
    [
        ToolReturnPart("look", {"a": [1, None]}, "c1", timestamp=AT, metadata={"x": 1}),
        ToolReturnPart("look", "text", "c2", timestamp=AT, outcome="failed"),
        ToolReturnPart("look", None, "c3", timestamp=AT),
        UserPromptPart("and now?", timestamp=AT),
    ],
    [RetryFeedbackPart("again", retry=RetryInfo("no_output"), timestamp=AT)],
    [SpeechPart(speaker="user", transcript="hi", audio=SPEECH)],
    [InstructionDeltaPart(id=None, content="be brief"), UserPromptPart("x", timestamp=AT)],
    [
        InstructionBaselinePart(instructions=[]),
        ToolAvailabilityDeltaPart(tools_added=[]),
        CapabilityLoadDeltaPart(loaded=["a"]),
    ],
    [UserPromptPart("x", timestamp=AT), ModelSettingsDeltaPart(settings={"thinking": "low"})],
    [CompactionPart("what was said")],
]
PARTS_OF_RESPONSES: list[list[Any]] = [
    [TextPart("yes")],
    [TextPart("")],
    [],
    [ThinkingPart("so", signature="s", provider_name="p"), TextPart("so")],
    [TextPart("one"), TextPart("two", id="2", provider_name="p")],
    [
        TextPart("I look."),
        ToolCallPart("look", {"at": "sea"}, "c1"),
        ToolCallPart("look", "{}", "c2"),
    ],
    [ToolCallPart("look", None, "c3")],
    [
        NativeToolCallPart("search", {"q": 1}, "n1"),
        NativeToolReturnPart("search", [1], "n1", timestamp=AT),
    ],
    [FilePart(IMAGE)],
    [SpeechPart(speaker="assistant", transcript="well")],
    [CompactionPart(None, id="c", provider_name="p")],
]


def all_messages() -> list[ModelMessage]:
    requests = [ModelRequest(parts, timestamp=AT, run_id="r") for parts in PARTS_OF_REQUESTS]
    responses = [
        ModelResponse(parts, timestamp=AT, model_name="m", finish_reason="stop")
        for parts in PARTS_OF_RESPONSES
    ]
    # as Pydantic AI itself brings them back: a field or a class more, of what was left out
    messages: list[ModelMessage] = [*requests, *responses]
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


def answering(
    *answers: str | Exception | ModelResponse,
) -> tuple[FunctionModel, list[list[ModelMessage]]]:
    """A model that answers in turn, and what it was shown."""
    seen: list[list[ModelMessage]] = []

    def answer(messages: list[ModelMessage], _info: Any) -> ModelResponse:
        seen.append(messages)
        said = answers[min(len(seen), len(answers)) - 1]
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, ModelResponse) else ModelResponse([TextPart(said)])

    return FunctionModel(answer), seen


def texts(messages: list[ModelMessage]) -> list[str]:
    parts = [part for message in messages for part in message.parts]
    contents: list[Any] = [getattr(part, "content", None) for part in parts]
    return [content for content in contents if isinstance(content, str)]


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", all_messages(), ids=lambda one: one.parts[0].part_kind if one.parts else "none")  # fmt: skip  # noqa: E501
async def test_each_kind_of_message_comes_back_as_it_was(message: ModelMessage) -> None:
    """Through the journal, equal to the last field."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(chat_messages([message]))
        assert model_messages(await chat.history()) == [message]


async def test_a_conversation_comes_back_as_it_was() -> None:
    """Requests next to each other stay apart, and their parts together."""
    messages = all_messages()
    async with Runtime.in_memory(config=PLAIN, policy=BufferPolicy.keep_all()) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(chat_messages(messages))
        assert model_messages(await chat.get_messages()) == messages


def test_no_kind_of_part_is_forgotten() -> None:
    """A release with a new one is noticed here."""
    tried = {type(part) for parts in PARTS_OF_REQUESTS + PARTS_OF_RESPONSES for part in parts}
    tried.add(RetryPromptPart)  # which is deprecated, and below
    for union in (pydantic_messages.ModelRequestPart, pydantic_messages.ModelResponsePart):
        for member in get_args(get_args(union)[0]):
            kind = get_args(member)[0] if get_args(member) else member
            assert any(issubclass(kind, one) for one in tried), kind


async def test_other_readers_see_an_ordinary_conversation() -> None:
    """A request with the results of two tools is two messages; an image is one; each text once."""
    call = ModelResponse(
        [ToolCallPart("look", {"at": "sea"}, "c1"), ToolCallPart("look", "{}", "c2")]
    )
    request = ModelRequest(
        [ToolReturnPart("look", {"a": 1}, "c1"), ToolReturnPart("look", "b", "c2")]
    )
    asked = ModelRequest([SystemPromptPart("Be kind."), UserPromptPart(["look", IMAGE])])
    messages = chat_messages([asked, call, request])
    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assert messages[1]["content"][1]["image_url"]["url"] == IMAGE.data_uri
    assert messages[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"sea"}'}
    assert messages[3]["content"] == '{"a":1}'
    assert "data" not in messages[1]["metadata"]["pydantic_ai"]["parts"][0]["content"][1]
    assert "Be kind." not in str(messages[0]["metadata"])


async def test_messages_of_others_become_equivalent_ones() -> None:
    """What another framework stored in the session is shown to the model."""
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    shown = {"type": "image_url", "image_url": {"url": IMAGE.data_uri}}
    given: list[Any] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "t"}, shown]},
        {"role": "assistant", "content": "a", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(given)
        system, user, answer, result = model_messages(await chat.history())
    assert texts([system, answer, result]) == ["s", "a", "r"]
    (prompt,) = user.parts
    assert isinstance(prompt, UserPromptPart)
    assert list(prompt.content) == ["t", IMAGE]
    (returned,) = result.parts
    assert isinstance(returned, ToolReturnPart)
    assert (returned.tool_name, returned.tool_call_id) == ("f", "c")


async def test_a_redaction_hook_changes_a_text_everywhere() -> None:
    """A message is made again of what the hook left."""
    async with Runtime.in_memory(config=PLAIN, redact=lambda text: text.replace("4711", "***")) as runtime:  # fmt: skip  # noqa: E501
        chat = runtime.session("alice", "chat")
        await chat.append(chat_messages([ModelRequest([UserPromptPart(["pin", "4711"])])]))
        await chat.append(chat_messages([ModelResponse([ThinkingPart("4711?"), TextPart("4711")])]))
        assert "4711" not in str(model_messages(await chat.history()))


def test_what_is_no_message_is_refused() -> None:
    """The error says which one."""
    with pytest.raises(InvalidMessage, match="message 1 is a dict, not a message of Pydantic AI"):
        chat_messages([ModelRequest([]), {"role": "user"}])  # type: ignore[list-item]
    unwritable = ModelRequest([ToolReturnPart("f", object(), "c")])
    with pytest.raises(InvalidMessage, match="message 0 cannot be written as JSON"):
        chat_messages([unwritable])


# -- agents ----------------------------------------------------------------------------------------


async def test_an_agent_remembers_its_conversation() -> None:
    """Each run passes the new message alone; instructions are not stored, nor doubled."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        model, seen = answering(
            ModelResponse([ToolCallPart("look", {"at": "sea"})]), "A ship.", "At the sea."
        )
        agent = Agent(model, system_prompt="Be kind.", instructions="Be brief.", capabilities=[RemoraMemory(chat)])  # fmt: skip  # noqa: E501

        @agent.tool_plain
        def look(at: str) -> str:
            return f"a ship at the {at}"

        await agent.run("Look at the sea.")
        done = await agent.run("Where did you look?")
        assert done.output == "At the sea."
        said = ["Look at the sea.", "a ship at the sea", "A ship."]
        assert texts(seen[-1]) == ["Be kind.", *said, "Where did you look?"]
        assert [one.instructions for one in seen[-1] if isinstance(one, ModelRequest)][-1] == "Be brief."  # fmt: skip  # noqa: E501
        history = await chat.history()
        assert [message.role for message in history] == [
            "user", "assistant", "tool", "assistant", "user", "assistant",
        ]  # fmt: skip
        assert not any("Be " in str(message) for message in history)


async def test_its_test_model_calls_the_memory_tools() -> None:
    """All of them, with arguments of their schemas."""
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        memory = RemoraMemory(alice.session("chat"), tools=alice.tools())
        await Agent(TestModel(), capabilities=[memory]).run("hello")
        called = [one for message in await alice.session("chat").history() for one in message.tool_calls or ()]  # fmt: skip  # noqa: E501
        assert {one.function.name for one in called} == {"save_to_memory", "recall_from_memory"}
        names = [tool.name for tool in memory_tools(alice.tools(edit=True))]
        assert names == [
            "save_to_memory", "recall_from_memory", "correct_memory", "delete_from_memory",
        ]  # fmt: skip


async def test_an_agent_recalls_other_conversations() -> None:
    """Right before the new message, as a user's message, and not stored."""
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        await alice.session("march").append(
            {"role": "user", "content": "My flat is in Lisbon, near the river."}
        )
        june = alice.session("june")
        model, seen = answering("In Lisbon.")
        for recall in (True, False):
            agent = Agent(model, capabilities=[RemoraMemory(june, recall=recall)])
            await agent.run(["Where is my flat", "near the river?"])
        first, second = seen
        assert "My flat is in Lisbon" in texts(first)[0]
        assert isinstance(first[0].parts[0], UserPromptPart)
        assert not any("My flat is in Lisbon" in text for text in texts(second))
        assert len(await june.history()) == 4


async def test_the_model_sees_a_budget() -> None:
    """The summary stands for what left the buffer."""
    model, seen = answering("yes")
    async with Runtime.in_memory(
        config=PLAIN,
        policy=BufferPolicy.window(2, fold="summary"),
        chat_model=ScriptedChatModel(["They counted."] * 4),
    ) as runtime:
        chat = runtime.session("alice", "chat")
        agent = Agent(model, capabilities=[RemoraMemory(chat)])
        for number in range(4):
            await agent.run(f"question {number}")
            await chat.settle()
        shown = texts(seen[-1])
        assert "They counted." in shown[0]
        assert shown[1:] == ["question 2", "yes", "question 3"]


async def test_eight_runs_at_once_stay_whole() -> None:
    """Nothing is lost, and each question has its tools and its answer right behind it."""

    async def run(number: int) -> None:
        model, _ = answering(ModelResponse([ToolCallPart("look", {}, f"c{number}")]), f"answer {number}")  # fmt: skip  # noqa: E501
        agent = Agent(model, capabilities=[RemoraMemory(chat)])

        @agent.tool_plain
        async def look() -> str:
            await anyio.lowlevel.checkpoint()
            return f"result {number}"

        await agent.run(f"question {number}")

    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(run, number)
        history = await chat.history()
        assert len(history) == 32
        found = set()
        for place in range(0, 32, 4):
            question, calls, result, answer = history[place : place + 4]
            asked = str(question.content).removeprefix("question ")
            found.add(asked)
            assert calls.tool_calls is not None
            assert calls.tool_calls[0].id == f"c{asked}"
            assert (result.content, answer.content) == (f"result {asked}", f"answer {asked}")
        assert len(found) == 8


async def test_a_run_that_fails_stores_nothing() -> None:
    """The same question can be asked again."""
    model, seen = answering(ValueError("no"), "yes")
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        agent = Agent(model, capabilities=[RemoraMemory(chat)])
        with pytest.raises(ValueError, match="no"):
            await agent.run("now?")
        assert await chat.history() == []
        await agent.run("now?")
        assert [message.content for message in await chat.history()] == ["now?", "yes"]
        assert texts(seen[-1]) == ["now?"]


async def test_a_streamed_run_is_stored() -> None:
    """When the stream has ended."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        agent = Agent(TestModel(custom_output_text="a ship"), capabilities=[RemoraMemory(chat)])
        async with agent.run_stream("what?") as stream:
            assert await stream.get_output() == "a ship"
        assert [message.content for message in await chat.history()] == ["what?", "a ship"]


async def test_a_run_goes_on_after_its_tools_were_deferred() -> None:
    """The results follow their calls, in the prompt and in the session."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        model, seen = answering(
            ModelResponse([ToolCallPart("wipe", {}, "c1")]), "As you wish.", "No."
        )
        agent: Agent[None, Any] = Agent(
            model, output_type=[str, DeferredToolRequests], capabilities=[RemoraMemory(chat)]
        )

        @agent.tool_plain(requires_approval=True)
        def wipe() -> str:
            return "wiped"

        asked = await agent.run("Wipe it.")
        assert isinstance(asked.output, DeferredToolRequests)
        denied = DeferredToolResults(approvals={"c1": ToolDenied("no!")})
        done = await agent.run(message_history=asked.all_messages(), deferred_tool_results=denied)
        assert done.output == "As you wish."
        shown = seen[-1]
        assert [part.part_kind for message in shown for part in message.parts] == [
            "user-prompt", "tool-call", "tool-return",
        ]  # fmt: skip
        await agent.run("Did you?")
        assert [message.role for message in await chat.history()] == [
            "user", "assistant", "tool", "assistant", "user", "assistant",
        ]  # fmt: skip
        assert texts(seen[-1]) == ["Wipe it.", "no!", "As you wish.", "Did you?"]


async def test_one_agent_for_all_sessions() -> None:
    """A function chooses the session of a run."""
    model, _ = answering("hello")
    async with Runtime.in_memory(config=PLAIN) as runtime:
        find: Callable[[Any], Any] = lambda ctx: runtime.session(ctx.deps, "chat")  # noqa: E731
        agent = Agent(model, deps_type=str, capabilities=[RemoraMemory(find)])
        for name in ("alice", "bob"):
            await agent.run(f"I am {name}.", deps=name)
        said = [message.content for message in await runtime.session("bob", "chat").history()]
        assert said == ["I am bob.", "hello"]
        wrong = Agent(model, capabilities=[RemoraMemory(lambda _: None)])  # type: ignore[arg-type, return-value]
        with pytest.raises(InvalidInput, match="NoneType"):
            await wrong.run("x")
        with pytest.raises(InvalidInput, match="max_tokens"):
            RemoraMemory(find, max_tokens="all")  # type: ignore[arg-type]


@pytest.mark.usefixtures("own_loop")
def test_agents_without_async() -> None:
    """With a session of `remora.blocking`, ``agent.run_sync`` works, with tools."""
    model, seen = answering("hi", ModelResponse([ToolCallPart("recall_from_memory", {"keywords": ["x"]})]), "Ada.")  # fmt: skip  # noqa: E501
    with blocking.Runtime.in_memory(config=PLAIN) as runtime, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        user = runtime.user("ada")
        memory = RemoraMemory(user.session("chat"), tools=user.tools())
        agent = Agent(model, capabilities=[memory])
        agent.run_sync("I am Ada.")
        assert agent.run_sync("Who am I?").output == "Ada."
        assert texts(seen[1]) == ["I am Ada.", "hi", "Who am I?"]
        assert user.session("chat").size() == 6
