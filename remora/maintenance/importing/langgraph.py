"""The SQLite file of LangGraph's ``SqliteSaver``: the messages of each thread.

Checkpoints name classes to construct, which is code that a file chooses. Nothing is constructed
here: messages are read as the plain data that they were made of, so LangGraph need not be
installed, and pickled checkpoints are refused.

A thread's messages are those of its newest checkpoint. LangGraph's messages have no time: each gets
that of the first checkpoint that has it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from remora.errors import InvalidInput
from remora.maintenance.importing.files import Records, decode, open_sqlite
from remora.maintenance.importing.records import (
    Answers,
    Conversation,
    Found,
    Notes,
    Said,
    json_arguments,
    read_time,
    shown,
    stable_id,
    tool_call,
)
from remora.messages import ChatDict
from remora.messages.text import PART_TYPES

_CHECKPOINTS = """
SELECT type, checkpoint FROM checkpoints
WHERE thread_id = ? AND checkpoint_ns = '' ORDER BY checkpoint_id
"""
_WRITES = """
SELECT count(*) FROM writes WHERE thread_id = ? AND checkpoint_ns = '' AND channel = ?
AND checkpoint_id = (
    SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''
)
"""
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
_CARRIED = frozenset({"content", "type", "id", "name", "tool_calls", "tool_call_id", "example"})

_SNAPSHOT = 7  # the value of a channel that is written as its changes
_MAX_DEPTH = 64


class Raw(NamedTuple):
    """A thread of a file."""

    database: sqlite3.Connection
    thread: Any


@contextmanager
def open_records(path: Path) -> Iterator[Records]:
    """The threads of a file."""
    with open_sqlite(path, ["checkpoints", "writes"]) as database:
        every = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = ''"
        found = database.execute(every).fetchall()
        each = (
            (f"thread {number}", Raw(database, thread))
            for number, (thread,) in enumerate(found, start=1)
        )
        yield Records(each, len(found))


def translate(raw: Raw, notes: Notes) -> Iterator[Found]:
    """The thread.

    Raises:
        InvalidInput: its newest checkpoint cannot be read.
    """
    first_seen: dict[bytes, datetime | None] = {}
    channel = ""
    values: list[Any] = []
    newest: dict[str, Any] = {}
    problem: InvalidInput | None = None
    for type_, data in raw.database.execute(_CHECKPOINTS, (raw.thread,)):
        try:
            newest = _checkpoint(type_, data)
        except InvalidInput as e:
            problem = e
            continue
        problem = None
        channel, values = _messages(newest)
        at = read_time(newest.get("ts"), "ts") if isinstance(newest.get("ts"), str) else None
        for value in values:
            first_seen.setdefault(_mark(value), at)
    if problem is not None:
        raise InvalidInput(f"its newest checkpoint: {problem}")
    written = newest.get("channel_versions")
    if not channel and isinstance(written, dict) and "messages" in written:
        raise InvalidInput("its newest checkpoint has only changes of its messages (DeltaChannel)")
    pending = raw.database.execute(_WRITES, (raw.thread, channel, raw.thread)).fetchone()[0]
    if pending:
        notes.leave_out("write of a step that was not finished", count=pending)
    answers = Answers()
    said: list[Said] = []
    for number, value in enumerate(values):
        fields = _fields(value)
        if (chat := _chat(fields, number, answers, notes)) is not None:
            id_ = fields.get("id")
            at = first_seen[_mark(value)]
            said.append(Said(chat, id_ if isinstance(id_, str) else "", at))
    yield Conversation(stable_id(raw.thread, "thread_id"), said)


def _checkpoint(type_: object, data: object) -> dict[str, Any]:
    """A checkpoint as plain data; objects stay extensions of msgpack."""
    if type_ == "pickle":
        raise InvalidInput("it is pickled, which would run code of the file; it is not read")
    if not isinstance(data, bytes):
        raise InvalidInput(f"it is a {type(data).__name__}, not bytes")
    if type_ == "json":
        return decode(data, dict)
    if type_ != "msgpack":
        raise InvalidInput(f"it is of the type {shown(str(type_))}, which is not known")
    try:
        return msgspec.msgpack.decode(data, type=dict)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as e:
        raise InvalidInput(f"it cannot be read: {e}") from e


def _messages(checkpoint: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The channel of a checkpoint that has messages, and these; ``messages`` before others."""
    values = checkpoint.get("channel_values")
    if not isinstance(values, dict):
        return "", []
    for name in sorted(values, key=lambda one: (one != "messages", str(one))):
        found = _unpack_snapshot(values[name])
        if isinstance(found, list) and (name == "messages" or (found and _is_message(found[0]))):
            return str(name), found
    return "", []


def _unpack_snapshot(value: object) -> object:
    if isinstance(value, msgspec.msgpack.Ext) and value.code == _SNAPSHOT:
        with suppress(msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return msgspec.msgpack.decode(value.data)
    return value


def _is_message(value: object) -> bool:
    try:
        return "content" in _fields(value)
    except InvalidInput:
        return False


def _mark(value: object) -> bytes:
    """A digest of a message as it is in a checkpoint."""
    data = bytes(value.data) if isinstance(value, msgspec.msgpack.Ext) else repr(value).encode()
    return blake2b(data, digest_size=16).digest()


def _fields(value: object) -> dict[str, Any]:
    """The fields of a message.

    Raises:
        InvalidInput: it is none.
    """
    plain = _plain(value)
    if isinstance(plain, dict) and isinstance(plain.get("kwargs"), dict) and "lc" in plain:
        names = plain.get("id")
        name = names[-1] if isinstance(names, list) and names else ""
        kind = str(name).removesuffix("Chunk").removesuffix("Message").lower()
        plain = {"type": kind, **plain["kwargs"]}
    if not isinstance(plain, dict):
        raise InvalidInput(f"a message is a {type(plain).__name__}")
    return plain


def _plain(value: object, levels: int = _MAX_DEPTH) -> Any:
    """The value without extensions: the fields of a model, the arguments of another object."""
    if levels < 0:
        raise InvalidInput("it nests too deeply")
    if isinstance(value, msgspec.msgpack.Ext):
        try:
            made = msgspec.msgpack.decode(value.data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
            raise InvalidInput(f"an object of it cannot be read: {e}") from e
        known = isinstance(made, list) and len(made) > 2
        return _plain(made[2], levels - 1) if known else None
    if isinstance(value, dict):
        return {str(key): _plain(one, levels - 1) for key, one in value.items()}
    return [_plain(one, levels - 1) for one in value] if isinstance(value, list) else value


def _chat(fields: dict[str, Any], number: int, answers: Answers, notes: Notes) -> ChatDict | None:
    """The chat message; None for what nobody said."""
    kind = str(fields.get("type", "")).removesuffix("MessageChunk").lower()
    extra = fields.get("additional_kwargs")
    if isinstance(extra, dict) and extra.get("lc_source") == "summarization":
        notes.leave_out("summary that LangChain made")
        return None
    role = _ROLES.get(kind) or (fields.get("role") if kind == "chat" else None)
    if role is None:
        if kind == "remove":
            return None
        raise InvalidInput(f"message {number} is of the type {shown(kind)}, which is not known")
    chat: ChatDict = {"role": role, "content": _content(fields.get("content"))}
    if role == "assistant":
        calls = [
            tool_call(str(one.get("id") or f"call-{number}-{place}"), one["name"], arguments)
            for place, one in enumerate(fields.get("tool_calls") or [])
            if (arguments := json_arguments(one.get("args") or {}))
        ]
        for call in calls:
            answers.ask(call["id"], call["function"]["name"])
        if calls:
            chat["tool_calls"] = calls
            chat["content"] = chat["content"] or None
    elif role == "tool":
        call_id = str(fields.get("tool_call_id") or "")
        chat["tool_call_id"] = answers.take("", call_id) or f"call-{number}"
    if name := fields.get("name"):
        chat["name"] = name
    kept = {key for key, value in fields.items() if value and key not in _CARRIED}
    if kept - ({"status"} if fields.get("status") == "success" else set()) or not _is_plain(
        fields.get("content")
    ):
        original = {"type": kind, "data": fields}
        chat["metadata"] = {"langchain": original}  # as the adapter stores it
    return chat


def _content(content: object) -> object:
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(part, dict) and part.get("type") != "tool_use":  # among the calls
            known = part.get("type") in PART_TYPES
            parts.append(part if known else {"type": "text", "text": f"[{part.get('type')}]"})
    return parts


def _is_plain(content: object) -> bool:
    """Return whether a chat message has the content as it is."""
    return not isinstance(content, list) or all(
        isinstance(part, dict) and part.get("type") in PART_TYPES for part in content
    )
