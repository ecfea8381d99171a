"""Agents of Strands Agents over remora: sessions and memory, with a scripted model.

Strands is not among the development requirements: ``python -m benchmarks.frameworks own strands``
runs these in an environment of their own.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("strands", reason="`python -m benchmarks.frameworks own strands`")
from strands import Agent, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.memory import MemoryManager
from strands.models import Model
from strands.multiagent import GraphBuilder
from strands.session import RepositorySessionManager, SnapshotSessionManager
from strands.types.exceptions import SessionException, StorageError
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from remora import Config, Runtime, blocking
from remora.adapters import versions
from remora.adapters.strands import RemoraMemoryStore, RemoraSessionRepository
from remora.adapters.strands_storage import RemoraStorage
from remora.errors import InvalidId, InvalidInput, InvalidMessage, WrongLoop
from remora.testing import HashEmbedder

pytestmark = [
    pytest.mark.blocking,  # Strands reads its own files when it runs an agent
    pytest.mark.filterwarnings("default"),
]
_PLAIN: dict[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "long_term": {"enabled": False},
    "models": {"embedder": "none"},
}
PLAIN = Config.from_dict(_PLAIN)
RECALLING = Config.from_dict({"tokens": {"counter": "heuristic"}, "recall": {"deadline_s": 60}})


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
        if isinstance(said, BaseException):
            raise said
        if "redact" in said:
            yield {"redactContent": {"redactUserContentMessage": said["redact"]}}
        for call in said.get("calls", ()):
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": call[0], "name": "look"}}}}  # fmt: skip  # noqa: E501
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": f'{{"at": "{call[1]}"}}'}}}}
            yield {"contentBlockStop": {}}
        if "text" in said:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": said["text"]}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if "calls" in said else "end_turn"}}


@tool
def look(at: str) -> str:
    """Look.

    Args:
        at: where.
    """
    return f"a ship at the {at}"


def text(said: str) -> dict[str, Any]:
    return {"text": said}


def calls(*called: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"calls": called, **more}


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


def agent_of(repository: Any, model: Any, *, chat: str = "chat", name: str = "bot", **options: Any) -> Any:  # fmt: skip  # noqa: E501
    return Agent(
        model=model,
        agent_id=name,
        tools=[look],
        callback_handler=None,
        session_manager=RepositorySessionManager(chat, repository),
        **options,
    )


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


# -- agents ----------------------------------------------------------------------------------------


def test_an_agent_remembers_its_conversation() -> None:
    """A second one sees what the first one said and did, with calls of tools and their results."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        kept = RemoraSessionRepository(runtime.user("alice"))
        first = agent_of(kept, Scripted(calls(("c1", "sea"), ("c2", "bay"), text="I look."), text("Two ships.")))  # fmt: skip  # noqa: E501
        first.state.set("seen", ["sea", "bay"])
        first("Look at the sea.")
        model = Scripted(text("At the sea."))
        second = agent_of(kept, model)
        assert second.state.get("seen") == ["sea", "bay"]
        second("Where did you look?")
        assert [one["role"] for one in model.seen[0]] == [
            "user", "assistant", "user", "assistant", "user",
        ]  # fmt: skip
        assert texts(model.seen[0]) == [
            "Look at the sea.", "I look.", "a ship at the sea", "a ship at the bay", "Two ships.",
            "Where did you look?",
        ]  # fmt: skip
        history = runtime.user("alice").session("chat/bot").history()
        assert [one.role for one in history] == [
            "user", "assistant", "tool", "tool", "assistant", "user", "assistant",
        ]  # fmt: skip
        assert [one.id for one in history[1].tool_calls or ()] == ["c1", "c2"]
        assert [one.tool_call_id for one in history[2:4]] == ["c1", "c2"]
        assert history[2].content == "a ship at the sea"


_PROCESS = """
import os, sys
sys.path[:0] = [{root!r}]
from strands import Agent
from strands.session import RepositorySessionManager
from remora import blocking
from remora.adapters.strands import RemoraSessionRepository
from tests.integration.test_strands import PLAIN, Scripted, agent_of, calls, text, texts
with blocking.Runtime({directory!r}, config=PLAIN) as runtime:
    model = Scripted(*{answers!r})
    agent = agent_of(RemoraSessionRepository(runtime.user("alice")), model)
    agent({question!r})
    print(texts(model.seen[0]), flush=True)
    os._exit(0)
"""


def test_a_conversation_is_resumed_in_another_process(tmp_path: Path) -> None:
    """What the first process was told, and what its tool found; it ended without closing."""

    def run(question: str, *answers: Any) -> str:
        program = _PROCESS.format(
            root=str(Path(__file__).parents[2]),
            directory=str(tmp_path / "memory"),
            question=question,
            answers=answers,
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    run("Look at the sea.", calls(("c1", "sea")), text("A ship."))
    shown = run("And now?", text("Nothing."))
    assert shown == "['Look at the sea.', 'a ship at the sea', 'A ship.', 'And now?']"


def test_eight_runs_at_once_lose_nothing() -> None:
    """Each in a thread of its own, as in as many requests; each one's messages are in order.

    They begin with the same messages, and so count from the same index.
    """

    def make(number: int) -> Any:
        model = Scripted(calls((f"c{number}", f"sea {number}")), text(f"answer {number}"))
        return agent_of(kept, model)

    with repository() as (_, kept):
        agents = [make(number) for number in range(8)]
        with ThreadPoolExecutor(8) as threads:
            asked = [f"question {number}" for number in range(8)]
            list(threads.map(lambda agent, question: agent(question), agents, asked))
        found = kept.list_messages("chat", "bot")
        assert [one.message_id for one in found] == list(range(32))
        places: dict[str, int] = {}
        for place, one in enumerate(found):
            (block,) = one.message["content"]
            name = block.get("text") or f"{next(iter(block))} {next(iter(block.values()))['toolUseId']}"  # fmt: skip  # noqa: E501
            places[name] = place
        assert len(places) == 32
        for number in range(8):
            ours = [
                places[f"question {number}"],
                places[f"toolUse c{number}"],
                places[f"toolResult c{number}"],
                places[f"answer {number}"],
            ]
            assert ours == sorted(ours)
        # a later run begins with all of it, and its messages follow
        agent_of(kept, Scripted(text("done")))("And now?")
        assert said_in(kept)[-2:] == ["And now?", "done"]


def test_agents_of_a_session_stay_apart() -> None:
    """Their messages and states, whatever their ids are; so do users."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        kept = RemoraSessionRepository(runtime.user("alice"))
        who = [("a", "b"), ("a", "c"), ("a/b", "c"), ("a", "b%2f-c"), ("a%", "b"), ("a b", "ü")]
        for chat, name in who:
            agent = agent_of(kept, Scripted(text(f"I am {chat} {name}")), chat=chat, name=name)
            agent.state.set("name", name)
            agent("Who are you?")
        kept.create_agent("a", SessionAgent("b/c", {"name": "b/c"}, {}))
        assert said_in(kept, "a", "b/c") == []
        for chat, name in who:
            assert said_in(kept, chat, name) == ["Who are you?", f"I am {chat} {name}"]
            found = kept.read_agent(chat, name)
            assert found is not None
            assert found.state == {"name": name}
        other = RemoraSessionRepository(runtime.user("bob"))
        assert other.read_session("a") is None
        assert other.read_agent("a", "b") is None


def test_what_a_guardrail_redacts_is_gone() -> None:
    """From the session, from what other readers load, and from recall."""
    with blocking.Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        kept = RemoraSessionRepository(alice)
        model = Scripted({"redact": "[redacted]", "text": "No."}, text("Hello."))
        agent = agent_of(kept, model)
        agent("My number is 4711.")
        agent("Hello?")
        assert said_in(kept) == ["[redacted]", "No.", "Hello?", "Hello."]
        assert said_in(kept) == texts(agent_of(kept, Scripted()).messages)
        chat = alice.session("chat/bot")
        shown = [*(one.content for one in chat.history()), *map(str, chat.load("my number").messages)]  # fmt: skip  # noqa: E501
        assert not any("4711" in str(one) for one in shown)
        assert not any("4711" in one.text for one in alice.recall("my number"))


def test_a_window_is_restored() -> None:
    """An agent is given the messages that Strands' window has left it, and no others."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        kept = RemoraSessionRepository(runtime.user("alice"))
        for number in range(4):
            window = SlidingWindowConversationManager(window_size=4)
            agent = agent_of(kept, Scripted(text(f"a{number}")), conversation_manager=window)
            agent(f"q{number}")
        again = agent_of(kept, Scripted(), conversation_manager=SlidingWindowConversationManager(window_size=4))  # fmt: skip  # noqa: E501
        assert texts(again.messages) == ["q2", "a2", "q3", "a3"]
        assert len(said_in(kept)) == 8


def test_a_graph_is_kept() -> None:
    """Its state, in the session, and that of its agents."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        kept = RemoraSessionRepository(runtime.user("alice"))
        builder = GraphBuilder()
        builder.set_graph_id("graph/1")
        builder.add_node(Agent(model=Scripted(text("done")), callback_handler=None), "first")
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
            kept.create_message("chat", "bot", one)
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
        for one in (first, first, second, second, message("ok", tracking_id="b")):
            kept.create_message("chat", "bot", one)
        assert (first.message_id, second.message_id) == (0, 1)
        other = message("no", 0)
        kept.create_message("chat", "bot", other)
        assert other.message_id == 2
        kept.create_message("chat", "bot", message("ok", 3, tracking_id="a"))  # said again
        assert said_in(kept) == ["ok", "ok", "no", "ok"]
        kept.create_message("chat", "bot", message("far", 9))
        kept.create_message("chat", "bot", message("near", 5))
        assert [one.message_id for one in kept.list_messages("chat", "bot")] == [0, 1, 2, 3, 5, 9]


def test_the_newest_version_of_a_message_is_shown() -> None:
    """Where the message was, with its time of creation; other readers see no old one."""
    with repository() as (runtime, kept):
        for number, one in enumerate(("a", "b", "c")):
            kept.create_message("chat", "bot", message(one, number))
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
        kept.create_message("chat", "bot", message("d", 3))
        assert said_in(kept) == ["a", "-", "c", "d"]
        with pytest.raises(SessionException, match="Message 9 does not exist"):
            kept.update_message("chat", "bot", message("x", 9))


def test_a_retry_after_other_changes_adds_nothing() -> None:
    """After an update, and after the session was cleared; new messages go behind."""
    with repository() as (runtime, kept):
        kept.create_message("chat", "bot", message("a", 0, tracking_id="t"))
        kept.update_message("chat", "bot", message("b", 0, tracking_id="t"))
        kept.create_message("chat", "bot", message("a", 0, tracking_id="t"))
        chat = runtime.user("alice").session("chat/bot")
        assert [one.content for one in chat.history()] == ["b"]
        chat.clear()
        kept.create_message("chat", "bot", message("a", 0, tracking_id="t"))
        assert [one.content for one in chat.history()] == ["b"]
        kept.create_message("chat", "bot", message("c", 0))
        assert said_in(kept) == ["b", "c"]
        kept.create_message("chat", "bot", message("d", 2))
        chat.rewind(chat.history()[0].seq)
        assert said_in(kept) == ["b"]
        kept.create_message("chat", "bot", message("e", 1))
        kept.create_message("chat", "bot", message("f", 2))
        assert said_in(kept) == ["b", "e", "f"]


def test_runs_take_turns_in_an_exclusive_block() -> None:
    """Each then sees the questions and answers of those before it, and no mixture."""

    def run(number: int) -> None:
        with alice.session("chat/bot").exclusive():
            agent = agent_of(kept, Scripted(text(f"answer {number}")))
            assert len(agent.messages) % 2 == 0
            agent(f"question {number}")

    with repository() as (runtime, kept):
        alice = runtime.user("alice")
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(run, range(4)))
        found = said_in(kept)
        assert len(found) == 8
        for place in range(0, 8, 2):
            assert found[place + 1] == found[place].replace("question", "answer")


def test_a_compacted_conversation_is_whole() -> None:
    """Strands has every message, others the summary; one that was summarized can be updated."""
    config = Config.from_dict({**_PLAIN, "buffer": {"token_limit": 2_000}})
    with repository(config=config) as (runtime, kept):
        said = [f"The ship number {number} is at sea. " * 10 for number in range(60)]
        for number, one in enumerate(said):
            kept.create_message("chat", "bot", message(one, number))
        chat = runtime.user("alice").session("chat/bot")
        chat.settle()
        assert chat.size() < 60
        assert said_in(kept) == said
        kept.update_message("chat", "bot", message("-", 3))
        assert said_in(kept) == [*said[:3], "-", *said[4:]]
        again = agent_of(kept, Scripted())
        assert len(again.messages) == 60


def test_a_message_from_elsewhere_is_shown() -> None:
    """What a person of the support team says, by remora's own session."""
    with repository() as (runtime, kept):
        kept.create_message("chat", "bot", message("hello"))
        chat = runtime.user("alice").session("chat/bot")
        chat.append({"role": "assistant", "content": "Anna here."})
        agent = agent_of(kept, Scripted(text("Bye.")))
        agent("Thanks.")
        assert said_in(kept) == ["hello", "Anna here.", "Thanks.", "Bye."]
        assert [one.message_id for one in kept.list_messages("chat", "bot")] == [0, 1, 2, 3]


def test_sessions_are_erased() -> None:
    """With all agents, states and messages; a new one of the same id begins anew."""
    with repository() as (runtime, kept):
        kept.create_message("chat", "bot", message("hello"))
        kept.delete_session("chat")
        assert kept.read_session("chat") is None
        assert kept.read_agent("chat", "bot") is None
        assert runtime.user("alice").sessions(empty=True) == []
        with pytest.raises(SessionException, match="does not exist"):
            kept.delete_session("chat")
        agent_of(kept, Scripted(text("b")))("a")
        assert said_in(kept) == ["a", "b"]


def test_what_is_wrong_is_refused() -> None:
    """Before anything is written, and by name."""
    with repository() as (_, kept):
        with pytest.raises(SessionException, match="chat already exists"):
            kept.create_session(Session("chat", SessionType.AGENT))
        with pytest.raises(SessionException, match="bot already exists"):
            kept.create_agent("chat", SessionAgent("bot", {"mood": "bad"}, {}))
        with pytest.raises(SessionException, match="Session none does not exist"):
            kept.create_agent("none", SessionAgent("bot", {}, {}))
        with pytest.raises(SessionException, match="Session none does not exist"):
            kept.create_message("none", "bot", message("a"))
        with pytest.raises(SessionException, match="Agent none does not exist in session chat"):
            kept.create_message("chat", "none", message("a"))
        with pytest.raises(SessionException, match="Agent none does not exist"):
            kept.update_agent("chat", SessionAgent("none", {}, {}))
        with pytest.raises(SessionException, match="Agent none does not exist"):
            kept.list_messages("chat", "none")
        for bad in ("", "a\nb", "x" * 600, None, 7):
            with pytest.raises(InvalidId, match="a session id"):
                kept.read_session(bad)
            with pytest.raises(InvalidId, match="an agent id"):
                kept.read_agent("chat", bad)
        with pytest.raises(InvalidInput, match="message_id must be"):
            kept.create_message("chat", "bot", message("a", -1))
        with pytest.raises(InvalidInput, match="message_id must be"):
            kept.read_message("chat", "bot", "../x")
        with pytest.raises(InvalidInput, match="limit"):
            kept.list_messages("chat", "bot", limit=-1)
        wrong: list[Any] = [
            {"role": "user"},
            message("a", role="system"),
            message([{"text": object()}]),
            message(["a"]),
        ]
        for one in wrong:
            with pytest.raises(InvalidMessage):
                kept.create_message("chat", "bot", one)
        assert kept.list_messages("chat", "bot") == []
        assert kept.read_agent("chat", "bot").state == {"mood": "fine"}
        with pytest.raises(InvalidInput, match="NoneType"):
            RemoraSessionRepository(None)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_with_an_async_runtime() -> None:
    """From every thread but that of its event loop, where a call would wait for itself."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        kept = RemoraSessionRepository(runtime.user("alice"))
        with pytest.raises(WrongLoop):
            kept.read_session("chat")

        def run() -> None:
            agent_of(kept, Scripted(text("b")))("a")

        await anyio.to_thread.run_sync(run)
        assert [one.content for one in await runtime.session("alice", "chat/bot").history()] == [
            "a", "b",
        ]  # fmt: skip


# -- memory ----------------------------------------------------------------------------------------


def test_an_agent_recalls_other_sessions() -> None:
    """By Strands' manager: before each call of the model, and by its tools; quoted."""
    with blocking.Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        kept = RemoraSessionRepository(alice)
        agent_of(kept, Scripted(text("Nice.")), chat="march")('My flat is in "Lisbon".\nReally.')
        store = RemoraMemoryStore(alice, session="chat/bot")
        manager = MemoryManager(stores=[store], add_tool_config=True)
        model = Scripted(text("In Lisbon."))
        agent_of(kept, model, memory_manager=manager)("Where is my flat?")
        shown = str(model.seen[0])
        assert "Lisbon" in shown
        assert "Where is my flat?" in shown
        # the question itself is stored, and is not recalled to itself
        (recalled,) = [one for one in anyio.run(store.search, "Where is my flat?") if "flat" in one.content]  # fmt: skip  # noqa: E501
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
        agent = Agent(model=Scripted(calls(("c1", "sea")), text("A ship.")), tools=[look], callback_handler=None, memory_manager=manager)  # fmt: skip  # noqa: E501

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
    return Agent(
        model=model,
        agent_id="bot",
        tools=[look],
        callback_handler=None,
        session_manager=SnapshotSessionManager("chat", storage=RemoraStorage(user)),
    )


def test_an_agent_goes_on_from_its_snapshot(tmp_path: Path) -> None:
    """Of another process, as it were: with its conversation and its state; erased with the user."""
    with blocking.Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        first = snapshotting(runtime.user("alice"), Scripted(calls(("c1", "sea")), text("A ship.")))
        first.state.set("mood", "fine")
        first("Look at the sea.")
    with blocking.Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        alice = runtime.user("alice")
        model = Scripted(text("At the sea."))
        second = snapshotting(alice, model)
        second("Where?")
        assert texts(model.seen[0]) == [
            "Look at the sea.",
            "a ship at the sea",
            "A ship.",
            "Where?",
        ]
        assert second.state.get("mood") == "fine"
        alice.forget()
        model = Scripted(text("Who?"))
        snapshotting(alice, model)("Where?")
        assert texts(model.seen[0]) == ["Where?"]


def test_storage_keeps_bytes_under_any_key() -> None:
    """What Strands' own storage does, for the keys of two users."""

    async def use(storage: Any) -> list[Any]:
        keys = ["a", "a/b", "a/b c", "ab", "ü%2f-", "a//b", "../x"]
        for key in keys:
            await storage.write(key, b"")
            await storage.write(key, bytes(range(256)) + key.encode())
        found = [await storage.read(key) for key in [*keys, "none"]]
        listed = [await storage.list(prefix) for prefix in ("", "a/", "a/b", "x")]
        await storage.delete("ab")
        await storage.delete("ab")
        return [found, listed, await storage.list("a"), await storage.search("b")]

    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        alice, bob = (RemoraStorage(runtime.user(name)) for name in ("alice", "bob"))
        found, listed, after, hits = anyio.run(use, alice)
        assert found[:-1] == [bytes(range(256)) + one.encode() for one in ("a", "a/b", "a/b c", "ab", "ü%2f-", "a//b", "../x")]  # fmt: skip  # noqa: E501
        assert found[-1] is None
        assert listed[0] == sorted(["a", "a/b", "a/b c", "ab", "ü%2f-", "a//b", "../x"])
        assert listed[1:] == [["a//b", "a/b", "a/b c"], ["a/b", "a/b c"], []]
        assert after == ["a", "a//b", "a/b", "a/b c"]
        assert {one.key for one in hits} >= {"a/b", "a//b"}
        assert anyio.run(bob.list) == []
        for wrong in ("x" * 600, ""):
            with pytest.raises(StorageError):
                anyio.run(alice.write, wrong, b"x")
        with pytest.raises(StorageError, match="not written"):
            anyio.run(alice.write, "big", b"x" * 4_000_000)
        with pytest.raises(InvalidInput, match=r"remora\.blocking"):
            RemoraStorage("alice")  # type: ignore[arg-type]


# -- releases --------------------------------------------------------------------------------------


def test_an_untested_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the range that the adapter is tested with; the installed one is in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_if_untested("strands-agents")
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.0.1")
    with pytest.warns(versions.UntestedVersion, match=r"strands-agents 2\.0\.1 .* with 1\.62"):
        versions.warn_if_untested("strands-agents")
