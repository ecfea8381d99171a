"""The common part of the formats: plain data of objects, parts, and what is kept verbatim."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol, TypeAlias

from remora.errors import InvalidMessage
from remora.messages import KEPT_PREFIX, ChatDict, Message, is_message_object
from remora.messages.entry import check_shape
from remora.messages.objects import dump_object
from remora.messages.text import MEDIA_PARTS, part_text


class PromptMessages(Protocol):
    """Messages for a model, with what one API needs back; a `remora.Context` is one."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """In the OpenAI chat format."""
        ...

    @property
    def kept(self) -> Mapping[int, Mapping[str, Any]]:
        """Metadata of some of them, by their places."""
        ...


ChatMessages: TypeAlias = Iterable[Message | Mapping[str, Any]] | PromptMessages
"""A context, or messages of a context or of a history."""

OPENING = "(The conversation began earlier.)"
"""What a user seems to say where an API wants one to begin, and the assistant began."""

_ENVELOPE = frozenset({"id", "created_at", "metadata", "seq"})
_FILE_KEYS = ("file_data", "file_id", "filename")
_MAX_DEPTH = 128
_VERBATIM = frozenset({"input", "args", "response", "arguments"})  # where null means something
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
_DIGEST = 12
_DATA_URL = re.compile(r"data:([^;,]*)[^,]*;base64,(.*)", re.DOTALL)


def plain(value: Any, levels: int = _MAX_DEPTH) -> Any:
    """The same in dicts and lists; objects of client libraries become dicts.

    Raises:
        InvalidMessage: it nests deeper than `levels`, or an object in it cannot be read.
    """
    if levels < 0:
        raise InvalidMessage(f"it nests deeper than {_MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {str(key): plain(one, levels - 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, levels - 1) for one in value]
    if not is_message_object(value):
        return value
    try:
        dumped = dump_object(value)
    except Exception as e:
        raise InvalidMessage(
            f"the {type(value).__name__} cannot be read: {type(e).__name__}: {e}"
        ) from e
    return plain(dumped, levels - 1)


def plain_list(given: Any, what: str) -> list[dict[str, Any]]:
    """One message or many, as dicts.

    Raises:
        InvalidMessage: one of them is neither a dict nor an object.
    """
    single = isinstance(given, Mapping) or is_message_object(given)
    if not single and (isinstance(given, (str, bytes)) or not isinstance(given, Iterable)):
        raise InvalidMessage(f"{what} must be dicts or objects, not {type(given).__name__}")
    found = []
    for index, one in enumerate([given] if single else given):
        try:
            read = plain(one)
        except InvalidMessage as e:
            raise InvalidMessage(f"{what}: item {index}: {e}", index=index) from e
        if not isinstance(read, dict):
            raise InvalidMessage(
                f"{what}: item {index} is a {type(read).__name__}, not a dict or an object",
                index=index,
            )
        found.append(read)
    return found


def text_field(given: Mapping[str, Any], name: str, index: int) -> str | None:
    """The text under a name of what a caller gave; None for none.

    Raises:
        InvalidMessage: something else is there; `index` is the message's.
    """
    value = given.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _wrong(name, "a text", value, index)


def data_field(given: Mapping[str, Any], index: int) -> str | bytes:
    """The bytes, or their base64, under ``data`` of what a caller gave; empty for none.

    Raises:
        InvalidMessage: something else is there; `index` is the message's.
    """
    value = given.get("data")
    if value is None or isinstance(value, (str, bytes)):
        return value or ""
    raise _wrong("data", "bytes or their base64", value, index)


def dict_field(given: Mapping[str, Any], name: str, index: int) -> dict[str, Any]:
    """The dict under a name of what a caller gave; empty for none.

    Raises:
        InvalidMessage: something else is there; `index` is the message's.
    """
    value = given.get(name)
    if value is None or isinstance(value, dict):
        return value or {}
    raise _wrong(name, "an object", value, index)


def dicts_in(given: Mapping[str, Any], name: str, index: int) -> list[dict[str, Any]]:
    """The dicts in the list under a name of what a caller gave.

    Raises:
        InvalidMessage: something else is there; `index` is the message's.
    """
    value = given.get(name)
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return value
    raise _wrong(name, "a list of objects", value, index)


def json_text(value: object, name: str, index: int) -> str:
    """The value as JSON text.

    Raises:
        InvalidMessage: it holds what JSON has no form for; `index` is the message's.
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidMessage(f"message {index}: {name} is no JSON: {e}", index=index) from e


def _wrong(name: str, wanted: str, value: object, index: int) -> InvalidMessage:
    return InvalidMessage(
        f"message {index}: {name} must be {wanted}, not {type(value).__name__}", index=index
    )


def checked(chats: Iterable[ChatDict], index: int) -> list[ChatDict]:
    """The chat messages that were made of one message, if they are some.

    Raises:
        InvalidMessage: a field has a wrong type; `index` is that of the message.
    """
    found = [*chats]
    for chat in found:
        check_shape({key: one for key, one in chat.items() if key not in _ENVELOPE}, index)
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
        text: str = parts[0]["text"]  # of any type until `checked`
        return text
    return parts or None


def parts_of(chat: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content of a chat message as parts; empty texts are left out, which APIs refuse."""
    content = chat.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return [one for one in content or () if one["type"] in MEDIA_PARTS or part_text(one).strip()]


def text_of(part: Mapping[str, Any]) -> str:
    """The text of a part; a word for one that is media."""
    kind = part["type"]
    return f"[{kind.removesuffix('_url')}]" if kind in MEDIA_PARTS else part_text(part)


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


def call_id(given: str, most: int = 64) -> str:
    """The id or name of a call as other APIs take it: `most` letters, digits, ``_`` and ``-``.

    One that is changed has a digest of the whole: different ones stay different.
    """
    clean = _FOREIGN.sub("_", given)
    if clean == given and 0 < len(given) <= most:
        return given
    digest = sha256(given.encode()).hexdigest()[:_DIGEST]
    return f"{clean[: most - _DIGEST - 1]}_{digest}"


def renamed_calls(kept: Iterable[Sequence[Any] | None]) -> Callable[[str], str]:
    """Return what gives ids of calls: `call_id`, except of those that are kept as they came.

    Args:
        kept: the parts of messages that are shown as they came.
    """
    own = {
        part[key]
        for parts in kept
        for part in parts or ()
        for key in ("id", "tool_use_id", "call_id")
        if isinstance(part, Mapping) and isinstance(part.get(key), str)
    }
    return lambda given: given if given in own else call_id(given)


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
    """The message, with what it came from in its metadata; bytes are base64, as in JSON."""
    kept = [_storable(part) for part in parts]
    return {**chat, "metadata": {**chat.get("metadata", {}), _key(api): kept}}


def opened(messages: ChatMessages, api: str) -> Iterator[tuple[ChatDict, list[Any] | None]]:
    """Each chat dict, and what it came from if that is of this API and was kept.

    Raises:
        InvalidMessage: one of them is not a chat message.
    """
    if not isinstance(messages, Iterable):
        kept = getattr(messages, "kept", None)
        if kept is None:
            raise InvalidMessage(f"messages must be a list, not {type(messages).__name__}")
        messages = [
            {**chat, "metadata": kept[place]} if place in kept else chat
            for place, chat in enumerate(messages.messages)
        ]
    for index, message in enumerate(messages):
        if isinstance(message, Message):
            chat, metadata = _chat_of(message, index), message.metadata
        elif isinstance(message, Mapping):
            chat = {key: value for key, value in message.items() if key not in _ENVELOPE}
            metadata = message.get("metadata")
        else:
            raise InvalidMessage(
                f"message {index} must be a Message or a dict, not {type(message).__name__}",
                index=index,
            )
        check_shape(chat, index)
        for part in chat["content"] if isinstance(chat.get("content"), (list, tuple)) else ():
            for name in _FILE_KEYS if part["type"] == "file" else ():
                text_field(part["file"], name, index)
        key = _key(api)
        if isinstance(metadata, Mapping) and metadata.get(key) is not None:
            yield chat, dicts_in(metadata, key, index)
        else:
            yield chat, None


def _chat_of(message: Message, index: int) -> ChatDict:
    try:
        return message.to_chat()
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidMessage(f"message {index} is not a chat message: {e}", index=index) from e


def _key(api: str) -> str:
    return f"{KEPT_PREFIX}{api}"


def _storable(part: Any) -> Any:
    if isinstance(part, bytes):
        return base64.b64encode(part).decode()
    if isinstance(part, dict):
        return {key: _storable(value) for key, value in part.items()}
    return [_storable(one) for one in part] if isinstance(part, list) else part


def is_same(made: Iterable[Any], given: Iterable[Any]) -> bool:
    """Return whether parts that were made of a chat message say all that was given.

    A key without a value says as much as none.
    """
    return [*map(_canonical, made)] == [*map(_canonical, given)]


def _canonical(part: Any) -> Any:
    if isinstance(part, bytes):
        return base64.b64encode(part).decode()
    if isinstance(part, dict):
        return {
            key: value if key in _VERBATIM else _canonical(value)
            for key, value in part.items()
            if value is not None
        }
    return [_canonical(one) for one in part] if isinstance(part, list) else part
