"""The sentences of a text."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence

_MAX_PIECE_CHARS = 4_000  # of a text that is cut into sentences at once
_OTHER_BLANK = re.compile(r"[^\S\x00-\x7f]")


def cut_sentences(text: str, language: str) -> Iterator[str]:
    """The sentences of a text, each in one line, with single blanks.

    Args:
        text: the text.
        language: whose rules are used, as an ISO 639-1 code.
    """
    for piece in _cut(text):
        for sentence in _segment(piece, language):
            if joined := " ".join(sentence.split()):
                yield joined


def _segment(text: str, language: str) -> Sequence[str]:
    segment = importlib.import_module("sentencex").segment
    if not text.isascii():
        # sentencex 1.0.32 panics over a blank of several bytes before a full stop: "I\xa0. "
        text = _OTHER_BLANK.sub(" ", text)
    try:
        found: Sequence[str] = segment(language, text)
    except BaseException as e:
        # Rust's, which has written it to standard error; the text would cause it each time
        if type(e).__name__ != "PanicException":
            raise
        return text.split("\n")
    return found


def _cut(text: str) -> Iterator[str]:
    """Pieces of a long text, which end at white space if they can.

    sentencex 1.0 takes time with the square of the quotation marks in a text, and keeps the
    interpreter's lock for all of it: 6 s for 200 000 of them.
    """
    start = 0
    while len(text) - start > _MAX_PIECE_CHARS:
        middle, end = start + _MAX_PIECE_CHARS // 2, start + _MAX_PIECE_CHARS
        at = max(text.rfind("\n", middle, end), text.rfind(" ", middle, end))
        end = end if at < 0 else at + 1
        yield text[start:end]
        start = end
    yield text[start:]
