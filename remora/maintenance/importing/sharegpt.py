"""Conversations as ShareGPT has them: an array, or JSON lines, of ``conversations``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
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
    digest,
    json_arguments,
    shown,
    tool_call,
)
from remora.messages import ChatDict

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bing", "bard"), "assistant"),
    "system": "system",
    "function_call": "call",
    **dict.fromkeys(("tool", "function_response", "observation"), "tool"),
}


class _Turn(msgspec.Struct):
    from_: str = msgspec.field(name="from")
    value: str | None = None


class _Conversation(msgspec.Struct):
    conversations: list[_Turn]
    id: Any = None
    system: str | None = None
    tools: Any = None


class _Call(msgspec.Struct):
    name: str
    arguments: Any = None


def open_records(path: Path) -> AbstractContextManager[Records]:
    """The conversations of a data set."""
    return open_json(path)


def translate(raw: bytes, notes: Notes) -> Iterator[Found]:
    """The conversation; its id is a digest of all of it, since ids of data sets are often numbers.

    Raises:
        InvalidInput: it has another shape, or an unknown speaker.
    """
    given = decode(raw, _Conversation)
    turns = [_Turn("system", given.system)] if given.system else []
    if given.tools:
        notes.leave_out("list of tools")
    said: list[Said] = []
    answers = Answers()
    for number, turn in enumerate([*turns, *given.conversations]):
        if (role := _ROLES.get(turn.from_)) is None:
            raise InvalidInput(f"turn {number} is from {shown(turn.from_)}, which is no known role")
        if turn.value:
            said.append(Said(_chat(role, turn.value, f"call-{number}", answers)))
    content = msgspec.json.encode([given.id, given.system, given.conversations])
    yield Conversation(f"sharegpt-{digest(content)}", said)


def _chat(role: str, value: str, call_id: str, answers: Answers) -> ChatDict:
    if role == "tool":
        return {"role": "tool", "tool_call_id": answers.take() or call_id, "content": value}
    if role != "call":
        return {"role": role, "content": value}
    try:
        called = msgspec.json.decode(value, type=_Call)
    except (msgspec.MsgspecError, RecursionError):  # each data set has a notation of its own
        return {"role": "assistant", "content": value}
    answers.ask(call_id, called.name)
    call = tool_call(call_id, called.name, json_arguments(called.arguments or {}))
    return {"role": "assistant", "content": None, "tool_calls": [call]}
