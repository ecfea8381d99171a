"""Items of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from remora.errors import InvalidMessage
from remora.formats.plain import (
    ChatMessages,
    call_id,
    chat_content,
    checked,
    is_same,
    no_form,
    opened,
    parts_of,
    plain,
    plain_list,
    renamed_calls,
    text_field,
    text_of,
    with_kept,
)
from remora.messages import ChatDict, tool_calls

_API = "responses"
_TEXTS = frozenset({"input_text", "output_text", "text"})


def from_responses(items: object, *, opaque: bool = False) -> list[ChatDict]:
    """Chat messages of items, for `Session.append`.

    What the model said and called between two other items is one message, as a chat API wants it.
    Pass all items of a response together: ``from_responses(response.output)``.

    Args:
        items: one or many: dicts, objects, or a whole response.
        opaque: keep messages with reasoning, and items that have no form in a chat, as they came.
            Otherwise reasoning is left out, and other such items are refused.

    Raises:
        InvalidMessage: one of them is no item, or has no form in a chat.
    """
    given = plain_list(items, "items of the Responses API")
    if len(given) == 1 and isinstance(given[0].get("output"), list) and "model" in given[0]:
        given = plain_list(given[0]["output"], "items of the Responses API")
    chats: list[ChatDict] = []
    answer = _Answer(chats, opaque=opaque)
    for index, item in enumerate(given):
        kind = text_field(item, "type", index) or ("message" if "role" in item else None)
        if kind == "function_call_output":
            answer.close()
            chats.extend(checked([_read_result(item, index, opaque=opaque)], index))
        elif kind == "message" and item.get("role") != "assistant":
            answer.close()
            chats.extend(checked([_read_message(item, index, opaque=opaque)], index))
        else:
            answer.add(item, kind, index)
    answer.close()
    return chats


class _Answer:
    """The model's texts and calls, one item after the other, until they become a message."""

    def __init__(self, chats: list[ChatDict], *, opaque: bool) -> None:
        self._chats = chats
        self._opaque = opaque
        self._begin()

    def _begin(self) -> None:
        self._items: list[dict[str, Any]] = []
        self._parts: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []

    def add(self, item: dict[str, Any], kind: object, index: int) -> None:
        if kind == "message":
            if self._parts and not self._calls:
                self.close()
            for part in _content(item, index):
                self._parts.append(read_part(part, index))
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            checked([{"role": "assistant", "tool_calls": [call]}], index)
            self._calls.append(call)
        elif kind != "reasoning":
            if not self._opaque:
                raise no_form("the Responses API", index, kind)
            self._parts.append({"type": "text", "text": f"[{kind or 'item'}]"})
        self._items.append(item)

    def close(self) -> None:
        if self._opaque and self._items and not self._parts and not self._calls:
            self._parts.append({"type": "text", "text": "[reasoning]"})
        if self._parts or self._calls:
            chat: ChatDict = {"role": "assistant", "content": chat_content(self._parts)}
            if self._calls:
                chat["tool_calls"] = self._calls
            keep = self._opaque and not is_same(items_of(chat), self._items)
            self._chats.append(with_kept(chat, _API, self._items) if keep else chat)
        self._begin()


def _content(item: Mapping[str, Any], index: int) -> list[dict[str, Any]]:
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise InvalidMessage(f"item {index} has no content", index=index)
    return content


def _read_message(item: dict[str, Any], index: int, *, opaque: bool) -> ChatDict:
    chat: ChatDict = {"role": item.get("role")}
    return _with_content(chat, item, _content(item, index), index, opaque=opaque)


def _read_result(item: dict[str, Any], index: int, *, opaque: bool) -> ChatDict:
    output = item.get("output")
    if not isinstance(output, (str, list)):
        raise InvalidMessage(f"item {index} has no output", index=index)
    chat: ChatDict = {"role": "tool", "tool_call_id": item.get("call_id")}
    return _with_content(chat, item, _content({"content": output}, index), index, opaque=opaque)


def _with_content(
    chat: ChatDict, item: dict[str, Any], given: list[dict[str, Any]], index: int, *, opaque: bool
) -> ChatDict:
    try:
        chat["content"] = chat_content([read_part(part, index) for part in given]) or ""
    except InvalidMessage:
        if not opaque:
            raise
        words = [text_field(part, "text", index) or f"[{part.get('type')}]" for part in given]
        return with_kept({**chat, "content": "\n".join(words)}, _API, [item])
    if opaque and not is_same(items_of(checked([chat], index)[0]), [item]):
        return with_kept(chat, _API, [item])
    return chat


def read_part(part: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A content part of an item as a chat API has it.

    Raises:
        InvalidMessage: it has no form in a chat; `index` is the item's.
    """
    read = _read_known(part, index)
    checked([{"role": "assistant", "content": [read]}], index)
    return read


def _read_known(part: Mapping[str, Any], index: int) -> dict[str, Any]:
    kind = text_field(part, "type", index)
    if kind in _TEXTS:
        return {"type": "text", "text": part.get("text")}
    if kind == "refusal":
        return {"type": "refusal", "refusal": part.get("refusal")}
    if kind == "input_image" and (url := part.get("image_url")):
        image = {"url": url}
        if (
            detail := text_field(part, "detail", index)
        ) and detail != "auto":  # as the API takes it without one
            image["detail"] = detail
        return {"type": "image_url", "image_url": image}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "input_file" and not part.get("file_url"):
        keys = ("file_data", "file_id", "filename")
        return {
            "type": "file",
            "file": {key: text for key in keys if (text := text_field(part, key, index))},
        }
    raise no_form("the Responses API", index, kind)


def to_responses(messages: ChatMessages) -> list[Any]:
    """The items for ``client.responses.create(input=…)``; system messages are among them.

    Several texts of one answer are joined. Names of speakers have no place there.

    Args:
        messages: a context, or messages of a context or of a history.

    Raises:
        InvalidMessage: one of them is not a chat message.
    """
    items: list[Any] = []
    chats = [*opened(messages, _API)]
    rename = renamed_calls(kept for _, kept in chats)
    for chat, kept in chats:
        items.extend(plain(kept) if kept else items_of(chat, rename))
    return items


def items_of(
    chat: Mapping[str, Any], rename: Callable[[str], str] = call_id
) -> list[dict[str, Any]]:
    """The items of one chat message; none for an assistant's message without a word or a call."""
    role, content = chat["role"], chat.get("content")
    if role == "tool":
        output = content if isinstance(content, str) else [*map(_part, parts_of(chat))]
        called = rename(chat["tool_call_id"])
        return [{"type": "function_call_output", "call_id": called, "output": output}]
    items: list[dict[str, Any]] = []
    if role == "assistant":
        if said := "\n".join(map(text_of, parts_of(chat))):
            items.append({"role": role, "content": said})
    elif isinstance(content, str):
        items.append({"role": role, "content": content})
    elif content:
        items.append({"role": role, "content": [*map(_part, parts_of(chat))]})
    for id_, name, arguments in tool_calls(chat):
        call = {"call_id": rename(id_), "name": name, "arguments": arguments}
        items.append({"type": "function_call", **call})
    return items


def _part(part: dict[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "image_url":
            image = part["image_url"]
            shown = {"image_url": image["url"], "detail": image.get("detail", "auto")}
            return {"type": "input_image", **shown}
        case "input_audio":
            return dict(part)
        case "file":
            return {"type": "input_file", **part["file"]}
    return {"type": "input_text", "text": text_of(part)}
