"""How a chat model wraps what it answers. All of it takes time with the length of the answer."""

from __future__ import annotations

__all__ = ["strip_fence"]

_FENCE = "```"


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
