"""What files of other products become, and what of them is refused."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remora import Runtime
from remora.errors import InvalidInput, RemoraError, StorageError
from remora.maintenance.importing import files
from remora.maintenance.importing.records import Conversation, Found, Notes, Remembered
from remora.maintenance.importing.translate import SOURCES, Translation, translate
from remora.storage.export.jsonl import JsonlReader
from remora.transfer import SessionExport
from tests.configs import PLAIN
from tests.foreign import (
    PNG,
    agents_database,
    chatgpt,
    chatgpt_talk,
    checkpoint_database,
    claude,
    claude_message,
    letta_message,
    mem0,
    node,
    sharegpt,
    write_json,
    zep_message,
)

pytestmark = pytest.mark.blocking
anyio_only = pytest.mark.anyio


def read(product: str, path: Path) -> tuple[list[Found], dict[str, int]]:
    """What the file becomes, and how much is left out for which reason."""
    source, notes = SOURCES[product], Notes()
    with source.open(path) as records:
        found = [one for _, raw in records.each for one in source.translate(raw, notes)]
    return found, {reason: left.count for reason, left in notes.left_out.items()}


def chats(found: Found) -> list[dict[str, Any]]:
    assert isinstance(found, Conversation)
    return [one.chat for one in found.messages]


# -- ChatGPT ---------------------------------------------------------------------------------------


def test_the_branch_that_chatgpt_shows_is_imported(tmp_path: Path) -> None:
    nodes = {
        "root": {"message": None, "parent": None, "children": []},
        "system": node("system", "", parent="root"),
        "settings": node(
            "user", parent="system", content={"content_type": "user_editable_context"}
        ),
        "asked": node("user", "When does it leave?", parent="settings", at=1_700_000_001.25),
        "first": node("assistant", "At eight.", parent="asked", at=1_700_000_002.0),
        "again": node("assistant", "At nine.", parent="asked", at=1_700_000_003.0),
        "hidden": node(
            "user",
            "Go on.",
            parent="again",
            metadata={"is_visually_hidden_from_conversation": True},
        ),
        "thought": node(
            "assistant", parent="hidden", content={"content_type": "thoughts", "thoughts": []}
        ),
        "thanks": node("user", "Thanks!", parent="thought"),
    }
    path = write_json(tmp_path / "conversations.json", [chatgpt("c-1", nodes, "thanks")])
    [found], left = read("chatgpt", path)
    assert isinstance(found, Conversation)
    assert (found.id, found.title, found.user) == ("c-1", "Talk", "")
    assert chats(found) == [
        {"role": "user", "content": "When does it leave?"},
        {"role": "assistant", "content": "At nine."},
        {"role": "user", "content": "Thanks!"},
    ]
    assert [one.id for one in found.messages] == ["asked", "again", "thanks"]
    assert found.messages[0].at == datetime.fromtimestamp(1_700_000_001.25, UTC)
    assert left == {
        "message of another branch (edited or regenerated)": 1,
        "custom instructions, which ChatGPT repeats in conversations": 1,
        "hidden message": 1,
        "reasoning of the model": 1,
    }


def test_calls_of_chatgpts_tools_are_tool_messages(tmp_path: Path) -> None:
    code = {"content_type": "code", "language": "unknown", "text": "print(6 * 7)"}
    printed = {"content_type": "execution_output", "text": "42"}
    nodes = {
        "asked": node("user", "What is six times seven?"),
        "call": node("assistant", parent="asked", content=code, recipient="python"),
        "result": node("tool", parent="call", content=printed, name="python"),
        "more": node("tool", "done", parent="result", name="python"),
        "search": node("assistant", '{"query": "42"}', parent="more", recipient="web.run"),
        "page": node("tool", "A number.", parent="search", name="web"),
        "answer": node("assistant", "It is 42.", parent="page"),
    }
    [found], left = read("chatgpt", write_json(tmp_path / "c.json", [chatgpt("c", nodes, None)]))
    (_, call, result, search, page, answer) = chats(found)
    assert call["tool_calls"] == [
        {
            "id": "call",
            "type": "function",
            "function": {"name": "python", "arguments": '{"input":"print(6 * 7)"}'},
        }
    ]
    assert result == {"role": "tool", "tool_call_id": "call", "content": "42\n\ndone"}
    assert search["tool_calls"][0]["function"]["arguments"] == '{"query": "42"}'
    assert page["tool_call_id"] == "search"
    assert answer["content"] == "It is 42."
    assert left == {}


def test_images_of_a_zip_are_kept_and_others_are_named(tmp_path: Path) -> None:
    def image(pointer: str) -> dict[str, Any]:
        return {"content_type": "image_asset_pointer", "asset_pointer": pointer}

    parts = [image("file-service://file-AbC1"), image("sediment://file_00ff#x"), "What is it?"]
    content = {"content_type": "multimodal_text", "parts": parts}
    attachments = [{"name": "plan.pdf", "mimeType": "application/pdf"}, {"mime_type": "image/png"}]
    asked = node("user", content=content, metadata={"attachments": attachments})
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/conversations-000.json", json.dumps([chatgpt("a", {"n": asked}, "n")]))
        archive.writestr("x/conversations-001.json", json.dumps([chatgpt_talk("b", "Hello")]))
        archive.writestr("x/shared_conversations.json", "[]")
        archive.writestr("x/file-AbC1-photo.dat", PNG)
    [found, other], left = read("chatgpt", path)
    assert chats(other) == [{"role": "user", "content": "Hello"}]
    [chat] = chats(found)
    assert chat["content"][0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert chat["content"][1:] == [
        {"type": "text", "text": "[image]"},
        {"type": "text", "text": "What is it?"},
    ]
    assert left == {
        "image that the file does not hold, or that is too large": 1,
        "attached file": 1,
    }


def test_sounds_and_pictures_that_a_tool_made(tmp_path: Path) -> None:
    """A transcript is text; all that a tool says up to the next answer is one result."""
    picture = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://file_01"}
    spoken = [{"content_type": "audio_transcription", "text": "Draw a cat."}, {"content_type": "x"}]
    nodes = {
        "asked": node("user", content={"content_type": "multimodal_text", "parts": spoken}),
        "call": node("assistant", "a cat", parent="asked", recipient="dalle.text2im"),
        "made": node(
            "tool",
            parent="call",
            name="dalle.text2im",
            content={"content_type": "multimodal_text", "parts": [picture]},
        ),
        "more": node("tool", "It is shown.", parent="made", name="dalle.text2im"),
        "odd": node("assistant", parent="more", content={"content_type": "app_pairing_content"}),
    }
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversations.json", json.dumps([chatgpt("c", nodes, "odd")]))
        archive.writestr("file_01-cat.png", PNG)
    [found], left = read("chatgpt", path)
    asked, call, result = chats(found)
    assert asked == {"role": "user", "content": "Draw a cat."}
    assert [part["type"] for part in result["content"]] == ["image_url", "text"]
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    assert left == {"part of the type x": 1, "content of the type app_pairing_content": 1}


# -- Claude, ShareGPT ------------------------------------------------------------------------------


def test_blocks_of_claude_are_messages(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": None, "name": "repl", "input": {"code": "6*7"}}
    result = {"type": "tool_result", "name": "repl", "content": [{"type": "text", "text": "42"}]}
    notes = {"file_name": "notes.txt", "extracted_content": "Six and seven."}
    messages = [
        claude_message(
            "human", "Multiply.", uuid="m-1", attachments=[notes], files=[{"file_name": "cat.png"}]
        ),
        claude_message(
            "assistant",
            {"type": "thinking", "thinking": "Hm."},
            "I compute.",
            call,
            result,
            "It is 42.",
            uuid="m-2",
        ),
        {"sender": "human", "text": "Thanks", "created_at": "2024-05-01T10:00:09Z"},
    ]
    path = write_json(tmp_path / "conversations.json", [claude("u-1", messages)])
    [found], left = read("claude", path)
    assert isinstance(found, Conversation)
    asked, called, answered, said, thanks = chats(found)
    assert asked["content"] == "Multiply.\n\nnotes.txt:\nSix and seven."
    assert called["content"] == "I compute."
    assert called["tool_calls"][0]["function"] == {"name": "repl", "arguments": '{"code":"6*7"}'}
    assert answered["tool_call_id"] == called["tool_calls"][0]["id"]
    assert (answered["content"], said["content"]) == ("42", "It is 42.")
    assert thanks == {"role": "user", "content": "Thanks"}
    assert found.messages[-1].at == datetime(2024, 5, 1, 10, 0, 9, tzinfo=UTC)
    assert left == {"reasoning of the model": 1, "attached file": 1}


@pytest.mark.parametrize("form", ["array.json", "lines.jsonl", "lines.json"])
def test_sharegpt(tmp_path: Path, form: str) -> None:
    rows = [
        sharegpt(("human", "Hi"), ("gpt", "Hello"), id="identity_0", system="Be kind."),
        sharegpt(
            ("human", "Weather?"),
            ("function_call", '{"name": "weather", "arguments": {"in": "Porto"}}'),
            ("observation", "Rain"),
            ("gpt", "It rains."),
        ),
    ]
    path = tmp_path / form
    text = json.dumps(rows, indent=1) if form == "array.json" else "\n".join(map(json.dumps, rows))
    path.write_text(f"\ufeff{text}\n\n", encoding="utf-8")
    [one, other], _ = read("sharegpt", path)
    assert [chat["role"] for chat in chats(one)] == ["system", "user", "assistant"]
    _, call, result, answer = chats(other)
    assert call["tool_calls"][0]["function"]["name"] == "weather"
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    assert answer["content"] == "It rains."
    assert isinstance(one, Conversation)
    assert isinstance(other, Conversation)
    assert one.id != other.id
    assert {one.id, other.id} == {each.id for each in read("sharegpt", path)[0]}  # type: ignore[union-attr]


# -- memories --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["results", "memories", ""])
def test_memories_of_mem0(tmp_path: Path, key: str) -> None:
    rows = [
        mem0("Likes tea", categories=["food"], metadata={"from": "app"}, agent_id="cook"),
        mem0("Was in Porto", user_id=None, run_id="trip", created_at=1_700_000_000),
    ]
    answer = {key: rows, "relations": [{"source": "alice"}]} if key else rows
    (tea, porto), left = read("mem0", write_json(tmp_path / "memories.json", answer))
    assert tea == Remembered(
        "Likes tea",
        "alice",
        datetime(2024, 7, 26, 15, 3, 58, tzinfo=UTC),
        agent="cook",
        metadata={"from": "app", "categories": ["food"]},
    )
    assert isinstance(porto, Remembered)
    assert (porto.user, porto.session) == ("", "trip")
    assert left == ({"relation of the graph": 1} if key else {})


def test_an_agent_file_of_letta(tmp_path: Path) -> None:
    packed = {"type": "user_message", "message": "I am Ann.", "time": "2025-04-01"}
    sent = {"name": "send_message", "arguments": '{"message": "Hi, Ann!"}'}
    searched = {"name": "search", "arguments": '{"query": "Ann"}'}
    status = {"status": "OK", "message": "No results", "time": "2025-04-01"}
    messages = [
        letta_message("system", "You are Letta."),
        letta_message("user", json.dumps({"type": "login", "last_login": "never"})),
        letta_message("user", json.dumps(packed), id="message-1"),
        letta_message("assistant", "", tool_calls=[{"id": "c-1", "function": searched}]),
        letta_message("tool", json.dumps(status), tool_call_id="c-1"),
        {
            **letta_message("assistant", "", tool_calls=[{"id": "c-2", "function": sent}]),
            "content": [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "Hm."}],
        },
        letta_message("tool", json.dumps(status), tool_call_id="c-2"),
    ]
    blocks = [{"label": "human", "value": "Ann"}, {"label": "persona", "value": "I am Sam."}]
    agent = {"name": "Sam", "messages": messages, "core_memory": blocks, "agent_type": "memgpt"}
    (human, persona, talk), left = read("letta", write_json(tmp_path / "sam.af", agent))
    assert human == Remembered("Ann", metadata={"label": "human"})
    assert persona == Remembered("I am Sam.", agent="Sam", metadata={"label": "persona"})
    asked, called, result, answer = chats(talk)
    assert asked == {"role": "user", "content": "I am Ann."}
    assert called["tool_calls"][0]["function"] == searched
    assert result == {"role": "tool", "tool_call_id": "c-1", "content": "No results"}
    assert answer == {"role": "assistant", "content": "Hi, Ann!"}
    assert left == {
        "system prompt of the agent": 1,
        "event of the type login": 1,
        "reasoning of the model": 1,
    }

    named = [{"id": f"block-{n}", **one} for n, one in enumerate(blocks)]
    agents = [{"id": "agent-0", "name": "Sam", "messages": messages, "block_ids": ["block-0"]}]
    file = {"agents": agents, "blocks": named, "files": [{"id": "file-0"}]}
    (human, again), left = read("letta", write_json(tmp_path / "new.af", file))
    assert human == Remembered("Ann", metadata={"label": "human"})
    assert chats(again) == chats(talk)
    assert left["file of an agent"] == 1
    assert read("letta", write_json(tmp_path / "twice.af", json.dumps(file)))[0] == [human, again]


def test_messages_as_lettas_api_lists_them(tmp_path: Path) -> None:
    def listed(kind: str, second: int, **fields: Any) -> dict[str, Any]:
        return {"message_type": kind, "date": f"2025-04-01T10:00:0{second}+00:00", **fields}

    call = {"name": "search", "arguments": "{}", "tool_call_id": "c-1"}
    rows = [
        listed("assistant_message", 5, id="m-3", content="Nothing."),
        listed("tool_return_message", 4, id="m-2", tool_return="[]", tool_call_id="c-1"),
        listed("tool_call_message", 3, id="m-1", tool_call=call),
        listed("reasoning_message", 2, id="m-1", reasoning="Hm."),
        listed("user_message", 1, id="m-0", content="Look."),
    ]
    [talk], left = read("letta", write_json(tmp_path / "messages.json", rows))
    assert [chat["role"] for chat in chats(talk)] == ["user", "assistant", "tool", "assistant"]
    assert chats(talk)[2] == {"role": "tool", "tool_call_id": "c-1", "content": "[]"}
    assert left == {"reasoning of the model": 1}


@pytest.mark.parametrize("form", ["nested", "apart", "threads"])
def test_sessions_and_facts_of_zep(tmp_path: Path, form: str) -> None:
    messages = [
        zep_message("user", "I moved to Porto.", uuid="m-1", role="Ann B."),
        zep_message("assistant", "How nice!", uuid="m-2", role="assistant"),
    ]
    facts = [{"fact": "Ann lives in Porto"}, {"fact": "In Rome", "invalid_at": "2024-01-01"}]
    session: dict[str, Any] = {"session_id": "s-1", "user_id": "ann", "metadata": {}}
    file: Any
    if form == "nested":
        file = [{**session, "messages": messages, "facts": facts}]
    elif form == "apart":
        apart = [{**one, "session_id": "s-1"} for one in messages]
        file = {"sessions": [{**session, "facts": facts}], "messages": apart}
    else:
        thread = {"thread_id": "s-1", "user_id": "ann", "messages": messages}
        file = {"threads": [thread], "edges": [{**one, "user_id": "ann"} for one in facts]}
    found, left = read("zep", write_json(tmp_path / "zep.json", file))
    (talk,) = (one for one in found if isinstance(one, Conversation))
    assert (talk.id, talk.user) == ("s-1", "ann")
    assert chats(talk) == [
        {"role": "user", "content": "I moved to Porto.", "name": "Ann_B_"},
        {"role": "assistant", "content": "How nice!"},
    ]
    (fact,) = (one for one in found if isinstance(one, Remembered))
    assert (fact.text, fact.user) == ("Ann lives in Porto", "ann")
    assert left == {"fact that no longer holds": 1}


# -- SQLite ----------------------------------------------------------------------------------------


def test_a_branch_of_an_advanced_session_is_left_out(tmp_path: Path) -> None:
    rows = [("s", json.dumps({"role": "user", "content": text}), None) for text in ("One", "Two")]
    path = agents_database(tmp_path / "agents.db", rows)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE message_structure (message_id INTEGER, branch_id TEXT)")
        database.execute("INSERT INTO message_structure VALUES (1, 'main'), (2, 'other')")
    [found], left = read("openai-agents", path)
    assert chats(found) == [{"role": "user", "content": "One"}]
    assert left == {"item of another branch": 1}


def test_a_pickled_checkpoint_is_refused_and_never_loaded(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    pickled = b"cbuiltins\nopen\n(S'" + str(loaded).encode() + b"'\nS'w'\ntR."
    path = checkpoint_database(tmp_path / "c.db", [("t", "1", "pickle", pickled)])
    with pytest.raises(InvalidInput, match="pickled"):
        read("langgraph", path)
    assert not loaded.exists()


def test_checkpoints_in_json(tmp_path: Path) -> None:
    """As early releases of LangGraph wrote them."""

    def message(name: str, **fields: Any) -> dict[str, Any]:
        id_ = ["langchain", "schema", "messages", name]
        return {"lc": 1, "type": "constructor", "id": id_, "kwargs": fields}

    extra = {"lc_source": "summarization"}
    summary = message("HumanMessage", content="So far: …", additional_kwargs=extra)
    values = {"other": 1, "chat": [summary, message("HumanMessage", content="Hi", id="a")]}
    checkpoint = {"ts": "2024-01-01T00:00:00+00:00", "channel_values": values}
    rows = [("t", "1", "json", json.dumps(checkpoint).encode())]
    [found], left = read("langgraph", checkpoint_database(tmp_path / "c.db", rows))
    assert chats(found) == [{"role": "user", "content": "Hi"}]
    assert left == {"summary that LangChain made": 1}
    assert isinstance(found, Conversation)
    assert found.messages[0].at == datetime(2024, 1, 1, tzinfo=UTC)


def extension(code: int, *made: object) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(made))


def test_nothing_that_a_checkpoint_names_is_called(tmp_path: Path) -> None:
    """Neither a function nor a class of an unknown module; a snapshot of a channel is read."""
    made = tmp_path / "made"
    call = extension(0, "pathlib", "Path.touch", str(made))
    human = extension(5, "no.such.module", "Human", {"type": "human", "content": "Hi"}, "x")
    path = tmp_path / "c.db"
    for value, reason in ((call, "a message is a str"), (human, "")):
        values = {"messages": extension(7, value)}
        data = msgspec.msgpack.encode({"channel_values": values})
        path.unlink(missing_ok=True)
        checkpoint_database(path, [("t", "1", "msgpack", data)])
        if reason:
            with pytest.raises(InvalidInput, match=reason):
                read("langgraph", path)
        else:
            [found], _ = read("langgraph", path)
            assert chats(found) == [{"role": "user", "content": "Hi"}]
    assert not made.exists()


# -- hostile files ---------------------------------------------------------------------------------

CYCLE = chatgpt("c", {"a": node("user", "A", parent="b"), "b": node("user", "B", parent="a")}, "a")
DEEP = "[" * 200_000
BROKEN: list[tuple[str, str | bytes, str]] = [
    ("chatgpt", json.dumps([CYCLE]), "record 1 .*cycle, at the node a"),
    ("chatgpt", json.dumps([{**CYCLE, "current_node": None}]), "cycle, and no current_node"),
    ("chatgpt", json.dumps([{**CYCLE, "current_node": "x"}]), "current_node is not in"),
    ("chatgpt", json.dumps([{**CYCLE, "mapping": []}]), r"Expected `object`, got `array`"),
    ("chatgpt", json.dumps([{"mapping": {"a": node("owner", "A")}}]), "has the role owner"),
    ("chatgpt", json.dumps([{"mapping": {"a": node("user", "A")}}]), "it has no id"),
    ("chatgpt", json.dumps([chatgpt_talk("c", "A"), chatgpt_talk("c", "B")]), "the id of record 1"),
    ("chatgpt", json.dumps([chatgpt_talk("c", "A") | {"create_time": 1e300}]), "is not a time"),
    ("chatgpt", f"[{json.dumps(chatgpt_talk('c', 'A'))}, 7]", "something else than an object"),
    ("chatgpt", json.dumps([chatgpt_talk("c", "A")])[:-9], "is the file complete"),
    ("chatgpt", json.dumps([chatgpt_talk("c", "A")]) + "x", "something follows the array"),
    ("chatgpt", "[" + '{"mapping":' * 100_000, "is the file complete"),
    ("chatgpt", "[{" + "1," * 1_000_000, "is the file complete"),  # not a search from each byte
    ("chatgpt", '[{"mapping": {}, "more":' + DEEP + "]" * 200_000 + "}]", "nests too deeply"),
    ("chatgpt", b'[{"mapping": {}, "title": "\xff"}]', "not UTF-8"),
    ("chatgpt", "[]".encode("utf-16"), "is UTF-16"),
    ("chatgpt", b"", "is empty"),
    ("chatgpt", "hello", "is not JSON"),
    ("chatgpt", b"PK\x03\x04 and no archive", "damaged zip archive"),
    ("chatgpt", b"SQLite format 3\x00 ...", "is a SQLite file"),
    ("claude", json.dumps([claude("u", [claude_message("dog", "A")])]), "is from dog"),
    ("claude", json.dumps([claude("u", [claude_message("human", "A", created_at="x")])]), "a time"),
    ("sharegpt", json.dumps([sharegpt(("narrator", "A"))]), "from narrator, which is no known"),
    ("sharegpt", '{"conversations": []}\n{"conversations": 7}', "line 2 .*Expected `array`"),
    ("sharegpt", '{"conversations": [}', "is not JSON"),
    ("mem0", json.dumps([mem0("")]), "its text is empty"),
    ("mem0", json.dumps([mem0("A", metadata=[])]), "Expected `object | null`"),
    ("mem0", json.dumps([mem0("A", user_id="a\x00b")]), "control character"),
    ("mem0", json.dumps([mem0("A", user_id="\x1fshared/team")]), "control character"),
    ("mem0", json.dumps([mem0("A", metadata={"a": "x" * 100_000})]), "metadata takes"),
    ("letta", json.dumps({"agents": [{"id": "agent-0"}]}), "it is no agent"),
    ("letta", json.dumps({"agents": 7}), "another shape"),
    ("letta", json.dumps("hello"), "no JSON object is in it"),
    ("letta", '"hello', "is not JSON"),
    ("zep", json.dumps([{"user_id": "a"}]), "no session_id or thread_id"),
    ("zep", json.dumps([{"session_id": "s", "messages": [{"content": "A"}]}]), "has the role"),
    ("openai-agents", "[]", "is not a SQLite file"),
    ("langgraph", b"SQLite format 3\x00" + b"\xff" * 4_096, "cannot be read"),
]


async def translated(product: str, path: Path, **options: Any) -> Translation:
    async with Runtime.in_memory(config=PLAIN) as runtime:
        parts = runtime.internals.transfers.parts
        dest = path.with_name("made.jsonl")
        dest.unlink(missing_ok=True)
        return translate(SOURCES[product], path, dest, parts, **{"user": "alice", **options})


@anyio_only
@pytest.mark.parametrize(("product", "content", "reason"), BROKEN)
async def test_of_a_hostile_file_the_reason_is_named(
    tmp_path: Path, product: str, content: str | bytes, reason: str
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidInput, match=reason):
        await translated(product, path)


@anyio_only
@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("s", "{", None)], "row 1 of agent_messages: it is not JSON"),
        ([("s", '{"role": "user", "content": "A"}', "soon")], "created_at soon is not a time"),
        ([("s", '{"role": "dog", "content": "A"}', None)], "message 0"),
        ([("s", '{"role": "user", "content": [7]}', None)], "another shape"),
        ([(None, '{"role": "user", "content": "A"}', None)], "it has no session_id"),
        ([("s", b"\xff\xfe", None)], "row 1 of agent_messages"),
    ],
)
async def test_hostile_rows_of_sqlite(tmp_path: Path, rows: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        await translated("openai-agents", agents_database(tmp_path / "agents.db", rows))


@anyio_only
@pytest.mark.parametrize(
    ("type_", "data", "reason"),
    [
        ("msgpack", b"\xc1", "it cannot be read"),
        ("msgpack", "text", "it is a str, not bytes"),
        ("other", b"", "of the type other"),
        ("msgpack", b"\x81\xaechannel_values" + b"\x81\xa1a" * 100_000, "it cannot be read"),
        ("json", b'{"channel_values": {"messages": [7]}}', "a message is a int"),
        ("json", b'{"channel_values": {"messages": [{"type": "dog"}]}}', "of the type dog"),
        ("json", b'{"channel_values": {}, "channel_versions": {"messages": 1}}', "DeltaChannel"),
    ],
)
async def test_hostile_checkpoints(tmp_path: Path, type_: str, data: Any, reason: str) -> None:
    path = checkpoint_database(tmp_path / "c.db", [("t", "1", type_, data)])
    with pytest.raises(InvalidInput, match=f"thread 1 .*{reason}"):
        await translated("langgraph", path)


@anyio_only
async def test_ids_that_remora_does_not_take_become_others(tmp_path: Path) -> None:
    """The same ones at every import; ids of messages that are doubled or unusable as well."""
    odd = ["a/b", "a\nb", "a\x00b", "x" * 2_000, "\ud800"]
    rows = [chatgpt_talk("c", "A", "B") | {"conversation_id": one} for one in odd]
    for row in rows:
        for one in row["mapping"].values():
            if one["message"]:
                one["message"]["id"] = "same\n"
    path = write_json(tmp_path / "conversations.json", rows)
    seen = []
    for _ in range(2):
        assert (await translated("chatgpt", path)).sessions == len(odd)
        reader = JsonlReader(tmp_path / "made.jsonl")
        sessions = [one for _, one in reader.read() if isinstance(one, SessionExport)]
        reader.close()
        seen.append([one.session for one in sessions])
        assert all(len({message.id for message in one.messages}) == 2 for one in sessions)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == len(odd)
    assert seen[0][0] == "a/b"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows bounds no file")
@anyio_only
async def test_a_translation_that_the_disk_refuses(tmp_path: Path) -> None:
    """The error says where there is no room."""
    import resource  # noqa: PLC0415  # not on Windows

    path = write_json(tmp_path / "data.json", [sharegpt(("human", f"{n}")) for n in range(1_000)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 1, hard))
    try:
        with pytest.raises(StorageError, match="make room there, or name another place in TMPDIR"):
            await translated("sharegpt", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@anyio_only
async def test_no_title_makes_a_conversation_broken(tmp_path: Path) -> None:
    """It is cut where it is long, and one of a talk before 1970 is kept."""
    early = chatgpt_talk("early", "A")
    for one in early["mapping"].values():
        if one["message"]:
            one["message"]["create_time"] = -1e9
    path = write_json(
        tmp_path / "conversations.json",
        [early, chatgpt_talk("long", "B") | {"title": "漢" * 100_000}],
    )
    assert (await translated("chatgpt", path)).sessions == 2


@anyio_only
async def test_what_is_broken_is_left_out_where_that_is_wished(tmp_path: Path) -> None:
    """A record is imported as a whole or not at all."""
    huge = chatgpt_talk("huge", "x" * (20 << 20))
    text = json.dumps([chatgpt_talk("one", "A"), CYCLE, huge, chatgpt_talk("two", "B")])
    path = tmp_path / "conversations.json"
    path.write_text(text.replace('"parts": ["A"]', '"parts": ["A \\ud83d"]'))
    made = await translated("chatgpt", path, skip_broken=True)
    assert (made.sessions, made.messages, made.broken) == (2, 2, 2)
    assert [one.place for one in made.named] == ["record 2", "record 3"]
    assert "bytes" in made.named[1].reason


@anyio_only
async def test_the_user_is_asked_for_where_the_file_names_none(tmp_path: Path) -> None:
    rows = [mem0("A"), mem0("B", user_id=None), mem0(" A ", id="other")]
    path = write_json(tmp_path / "m.json", rows)
    with pytest.raises(InvalidInput, match=r"record 2 .*--user"):
        await translated("mem0", path, user="", skip_broken=True)
    made = await translated("mem0", path, user="bob")
    assert (made.users, made.memories) == (2, 2)
    assert made.left_out["memory with the text of another"].count == 1


@pytest.mark.parametrize("name", ["data.json", "data.jsonl"])
def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path, name: str) -> None:
    """A read beyond the end of a mapped file would end the process."""
    path = tmp_path / name
    records = [json.dumps(sharegpt(("human", "A" * 1_000)))] * 100
    text = "\n".join(records) if name == "data.jsonl" else f"[{','.join(records)}]"
    path.write_text(text)
    with SOURCES["sharegpt"].open(path) as found:
        next(found.each)
        os.truncate(path, 10)
        assert len(list(found.each)) == 99


@anyio_only
async def test_an_archive_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", b" " * (4 << 20))
    monkeypatch.setattr(files, "MAX_UNPACKED", 1 << 20)
    with pytest.raises(InvalidInput, match="unpacks to more"):
        await translated("chatgpt", path)
    with pytest.raises(InvalidInput, match="is a zip archive: unpack it"):
        await translated("mem0", path)
    with pytest.raises(RemoraError, match="cannot be read"):
        await translated("claude", tmp_path / "absent.json")
    with pytest.raises(InvalidInput, match="not a regular file"):
        await translated("claude", tmp_path)
