"""The parts of compounds: "Mietvertrag" is found by "Vertrag", and the other way round.

German, Dutch and Swedish write them as one word. A word is taken apart if it ends with a noun of
`compounds.toml`, in the singular or in an inflected form, and three letters or more stand before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_suffix(".toml")
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

    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {
        language: frozenset(Stemmer.Stemmer(_STEMMERS[language]).stemWords(str(text).split()))
        for language, text in data.items()
    }
