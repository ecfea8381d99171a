"""Words of texts in ASCII, in less than half of the time that a regular expression takes."""

from __future__ import annotations

from collections.abc import Callable


def make_splitter(belongs: Callable[[str], bool]) -> Callable[[str], list[str]]:
    """A function that returns the words of a text in ASCII, in lower case.

    Args:
        belongs: whether a character belongs to a word.
    """
    characters = map(chr, range(128))
    table = "".join(one.lower() if belongs(one) else " " for one in characters).encode().ljust(256)

    def split(text: str) -> list[str]:
        return text.encode().translate(table).decode().split()

    return split
