"""Signs that a sentence carries a fact: its speaker speaks of themselves, or says when."""

from __future__ import annotations

import re
from collections.abc import Iterable

_FIRST_PERSON = {
    "en": "i my mine me we our us",
    "de": "ich mein meine meinem meinen meiner mich mir wir unser unsere unserem unseren uns",
    "fr": "je j moi mon ma mes me m nous notre nos",
    "es": "yo me mi mis mí conmigo nosotros nosotras nos nuestro nuestra nuestros nuestras",
}
_TIMES = {
    "en": (
        "today yesterday tomorrow tonight week month year monday tuesday wednesday thursday "
        "friday saturday sunday "
        "january february march april may june july august september october november december"
    ),
    "de": (
        "heute gestern morgen woche wochen monat monate jahr jahre jahren montag dienstag mittwoch "
        "donnerstag freitag samstag sonntag januar februar märz april mai juni juli august "
        "september oktober november dezember"
    ),
    "fr": (
        "aujourd hier demain semaine semaines mois an ans année années lundi mardi mercredi jeudi "
        "vendredi samedi dimanche janvier février mars avril mai juin juillet août septembre "
        "octobre novembre décembre"
    ),
    "es": (
        "hoy ayer mañana semana semanas mes meses año años lunes martes miércoles jueves viernes "
        "sábado domingo enero febrero marzo abril mayo junio julio agosto septiembre octubre "
        "noviembre diciembre"
    ),
}
# scripts without blanks between words
_FIRST_PERSON_IN = {"ja": re.compile("[私僕俺]"), "zh": re.compile("我|咱")}
_TIMES_IN = {
    "ja": re.compile("[今昨明来先去][日週月年]|曜日|[日月年]に"),
    "zh": re.compile("[今昨明去前][天年]|星期|上周|下周|个月|月份"),
}
_FIRST_PERSON_OF = {language: frozenset(text.split()) for language, text in _FIRST_PERSON.items()}
_TIMES_OF = {language: frozenset(text.split()) for language, text in _TIMES.items()}


def says_i(text: str, words: Iterable[str], language: str) -> bool:
    """Return whether a sentence is in the first person; in a language that is not known, no.

    Args:
        text: the sentence.
        words: its words, in lower case.
        language: its language, as an ISO 639-1 code.
    """
    return _has(text, words, _FIRST_PERSON_IN.get(language), _FIRST_PERSON_OF.get(language))


def says_when(text: str, words: Iterable[str], language: str) -> bool:
    """Return whether a sentence names a day, a month or another time; in a language not known, no.

    Args:
        text: the sentence.
        words: its words, in lower case.
        language: its language, as an ISO 639-1 code.
    """
    return _has(text, words, _TIMES_IN.get(language), _TIMES_OF.get(language))


def _has(
    text: str,
    words: Iterable[str],
    pattern: re.Pattern[str] | None,
    signs: frozenset[str] | None,
) -> bool:
    if pattern is not None:
        return pattern.search(text) is not None
    return signs is not None and not signs.isdisjoint(words)
