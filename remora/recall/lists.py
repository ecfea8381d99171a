"""Questions that ask for several things: their answers are spread over sessions.

"Which books have I read?", "How many …", "all the …": what is said on one day about one of these
things matches best several times over, and hides the others. So a message counts less for each
better one of its session.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

MOST_BETTER = 7
"""Messages of a session that count against another, at most: what is left is never nothing."""

_MOST_CHARS = 500  # of a question, whose patterns take 3 ms at most
_SMALL = 1 << 15
_EN_VERB = r"(?:do|does|did|is|are|was|were|has|have|had|can|could|would|will|should|might)\b"
_EN_SINGULAR = (  # words with an s at their end
    r"(?:\w+ss|\w*(?:news|series|gas|bus|status|process|business|focus|always|this|its|his|yes|us"
    r"|tennis|lens|bonus|virus|campus|chaos|christmas))\b"
)
_ASKED = {
    "en": (
        r"\bhow many\b|\b(?:what|which) (?:kinds|types|sorts)\b|\b(?:what|who|which) (?:are|were)\b"
        r"|\b(?:list|name|tell me) (?:me )?(?:all|every|each|the|my)\b"
        r"|\b(?:all|every one|each) of\b|\ball the\b|\bwhat all\b|\ball\W*$|\bboth\b"
        # a noun in the plural: "which old books did"
        rf"|\b(?:what|which|whose) (?:(?!{_EN_VERB})[\w'\u2019-]+ ){{0,4}}?"
        rf"(?!{_EN_SINGULAR}|{_EN_VERB})(?:[a-z][a-z-]+[^\s\W]s|people|children|men|women) "
        rf"{_EN_VERB}"
        # the perfect asks for all until now: "where has she been"
        r"|\b(?:what|which|where|who|whom)\b"
        r"(?:(?!\b(?:do|does|did|is|are|was|were)\b).){0,60}?\b(?:has|have)\b"
    ),
    "de": (
        r"\bwie ?viele\b|\balle[nrs]?\b|\bjede[nrs]?\b"
        r"|\b(?:welche[nr]?|was für) (?:\w+e[nr]? )?\w+(?:en|er|e|s)\b"
    ),
    "fr": r"\bcombien de\b(?! temps)|\b(?:les)?quel(?:le)?s\b|\btou(?:s|tes)\b|\bchacune?\b",
    "es": (
        r"\bcu[aá]nt[oa]s\b|\bcu[aá]les\b|\btod[oa]s\b"
        r"|\bqu[eé] (?:\w+ )?(?!(?:eres|más|somos|estás|tienes|haces)\b)\w{3,}s\b"
    ),
    "ja": "いくつ|何[人回個本冊枚匹台度種件軒か]|すべて|全て|全部|どんな|一覧|どれだけ",
    "zh": "多少|几[个次本位只条种家部]|幾[個次本位隻條種家部]|哪些|所有|全部|一共|列出",
}


def asks_for_several(question: str, language: str = "") -> bool:
    """Return whether a question asks for several things, by its wording; a guess.

    It looks at the first 500 characters.

    Args:
        question: in English, German, French, Spanish, Japanese or Chinese.
        language: its language, as an ISO 639-1 code, if it is known.
    """
    question = " ".join(question[:_MOST_CHARS].split())
    return any(pattern.search(question) is not None for pattern in _asked(language))


@cache
def _asked(language: str) -> Sequence[re.Pattern[str]]:
    wanted = [_ASKED[language]] if language in _ASKED else _ASKED.values()
    return [re.compile(one, re.IGNORECASE) for one in wanted]


def better_in_group(groups: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """How many before each are of the same group, at most 7; of those in none, 0; shape (n,).

    Args:
        groups: the group of each, negative for none; shape (n,).
    """
    import numpy as np  # noqa: PLC0415

    if len(groups) and groups.max() < _SMALL:
        groups = groups.astype(np.int16)  # sorted in half the time
    order = groups.argsort(kind="stable")
    ordered = groups[order]
    begins = np.ones(len(groups), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    places = np.arange(len(groups))
    earlier = np.empty(len(groups), np.intp)
    earlier[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    earlier[groups < 0] = 0
    return np.minimum(earlier, MOST_BETTER)
