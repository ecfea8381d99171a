"""Sessions of other frameworks over remora's, offline, with the frameworks themselves and scripted
models.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from agents import (
    Agent,
    RunConfig,
    Runner,
    Session,
    SessionSettings,
    function_tool,
    set_trace_processors,
)
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

import remora
from remora import BufferPolicy, Client, Config, Message, Runtime, adapters, blocking
from remora.adapters.given import find_session
from remora.adapters.langchain import RemoraChatMessageHistory
from remora.adapters.langgraph import RemoraStore
from remora.adapters.langgraph_checkpoints import RemoraSaver
from remora.adapters.openai_agents import RemoraSession, chat_messages, response_items
from remora.adapters.versions import TESTED
from remora.errors import InvalidInput, InvalidMessage, WrongLoop
from remora.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio
PLAIN = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
    }
)
QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture(scope="module", autouse=True)
def no_tracing() -> None:
    """The SDK makes its exporter at first use, which reads files: here, and not on an event loop."""  # noqa: E501
    set_trace_processors([])


HANDLES = Client("http://127.0.0.1:1", api_key="remora_key")


@pytest.mark.parametrize(
    ("make", "handle"),
    [
        (RemoraStore, HANDLES.user("alice")),
        (RemoraSaver, HANDLES.user("alice")),
        (RemoraSession, HANDLES.user("alice")),
        (RemoraSession, HANDLES),
        (lambda user: find_session(lambda _: user, None), HANDLES.user("alice")),
    ],
)
def test_users_over_http_are_refused(make: Callable[[Any], object], handle: object) -> None:
    """They have not all that adapters need; without this they would fail in the first run."""
    with pytest.raises(InvalidInput, match=r"remora\.connect"):
        make(handle)


@asynccontextmanager
async def agents_session(**options: Any) -> AsyncIterator[RemoraSession]:
    async with Runtime.in_memory(config=PLAIN, **options) as runtime:
        yield RemoraSession(runtime.session("alice", "chat"))


# -- OpenAI Agents SDK -----------------------------------------------------------------------------


async def test_agents_run_over_a_session() -> None:
    """S3.03: the SDK's runner keeps a conversation with parallel tool calls in remora, and its next
    run sees all of it.
    """

    @function_tool
    def weather(city: str) -> str:
        """The weather."""
        return f"sunny in {city}"

    calls = [
        function_call("weather", {"city": city}, call_id=f"call_{city}")
        for city in ("Oslo", "Rome")
    ]
    model = ScriptedModel(
        [calls, [assistant_message("Sunny in both.")], [assistant_message("Charlie.")]]
    )
    agent = Agent(name="assistant", model=model, tools=[weather])
    async with agents_session() as session:
        assert isinstance(session, Session)
        await Runner.run(
            agent, "I am Charlie. The weather in Oslo and Rome?", session=session, run_config=QUIET
        )
        result = await Runner.run(agent, "Who am I?", session=session, run_config=QUIET)
        assert result.final_output == "Charlie."
        assert model.last_call is not None
        seen = list(model.last_call.input)
        assert [item.get("type", item.get("role")) for item in seen if isinstance(item, dict)] == [
            "user",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
            "message",
            "user",
        ]
        assert (await session.get_items())[: len(seen)] == seen
        context = await session.session.load()
        assert [message["role"] for message in context.messages] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "user",
            "assistant",
        ]
        assert [call["id"] for call in context.messages[1]["tool_calls"]] == [
            "call_Oslo",
            "call_Rome",
        ]


async def test_agents_items_come_back_as_they_were() -> None:
    """S3.03: items of every kind, exactly; the newest so many with a limit."""
    picture = {"type": "input_image", "image_url": "data:,", "detail": "low"}
    answer = {"type": "output_text", "text": "A ship.", "annotations": []}
    items: list[Any] = [
        {"role": "user", "content": "hello"},
        {"role": "user", "content": [{"type": "input_text", "text": "look"}, picture]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "I should look."}],
        },
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "look",
            "arguments": "{}",
            "id": "fc_1",
            "status": "completed",
        },
        {"type": "reasoning", "id": "rs_2", "summary": []},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a ship"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "a gull"}],
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "reasoning", "id": "rs_3", "summary": []},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [answer],
        },
    ]
    async with agents_session() as session:
        await session.add_items(items)
        assert await session.get_items() == items
        assert await session.get_items(limit=3) == items[-3:]
        assert await session.get_items(limit=0) == []
        with pytest.raises(InvalidInput):
            await session.get_items(limit=-1)
        shown = (await session.session.load()).messages
        assert [call["id"] for call in shown[2]["tool_calls"]] == ["c1", "c2"]
        assert [message["content"] for message in shown[3:5]] == ["a ship", "a gull"]
        assert shown[-1] == {"role": "assistant", "content": "A ship."}


async def test_agents_pop_and_clear() -> None:
    """S3.03: items are taken back one by one, newest first, out of a row of calls as well; none is
    left after clearing.
    """
    items: list[Any] = [
        {"role": "user", "content": "hello"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
    ]
    async with agents_session() as session:
        assert await session.pop_item() is None
        await session.add_items([])
        await session.add_items(items)
        assert await session.pop_item() == items[2]
        assert await session.get_items() == items[:2]
        assert await session.pop_item() == items[1]
        assert await session.pop_item() == items[0]
        assert await session.pop_item() is None
        await session.add_items(items[:1])
        await session.clear_session()
        assert await session.get_items() == []


async def test_agents_see_the_summary() -> None:
    """S3.03, S1.12: what left the buffer is in the summary, the first item; a limit counts it as
    one.
    """
    model = ScriptedChatModel(["They said m0 and m1."])
    async with agents_session(
        policy=BufferPolicy.window(2, fold="summary"), chat_model=model
    ) as session:
        await session.add_items([{"role": "user", "content": f"m{n}"} for n in range(4)])
        assert isinstance(session.session, remora.Session)
        await session.session.settle()
        items: list[Any] = await session.get_items()
        assert items[0]["role"] == "system"
        assert items[0]["content"].endswith("They said m0 and m1.")
        assert [item["content"] for item in items[1:]] == ["m2", "m3"]
        assert await session.get_items(limit=2) == items[1:]


async def test_agents_sessions_have_names_and_settings() -> None:
    """S3.03: the id names user and session; the SDK's limit holds in a run."""
    model = ScriptedModel([[assistant_message("hello")]])
    async with Runtime.in_memory(config=PLAIN) as runtime:
        session = RemoraSession(
            runtime.session("alice", "chat"), session_settings=SessionSettings(limit=1)
        )
        assert session.session_id == "alice/chat"
        await session.add_items([{"role": "user", "content": f"m{n}"} for n in range(4)])
        await Runner.run(
            Agent(name="assistant", model=model), "now", session=session, run_config=QUIET
        )
        assert model.last_call is not None
        assert [item["content"] for item in model.last_call.input if isinstance(item, dict)] == [
            "m3",
            "now",
        ]


async def test_agents_refuse_what_is_no_item() -> None:
    """S3.03, S4.28: a `TypeError`, and nothing of the batch is written."""
    async with agents_session() as session:
        wrong: Any
        for wrong in (
            ["hello"],
            [{"role": "user", "content": "a"}, 7],
            [{"role": "nobody", "content": "a"}],
        ):
            with pytest.raises(InvalidMessage):
                await session.add_items(wrong)
        assert await session.get_items() == []


async def test_agents_items_without_a_role() -> None:
    """What an encrypting wrapper makes is kept as it is where it is asked for, and is not shown."""
    sealed: Any = [{"__enc__": 1, "v": 1, "kid": "k", "payload": f"secret {n}"} for n in range(2)]
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "sealed")
        with pytest.raises(InvalidMessage):
            await RemoraSession(chat).add_items(sealed)
        session = RemoraSession(chat, opaque=True)
        await session.add_items(sealed)
        assert await session.get_items() == sealed
        assert "secret" not in str((await chat.load()).messages)
        assert await session.pop_item() == sealed[1]
        assert await session.get_items() == sealed[:1]


def test_other_messages_as_items() -> None:
    """S3.03: a session that was written by other means can be handed to the SDK: parts, audio,
    files, tool calls.
    """
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    ]
    items: Any = response_items(Message(role="user", content=parts))
    assert [part["type"] for part in items[0]["content"]] == [
        "input_text",
        "input_image",
        "input_file",
        "input_audio",
    ]
    assert chat_messages(items)[0]["content"] == [*parts[:1], parts[1], parts[2], parts[3]]
    spoken: Any = response_items(
        Message(role="assistant", content=[{"type": "text", "text": "Yes."}])
    )
    assert spoken == [{"role": "assistant", "content": "Yes."}]


# -- LangChain -------------------------------------------------------------------------------------


async def test_langchain_messages_come_back_as_they_were() -> None:
    """S1.20, S3.03: messages of each kind, with their ids and metadata; `load` has them as chat
    messages.
    """
    messages: list[BaseMessage] = [
        SystemMessage("Be kind."),
        HumanMessage("hello", name="Ana"),
        HumanMessage(
            [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:,"}},
            ]
        ),
        AIMessage("", tool_calls=[{"name": "look", "args": {"at": "sea"}, "id": "c1"}]),
        ToolMessage("a ship", tool_call_id="c1"),
        AIMessage("A ship.", id="run-1", response_metadata={"model": "scripted"}),
    ]
    async with Runtime.in_memory(config=PLAIN) as runtime:
        history = RemoraChatMessageHistory(runtime.session("alice", "chat"))
        assert isinstance(history, BaseChatMessageHistory)
        assert "alice" in str(history)
        await history.aadd_messages([])
        await history.aadd_messages(messages)
        assert await history.aget_messages() == messages
        shown = (await history.session.load()).messages
        assert [message["role"] for message in shown] == [
            "system",
            "user",
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert shown[3]["tool_calls"][0]["function"]["name"] == "look"
        await history.aclear()
        assert await history.aget_messages() == []


async def test_langchain_models_talk_over_it() -> None:
    """S1.20, S3.03: a model of LangChain's is asked with what the history has, the summary first."""  # noqa: E501
    model = FakeListChatModel(responses=["Hello Charlie!"])
    policy = BufferPolicy.window(2, fold="summary")
    async with Runtime.in_memory(
        config=PLAIN, policy=policy, chat_model=ScriptedChatModel(["Charlie said hello."])
    ) as runtime:
        history = RemoraChatMessageHistory(runtime.session("charlie", "chat"))
        await history.aadd_messages([HumanMessage("I am Charlie.")])
        await history.aadd_messages(
            [await model.ainvoke(await history.aget_messages()), HumanMessage("Who?")]
        )
        assert isinstance(history.session, remora.Session)
        await history.session.settle()
        first, *rest = await history.aget_messages()
        assert isinstance(first, SystemMessage)
        assert str(first.content).endswith("Charlie said hello.")
        assert [message.content for message in rest] == ["Hello Charlie!", "Who?"]


async def test_langchain_sync_methods() -> None:
    """S1.20, S4.02: they work in a worker thread, and refuse where they would block the event loop."""  # noqa: E501
    async with Runtime.in_memory(config=PLAIN) as runtime:
        history = RemoraChatMessageHistory(runtime.session("alice", "chat"))

        def sync() -> list[BaseMessage]:
            history.add_user_message("hello")
            history.add_messages([AIMessage("hi")])
            found = history.messages
            history.clear()
            return found

        assert [message.content for message in await anyio.to_thread.run_sync(sync)] == [
            "hello",
            "hi",
        ]
        assert await history.aget_messages() == []
        for call in (
            lambda: history.messages,
            lambda: history.add_user_message("x"),
            history.clear,
        ):
            with pytest.raises(WrongLoop):
                call()


def test_langchain_without_an_event_loop() -> None:
    """With a session of `remora.blocking`, the sync methods work in a plain program."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        history = RemoraChatMessageHistory(runtime.session("charlie", "chat"))
        model = FakeListChatModel(responses=["Hello!", "Charlie."])
        for text in ("My name is Charlie.", "What is my name?"):
            history.add_user_message(text)
            history.add_messages([model.invoke(history.messages)])
        assert [message.content for message in history.messages] == [
            "My name is Charlie.",
            "Hello!",
            "What is my name?",
            "Charlie.",
        ]
        history.clear()
        assert history.messages == []


async def test_langchain_refuses_what_is_no_message() -> None:
    """S1.20, S4.28: a `TypeError`, and nothing of the batch is written."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        history = RemoraChatMessageHistory(runtime.session("alice", "chat"))
        wrong: Any
        for wrong in ([HumanMessage("a"), "b"], [ChatMessage(content="a", role="nobody")]):
            with pytest.raises(InvalidMessage):
                await history.aadd_messages(wrong)
        assert await history.aget_messages() == []


# -- extras ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("remora.adapters.openai_agents", "agents", "openai-agents"),
        ("remora.adapters.langchain", "langchain_core", "langchain"),
        ("remora.adapters.langchain_agents", "langchain", "langchain-agents"),
        ("remora.adapters.langgraph", "langgraph.store", "langgraph"),
        ("remora.adapters.langgraph_checkpoints", "langgraph.checkpoint", "langgraph"),
        ("remora.adapters.agent_framework", "agent_framework", "agent-framework"),
        ("remora.adapters.claude_agent_sdk", "claude_agent_sdk", "claude-agent-sdk"),
        ("remora.adapters.google_adk", "google.adk", "google-adk"),
        ("remora.adapters.llama_index_agents", "llama_index", "llama-index"),
        ("remora.adapters.mcp", "mcp", "mcp"),
        ("remora.adapters.pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("remora.adapters.ray", "ray", "ray"),
        ("remora.adapters.strands", "strands", "strands"),
        ("remora.adapters.strands_storage", "strands", "strands"),
        ("remora.models.openai", "httpx2", "openai"),
    ],
)
def test_missing_extras(module: str, package: str, extra: str) -> None:
    """S4.29, S3.03: without the extra, an `ImportError` with the very command that installs it."""
    program = f"import sys; sys.modules[{package!r}] = None\ntry:\n    import {module}\nexcept ImportError as e:\n    print(e)"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert f'pip install "remora[{extra}]"' in done.stdout


PROGRAM = """
import importlib, importlib.metadata as metadata, sys, warnings
from remora.adapters.versions import TESTED, UntestedVersion
version = metadata.version
metadata.version = lambda name: "99.1" if name in TESTED else version(name)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for module in sys.argv[1:]:
        importlib.import_module(f"remora.adapters.{module}")
for one in seen:
    if one.category is UntestedVersion:
        print(one.message)
"""


def test_each_adapter_names_a_release_that_it_is_not_tested_with() -> None:
    """Those whose framework has an environment of its own are read, and not imported."""
    folder = Path(adapters.__file__).parent
    warning: dict[str, list[str]] = {distribution: [] for distribution in TESTED}
    for file in sorted(folder.glob("*.py")):
        for distribution in re.findall(
            r'^warn_if_untested\("(.*)"\)$', file.read_text(), re.MULTILINE
        ):
            warning[distribution].append(file.stem)
    assert all(warning.values()), warning
    here = ["langchain", "langchain-core", "langgraph-checkpoint", "mcp", "openai-agents"]
    here.append("pydantic-ai-slim")
    modules = [module for distribution in here for module in warning[distribution]]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *modules],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    named = re.findall(
        r"^(\S+) 99\.1 is installed; .* is tested with \d", done.stdout, re.MULTILINE
    )
    assert sorted(set(named)) == here
