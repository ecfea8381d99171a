"""The words by which a text is searched, by its language.

Full-text search, in memory and in LanceDB, finds words as English has them: runs of letters, of
which English stop words are left out and the rest is stemmed. So a text in English is searched as
it stands. Of any other, what is stored for searching are its words without stop words, stemmed by
their own language, and pairs of characters where a script has no blanks between words. Both
searches find the same in it, and a user may mix languages.

A question that does not show its language is searched in all of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from remora.languages.detection import (
    FUNCTION_WORDS,
    STOP_CHARACTERS,
    STOP_PAIRS,
    language_of,
    may_be_foreign,
)
from remora.languages.patterns import late

STEMMED = {
    "en": "english",
    "de": "german",
    "fr": "french",
    "es": "spanish",
    "it": "italian",
    "pt": "portuguese",
    "nl": "dutch",
    "sv": "swedish",
    "da": "danish",
    "no": "norwegian",
    "tr": "turkish",
    "ru": "russian",
}
"""Languages whose words are stemmed, as ISO 639-1 codes, and Snowball's names for them."""

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff々〆"
_HIRAGANA = "\u3041-\u309f"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
_HANGUL = "\uac00-\ud7a3"
_UNSPACED = "\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u109f\u1780-\u17d3"  # Thai, Lao, Burmese, Khmer
_RUN = late(
    f"(?P<han>[{_HAN}]+)|(?P<hiragana>[{_HIRAGANA}]+)|[{_KATAKANA}]+|[{_HANGUL}]+|[{_UNSPACED}]+"
)
_HAS_RUN = late(f"[{_HAN}{_HIRAGANA}{_KATAKANA}{_HANGUL}{_UNSPACED}\uff66-\uff9f]")
# Vowel signs and other marks that belong to a word but are not letters: without them a word of
# Hindi or Thai would be split.
_MARKS = (
    "\u0483-\u0487\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u0711\u0730-\u074a"
    "\u0900-\u0963\u0971-\u0dff\u0e31-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u102b-\u103e\u1056-\u1059\u17b4-\u17d3\u3099\u309a"
)
WORD = re.compile(rf"(?:[^\W_]+|[{_MARKS}]+)+")
"""A word: a run of letters and digits."""
_ACCENTS = re.compile("[\u0300-\u036f]+")
_MANY_MARKS = re.compile(r"[^\w\s\x00-\x7f]{31,}")
_MOST_MARKS = 30  # in a row: as in stream-safe text (UAX #15)
_HEAD = re.compile(r"\(\d{1,2} \w{3,9} \d{4,}\) [^:\n]{1,100}: ")  # see `dated_line`
_MOST_CHARS = 16_000  # of a line that are looked at together, in some milliseconds
_OTHER_COST = 5  # of a character that is not ASCII; of most it is 2
_MOST_ASKED = 300
_ASKED_CHARS = 2_000  # of a question, which are some 200 words; searches look for no more


def search_texts(texts: Iterable[str], language: str = "en") -> list[str]:
    """Texts as full-text search is to have them; a text in English as it is.

    Args:
        texts: lines of messages, each with or without its head, as in "(8 May 2023) Ann: …". Lines
            may repeat.
        language: of lines that do not show theirs, in a text that does not either, as an ISO
            639-1 code.
    """
    lines = _Lines()
    return [_search_text(text, language, lines) for text in texts]


def question_forms(text: str) -> list[tuple[str, ...]]:
    """For each word of a question, what is looked for: the word itself, and its stems.

    The word itself finds names, and what was said in English. A question that does not show its
    language may be in any. Of a long one that is not in English, the first 2,000 characters count.
    """
    language = language_of(text)
    if language == "en" and text.isascii():
        return [(word,) for word in _words(text)]
    text = pair_characters(text[:_ASKED_CHARS])
    stop = FUNCTION_WORDS.get(language, frozenset())
    words = [word for word in dict.fromkeys(_words(text)) if word not in stop][:_MOST_ASKED]
    languages = [language] if language else STEMMED
    stems = [_stem(words, STEMMED[one]) for one in languages if one != "en" and one in STEMMED]
    forms = [tuple(dict.fromkeys(one)) for one in zip(words, *stems, strict=True)]
    return [tuple(dict.fromkeys((*one, *find_parts(one, language)))) for one in forms]


class _Lines:
    """Findings on lines: a message is in its neighbours' texts, too."""

    def __init__(self) -> None:
        self.foreign: dict[str, bool] = {}
        self.languages: dict[str, str] = {}
        self.made: dict[tuple[str, str], str] = {}

    def may_be_foreign(self, line: str) -> bool:
        found = self.foreign.get(line)
        if found is None:
            found = self.foreign[line] = may_be_foreign(line)
        return found

    def language(self, line: str) -> str:
        found = self.languages.get(line)
        if found is None:
            found = self.languages[line] = language_of(_said(line))
        return found

    def search_text(self, line: str, language: str) -> str:
        key = (line, language)
        made = self.made.get(key)
        if made is None:
            said = _said(line)
            head = line[: len(line) - len(said)]
            made = self.made[key] = head + _search_line(said, language)
        return made


def _search_text(text: str, language: str, lines: _Lines) -> str:
    parts = text.split("\n")
    if language == "en" and not any(map(lines.may_be_foreign, parts)):
        return text
    shown = [lines.language(part) for part in parts]
    counts = Counter(one for one in shown if one)
    around = max(counts, key=counts.__getitem__, default=language)
    return "\n".join(
        lines.search_text(part, one or around) for part, one in zip(parts, shown, strict=True)
    )


def _said(line: str) -> str:
    """A line without its head."""
    head = _HEAD.match(line)
    return line if head is None else line[head.end() :]


def _search_line(line: str, language: str) -> str:
    return "".join(_search_piece(piece, language) for piece in cut_text(line, _MOST_CHARS))


def _search_piece(text: str, language: str) -> str:
    text = pair_characters(text)
    if language == "en" or language not in STEMMED:
        return text
    stop = FUNCTION_WORDS[language]
    words = [word for word in _words(text) if word not in stop]
    stems = _stem(words, STEMMED[language])
    return " ".join([*stems, *find_parts(stems, language)]) + " "


def _words(text: str) -> list[str]:
    return WORD.findall(_normalize("NFC", text).lower())


def _stem(words: Sequence[str], language: str) -> Sequence[str]:
    stems: Sequence[str] = make_stemmer(language).stemWords(words)
    return stems


def make_stemmer(language: str) -> Any:
    """A Snowball stemmer, by its name of the language; two threads must not share one."""
    return _stemmers().Stemmer(language, 0)


@cache
def _stemmers() -> Any:
    import Stemmer  # noqa: PLC0415

    return Stemmer


def cut_text(text: str, most: int) -> Iterator[str]:
    """Pieces of at most so many characters, which end with a blank where there is one.

    One call of a regular expression holds all other threads, however long its text is.
    """
    start = 0
    while len(text) - start > most:
        end = text.rfind(" ", start, start + most) + 1 or start + most
        yield text[start:end]
        start = end
    yield text[start:]


def fold_accents(text: str) -> str:
    """The text without accents, and other forms of a letter as the plain one."""
    bare = _ACCENTS.sub("", _normalize("NFKD", text))
    return unicodedata.normalize("NFC", bare)


def plain_letters(text: str) -> str:
    """The text in lower case, without accents, and with straight apostrophes."""
    text = text.lower().replace("\u2019", "'")
    return text if text.isascii() else fold_accents(text).replace("ß", "ss")


def _normalize(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> str:
    """As `unicodedata.normalize`, without the marks beyond the thirtieth on one character.

    It sorts them in time with the square of their number, and holds all other threads.
    """
    return unicodedata.normalize(
        form, text if text.isascii() else _MANY_MARKS.sub(_cut_marks, text)
    )


def _cut_marks(run: re.Match[str]) -> str:
    kept, marks = [], 0
    for character in run[0]:
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks <= _MOST_MARKS:
            kept.append(character)
    return "".join(kept)


def reading_size(texts: Iterable[str]) -> int:
    """How long it takes to find the words of texts, in characters of English.

    Other letters are normalized, and a few become 18 when they are.
    """
    return sum(len(one) if one.isascii() else _OTHER_COST * len(one) for one in texts)


# -- scripts without blanks between words -------------------------------------------------


def pair_characters(text: str) -> str:
    """The text with its runs of such scripts as pairs of characters, with blanks between."""
    if text.isascii() or _HAS_RUN().search(text) is None:
        return text
    return _RUN().sub(_pair_run, _normalize("NFKC", text))


def _pair_run(match: re.Match[str]) -> str:
    run = match[0]
    pairs = [run[place : place + 2] for place in range(len(run) - 1)]
    if match.lastgroup == "hiragana":  # a single one is a particle
        found = [pair for pair in pairs if pair not in STOP_PAIRS]
    elif match.lastgroup == "han":
        found = [one for one in run if one not in STOP_CHARACTERS]
        found += [pair for pair in pairs if not STOP_CHARACTERS.issuperset(pair)]
    else:
        found = pairs or [run]
    return f" {' '.join(found)} "


_COMPOUNDS = Path(__file__).with_name("compounds.toml")
_STEMMERS = {"de": "german", "nl": "dutch", "sv": "swedish"}
_SHORTEST, _LONGEST = 7, 40  # letters of a compound's stem
_LEAST_BEFORE = 3
_LEAST_PART = 4  # letters of the part before, so that it is looked for
_LINKS = ("es", "en", "er", "s", "n", "e")


def find_parts(stems: Sequence[str], language: str) -> Iterator[str]:
    """The stems of the parts of those words that are compounds.

    Args:
        stems: of words, by the stemmer of their language.
        language: an ISO 639-1 code.
    """
    if language not in _STEMMERS:
        return
    heads = load_heads()[language]
    for stem in stems:
        if not _SHORTEST <= len(stem) <= _LONGEST:
            continue
        for place in range(_LEAST_BEFORE, len(stem) - 1):
            if stem[place:] in heads:
                yield stem[place:]
                before = stem[:place]
                if len(before) >= _LEAST_PART:
                    yield _without_link(before)
                break


def _without_link(part: str) -> str:
    for link in _LINKS:
        if part.endswith(link) and len(part) - len(link) >= _LEAST_PART:
            return part[: -len(link)]
    return part


@cache
def load_heads() -> Mapping[str, frozenset[str]]:
    """Return the stems of the last parts by language, read from a file at the first call."""
    import tomllib  # noqa: PLC0415

    import Stemmer  # noqa: PLC0415

    data = tomllib.loads(_COMPOUNDS.read_text(encoding="utf-8"))
    return {
        language: frozenset(Stemmer.Stemmer(_STEMMERS[language]).stemWords(str(text).split()))
        for language, text in data.items()
    }
