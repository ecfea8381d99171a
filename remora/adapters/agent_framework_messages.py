"""Messages of Microsoft's Agent Framework as chat messages, and back.

A message of the framework has contents of several kinds. It becomes one chat message; one with
results of tools becomes a chat message for each result. What a chat message cannot say is stored in
its metadata: there, a field that is null (``text``, ``result``, ``uri``) is what the chat message
has. So a text is stored once, and a redaction hook changes it for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from remora.errors import InvalidMessage
from remora.messages import ChatDict, Message, plain_text, tool_calls

try:
    from agent_framework import Content
    from agent_framework import Message as FrameworkMessage
    from agent_framework.exceptions import ContentError
except ImportError as e:
    raise ImportError(
        'memory for the Agent Framework needs it: pip install "remora[agent-framework]"'
    ) from e

__all__ = ["chat_messages", "framework_messages"]

_KEY = "agent_framework"
_Record = dict[str, Any]  # a message or a content as the framework writes it


def chat_messages(messages: Iterable[FrameworkMessage]) -> list[ChatDict]:
    """Equivalent chat messages, as `Session.append` takes them.

    Raises:
        InvalidMessage: one of them is not a message of the Agent Framework, or has what cannot be
            written as JSON.
    """
    chats: list[ChatDict] = []
    for index, message in enumerate(messages):
        record = _record(message, index)
        contents = record["contents"]
        made = _chats_of_results(contents) if record["role"] == "tool" else []
        if not made:
            made = [(_chat(record["role"], contents), contents)]
        if len(made) == 1 and _equivalent(made[0][0]) == record:
            chats.append(made[0][0])
            continue
        header = {name: value for name, value in record.items() if name != "contents"}
        for place, (chat, kept) in enumerate(made):
            shown = [_leave_out(one, chat, number) for number, one in enumerate(kept)]
            meta = {"message": header, "contents": shown, "place": place}
            chats.append({**chat, "metadata": {_KEY: meta}})
    return chats


def framework_messages(messages: Iterable[Message | ChatDict]) -> list[FrameworkMessage]:
    """The messages that stored ones were made from; equivalent ones for other messages."""
    found: list[_Record] = []
    before: tuple[Any, int] | None = None  # the header and the place of the message before
    for message in messages:
        chat = message.to_chat() if isinstance(message, Message) else message
        meta = (message.metadata or {}).get(_KEY) if isinstance(message, Message) else None
        if meta is None:
            before = None
            found.append(_equivalent(chat))
            continue
        contents = [_restore(one, chat, number) for number, one in enumerate(meta["contents"])]
        if meta["place"] and before == (meta["message"], meta["place"] - 1):
            found[-1]["contents"] += contents  # the next result of the same message
        else:
            found.append({**meta["message"], "contents": contents})
        before = (meta["message"], meta["place"])
    return [FrameworkMessage.from_dict(one) for one in found]


def _record(message: object, index: int) -> _Record:
    if not isinstance(message, FrameworkMessage):
        raise InvalidMessage(
            f"message {index} is a {type(message).__name__}, not a Message of the Agent Framework",
            index=index,
        )
    try:
        record: _Record = msgspec.json.decode(msgspec.json.encode(message.to_dict()))
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidMessage(f"message {index} cannot be written as JSON: {e}", index=index) from e
    return record


# -- to a chat -------------------------------------------------------------------------------------


def _chats_of_results(contents: Sequence[_Record]) -> list[tuple[ChatDict, list[_Record]]]:
    """A chat message for each result, with the other contents that stand before or behind it."""
    made: list[tuple[ChatDict, list[_Record]]] = []
    others: list[_Record] = []  # those before the first result
    for one in contents:
        if one["type"] == "function_result" and one.get("call_id"):
            said = one.get("result")
            text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
            chat: ChatDict = {"role": "tool", "tool_call_id": one["call_id"], "content": text}
            made.append((chat, [*others, one]))
            others = []
        elif made:
            made[-1][1].append(one)
        else:
            others.append(one)
    return made


def _chat(role: str, contents: Sequence[_Record]) -> ChatDict:
    texts = [one["text"] for one in contents if one["type"] == "text"]
    if role == "assistant":
        text = "\n".join(texts)
        if calls := [_call(one) for one in contents if _is_call(one)]:
            return {"role": role, "content": text or None, "tool_calls": calls}
        return {"role": role, "content": text or _kinds(contents)}
    if len(texts) == len(contents) == 1:
        return {"role": "system" if role == "system" else "user", "content": texts[0]}
    if role == "system":
        return {"role": role, "content": "\n".join(texts) or _kinds(contents)}
    return {"role": "user", "content": [_part(one) for one in contents] or ""}


def _is_call(one: _Record) -> bool:
    """Return whether the application calls the tool, and a result follows."""
    elsewhere = one.get("hosted") or one.get("informational_only")
    return one["type"] == "function_call" and bool(one.get("call_id")) and not elsewhere


def _call(one: _Record) -> dict[str, Any]:
    given = one.get("arguments") or {}
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    function = {"name": one.get("name") or "tool", "arguments": arguments}
    return {"id": one["call_id"], "type": "function", "function": function}


def _part(one: _Record) -> dict[str, Any]:
    if one["type"] == "text":
        return {"type": "text", "text": one["text"]}
    if _is_image(one):
        return {"type": "image_url", "image_url": {"url": one["uri"]}}
    return {"type": "text", "text": f"[{one['type']}]"}


def _is_image(one: _Record) -> bool:
    return bool(one.get("uri")) and str(one.get("media_type")).startswith("image/")


def _kinds(contents: Sequence[_Record]) -> str:
    return " ".join(f"[{one['type']}]" for one in contents)


# -- what the chat message has already -------------------------------------------------------------


def _leave_out(one: _Record, chat: ChatDict, number: int) -> _Record:
    """A content, with null for what `_restore` takes from the chat message."""
    said = chat.get("content")
    if isinstance(said, list):
        if one["type"] == "text":
            return {**one, "text": None}
        return {**one, "uri": None} if said[number]["type"] == "image_url" else one
    if one["type"] == "text" and one["text"] == said:
        return {**one, "text": None}
    if one["type"] == "function_result" and _result(said) == {
        name: one.get(name) for name in ("result", "items")
    }:
        rest = {name: value for name, value in one.items() if name != "items"}
        return {**rest, "result": None}
    return one


def _restore(one: Mapping[str, Any], chat: ChatDict, number: int) -> _Record:
    said = chat.get("content")
    part = said[number] if isinstance(said, list) and number < len(said) else {}
    text = said if isinstance(said, str) else str(part.get("text") or "")
    if "text" in one and one["text"] is None:
        return {**one, "text": text}
    if "result" in one and one["result"] is None:
        return {**one, **_result(text)}
    if "uri" in one and one["uri"] is None:
        return {**one, "uri": part["image_url"]["url"]} if "image_url" in part else _text(text)
    return {**one}


def _result(text: Any) -> _Record:
    return {"result": text, "items": [_text(text)]}


def _text(text: Any) -> _Record:
    return {"type": "text", "text": text, "additional_properties": {}}


# -- from other chat messages ----------------------------------------------------------------------


def _equivalent(chat: ChatDict) -> _Record:
    role, content = chat["role"], chat.get("content")
    if role == "tool":
        id_ = str(chat.get("tool_call_id"))
        contents = [Content.from_function_result(id_, result=plain_text(chat))]
    elif isinstance(content, list):
        contents = [_content(part) for part in content]
    else:
        contents = [Content.from_text(content)] if content else []
        contents.extend(
            Content.from_function_call(id_, name, arguments=arguments)
            for id_, name, arguments in tool_calls(chat)
        )
    known = "system" if role == "developer" else role
    record: _Record = FrameworkMessage(known, contents).to_dict()
    return record


def _content(part: Mapping[str, Any]) -> Content:
    if part.get("type") == "image_url":
        url = part["image_url"]["url"]
        try:
            return Content.from_uri(url, media_type=None if url.startswith("data:") else "image/*")
        except ContentError:
            return Content.from_text("[image_url]")
    return Content.from_text(part["text"] if "text" in part else f"[{part.get('type')}]")
