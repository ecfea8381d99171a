"""Events of Google's ADK as chat messages, and back.

An event becomes one chat message, or one for each result of a tool that it has. The first one has
the event in its metadata, without its text if the message has that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from remora.errors import InvalidMessage
from remora.messages import ChatDict, Message, plain_text

try:
    from google.adk.events import Event
    from google.genai import types
    from pydantic_core import PydanticSerializationError
except ImportError as e:
    raise ImportError('sessions of Google\'s ADK need it: pip install "remora[google-adk]"') from e

__all__ = ["chat_messages", "events_of", "invocation_of", "text_of"]

_KEY = "google_adk"
_SAME = "same_text"


def chat_messages(event: Event) -> list[ChatDict]:
    """Equivalent chat messages, as `Session.append` takes them; their ids are the event's.

    Raises:
        InvalidMessage: the event has what cannot be written as JSON.
    """
    try:
        kept = event.model_dump(mode="json", exclude_none=True)
    except (PydanticSerializationError, ValueError) as e:
        raise InvalidMessage(f"event {event.id} cannot be written as JSON: {e}", index=0) from e
    parts = (event.content.parts if event.content else None) or []
    results = [part.function_response for part in parts if part.function_response]
    chats = [
        {
            "role": "tool",
            "tool_call_id": result.id or f"{event.id}.{place}",
            "name": result.name,
            "content": msgspec.json.encode(_plain(result.response)).decode(),
        }
        for place, result in enumerate(results)
    ] or [_chat(event, parts)]
    if parts and kept["content"]["parts"] == [{"text": chats[0]["content"]}]:
        del kept["content"]["parts"]
        kept = {_SAME: kept}
    first = {**chats[0], "id": event.id, "metadata": {_KEY: kept}}
    rest = [
        {**chat, "id": f"{event.id}.{place}", "metadata": {_KEY: None}}
        for place, chat in enumerate(chats[1:], start=1)
    ]
    return [first, *rest]


def events_of(messages: Iterable[Message]) -> list[Event]:
    """The events that messages were made from; equivalent ones for other messages."""
    events = []
    for message in messages:
        metadata = message.metadata or {}
        if _KEY not in metadata:
            events.append(_equivalent(message))
        elif (kept := metadata[_KEY]) is not None:
            if _SAME in kept:
                kept = kept[_SAME]
                text = plain_text(message.to_chat())
                kept = {**kept, "content": {**kept["content"], "parts": [{"text": text}]}}
            events.append(Event.model_validate(kept))
    return events


def invocation_of(message: Message) -> str | None:
    """The id of the invocation that a message is of; None if it is of no event.

    Of an event with several messages, the first one has it, and the others an empty text.
    """
    metadata = message.metadata or {}
    if _KEY not in metadata:
        return None
    kept = metadata[_KEY] or {}
    return str(kept.get(_SAME, kept).get("invocation_id") or "")


def text_of(event: Event) -> str:
    """Return what an event says, without thoughts."""
    parts = (event.content.parts if event.content else None) or []
    return "\n".join(part.text for part in parts if part.text and not part.thought)


def _chat(event: Event, parts: list[types.Part]) -> ChatDict:
    role = "user" if event.author == "user" else "assistant"
    text = text_of(event)
    calls = [
        {
            "id": part.function_call.id or f"{event.id}.{place}",
            "type": "function",
            "function": {
                "name": part.function_call.name or "",
                "arguments": msgspec.json.encode(_plain(part.function_call.args or {})).decode(),
            },
        }
        for place, part in enumerate(parts)
        if part.function_call
    ]
    if calls and role == "assistant":
        return {"role": role, "content": text or None, "tool_calls": calls}
    files = "\n".join(
        f"[{blob.mime_type or 'file'}]"
        for part in parts
        if (blob := part.inline_data or part.file_data)
    )
    return {"role": role, "content": "\n".join(filter(None, (text, files))) or "[event]"}


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


def _equivalent(message: Message) -> Event:
    """For a message that something else has stored."""
    user = message.role == "user"
    content = types.Content(
        role="user" if user else "model", parts=[types.Part(text=plain_text(message.to_chat()))]
    )
    known: dict[str, Any] = {"id": message.id} if message.id else {}
    if message.created_at is not None:
        known["timestamp"] = message.created_at.timestamp()
    return Event(author="user" if user else "model", content=content, **known)
