"""How a chat model wraps what it answers. All of it takes time with the length of the answer."""

from __future__ import annotations

from typing import TypeVar

import msgspec

__all__ = ["find_json", "strip_fence"]

_FENCE = "```"
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
    """The JSON value of this type that a text is, or the object within its prose; None if none."""
    for candidate in (text, text[text.find("{") : text.rfind("}") + 1]):
        try:
            return msgspec.json.decode(candidate, type=kind)
        except (msgspec.MsgspecError, RecursionError):
            continue
    return None
