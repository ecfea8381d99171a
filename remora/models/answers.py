"""How a chat model wraps what it answers. All of it takes time with the length of the answer."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

_FENCE = "```"
_TAGS = r"(?:seed:)?(?:think|thinking|thoughts?|reasoning)"
_OPEN = re.compile(
    rf"<{_TAGS}(?: [^<>]{{0,100}})?>|\[think\]|◁think▷|<\|begin_of_thought\|>|<\|start_thinking\|>",
    re.IGNORECASE,
)
_CLOSE = re.compile(
    rf"</{_TAGS}>|\[/think\]|◁/think▷|<\|end_of_thought\|>|<\|end_thinking\|>", re.IGNORECASE
)
"""What begins and ends the thinking of DeepSeek, Qwen, Kimi, Magistral, Seed and others, where a
server leaves it in the text.
"""
_WORDS = ("think", "thought", "reasoning", "assistantfinal")
_CHANNEL, _FINAL = (
    "<|channel|>",
    re.compile(r"<\|channel\|>final\b(?:(?!<\|message\|>).){0,100}<\|message\|>"),
)
_BARE_ANALYSIS, _BARE_FINAL = "analysis", "assistantfinal"
"""The channels of gpt-oss ("harmony"), and what is left of them without their special tokens."""
_ESCAPE = re.compile(
    rb"\\\\"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""An escaped backslash, a whole pair of surrogates, or half of one."""
_HALF = len(rb"\ud800")
Value = TypeVar("Value")


def strip_fence(answer: str) -> str:
    """Return what is within a Markdown code fence if the whole answer is one.

    Else the answer, stripped.

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


def strip_thinking(answer: str) -> str:
    """An answer without what the model thought aloud; empty if it is nothing else.

    Thinking that has no end is no answer: the model came to its limit before it said anything.
    """
    if _CHANNEL in answer:
        finals = list(_FINAL.finditer(answer))
        return answer[finals[-1].end() :].partition("<|")[0].strip() if finals else ""
    lowered = answer.lower()
    if not any(word in lowered for word in _WORDS):
        return answer.strip()
    if answer.startswith(_BARE_ANALYSIS) and _BARE_FINAL in answer:
        return answer.rpartition(_BARE_FINAL)[2].strip()
    pieces: list[str] = []
    opened, closed, place = _OPEN.search(answer), _CLOSE.search(answer), 0
    if closed and (opened is None or closed.start() < opened.start()):
        place = closed.end()  # the prompt's template has opened it
    while place < len(answer) and (opened := _OPEN.search(answer, place)):
        pieces.append(answer[place : opened.start()])
        closed = _CLOSE.search(answer, opened.end())
        place = closed.end() if closed else len(answer)
    return "".join([*pieces, answer[place:]]).strip()


def find_json(text: str, kind: type[Value]) -> Value | None:
    """The JSON value of this type that a text is, or the object within its prose; None if none.

    An escape of half a character, such as an emoji that a model cut, is read as a replacement
    character: one of them must not cost the whole answer.
    """
    for candidate in (text, text[text.find("{") : text.rfind("}") + 1]):
        given = candidate.encode(errors="replace")
        for read in (bytes, mend_escapes):
            try:
                return msgspec.json.decode(read(given), type=kind)
            except (msgspec.MsgspecError, RecursionError):
                continue
    return None


def mend_escapes(text: bytes) -> bytes:
    """JSON in which escapes of half a surrogate pair are those of U+FFFD."""
    return _ESCAPE.sub(lambda found: found[0] if len(found[0]) != _HALF else rb"\ufffd", text)
