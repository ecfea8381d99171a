"""Text made of chat dicts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from remora.messages.chat import ChatDict, call_keys
from remora.messages.media import describe, payload, words_of

# -- stored text in a context: quoted, attributed, and unable to look like anything else -----------
#
# What users and tools wrote is data wherever a model reads it again. So remora's own lines begin at
# the start of a line, and stored text never does: it is a JSON string on one line (`quote`), or a
# text whose later lines are indented (`indent`). Characters that hide or reorder text are removed:
# a reader of the context sees what the model sees.

_BREAKS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_ALWAYS_HIDDEN = (
    "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f"  # control characters
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"  # zero width
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # tags, and selectors that carry hidden bytes
)
_HIDDEN = re.compile(
    f"[{_ALWAYS_HIDDEN}]"
    # joiners belong to emoji and to scripts that need them; between other letters they hide
    "|(?<=[\x00-\u02ff])[\u200c\u200d]|[\u200c\u200d](?=[\x00-\u02ff])"
)
# All that the two above may match: to look for one set takes a fifth of the time of their `sub`.
_UNUSUAL = re.compile(f"[{_ALWAYS_HIDDEN}\r\v\f\x1c-\x1e\x85\u2028\u2029\u200c\u200d]")
_NAME = re.compile(r"\w[\w .'\u2019@+-]{0,63}")
_NAME_WORDS = 5
_MOST_READ = 1_000  # characters of what may be a name, with what it hides
_ROLES = frozenset(
    {
        "admin", "ai", "assistant", "developer", "function", "human", "instruction", "model",
        "note", "operator", "root", "summary", "system", "tool", "user",
    }
)  # fmt: skip
_PLURALS = frozenset(f"{role}s" for role in _ROLES)
_encode = msgspec.json.Encoder().encode


def remove_hidden(text: str) -> str:
    """`text` without characters that hide or reorder it; every line break is a line feed."""
    if (text.isascii() and text.isprintable()) or _UNUSUAL.search(text) is None:
        return text
    return _HIDDEN.sub("", _BREAKS.sub("\n", text))


def indent(text: str) -> str:
    """`text` with all lines after the first indented, so that none of them begins a section."""
    first, *rest = remove_hidden(text).split("\n")
    kept = (line if line.startswith("  ") else f"  {line}" for line in rest if line.strip())
    return "\n".join((first, *kept))


def quote(text: str) -> str:
    """`text` as a JSON string, which is on one line: a line break is a backslash and an n."""
    return _encode(remove_hidden(text.strip())).decode()


def plain_name(name: str, role: str) -> str:
    """A speaker's name as remora shows it; empty if it is none.

    A name has letters, digits, blanks and ``. ' @ + - _``, at most 64 characters and five words,
    and none of these is the name of another role: anything else could pass for a label.
    """
    if len(name) > _MOST_READ:  # many marks are normalized in time with the square of their number
        return ""
    name = unicodedata.normalize("NFKC", " ".join(remove_hidden(name).split()))
    if _NAME.fullmatch(name) is None or len(name.split()) > _NAME_WORDS:
        return ""
    if name.casefold() == role:
        return name
    words = re.split(r"[\W_]+", name.casefold())
    return "" if any(word in _ROLES or word in _PLURALS for word in words) else name


def escape_tags(text: str, names: Iterable[str]) -> str:
    """Escape the ``<`` of every tag of these names in `text`; nothing else is changed."""
    return _tags(tuple(sorted(set(names)))).sub("&lt;", text)


@lru_cache(maxsize=256)
def _tags(names: tuple[str, ...]) -> re.Pattern[str]:
    listed = "|".join(map(re.escape, names))
    return re.compile(rf"[<\ufe64\uff1c](?=[\s/\uff0f]*(?:{listed})\b)", re.IGNORECASE)


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
        pieces.extend(map(part_text, content))
    if isinstance(refusal := chat.get("refusal"), str):
        pieces.append(refusal)
    if isinstance(audio := chat.get("audio"), Mapping):
        pieces.append(str(audio.get("transcript") or "[audio]"))
    pieces.extend(f"[calls {one.name} {one.arguments}]" for one in tool_calls(chat))
    if isinstance(called := chat.get("function_call"), Mapping):
        pieces.append(f"[calls {called.get('name')} {called.get('arguments')}]")
    return "\n".join(piece for piece in pieces if piece)


ENCODED = re.compile(r"[A-Za-z0-9+/_-]{200,}={0,2}")
"""A text that is bytes: encrypted reasoning, signatures, files."""
TEXT_PARTS = frozenset({"text", "refusal"})
PART_TYPES = TEXT_PARTS | {"image_url", "video_url", "input_audio", "file"}
"""The types of content parts of a chat."""
MEDIA_PARTS = (PART_TYPES - TEXT_PARTS) | {"audio_url", "document_url"}
"""The types of content parts that are pictures, videos, sounds and documents."""


def part_text(part: Mapping[str, Any]) -> str:
    """A content part as text: a word for one that is media, nothing for reasoning."""
    kind = part["type"]
    if kind in TEXT_PARTS:
        text: str = part[kind]
        return text
    if kind in MEDIA_PARTS:
        return attachment_words(part)
    if kind in REASONING_PARTS:
        return ""
    held = part.get(kind)
    keys = (*_TEXTS, "data") if kind == "document" else _TEXTS  # elsewhere it is no text
    named = [one for one in (part, held) if isinstance(one, Mapping)]
    texts = [one[key] for one in named for key in keys if isinstance(one.get(key), str)]
    return next((one for one in texts if one and ENCODED.fullmatch(one) is None), "")


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


_NAMES = ("filename", "name", "title", "document_name")
_KINDS = {
    "image_url": "image",
    "video_url": "video",
    "input_audio": "audio",
    "audio_url": "audio",
    "document_url": "document",
}
_TEXTS = ("text", "content", "transcript")
REASONING_PARTS = frozenset({"thinking", "reasoning"})
_LONGEST_NAME, _LONGEST_URL = 100, 2_000


def without_surrogates(text: str) -> str:
    """`text` with halves of surrogate pairs joined, and lone ones replaced by U+FFFD.

    UTF-8 cannot encode them; models cut emoji, and files are read with ``surrogateescape``.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_texts(value: object) -> Any:
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


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 session``, ``2 sessions``; `plural` where an s is not enough."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


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
