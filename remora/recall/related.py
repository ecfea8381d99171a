"""Related words: everyday words that say nearly the same as a word of a question.

"Who repaired our heating?" finds "the boiler is fixed", "Wo wohnt mein Bruder?" finds "my brother
lives in Leeds", and "Do I have a pet?" finds a dog. They are written down in `related.toml`, and
looked for as near words are (`remora.recall.near`), whatever the embedder is. They were written
from a list of subjects that people talk about, not from a set of questions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from remora.actors.policies.bm25 import words
from remora.languages.search_words import STEMMED, make_stemmer, pair_characters

_FILE = Path(__file__).with_suffix(".toml")
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
