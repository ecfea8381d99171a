"""The days that a text speaks of: "on 7 May 2023", "in March", "last summer", "vor zwei Wochen".

English, German, French, Spanish, Japanese and Chinese. It takes 20 to 60 µs for a question.
Summer is from June to August, as in the north; days are those of UTC.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date, timedelta
from itertools import islice

import msgspec

from remora.languages.detection import FUNCTION_WORDS, language_of
from remora.languages.patterns import late
from remora.languages.search_words import fold_accents

_MOST_CHARS = 1_000
_MOST_NORMALIZED = 2_000  # a few letters become 18 when they are normalized
_MOST_PERIODS = 8
_LONGEST_WEEK, _LONG_MONTH = 10, 31  # days


class Period(msgspec.Struct, frozen=True):
    """Some days.

    Attributes:
        first: the first day, as days since the epoch.
        last: the last one.
        yearly: no year was named: it is the year of the asking, or an earlier one.
    """

    first: int
    last: int
    yearly: bool = False

    def in_year_before(self) -> Period:
        """The same days a year earlier."""
        first, last = _day(self.first), _day(self.last)
        return Period(_number(_minus_months(first, 12)), _number(_minus_months(last, 12)), True)


def find_periods(text: str, today: int) -> list[Period]:
    """Return what a text names, in its first 1,000 characters.

    Dates that do not exist are left out.

    Args:
        text: a question, or a message.
        today: the day on which it was asked, or said, as days since the epoch.
    """
    return [*_read_periods(text, today)[0]]


def read_question(question: str, today: int) -> tuple[list[Period], bool]:
    """The days that a question names, and whether it names nothing else that could be looked for.

    As "What did I tell you yesterday?", "Worüber haben wir letzte Woche gesprochen?".
    """
    found, rest = _read_periods(question, today)
    return [*found], bool(found) and not any(
        word not in _SAYING and word not in _SAID_LITTLE
        for word in _WORD.findall(rest if rest.isascii() else _HAN_SAYING().sub(" ", rest))
    )


def name_days(message: str, said_on: int) -> str:
    """Return the dates of the days that a message names by their distance from its own.

    "Yesterday we moved", said on 8 May 2023, gives ``7 May 2023``: a question that has the date
    finds the message by its words. A week or a month is given by its month, a longer time by its
    year. What spans two of them is left out, and so are dates that the message writes itself.

    Args:
        message: its text.
        said_on: the day on which it was said, as days since the epoch.
    """
    found = _read_periods(message, said_on)[0]
    if not any(found.values()):
        return ""
    written = {*_WORD.findall(message.lower())}
    named = dict.fromkeys(_name(period) for period, is_relative in found.items() if is_relative)
    named.pop(_name(Period(said_on, said_on)), None)  # "today" is the message's own date
    return ", ".join(one for one in named if not written.issuperset(one.lower().split()))


def _name(period: Period) -> str:
    first, last = _day(period.first), _day(period.last)
    middle = _day((period.first + period.last) // 2)
    if first == last:
        return f"{first.day} {_month_name(first)}"
    if (last - first).days < _LONG_MONTH:
        is_month = (last - first).days > _LONGEST_WEEK
        return _month_name(middle) if is_month or first.month == last.month else ""
    return str(first.year) if first.year == last.year else ""


def _month_name(day: date) -> str:
    return f"{day:%B %Y}"


def _read_periods(text: str, today: int) -> tuple[dict[Period, bool], str]:
    """The days that a text names, and the text without them, as it was read.

    Of each it says whether the text gives only its distance from `today`.
    """
    text = text[:_MOST_CHARS].lower()
    if not text.isascii():
        text = fold_accents(text)[:_MOST_NORMALIZED]
    words = {*_LATIN_WORD.findall(text)}
    if _HAS_YEAR.search(text) is not None:
        words.add(_DIGITS)
    if not text.isascii():
        words.add(_HAN)
    if "hier" in words and language_of(text) not in {"fr", ""}:  # in German it is no day
        text, words = text.replace("hier", "    "), words - {"hier"}
    if words.isdisjoint(_FIRST_WORDS):
        return {}, text
    now = _day(today)
    found: dict[Period, bool] = {}
    for first_words, compiled, read in _PATTERNS:
        if words.isdisjoint(first_words):
            continue
        pattern = compiled()
        matches = [*pattern.finditer(text)]
        for match in matches:
            try:
                first, last, yearly = read(match, now)
                period = Period(_number(first), _number(last), yearly)
                found.setdefault(period, _is_relative(read, match))
            except (ValueError, OverflowError):  # 31 February, or the year 0
                continue
        if matches:
            text = pattern.sub(_blank, text)
    return dict(islice(found.items(), _MOST_PERIODS)), text


# -- calendar -----------------------------------------------------------------------------

_EPOCH = date(1970, 1, 1)


def _day(number: int) -> date:
    return _EPOCH + timedelta(number)


def _number(day: date) -> int:
    return (day - _EPOCH).days


def _minus_months(day: date, months: int) -> date:
    place = day.year * 12 + day.month - 1 - months
    year, month = place // 12, place % 12 + 1
    return date(year, month, min(day.day, calendar.monthrange(year, month)[1]))


def _month(year: int, month: int) -> tuple[date, date]:
    return date(year, month, 1), date(year, month, calendar.monthrange(year, month)[1])


def _season(year: int, season: int) -> tuple[date, date]:
    """Spring is 0; winter begins in December."""
    first = date(year, 3 * season + 3, 1)
    return first, _minus_months(first, -3) - timedelta(1)


def _week(day: date) -> tuple[date, date]:
    first = day - timedelta(day.weekday())
    return first, first + timedelta(6)


# -- words --------------------------------------------------------------------------------


def _numbered(text: str, start: int) -> dict[str, int]:
    """The number of each word: how many strokes are before it, from `start`."""
    groups = enumerate(text.split("|"), start)
    return {word: number for number, words in groups for word in words.split()}


_LATIN_WORD = re.compile("[a-z]+")
_MONTHS_TEXT = """
    january jan januar janvier enero | february feb februar fevrier febrero
    | march mar marz maerz mars marzo | april apr avril abril | may mai mayo
    | june jun juni juin junio | july jul juli juillet julio | august aug aout agosto
    | september sept sep septembre septiembre
    | october oct oktober octobre octubre | november nov novembre noviembre
    | december dec dezember decembre diciembre
"""
_MONTHS = _numbered(_MONTHS_TEXT, 1)
_DAYS_TEXT = """
    monday montag lundi lunes | tuesday dienstag mardi martes
    | wednesday mittwoch mercredi miercoles | thursday donnerstag jeudi jueves
    | friday freitag vendredi viernes
    | saturday samstag sonnabend samedi sabado | sunday sonntag dimanche domingo
"""
_DAYS = _numbered(_DAYS_TEXT, 0)
_SEASONS_TEXT = """
    spring fruhling fruhjahr printemps primavera | summer sommer ete verano
    | autumn fall herbst automne otono | winter hiver invierno
"""
_SEASONS = _numbered(_SEASONS_TEXT, 0)
_UNITS_TEXT = """
    day days tag tage tagen jour jours dia dias | week weeks woche wochen semaine semaines semana
    semanas | month months monat monate monaten mois mes meses
    | year years jahr jahre jahren an ans annee annees ano anos
    | weekend weekends wochenende week-end | night nacht nuit noche
"""
_UNITS = _numbered(_UNITS_TEXT, 0) | {"fin de semana": 4}
_DAY, _WEEK, _MONTH, _YEAR, _WEEKEND, _NIGHT = range(6)
_NUMBERS_TEXT = """
    a an one ein eine einem einer einen un une una | two zwei deux dos couple
    | three drei trois tres
    few paar quelques | four vier quatre cuatro | five funf cinq cinco | six sechs seis
    | seven sieben sept siete | eight acht huit ocho | nine neun neuf nueve | ten zehn dix diez
"""
_NUMBERS = _numbered(_NUMBERS_TEXT, 1)
_HAN_NUMBERS = {one: number for number, one in enumerate("一二三四五六七八九十", start=1)} | {
    "两": 2
}
_NEAR_DAYS = {
    "today": 0, "tonight": 0, "heute": 0, "aujourd'hui": 0, "hoy": 0, "今日": 0, "今天": 0,
    "yesterday": 1, "gestern": 1, "hier": 1, "ayer": 1, "昨日": 1, "昨天": 1,
    "the day before yesterday": 2, "vorgestern": 2, "avant-hier": 2, "anteayer": 2, "前天": 2,
    "一昨日": 2, "大前天": 3, "tomorrow": -1, "demain": -1, "明日": -1, "明天": -1,
    "the day after tomorrow": -2, "ubermorgen": -2, "apres-demain": -2, "pasado manana": -2,
    "明後日": -2, "后天": -2, "後天": -2,
}  # fmt: skip
_HAN_SPANS = {
    "先週": (_WEEK, 1), "上周": (_WEEK, 1), "上星期": (_WEEK, 1), "上个星期": (_WEEK, 1),
    "今週": (_WEEK, 0), "这周": (_WEEK, 0), "来週": (_WEEK, -1), "下周": (_WEEK, -1),
    "先月": (_MONTH, 1), "上个月": (_MONTH, 1), "今月": (_MONTH, 0), "这个月": (_MONTH, 0),
    "来月": (_MONTH, -1), "下个月": (_MONTH, -1), "去年": (_YEAR, 1), "昨年": (_YEAR, 1),
    "今年": (_YEAR, 0), "来年": (_YEAR, -1), "明年": (_YEAR, -1), "前年": (_YEAR, 2),
}  # fmt: skip
_HAN_UNITS = {
    "日": _DAY,
    "天": _DAY,
    "週間": _WEEK,
    "周": _WEEK,
    "か月": _MONTH,
    "个月": _MONTH,
    "年": _YEAR,
}


def _any(words: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_M, _D, _S, _U, _N = (_any(words) for words in (_MONTHS, _DAYS, _SEASONS, _UNITS, _NUMBERS))
_Y = r"(?:1[89]|20|21)\d\d"
_ORD = r"(?:st|nd|rd|th|er|\.)?"
_OF = r"(?:,|\s+(?:of|de|del))?\s*"
_IN = (
    r"(?:in|during|since|until|by|of|im|seit|bis|wahrend|en|au|depuis|pendant|desde|durante|"
    r"early|late|mid|anfang|ende|mitte|this|diesen|ce|este)\s+(?:the\s+|the\s+month\s+of\s+|el\s+|mes\s+de\s+)?"
)
_LAST = r"last|past|previous|letzte[nrms]?|vorige[nrms]?|vergangene[nrms]?"
_NEXT = r"next|coming|nachste[nrms]?|kommende[nrms]?"
_THIS = r"this|diese[nrms]?|ce|cet|cette|este|esta"
_AFTER_LAST = r"dernier|derniere|passe|passee|pasado|pasada"
_AFTER_NEXT = r"prochain|prochaine|proximo|proxima|que viene"
_BEFORE_SPANS_TEXT = (
    "last past previous next coming this ce cet cette este esta letzte letzten letzter letztes "
    "letztem vorige vorigen voriger voriges vorigem vergangene vergangenen vergangener vergangenes "
    "vergangenem nachste nachsten nachster nachstes nachstem kommende kommenden kommender "
    "kommendes kommendem diese diesen dieser dieses diesem"
)
_BEFORE_SPANS = _BEFORE_SPANS_TEXT.split()
_AFTER_SPANS = [*_AFTER_LAST.split("|"), *_AFTER_NEXT.split("|"), "que"]
_DIGITS, _HAN = "0", "年"  # stand for the digits of a year, and any letter that is not Latin
_HAS_YEAR = re.compile(_Y)

Found = tuple[date, date, bool]
Read = Callable[[re.Match[str], date], Found]


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else _NUMBERS.get(text, 0) or _HAN_NUMBERS[text]


def _read_day(match: re.Match[str], now: date) -> Found:
    month = match["month"]
    number = _MONTHS[month] if month in _MONTHS else int(month)
    year = match["year"]
    day = date(int(year) if year else now.year, number, int(match["day"]))
    if not year and day > now:
        day = day.replace(year=day.year - 1)
    return day, day, not year


def _read_month(match: re.Match[str], now: date) -> Found:
    month, year = match["month"], match["year"]
    number = _MONTHS[month] if month in _MONTHS else int(month)
    first, last = _month(int(year) if year else now.year - (number > now.month), number)
    return first, last, not year


def _read_season(match: re.Match[str], now: date) -> Found:
    year = match["year"]
    season = _SEASONS[match["season"]]
    first, last = _season(int(year) if year else now.year, season)
    if not year and first > now:
        first, last = _season(now.year - 1, season)
    return first, last, not year


def _read_year(match: re.Match[str], now: date) -> Found:  # noqa: ARG001
    year = int(match["year"])
    return date(year, 1, 1), date(year, 12, 31), False


def _read_near(match: re.Match[str], now: date) -> Found:
    day = now - timedelta(_NEAR_DAYS[match[0]])
    return day, day, False


def _read_weekday(match: re.Match[str], now: date) -> Found:
    back = (now.weekday() - _DAYS[match["weekday"]]) % 7 or 7
    day = now - timedelta(back)
    return day, day, False


def _shifted(now: date, unit: int, back: int) -> Found:
    """The unit of the calendar so many of them ago."""
    if unit == _WEEK:
        return *_week(now - timedelta(7 * back)), False
    if unit == _MONTH:
        day = _minus_months(now, back)
        return *_month(day.year, day.month), False
    if unit == _YEAR:
        return date(now.year - back, 1, 1), date(now.year - back, 12, 31), False
    if unit == _WEEKEND:
        friday = _week(now - timedelta(7 * back))[0] + timedelta(4)
        return friday, friday + timedelta(2), False
    day = now - timedelta(back)
    return day, day, False


def _ago(now: date, unit: int, count: int) -> Found:
    """So many units before a day, give or take half of one."""
    if unit == _DAY:
        day, slack = now - timedelta(count), 0
    elif unit in {_WEEK, _WEEKEND}:
        day, slack = now - timedelta(7 * count), 3
    else:
        day = _minus_months(now, count if unit == _MONTH else 12 * count)
        slack = 15 if unit == _MONTH else 183
    return day - timedelta(slack), day + timedelta(slack), False


def _read_span(match: re.Match[str], now: date) -> Found:
    back = 1 if match["last"] else -1 if match["next"] else 0
    word = match["what"]
    if word in _UNITS:
        if _UNITS[word] == _DAY:
            raise ValueError("the last day of something, or the next one")
        return _shifted(now, _UNITS[word], back)
    if word in _DAYS:
        day = _week(now)[0] + timedelta(_DAYS[word])
        if back == 1 and day >= now:
            day -= timedelta(7)
        elif back == -1 and day <= now:
            day += timedelta(7)
        return day, day, False
    if word in _SEASONS:
        first, last = _season(now.year, _SEASONS[word])
        if (back == 1 and last >= now) or first > now + timedelta(366 * (back == -1)):
            first, last = _season(now.year - 1, _SEASONS[word])
        return first, last, False
    number = _MONTHS[word]
    year = (
        now.year - (number >= now.month)
        if back == 1
        else now.year + (number <= now.month) * (back == -1)
    )
    return *_month(year, number), False


def _read_ago(match: re.Match[str], now: date) -> Found:
    return _ago(now, _UNITS[match["unit"]], _count(match["count"]))


def _read_before(match: re.Match[str], now: date) -> Found:
    """Two weeks before a day."""
    day, _, yearly = _read_day(match, now)
    unit, count = _UNITS[match["unit"]], _count(match["count"] or "one")
    if match["after"]:
        count = -count
    if match["count"] or unit == _DAY:
        return *_ago(day, unit, count)[:2], yearly
    if unit == _WEEKEND:
        friday = day - timedelta((day.weekday() - 4) % 7 or 7)
        return friday, friday + timedelta(2), yearly
    other = _ago(day, unit, count)[0] + timedelta({_WEEK: 3, _MONTH: 15}.get(unit, 0))
    return min(day, other), max(day, other), yearly


def _read_han_span(match: re.Match[str], now: date) -> Found:
    return _shifted(now, *_HAN_SPANS[match[0]])


def _read_han_ago(match: re.Match[str], now: date) -> Found:
    return _ago(now, _HAN_UNITS[match["unit"]], _count(match["count"]))


_RELATIVE = frozenset({_read_near, _read_ago, _read_han_span, _read_han_ago})


def _is_relative(read: Read, match: re.Match[str]) -> bool:
    """Return whether a text counts from its own day: "on Friday" may be before it, or after it.

    "The last year of school" is of another time.
    """
    if read is _read_span:
        return match["last"] is not None and not match.string[: match.start()].endswith("the ")
    return read in _RELATIVE


_DAY_MONTH = rf"(?P<day>\d{{1,2}}){_ORD}{_OF}(?P<month>{_M})\b\.?(?:{_OF}(?P<year>{_Y})\b)?"
_MONTH_DAY = (
    rf"(?P<month>{_M})\b\.?\s+(?:the\s+)?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:)"
    rf"(?:{_OF}(?P<year>{_Y})\b)?"
)
_BEFORE = (
    rf"\b(?:the\s+|last\s+)?(?:(?P<count>\d{{1,3}}|{_N})\s+)?(?P<unit>{_U})\s+"
    r"(?:before|prior\s+to|(?P<after>after))\s+(?:the\s+)?"
)


def _patterns() -> Iterator[tuple[Iterable[str], str, Read]]:
    """Words of which a text has one, if the pattern matches; the pattern; what reads it."""
    what = rf"(?P<what>{_U}|{_D}|{_S}|{_M})"
    count = rf"(?P<count>\d{{1,3}}|{_N})\s+"
    before = {"before", "prior", "after"}
    yield before, rf"{_BEFORE}{_DAY_MONTH}", _read_before
    yield before, rf"{_BEFORE}{_MONTH_DAY}", _read_before
    iso = rf"\b(?P<year>{_Y})[-/](?P<month>\d{{1,2}})[-/](?P<day>\d{{1,2}})\b"
    yield {_DIGITS}, iso, _read_day
    dotted = rf"\b(?P<day>\d{{1,2}})\.\s?(?P<month>\d{{1,2}})\.\s?(?P<year>{_Y})\b"
    yield {_DIGITS}, dotted, _read_day
    han_day = r"(?:(?P<year>\d{4})年)?(?P<month>\d{1,2})月(?P<day>\d{1,2})[日号]"
    yield {_HAN}, han_day, _read_day
    yield {_HAN}, r"(?:(?P<year>\d{4})年)?(?P<month>\d{1,2})月(?!\d)", _read_month
    yield {_HAN}, r"(?P<year>\d{4})年(?!前)", _read_year
    yield _MONTHS, rf"\b{_DAY_MONTH}", _read_day
    yield _MONTHS, rf"\b{_MONTH_DAY}", _read_day
    yield _MONTHS, rf"\b(?P<month>{_M})\b\.?{_OF}(?P<year>{_Y})\b", _read_month
    yield _SEASONS, rf"\b(?P<season>{_S})\b{_OF}(?P<year>{_Y})\b", _read_season
    first = rf"\b(?:(?P<last>{_LAST})|(?P<next>{_NEXT})|{_THIS})\s+"
    then = rf"\b(?!\s+(?:{_AFTER_LAST}|{_AFTER_NEXT}))"
    yield _BEFORE_SPANS, rf"{first}{what}{then}", _read_span
    follows = rf"\s+(?:(?P<last>{_AFTER_LAST})|(?P<next>{_AFTER_NEXT}))\b"
    yield _AFTER_SPANS, rf"\b{what}{follows}", _read_span
    yield {"ago"}, rf"\b{count}(?:of\s+)?(?P<unit>{_U})\s+ago\b", _read_ago
    since = r"\b(?:vor|il\s+y\s+a|hace)\s+(?:unas?\s+|etwa\s+|environ\s+)?"
    yield {"vor", "il", "hace"}, rf"{since}{count}(?P<unit>{_U})\b", _read_ago
    han_count = r"(?<![一二三四五六七八九十百\d])(?P<count>\d{1,3}|[一二三四五六七八九十两])"
    yield {_HAN}, rf"{han_count}(?P<unit>{_any(_HAN_UNITS)})(?:以)?前", _read_han_ago
    yield {_HAN}, _any(_HAN_SPANS), _read_han_span
    near = [word for word in _NEAR_DAYS if word.isascii()]
    near_words = {word for one in near for word in re.findall("[a-z]+", one)} - {"the", "d"}
    yield near_words, rf"\b(?:{_any(near)})\b", _read_near
    yield {_HAN}, _any([word for word in _NEAR_DAYS if not word.isascii()]), _read_near
    yield _MONTHS, rf"\b{_IN}(?P<month>{_M})\b(?P<year>)", _read_month
    yield _SEASONS, rf"\b{_IN}(?P<season>{_S})\b(?P<year>)", _read_season
    yield _DAYS, rf"\b(?:on|am|le|el)\s+(?P<weekday>{_D})\b", _read_weekday
    year = r"(?:year\s+|jahr\s+|jahre\s+|ano\s+)?"
    yield {_DIGITS}, rf"\b(?:{_IN}|as\s+of\s+){year}(?P<year>{_Y})\b", _read_year


_WORD = re.compile("[a-z]+|[^\\W_a-z]+")
_SAYING_TEXT = """
    tell told say said ask asked talk talked talking speak spoke spoken discuss discussed discussing
    mention mentioned chat chatted write wrote conversation conversations message messages remember
    recall happen happened new news anything something things stuff thing else please summarize
    summarise list show find
    sage sagte gesagt sagen erzahlt erzahlte erzahlen gefragt fragte gesprochen sprachen geredet
    besprochen erwahnt geschrieben passiert unterhalten woruber worum ging gespräch
    dit dire parle parler parlions demande demander raconte raconter discute discuter ecrit passe
    dije dijiste dicho decir conte contado hablado hablamos hablar pregunte preguntado comentado
    discutimos escribi paso
"""
_SAYING = frozenset(_SAYING_TEXT.split())
_SAID_LITTLE = frozenset(
    fold_accents(word) for language in ("en", "de", "fr", "es") for word in FUNCTION_WORDS[language]
) | {"s", "d", "l", "m"}
_HAN_SAYING = late(
    "私|僕|俺|たち|あなた|何|なに|どんな|こと|話|会話|言|聞|教え|伝え|質問|し|まし|た|を|は|が|に|の|"
    "って|か|て|い|っ|う|わ|え|つ|と|で|ん|だ|ね|よ|"
    "我|你|您|们|們|什么|什麼|哪些|说|說|过|過|了|的|跟|和|对|對|告诉|告訴|问|問|聊|谈|談|讨论|討論|些|呢|吗|嗎"
)

_PATTERNS = tuple((frozenset(words), late(one), read) for words, one, read in _patterns())
_FIRST_WORDS = frozenset[str]().union(*(words for words, _, _ in _PATTERNS))
