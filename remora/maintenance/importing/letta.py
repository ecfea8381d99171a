"""Letta: agent files (``.af``), and lists of an agent's messages as its API answers them.

The blocks of core memory become memories of the user; the block ``persona`` belongs to the agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
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
    Remembered,
    Said,
    digest,
    join_texts,
    json_arguments,
    read_time,
    stable_id,
    tool_call,
)
from remora.messages import ChatDict

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_REASONING = frozenset(
    f"{kind}{part}"
    for kind in ("reasoning", "hidden_reasoning", "redacted_reasoning", "omitted_reasoning")
    for part in ("", "_message")
)
_CALLS = frozenset({"tool_call", "tool_return"})  # parts that a message has as fields, too
_SPEAKERS = {
    "user_message": "user",
    "assistant_message": "assistant",
    "system_message": "system",
    "tool_call_message": "assistant",
    "approval_request_message": "assistant",
    "tool_return_message": "tool",
}
_SEND = "send_message"  # the tool by which older agents talk to their user


class _Function(msgspec.Struct):
    name: str
    arguments: Any = None


class _Call(msgspec.Struct):
    id: str | None = None
    function: _Function | None = None
    name: str | None = None
    arguments: Any = None
    tool_call_id: str | None = None


class _Block(msgspec.Struct):
    value: str = ""
    label: str = ""
    id: str = ""
    created_at: str | None = None


class _Message(msgspec.Struct):
    role: str | None = None
    message_type: str | None = None
    id: str | None = None
    content: Any = None
    text: Any = None
    tool_calls: list[_Call] | None = None
    tool_call: _Call | None = None
    tool_call_id: str | None = None
    tool_return: Any = None
    tool_returns: list[dict[str, Any]] | None = None
    created_at: str | None = None
    date: str | None = None


class _Agent(msgspec.Struct):
    messages: list[_Message] = []
    name: str | None = None
    id: str | None = None
    core_memory: list[_Block] = []
    memory_blocks: list[_Block] | None = None
    block_ids: list[str] | None = None


class _File(msgspec.Struct):
    agents: list[msgspec.Raw] | None = None
    blocks: list[_Block] = []
    files: list[Any] | None = None


class Raw(msgspec.Struct):
    """An agent of a file, or the messages of one; the blocks of the file."""

    agent: bytes = b""
    messages: list[tuple[str, bytes]] = []
    blocks: list[_Block] = []
    files: int = 0


@contextmanager
def open_records(path: Path) -> Iterator[Records]:
    """The agents of a file."""
    with open_json(path, take_object=_take) as records:
        first = next(records.each, None)
        if first is None or isinstance(first[1], Raw):
            each = () if first is None else (first, *records.each)
            yield Records(iter(each), len(each))
        else:
            every = [first, *records.each]
            yield Records(iter([("the list of messages", Raw(messages=every))]), 1)


def _take(raw: bytes) -> Records:
    file = decode(raw, _File)
    agents = [raw] if file.agents is None else file.agents
    found = [
        (
            f"agent {number}",
            Raw(bytes(one), blocks=file.blocks, files=len(file.files or ()) if number == 1 else 0),
        )
        for number, one in enumerate(agents, start=1)
    ]
    return Records(iter(found), len(found))


def translate(raw: Raw, notes: Notes) -> Iterator[Found]:
    """The agent: its messages, and its memory.

    Raises:
        InvalidInput: it has another shape.
    """
    if raw.messages:
        agent = _Agent(messages=[_message(place, one) for place, one in raw.messages])
    else:
        agent = decode(raw.agent, _Agent)
        if not agent.name and not agent.messages and not agent.core_memory:
            raise InvalidInput("it is no agent: it has no name, messages or core memory")
    if raw.files:
        notes.leave_out("file of an agent", count=raw.files)
    wanted = set(agent.block_ids or ())
    blocks = [*agent.core_memory, *(agent.memory_blocks or ())]
    for block in (*blocks, *(one for one in raw.blocks if one.id in wanted)):
        if block.value.strip():
            yield Remembered(
                block.value,
                at=read_time(block.created_at, "created_at"),
                agent=stable_id(agent.name, "name") if block.label == "persona" else "",
                metadata={"label": block.label},
            )
    messages = agent.messages
    times = [at for one in messages if (at := read_time(one.date or one.created_at)) is not None]
    if times and times[0] > times[-1]:  # the API lists the newest first
        messages = messages[::-1]
    said = _Talk(notes).read(messages)
    if said:
        yield Conversation(_session_id(agent, messages), said)


def _message(place: str, raw: bytes) -> _Message:
    try:
        return decode(raw, _Message)
    except InvalidInput as e:
        raise InvalidInput(f"{place}: {e}") from e


def _session_id(agent: _Agent, messages: list[_Message]) -> str:
    """The agent's id; its name in a file, where agents are numbered."""
    if agent.id and _UUID.search(agent.id):
        return stable_id(agent.id, "id")
    if agent.name:
        return stable_id(f"letta-{agent.name}", "name")
    first = messages[0]
    return f"letta-{digest(msgspec.json.encode([first.id, first.date, first.content]))}"


class _Talk:
    """Messages of Letta as chat messages."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._answers = Answers()
        self._sent: set[str] = set()  # calls of the tool that talks, whose results say nothing

    def read(self, messages: list[_Message]) -> list[Said]:
        """The chat messages."""
        said = []
        for message in messages:
            for chat in self._chats(message):
                at = read_time(message.date or message.created_at)
                said.append(Said(chat, message.id or "", at))
        return said

    def _chats(self, message: _Message) -> Iterator[ChatDict]:
        kind = message.message_type or ""
        role = _SPEAKERS.get(kind) if kind else message.role
        if kind in _REASONING:
            self._notes.leave_out("reasoning of the model")
        elif role == "system":
            self._notes.leave_out("system prompt of the agent")
        elif role == "user":
            yield from self._user(self._text(message.content, message.text))
        elif role == "assistant":
            yield from self._assistant(message)
        elif role == "tool":
            yield from self._results(message)
        else:
            self._notes.leave_out(f"message of the type {kind or role}")

    def _user(self, text: str) -> Iterator[ChatDict]:
        packed = _packed(text)
        if packed is not None and isinstance(packed.get("type"), str):
            if packed["type"] != "user_message":
                self._notes.leave_out(f"event of the type {packed['type']}")
                return
            text = str(packed.get("message") or "")
        if text.strip():
            yield {"role": "user", "content": text}

    def _assistant(self, message: _Message) -> Iterator[ChatDict]:
        texts, calls = [self._text(message.content, message.text)], []
        given = [*(message.tool_calls or ()), *([message.tool_call] if message.tool_call else ())]
        for number, one in enumerate(given):
            name = one.function.name if one.function else one.name or "tool"
            arguments = json_arguments((one.function or one).arguments or {})
            id_ = one.id or one.tool_call_id or f"{message.id}:{number}"
            sent = _packed(arguments) if name == _SEND else None
            if sent is not None and isinstance(sent.get("message"), str):
                self._sent.add(id_)
                texts = [sent["message"]]  # the text of the message was a thought
            else:
                self._answers.ask(id_, name)
                calls.append(tool_call(id_, name, arguments))
        text = join_texts(texts)
        if text or calls:
            chat: ChatDict = {"role": "assistant", "content": text or None}
            yield {**chat, "tool_calls": calls} if calls else chat

    def _results(self, message: _Message) -> Iterator[ChatDict]:
        returns = message.tool_returns or []
        found = [
            (str(one["tool_call_id"]), one.get("func_response") or one.get("tool_return"))
            for one in returns
            if one.get("tool_call_id")
        ]
        if not found or len(found) == 1:
            content = message.tool_return
            text = (
                content if isinstance(content, str) else self._text(message.content, message.text)
            )
            id_ = message.tool_call_id or (found[0][0] if found else "")
            found = [(id_, text or (found[0][1] if found else ""))]
        for id_, value in found:
            if id_ in self._sent:
                continue
            text = value if isinstance(value, str) else self._text(value, None)
            packed = _packed(text)
            if packed is not None and "status" in packed and isinstance(packed.get("message"), str):
                text = packed["message"]
            call = self._answers.take("", id_) or "result"
            yield {"role": "tool", "tool_call_id": call, "content": text}

    def _text(self, content: object, text: object) -> str:
        content = text if content is None else content
        if isinstance(content, str):
            return content
        texts = []
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                texts.append(part["text"])
            elif kind in _REASONING:
                self._notes.leave_out("reasoning of the model")
            elif kind not in _CALLS:
                self._notes.leave_out(f"part of the type {kind}")
        return join_texts(texts)


def _packed(text: str) -> dict[str, Any] | None:
    """The object that a text is in JSON; None if it is none."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        return msgspec.json.decode(text, type=dict)
    except (msgspec.MsgspecError, RecursionError):
        return None
