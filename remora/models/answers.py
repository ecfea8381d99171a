"""How a chat model wraps what it answers. All of it takes time with the length of the answer."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

__all__ = ["find_json", "strip_fence"]

_FENCE = "```"
_ESCAPE = re.compile(
    rb"\\\\"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""An escaped backslash, a whole pair of surrogates, or half of one."""
_HALF = len(rb"\ud800")
Value = TypeVar("Value")


def strip_fence(answer: str) -> str:
    """What is within a Markdown code fence if the whole answer is one; else the answer, stripped.

    A regular expression would need time with the square of a run of blanks, and hold the
    interpreter for all of it.
    """
    text = answer.strip()
    if not text.startswith(_FENCE) or not text.endswith(_FENCE):
        return text
    language, newline, content = text[len(_FENCE) : -len(_FENCE)].partition("\n")
    if not newline or (language.strip() and not language.strip().isidentifier()):
        return text
    return content.strip()


def find_json(text: str, kind: type[Value]) -> Value | None:
    """The JSON value of this type that a text is, or the object within its prose; None if none.

    An escape of half a character, such as an emoji that a model cut, is read as a replacement
    character: one of them must not cost the whole answer.
    """
    for candidate in (text, text[text.find("{") : text.rfind("}") + 1]):
        given = candidate.encode(errors="replace")
        for read in (bytes, _mend_escapes):
            try:
                return msgspec.json.decode(read(given), type=kind)
            except (msgspec.MsgspecError, RecursionError):
                continue
    return None


def _mend_escapes(text: bytes) -> bytes:
    """Replace halves of surrogate pairs."""
    return _ESCAPE.sub(lambda found: found[0] if len(found[0]) != _HALF else rb"\ufffd", text)
