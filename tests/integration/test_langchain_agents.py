"""LangChain's agents over remora: a middleware and tools, with a scripted model; offline."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from remora import BufferPolicy, Runtime, blocking
from remora.adapters.langchain_agents import RemoraMiddleware, memory_tools
from remora.adapters.langgraph_checkpoints import RemoraSaver
from remora.errors import InvalidInput
from remora.testing import HashEmbedder, ScriptedChatModel
from tests.agents import PLAIN, RECALLING

pytestmark = pytest.mark.anyio


class Scripted(BaseChatModel):
    """Answers in turn, and notes what it is shown."""

    answers: list[Any]
    seen: list[list[BaseMessage]] = []  # noqa: RUF012 - pydantic copies it

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.seen.append(messages)
        answer = self.answers[min(len(self.seen), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        message = answer(messages) if callable(answer) else answer
        if isinstance(message, str):
            message = AIMessage(message)
        return ChatResult(generations=[ChatGeneration(message=message)])


def ask(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


def call(name: str, arguments: dict[str, Any], id_: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": id_}])


def texts(messages: list[BaseMessage]) -> list[str]:
    return [str(message.content) for message in messages]


async def test_an_agent_remembers_its_conversation() -> None:
    """Each run passes the new message alone; the model sees what was said before, with calls."""
    model = Scripted(
        answers=[call("look", {"at": "sea"}, "c1"), "A ship.", "At the sea."],
    )

    def look(at: str) -> str:
        """Look."""
        return f"a ship at {at}"

    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        agent = create_agent(model, tools=[look], middleware=[RemoraMiddleware(chat)])
        await agent.ainvoke(ask("Look at the sea."))
        done = await agent.ainvoke(ask("Where did you look?"))
        assert done["messages"][-1].content == "At the sea."
        shown = model.seen[-1]
        assert [message.type for message in shown] == ["human", "ai", "tool", "ai", "human"]
        assert isinstance(shown[1], AIMessage)
        assert shown[1].tool_calls[0]["args"] == {"at": "sea"}
        assert isinstance(shown[2], ToolMessage)
        assert texts(shown)[2:] == ["a ship at sea", "A ship.", "Where did you look?"]
        assert len(await chat.history()) == 6


async def test_an_agent_recalls_other_conversations() -> None:
    """What is recalled comes right before the run's messages, and is not stored."""
    model = Scripted(answers=["In Lisbon."])
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        await alice.session("march").append(
            {"role": "user", "content": "My flat is in Lisbon, near the river."}
        )
        june = alice.session("june")
        for recall in (True, False):
            middleware = RemoraMiddleware(june, recall=recall)
            agent = create_agent(model, system_prompt="Be kind.", middleware=[middleware])
            await agent.ainvoke(ask("Where is my flat near the river?"))
        first, second = map(texts, model.seen)
        assert first[0] == "Be kind."
        assert "My flat is in Lisbon" in first[1]
        assert first[2] == "Where is my flat near the river?"
        assert not any("My flat is in Lisbon" in text for text in second)
        assert len(await june.history()) == 4


async def test_the_model_sees_a_budget() -> None:
    """The summary stands for what left the buffer."""
    model = Scripted(answers=["yes"])
    async with Runtime.in_memory(
        config=PLAIN,
        policy=BufferPolicy.window(2, fold="summary"),
        chat_model=ScriptedChatModel(["They counted."] * 4),
    ) as runtime:
        chat = runtime.session("alice", "chat")
        agent = create_agent(model, middleware=[RemoraMiddleware(chat)])
        for number in range(4):
            await agent.ainvoke(ask(f"question {number}"))
            await chat.settle()
        shown = texts(model.seen[-1])
        assert "They counted." in shown[0]
        assert shown[1:] == ["question 2", "yes", "question 3"]


async def test_eight_runs_at_once_stay_whole() -> None:
    """Each question has its answer right behind it, without any waiting."""

    async def run(number: int) -> None:
        model = Scripted(answers=[f"answer {number}"])
        agent = create_agent(model, middleware=[RemoraMiddleware(chat)])
        await agent.ainvoke(ask(f"question {number}"))

    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(run, number)
        said = [str(message.content) for message in await chat.history()]
        assert len(said) == 16
        for question, answer in zip(said[::2], said[1::2], strict=True):
            assert answer == question.replace("question", "answer")


async def test_a_run_that_fails_stores_nothing() -> None:
    """The same input can be given again."""
    model = Scripted(answers=[ValueError("no"), "yes"])
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        agent = create_agent(model, middleware=[RemoraMiddleware(chat)])
        with pytest.raises(ValueError, match="no"):
            await agent.ainvoke(ask("now?"))
        assert await chat.history() == []
        await agent.ainvoke(ask("now?"))
        assert [message.content for message in await chat.history()] == ["now?", "yes"]


async def test_with_a_checkpointer_each_message_is_stored_once() -> None:
    """Its state has the earlier messages as well; nothing is shown or stored twice."""
    model = Scripted(answers=["one", "two", "three"])
    async with Runtime.in_memory(config=PLAIN) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("chat")
        saver = RemoraSaver(alice)
        agent = create_agent(model, middleware=[RemoraMiddleware(chat)], checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "chat"}}
        for number in range(3):
            await agent.ainvoke(ask(f"question {number}"), config)
        assert texts(model.seen[-1]) == ["question 0", "one", "question 1", "two", "question 2"]
        assert len(await chat.history()) == 6


async def test_one_agent_for_all_sessions() -> None:
    """A function chooses the session of a run."""
    model = Scripted(answers=["hello"])
    async with Runtime.in_memory(config=PLAIN) as runtime:
        agent: Any = create_agent(
            model,
            middleware=[RemoraMiddleware(lambda run: runtime.session(run.context, "chat"))],
            context_schema=str,
        )
        for name in ("alice", "bob"):
            await agent.ainvoke(ask(f"I am {name}."), context=name)
        said = [message.content for message in await runtime.session("bob", "chat").history()]
        assert said == ["I am bob.", "hello"]
        wrong = create_agent(model, middleware=[RemoraMiddleware(lambda _: None)])  # type: ignore[arg-type, return-value]
        with pytest.raises(InvalidInput, match="NoneType"):
            await wrong.ainvoke(ask("x"))


async def test_an_agent_uses_its_memory_by_tools() -> None:
    """It saves in one session, and finds it in another."""
    saved = {"thinking": "a fact", "content": ["Alice is allergic to nuts."]}
    model = Scripted(
        answers=[
            call("save_to_memory", saved, "c1"),
            "Noted.",
            call("recall_from_memory", {"keywords": ["allergic"]}, "c2"),
            "To nuts.",
        ]
    )
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        for name in ("march", "june"):
            middleware = RemoraMiddleware(alice.session(name), recall=False, tools=alice.tools())
            await create_agent(model, middleware=[middleware]).ainvoke(ask(f"This is {name}."))
        assert "allergic to nuts" in texts(model.seen[-1])[-1]
        assert [tool.name for tool in memory_tools(alice.tools(edit=True))] == [
            "save_to_memory",
            "recall_from_memory",
            "correct_memory",
            "delete_from_memory",
        ]


def test_agents_without_async() -> None:
    """With a session of `remora.blocking`, ``agent.invoke`` works, with tools."""
    model = Scripted(answers=["hi", call("recall_from_memory", {"keywords": ["x"]}, "c"), "Ada."])
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        user = runtime.user("ada")
        middleware = RemoraMiddleware(user.session("chat"), tools=user.tools())
        agent = create_agent(model, middleware=[middleware])
        agent.invoke(ask("I am Ada."))
        assert agent.invoke(ask("Who am I?"))["messages"][-1].content == "Ada."
        assert texts(model.seen[1]) == ["I am Ada.", "hi", "Who am I?"]
        assert user.session("chat").size() == 6
