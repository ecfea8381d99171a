"""Messages of client libraries, which are recognized by their methods: none is imported."""

from __future__ import annotations

from typing import Any

from remora.errors import InvalidMessage
from remora.messages.chat import ChatDict

__all__ = ["chat_of_object", "is_message_object"]

_ANSWERED_ONLY = ("annotations", "parsed")
"""What a chat API adds to its answer, and does not take back."""


def is_message_object(given: object) -> bool:
    """Whether it is an object of pydantic's, as clients of chat APIs return them."""
    return hasattr(given, "model_dump") and not isinstance(given, type)


def chat_of_object(message: Any) -> ChatDict:
    """The chat dict of a client's message: what is not set is left out.

    Raises:
        InvalidMessage: it is no message, but a whole response, for instance.
    """
    try:
        chat: object = message.model_dump(mode="json", exclude_none=True)
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
    for key in _ANSWERED_ONLY:
        chat.pop(key, None)
    for call in chat.get("tool_calls") or ():
        if isinstance(function := call.get("function"), dict):
            function.pop("parsed_arguments", None)
    if isinstance(audio := chat.get("audio"), dict):
        chat["audio"] = {"id": audio.get("id")}  # the API has the sound under its id
    if chat.get("role") == "assistant" and chat.get("tool_calls"):
        chat.setdefault("content", None)
    return chat
