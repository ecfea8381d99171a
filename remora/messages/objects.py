"""Messages of client libraries, which are recognized by their methods: none is imported."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from remora.errors import InvalidMessage
from remora.messages.chat import ChatDict

_PARSED = ("parsed", "parsed_arguments")
"""What a client library adds to an answer: objects of the application's own."""


class _Dumped(Protocol):
    def model_dump(self, **options: object) -> Any: ...


def is_message_object(given: object) -> TypeGuard[_Dumped]:
    """Return whether it is an object of pydantic's, as clients of chat APIs return them."""
    return hasattr(given, "model_dump") and not isinstance(given, type)


def chat_of_object(message: Any) -> ChatDict:
    """The chat dict of a client's message: what is not set is left out.

    Raises:
        InvalidMessage: it is no message, but a whole response, for instance.
    """
    try:
        chat = dump_object(message, mode="json")
    except Exception as e:
        raise InvalidMessage(
            f"the {type(message).__name__} cannot be read: {type(e).__name__}: {e}"
        ) from e
    if not isinstance(chat, dict):
        raise InvalidMessage(f"the {type(message).__name__} is not a chat message")
    if "choices" in chat:
        raise InvalidMessage(
            f"the {type(message).__name__} is a whole response; append its choices[0].message"
        )
    return _without_parsed(chat)


def dump_object(thing: _Dumped, *, mode: str = "python") -> Any:
    """Return a pydantic object's data, with defaults, and nulls that a provider sent."""
    dumped = dump_quietly(thing, mode=mode, exclude_none=True)
    _add_nulls(dumped, dump_quietly(thing, mode=mode, exclude_unset=True))
    return dumped


def dump_quietly(thing: _Dumped, **options: object) -> Any:
    """Return a pydantic object's data, also where it has values of types that nobody declared.

    pydantic warns of each: clients construct answers of other servers without a check.
    """
    try:
        return thing.model_dump(**options, warnings=False)
    except TypeError:  # its own method, without this option
        return thing.model_dump(**options)


def _add_nulls(dumped: Any, given: Any) -> None:
    """Add the nulls that a provider sent; other nulls are defaults of the library's."""
    if isinstance(dumped, dict) and isinstance(given, dict):
        for key, value in given.items():
            if value is None:
                dumped.setdefault(key, None)
            else:
                _add_nulls(dumped.get(key), value)
    elif isinstance(dumped, list) and isinstance(given, list):
        for one, other in zip(dumped, given, strict=False):
            _add_nulls(one, other)


def _without_parsed(chat: ChatDict) -> ChatDict:
    for key in _PARSED:
        chat.pop(key, None)
    for call in chat.get("tool_calls") or ():
        if isinstance(function := call.get("function"), dict):
            function.pop("parsed_arguments", None)
    if chat.get("role") == "assistant":
        chat.setdefault("content", None)
    return chat
