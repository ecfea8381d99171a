"""What the formats share: plain data of objects, parts of content, and what is kept verbatim."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from remora.errors import InvalidMessage
from remora.messages import KEPT_PREFIX, ChatDict, Message, is_message_object

__all__ = [
    "ChatMessages",
    "chat_content",
    "data_url",
    "merge",
    "no_form",
    "opened",
    "parse_arguments",
    "parts_of",
    "plain",
    "plain_list",
    "split_data_url",
    "text_of",
    "with_kept",
]

ChatMessages: TypeAlias = Iterable[Message | Mapping[str, Any]]
"""Messages of a context, or of a history."""

_ENVELOPE = frozenset({"id", "created_at", "metadata", "seq"})
_VERBATIM = frozenset({"input", "args", "response", "arguments"})  # where null means something
_DATA_URL = re.compile(r"data:([^;,]*)[^,]*;base64,(.*)", re.DOTALL)


def plain(value: Any) -> Any:
    """The same in dicts and lists; objects of client libraries become dicts."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return plain(value.model_dump()) if is_message_object(value) else value


def plain_list(given: Any, what: str) -> list[dict[str, Any]]:
    """One message or many, as dicts.

    Raises:
        InvalidMessage: one of them is neither a dict nor an object.
    """
    single = isinstance(given, Mapping) or is_message_object(given)
    if not single and (isinstance(given, (str, bytes)) or not isinstance(given, Iterable)):
        raise InvalidMessage(f"{what} must be dicts or objects, not {type(given).__name__}")
    found = [plain(one) for one in ([given] if single else given)]
    for index, one in enumerate(found):
        if not isinstance(one, dict):
            raise InvalidMessage(
                f"{what}: item {index} is a {type(one).__name__}, not a dict or an object",
                index=index,
            )
    return found


def no_form(api: str, index: int, kind: object) -> InvalidMessage:
    """The error for what has no form in a chat."""
    return InvalidMessage(
        f"message {index} has a part of {api} that has no form in a chat: {kind!r}; leave it out, "
        f"or pass opaque=True to keep it for {api}",
        index=index,
    )


def chat_content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]] | None:
    """The content of a chat message; text if it is one text, None if there is nothing."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts or None


def parts_of(chat: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content of a chat message as parts; empty texts are left out, which APIs refuse."""
    content = chat.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return [part for part in content or () if part["type"] != "text" or part["text"].strip()]


def text_of(part: Mapping[str, Any]) -> str:
    """The text of a part; a word for one that is not text."""
    kind = part["type"]
    return str(part[kind]) if kind in {"text", "refusal"} else f"[{kind.removesuffix('_url')}]"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 of a data URL; None for any other address."""
    found = _DATA_URL.fullmatch(url)
    return (found[1] or "application/octet-stream", found[2]) if found else None


def data_url(media_type: str, data: str | bytes) -> str:
    """A data URL of base64 text, or of bytes."""
    text = base64.b64encode(data).decode() if isinstance(data, bytes) else data
    return f"data:{media_type};base64,{text}"


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments of a call as an object; text that is not one is under the key ``arguments``."""
    try:
        parsed = json.loads(text or "{}")
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": text}


def merge(turns: Iterable[tuple[str, list[Any]]]) -> list[tuple[str, list[Any]]]:
    """Neighbours of one role as one turn: roles alternate."""
    merged: list[tuple[str, list[Any]]] = []
    for role, parts in turns:
        if merged and merged[-1][0] == role:
            merged[-1][1].extend(parts)
        elif parts:
            merged.append((role, [*parts]))
    return merged


def with_kept(chat: ChatDict, api: str, parts: Iterable[Any]) -> ChatDict:
    """The message, with what it came from in its metadata."""
    kept = [_storable(part) for part in parts]
    return {**chat, "metadata": {**chat.get("metadata", {}), _key(api): kept}}


def opened(message: Message | Mapping[str, Any], api: str) -> tuple[ChatDict, list[Any] | None]:
    """The chat dict, and what it came from if that is of this API and was kept."""
    if isinstance(message, Message):
        chat, metadata = message.to_chat(), message.metadata
    else:
        chat = {key: value for key, value in message.items() if key not in _ENVELOPE}
        metadata = message.get("metadata")
    kept = (metadata or {}).get(_key(api))
    return chat, kept if isinstance(kept, list) else None


def _key(api: str) -> str:
    return f"{KEPT_PREFIX}{api}"


def _storable(part: Any) -> Any:
    """A part without keys that are not set; bytes are base64, as in the API's own JSON."""
    if isinstance(part, bytes):
        return base64.b64encode(part).decode()
    if isinstance(part, dict):
        return {
            key: value if key in _VERBATIM else _storable(value)
            for key, value in part.items()
            if value is not None
        }
    return [_storable(one) for one in part] if isinstance(part, list) else part
