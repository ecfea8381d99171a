"""Items of the OpenAI Agents SDK as chat messages, and back.

An item that a chat message does not give back exactly is stored in the message's metadata. Parallel
function calls become one message, as a chat API wants them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from remora.errors import InvalidMessage
from remora.formats.responses import items_of, read_part
from remora.messages import KEPT_PREFIX, ChatDict, Message, plain_text

KEY = "openai_agents"
"""Metadata key of the items that a message was made from."""

_KEPT = f"{KEPT_PREFIX}{KEY}"  # of items without a role: these count as tokens
_CALLS = frozenset({"function_call", "reasoning"})


def chat_messages(items: Iterable[Mapping[str, object]], *, opaque: bool = False) -> list[ChatDict]:
    """Equivalent chat messages, as `Session.append` takes them.

    Raises:
        InvalidMessage: one of them is not an item.
    """
    return [chat for _, chat in numbered_messages(items, opaque=opaque)]


def numbered_messages(
    items: Iterable[Mapping[str, object]], *, opaque: bool = False
) -> Iterator[tuple[int, ChatDict]]:
    """`chat_messages`, each with the number of its first item, from 0."""
    calls: list[Mapping[str, Any]] = []  # function calls in a row, and the reasoning before each
    first = 0

    def close() -> Iterator[tuple[int, ChatDict]]:
        if any(item["type"] == "function_call" for item in calls):
            yield first, _message(_message_of_calls(calls), calls)
        else:
            for number, item in enumerate(calls, start=first):
                yield number, _message(_message_of_item(item), [item])
        calls.clear()

    for index, item in enumerate(items):
        found: object = item
        if not isinstance(found, Mapping):
            raise InvalidMessage(
                f"item {index} is a {type(found).__name__}, not a dict of the Responses API",
                index=index,
            )
        if found.get("type") in _CALLS:
            first = index if not calls else first
            calls.append(found)
            continue
        yield from close()
        if opaque and "role" not in found and "type" not in found:
            kept = {_KEPT: [dict(found)]}
            yield index, {"role": "assistant", "content": "[item]", "metadata": kept}
        else:
            yield index, _message(_message_of_item(found), [found])
    yield from close()


def response_items(message: Message) -> list[Any]:
    """The items that a message was made from; equivalent items for other messages."""
    metadata = message.metadata or {}
    kept = metadata.get(KEY, metadata.get(_KEPT))
    items = kept if kept is not None else _items(message.to_chat())
    return list(items)


def _message(chat: ChatDict, items: Iterable[Mapping[str, Any]]) -> ChatDict:
    originals = [dict(item) for item in items]
    return chat if _items(chat) == originals else {**chat, "metadata": {KEY: originals}}


def _message_of_calls(items: Iterable[Mapping[str, Any]]) -> ChatDict:
    calls = [
        {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
        }
        for item in items
        if item["type"] == "function_call"
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _message_of_item(item: Mapping[str, Any]) -> ChatDict:
    """The message of any other item."""
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item.get("role"), "content": _content(item.get("content"))}
    if kind == "function_call_output":
        return {
            "role": "tool",
            "tool_call_id": item.get("call_id"),
            "content": item_text(item.get("output")),
        }
    said = item_text(item.get("summary")) or item_text(item.get("content"))
    return {"role": "assistant", "content": f"[{kind}]\n{said}".rstrip()}


def _content(content: Any) -> Any:
    """Text if there is only text; otherwise content parts of a chat API."""
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return read_part(part, 0)
    except InvalidMessage:
        return {"type": "text", "text": f"[{part.get('type')}]"}


def item_text(content: Any) -> str:
    """The text of an item's content; a word for each part that has none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(
        str(part.get("text") or f"[{part.get('type')}]")
        for part in content
        if isinstance(part, Mapping)
    )


def _items(chat: ChatDict) -> list[dict[str, Any]]:
    """Equivalent items of a chat message, at least one."""
    if chat["role"] == "tool":
        return items_of({**chat, "content": plain_text(chat)})
    return items_of(chat) or [{"role": chat["role"], "content": plain_text(chat)}]
