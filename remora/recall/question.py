"""A question as searches take it: its text, its vector, and what each of its words counts.

A message that says the same in other words is found by *near words*: each word of the question also
looks for the words nearest to it in meaning that the user has said, and they count less. See
`remora.recall.near`, and ``related.toml`` for those that are written down.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from remora.actors.policies.bm25 import stem_words, surface_words, words
from remora.languages.dates import Period, read_question
from remora.languages.detection import language_of
from remora.languages.patterns import late
from remora.languages.personal import asks_what_assistant_said, find_matter
from remora.languages.search_words import (
    STEMMED,
    make_stemmer,
    pair_characters,
    question_forms,
    reading_size,
)
from remora.models.ports import Embedder, embed_texts
from remora.recall.near import Vocabulary
from remora.recall.traits import asks
from remora.storage.ports import Vector

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt


# -- related words: everyday words that say nearly the same as a word of a question ----------------
#
# "Who repaired our heating?" finds "the boiler is fixed", "Wo wohnt mein Bruder?" finds "my brother
# lives in Leeds", and "Do I have a pet?" finds a dog. They are written down in `related.toml`, and
# looked for as near words are (`remora.recall.near`), whatever the embedder is. They were written
# from a list of subjects that people talk about, not from a set of questions.

_FILE = Path(__file__).with_name("related.toml")
_LANGUAGES = ("en", "de", "fr", "es", "ja", "zh")
_HIRAGANA = re.compile("[\u3041-\u309f]+$")  # the endings of words
_LEAST_LETTERS = 4  # of a word that stands for those of other languages

Related = Mapping[str, tuple[str, ...]]


def find_related(stem: str, language: str) -> tuple[str, ...]:
    """Return the stems of the words that are related to a word of a question, sorted.

    Args:
        stem: of the word.
        language: of the question, as an ISO 639-1 code; empty for English.
    """
    return load_related().get(language or "en", {}).get(stem, ())


@cache
def load_related() -> Mapping[str, Related]:
    """Return the related stems by language and stem, read from a file at the first call."""
    import tomllib  # noqa: PLC0415

    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    same_stems = frozenset(data["same_stems"].split())
    related: dict[str, dict[str, set[str]]] = {language: {} for language in _LANGUAGES}

    def relate(own: Mapping[str, Collection[str]], others: Mapping[str, Collection[str]]) -> None:
        for language, stems in own.items():
            for stem in stems:
                related[language].setdefault(stem, set()).update(others[language])

    concepts = [_Concept(one, same_stems) for one in data["concepts"]]
    by_first_word: dict[str, set[str]] = {}
    for one in concepts:
        by_first_word.setdefault(one.words["en"][0], set()).update(one.crossing)
        relate(one.stems, {language: own | one.crossing for language, own in one.stems.items()})
    for kind, things in data["kinds"].items():
        found = {stem for thing in things.split() for stem in _stems(thing, "en")}
        found.update(stem for thing in things.split() for stem in by_first_word.get(thing, ()))
        named = [one.stems for one in concepts if kind in one.words["en"]]
        for own in named or [{"en": {*_stems(kind, "en")}}]:
            relate(own, dict.fromkeys(own, found))
    return {
        language: {stem: tuple(sorted(others - {stem})) for stem, others in table.items()}
        for language, table in related.items()
    }


class _Concept:
    """Words that say nearly the same, by language.

    Attributes:
        words: as they are written.
        stems: theirs.
        crossing: those stems that stand for the concept in questions of other languages.
    """

    def __init__(self, texts: Mapping[str, str], same_stems: Collection[str]) -> None:
        self.words = {language: text.split() for language, text in texts.items()}
        self.stems: dict[str, set[str]] = {language: set() for language in texts}
        self.crossing: set[str] = set()
        for language, words_of_it in self.words.items():
            for word in words_of_it:
                stems = {*_stems(word, language)}
                self.stems[language] |= stems
                if not word.isascii() or len(word) >= _LEAST_LETTERS:
                    self.crossing |= stems.difference(same_stems)


def _stems(word: str, language: str) -> list[str]:
    """The stems by which a word is searched, in Japanese and Chinese the longest pieces."""
    if language == "en":
        return words(word)
    if language in STEMMED:
        return words(make_stemmer(STEMMED[language]).stemWord(word.lower()))
    pieces = [one for one in words(pair_characters(word)) if not _HIRAGANA.match(one)]
    longest = max(map(len, pieces), default=0)
    if longest == 1 < len(word):  # one character of a longer word says something else
        return []
    return [piece for piece in pieces if len(piece) == longest]


_NEAR_SAID = 5  # near words that a word looks for, of those that the user said
_MOST_PARTS = 12  # of words, that are looked for in texts as they are
_LEAST_PART = 3  # letters of an English one
_SAYING_WEIGHT = 0.3
_MOST_WORDS = 32  # of a question, that have near ones, or several stems
_LONG = 4_000  # characters of English, whose words take half a millisecond
_NAME = re.compile(r"(?<=[^.!?\W]\s)[^\W\d_a-z]\w+")  # a capital within a sentence
_DAY_OF_MONTH = re.compile("(?a:[1-9]|[12][0-9]|3[01])")
_DATE = re.compile(r"\d[./-]\d{1,2}[./-]\d")
_TITLED = late(  # in German each noun has a capital; "meine Frau Anna" is a wife
    r"(?<!eine )(?<!ihre )(?<!Ihre )(?<!unsere )(?<!eure )"
    r"\b((?:Frau|Herrn?|Familie|Doktor|Professor(?:in)?|(?:Dr|Prof)\.)"
    r"(?:\s+(?:Dr|Prof)\.)*\s+[^\W\d_a-z]\w+)"
)


class Question(msgspec.Struct, frozen=True, dict=True):
    """A question.

    Attributes:
        text: the question.
        vector: its unit vector, shape (dimension,); None for the words alone.
        vocabulary: in which the words near its words are looked for; None for no near words.
        periods: the days that it names.
        of_days_alone: it names nothing else; see `read_question`.
    """

    text: str
    vector: Vector | None = None
    vocabulary: Vocabulary | None = None
    periods: Sequence[Period] = ()
    of_days_alone: bool = False

    @cached_property
    def language(self) -> str:
        """Return its language, as an ISO 639-1 code; empty if it shows none."""
        return language_of(self.text)

    @cached_property
    def matter(self) -> str:
        """Return what of its asker it asks about; see `find_matter`."""
        return find_matter(self.text)

    @cached_property
    def is_of_assistant(self) -> bool:
        """See `asks_what_assistant_said`."""
        return asks_what_assistant_said(self.text)

    @cached_property
    def bare_numbers(self) -> Collection[str]:
        """Return its numbers that a day of a month may have, if it names no day."""
        if self.periods or _DATE.search(self.text) is not None:
            return ()
        return [one for one in self.stems if _DAY_OF_MONTH.fullmatch(one) is not None]

    @property
    def asks(self) -> bool:
        """Return whether it asks, and is not only words to look for."""
        return asks(self.text)

    @cached_property
    def identifiers(self) -> Sequence[tuple[str, ...]]:
        """See `find_identifiers`."""
        return find_identifiers(self.text)

    @cached_property
    def parts_of_words(self) -> tuple[str, ...]:
        """Return what texts have of its words, whatever their endings are: some, the longest first.

        ASCII letters are small. Words with others are there as they are at the beginning of a
        sentence, too, and in capitals.
        """
        found: dict[str, None] = {}
        raw = [word for word in self.searched.lower().split() if not word.isascii()]
        said = [*surface_words(self.searched), *raw]
        for word, stem in zip(said, stem_words(said), strict=True):
            alike = takewhile(lambda pair: pair[0] == pair[1], zip(word, stem, strict=False))
            part = "".join(letter for letter, _ in alike)
            if len(part) >= (_LEAST_PART if part.isascii() else 2):
                found[part] = None
        longest = sorted(found, key=len, reverse=True)[:_MOST_PARTS]
        return tuple(dict.fromkeys(way for part in longest for way in _spellings(part)))

    @property
    def is_long(self) -> bool:
        """Return whether finding its words would hold the event loop for too long."""
        return reading_size([self.text]) > _LONG

    @property
    def reads_texts(self) -> bool:
        """Return whether messages are read for it, which takes some milliseconds."""
        return bool(self.periods or self.matter)

    @cached_property
    def searched(self) -> str:
        """The text for full-text search: in another language than English, with stems."""
        if self._forms is None:
            return self.text
        return " ".join(dict.fromkeys(form for forms in self._forms for form in forms))

    @cached_property
    def stems(self) -> tuple[str, ...]:
        """The stems of its words, each once."""
        return tuple(dict.fromkeys(words(self.searched)))

    @cached_property
    def alternatives(self) -> Sequence[Sequence[str]]:
        """For each word that is looked for by several stems, these; none in English."""
        several = [forms for forms in dict.fromkeys(self._forms or ()) if len(forms) > 1]
        found = [tuple(dict.fromkeys(words(" ".join(forms)))) for forms in several[:_MOST_WORDS]]
        return [stems for stems in found if len(stems) > 1]

    @cached_property
    def words_with_near_ones(self) -> Sequence[str]:
        """The words for which near ones are looked for."""
        wanted = dict.fromkeys(surface_words(self.text))
        return [word for word in wanted if word not in self._names][:_MOST_WORDS]

    @cached_property
    def _names(self) -> Collection[str]:
        """Return the words of names within its sentences, as `surface_words` gives them."""
        if self.text.isupper():
            return ()
        names = _TITLED() if self.language == "de" else _NAME
        found = names.findall(self.text[:_LONG])
        return frozenset(surface_words(" ".join(found)))

    @property
    def stems_with_related_ones(self) -> Sequence[str]:
        """The stems of words that are no names."""
        if self._forms is None or not self._names:
            return self.stems
        wanted = [form for forms in self._forms if forms[0] not in self._names for form in forms]
        return words(" ".join(dict.fromkeys(wanted)))

    @cached_property
    def _forms(self) -> Sequence[tuple[str, ...]] | None:
        return None if self.language == "en" else question_forms(self.text)


def _spellings(word: str) -> Iterator[str]:
    yield word
    if not word.isascii():
        for way in (word.capitalize(), word.upper()):
            yield "".join(one.lower() if one.isascii() else one for one in way)


async def ask(
    text: str,
    embedder: Embedder | None,
    vocabulary: Vocabulary | None = None,
    *,
    today: int | None = None,
) -> Question:
    """A question with its vector and, if a vocabulary is given for them, near words.

    Args:
        text: the question.
        embedder: None for the words alone.
        vocabulary: the embedder's; None for no near words.
        today: the day on which it is asked, as days since the epoch; None to look for no days.

    Raises:
        ModelError: the embedder failed.
    """
    question = Question(text)
    if today is not None:
        periods, alone = read_question(text, today)
        question = Question(text, periods=periods, of_days_alone=alone)
    if embedder is None or not text.strip():
        return question
    vector = (await embed_texts(embedder, [text]))[0]
    if not vector.any():
        # without a word that the embedder knows it would be equally near to everything
        return question
    question = msgspec.structs.replace(question, vector=vector)
    if vocabulary is None or question.language not in {"", "en"}:
        return question  # the vocabularies of near words are English
    await vocabulary.load()
    return msgspec.structs.replace(question, vocabulary=vocabulary)


def related_words(question: Question, names: Collection[str]) -> Mapping[str, str]:
    """Return the words that are related to words of a question, each with that word; stems.

    What a question names by an identifier is not called by another word.

    Args:
        question: the question.
        names: stems of words of speakers' names: nothing is related to them.
    """
    if question.identifiers:
        return {}
    stems: Sequence[str] = question.stems_with_related_ones
    if question.language in {"", "en"}:
        stems = stem_words(question.words_with_near_ones)
    related: dict[str, str] = {}
    for stem in stems:
        if stem not in names:
            for other in find_related(stem, question.language):
                related.setdefault(other, stem)
    return related


@cache
def _saying_stems() -> frozenset[str]:
    return frozenset({"recommend", "say", "tell", "mention", *find_related("recommend", "en")})


def weigh_words(
    question: Question, names: Collection[str], said: npt.NDArray[np.int32], share: float
) -> dict[str, float]:
    """Return what each stem counts: 1 for the question's own, less for those near them.

    Args:
        question: the question.
        names: words of speakers' names, in lower case; nothing is near them.
        said: the places, in the question's vocabulary, of the words that the user said.
        share: what a near word counts, times its cosine.
    """
    own = frozenset(question.stems)
    weights = dict.fromkeys(question.stems, 1.0)
    if question.is_of_assistant:  # that it was said says little about what was said
        weights.update(dict.fromkeys(own & _saying_stems(), _SAYING_WEIGHT))
    if question.vocabulary is None or not share:
        return weights
    asked = [word for word in question.words_with_near_ones if word not in names]
    for near in question.vocabulary.near(asked, said):
        taken: set[str] = set()
        for stem, cosine in near:
            if stem not in own:
                weights[stem] = max(weights.get(stem, 0.0), share * cosine)
                taken.add(stem)
                if len(taken) == _NEAR_SAID:
                    break
    return weights


# -- Identifiers that a question names: order numbers, codes, e-mail addresses, paths, user names
#
# A message that holds the very identifier is about it; other words of the question are in hundreds
# of messages about others. An identifier is a run of letters, digits and ``-_./@:#`` that has
# letters and digits mixed, five digits in a row, an ``@`` or a path's ``/``, or that is five
# capitals in a text that is not all capitals. Dates, times, ordinals and quantities ("20th",
# "500ml") are none.

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
