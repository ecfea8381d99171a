"""Messages of OpenAI's Chat Completions API, and of the many servers that speak it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from operator import itemgetter
from typing import Any

from remora.formats.plain import OPENING, ChatMessages, call_id, opened
from remora.messages import INSTRUCTING_ROLES, ChatDict, join_contents, loop_begin, plain_name
from remora.messages.text import MEDIA_PARTS

_BEHIND = "The result is shown in the next message."
_LONGEST_ID = 40
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_REASONING = ("reasoning", "reasoning_content", "reasoning_details")


def to_openai(messages: ChatMessages, *, alternate: bool = False) -> list[ChatDict]:
    """The messages for ``client.chat.completions.create(messages=…)``.

    Reasoning of a model stays with the calls of tools of the current loop, where DeepSeek and
    others want it back. Older reasoning is left out: they refuse it, or bill it. Ids of calls get
    at most 40 characters.

    Args:
        messages: a context, or messages of a context or of a history.
        alternate: for servers whose chat template demands that user and assistant alternate
            (Mistral, Gemma and others): neighbours of one role are joined, with the names of
            speakers in their texts; system messages are joined at the front; a conversation that
            begins with the assistant gets a user message in front; ids of calls get nine letters
            and digits.

    Raises:
        InvalidMessage: one of them is not a chat message.
    """
    chats = [dict(chat) for chat, _ in opened(messages, "openai")]
    for chat in chats[: loop_begin(chats, itemgetter("role"))]:
        for key in _REASONING:
            chat.pop(key, None)
    rename = _nine_characters if alternate else partial(call_id, most=_LONGEST_ID)
    chats = _show_results([_with_ids(chat, rename) for chat in chats])
    return _alternate(chats) if alternate else chats


def _nine_characters(id_: str) -> str:
    """The id of a call as Mistral's templates take it: nine letters and digits."""
    return id_ if _NINE.fullmatch(id_) else sha256(id_.encode()).hexdigest()[:9]


def _with_ids(chat: ChatDict, rename: Callable[[str], str]) -> ChatDict:
    if chat["role"] == "tool":
        return {**chat, "tool_call_id": rename(chat["tool_call_id"])}
    if calls := chat.get("tool_calls"):
        return {**chat, "tool_calls": [{**one, "id": rename(one["id"])} for one in calls]}
    return chat


def _show_results(chats: list[ChatDict]) -> list[ChatDict]:
    """Pictures of tool results in a user's message behind them: in a result only texts may be."""
    shown: list[ChatDict] = []
    seen: list[Any] = []
    for chat in chats:
        if seen and chat["role"] != "tool":
            shown.append({"role": "user", "content": seen})
            seen = []
        content = chat.get("content")
        if chat["role"] == "tool" and isinstance(content, list):
            pictures = [one for one in content if one["type"] in MEDIA_PARTS]
            seen += pictures
            texts = [one for one in content if one["type"] not in {*MEDIA_PARTS, "refusal"}]
            if pictures:
                chat = {**chat, "content": texts or _BEHIND}  # noqa: PLW2901
        shown.append(chat)
    return [*shown, {"role": "user", "content": seen}] if seen else shown


def _alternate(chats: list[ChatDict]) -> list[ChatDict]:
    system: Any = ""
    joined: list[ChatDict] = []
    for chat in chats:
        if chat["role"] in INSTRUCTING_ROLES:
            system = join_contents(system, chat.get("content"))
        elif joined and joined[-1]["role"] == chat["role"] != "tool":
            joined[-1] = _merge(joined[-1], chat)
        else:
            joined.append(chat)
    if joined and joined[0]["role"] == "assistant":
        joined.insert(0, {"role": "user", "content": OPENING})
    return [{"role": "system", "content": system}, *joined] if system else joined


def _merge(first: ChatDict, second: ChatDict) -> ChatDict:
    """Two messages of one role as one; of two speakers, their names stand before what they say."""
    if first.get("name") != second.get("name"):
        first, second = _named(first), _named(second)
    merged = {
        **first,
        **second,
        "content": join_contents(first.get("content"), second.get("content")),
    }
    for key in first.keys() & second.keys() - {"role", "name", "content"}:
        if isinstance(first[key], list) and isinstance(second[key], list):
            merged[key] = [*first[key], *second[key]]
        elif isinstance(first[key], str) and isinstance(second[key], str):
            merged[key] = join_contents(first[key], second[key])
    return merged


def _named(chat: ChatDict) -> ChatDict:
    """The message with its speaker in its text."""
    rest = dict(chat)
    name, content = rest.pop("name", None), rest.get("content")
    if not name:
        return rest
    text = f"{plain_name(name, chat['role'])}: "
    if isinstance(content, list):
        return {**rest, "content": [{"type": "text", "text": text}, *content]}
    return {**rest, "content": text + (content or "")}
