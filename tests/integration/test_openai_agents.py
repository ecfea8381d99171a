"""The OpenAI Agents SDK over remora: recall, tools, settings, and many runs at once; offline."""

from __future__ import annotations

import warnings
from typing import Any

import anyio
import pytest
from agents import Agent, RunConfig, Runner, SessionSettings, set_trace_processors
from agents.testing import ScriptedModel, assistant_message, function_call

from remora import Runtime, blocking
from remora.adapters.openai_agents import RemoraSession, memory_tools
from remora.adapters.versions import UntestedVersion, warn_if_untested
from remora.testing import HashEmbedder
from tests.agents import PLAIN, RECALLING

pytestmark = pytest.mark.anyio
QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture(scope="module", autouse=True)
def no_tracing() -> None:
    set_trace_processors([])


def said(text: str) -> Any:
    return {"role": "user", "content": text}


def seen_by(model: ScriptedModel) -> list[Any]:
    assert model.last_call is not None
    return list(model.last_call.input)


async def test_a_run_sees_what_is_recalled() -> None:
    """It comes before the user's new message, and the session does not keep it."""
    model = ScriptedModel([[assistant_message("In Lisbon.")]])
    agent = Agent(name="assistant", model=model)
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        await alice.session("march").append(said("My flat is in Lisbon, near the river."))
        june = alice.session("june")
        session = RemoraSession(june)
        await session.add_items([said("Hello!")])
        await Runner.run(
            agent,
            "Where is my flat near the river?",
            session=session,
            run_config=RunConfig(tracing_disabled=True, session_input_callback=session.recall),
        )
        hello, recalled, question = seen_by(model)
        assert hello["content"] == "Hello!"
        assert "My flat is in Lisbon" in recalled["content"]
        assert question["content"] == "Where is my flat near the river?"
        kept = [message.content for message in await june.history()]
        assert kept == ["Hello!", "Where is my flat near the river?", "In Lisbon."]


async def test_nothing_is_recalled_where_there_is_nothing_to_ask() -> None:
    """Without long-term memory, and without a message of the user's."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        session = RemoraSession(runtime.session("alice", "chat"))
        output: Any = {"type": "function_call_output", "call_id": "c", "output": "sunny"}
        for new in ([said("hello")], [output], [said("")]):
            assert await session.recall([said("before")], new) == [said("before"), *new]


async def test_an_agent_uses_its_memory_by_tools() -> None:
    """It saves in one session, and finds it in another; a tool that fails says why."""
    save = '{"thinking": "a fact", "content": ["Alice is allergic to nuts."]}'
    model = ScriptedModel(
        [
            [function_call("save_to_memory", {}, call_id="c0")],
            [function_call("save_to_memory", save, call_id="c1")],
            [assistant_message("Noted.")],
            [function_call("recall_from_memory", {"keywords": ["allergic"]}, call_id="c2")],
            [assistant_message("To nuts.")],
        ]
    )
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        tools = memory_tools(alice.tools())
        assert [tool.name for tool in tools] == ["save_to_memory", "recall_from_memory"]
        agent = Agent(name="assistant", model=model, tools=[*tools])
        for name in ("march", "june"):
            session = RemoraSession(alice.session(name))
            await Runner.run(agent, f"This is {name}.", session=session, run_config=QUIET)
        outputs = [one["output"] for one in seen_by(model) if "output" in one]
        assert len(outputs) == 1
        assert "allergic to nuts" in outputs[0]
        march: Any = await RemoraSession(alice.session("march")).get_items()
        assert '"success": false' in next(one["output"] for one in march if "output" in one)


# the SDK's own call, in `Runner.run_sync` of 0.24.0, is deprecated in Python 3.14
@pytest.mark.filterwarnings("ignore:'asyncio.get_event_loop_policy' is:DeprecationWarning")
@pytest.mark.usefixtures("own_loop")
def test_a_run_without_async() -> None:
    """``Runner.run_sync`` has an event loop of its own; a session of `remora.blocking` works there,
    with its tools.
    """
    model = ScriptedModel(
        [
            [function_call("recall_from_memory", {"keywords": ["hello"]}, call_id="c")],
            [assistant_message("Charlie.")],
        ]
    )
    config = RunConfig(tracing_disabled=True)
    with blocking.Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        user = runtime.user("charlie")
        session = RemoraSession(user.session("chat"))
        config.session_input_callback = session.recall
        agent = Agent(name="assistant", model=model, tools=[*memory_tools(user.tools())])
        result = Runner.run_sync(agent, "Who am I?", session=session, run_config=config)
        assert result.final_output == "Charlie."
        roles = [message.role for message in user.session("chat").history()]
        assert roles == ["user", "assistant", "tool", "assistant"]


async def test_settings_of_the_sdk() -> None:
    """A limit holds without a runner, a given one goes before it, and a dict is as good."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        session = RemoraSession(chat, session_settings={"limit": 2})
        await session.add_items([said(f"m{number}") for number in range(5)])
        assert await session.get_items() == [said("m3"), said("m4")]
        assert await session.get_items(4) == [said(f"m{number}") for number in range(1, 5)]
        assert session.session_settings == SessionSettings(limit=2)
        with pytest.raises(TypeError, match="limitt"):
            RemoraSession(chat, session_settings={"limitt": 2})


async def test_eight_runs_of_one_session_take_turns() -> None:
    """Nothing is lost, and each question has its answer behind it."""

    async def run(number: int) -> None:
        # a model of its own, which answers late: the runs would mix without the block
        model = ScriptedModel(
            [
                [function_call("recall_from_memory", {"keywords": ["x"]}, call_id=f"c{number}")],
                [assistant_message(f"answer {number}")],
            ]
        )
        agent = Agent(name="assistant", model=model, tools=[*memory_tools(alice.tools())])
        chat = alice.session("chat")
        session = RemoraSession(chat)
        async with chat.exclusive():
            await Runner.run(agent, f"question {number}", session=session, run_config=QUIET)

    async with Runtime.in_memory(config=PLAIN) as runtime:
        alice = runtime.user("alice")
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(run, number)
        history = await alice.session("chat").history()
        turns = [history[start : start + 4] for start in range(0, len(history), 4)]
        assert len(turns) == 8
        for turn in turns:
            assert [message.role for message in turn] == ["user", "assistant", "tool", "assistant"]
            which = str(turn[0].content).removeprefix("question ")
            assert turn[3].content == f"answer {which}"


async def test_parallel_calls_are_taken_back_by_several_at_once() -> None:
    """Each item once, whoever takes it."""
    items: list[Any] = [
        {"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": "{}"}
        for number in range(4)
    ]
    async with Runtime.in_memory(config=PLAIN) as runtime:
        session = RemoraSession(runtime.session("alice", "chat"))
        await session.add_items([said("look"), *items])
        taken: list[Any] = []

        async def take() -> None:
            taken.append(await session.pop_item())

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(take)
        assert sorted(str(item) for item in taken) == sorted(map(str, [said("look"), *items]))
        assert await session.get_items() == []


def test_an_untested_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning, of a category of its own, with both versions."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested("openai-agents")
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "7.1.0")
    with pytest.warns(UntestedVersion, match=r"openai-agents 7\.1\.0 .* tested with"):
        warn_if_untested("openai-agents")
