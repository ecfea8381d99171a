"""BM25 over texts in memory, and how words are found for it.

It is used in two ways, each with its `Scheme`. `RECALL` searches one user's rows. It finds words as
LanceDB's full-text index does (runs of letters and digits, lower case, accents folded, stop words
and words of more than 40 letters left out, English stems), so that a user who outgrows memory is
searched in the same way. Only the weight of a word differs: here it is rare among the user's own
rows, there among the shard's. Its `b` is 0.5 and not 0.75, because a neighbourhood is long or short
for reasons that have nothing to do with the content; docs/evidence/benchmarks.md has the figures.
`BUFFER` searches the messages of a buffer by the words as they stand.

An index holds no text: words are told apart by 64 bits of their hash, in a sorted column. Building
one takes 20 µs for a row of a conversation.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "BUFFER",
    "RECALL",
    "Query",
    "Scheme",
    "TextIndex",
    "bm25_scores",
    "group_scores",
    "scores_together",
    "stem_words",
    "surface_words",
    "text_indices",
    "words",
]

# Vowel signs and other marks that belong to a word but are not letters: without them a word of
# Hindi or Thai would be split.
_MARKS = (
    "\u0483-\u0487\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u0711\u0730-\u074a"
    "\u0900-\u0963\u0971-\u0dff\u0e31-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u102b-\u103e\u1056-\u1059\u17b4-\u17d3\u3099\u309a"
)
_WORD = re.compile(rf"(?:[^\W_]+|[{_MARKS}]+)+")
_ASCII_WORD = re.compile("[a-z0-9]+")  # twice as fast
_ACCENTS = re.compile("[\u0300-\u036f]+")
_LETTERS = {
    ord(one): two
    for one, two in zip("ßæœøđðþłı", ("ss", "ae", "oe", "o", "d", "d", "th", "l", "i"), strict=True)
}
_PLAIN_WORD = re.compile(r"\w+")
_LONGEST = 40  # letters of a word; what is longer is an address or a number
_MOST_WORDS = 200  # of a query: a document as a query would look at every row for each of its words
_SATURATION = 1.2  # BM25's k1
_GROUP_B = 0.75  # of whole conversations, whose lengths do tell how much they speak of
# Snowball's English list.
_STOP_TEXT = (
    "i me my myself we us our ours ourselves you your yours yourself yourselves he him his "
    "himself she her hers herself it "
    "its itself they them their theirs themselves what which who whom this that these those am is "
    "are was were be been "
    "being have has had having do does did doing would should could ought a an the and but if or "
    "because as until while of "
    "at by for with about against between into through during before after above below to from up "
    "down in out on off over "
    "under again further then once here there when where why how all any both each few more most "
    "other some such no nor not "
    "only own same so than too very"
)
_STOP_WORDS = frozenset(_STOP_TEXT.split())


Query: TypeAlias = Mapping[str, float] | Iterable[str]
"""Words, or stems; a mapping says how much each counts."""


def surface_words(text: str) -> list[str]:
    """A text's words as they stand, without stop words and very long ones."""
    return [word for word in _split(text) if word not in _STOP_WORDS and len(word) <= _LONGEST]


def words(text: str) -> list[str]:
    """Stems of a text's words, in order, by `RECALL`."""
    return stem_words(surface_words(text))


def stem_words(words: Sequence[str]) -> list[str]:
    """The stem of each word."""
    # a stemmer of its own: two threads must not share one
    stems: list[str] = _stemmers().Stemmer("english", 0).stemWords(words)
    return stems


def _split(text: str) -> list[str]:
    """Runs of letters and digits, in lower case and without accents."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", text.lower()))
    return _WORD.findall(unicodedata.normalize("NFC", bare).translate(_LETTERS))


def _split_plain(text: str) -> list[str]:
    return _PLAIN_WORD.findall(text.lower())


class Scheme(msgspec.Struct, frozen=True):
    """How words are found, and what they are worth.

    Attributes:
        split: finds the words of a text.
        stems: whether words are stemmed, and stop words and very long words left out.
        b: how much the length of a text counts, 0 to 1.
        least_mean: least length, in words, that counts as the mean of the texts.
    """

    split: Callable[[str], list[str]]
    stems: bool
    b: float
    least_mean: float


RECALL = Scheme(_split, stems=True, b=0.5, least_mean=1.0)
BUFFER = Scheme(_split_plain, stems=False, b=0.75, least_mean=0.0)


def bm25_scores(query: str, texts: Sequence[str]) -> list[float]:
    """The score of each text of a buffer; 0 for a text without any word of the query."""
    (index,) = text_indices([texts], scheme=BUFFER)
    scores: list[float] = index.scores(BUFFER.split(query), limit=None).tolist()
    return scores


class _Numbers(dict[str, int]):
    """A number for each word as it stands in a text, the same for all words with one stem.

    -1 for words that are left out.
    """

    def __init__(self, scheme: Scheme) -> None:
        self.stems: dict[str, int] = {}
        self.split = scheme.split
        self._stem = _stemmers().Stemmer("english", 0).stemWord if scheme.stems else None

    def __missing__(self, word: str) -> int:
        number = -1
        if self._stem is None:
            number = self.stems.setdefault(word, len(self.stems))
        elif word not in _STOP_WORDS and len(word) <= _LONGEST:
            number = self.stems.setdefault(self._stem(word), len(self.stems))
        self[word] = number
        return number


class TextIndex:
    """BM25 over some texts; made by `text_indices`.

    Args:
        keys: hashes of the words, sorted; shape (words,).
        words: of each posting, as a place in `keys`; ascending; shape (postings,).
        places: of the text that holds the word; ascending within a word; shape (postings,).
        times: how often it does; shape (postings,).
        lengths: of the texts in words; shape (texts,).
        scheme: what words are worth.
    """

    def __init__(
        self,
        keys: npt.NDArray[np.int64],
        words: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        scheme: Scheme,
    ) -> None:
        import numpy as np  # noqa: PLC0415

        size = len(lengths)
        held_by = np.bincount(words, minlength=len(keys))
        rarity = np.log(1 + (size - held_by + 0.5) / (held_by + 0.5))
        mean = max(lengths.mean() if size else 0.0, scheme.least_mean) or 1.0
        norm = _SATURATION * (1 - scheme.b + scheme.b * lengths / mean)
        worth = rarity[words] * times * (_SATURATION + 1) / (times + norm[places])
        self.keys = keys
        self.scheme = scheme
        self.lengths = lengths.astype(np.int32)
        self._starts = np.concatenate([[0], np.cumsum(held_by)]).astype(np.int32)
        self._places = places.astype(np.int32)
        self._times = np.minimum(times, np.iinfo(np.uint16).max).astype(np.uint16)
        self._worth = worth.astype(np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        columns = (self.keys, self.lengths, self._starts, self._places, self._times, self._worth)
        return sum(column.nbytes for column in columns)

    def postings(
        self,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
        """Words, as places in `keys`, places of texts, and times."""
        import numpy as np  # noqa: PLC0415

        return (
            np.repeat(np.arange(len(self.keys)), np.diff(self._starts)),
            self._places,
            self._times,
        )

    def find(self, words: Sequence[int]) -> list[int]:
        """The numbers of words, by their hashes; -1 for those that no text holds."""
        import numpy as np  # noqa: PLC0415

        if not len(self.keys) or not words:
            return [-1] * len(words)
        wanted = np.array(words, np.int64)
        found = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        numbers: list[int] = np.where(self.keys[found] == wanted, found, -1).tolist()
        return numbers

    def posting(self, number: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
        """The places of the texts that hold a word, by its number, and how often they do."""
        if number < 0:
            return self._places[:0], self._times[:0]
        mine = slice(self._starts[number], self._starts[number + 1])
        return self._places[mine], self._times[mine]

    def scores(self, query: Query, limit: int | None = _MOST_WORDS) -> npt.NDArray[np.float64]:
        """Each text's score for a query; 0 where no word matches; shape (texts,).

        Args:
            query: its words, or stems; each counts once.
            limit: how many of them to look for.
        """
        import numpy as np  # noqa: PLC0415

        scores = np.zeros(len(self.lengths))
        weights = _hashed(query, limit)
        for number, weight in zip(self.find([*weights]), weights.values(), strict=True):
            if number >= 0:
                mine = slice(self._starts[number], self._starts[number + 1])
                worth = self._worth[mine]
                scores[self._places[mine]] += worth if weight == 1.0 else worth * weight
        return scores


def _hashed(query: Query, limit: int | None) -> dict[int, float]:
    """What the words count, by their hash."""
    weights = query if isinstance(query, Mapping) else dict.fromkeys(query, 1.0)
    return {hash(word): weight for word, weight in islice(weights.items(), limit)}


def scores_together(
    indices: Sequence[TextIndex], query: Query, limit: int | None = _MOST_WORDS
) -> list[npt.NDArray[np.float64]]:
    """Each index's scores, with the weights that words have in all of the indices together.

    The scores are those of one index over all texts.

    Args:
        indices: of one scheme, one or more.
        query: see `TextIndex.scores`.
        limit: see `TextIndex.scores`.
    """
    import numpy as np  # noqa: PLC0415

    scheme = indices[0].scheme
    size = sum(len(one.lengths) for one in indices)
    mean = sum(int(one.lengths.sum()) for one in indices) / size if size else 0.0
    mean = max(mean, scheme.least_mean) or 1.0
    scores = [np.zeros(len(one.lengths)) for one in indices]
    weights = _hashed(query, limit)
    numbers = [one.find([*weights]) for one in indices]
    for weight, *mine in zip(weights.values(), *numbers, strict=True):
        found = [one.posting(number) for one, number in zip(indices, mine, strict=True)]
        held_by = sum(len(places) for places, _ in found)
        rarity = np.log(1 + (size - held_by + 0.5) / (held_by + 0.5))
        for one, score, (places, times) in zip(indices, scores, found, strict=True):
            norm = _SATURATION * (1 - scheme.b + scheme.b * one.lengths[places] / mean)
            often = times.astype(np.int64)
            worth = (rarity * often * (_SATURATION + 1) / (often + norm)).astype(np.float32)
            score[places] += worth if weight == 1.0 else worth * np.float32(weight)
    return scores


def group_scores(
    indices: Sequence[TextIndex],
    groups: Sequence[npt.NDArray[np.int32]],
    count: int,
    query: Query,
    limit: int | None = _MOST_WORDS,
) -> npt.NDArray[np.float64]:
    """The score of each group of texts, as if it were one text; shape (count,).

    Args:
        indices: one or more.
        groups: for each index, the group of each text, from 0; shape (texts,).
        count: how many groups there are.
        query: see `TextIndex.scores`.
        limit: see `TextIndex.scores`.
    """
    import numpy as np  # noqa: PLC0415

    weights = _hashed(query, limit)
    lengths = np.zeros(count)
    for one, group in zip(indices, groups, strict=True):
        lengths += np.bincount(group, one.lengths, count)
    cells: list[npt.NDArray[np.int64]] = []
    often: list[npt.NDArray[np.uint16]] = []
    for one, group in zip(indices, groups, strict=True):
        for row, number in enumerate(one.find([*weights])):
            if number >= 0:
                places, times = one.posting(number)
                cells.append(group[places] + np.int64(row * count))
                often.append(times)
    if not cells or not count:
        return np.zeros(count)
    held = np.bincount(np.concatenate(cells), np.concatenate(often), len(weights) * count)
    held = held.reshape(len(weights), count)
    held_by = np.count_nonzero(held, axis=1)
    rarity = np.log(1 + (count - held_by + 0.5) / (held_by + 0.5))
    norm = _SATURATION * (1 - _GROUP_B + _GROUP_B * lengths / (lengths.mean() or 1.0))
    worth = held * (_SATURATION + 1) / (held + norm)
    factors: npt.NDArray[np.float64] = rarity * np.fromiter(weights.values(), np.float64)
    scores: npt.NDArray[np.float64] = factors @ worth
    return scores


def text_indices(
    columns: Sequence[Sequence[str]],
    earlier: Sequence[TextIndex] = (),
    kept: npt.NDArray[np.int64] | None = None,
    *,
    scheme: Scheme = RECALL,
) -> list[TextIndex]:
    """Index each column of texts. Where there are many, do it in a thread.

    Args:
        columns: texts; lines that repeat, as in neighbourhoods, take little more time.
        earlier: indices of the columns as they were before.
        kept: for each row its place in `earlier` if its texts are the same, or -1; shape (rows,).
        scheme: how words are found, and what they are worth.
    """
    import numpy as np  # noqa: PLC0415

    size = len(columns[0])
    if kept is None:
        kept = np.full(size, -1)
    new, old = np.flatnonzero(kept < 0), np.flatnonzero(kept >= 0)
    numbers = _Numbers(scheme)
    lines: dict[str, array[int]] = {}
    read = [_read([column[place] for place in new.tolist()], numbers, lines) for column in columns]
    hashes = np.fromiter(map(hash, numbers.stems), np.int64, len(numbers.stems))
    keys = np.unique(np.concatenate([hashes, *(index.keys for index in earlier[:1])]))
    known = np.searchsorted(keys, hashes)
    parts = []
    used = np.zeros(len(keys), np.bool_)
    for number, (found, new_lengths) in enumerate(read):
        lengths = np.zeros(size, np.int64)
        lengths[new] = new_lengths
        pairs = np.sort(known[found] * size + np.repeat(new, new_lengths))
        first = np.flatnonzero(np.diff(pairs, prepend=-1))
        pairs, times = pairs[first], np.diff(first, append=len(pairs))
        if len(old):
            before = earlier[number]
            lengths[old] = before.lengths[kept[old]]
            now = np.full(len(before.lengths), -1)
            now[kept[old]] = old
            word, place, often = before.postings()
            stays = now[place] >= 0
            moved = np.searchsorted(keys, before.keys)[word[stays]] * size + now[place[stays]]
            pairs, times = np.concatenate([moved, pairs]), np.concatenate([often[stays], times])
            order = np.argsort(pairs, kind="stable")  # mostly in order already
            pairs, times = pairs[order], times[order]
        words, places = np.divmod(pairs, max(size, 1))
        used[words] = True
        parts.append((words, places, times, lengths))
    keys, renumbered = keys[used], np.cumsum(used) - 1  # without words of rows that are gone
    return [
        TextIndex(keys, renumbered[words], places, times, lengths, scheme)
        for words, places, times, lengths in parts
    ]


def _read(
    texts: Sequence[str], numbers: _Numbers, lines: dict[str, array[int]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of all texts' words, text after text, and how many words each text has."""
    import numpy as np  # noqa: PLC0415

    found = array("q")
    lengths = np.empty(len(texts), np.int64)
    for place, text in enumerate(texts):
        before = len(found)
        for line in text.split("\n"):
            mine = lines.get(line)
            if mine is None:
                found_here = [
                    number for word in numbers.split(line) if (number := numbers[word]) >= 0
                ]
                mine = lines[line] = array("q", found_here)
            found += mine
        lengths[place] = len(found) - before
    return np.array(found, np.int64), lengths


@cache
def _stemmers() -> Any:
    import Stemmer  # noqa: PLC0415

    return Stemmer
