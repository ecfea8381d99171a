"""Agents of Strands Agents over remora: sessions and memory, with a scripted model.

Strands is not among the development requirements: ``python -m benchmarks.lab.frameworks own
strands`` runs these in an environment of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

pytest.importorskip("strands", reason="`python -m benchmarks.lab.frameworks own strands`")
from strands import Agent, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.memory import MemoryManager
from strands.models import Model
from strands.multiagent import GraphBuilder
from strands.session import RepositorySessionManager, SnapshotSessionManager
from strands.types.exceptions import SessionException, StorageError
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from remora import BufferPolicy, Runtime, blocking
from remora.adapters.strands import RemoraMemoryStore, RemoraSessionRepository
from remora.adapters.strands_storage import RemoraStorage
from remora.errors import InvalidId, InvalidInput, InvalidMessage, WrongLoop
from remora.testing import HashEmbedder
from tests.configs import PLAIN, RECALLING
from tests.conformance import Blocking, Call, Connected, Conversations, Given, parts_of

pytestmark = [
    pytest.mark.blocking,  # Strands reads its own files when it runs an agent
    pytest.mark.filterwarnings("default"),
]


class Redacting(str):
    """A text with which a guardrail has replaced the user's message."""

    __slots__ = ()


class Scripted(Model):  # type: ignore[misc, unused-ignore]
    """Answers in turn, and notes what it is shown."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[list[Any]] = []

    def update_config(self, **_config: Any) -> None:
        """It has none."""

    def get_config(self) -> Any:
        return {}

    async def structured_output(self, *_given: Any, **_options: Any) -> Any:
        yield NotImplemented

    async def stream(self, messages: Any, *_given: Any, **_options: Any) -> Any:
        self.seen.append([dict(message) for message in messages])
        said = self.answers[len(self.seen) - 1]
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(said, Exception):
            raise said
        reason = "end_turn"
        for part in parts_of(said):
            if isinstance(part, Redacting):
                yield {"redactContent": {"redactUserContentMessage": str(part)}}
                continue
            start: dict[str, Any] = {}
            delta: dict[str, Any] = {"text": part}
            if isinstance(part, Call):
                reason = "tool_use"
                start = {"toolUse": {"toolUseId": part.id, "name": part.name}}
                delta = {"toolUse": {"input": json.dumps(part.arguments)}}
            yield {"contentBlockStart": {"start": start}}
            yield {"contentBlockDelta": {"delta": delta}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": reason}}


@tool
def look(at: str) -> str:
    """Look.

    Args:
        at: where.
    """
    return f"a ship at the {at}"


LOOKS = Call("c1", {"at": "sea"})


def message(said: Any, number: int = 0, role: str = "user", **more: Any) -> Any:
    blocks = [{"text": said}] if isinstance(said, str) else said
    return SessionMessage.from_message({"role": role, "content": blocks, **more}, number)


def texts(messages: Any) -> list[str]:
    """Of messages of Strands: each text, each result."""
    return [
        block["text"] if "text" in block else block["toolResult"]["content"][0]["text"]
        for one in messages
        for block in one["content"]
        if "text" in block or "toolResult" in block
    ]


def agent_with(manager: Any, model: Any, **options: Any) -> Any:
    known: dict[str, Any] = {"agent_id": "bot", "tools": [look], "callback_handler": None}
    return Agent(model=model, session_manager=manager, **{**known, **options})


def agent_of(repository: Any, model: Any, *, chat: str = "chat", **options: Any) -> Any:
    return agent_with(RepositorySessionManager(chat, repository), model, **options)


@contextmanager
def repository(**options: Any) -> Iterator[tuple[Any, Any]]:
    """A runtime, and a repository that has a session with an agent."""
    with blocking.Runtime.in_memory(**{"config": PLAIN, **options}) as runtime:
        kept = RemoraSessionRepository(runtime.user("alice"))
        kept.create_session(Session("chat", SessionType.AGENT))
        window = SlidingWindowConversationManager().get_state()
        kept.create_agent("chat", SessionAgent("bot", {"mood": "fine"}, window))
        yield runtime, kept


def said_in(kept: Any, chat: str = "chat", name: str = "bot") -> list[str]:
    return texts(one.to_message() for one in kept.list_messages(chat, name))


def store(kept: Any, *messages: Any) -> None:
    for number, one in enumerate(messages):
        given = message(one, number) if isinstance(one, str) else one
        kept.create_message("chat", "bot", given)


# -- agents ----------------------------------------------------------------------------------------


@pytest.mark.anyio
class TestAgents(Conversations, Connected, Blocking):
    """Each in a thread of its own, as in as many requests."""

    test_a_run_that_is_cut: Any = None  # a thread runs to its end

    whole = False  # Strands stores each message at once
    repair = "Tool was interrupted."

    def model(self, *answers: Any) -> Any:
        return Scripted(*answers)

    def shown(self, model: Any) -> list[list[str]]:
        return list(map(texts, model.seen))

    def session(self, memory: Any, user: str = "alice", chat: str = "chat") -> Any:
        return memory.session(user, f"{chat}/bot")

    def agent(self, model: Any, given: Given) -> Any:
        """Makes an agent, which reads its session in the same thread, and runs it."""

        def run(said: str) -> None:
            kept = RemoraSessionRepository(given.memory.user(given.user))
            agent_of(kept, model, chat=given.chat, system_prompt="Be kind.")(said)

        return run

    async def ask(self, agent: Any, said: str) -> None:
        await anyio.to_thread.run_sync(agent, said)

    def ask_blocking(self, agent: Any, said: str) -> None:
        agent(said)


def test_agents_of_a_session_stay_apart() -> None:
    """Their messages and states, whatever their ids are; so do users."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        kept = RemoraSessionRepository(runtime.user("alice"))
        who = [("a", "b"), ("a", "c"), ("a/b", "c"), ("a", "b%2f-c"), ("a%", "b"), ("a b", "ü")]
        for chat, name in who:
            agent = agent_of(kept, Scripted(f"I am {chat} {name}"), chat=chat, agent_id=name)
            agent.state.set("name", name)
            agent("Who are you?")
        kept.create_agent("a", SessionAgent("b/c", {"name": "b/c"}, {}))
        assert said_in(kept, "a", "b/c") == []
        for chat, name in who:
            assert said_in(kept, chat, name) == ["Who are you?", f"I am {chat} {name}"]
            again = agent_of(kept, Scripted(), chat=chat, agent_id=name)
            assert again.state.get() == {"name": name}
        other = RemoraSessionRepository(runtime.user("bob"))
        assert other.read_session("a") is None
        assert other.read_agent("a", "b") is None


def test_what_a_guardrail_redacts_is_gone() -> None:
    """From the session, from what other readers load, and from recall."""
    with blocking.Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        kept = RemoraSessionRepository(alice)
        agent = agent_of(kept, Scripted([Redacting("[redacted]"), "No."], "Hello."))
        agent("My number is 4711.")
        agent("Hello?")
        assert said_in(kept) == ["[redacted]", "No.", "Hello?", "Hello."]
        assert said_in(kept) == texts(agent_of(kept, Scripted()).messages)
        chat = alice.session("chat/bot")
        said = [one.content for one in chat.history()]
        recalled = [one.text for one in alice.recall("my number")]
        assert "4711" not in str([said, chat.load("my number").messages, recalled])


def test_a_window_is_restored() -> None:
    """An agent is given the messages that Strands' window has left it, and no others."""

    def with_window(*answers: str) -> Any:
        window = SlidingWindowConversationManager(window_size=4)
        return agent_of(kept, Scripted(*answers), conversation_manager=window)

    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        kept = RemoraSessionRepository(runtime.user("alice"))
        for number in range(4):
            with_window(f"a{number}")(f"q{number}")
        assert texts(with_window().messages) == ["q2", "a2", "q3", "a3"]
        assert len(said_in(kept)) == 8


def test_a_graph_is_kept() -> None:
    """Its state, in the session, and that of its agents."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        kept = RemoraSessionRepository(runtime.user("alice"))
        builder = GraphBuilder()
        builder.set_graph_id("graph/1")
        builder.add_node(Agent(model=Scripted("done"), callback_handler=None), "first")
        builder.set_session_manager(RepositorySessionManager("chat", kept))
        builder.build()("Go.")
        found = kept.read_multi_agent("chat", "graph/1")
        assert found is not None
        assert found["completed_nodes"] == ["first"]
        assert "done" in str(found["node_results"])
        assert kept.read_multi_agent("chat", "graph") is None

        class Other:
            id = "graph/2"

            def serialize_state(self) -> dict[str, Any]:
                return {"blob": b"\x00\xff"}

        with pytest.raises(SessionException, match="does not exist"):
            kept.update_multi_agent("chat", Other())
        kept.create_multi_agent("chat", Other())
        assert kept.read_multi_agent("chat", "graph/2") == {"blob": b"\x00\xff"}


# -- the repository --------------------------------------------------------------------------------


def test_messages_come_back_as_they_were() -> None:
    """With every kind of block, bytes, ids and metadata."""
    ok = {"toolUseId": "c1", "status": "success", "content": [{"json": {"x": [1]}}]}
    failed = {"toolUseId": "c2", "status": "error", "content": []}
    blocks: list[list[Any]] = [
        [{"text": "hello"}],
        [{"text": "a"}, {"text": "b"}],
        [{"image": {"format": "png", "source": {"bytes": bytes(range(256))}}}],
        [{"document": {"format": "pdf", "name": "x", "source": {"bytes": b"%"}}}, {"text": "read"}],
        [{"toolResult": ok}, {"toolResult": failed}, {"text": "see"}],
        [{"guardContent": {"text": {"text": "guarded"}}}, {"cachePoint": {"type": "default"}}],
        [],
    ]
    said: list[list[Any]] = [
        [{"reasoningContent": {"reasoningText": {"text": "so", "signature": "s"}}}, {"text": "x"}],
        [{"toolUse": {"toolUseId": "c1", "name": "look", "input": {"at": "sea"}}}],
        [{"citationsContent": {"content": [{"text": "cited"}], "citations": []}}],
        [{"text": ""}],
    ]
    given = [message(one, 0, "user", tracking_id=f"t{n}") for n, one in enumerate(blocks)]
    given += [message(one, 0, "assistant", metadata={"custom": {"a": 1}}) for one in said]
    with repository() as (runtime, kept):
        for number, one in enumerate(given):
            one.message_id = number
        store(kept, *given)
        assert kept.list_messages("chat", "bot") == given
        assert kept.read_message("chat", "bot", 4) == given[4]
        assert kept.read_message("chat", "bot", 99) is None
        assert kept.list_messages("chat", "bot", limit=2, offset=3) == given[3:5]
        assert kept.list_messages("chat", "bot", limit=0) == []
        assert kept.list_messages("chat", "bot", offset=99) == []
        chat = runtime.user("alice").session("chat/bot")
        assert [one.content for one in chat.history()] == [
            "hello", "a\nb", "[image]", "[document]\nread", '{"x":[1]}', "", "see", "guarded",
            "[message]", "x", None, "cited", "[message]",
        ]  # fmt: skip


def test_a_message_that_is_stored_again_is_there_once() -> None:
    """By the index; a different one with the same index follows, and is told its own."""
    with repository() as (_, kept):
        first, second = message("ok", tracking_id="a"), message("ok", tracking_id="b")
        store(kept, first, first, second, second, message("ok", tracking_id="b"))
        assert (first.message_id, second.message_id) == (0, 1)
        other = message("no", 0)
        store(kept, other)
        assert other.message_id == 2
        store(kept, message("ok", 3, tracking_id="a"))  # said again
        assert said_in(kept) == ["ok", "ok", "no", "ok"]
        store(kept, message("far", 9), message("near", 5))
        assert [one.message_id for one in kept.list_messages("chat", "bot")] == [0, 1, 2, 3, 5, 9]


def test_the_newest_version_of_a_message_is_shown() -> None:
    """Where the message was, with its time of creation; other readers see no old one."""
    with repository() as (runtime, kept):
        store(kept, "a", "b", "c")
        created = kept.read_message("chat", "bot", 1).created_at
        for version in ("b1", "b2", "b2"):
            kept.update_message("chat", "bot", message(version, 1))
        redacted = message("b2", 1)
        redacted.redact_message = {"role": "user", "content": [{"text": "-"}]}
        kept.update_message("chat", "bot", redacted)
        found = kept.read_message("chat", "bot", 1)
        assert found == redacted
        assert found.created_at == created
        assert said_in(kept) == ["a", "-", "c"]
        history = runtime.user("alice").session("chat/bot").history()
        assert [one.content for one in history] == ["a", "c", "-"]
        store(kept, message("d", 3))
        assert said_in(kept) == ["a", "-", "c", "d"]
        with pytest.raises(SessionException, match="Message 9 does not exist"):
            kept.update_message("chat", "bot", message("x", 9))


def test_a_retry_after_other_changes_adds_nothing() -> None:
    """After an update, and after the session was cleared; new messages go behind."""
    with repository() as (runtime, kept):
        store(kept, message("a", 0, tracking_id="t"))
        kept.update_message("chat", "bot", message("b", 0, tracking_id="t"))
        store(kept, message("a", 0, tracking_id="t"))
        chat = runtime.user("alice").session("chat/bot")
        assert [one.content for one in chat.history()] == ["b"]
        chat.clear()
        store(kept, message("a", 0, tracking_id="t"))
        assert [one.content for one in chat.history()] == ["b"]
        store(kept, message("c", 0))
        assert said_in(kept) == ["b", "c"]
        store(kept, message("d", 2))
        chat.rewind(chat.history()[0].seq)
        assert said_in(kept) == ["b"]
        store(kept, message("e", 1), message("f", 2))
        assert said_in(kept) == ["b", "e", "f"]


def test_a_compacted_conversation_is_whole() -> None:
    """Strands has every message, others the summary; one that was summarized can be updated."""
    with repository(policy=BufferPolicy.window(10, fold="summary")) as (runtime, kept):
        said = [f"The ship number {number} is at sea." for number in range(20)]
        store(kept, *said)
        chat = runtime.user("alice").session("chat/bot")
        chat.settle()
        assert chat.size() <= 10
        assert said_in(kept) == said
        kept.update_message("chat", "bot", message("-", 3))
        assert said_in(kept) == [*said[:3], "-", *said[4:]]
        assert len(agent_of(kept, Scripted()).messages) == 20


def test_sessions_are_erased() -> None:
    """With all agents, states and messages; a new one of the same id begins anew."""
    with repository() as (runtime, kept):
        store(kept, "hello")
        kept.delete_session("chat")
        assert kept.read_session("chat") is None
        assert kept.read_agent("chat", "bot") is None
        assert runtime.user("alice").sessions(empty=True) == []
        with pytest.raises(SessionException, match="does not exist"):
            kept.delete_session("chat")
        agent_of(kept, Scripted("b"))("a")
        assert said_in(kept) == ["a", "b"]


def test_what_is_wrong_is_refused() -> None:
    """Before anything is written, and by name."""
    with repository() as (_, kept):
        agent, no_agent = SessionAgent("bot", {"mood": "bad"}, {}), SessionAgent("none", {}, {})
        chat = Session("chat", SessionType.AGENT)
        for refused, why in (
            (lambda: kept.create_session(chat), "chat already exists"),
            (lambda: kept.create_agent("chat", agent), "bot already exists"),
            (lambda: kept.create_agent("none", agent), "Session none does not exist"),
            (lambda: kept.create_message("none", "bot", message("a")), "Session none does not"),
            (
                lambda: kept.create_message("chat", "none", message("a")),
                "Agent none does not exist in session chat",
            ),
            (lambda: kept.update_agent("chat", no_agent), "Agent none does not exist"),
            (lambda: kept.list_messages("chat", "none"), "Agent none does not exist"),
        ):
            with pytest.raises(SessionException, match=why):
                refused()
        for bad in ("", "a\nb", "x" * 600, None, 7):
            with pytest.raises(InvalidId, match="a session id"):
                kept.read_session(bad)
            with pytest.raises(InvalidId, match="an agent id"):
                kept.read_agent("chat", bad)
        with pytest.raises(InvalidInput, match="message_id must be"):
            store(kept, message("a", -1))
        with pytest.raises(InvalidInput, match="message_id must be"):
            kept.read_message("chat", "bot", "../x")
        with pytest.raises(InvalidInput, match="limit"):
            kept.list_messages("chat", "bot", limit=-1)
        no_role: Any = {"role": "user"}
        for wrong in (
            no_role,
            message("a", role="system"),
            message([{"text": object()}]),
            message(["a"]),
        ):
            with pytest.raises(InvalidMessage):
                store(kept, wrong)
        assert kept.list_messages("chat", "bot") == []
        assert kept.read_agent("chat", "bot").state == {"mood": "fine"}
        with pytest.raises(InvalidInput, match="NoneType"):
            RemoraSessionRepository(None)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_the_event_loop_of_the_runtime_is_refused() -> None:
    """There a call would wait for itself."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        with pytest.raises(WrongLoop):
            RemoraSessionRepository(runtime.user("alice")).read_session("chat")


# -- memory ----------------------------------------------------------------------------------------


def test_an_agent_recalls_other_sessions() -> None:
    """By Strands' manager: before each call of the model, and by its tools; quoted."""
    with blocking.Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        kept = RemoraSessionRepository(alice)
        agent_of(kept, Scripted("Nice."), chat="march")('My flat is in "Lisbon".\nReally.')
        store = RemoraMemoryStore(alice, session="chat/bot")
        manager = MemoryManager(stores=[store], add_tool_config=True)
        model = Scripted("In Lisbon.")
        agent_of(kept, model, memory_manager=manager)("Where is my flat?")
        shown = str(model.seen[0])
        assert "Lisbon" in shown
        assert "Where is my flat?" in shown
        # the question itself is stored, and is not recalled to itself
        recalled, *others = anyio.run(store.search, "Where is my flat?")
        assert not any("flat" in one.content for one in others)
        assert recalled.content == r'"My flat is in \"Lisbon\".\nReally."'
        assert recalled.metadata["session"] == "march/bot"
        assert recalled.metadata["said_by"] == "user"
        everything = anyio.run(RemoraMemoryStore(alice).search, "Where is my flat?")
        assert any("Where is my flat?" in one.content for one in everything)
        bob = RemoraMemoryStore(runtime.user("bob"))
        assert anyio.run(bob.search, "flat") == []
        # what the manager's tool adds is found, and the same text is one memory
        for _ in range(2):
            anyio.run(manager.add, "Alice sings fado.", {"metadata": {"topic": "music"}})
        (added,) = [one for one in anyio.run(manager.search, "fado") if "fado" in one.content]
        assert (added.content, added.metadata["topic"]) == ('"Alice sings fado."', "music")
        assert added.store_name == "remora"


def test_messages_of_other_sessions_are_remembered() -> None:
    """Each text once, without tools' results; a store can be read-only."""
    with blocking.Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        store = RemoraMemoryStore(alice, extraction=True, max_search_results=2)
        manager = MemoryManager(stores=[store])
        agent = agent_with(None, Scripted(LOOKS, "A ship."), memory_manager=manager)

        async def talk() -> None:
            await agent.invoke_async("Look at the sea.")
            await manager.flush()
            await store.add_messages([{"role": "user", "content": [{"text": "Look at the sea."}]}])

        anyio.run(talk)
        alice.settle()
        assert sorted(one.text for one in alice.memories()) == ["A ship.", "Look at the sea."]
        assert len(anyio.run(store.search, "sea ship")) == 2
        assert anyio.run(store.search, "  ") == []
        with pytest.raises(InvalidMessage):
            anyio.run(store.add_messages, [{"role": "nobody", "content": []}])
        with pytest.raises(InvalidInput, match="max_search_results"):
            anyio.run(store.search, "sea", {"max_search_results": 0})
        with pytest.raises(InvalidInput, match="max_search_results"):
            RemoraMemoryStore(alice, max_search_results=0)
        with pytest.raises(InvalidInput, match="NoneType"):
            RemoraMemoryStore(None)  # type: ignore[arg-type]
        reader = MemoryManager(stores=[RemoraMemoryStore(alice, writable=False)])
        with pytest.raises(ValueError, match="no writable store"):
            anyio.run(reader.add, "x")


# -- snapshots -------------------------------------------------------------------------------------


def snapshotting(user: Any, model: Any) -> Any:
    return agent_with(SnapshotSessionManager("chat", storage=RemoraStorage(user)), model)


def test_an_agent_goes_on_from_its_snapshot(tmp_path: Path) -> None:
    """Of another process, as it were: with its conversation and its state; erased with the user."""
    with blocking.Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        first = snapshotting(runtime.user("alice"), Scripted(LOOKS, "A ship."))
        first.state.set("mood", "fine")
        first("Look at the sea.")
    with blocking.Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        alice = runtime.user("alice")
        model = Scripted("At the sea.")
        second = snapshotting(alice, model)
        second("Where?")
        said = ["Look at the sea.", "a ship at the sea", "A ship.", "Where?"]
        assert texts(model.seen[0]) == said
        assert second.state.get("mood") == "fine"
        alice.forget()
        model = Scripted("Who?")
        snapshotting(alice, model)("Where?")
        assert texts(model.seen[0]) == ["Where?"]


def test_storage_keeps_bytes_under_any_key() -> None:
    """What Strands' own storage does, for the keys of two users."""
    keys = ["a", "a/b", "a/b c", "ab", "ü%2f-", "a//b", "../x"]
    every = bytes(range(256))

    async def use(storage: Any) -> None:
        for key in keys:
            await storage.write(key, b"")
            await storage.write(key, every + key.encode())
        for key in keys:
            assert await storage.read(key) == every + key.encode(), key
        assert await storage.read("none") is None
        wanted = {
            "": sorted(keys),
            "a/": ["a//b", "a/b", "a/b c"],
            "a/b": ["a/b", "a/b c"],
            "x": [],
        }
        for prefix, listed in wanted.items():
            assert await storage.list(prefix) == listed, prefix
        await storage.delete("ab")
        await storage.delete("ab")
        assert await storage.list("a") == ["a", "a//b", "a/b", "a/b c"]
        assert {one.key for one in await storage.search("b")} >= {"a/b", "a//b"}
        for wrong in ("x" * 600, ""):
            with pytest.raises(StorageError):
                await storage.write(wrong, b"x")
        with pytest.raises(StorageError, match="not written"):
            await storage.write("big", b"x" * 4_000_000)

    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        alice, bob = (RemoraStorage(runtime.user(name)) for name in ("alice", "bob"))
        anyio.run(use, alice)
        assert anyio.run(bob.list) == []
        with pytest.raises(InvalidInput, match=r"remora\.blocking"):
            RemoraStorage("alice")  # type: ignore[arg-type]
