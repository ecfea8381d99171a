"""Agents of Google's ADK over remora: sessions, state and memory, with a scripted model.

ADK is not among the development requirements: ``python -m benchmarks.lab.frameworks own
google-adk`` runs these in an environment of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("google.adk", reason="`python -m benchmarks.lab.frameworks own google-adk`")
from google.adk.agents import LlmAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools import load_memory
from google.genai import types

from remora import Runtime
from remora.adapters.google_adk import RemoraMemoryService, RemoraSessionService, chat_messages
from remora.errors import InvalidInput, InvalidMessage
from remora.testing import HashEmbedder
from tests.configs import PLAIN, RECALLING
from tests.conformance import Blocking, Call, Connected, Conversations, Given, look_at, parts_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.blocking,  # ADK reads its own files when it runs an agent
    pytest.mark.filterwarnings("default"),
]
WHO: Any = {"app_name": "app", "user_id": "alice"}
CHAT: Any = {**WHO, "session_id": "chat"}


class Scripted(BaseLlm):  # type: ignore[misc, unused-ignore]
    """Answers in turn, and notes what it is shown."""

    answers: list[Any]
    seen: list[list[Any]] = []  # noqa: RUF012 - pydantic copies it

    async def generate_content_async(self, request: Any, stream: bool = False) -> Any:
        self.seen.append(list(request.contents))
        said = self.answers[len(self.seen) - 1]
        if isinstance(said, Exception):
            raise said
        parts = [
            call(one.name, one.arguments, one.id) if isinstance(one, Call) else types.Part(text=one)
            for one in parts_of(said)
        ]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def call(name: str, arguments: Any = None, id_: str | None = None) -> Any:
    return types.Part(function_call=types.FunctionCall(id=id_, name=name, args=arguments or {}))


def said(text: str, author: str = "user", /, **state: Any) -> Any:
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(author=author, content=content, actions=EventActions(state_delta=state))


def texts(contents: Sequence[Any]) -> list[str]:
    """Each text, each result."""
    return [
        part.text or part.function_response.response["result"]
        for content in contents
        for part in content.parts or ()
        if part.text or part.function_response
    ]


@asynccontextmanager
async def service(**options: Any) -> AsyncIterator[tuple[Runtime, Any]]:
    async with Runtime.in_memory(**{"config": PLAIN, **options}) as runtime:
        yield runtime, RemoraSessionService(runtime)


async def look(at: str) -> dict[str, str]:
    """Look."""
    return {"result": await look_at(at)}


# -- agents ----------------------------------------------------------------------------------------


class TestAgents(Conversations, Connected, Blocking):
    whole = False  # ADK stores each event at once

    def model(self, *answers: Any) -> Any:
        return Scripted(model="m", answers=list(answers))

    def shown(self, model: Any) -> list[list[str]]:
        return list(map(texts, model.seen))

    def session(self, memory: Any, user: str = "alice", chat: str = "chat") -> Any:
        return memory.session(f"app/{user}", chat)

    def agent(self, model: Any, given: Given) -> Any:
        """A runner, and whose session it uses."""
        agent = LlmAgent(
            name="bot", instruction="Be kind.", model=model, tools=[look], output_key="answer"
        )
        sessions = RemoraSessionService(given.memory)
        runner = Runner(app_name="app", agent=agent, session_service=sessions)
        return runner, {"user_id": given.user, "session_id": given.chat}

    async def start(self, agent: Any) -> None:
        """Create the session, if there is none."""
        where = {"app_name": "app", **agent[1]}
        if await agent[0].session_service.get_session(**where) is None:
            await agent[0].session_service.create_session(**where)

    async def ask(self, agent: Any, said: str) -> None:
        await self.start(agent)
        async for _ in agent[0].run_async(**agent[1], new_message=types.UserContent(said)):
            pass

    def ask_blocking(self, agent: Any, said: str) -> None:
        anyio.run(self.start, agent)
        list(agent[0].run(**agent[1], new_message=types.UserContent(said)))

    async def test_its_state_is_kept(self, tmp_path: Path) -> None:
        """With its session, in the directory."""
        async with self.memory(tmp_path, kept=True) as memory:
            await self.run(memory, self.model("A ship."), "What is there?")
        async with self.memory(tmp_path, kept=True) as memory:
            found = await RemoraSessionService(memory).get_session(**CHAT)
            assert found is not None
            assert found.state == {"answer": "A ship."}


async def test_an_agent_recalls_other_sessions() -> None:
    """By ADK's tool, without adding sessions to memory; what it finds is quoted."""
    async with service(config=RECALLING, embedder=HashEmbedder()) as (runtime, sessions):
        memory = RemoraMemoryService(runtime)
        march = await sessions.create_session(**WHO, session_id="march")
        await sessions.append_event(march, said('My flat is in "Lisbon", near the river.'))
        await memory.add_session_to_memory(march)
        await sessions.create_session(**CHAT)
        asks = Call("c", {"query": "flat near the river"}, "load_memory")
        model = Scripted(model="m", answers=[asks, "In Lisbon."])
        agent = LlmAgent(name="bot", model=model, tools=[load_memory])
        services: Any = {"session_service": sessions, "memory_service": memory}
        runner = Runner(app_name="app", agent=agent, **services)
        where = {"user_id": "alice", "session_id": "chat"}
        async for _ in runner.run_async(**where, new_message=types.UserContent("Where is it?")):
            pass
        found = str(model.seen[-1][-1].parts[0].function_response.response)
        assert r"My flat is in \"Lisbon\"" in found.replace("\\\\", "\\")
        await runtime.user("app/alice").settle()
        assert await runtime.user("app/alice").memories(types="context") == []
        other = await memory.search_memory(app_name="app", user_id="bob", query="flat river")
        assert other.memories == []


# -- sessions --------------------------------------------------------------------------------------


async def test_events_come_back_as_they_were() -> None:
    """With files, thoughts, calls, results and what is no content; each id once."""
    parts = [
        types.Part(text="so", thought=True),
        types.Part(text="look"),
        types.Part(inline_data=types.Blob(data=bytes(range(256)), mime_type="image/png")),
        types.Part(file_data=types.FileData(file_uri="gs://a/b.pdf")),
        types.Part(executable_code=types.ExecutableCode(code="1", language=types.Language.PYTHON)),
    ]
    results = [
        types.Part(function_response=types.FunctionResponse(id=id_, name="look", response={"x": 1}))
        for id_ in ("c1", "c2")
    ]
    calls = [types.Part(text="I look."), call("look", {"at": "sea"}), call("look")]
    given = [
        said("hello"),
        said("hello", "bot"),
        Event(author="user", content=types.Content(role="user", parts=parts)),
        Event(author="bot", content=types.Content(role="model", parts=calls)),
        Event(author="bot", content=types.Content(role="user", parts=results)),
        Event(author="bot", actions=EventActions(escalate=True, artifact_delta={"f": 1})),
        Event(author="bot", content=types.Content(role="model", parts=[]), error_code="SAFETY"),
    ]
    async with service() as (runtime, sessions):
        session = await sessions.create_session(**CHAT)
        for event in given:
            await sessions.append_event(session, event)
        await sessions.append_event(session, given[0])
        found = await sessions.get_session(**CHAT)
        assert found == session
        assert [one.model_dump() for one in found.events] == [one.model_dump() for one in given]
        chat = runtime.user("app/alice").session("chat")
        assert [message.content for message in await chat.history()][:3] == [
            "hello", "hello", "look\n[image/png]\n[file]",
        ]  # fmt: skip
        await chat.append({"role": "user", "content": "from elsewhere"})
        last = (await sessions.get_session(**CHAT)).events[-1]
        assert (last.author, texts([last.content])) == ("user", ["from elsewhere"])


async def test_what_is_rewound_is_not_recalled() -> None:
    """Nor given again; what somebody else said in between, and before, stays, and so does the state
    of before. A second rewind goes behind the first.
    """
    driver = TestAgents()
    model = driver.model("Hi.", "Noted.", "In Faro.", "Yes.")
    options: dict[str, Any] = {"config": RECALLING, "embedder": HashEmbedder()}
    async with service(**options) as (runtime, sessions):
        runner, who = driver.agent(model, driver.give(runtime))
        chat = runtime.user("app/alice").session("chat")
        for text in ("hello", "My secret city is Porto."):
            await driver.ask((runner, who), text)
        await chat.append({"role": "user", "content": "Anna was here."})
        events = (await sessions.get_session(**CHAT)).events
        first, second = events[0].invocation_id, events[2].invocation_id
        await runner.rewind_async(**who, rewind_before_invocation_id=second)
        await driver.ask((runner, who), "My secret city is Faro.")
        assert "Porto" not in str(driver.shown(model)[-1])
        found = await RemoraMemoryService(runtime).search_memory(**WHO, query="secret city event")
        recalled = " ".join(texts([one.content for one in found.memories]))
        assert "Faro" in recalled
        assert "Porto" not in recalled
        assert "[event]" not in recalled
        heard = ["hello", "Hi.", "Anna was here.", "[event]", "My secret city is Faro.", "In Faro."]
        assert [one.content for one in await chat.history()] == heard
        session = await sessions.get_session(**CHAT)
        assert session.state == {"answer": "In Faro."}
        await runner.rewind_async(**who, rewind_before_invocation_id=first)
        assert [one.content for one in await chat.history()] == ["Anna was here.", "[event]"]
        assert (await sessions.get_session(**CHAT)).state.get("answer") is None


async def test_state_has_three_scopes() -> None:
    """Of a session, of a user, of an app; what is temporary is not stored."""
    state = {"a": 1, "user:b": {"x": [None]}, "app:c/d": "é", "temp:t": 1}
    async with service() as (_, sessions):
        session = await sessions.create_session(**CHAT, state=state)
        kept = {"a": 1, "user:b": {"x": [None]}, "app:c/d": "é"}
        assert session.state == kept
        delta: dict[str, Any] = {"a": 2, "user:e": 3, "app:c/d": "f", "temp:t": 4}
        await sessions.append_event(session, said("hi", **delta))
        assert session.state["temp:t"] == 4
        whole = {"a": 2, "user:b": {"x": [None]}, "user:e": 3, "app:c/d": "f"}
        assert (await sessions.get_session(**CHAT)).state == whole
        assert await sessions.get_user_state(**WHO) == {"b": {"x": [None]}, "e": 3}
        other = await sessions.create_session(app_name="app", user_id="bob")
        assert other.state == {"app:c/d": "f"}
        elsewhere = await sessions.create_session(app_name="app/alice", user_id="alice")
        assert elsewhere.state == {}


async def test_sessions_are_listed_and_erased() -> None:
    """Oldest use first, of one user or of all; also those without an event."""
    async with service() as (runtime, sessions):
        for user, name in (("alice", "a"), ("bob", "b"), ("alice", "c")):
            await sessions.create_session(app_name="app", user_id=user, session_id=name)
        await sessions.create_session(app_name="other", user_id="alice", session_id="d")
        first = await sessions.get_session(**WHO, session_id="a")
        await sessions.append_event(first, said("hi"))
        listed = await sessions.list_sessions(app_name="app")
        assert [one.id for one in listed.sessions] == ["b", "c", "a"]
        assert [one.id for one in (await sessions.list_sessions(**WHO)).sessions] == ["c", "a"]
        await sessions.delete_session(**WHO, session_id="a")
        await sessions.delete_session(**WHO, session_id="none")
        assert await sessions.get_session(**WHO, session_id="a") is None
        assert [one.id for one in (await sessions.list_sessions(**WHO)).sessions] == ["c"]
        assert await runtime.user("app/alice").session("a").history() == []
        with pytest.raises(SessionNotFoundError):
            await sessions.append_event(first, said("more"))
        again = await sessions.create_session(**WHO, session_id="a")
        assert again.events == []


async def test_pages_of_a_session() -> None:
    """The newest events, or those since a time."""
    async with service() as (_, sessions):
        session = await sessions.create_session(**CHAT)
        for second in range(5):
            await sessions.append_event(session, Event(author="user", timestamp=float(second)))

        async def times(**config: Any) -> list[float]:
            found = await sessions.get_session(**CHAT, config=GetSessionConfig(**config))
            return [event.timestamp for event in found.events]

        assert await times(num_recent_events=2) == [3, 4]
        assert await times(num_recent_events=0) == []
        assert await times(after_timestamp=3.0) == [3, 4]
        assert await times(after_timestamp=9.0) == []


async def test_what_is_wrong_is_refused() -> None:
    """Before anything is written."""
    async with service() as (_, sessions):
        session = await sessions.create_session(**CHAT)
        with pytest.raises(AlreadyExistsError, match="chat"):
            await sessions.create_session(**CHAT, state={"a": 1})
        with pytest.raises(InvalidInput, match="'user:f' cannot be written as JSON"):
            await sessions.append_event(session, said("hi", "user", **{"user:f": object()}))
        with pytest.raises(InvalidInput, match="'f' cannot be written as JSON"):
            await sessions.create_session(**WHO, state={"f": object()})
        found = await sessions.get_session(**CHAT)
        assert (found.events, found.state) == ([], {})
        bad = Event(author="bot", custom_metadata={"a": object()})
        with pytest.raises(InvalidMessage, match="cannot be written as JSON"):
            chat_messages(bad)
        with pytest.raises(InvalidInput, match="NoneType"):
            RemoraSessionService(None)  # type: ignore[arg-type]


# -- memory ----------------------------------------------------------------------------------------


async def test_memories_of_other_services_sessions() -> None:
    """Each text once, however often its session is added; entries are added and deleted."""
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        memory = RemoraMemoryService(runtime, limit=3)
        theirs = InMemorySessionService()
        session = await theirs.create_session(**CHAT)
        await theirs.append_event(session, said("My flat is in Lisbon."))
        await theirs.append_event(session, said("A nice town.", "bot"))
        for _ in range(2):
            await memory.add_session_to_memory(session)
        await memory.add_events_to_memory(**CHAT, events=[said("I like fado.")])
        await runtime.user("app/alice").settle()
        kept = await runtime.user("app/alice").memories()
        assert [one.text for one in kept] == [
            "My flat is in Lisbon.", "A nice town.", "I like fado.",
        ]  # fmt: skip
        entry = MemoryEntry(content=types.Content(parts=[types.Part(text="Alice sings fado.")]))
        await memory.add_memory(**WHO, memories=[entry], custom_metadata={"topic": "music"})
        found = (await memory.search_memory(**WHO, query="Alice sings fado")).memories
        assert found[0].content.parts[0].text == '"Alice sings fado."'
        assert found[0].custom_metadata == {"topic": "music"}
        assert len(found) <= 3
        await memory.delete_memory(**WHO, memory_id=found[0].id)
        left = (await memory.search_memory(**WHO, query="Alice sings fado")).memories
        assert all(one.id != found[0].id for one in left)
        assert (await memory.search_memory(**WHO, query=" ")).memories == []
        with pytest.raises(InvalidInput, match="limit"):
            RemoraMemoryService(runtime, limit=0)
