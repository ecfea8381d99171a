"""Claude's export: the zip archive, or the ``conversations.json`` in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from remora.errors import InvalidInput
from remora.maintenance.importing.files import Records, decode, open_json
from remora.maintenance.importing.records import (
    Answers,
    Conversation,
    Found,
    Notes,
    Said,
    join_texts,
    json_arguments,
    read_time,
    shown,
    stable_id,
    tool_call,
)
from remora.messages import ChatDict

_MEMBERS = r"(?:[^/]+/)?conversations\.json"
_ROLES = {"human": "user", "assistant": "assistant"}
_REASONING = frozenset({"thinking", "redacted_thinking"})


class _Block(msgspec.Struct):
    type: str
    text: str | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: Any = None
    content: Any = None


class _Attachment(msgspec.Struct):
    file_name: str | None = None
    extracted_content: str | None = None


class _Message(msgspec.Struct):
    sender: str
    uuid: str = ""
    text: str | None = None
    content: list[_Block] | None = None
    created_at: str | None = None
    attachments: list[_Attachment] | None = None
    files: list[_Attachment] | None = None


class _Conversation(msgspec.Struct):
    uuid: str
    chat_messages: list[_Message]
    name: str | None = None
    created_at: str | None = None


def open_records(path: Path) -> AbstractContextManager[Records]:
    """The conversations of an export."""
    return open_json(path, _MEMBERS)


def translate(raw: bytes, notes: Notes) -> Iterator[Found]:
    """The conversation.

    Raises:
        InvalidInput: it has another shape.
    """
    given = decode(raw, _Conversation)
    said: list[Said] = []
    answers = Answers()
    for message in given.chat_messages:
        said.extend(_said(message, answers, notes))
    if said and said[0].at is None:
        said[0].at = read_time(given.created_at)
    yield Conversation(stable_id(given.uuid, "uuid"), said, title=given.name or "")


def _said(message: _Message, answers: Answers, notes: Notes) -> Iterator[Said]:
    if (role := _ROLES.get(message.sender)) is None:
        raise InvalidInput(f"a message is from {shown(message.sender)}, not human or assistant")
    at = read_time(message.created_at)
    blocks = message.content or []
    attached = [*_attached(message, notes)]
    if role == "user" or not blocks:
        texts = [one.text or "" for one in blocks] or [message.text or ""]
        if text := join_texts([*texts, *attached]):
            yield Said({"role": role, "content": text}, message.uuid, at)
        return
    yield from _answer(blocks, message.uuid, at, answers, notes)


def _answer(
    blocks: list[_Block], id_: str, at: datetime | None, answers: Answers, notes: Notes
) -> Iterator[Said]:
    """The messages of the model: texts and calls up to a result are one."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []

    def close() -> Iterator[Said]:
        nonlocal id_
        text = join_texts(texts)
        if text or calls:
            chat: ChatDict = {"role": "assistant", "content": text or None}
            if calls:
                chat["tool_calls"] = [*calls]
            yield Said(chat, id_, at)
            id_ = ""  # one message of the file is several here
        texts.clear()
        calls.clear()

    for number, block in enumerate(blocks):
        if block.type == "tool_use":
            call = block.id or f"{id_ or 'call'}:{number}"
            answers.ask(call, block.name or "")
            calls.append(tool_call(call, block.name or "tool", json_arguments(block.input or {})))
        elif block.type == "tool_result":
            yield from close()
            call = answers.take(block.name or "", block.tool_use_id or "") or f"result:{number}"
            text = _result(block.content, notes)
            yield Said({"role": "tool", "tool_call_id": call, "content": text}, "", at)
        elif block.type in _REASONING:
            notes.leave_out("reasoning of the model")
        elif block.text is not None:
            texts.append(block.text)
        else:
            notes.leave_out(f"block of the type {block.type}")
    yield from close()


def _result(content: object, notes: Notes) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for one in content if isinstance(content, list) else ():
        if isinstance(one, dict) and isinstance(one.get("text"), str):
            texts.append(one["text"])
        else:
            kind = one.get("type") if isinstance(one, dict) else type(one).__name__
            notes.leave_out(f"part of a tool's result of the type {kind}")
    return join_texts(texts)


def _attached(message: _Message, notes: Notes) -> Iterator[str]:
    """The text of files that a message came with."""
    held = set()
    for one in message.attachments or ():
        name = one.file_name or "attachment"
        if one.extracted_content:
            held.add(one.file_name)
            yield f"{name}:\n{one.extracted_content}"
        else:
            notes.leave_out("attached file", name)
    for one in message.files or ():
        if one.file_name not in held:
            notes.leave_out("attached file", one.file_name or "")
