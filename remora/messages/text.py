"""Text made of chat dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from remora.messages.chat import ChatDict
from remora.messages.quoting import plain_name

__all__ = [
    "dated_line",
    "media_parts",
    "plain_text",
    "speaker_of",
    "split_tool_calls",
    "without_surrogates",
]

_DAY_US = 86_400_000_000


def plain_text(chat: Mapping[str, Any]) -> str:
    """A message as text: its content, a word for each part that is not text, its tool calls."""
    content = chat.get("content")
    if isinstance(content, str) and not chat.get("tool_calls"):
        return content
    pieces: list[str] = []
    if isinstance(content, str):
        pieces.append(content)
    elif content:
        for part in content:
            kind = part["type"]
            is_text = kind in {"text", "refusal"}
            pieces.append(part[kind] if is_text else f"[{kind.removesuffix('_url')}]")
    for call in chat.get("tool_calls") or ():
        function = call["function"]
        pieces.append(f"[calls {function['name']} {function['arguments']}]")
    return "\n".join(piece for piece in pieces if piece)


def without_surrogates(text: str) -> str:
    """`text` with lone surrogates replaced: UTF-8 cannot encode them, and models cut emoji."""
    return text.encode("utf-8", "replace").decode()


def split_tool_calls(messages: Sequence[ChatDict]) -> int:
    """How many calls lack their result, or results their call, where a chat API wants them (G8)."""
    split = 0
    awaited: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] in awaited:
                awaited.remove(str(message["tool_call_id"]))
            else:
                split += 1
            continue
        split += len(awaited)
        calls = message.get("tool_calls") or ()
        assert isinstance(calls, (list, tuple))
        awaited = [call["id"] for call in calls]
    return split + len(awaited)


def media_parts(chat: Mapping[str, Any]) -> Iterable[str]:
    """The kind (``image_url``, ``input_audio``, ``file``) of each part that is not text."""
    content: str | Sequence[Mapping[str, Any]] | None = chat.get("content")
    if not content or isinstance(content, str):
        return ()
    return [part["type"] for part in content if part["type"] not in {"text", "refusal"}]


def dated_line(at_us: int, text: str) -> str:
    """A dated line for searching and for a context: "(8 May 2023) Caroline: …".

    Args:
        at_us: microseconds since the epoch.
        text: what was said.
    """
    return f"({_date(at_us // _DAY_US)}) {text}"


@lru_cache(maxsize=1_000)
def _date(day: int) -> str:
    at = datetime.fromtimestamp(day * 86_400, UTC)
    return f"{at.day} {at:%B %Y}"


def speaker_of(chat: Mapping[str, Any]) -> str:
    """The speaker's name, or the role if there is no name that can be shown."""
    role = str(chat["role"])
    name = chat.get("name")
    return (plain_name(str(name), role) if name else "") or role.title()
