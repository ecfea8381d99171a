"""Long texts that a model is to read: their head and tail, and the size of what is between.

Encoded bytes say nothing to a model and cost it dearly, so their size stands in their place.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence

_LEAST_DATA = 512
_DATA = re.compile(
    r"(?<![A-Za-z0-9+/_-])"  # where a run begins, and nowhere within: in time with its length
    r"(?:data:[\w.+/;=-]{1,100};base64,)?"
    rf"(?:[A-Za-z0-9+/_-]{{{_LEAST_DATA},}}"
    r"|(?:[A-Za-z0-9+/]{60,80}(?:\r?\n|\\r?\\n|\\n)){7,}[A-Za-z0-9+/]*)={0,2}"
)
"""Base64 in one line, or in lines as mail has it; also within JSON, where a line ends with \\n."""
_TAIL = 3  # a third of a clipped text is from its end


def replace_data(text: str) -> str:
    """`text` with the size of encoded bytes in their place: ``[12 kB of data]``."""
    if len(text) < _LEAST_DATA:
        return text
    return _DATA.sub(lambda found: f"[{size_words(len(found[0]) * 3 // 4)} of data]", text)


def clip(text: str, most: int, note: str = "") -> str:
    """The head and the tail of a text of more than `most` characters, and how much is between.

    Args:
        text: to be clipped.
        most: characters that stay.
        note: what stands between them, in place of their size.
    """
    if len(text) <= most:
        return text
    tail = most // _TAIL
    head = most - tail
    between = note or f"… [{size_words(len(text) - most)} are left out] …"
    return f"{text[:head].rstrip()} {between} {text[len(text) - tail :].lstrip()}".strip()


def clip_evenly(texts: Sequence[str], most: int) -> list[str]:
    """Texts of at most about `most` characters in all: the longest are clipped, to one length."""
    left, longest = most, 0
    lengths = sorted(map(len, texts))
    for place, length in enumerate(lengths):
        share = left // (len(lengths) - place)
        if length > share:
            longest = share
            break
        left -= length
    else:
        return list(texts)
    return [clip(text, longest) for text in texts]


def size_words(count: int) -> str:
    """A number of bytes or characters, for people: ``12 kB``."""
    return f"{count} B" if count < 1_000 else f"{count / 1_000:.0f} kB"


# -- the sentences of a text -----------------------------------------------------------------------

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
