"""ChatGPT's export: the zip archive, or the ``conversations.json`` in it.

A conversation is a tree of messages, in which an edited question and a regenerated answer begin a
branch. The branch that ChatGPT shows, which ends at ``current_node``, is imported.
"""

from __future__ import annotations

import base64
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from remora.errors import InvalidInput
from remora.formats.plain import data_url
from remora.maintenance.importing.files import (
    Records,
    decode,
    open_archive,
    open_json,
    read_member,
)
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
from remora.messages.media import measure

_MEMBERS = r"(?:[^/]+/)?conversations(?:-\d+)?\.json"
_POINTER = re.compile(r"file[-_][A-Za-z0-9]+")
_MAX_IMAGE = 16 << 20  # bytes of an image
_MAX_IMAGES = 128 << 20  # bytes of the images of a conversation
_Value: TypeAlias = str | list[dict[str, Any]]
_REASONING = frozenset({"thoughts", "reasoning_recap"})
_SETTINGS = frozenset({"user_editable_context", "model_editable_context"})


class _Author(msgspec.Struct):
    role: str
    name: str | None = None


class _Content(msgspec.Struct):
    content_type: str = "text"
    parts: list[Any] | None = None
    text: Any = None
    result: Any = None
    summary: Any = None
    title: Any = None
    url: Any = None


class _Metadata(msgspec.Struct):
    is_visually_hidden_from_conversation: Any = None
    attachments: Any = None


class _Message(msgspec.Struct):
    author: _Author
    id: str | None = None
    content: _Content | None = None
    create_time: float | str | None = None
    recipient: str | None = None
    metadata: _Metadata | None = None


class _Node(msgspec.Struct):
    message: _Message | None = None
    parent: str | None = None


class _Conversation(msgspec.Struct):
    mapping: dict[str, _Node]
    current_node: str | None = None
    id: str | None = None
    conversation_id: str | None = None
    title: str | None = None
    create_time: float | str | None = None


class _Files:
    """The files of an export that messages point to."""

    def __init__(self, archive: zipfile.ZipFile | None) -> None:
        self._archive = archive
        self._members: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist() if archive else ():
            if found := _POINTER.match(info.filename.rpartition("/")[2]):
                self._members.setdefault(found[0], info)

    def url(self, pointer: str, most: int) -> str | None:
        """An image as a data URL; None if the export does not hold it, or it is larger."""
        found = _POINTER.match(pointer.rpartition("/")[2])
        info = self._members.get(found[0]) if found else None
        if info is None or self._archive is None:
            return None
        data = read_member(self._archive, info, min(most, _MAX_IMAGE))
        media = measure(data)[0] if data else ""
        if not data or not media.startswith("image/"):
            return None
        return data_url(media, base64.b64encode(data).decode())


class Raw(NamedTuple):
    """A conversation as it is in the file, and the files of the export."""

    data: bytes
    files: _Files


@contextmanager
def open_records(path: Path) -> Iterator[Records]:
    """The conversations of an export."""
    with open_json(path, _MEMBERS) as records:
        archive = open_archive(path)
        try:
            files = _Files(archive)
            yield Records(((place, Raw(raw, files)) for place, raw in records.each), records.total)
        finally:
            if archive is not None:
                archive.close()


def translate(raw: Raw, notes: Notes) -> Iterator[Found]:
    """The conversation.

    Raises:
        InvalidInput: it has another shape, or its tree is none.
    """
    given = decode(raw.data, _Conversation)
    began = read_time(given.create_time)
    branch = _branch(given)
    _note_others(given, branch, notes)
    talk = _Talk(raw.files, notes)
    for id_ in branch:
        if (message := given.mapping[id_].message) is not None:
            talk.add(message, message.id or id_)
    if talk.said and talk.said[0].at is None:
        talk.said[0].at = began
    id_ = stable_id(given.conversation_id or given.id, "id")
    yield Conversation(id_, talk.said, title=given.title or "")


def _branch(given: _Conversation) -> list[str]:
    """The nodes from the root to the current one."""
    if not given.mapping:
        return []
    at: str | None = given.current_node or _newest_leaf(given.mapping)
    if at not in given.mapping:
        raise InvalidInput("its current_node is not in its mapping")
    branch: dict[str, None] = {}
    while at is not None and at in given.mapping:
        if at in branch:
            raise InvalidInput(f"its tree of messages has a cycle, at the node {shown(at)}")
        branch[at] = None
        at = given.mapping[at].parent
    return [*branch][::-1]


def _newest_leaf(mapping: Mapping[str, _Node]) -> str:
    parents = {node.parent for node in mapping.values()}
    leaves = [id_ for id_ in mapping if id_ not in parents]
    if not leaves:
        raise InvalidInput("its tree of messages has a cycle, and no current_node")

    def written(id_: str) -> float:
        message = mapping[id_].message
        at = read_time(message.create_time) if message is not None else None
        return at.timestamp() if at is not None else 0.0

    return max(leaves, key=written)


def _note_others(given: _Conversation, branch: list[str], notes: Notes) -> None:
    shown_ids = set(branch)
    count = sum(
        node.message is not None and node.message.author.role in {"user", "assistant"}
        for id_, node in given.mapping.items()
        if id_ not in shown_ids
    )
    if count:
        notes.leave_out("message of another branch (edited or regenerated)", count=count)


class _Talk:
    """The messages of a branch as chat messages."""

    def __init__(self, files: _Files, notes: Notes) -> None:
        self.said: list[Said] = []
        self._files = files
        self._notes = notes
        self._answers = Answers()
        self._room = _MAX_IMAGES

    def add(self, message: _Message, id_: str) -> None:
        """Add a message, unless it says nothing, or was never shown."""
        content, metadata = message.content or _Content(), message.metadata or _Metadata()
        self._note_attachments(metadata.attachments)
        kind = content.content_type
        if kind in _REASONING:
            self._notes.leave_out("reasoning of the model")
            return
        if kind in _SETTINGS:
            self._notes.leave_out("custom instructions, which ChatGPT repeats in conversations")
            return
        parts = self._parts(content)
        if not parts:
            return
        if metadata.is_visually_hidden_from_conversation:
            self._notes.leave_out("hidden message")
            return
        at = read_time(message.create_time)
        text = join_texts(one["text"] for one in parts if one["type"] == "text")
        value: _Value = text if len(parts) == sum(one["type"] == "text" for one in parts) else parts
        match message.author.role:
            case "assistant" if message.recipient not in {None, "", "all"}:
                self._call(str(message.recipient), text, id_, at)
            case "tool":
                self._result(message.author.name or "", value, id_, at)
            case ("user" | "assistant" | "system") as role:
                self.said.append(Said({"role": role, "content": value}, id_, at))
            case role:
                raise InvalidInput(f"a message has the role {shown(role)}")

    def _call(self, name: str, text: str, id_: str, at: datetime | None) -> None:
        self._answers.ask(id_, name)
        call = tool_call(id_, name, json_arguments(text))
        chat: ChatDict = {"role": "assistant", "content": None, "tool_calls": [call]}
        self.said.append(Said(chat, id_, at))

    def _result(self, name: str, value: _Value, id_: str, at: datetime | None) -> None:
        answered = self._answers.take(name)
        before = self.said[-1].chat if self.said else {}
        if answered or before.get("role") != "tool":
            chat = {"role": "tool", "tool_call_id": answered or id_, "content": value}
            self.said.append(Said(chat, id_, at))
        else:  # one more message of the same result
            before["content"] = _join(before["content"], value)

    def _note_attachments(self, attachments: object) -> None:
        for one in attachments if isinstance(attachments, list) else ():
            name = one.get("name") if isinstance(one, dict) else None
            kind = one.get("mime_type") or one.get("mimeType") if isinstance(one, dict) else None
            if not str(kind).startswith("image/"):  # a part of the message points to these
                self._notes.leave_out("attached file", str(name or ""))

    def _parts(self, content: _Content) -> list[dict[str, Any]]:
        """The content as parts of a chat message."""
        parts: list[dict[str, Any]] = []
        for one in content.parts or ():
            if isinstance(one, str):
                parts.append({"type": "text", "text": one})
            elif isinstance(one, dict):
                parts.extend(self._part(one))
        if content.parts is None:
            texts = (content.title, content.url, content.text or content.result or content.summary)
            text = "\n".join(one for one in texts if isinstance(one, str) and one.strip())
            parts.append({"type": "text", "text": text})
            if not text and content.content_type not in {"text", "code", "execution_output"}:
                self._notes.leave_out(f"content of the type {content.content_type}")
        return [one for one in parts if one["type"] != "text" or one["text"].strip()]

    def _part(self, part: dict[str, Any]) -> Iterator[dict[str, Any]]:
        pointer = part.get("asset_pointer")
        kind = part.get("content_type")
        if kind == "audio_transcription" and isinstance(part.get("text"), str):
            yield {"type": "text", "text": part["text"]}
        elif kind == "image_asset_pointer" and isinstance(pointer, str):
            if (url := self._files.url(pointer, self._room)) is not None:
                self._room -= len(url)
                yield {"type": "image_url", "image_url": {"url": url}}
            else:
                self._notes.leave_out(
                    "image that the file does not hold, or that is too large", pointer
                )
                yield {"type": "text", "text": "[image]"}
        elif isinstance(part.get("text"), str):
            yield {"type": "text", "text": part["text"]}
        else:
            self._notes.leave_out(f"part of the type {kind}")


def _join(one: _Value, other: _Value) -> _Value:
    if isinstance(one, str) and isinstance(other, str):
        return join_texts([one, other])
    both = [
        [{"type": "text", "text": value}] if isinstance(value, str) else value
        for value in (one, other)
    ]
    return [*both[0], *both[1]]
