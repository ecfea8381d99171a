"""Identifiers that a question names: order numbers, codes, e-mail addresses, paths, user names.

A message that holds the very identifier is about it; other words of the question are in hundreds of
messages about others. An identifier is a run of letters, digits and ``-_./@:#`` that has letters
and digits mixed, five digits in a row, an ``@`` or a path's ``/``, or that is five capitals in a
text that is not all capitals. Dates, times, ordinals and quantities ("20th", "500ml") are none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from remora.actors.policies.bm25 import words
from remora.languages.patterns import late

__all__ = ["find_identifiers"]

_MOST_CHARS = 4_000  # of a question
_MOST = 8
_RUN = re.compile(r"(?a:[\w][\w.@/:#-]{2,120})")
_MIXED = re.compile(r"(?a:(?=\S*\d)(?=\S*[A-Za-z])\w[\w.@/:#-]{3,})")
_DIGITS = re.compile(r"\d{5}")
_ADDRESS = re.compile(r"(?a:[\w.+-]+@[\w-]+\.\w+|\w+(?:/[\w.-]+){2,}|[\w-]+/[\w-]+\.\w+)")
_CODE = re.compile(r"[A-Z]{5,}")
_NONE = late(
    r"(?ai:\d{4}-\d\d?(?:-\d\d?)?(?:t[\d:.z+-]*)?|\d\d?[./-]\d\d?[./-]\d{2,4}"  # dates
    r"|\d\d?:\d\d(?::\d\d)?(?:[ap]m)?"  # times
    r"|\d+(?:[.,:]\d+)?-?(?:[a-z]{1,3}|mins?|hours?|days?|weeks?|months?|years?|year-olds?)"
    r"|\d+-[a-z]+(?:-[a-z]+)*)"  # 500ml, 20th, 3-bedroom
)


def find_identifiers(text: str) -> Sequence[tuple[str, ...]]:
    """The identifiers of a question, each as the stems that a message with it has; at most eight.

    It looks at the first 4,000 characters.
    """
    text = text[:_MOST_CHARS]
    shouted = text == text.upper()
    found: dict[tuple[str, ...], None] = {}
    for run in _RUN.findall(text):
        one = run.rstrip(".@/:#-_")
        if _is_identifier(one, shouted=shouted) and (stems := tuple(dict.fromkeys(words(one)))):
            found[stems] = None
    return tuple(found)[:_MOST]


def _is_identifier(run: str, *, shouted: bool) -> bool:
    if _NONE().fullmatch(run) is not None:
        return False
    if _ADDRESS.fullmatch(run) is not None:
        return True
    if _CODE.fullmatch(run) is not None:
        return not shouted
    return _MIXED.fullmatch(run) is not None or _DIGITS.search(run) is not None
