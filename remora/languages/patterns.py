"""Regular expressions that are compiled late.

Sets of characters beyond 0xffff, and many alternatives, take Python's compiler some milliseconds
each, and `import remora` should not wait for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial

_patterns: list[Callable[[], re.Pattern[str]]] = []


def late(expression: str) -> Callable[[], re.Pattern[str]]:
    """A function that returns the pattern. Its first call, or `compile_patterns`, compiles it."""
    pattern = cache(partial(re.compile, expression))
    _patterns.append(pattern)
    return pattern


def compile_patterns() -> None:
    """Compile all that are not compiled, which takes 30 ms."""
    for pattern in _patterns:
        pattern()


# -- words of texts in ASCII, in less than half of the time that a regular expression takes --------


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
