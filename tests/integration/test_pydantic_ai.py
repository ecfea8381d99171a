"""Agents of Pydantic AI over remora: a capability, messages and tools; with scripted models."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai import messages as parts
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDenied

from remora import Runtime
from remora.adapters.pydantic_ai import RemoraMemory, chat_messages, memory_tools, model_messages
from remora.errors import InvalidInput
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
    MemoryTools,
    Recalling,
    Redacted,
    look_at,
    parts_of,
)

pytestmark = pytest.mark.anyio
AT: Any = {"timestamp": datetime(2026, 11, 23, 9, 0, tzinfo=UTC)}
IMAGE = parts.BinaryContent.from_data_uri(URL)
SPEECH = parts.BinaryContent(b"RIFF", media_type="audio/wav")
PARTS_OF_REQUESTS: list[list[Any]] = [
    [parts.SystemPromptPart("Be kind.", **AT), parts.UserPromptPart("hello", **AT)],
    [parts.UserPromptPart("", **AT)],
    [parts.UserPromptPart(["look", "again"], **AT), parts.UserPromptPart([], **AT)],
    [
        parts.UserPromptPart(
            [
                "look",
                parts.TextContent("here", metadata={"of": 1}),
                parts.ImageUrl("https://example.org/a.png"),
                IMAGE,
                SPEECH,
                parts.AudioUrl("https://example.org/a.mp3"),
                parts.VideoUrl("https://example.org/a.mp4"),
                parts.DocumentUrl("https://example.org/a.pdf"),
                parts.CachePoint(),
            ],
            **AT,
        )
    ],
    [
        parts.ToolReturnPart("look", {"a": [1, None]}, "c1", metadata={"x": 1}, **AT),
        parts.ToolReturnPart("look", "text", "c2", outcome="failed", **AT),
        parts.ToolReturnPart("look", None, "c3", **AT),
        parts.UserPromptPart("and now?", **AT),
    ],
    [parts.RetryFeedbackPart("again", retry=parts.RetryInfo("no_output"), **AT)],
    [parts.SpeechPart(speaker="user", transcript="hi", audio=SPEECH)],
    [parts.InstructionDeltaPart(id=None, content="be brief"), parts.UserPromptPart("x", **AT)],
    [
        parts.InstructionBaselinePart(instructions=[]),
        parts.ToolAvailabilityDeltaPart(tools_added=[]),
        parts.CapabilityLoadDeltaPart(loaded=["a"]),
    ],
    [parts.UserPromptPart("x", **AT), parts.ModelSettingsDeltaPart(settings={"thinking": "low"})],
    [parts.CompactionPart("what was said")],
]
PARTS_OF_RESPONSES: list[list[Any]] = [
    [parts.TextPart("yes")],
    [parts.TextPart("")],
    [],
    [parts.ThinkingPart("so", signature="s", provider_name="p"), parts.TextPart("so")],
    [parts.TextPart("one"), parts.TextPart("two", id="2", provider_name="p")],
    [
        parts.TextPart("I look."),
        parts.ToolCallPart("look", {"at": "sea"}, "c1"),
        parts.ToolCallPart("look", "{}", "c2"),
    ],
    [parts.ToolCallPart("look", None, "c3")],
    [
        parts.NativeToolCallPart("search", {"q": 1}, "n1"),
        parts.NativeToolReturnPart("search", [1], "n1", **AT),
    ],
    [parts.FilePart(IMAGE)],
    [parts.SpeechPart(speaker="assistant", transcript="well")],
    [parts.CompactionPart(None, id="c", provider_name="p")],
]


class PydanticAI(Driver):
    prompt = ["Be kind."]  # noqa: RUF012

    def model(self, *answers: Any) -> Any:
        seen: list[list[parts.ModelMessage]] = []

        def answer(messages: list[parts.ModelMessage], _info: Any) -> parts.ModelResponse:
            seen.append(messages)
            said = answers[len(seen) - 1]
            if isinstance(said, Exception):
                raise said
            return parts.ModelResponse(
                [
                    parts.TextPart(one)
                    if isinstance(one, str)
                    else parts.ToolCallPart(one.name, one.arguments, one.id)
                    for one in parts_of(said)
                ]
            )

        model: Any = FunctionModel(answer)
        model.seen = seen
        return model

    def shown(self, model: Any) -> list[list[str]]:
        contents = [
            [getattr(part, "content", None) for message in messages for part in message.parts]
            for messages in model.seen
        ]
        return [[one for one in found if isinstance(one, str)] for found in contents]

    def agent(self, model: Any, given: Given, **options: Any) -> Any:
        memory = RemoraMemory(given.session, recall=given.recall, tools=given.tools)
        agent = Agent(
            model,
            system_prompt="Be kind.",
            instructions="Be kind. Be brief.",
            capabilities=[memory],
            **options,
        )

        @agent.tool_plain
        async def look(at: str) -> str:
            return await look_at(at)

        return agent

    async def ask(self, agent: Any, said: Any) -> None:
        await agent.run(said)

    def ask_blocking(self, agent: Any, said: str) -> None:
        agent.run_sync(said)


class TestAgents(PydanticAI, Conversations, Connected, Recalling, MemoryTools, Blocking):
    def memory_tools(self, tools: Any) -> Any:
        return memory_tools(tools)

    async def test_each_request_has_the_instructions(self) -> None:
        """Those of this agent, once; a question in parts is asked."""
        async with Runtime.in_memory(config=PLAIN) as runtime:
            model = self.model("one", "two")
            await self.run(runtime, model, "first")
            agent = self.agent(model, self.give(runtime, recall=True))
            await self.ask(agent, ["and", "second"])
            for messages in model.seen:
                assert messages[-1].instructions == "Be kind. Be brief."
            assert model.seen[-1][-1].parts[0].content == ["and", "second"]

    async def test_a_streamed_run_is_stored(self) -> None:
        """When the stream has ended."""
        async with Runtime.in_memory(config=PLAIN) as runtime:
            model = TestModel(custom_output_text="a ship", call_tools=[])
            agent = self.agent(model, self.give(runtime))
            async with agent.run_stream("what?") as stream:
                assert await stream.get_output() == "a ship"
            stored = await self.session(runtime).history()
            assert [one.content for one in stored] == ["what?", "a ship"]

    async def test_a_test_model_calls_the_memory_tools(self) -> None:
        """With arguments of their schemas."""
        async with Runtime.in_memory(config=PLAIN) as runtime:
            await self.run(runtime, TestModel(), "hello", tools=True)
            stored = await self.session(runtime).history()
            called = {call.function.name for one in stored for call in one.tool_calls or ()}
            assert called == {"look", "save_to_memory", "recall_from_memory"}

    async def test_a_run_goes_on_after_its_tools_were_deferred(self) -> None:
        """The results follow their calls, in the prompt and in the session."""
        async with Runtime.in_memory(config=PLAIN) as runtime:
            model = self.model([Call("c1", {}, "wipe")], "As you wish.", "No.")
            either = [str, DeferredToolRequests]
            agent = self.agent(model, self.give(runtime), output_type=either)

            @agent.tool_plain(requires_approval=True)
            def wipe() -> str:
                return "wiped"

            asked = await agent.run("Wipe it.")
            assert isinstance(asked.output, DeferredToolRequests)
            denied = DeferredToolResults(approvals={"c1": ToolDenied("no!")})
            before = asked.all_messages()
            done = await agent.run(message_history=before, deferred_tool_results=denied)
            assert done.output == "As you wish."
            assert [part.part_kind for message in model.seen[-1] for part in message.parts] == [
                *("system-prompt", "user-prompt", "tool-call", "tool-return"),
            ]
            await agent.run("Did you?")
            stored = await self.session(runtime).history()
            assert [one.role for one in stored] == [
                *("user", "assistant", "tool", "assistant", "user", "assistant"),
            ]
            said = ["Be kind.", "Wipe it.", "no!", "As you wish.", "Did you?"]
            assert self.shown(model)[-1] == said

    async def test_what_ended_beside_a_deferred_call_is_told(self) -> None:
        """The model sees the results of both, as without remora."""
        seen: list[Any] = []
        calls = [parts.ToolCallPart("pay", {}, "1"), parts.ToolCallPart("look", {}, "2")]
        steps: Any = iter([calls, [parts.TextPart("done")]])

        def answer(messages: Any, _: Any) -> parts.ModelResponse:
            seen.append(messages)
            return parts.ModelResponse(parts=next(steps))

        async with Runtime.in_memory(config=PLAIN) as runtime:
            memory = RemoraMemory(runtime.session("alice", "chat"))
            agent: Any = Agent(
                FunctionModel(answer),
                capabilities=[memory],
                output_type=[str, DeferredToolRequests],
            )

            @agent.tool_plain(requires_approval=True)
            def pay() -> str:
                return "paid"

            @agent.tool_plain
            def look() -> str:
                return "balance is 42"

            first = await agent.run("go")
            await agent.run(
                message_history=first.all_messages(),
                deferred_tool_results=DeferredToolResults(approvals={"1": True}),
            )
            told = {
                part.tool_call_id: part.content
                for message in seen[-1]
                for part in message.parts
                if isinstance(part, parts.ToolReturnPart)
            }
            assert told == {"1": "paid", "2": "balance is 42"}

    async def test_one_agent_for_all_sessions(self) -> None:
        """A function chooses the session of a run."""
        async with Runtime.in_memory(config=PLAIN) as runtime:
            memory = RemoraMemory(lambda ctx: runtime.session(ctx.deps, "chat"))
            model = self.model("hello", "hello")
            agent = Agent(model, deps_type=str, capabilities=[memory])
            for name in ("alice", "bob"):
                await agent.run(f"I am {name}.", deps=name)
            stored = await runtime.session("bob", "chat").history()
            assert [one.content for one in stored] == ["I am bob.", "hello"]
            wrong = Agent(model, capabilities=[RemoraMemory(lambda _: None)])  # type: ignore[arg-type, return-value]
            with pytest.raises(InvalidInput, match="NoneType"):
                await wrong.run("x")
            with pytest.raises(InvalidInput, match="max_tokens"):
                RemoraMemory(self.session(runtime), max_tokens="all")  # type: ignore[arg-type]


@pytest.mark.blocking  # the service
class TestAgentsOfAService(PydanticAI, Conversations, Recalling):
    served = True


class TestMessages(Redacted):
    def to_chat(self, messages: Iterable[Any]) -> list[Any]:
        return list(chat_messages(messages))

    def of_chat(self, stored: Iterable[Any]) -> list[Any]:
        return list(model_messages(stored))

    def every(self) -> list[Any]:
        requests = [parts.ModelRequest(one, run_id="r", **AT) for one in PARTS_OF_REQUESTS]
        known: Any = {"model_name": "m", "finish_reason": "stop", **AT}
        responses = [parts.ModelResponse(one, **known) for one in PARTS_OF_RESPONSES]
        # as Pydantic AI itself brings them back: a field or a class more, of what was left out
        adapter = parts.ModelMessagesTypeAdapter
        return list(adapter.validate_json(adapter.dump_json([*requests, *responses])))

    def heavy(self) -> list[Any]:
        thought = parts.ThinkingPart(THOUGHT, signature="s")
        return [parts.ModelResponse([thought, parts.TextPart("ok")])]

    def ordinary(self) -> list[Any]:
        called = [
            parts.ToolCallPart("look", {"at": at}, id_)
            for id_, at in (("c1", "sea"), ("c2", "bay"))
        ]
        found = [
            parts.ToolReturnPart("look", said, id_)
            for id_, said in (("c1", "a ship"), ("c2", "a gull"))
        ]
        prompts: list[Any] = [
            parts.SystemPromptPart("Be kind."),
            parts.UserPromptPart(["What is there?", IMAGE]),
        ]
        answer = parts.ModelResponse([parts.TextPart("A ship and a gull.")])
        return [
            parts.ModelRequest(prompts),
            parts.ModelResponse(called),
            parts.ModelRequest(found),
            answer,
        ]

    def unwritable(self) -> list[Any]:
        return [parts.ModelRequest([parts.ToolReturnPart("f", object(), "c")])]

    def secrets(self) -> list[Any]:
        answer: list[Any] = [parts.ThinkingPart("4711?"), parts.TextPart("4711")]
        asked = parts.ModelRequest([parts.UserPromptPart(["pin", "4711"])])
        return [asked, parts.ModelResponse(answer)]

    def test_no_kind_of_part_is_forgotten(self) -> None:
        """A release with a new one is noticed here."""
        tried = {type(part) for given in PARTS_OF_REQUESTS + PARTS_OF_RESPONSES for part in given}
        tried.add(parts.RetryPromptPart)  # which is deprecated
        for union in (parts.ModelRequestPart, parts.ModelResponsePart):
            for member in get_args(get_args(union)[0]):
                kind = get_args(member)[0] if get_args(member) else member
                assert any(issubclass(kind, one) for one in tried), kind
