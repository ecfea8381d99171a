"""The languages of a user's rows, and questions in another one.

Then few words are shared, and those by chance: nothing can be told from how well they match, and
the vectors are what finds the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from remora.storage.ports import MemoryRow

_LOOKED_AT = 64  # rows, in 0.3 ms
_LEAST_SHARE = 0.1  # of the rows that show a language


def main_languages(rows: Sequence[MemoryRow], find: Callable[[MemoryRow], str]) -> frozenset[str]:
    """The languages that many of the rows are in, as ISO 639-1 codes; it looks at 64 of them.

    Args:
        rows: the rows.
        find: the language of one; empty if it shows none.
    """
    step = max(len(rows) // _LOOKED_AT, 1)
    counts = Counter(map(find, rows[::step][:_LOOKED_AT]))
    del counts[""]
    least = _LEAST_SHARE * counts.total()
    return frozenset(language for language, count in counts.items() if count >= least)


def is_other_language(language: str, known: Collection[str]) -> bool:
    """Return whether a question's language is none of these; not if either is unknown."""
    return bool(language and known) and language not in known
