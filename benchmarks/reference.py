"""References for recall: BM25 and two fused recipes, in memory, in plain Python and numpy.

Nothing here is shared with `remora`. So the comparison shows what LanceDB, the tokenizer, windows
that are cut short and the shards' common statistics cost or gain.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import log

import numpy as np
import numpy.typing as npt

__all__ = ["Bm25", "Reference", "stem", "words"]

Scores = npt.NDArray[np.float64]

_STOP_TEXT = (
    "a about after all also am an and any are as at be because been before being but by can could "
    "did do does doing down "
    "during each few for from further had has have having he her here hers him his how i if in "
    "into is it its just me more "
    "most my no nor not now of off on once only or other our ours out over own same she should so "
    "some such than that the "
    "their theirs them then there these they this those through to too under until up very was we "
    "were what when where "
    "which while who whom why will with would you your yours"
)
STOP_WORDS = frozenset(_STOP_TEXT.split())
_CONSONANT = re.compile(r"[^aeiou]")
_STEPS_2 = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "logi": "log",
}
_STEPS_3 = {
    "icate": "ic",
    "ative": "",
    "alize": "al",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
}
_STEPS_4 = (
    "ement",
    "ance",
    "ence",
    "able",
    "ible",
    "ment",
    "ant",
    "ent",
    "ion",
    "ism",
    "ate",
    "iti",
    "ous",
    "ive",
    "ize",
    "al",
    "er",
    "ic",
    "ou",
)


def words(text: str) -> list[str]:
    """Stems of a text's words, without stop words, accents and very long words."""
    plain = unicodedata.normalize("NFKD", text.lower())
    found = re.findall(r"[^\W_]+", "".join(c for c in plain if not unicodedata.combining(c)))
    return [stem(word) for word in found if word not in STOP_WORDS and len(word) <= 40]


def stem(word: str) -> str:
    """The Porter stem (M. F. Porter, "An algorithm for suffix stripping", 1980) of a lower-case
    word.
    """
    if len(word) <= 2 or not word.isascii() or not word.isalpha():
        return word
    word = _plural(word)
    for ending, kept in (("eed", 1), ("ed", 0), ("ing", 0)):
        if word.endswith(ending):
            base = word[: -len(ending)]
            if ending == "eed":
                word = base + "ee" if _measure(base) >= kept else word
            elif _has_vowel(base):
                word = _restored(base)
            break
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    for endings in (_STEPS_2, _STEPS_3):
        for ending in sorted(endings, key=len, reverse=True):
            if word.endswith(ending):
                base = word[: -len(ending)]
                word = base + endings[ending] if _measure(base) > 0 else word
                break
    for ending in sorted(_STEPS_4, key=len, reverse=True):
        if word.endswith(ending):
            base = word[: -len(ending)]
            if _measure(base) > 1 and (ending != "ion" or base.endswith(("s", "t"))):
                word = base
            break
    if word.endswith("e"):
        base = word[:-1]
        if _measure(base) > 1 or (_measure(base) == 1 and not _is_short(base)):
            word = base
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _restored(base: str) -> str:
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if len(base) > 1 and base[-1] == base[-2] and _consonants(base)[-1] and base[-1] not in "lsz":
        return base[:-1]
    return base + "e" if _measure(base) == 1 and _is_short(base) else base


def _consonants(word: str) -> list[bool]:
    found: list[bool] = []
    for place, letter in enumerate(word):
        found.append(not found[-1] if letter == "y" and place else bool(_CONSONANT.match(letter)))
    return found


def _measure(word: str) -> int:
    kinds = _consonants(word)
    return sum(not before and after for before, after in pairwise(kinds))


def _has_vowel(word: str) -> bool:
    return not all(_consonants(word))


def _is_short(word: str) -> bool:
    kinds = _consonants(word)
    return len(word) > 2 and kinds[-3:] == [True, False, True] and word[-1] not in "wxy"


class Bm25:
    """BM25 over a few hundred texts.

    Args:
        texts: what is searched.
        k1: how soon a repeated word stops counting.
        b: how much long texts are held back.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 0.9, b: float = 0.4) -> None:
        counts = [Counter(words(text)) for text in texts]
        lengths = np.array([sum(count.values()) for count in counts], dtype=float)
        norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1.0))
        found: dict[str, tuple[list[int], list[int]]] = {}
        for number, count in enumerate(counts):
            for word, times in count.items():
                places, frequencies = found.setdefault(word, ([], []))
                places.append(number)
                frequencies.append(times)
        self._size = len(texts)
        self._postings: dict[str, tuple[npt.NDArray[np.intp], Scores]] = {}
        for word, (places, frequencies) in found.items():
            at, tf = np.array(places), np.array(frequencies, dtype=float)
            idf = log(1 + (self._size - len(at) + 0.5) / (len(at) + 0.5))
            self._postings[word] = (at, idf * tf * (k1 + 1) / (tf + norm[at]))

    def scores(self, query: str) -> Scores:
        """Every text's score, shape (n,); 0 where no word matches."""
        scores = np.zeros(self._size)
        for word in words(query):
            if word in self._postings:
                places, values = self._postings[word]
                scores[places] += values
        return scores


class Reference:
    """LEX and HYB over one user's messages.

    LEX = .5 x BM25(turn) + .5 x BM25(turn with two turns either side), each min-max scaled over its
    first hundred; then each turn gains .3 of its best neighbour's score. HYB = the same with .5 x
    cosine as a third list.

    Args:
        sessions: each message's session; a session's messages stand together, in order.
        turns: each message as "(8 May 2023) Speaker: text".
        vectors: unit vectors, shape (n, dimension), or None.
    """

    def __init__(
        self, sessions: Sequence[str], turns: Sequence[str], vectors: npt.NDArray[np.float32] | None
    ) -> None:
        self._sessions = sessions
        self._vectors = vectors
        windows = [
            "\n".join(
                turns[j]
                for j in range(max(i - 2, 0), min(i + 3, len(turns)))
                if sessions[j] == sessions[i]
            )
            for i in range(len(turns))
        ]
        self._turn, self._window = Bm25(turns), Bm25(windows)

    def bm25(self, query: str) -> list[int]:
        """Plain BM25 of the turns: numbers of messages, best first."""
        return _ranked(self._turn.scores(query))

    def lex(self, query: str) -> list[int]:
        """Numbers of messages, best first."""
        return self._fused([(0.5, self._turn.scores(query)), (0.5, self._window.scores(query))])

    def hyb(self, query: str, vector: npt.NDArray[np.float32]) -> list[int]:
        """Numbers of messages, best first.

        Args:
            query: the question.
            vector: its unit vector, shape (dimension,).
        """
        assert self._vectors is not None
        cosine = (self._vectors @ vector).astype(float)
        lists = [(0.5, self._turn.scores(query)), (0.5, self._window.scores(query)), (0.5, cosine)]
        return self._fused(lists)

    def _fused(self, lists: Sequence[tuple[float, Scores]]) -> list[int]:
        total = np.zeros(len(self._sessions))
        for weight, scores in lists:
            total += weight * _scaled(scores)
        best = np.zeros(len(total))
        for i in range(1, len(total)):
            if self._sessions[i] == self._sessions[i - 1]:
                best[i] = max(best[i], total[i - 1])
                best[i - 1] = max(best[i - 1], total[i])
        return _ranked(total + 0.3 * best)


def _ranked(scores: Scores) -> list[int]:
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return [number for number in order if scores[number] > 0]


def _scaled(scores: Scores, depth: int = 100) -> Scores:
    """Min-max over the first `depth` that match; 0 for the others."""
    kept = np.argsort(-scores, kind="stable")[:depth]
    kept = kept[scores[kept] != 0]
    scaled = np.zeros(len(scores))
    if len(kept):
        low, high = scores[kept].min(), scores[kept].max()
        scaled[kept] = (scores[kept] - low) / (high - low) if high > low else 1.0
    return scaled
