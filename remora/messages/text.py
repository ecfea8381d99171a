"""Text made of chat dicts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from remora.messages.chat import ChatDict, call_keys
from remora.messages.media import describe, payload, words_of
from remora.messages.quoting import plain_name, remove_hidden

_DAY_US = 86_400_000_000


class CalledTool(NamedTuple):
    """A tool call of a chat dict: its arguments are JSON text, or any text for a custom tool."""

    id: str
    name: str
    arguments: str


def tool_calls(chat: Mapping[str, Any]) -> list[CalledTool]:
    """The tool calls of a chat dict that was checked."""
    found = []
    for call in chat.get("tool_calls") or ():
        key, text_key = call_keys(call.get("type"))
        found.append(CalledTool(call["id"], call[key]["name"], call[key][text_key]))
    return found


def plain_text(chat: Mapping[str, Any]) -> str:
    """A message as text: its content, a word for each part that is not text, its tool calls."""
    content = chat.get("content")
    if isinstance(content, str) and len(chat) == 2:
        return content
    pieces: list[str] = []
    if isinstance(content, str):
        pieces.append(content)
    elif content:
        for part in content:
            kind = part["type"]
            pieces.append(part[kind] if kind in {"text", "refusal"} else attachment_words(part))
    if isinstance(refusal := chat.get("refusal"), str):
        pieces.append(refusal)
    if isinstance(audio := chat.get("audio"), Mapping):
        pieces.append(str(audio.get("transcript") or "[audio]"))
    pieces.extend(f"[calls {one.name} {one.arguments}]" for one in tool_calls(chat))
    if isinstance(called := chat.get("function_call"), Mapping):
        pieces.append(f"[calls {called.get('name')} {called.get('arguments')}]")
    return "\n".join(piece for piece in pieces if piece)


def content_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A message's content as parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def join_contents(
    first: str | list[dict[str, Any]] | None, second: str | list[dict[str, Any]] | None
) -> str | list[dict[str, Any]]:
    """One content out of two."""
    if not first or not second:
        return first or second or ""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*content_parts(first), *content_parts(second)]


def attachment_words(part: Mapping[str, Any]) -> str:
    """A part that is not text, by kind, name and size: ``[image photo.png, 1024x768]``."""
    kind = part["type"]
    of_kind = part.get(kind)
    named = [one for one in (of_kind, part) if isinstance(one, Mapping)]
    given = [one[key] for one in named for key in _NAMES if isinstance(one.get(key), str)]
    name = next(filter(None, given), "")
    if not name and kind in {"image_url", "video_url"}:
        url = part[kind]["url"]
        path = url[:_LONGEST_URL].partition("?")[0].partition("#")[0]
        name = "" if url.startswith("data:") else unquote(path.rpartition("/")[2])
    shown = " ".join(
        remove_hidden(name[:_LONGEST_NAME]).replace("[", "(").replace("]", ")").split()
    )
    title = f"{_KINDS.get(kind, kind)} {shown}" if shown else _KINDS.get(kind, kind)
    return f"[{', '.join(filter(None, (title, _size(part))))}]"


def _size(part: Mapping[str, Any]) -> str:
    """How large the bytes of a part are, that it has or that words stand for."""
    _, text = payload(part)
    if not text:
        return ""
    found = _MEASURED.search(text[-_LONGEST_NAME:])
    return found[1] or "" if found else words_of(describe(part))


_MEASURED = re.compile(r"\[[\w/.+-]+(?: ([^,\]]+))?, [\d.]+ k?M?B\]$")  # of `Blob.words`


_NAMES = ("filename", "name", "title")
_KINDS = {"image_url": "image", "video_url": "video", "input_audio": "audio"}
_LONGEST_NAME, _LONGEST_URL = 100, 2_000


def without_surrogates(text: str) -> str:
    """`text` with halves of surrogate pairs joined, and lone ones replaced by U+FFFD.

    UTF-8 cannot encode them; models cut emoji, and files are read with ``surrogateescape``.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_texts(value: Any) -> Any:
    """A copy of JSON-like data, in which each text is `without_surrogates`."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, Mapping):
        return {clean_texts(key): clean_texts(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_texts(one) for one in value]
    return value


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


def media_parts(chat: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """The parts of its content that are not text."""
    content: str | Sequence[Mapping[str, Any]] | None = chat.get("content")
    if not content or isinstance(content, str):
        return ()
    return [part for part in content if part["type"] not in {"text", "refusal"}]


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
