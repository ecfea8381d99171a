"""Messages of OpenAI's Chat Completions API, and of the many servers that speak it."""

from __future__ import annotations

from typing import Any

from remora.formats.plain import ChatMessages, opened
from remora.messages import INSTRUCTING_ROLES, ChatDict

__all__ = ["to_openai"]

_REASONING = ("reasoning", "reasoning_content", "reasoning_details")


def to_openai(messages: ChatMessages, *, alternate: bool = False) -> list[ChatDict]:
    """The messages for ``client.chat.completions.create(messages=…)``.

    Reasoning of a model stays with the calls of tools that the newest message of the user led to,
    where DeepSeek and others want it back. Older reasoning is left out: they refuse it, or bill it.

    Args:
        messages: a context, or messages of a context or of a history.
        alternate: for servers whose chat template demands that user and assistant alternate
            (Mistral, Gemma and others): neighbours of one role are joined, and system messages are
            joined at the front.

    Raises:
        InvalidMessage: one of them is not a chat message.
    """
    chats = [dict(chat) for chat, _ in opened(messages, "openai")]
    asked = max((n for n, chat in enumerate(chats) if chat["role"] == "user"), default=-1)
    for chat in chats[: asked + 1]:
        for key in _REASONING:
            chat.pop(key, None)
    return _alternate(chats) if alternate else chats


def _alternate(chats: list[ChatDict]) -> list[ChatDict]:
    system = [chat["content"] for chat in chats if chat["role"] in INSTRUCTING_ROLES]
    joined: list[ChatDict] = []
    for chat in chats:
        if chat["role"] in INSTRUCTING_ROLES:
            continue
        last = joined[-1] if joined else None
        if last is not None and last["role"] == chat["role"] and _is_plain(last, chat):
            last["content"] = _join(last.get("content"), chat.get("content"))
        else:
            joined.append(dict(chat))
    if system:
        content = system[0]
        for one in system[1:]:
            content = _join(content, one)
        joined.insert(0, {"role": "system", "content": content})
    return joined


def _is_plain(*chats: ChatDict) -> bool:
    """Whether these may be one message: neither calls tools nor answers a call."""
    return not any("tool_calls" in chat or chat["role"] == "tool" for chat in chats)


def _join(first: Any, second: Any) -> Any:
    if not first or not second:
        return first or second or ""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
