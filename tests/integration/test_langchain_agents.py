"""LangChain over remora: agents, by a middleware and tools, and histories; offline."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from remora import BufferPolicy, Runtime, blocking
from remora.errors import InvalidInput, InvalidMessage, WrongLoop
from remora.testing import HashEmbedder, ScriptedChatModel
from tests.configs import PLAIN, RECALLING
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
    Messages,
    Recalling,
    late,
    look_at,
    parts_of,
)

pytestmark = pytest.mark.anyio
agents, messages = late("langchain.agents"), late("langchain_core.messages")
models, outputs = late("langchain_core.language_models"), late("langchain_core.outputs")
adapter, histories = late("remora.adapters.langchain_agents"), late("remora.adapters.langchain")
checkpoints = late("remora.adapters.langgraph_checkpoints")


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """LangChain, before an event loop would wait for it."""
    scripted()
    assert agents.create_agent
    assert adapter.RemoraMiddleware
    assert checkpoints.RemoraSaver


@cache
def scripted() -> Any:
    """The class of a model that answers in turn, and notes what it is shown."""

    class Scripted(models.BaseChatModel):  # type: ignore[misc, name-defined]
        answers: list[Any]
        seen: list[list[Any]] = []  # noqa: RUF012 - pydantic copies it

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

        def _generate(self, given: Any, *_: Any, **__: Any) -> Any:
            self.seen.append(given)
            answer = self.answers[len(self.seen) - 1]
            if isinstance(answer, Exception):
                raise answer
            said = [part for part in parts_of(answer) if isinstance(part, str)]
            calls = [
                {"name": part.name, "args": part.arguments, "id": part.id}
                for part in parts_of(answer)
                if not isinstance(part, str)
            ]
            message = messages.AIMessage("".join(said), tool_calls=calls)
            return outputs.ChatResult(generations=[outputs.ChatGeneration(message=message)])

    return Scripted


def look(at: str) -> str:
    """Look."""
    return f"a ship at the {at}"


def looking() -> Any:
    """The tool, for both kinds of runs."""
    return late("langchain_core.tools").StructuredTool.from_function(look, look_at, name="look")


def ask(text: str) -> Any:
    return {"messages": [messages.HumanMessage(text)]}


def texts(found: Iterable[Any]) -> list[str]:
    return [str(one.content) for one in found]


class LangChain(Driver):
    prompt = ["Be kind."]  # noqa: RUF012

    def model(self, *answers: Any) -> Any:
        return scripted()(answers=answers)

    def shown(self, model: Any) -> list[list[str]]:
        return [list(filter(None, texts(given))) for given in model.seen]

    def agent(self, model: Any, given: Given) -> Any:
        middleware = adapter.RemoraMiddleware(given.session, recall=given.recall, tools=given.tools)
        return agents.create_agent(
            model, tools=[looking()], system_prompt="Be kind.", middleware=[middleware]
        )

    async def ask(self, agent: Any, said: str) -> None:
        await agent.ainvoke(ask(said))

    def ask_blocking(self, agent: Any, said: str) -> None:
        agent.invoke(ask(said))


class TestAgents(LangChain, Conversations, Connected, Recalling, MemoryTools, Blocking):
    def memory_tools(self, tools: Any) -> Any:
        return adapter.memory_tools(tools)


@pytest.mark.blocking  # the service
class TestAgentsOfAService(LangChain, Conversations, Recalling):
    served = True


class TestMessages(Messages):
    """S1.20, S3.03, S4.28: as a history keeps them."""

    def to_chat(self, messages: Iterable[Any]) -> list[Any]:
        return [histories.chat_of_message(one, at) for at, one in enumerate(messages)]

    def of_chat(self, stored: Iterable[Any]) -> list[Any]:
        return list(map(histories.message_of_stored, stored))

    def every(self) -> list[Any]:
        call = {"name": "look", "args": {"at": "sea"}, "id": "c1"}
        return [
            messages.HumanMessage("hello", name="Ana"),
            messages.HumanMessage([{"type": "text", "text": "look"}, {"type": "thing", "x": 1}]),
            messages.AIMessage("I look.", tool_calls=[call]),
            messages.AIMessage("A ship.", id="run-1", response_metadata={"model": "scripted"}),
            *self.ordinary(),
        ]

    def heavy(self) -> list[Any]:
        thought = {"type": "thinking", "thinking": THOUGHT, "signature": "s"}
        return [messages.AIMessage([thought, {"type": "text", "text": "ok"}])]

    def ordinary(self) -> list[Any]:
        parts = [
            {"type": "text", "text": "What is there?"},
            {"type": "image_url", "image_url": {"url": URL}},
        ]
        calls = [
            {"name": "look", "args": {"at": at}, "id": id_}
            for id_, at in (("c1", "sea"), ("c2", "bay"))
        ]
        return [
            messages.SystemMessage("Be kind."),
            messages.HumanMessage(parts),
            messages.AIMessage("", tool_calls=calls),
            messages.ToolMessage("a ship", tool_call_id="c1"),
            messages.ToolMessage("a gull", tool_call_id="c2"),
            messages.AIMessage("A ship and a gull."),
        ]

    def unwritable(self) -> list[Any]:
        return [messages.ChatMessage(content="x", role="nobody")]


# -- agents ----------------------------------------------------------------------------------------


async def test_with_a_checkpointer_each_message_is_stored_once() -> None:
    """Its state has the earlier messages as well; nothing is shown or stored twice."""
    model = scripted()(answers=["one", "two", "three"])
    async with Runtime.in_memory(config=PLAIN) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("chat")
        middleware = [adapter.RemoraMiddleware(chat)]
        saver = checkpoints.RemoraSaver(alice)
        agent = agents.create_agent(model, middleware=middleware, checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "chat"}}
        for number in range(3):
            await agent.ainvoke(ask(f"question {number}"), config)
        assert texts(model.seen[-1]) == ["question 0", "one", "question 1", "two", "question 2"]
        assert len(await chat.history()) == 6


async def test_a_message_removed_from_the_state_doubles_nothing() -> None:
    """LangChain's way to shorten, or to ask again; nor is its own summary the user's word."""
    model = scripted()(answers=["one", "two", "three"])
    async with Runtime.in_memory(config=PLAIN) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("chat")
        agent = agents.create_agent(
            model,
            middleware=[adapter.RemoraMiddleware(chat)],
            checkpointer=checkpoints.RemoraSaver(alice),
        )
        config: Any = {"configurable": {"thread_id": "chat"}}
        for number in range(2):
            await agent.ainvoke(ask(f"question {number}"), config)
        state = await agent.aget_state(config)
        removed = messages.RemoveMessage(state.values["messages"][-1].id)
        summary = messages.HumanMessage(
            "A summary.", additional_kwargs={"lc_source": "summarization"}
        )
        await agent.aupdate_state(config, {"messages": [removed, summary]})
        await agent.ainvoke(ask("question 2"), config)
        assert texts(model.seen[-1]) == ["question 0", "one", "question 1", "two", "question 2"]
        assert texts(await chat.history())[4:] == ["question 2", "three"]


async def test_a_branch_that_a_run_leaves_is_neither_shown_nor_recalled() -> None:
    """An edited question, from an earlier checkpoint; what others said in the session stays."""
    model = scripted()(answers=["one", "two", "three", "four"])
    options: Any = {"config": RECALLING, "embedder": HashEmbedder()}
    async with Runtime.in_memory(**options) as runtime:
        chat = runtime.session("alice", "chat")
        agent = agents.create_agent(
            model,
            middleware=[adapter.RemoraMiddleware(chat)],
            checkpointer=late("langgraph.checkpoint.memory").InMemorySaver(),
        )
        config: Any = {"configurable": {"thread_id": "t"}}
        await agent.ainvoke(ask("hello"), config)
        start = (await agent.aget_state(config)).config
        await agent.ainvoke(ask("My secret city is Porto."), config)
        await chat.append({"role": "user", "content": "Anna here."})
        await agent.ainvoke(ask("My secret city is Faro."), start)
        said = ["hello", "one", "Anna here.", "My secret city is Faro."]
        assert texts(model.seen[-1]) == said
        assert texts(await chat.history()) == [*said, "three"]
        assert "Porto" not in str(await runtime.user("alice").recall("secret city", limit=20))
        await agent.ainvoke(ask("and then?"), config)
        assert texts(await chat.history()) == [*said, "three", "and then?", "four"]


async def test_a_run_that_waits_for_a_person_is_resumed(tmp_path: Path) -> None:
    """By the checkpointer, in another process; it is stored once, when the agent has answered."""
    driver = LangChain()
    model = driver.model([Call("c1", {"at": "sea"})], "Two ships.", "At the sea.")
    config: Any = {"configurable": {"thread_id": "chat"}}

    def agent(memory: Any) -> Any:
        alice = memory.user("alice")
        asks = late("langchain.agents.middleware").HumanInTheLoopMiddleware({"look": True})
        return agents.create_agent(
            model,
            tools=[looking()],
            middleware=[adapter.RemoraMiddleware(alice.session("chat")), asks],
            checkpointer=checkpoints.RemoraSaver(alice),
        )

    async with driver.memory(tmp_path, kept=True) as memory:
        found = await agent(memory).ainvoke(ask("Look."), config)
        assert "__interrupt__" in found
        assert await driver.session(memory).history() == []
    async with driver.memory(tmp_path, kept=True) as memory:
        decisions = {"decisions": [{"type": "approve"}]}
        await agent(memory).ainvoke(late("langgraph.types").Command(resume=decisions), config)
        await agent(memory).ainvoke(ask("Where?"), config)
        said = ["Look.", "", "a ship at the sea", "Two ships.", "Where?", "At the sea."]
        assert [one.content or "" for one in await driver.session(memory).history()] == said
        assert driver.shown(model)[-1] == [one for one in said[:-1] if one]


async def test_one_agent_for_all_sessions() -> None:
    """A function chooses the session of a run."""
    model = scripted()(answers=["hello"] * 3)
    async with Runtime.in_memory(config=PLAIN) as runtime:
        middleware = adapter.RemoraMiddleware(lambda run: runtime.session(run.context, "chat"))
        agent = agents.create_agent(model, middleware=[middleware], context_schema=str)
        for name in ("alice", "bob"):
            await agent.ainvoke(ask(f"I am {name}."), context=name)
        assert texts(await runtime.session("bob", "chat").history()) == ["I am bob.", "hello"]
        wrong = adapter.RemoraMiddleware(lambda _: None)
        with pytest.raises(InvalidInput, match="NoneType"):
            await agents.create_agent(model, middleware=[wrong]).ainvoke(ask("x"))


# -- histories -------------------------------------------------------------------------------------


class TestHistories(LangChain):
    async def test_messages_are_added_and_cleared(self, tmp_path: Path) -> None:
        """S1.20, S3.03: also over a service, with what a chat message cannot hold."""
        given = TestMessages().every()
        async with self.memory(tmp_path) as memory:
            history = histories.RemoraChatMessageHistory(memory.session("alice", "chat"))
            base = late("langchain_core.chat_history").BaseChatMessageHistory
            assert isinstance(history, base)
            assert "alice" in str(history)
            await history.aadd_messages([])
            await history.aadd_messages(given)
            with pytest.raises(InvalidMessage):
                await history.aadd_messages([*given, "x"])
            assert await history.aget_messages() == given
            await history.aclear()
            assert await history.aget_messages() == []


@pytest.mark.blocking  # the service
class TestHistoriesOfAService(TestHistories):
    served = True


async def test_a_history_begins_with_the_summary() -> None:
    """S1.20, S3.03: as a message that a model of LangChain's can be asked with."""
    model = models.FakeListChatModel(responses=["Hello Charlie!"])
    policy = BufferPolicy.window(2, fold="summary")
    summarizer = ScriptedChatModel(["Charlie said hello."])
    async with Runtime.in_memory(config=PLAIN, policy=policy, chat_model=summarizer) as runtime:
        chat = runtime.session("charlie", "chat")
        history = histories.RemoraChatMessageHistory(chat)
        await history.aadd_messages([messages.HumanMessage("I am Charlie.")])
        answer = await model.ainvoke(await history.aget_messages())
        await history.aadd_messages([answer, messages.HumanMessage("Who?")])
        await chat.settle()
        summary, *rest = await history.aget_messages()
        assert isinstance(summary, messages.SystemMessage)
        assert str(summary.content).endswith("Charlie said hello.")
        assert texts(rest) == ["Hello Charlie!", "Who?"]


async def test_sync_methods_of_a_history() -> None:
    """S1.20, S4.02: they work in a worker thread, and refuse where they would block the event loop;
    with a session of `remora.blocking`, in a plain program.
    """

    def use(history: Any) -> None:
        history.add_user_message("hello")
        history.add_messages([messages.AIMessage("hi")])
        assert texts(history.messages) == ["hello", "hi"]
        history.clear()
        assert history.messages == []

    def use_blocking() -> None:
        with blocking.Runtime.in_memory(config=PLAIN) as runtime:
            use(histories.RemoraChatMessageHistory(runtime.session("alice", "chat")))

    await anyio.to_thread.run_sync(use_blocking)
    async with Runtime.in_memory(config=PLAIN) as runtime:
        history = histories.RemoraChatMessageHistory(runtime.session("alice", "chat"))
        await anyio.to_thread.run_sync(use, history)
        for refused in (
            lambda: history.messages,
            lambda: history.add_user_message("x"),
            history.clear,
        ):
            with pytest.raises(WrongLoop):
                refused()
