"""Answers to questions of time: messages that say when, and messages of the days that are named.

A message is of a day if it was said on it, or speaks of it: "yesterday", said on 8 May, is 7 May.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from remora.actors.policies.bm25 import words
from remora.languages.dates import Period
from remora.languages.search_words import search_texts
from remora.storage.ports import MemoryRow

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

_LOOKED_AT = 100  # messages in which days are looked for; 10 µs each, 50 with some
_TELLING_CHARS = 60  # a message of so many says something
_YEARS = 100  # back, in which a month without a year is looked for
_MONTH = 31
_MOST_CHARS = 2_000  # of a question, whose patterns take 4 ms at most
_DAY_US = 86_400_000_000
_ASKED = {
    "en": (
        r"^\W*when\b|\bhow long\b"
        r"|\b(?:what|which)\b.{0,20}\b(?:date|day|week|month|year|time)\b"
    ),
    "de": (
        r"^\W*(?:seit |bis |ab )?wann\b|\bwie lange\b"
        r"|\bwelche[mnrs]?\b.{0,20}\b(?:tag|woche|monat|jahr)"
    ),
    "fr": (
        r"^\W*(?:depuis )?quand\b|\bcombien de temps\b"
        r"|\bquel(?:le)?\b.{0,20}\b(?:date|jour|mois|ann[eé]e)"
    ),
    "es": (
        r"^\W*(?:desde )?cu[aá]ndo\b|\bcu[aá]nto tiempo\b"
        r"|\bqu[eé]\b.{0,20}\b(?:fecha|d[ií]a|mes|a[nñ]o)"
    ),
    "ja": "いつ|何[日月年曜]|どのくらいの間",
    "zh": "什么时候|什麼時候|何时|何時|哪天|哪年|多久",
}
_SAY_WHEN = {
    "en": (
        "yesterday tonight tomorrow ago week month year weekend recently "
        "monday tuesday wednesday thursday friday saturday sunday"
    ),
    "de": (
        "gestern vorgestern heute woche wochen monat monaten jahr jahren wochenende neulich "
        "montag dienstag mittwoch donnerstag freitag samstag sonntag"
    ),
    "fr": (
        "hier demain semaine mois année an week-end récemment dernier dernière "
        "lundi mardi mercredi jeudi vendredi samedi dimanche"
    ),
    "es": (
        "ayer anteayer hoy semana mes año fin recientemente pasado pasada "
        "lunes martes miércoles jueves viernes sábado domingo"
    ),
    "ja": "昨日 先週 先月 去年 今年 来年 今週 来週 週末 最近",
    "zh": "昨天 明天 上周 上个 去年 今年 明年 周末 最近 星期",
}


def day_of(at_us: int) -> int:
    """The day of a time, as days since the epoch; UTC."""
    return at_us // _DAY_US


def time_stems(question: str) -> Sequence[str]:
    """Stems of the words of messages that say when; none if a question does not ask for it.

    It looks at the first 2,000 characters.
    """
    question = question[:_MOST_CHARS]
    for language, pattern in _asked():
        if pattern.search(question) is not None:
            return _stems_of(language)
    return ()


@cache
def _asked() -> Sequence[tuple[str, re.Pattern[str]]]:
    return [(language, re.compile(one, re.IGNORECASE)) for language, one in _ASKED.items()]


@cache
def _stems_of(language: str) -> Sequence[str]:
    text = _SAY_WHEN[language]
    # of Japanese and Chinese these are pairs of characters already
    return words(text if language in {"ja", "zh"} else search_texts([text], language)[0])


def of_days_named(
    periods: Sequence[Period],
    rows: Sequence[MemoryRow],
    days: npt.NDArray[np.int32],
    eligible: npt.NDArray[np.bool_],
    candidates: npt.NDArray[np.intp],
    find: Callable[[MemoryRow], Sequence[Period]],
) -> npt.NDArray[np.bool_] | None:
    """Which rows are of these days, shape (rows,); None if there is no such day.

    Args:
        periods: what the question names.
        rows: the rows.
        days: of each, as days since the epoch; shape (rows,).
        eligible: which rows are searched, shape (rows,).
        candidates: places of the rows in which days are looked for, best first.
        find: the days that a row speaks of.
    """
    import numpy as np  # noqa: PLC0415

    mine = days[eligible]
    named = [latest for one in periods if (latest := _latest(one, mine)) is not None]
    if not named:
        return None
    found = np.zeros(len(rows), np.bool_)
    for one in named:
        found |= (days >= one.first) & (days <= one.last)
    for place in candidates[:_LOOKED_AT].tolist():
        if not found[place]:
            told = find(rows[place])
            found[place] = any(_is_of(event, one) for event in told for one in named)
    return found


def weigh_messages(
    chosen: npt.NDArray[np.bool_], chars: npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    """Return what chosen messages count by their lengths, up to 1; the others 0; shape (rows,).

    "OK, thanks" says nothing of a day.

    Args:
        chosen: shape (rows,).
        chars: of each; shape (rows,).
    """
    import numpy as np  # noqa: PLC0415

    return np.where(chosen, np.minimum(chars / _TELLING_CHARS, 1.0), 0.0)


def _latest(period: Period, days: npt.NDArray[np.int32]) -> Period | None:
    """These days of the latest year in which something was said on them."""
    if not period.yearly:
        return period
    if not len(days):
        return None
    oldest = int(days.min())
    for _ in range(_YEARS):
        if period.last < oldest:
            break
        if ((days >= period.first) & (days <= period.last)).any():
            return period
        period = period.in_year_before()
    return None


def _is_of(event: Period, named: Period) -> bool:
    """Return whether what a message speaks of is of the days named.

    A year is not of one of its days.
    """
    longest = max(named.last - named.first, _MONTH)
    overlaps = event.first <= named.last and event.last >= named.first
    return not event.yearly and overlaps and event.last - event.first <= longest
