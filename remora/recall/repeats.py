"""Texts that a context has already, so that it does not repeat them.

Texts are compared without case, blanks and the marks at their ends, and found within longer ones. A
user's message that is in the conversation is not recalled, nor is what the summary, the user
profile or a memory block says in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from remora.actors.user.messages import Synopsis

__all__ = ["SaidTexts", "same_words", "trim_profile"]

_LONG = 4_000  # characters; longer texts are not looked for
_ENDS = " .,;:!?\"'"
_LABEL = re.compile(r"^- (?:[^:\n]{1,80}: )?")
"""What comes before the text in a line of a fallback profile: - 22 Nov 2026, User: …"""


class SaidTexts:
    """Texts to look in.

    Args:
        texts: the first of them.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: list[str] = []
        self._split: set[int] = set()  # places of those without more than one blank in a row
        self.add(texts)

    def add(self, texts: Iterable[str]) -> None:
        """Look in these texts as well."""
        self._texts.extend([text.casefold() for text in texts])

    def has(self, text: str) -> bool:
        """Return whether one of the texts is this one, or contains it as whole words."""
        return self.has_words(same_words(text))

    def has_words(self, words: str) -> bool:
        """As `has`, for what `same_words` gave."""
        if not words or len(words) > _LONG:
            return False
        # few texts have the longest word, and only those are split: a quarter of the time
        longest = max(words.split(" "), key=len)
        places = [place for place, one in enumerate(self._texts) if longest in one]
        return any(_contains(self._comparable(place), words) for place in places)

    def _comparable(self, place: int) -> str:
        if place not in self._split:
            self._split.add(place)
            self._texts[place] = " ".join(self._texts[place].split())
        return self._texts[place]


def same_words(text: str) -> str:
    """Return what is equal for texts of the same words; a long text as it is."""
    return text if len(text) > _LONG else " ".join(text.split()).casefold().strip(_ENDS)


def trim_profile(synopsis: Synopsis, said: SaidTexts) -> Synopsis:
    """A user profile without the lines that it repeats, or that are in other texts."""
    identity = [line for line in synopsis.identity.splitlines() if not _is_said(line, said)]
    own = SaidTexts(identity)
    context = [
        line
        for line in synopsis.context.splitlines()
        if not _is_said(line, said) and not _is_said(line, own)
    ]
    return msgspec.structs.replace(
        synopsis, identity="\n".join(identity), context="\n".join(context)
    )


def _is_said(line: str, said: SaidTexts) -> bool:
    return said.has(_LABEL.sub("", line.strip(), count=1))


def _contains(text: str, wanted: str) -> bool:
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        if not (text[at - 1 : at].isalnum() and wanted[0].isalnum()) and not (
            text[end : end + 1].isalnum() and wanted[-1].isalnum()
        ):
            return True
        at = text.find(wanted, at + 1)
    return False
