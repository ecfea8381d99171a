"""Files as other products write them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

Json = dict[str, Any]

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360f8cf500f0003860180f6a5d4a80000000049454e44ae426082"
)


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def node(
    role: str,
    text: str | None = None,
    *,
    parent: str | None = None,
    at: float | None = None,
    **fields: Any,
) -> Json:
    """A node of ChatGPT's tree; `fields` are of the message."""
    name = fields.pop("name", None)
    content = {"content_type": "text", "parts": [text]} if text is not None else None
    message: Json = {"author": {"role": role, "name": name, "metadata": {}}, "create_time": at}
    message |= {"content": content, "recipient": "all", "metadata": {}, **fields}
    return {"message": message, "parent": parent, "children": []}


def chatgpt(id_: str, nodes: Mapping[str, Json], current: str | None, **fields: Any) -> Json:
    """A conversation of ChatGPT's export."""
    mapping = {name: {"id": name, **one} for name, one in nodes.items()}
    for name, one in mapping.items():
        if one["parent"] in mapping:
            mapping[one["parent"]]["children"].append(name)
    named = {"id": id_, "conversation_id": id_, "title": "Talk", "create_time": 1_700_000_000.5}
    return {**named, "mapping": mapping, "current_node": current, **fields}


def chatgpt_talk(id_: str, *texts: str) -> Json:
    """A conversation without branches, of which the user begins."""
    nodes: dict[str, Json] = {"root": {"message": None, "parent": None, "children": []}}
    parent = "root"
    for number, text in enumerate(texts):
        name = f"{id_}-{number}"
        role = ("user", "assistant")[number % 2]
        nodes[name] = node(role, text, parent=parent, at=1_700_000_000.0 + number)
        parent = name
    return chatgpt(id_, nodes, parent)


def claude(uuid: str, messages: Sequence[Json], **fields: Any) -> Json:
    """A conversation of Claude's export."""
    times = {"created_at": "2024-05-01T10:00:00.000000Z", "updated_at": "2024-05-02T10:00:00Z"}
    account = {"account": {"uuid": "a-1"}}
    return {"uuid": uuid, "name": "Talk", **times, **account, "chat_messages": messages, **fields}


def claude_message(sender: str, *blocks: Json | str, **fields: Any) -> Json:
    content = [{"type": "text", "text": one} if isinstance(one, str) else one for one in blocks]
    text = "\n\n".join(one["text"] for one in content if one["type"] == "text")
    said = {"sender": sender, "text": text, "content": content, "attachments": [], "files": []}
    return {**said, "created_at": "2024-05-01T10:00:01Z", **fields}


def sharegpt(*turns: tuple[str, str], **fields: Any) -> Json:
    return {"conversations": [{"from": role, "value": text} for role, text in turns], **fields}


def mem0(text: str, **fields: Any) -> Json:
    id_ = {"id": f"id of {text}", "hash": "5d41", "metadata": None, "user_id": "alice"}
    times = {"created_at": "2024-07-26T08:03:58.000000-07:00", "updated_at": None}
    return {**id_, "memory": text, **times, **fields}


def letta_message(role: str, text: str, **fields: Any) -> Json:
    content = [{"type": "text", "text": text}]
    return {"role": role, "content": content, "created_at": "2025-04-01T10:00:00+00:00", **fields}


def zep_message(kind: str, text: str, **fields: Any) -> Json:
    return {"role_type": kind, "content": text, "created_at": "2024-06-01T10:15:30Z", **fields}


def agents_database(path: Path, rows: Iterable[tuple[Any, Any, Any]]) -> Path:
    """The tables of the Agents SDK's ``SQLiteSession``: session id, item, time."""
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(
            """
            CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TIMESTAMP,
                updated_at TIMESTAMP);
            CREATE TABLE agent_messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT,
                message_data TEXT NOT NULL, created_at TIMESTAMP);
            """
        )
        database.executemany(
            "INSERT INTO agent_messages (session_id, message_data, created_at) VALUES (?, ?, ?)",
            rows,
        )
    return path


def checkpoint_database(
    path: Path, checkpoints: Iterable[tuple[Any, ...]], writes: Iterable[tuple[Any, ...]] = ()
) -> Path:
    """The tables of LangGraph's ``SqliteSaver``: thread, checkpoint id, type and checkpoint;
    thread, checkpoint id, task, number, channel, type and value.
    """
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(
            """
            CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL
                DEFAULT '', checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT,
                checkpoint BLOB, metadata BLOB,
                PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id));
            CREATE TABLE writes (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',
                checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL, idx INTEGER NOT NULL,
                channel TEXT NOT NULL, type TEXT, value BLOB,
                PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx));
            """
        )
        database.executemany(
            "INSERT INTO checkpoints (thread_id, checkpoint_id, type, checkpoint) "
            "VALUES (?, ?, ?, ?)",
            checkpoints,
        )
        database.executemany(
            "INSERT INTO writes (thread_id, checkpoint_id, task_id, idx, channel, type, value) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            writes,
        )
    return path
