"""``remora import --from``: files of other products, through the command line."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph

from remora import Runtime
from remora.adapters.langchain import RemoraChatMessageHistory
from remora.maintenance import import_
from remora.storage.export import targets
from remora.storage.export.transfer import ExportReader
from tests.configs import LEAN as CONFIG
from tests.configs import LEAN_ENVIRONMENT
from tests.conformance import late
from tests.foreign import (
    chatgpt_talk,
    checkpoint_database,
    claude,
    claude_message,
    letta_message,
    mem0,
    sharegpt,
    write_json,
    zep_message,
)
from tests.patience import wait_until
from tests.programs import run_command_aside

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
agents, adapter = late("agents"), late("remora.adapters.openai_agents")


class Command:
    """Runs ``remora import`` on a directory, in a thread."""

    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.memory = base / "memory"
        self._capsys = capsys

    async def __call__(self, *words: object, code: int = 0) -> str:
        """What it prints; the text of its error, with single blanks, where that is due."""
        self._capsys.readouterr()
        ended = await run_command_aside("import", *words, "--dir", self.memory)
        out, error = self._capsys.readouterr()
        assert ended == code, (words, out, error)
        return out or " ".join(error.split())

    async def figures(self, *words: object, code: int = 0) -> Any:
        return json.loads(await self(*words, "--json", code=code))


@pytest.fixture
def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.setenv("COLUMNS", "160")
    for name, value in LEAN_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return Command(tmp_path, capsys)


async def test_an_export_is_imported_once(run: Command, tmp_path: Path) -> None:
    """Conversations keep their times and titles, and are recalled; a second run adds nothing, and a
    dry run writes nothing.
    """
    rows = [
        chatgpt_talk("c-1", "My cat is called Figaro.", "What a name!"),
        chatgpt_talk("c-2", "It rains."),
    ]
    path = write_json(tmp_path / "conversations.json", rows)
    given = ("--from", "chatgpt", path, "--user", "alice")
    assert "2 sessions with 3 messages, 0 memories would be" in await run(*given, "--dry-run")
    assert not run.memory.exists()
    assert "2 sessions with 3 messages, 0 memories imported" in await run(*given)
    assert "imported; 2 sessions there already" in await run(*given)
    path = write_json(path, [*rows, chatgpt_talk("c-3", "It snows.")])
    figures = await run.figures(*given)
    assert (figures["sessions"], figures["skipped"], figures["broken"]) == (1, 2, 0)
    async with Runtime(run.memory, config=CONFIG) as runtime:
        alice = runtime.user("alice")
        first, second = await alice.session("c-1").history()
        assert (first.id, first.content) == ("c-1-0", "My cat is called Figaro.")
        assert second.created_at == datetime.fromtimestamp(1_700_000_001, UTC)
        title = await alice.session("c-1").state.get("title")
        assert title is not None
        assert title.value == "Talk"
        (found, *_) = await alice.recall("Figaro")
        assert found.text == "My cat is called Figaro."
        assert (await runtime.counts()).messages == 4
        context = await alice.session("c-1").load()
        assert context.messages[0]["content"] == "My cat is called Figaro."


async def test_what_cannot_be_imported_is_named(run: Command, tmp_path: Path) -> None:
    """Before anything is written, unless what is broken is to be left out; memories of two users
    are theirs.
    """
    rows = [mem0("Likes tea"), {"user_id": "bob"}, mem0("Likes coffee", user_id="bob")]
    path = write_json(tmp_path / "memories.json", rows)
    given = ("--from", "mem0", path)
    said = await run(*given, code=1)
    assert "record 2 of memories.json cannot be imported" in said
    assert "missing required field `memory`" in said
    assert not run.memory.exists()
    said = await run(*given, "--dry-run", code=1)
    assert "without --skip-broken nothing is imported; with it, 0 sessions" in said
    assert "2 memories would be imported" in said
    assert "broken, and left out: 1 record" in said
    figures = await run.figures(*given, "--skip-broken", code=3)
    assert (figures["memories"], figures["broken"]) == (2, 1)
    assert figures["named"][0]["place"] == "record 2"
    assert "0 memories imported" in await run(*given, "--skip-broken", code=3)
    async with Runtime(run.memory, config=CONFIG) as runtime:
        for user, text in (("alice", "Likes tea"), ("bob", "Likes coffee")):
            (memory,) = await runtime.user(user).memories()
            assert memory.text == text
            assert memory.created_at == datetime(2024, 7, 26, 15, 3, 58, tzinfo=UTC)


LETTA = {
    "name": "Sam",
    "core_memory": [{"label": "human", "value": "Ann collects maps."}],
    "messages": [letta_message("user", "Which maps do I have?", id="m-1")],
}
ZEP = {
    "session_id": "s-1",
    "messages": [zep_message("user", "Which maps do I have?", uuid="m-1")],
    "facts": [{"fact": "Ann collects maps."}],
}


@pytest.mark.parametrize(
    ("product", "file", "session"), [("letta", LETTA, "letta-Sam"), ("zep", ZEP, "s-1")]
)
async def test_memories_and_conversations(
    run: Command, tmp_path: Path, product: str, file: Any, session: str
) -> None:
    """Both are the user's, and a second run doubles neither."""
    path = write_json(tmp_path / "file.json", file)
    for _ in range(2):
        await run("--from", product, path, "--user", "ann")
    async with Runtime(run.memory, config=CONFIG) as runtime:
        ann = runtime.user("ann")
        facts = [one.text for one in await ann.memories() if one.type == "fact"]
        assert facts == ["Ann collects maps."]
        (message,) = await ann.session(session).history()
        assert (message.id, message.content) == ("m-1", "Which maps do I have?")


async def test_wrong_options_are_named(run: Command, tmp_path: Path) -> None:
    path = write_json(tmp_path / "data.json", [sharegpt(("human", "Hi"), ("gpt", "Hello"))])
    assert "does not say whose it is" in await run("--from", "sharegpt", path, code=1)
    assert "need --from" in await run(path, "--user", "alice", code=2)
    assert "invalid choice" in await run("--from", "icq", path, code=2)
    assert "another shape" in await run("--from", "claude", path, "--user", "alice", code=1)
    assert "control character" in await run("--from", "sharegpt", path, "--user", "a\n", code=1)
    assert not run.memory.exists()


@pytest.mark.parametrize("product", ["claude", "sharegpt"])
async def test_a_server_may_run(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, product: str
) -> None:
    """It imports, and goes on; the file is that of the command. The translation is in the memory
    directory meanwhile: a service of systemd has a directory of its own for temporary files.
    """
    read: list[Path] = []

    def open_reader(path: Path, **options: Any) -> ExportReader:
        read.append(path)
        return targets.open_reader(path, **options)

    monkeypatch.setattr(import_, "open_reader", open_reader)
    said = [claude_message("human", "Hi"), claude_message("assistant", "Hello")]
    row = claude("u-1", said) if product == "claude" else sharegpt(("human", "Hi"), ("gpt", "Yo"))
    path = write_json(tmp_path / "data.json", [row])
    killed = run.memory / "import-killed"
    killed.mkdir(parents=True)
    (killed / "export.jsonl").write_text("What a killed import left.")
    async with Runtime(run.memory, config=CONFIG) as runtime:
        for skipped in (0, 1):
            figures = await run.figures("--from", product, path, "--user", "alice")
            assert (figures["sessions"], figures["skipped"]) == (1 - skipped, skipped)
        (session,) = await runtime.user("alice").sessions()
        history = await runtime.session("alice", session.session).history()
        assert [one.content for one in history][:1] == ["Hi"]
        await runtime.session("alice", session.session).append({"role": "user", "content": "More"})
        assert {path.parents[1] for path in read} == {run.memory.absolute()}
        assert not [path for path in read if path.exists()]
        assert not list(run.memory.glob("import-*")), "nor is there what a killed import left"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_a_command_that_is_told_to_end_leaves_no_copy(tmp_path: Path) -> None:
    """S4.37: nothing stays in the directory for temporary files."""
    rows = [sharegpt(("human", f"{n} {'A' * 1_000}"), ("gpt", "B")) for n in range(20_000)]
    path = write_json(tmp_path / "data.json", rows)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = ["import", "--from", "sharegpt", str(path), "--user", "alice"]
    command = [sys.executable, "-m", "remora", *words, "--dir", str(tmp_path / "memory")]
    variables = {**os.environ, **LEAN_ENVIRONMENT, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE) as process:
        wait_until(lambda: any(temporary.glob("*/export.jsonl")), "the copy is written")
        process.terminate()
        _, error = process.communicate()
    assert process.returncode == 130
    assert b"run the same command again" in error
    assert not any(temporary.iterdir())


async def test_sessions_of_the_agents_sdk(run: Command, tmp_path: Path) -> None:
    """An agent goes on with what the SDK's own session held."""
    items: list[Any] = [
        {"role": "user", "content": "What is the weather in Porto?"},
        {"type": "reasoning", "id": "rs-1", "summary": []},
        {"type": "function_call", "call_id": "c-1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c-1", "output": "Rain"},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg-1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "It rains.", "annotations": []}],
        },
    ]
    path = tmp_path / "agents.db"
    for name in ("chat/1", "other"):
        session = agents.SQLiteSession(name, path)
        await session.add_items(items)
        session.close()
    given = ("--from", "openai-agents", path, "--user", "alice")
    assert "2 sessions with 8 messages" in await run(*given)
    assert "2 sessions there already" in await run(*given)
    async with Runtime(run.memory, config=CONFIG) as runtime:
        chat = runtime.session("alice", "chat/1")
        assert await adapter.RemoraSession(chat).get_items() == items
        (context_call,) = (one for one in (await chat.load()).messages if one.get("tool_calls"))
        assert context_call["tool_calls"][0]["id"] == "c-1"
        with closing(sqlite3.connect(path)) as database:
            (said,) = database.execute("SELECT min(created_at) FROM agent_messages").fetchone()
        at = (await chat.history())[0].created_at
        assert at is not None
        assert at.strftime("%Y-%m-%d %H:%M:%S") == said


MESSAGES = [
    SystemMessage("Be brief.", id="m-0"),
    HumanMessage("What is the weather in Porto?", id="m-1"),
    AIMessage(
        "",
        id="m-2",
        tool_calls=[{"name": "weather", "args": {"in": "Porto"}, "id": "c-1"}],
        response_metadata={"model": "m"},
    ),
    ToolMessage("Rain", tool_call_id="c-1", id="m-3"),
    AIMessage([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "It rains."}]),
]


def run_graph(saver: InMemorySaver) -> None:
    """A thread of five messages in two runs, of which one message was removed again."""

    def answer(state: MessagesState) -> dict[str, Any]:
        if len(state["messages"]) > 2:
            return {"messages": [*MESSAGES[3:], RemoveMessage("gone")]}
        return {"messages": [*MESSAGES[:3], HumanMessage("Never mind", id="gone")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    compiled: Any = graph.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "thread/1"}}
    compiled.invoke({"messages": [MESSAGES[0]]}, config)
    compiled.invoke({"messages": []}, config)


async def test_threads_of_langgraph(run: Command, tmp_path: Path) -> None:
    """Written by LangGraph's serializer; what a chat message has no place for comes back."""
    saver, serializer = InMemorySaver(), JsonPlusSerializer()
    await anyio.to_thread.run_sync(run_graph, saver)
    found = list(saver.list({"configurable": {"thread_id": "thread/1"}}))
    rows = [
        ("thread/1", one.checkpoint["id"], *serializer.dumps_typed(one.checkpoint)) for one in found
    ]
    pending = ("thread/1", max(row[1] for row in rows), "task", 0, "messages", "null", b"")
    path = checkpoint_database(tmp_path / "checkpoints.db", rows, [pending])
    given = ("--from", "langgraph", path, "--user", "alice")
    said = await run(*given)
    assert "1 session with 5 messages" in said
    assert "not carried over: write of a step that was not finished: 1" in said
    assert "1 session there already" in await run(*given)
    async with Runtime(run.memory, config=CONFIG) as runtime:
        chat = runtime.session("alice", "thread/1")
        history = await chat.history()
        assert [one.role for one in history] == ["system", "user", "assistant", "tool", "assistant"]
        assert [one.id for one in history][:4] == ["m-0", "m-1", "m-2", "m-3"]
        times = [one.created_at.isoformat() for one in history if one.created_at]
        assert times == sorted(times)
        assert times[0] != times[-1]
        assert set(times) <= {one.checkpoint["ts"] for one in found}
        restored = await RemoraChatMessageHistory(chat).aget_messages()
        assert [one.content for one in restored] == [one.content for one in MESSAGES]
        assert restored[2].response_metadata == {"model": "m"}
        (_, _, call, result, answer) = (await chat.load()).messages
        assert call["tool_calls"][0]["function"] == {
            "name": "weather",
            "arguments": '{"in":"Porto"}',
        }
        assert result["content"] == "Rain"
        assert answer["content"][-1]["text"] == "It rains."


async def test_a_file_that_another_program_writes(run: Command, tmp_path: Path) -> None:
    """What it committed is imported; the log is not emptied."""
    session = agents.SQLiteSession("s", tmp_path / "agents.db")
    await session.add_items([{"role": "user", "content": "Hi"}])
    given = ("--from", "openai-agents", tmp_path / "agents.db", "--user", "alice")
    run_again = partial(run, *given, "--dry-run")
    assert "1 session with 1 message," in await run_again()
    await session.add_items([{"role": "user", "content": "More"}])
    assert "1 session with 2 messages," in await run_again()
    session.close()
