"""Adapters over a session of `remora.Client`, by real HTTP: as over one of a `Runtime`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from agents import Agent, RunConfig, Runner, function_tool, set_trace_processors
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

import remora
from remora.adapters.given import Conversation, find_session
from remora.adapters.langchain import RemoraChatMessageHistory
from remora.adapters.langchain_agents import RemoraMiddleware
from remora.adapters.openai_agents import RemoraSession
from remora.adapters.pydantic_ai import RemoraMemory
from remora.client.session import ClientSession
from remora.errors import InvalidInput, InvalidMessage, OwnerUnreachable
from remora.testing import HashEmbedder
from tests.agents import RECALLING
from tests.integration.test_client import connected
from tests.integration.test_langchain_agents import Scripted

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
QUIET = RunConfig(tracing_disabled=True)
FLAT = {"role": "user", "content": "My flat is in Lisbon, near the river."}
WHERE = "Where is my flat near the river?"

Memory = Any
"""A `Runtime` or a `Client`: they have the same handles."""


@pytest.fixture(scope="module", autouse=True)
def no_tracing() -> None:
    set_trace_processors([])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["embedded", "served"])
async def memory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Memory]:
    async with remora.Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        if request.param == "embedded":
            yield runtime
            return
        async with connected(runtime, tmp_path) as client:
            yield client


async def contents_of(session: Any) -> list[Any]:
    return [message.content for message in await session.history()]


# -- OpenAI Agents ---------------------------------------------------------------------------------


async def test_agents_keep_their_conversation(memory: Memory) -> None:
    """Parallel calls of tools, a second run that sees the first, limits, taking back, clearing."""

    @function_tool
    def weather(city: str) -> str:
        """The weather."""
        return f"sunny in {city}"

    calls = [function_call("weather", {"city": one}, call_id=one) for one in ("Oslo", "Rome")]
    model = ScriptedModel([calls, [assistant_message("Sunny.")], [assistant_message("Ann.")]])
    agent = Agent(name="assistant", model=model, tools=[weather])
    session = RemoraSession(memory.session("ann", "chat"))
    assert session.session_id == "ann/chat"
    await Runner.run(agent, "I am Ann. The weather?", session=session, run_config=QUIET)
    result = await Runner.run(agent, "Who am I?", session=session, run_config=QUIET)
    assert result.final_output == "Ann."
    assert model.last_call is not None
    seen = list(model.last_call.input)
    items: list[Any] = list(await session.get_items())
    assert items[: len(seen)] == seen
    assert [one.get("type", one.get("role")) for one in items] == [
        "user",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
        "user",
        "message",
    ]
    assert await session.get_items(3) == items[-3:]
    assert await session.get_items(0) == []
    assert [await session.pop_item() for _ in range(2)] == [items[-1], items[-2]]
    assert await session.get_items() == items[:-2]
    await session.clear_session()
    assert (await session.get_items(), await session.pop_item()) == ([], None)


async def test_agents_recall_other_conversations(memory: Memory) -> None:
    """What is recalled is shown to the model, and not kept."""
    model = ScriptedModel([[assistant_message("In Lisbon.")]])
    await memory.session("ann", "march").append(FLAT)
    chat = memory.session("ann", "june")
    session = RemoraSession(chat)
    config = RunConfig(tracing_disabled=True, session_input_callback=session.recall)
    agent = Agent(name="assistant", model=model)
    await Runner.run(agent, WHERE, session=session, run_config=config)
    assert model.last_call is not None
    recalled, question = list(model.last_call.input)
    assert "My flat is in Lisbon" in str(recalled)
    assert question == {"role": "user", "content": WHERE}
    assert await contents_of(chat) == [WHERE, "In Lisbon."]


async def test_items_without_a_role_and_bad_ones(memory: Memory) -> None:
    """The same items come back, and the same exceptions; nothing of a bad batch stays."""
    session = RemoraSession(memory.session("ann", "chat"), opaque=True)
    items: list[Any] = [
        {"__enc__": 1, "payload": "x"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "web_search_call", "id": "w", "status": "completed"},
    ]
    await session.add_items(items)
    assert await session.get_items() == items
    bad: list[Any] = [{"role": "user", "content": "fine"}, {"role": "king", "content": "no"}]
    with pytest.raises(InvalidMessage) as caught:
        await session.add_items(bad)
    assert caught.value.index == 1
    with pytest.raises(InvalidInput, match="negative"):
        await session.get_items(-1)
    assert await session.get_items() == items


async def test_parallel_calls_are_taken_back_once(memory: Memory) -> None:
    """By four at a time, though each has to store what is left of them."""
    items: list[Any] = [
        {"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": "{}"}
        for number in range(4)
    ]
    session = RemoraSession(memory.session("ann", "chat"))
    await session.add_items(items)
    taken: list[Any] = []

    async def take() -> None:
        taken.append(await session.pop_item())

    async with anyio.create_task_group() as tasks:
        for _ in items:
            tasks.start_soon(take)
    assert sorted(one["call_id"] for one in taken) == ["c0", "c1", "c2", "c3"]
    assert await session.get_items() == []


# -- LangChain -------------------------------------------------------------------------------------


async def test_langchain_history(memory: Memory) -> None:
    """What a chat message cannot hold comes back, too."""
    history = RemoraChatMessageHistory(memory.session("ann", "chat"))
    given = [HumanMessage("I am Ann.", name="ann"), AIMessage("Hello.", response_metadata={"x": 1})]
    await history.aadd_messages(given)
    assert await history.aget_messages() == given
    await history.aclear()
    assert await history.aget_messages() == []


async def test_a_langchain_agent(memory: Memory) -> None:
    """It recalls, and the next run sees the last one."""
    await memory.session("ann", "march").append(FLAT)
    chat = memory.session("ann", "june")
    model = Scripted(answers=["In Lisbon.", "You asked that."])
    agent = create_agent(model, middleware=[RemoraMiddleware(chat)])
    await agent.ainvoke({"messages": [HumanMessage(WHERE)]})
    await agent.ainvoke({"messages": [HumanMessage("What did I ask?")]})
    first, second = ([str(one.content) for one in shown] for shown in model.seen)
    assert "My flat is in Lisbon" in first[0]
    assert first[1:] == [WHERE]
    kept = [text for text in second if "My flat is in Lisbon" not in text]
    assert kept == [WHERE, "In Lisbon.", "What did I ask?"]
    assert await contents_of(chat) == [WHERE, "In Lisbon.", "What did I ask?", "You asked that."]


# -- Pydantic AI -----------------------------------------------------------------------------------


def answering(text: str, seen: list[list[ModelMessage]]) -> FunctionModel:
    async def answer(messages: list[ModelMessage], _: Any) -> ModelResponse:
        seen.append(messages)
        await anyio.lowlevel.checkpoint()
        return ModelResponse([TextPart(text)])

    return FunctionModel(answer)


async def test_a_pydantic_agent(memory: Memory) -> None:
    """It recalls, and the next run sees the last one, as it was."""
    await memory.session("ann", "march").append(FLAT)
    chat = memory.session("ann", "june")
    seen: list[list[ModelMessage]] = []
    agent = PydanticAgent(answering("In Lisbon.", seen), capabilities=[RemoraMemory(chat)])
    first = await agent.run(WHERE)
    await agent.run("And now?")
    assert "My flat is in Lisbon" in str(seen[0][0])
    assert first.new_messages()[-1] in seen[1]
    assert await contents_of(chat) == [WHERE, "In Lisbon.", "And now?", "In Lisbon."]


# -- several at once, and what is refused ----------------------------------------------------------


async def run_agents(chat: Any, number: int) -> None:
    model = ScriptedModel([[assistant_message(f"answer {number}")]])
    agent = Agent(name="assistant", model=model)
    session = RemoraSession(chat)
    await Runner.run(agent, f"question {number}", session=session, run_config=QUIET)


async def run_langchain(chat: Any, number: int) -> None:
    model = Scripted(answers=[f"answer {number}"])
    agent = create_agent(model, middleware=[RemoraMiddleware(chat)])
    await agent.ainvoke({"messages": [HumanMessage(f"question {number}")]})


async def run_pydantic(chat: Any, number: int) -> None:
    model = answering(f"answer {number}", [])
    await PydanticAgent(model, capabilities=[RemoraMemory(chat)]).run(f"question {number}")


@pytest.mark.parametrize(
    ("run", "whole"),
    [(run_agents, False), (run_langchain, True), (run_pydantic, True)],
    ids=["openai-agents", "langchain", "pydantic-ai"],
)
async def test_eight_runs_of_one_session_at_once(
    memory: Memory, run: Callable[[Any, int], Any], whole: bool
) -> None:
    """Nothing is lost or doubled, and each answer is behind its question; right behind it, where
    the framework gives a run's messages at once.
    """
    chat = memory.session("ann", "chat")
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(run, chat, number)
    said = await contents_of(chat)
    assert sorted(said) == sorted(
        f"{kind} {n}" for n in range(8) for kind in ("question", "answer")
    )
    for number in range(8):
        question, answer = said.index(f"question {number}"), said.index(f"answer {number}")
        assert answer == question + 1 if whole else answer > question


async def test_a_service_that_is_gone(tmp_path: Path) -> None:
    """An adapter raises what the verb raises."""
    async with remora.Client("http://127.0.0.1:1", api_key="remora_key", timeout_s=0.1) as client:
        session = RemoraSession(client.session("ann", "chat"))
        with pytest.raises(OwnerUnreachable):
            await session.get_items()
        with pytest.raises(OwnerUnreachable):
            await session.add_items([{"role": "user", "content": "Hello"}])


async def test_threads_need_a_session_of_blocking(tmp_path: Path) -> None:
    """What cannot wait for an event loop says so, and nothing is written."""
    async with (
        remora.Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime,
        connected(runtime, tmp_path) as client,
    ):
        chat = client.session("ann", "chat")
        history = RemoraChatMessageHistory(chat)
        for use in (
            lambda: history.messages,
            lambda: history.add_messages([HumanMessage("x")]),
            history.clear,
        ):
            with pytest.raises(InvalidInput, match=r"remora\.blocking"):
                use()
        agent = create_agent(Scripted(answers=["x"]), middleware=[RemoraMiddleware(chat)])
        with pytest.raises(InvalidInput, match=r"remora\.blocking"):
            agent.invoke({"messages": [HumanMessage("x")]})
        assert await chat.history() == []


@pytest.mark.parametrize("given", [None, 3, "ann", {}, ClientSession], ids=str)
@pytest.mark.parametrize("make", [RemoraSession, RemoraChatMessageHistory])
def test_what_is_no_session(make: Callable[[Any], object], given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"not a session of a Runtime"):
        make(given)
    with pytest.raises(InvalidInput, match=r"not a session of a Runtime"):
        find_session(lambda _: given, None)


def test_sessions_have_what_adapters_use() -> None:
    """For type checkers; `test_client` compares the signatures."""
    kinds: list[type[Conversation]] = [remora.Session, ClientSession]
    assert len(kinds) == 2
