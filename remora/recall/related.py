"""Related words: everyday words that say nearly the same as a word of a question.

"Who repaired our heating?" finds "the boiler is fixed", "Wo wohnt mein Bruder?" finds "my brother
lives in Leeds", and "Do I have a pet?" finds a dog. They are written down in `related.toml`, and
looked for as near words are (`remora.recall.near`), whatever the embedder is. They were written
from a list of subjects that people talk about, not from a set of questions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
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

    def relate(concept: Mapping[str, str], others: Collection[str], language: str) -> None:
        for stem in _stems(concept.get(language, ""), language):
            related[language].setdefault(stem, set()).update(others)

    concepts: list[dict[str, str]] = data["concepts"]
    crossing = [{*_crossing_stems(concept, same_stems)} for concept in concepts]
    by_first_word: dict[str, set[str]] = {}
    for concept, stems in zip(concepts, crossing, strict=True):
        by_first_word.setdefault(concept["en"].split()[0], set()).update(stems)
        for language in concept:
            relate(concept, {*stems, *_stems(concept[language], language)}, language)
    for kind, things in data["kinds"].items():
        found = {*_stems(things, "en")}
        found.update(stem for one in things.split() for stem in by_first_word.get(one, ()))
        named = [concept for concept in concepts if kind in concept["en"].split()]
        for concept in named or [{"en": kind}]:
            for language in concept:
                relate(concept, found, language)
    return {
        language: {stem: tuple(sorted(others - {stem})) for stem, others in table.items()}
        for language, table in related.items()
    }


def _crossing_stems(concept: Mapping[str, str], same_stems: Collection[str]) -> Iterator[str]:
    """The stems that stand for a concept in questions of other languages."""
    for language, text in concept.items():
        for word in text.split():
            if not word.isascii() or len(word) >= _LEAST_LETTERS:
                stems = _stems(word, language)
                yield from (stem for stem in stems if stem not in same_stems)


def _stems(text: str, language: str) -> Iterator[str]:
    """The stems by which words are searched, of Japanese and Chinese the longest pieces."""
    for word in text.split():
        if language in STEMMED:
            own = (
                word if language == "en" else make_stemmer(STEMMED[language]).stemWord(word.lower())
            )
            yield from words(own)
        else:
            pieces = [one for one in words(pair_characters(word)) if not _HIRAGANA.match(one)]
            longest = max(map(len, pieces), default=0)
            if longest > 1 or len(word) == 1:  # one character of a longer word says something else
                yield from (piece for piece in pieces if len(piece) == longest)
