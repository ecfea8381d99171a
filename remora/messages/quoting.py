"""Stored text in a context: quoted, attributed, and unable to look like anything else.

What users and tools wrote is data wherever a model reads it again. So remora's own lines begin at
the start of a line, and stored text never does: it is a JSON string on one line (`quote`), or a
text whose later lines are indented (`indent`). Characters that hide or reorder text are removed: a
reader of the context sees what the model sees.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

import msgspec

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
