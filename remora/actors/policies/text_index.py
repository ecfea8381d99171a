"""BM25 over texts in memory: an index of their words, and the scores of texts and of groups.

An index holds no text: words are told apart by 64 bits of their hash, in a sorted column. The words
of a question are looked up once, and what is found serves the scores of each text, of all texts of
several indices together, and of groups of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

_SATURATION = 1.2  # BM25's k1
_GROUP_B = 0.75  # of whole conversations, whose lengths do tell how much they speak of
_MOST_WORDS = 200  # of a query: a document as a query would look at every row for each of its words
Number = TypeVar("Number", bound="np.generic")

Query: TypeAlias = Mapping[str, float] | Iterable[str]
"""Words, or stems; a mapping says how much each counts."""


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


class TextIndex:
    """BM25 over some texts; made by `text_indices`.

    Args:
        keys: hashes of the words, sorted; shape (words,).
        words: of each posting, as a place in `keys`; ascending; shape (postings,).
        places: of the text that holds the word; ascending within a word; shape (postings,).
        times: how often it does; shape (postings,).
        lengths: of the texts in words; shape (texts,).
        scheme: what words are worth.

    Attributes:
        keys: as given.
        scheme: as given.
        lengths: as given.
        starts: where each word's postings begin, and twice where the last end: words that no text
            holds have the number after the last; shape (words + 2,).
        places: as given.
        times: as given.
        worth: what each posting adds to the score of its text.
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
        rare = rarity(held_by, size)
        mean = max(lengths.mean() if size else 0.0, scheme.least_mean) or 1.0
        norm = _SATURATION * (1 - scheme.b + scheme.b * lengths / mean)
        worth = rare[words] * times * (_SATURATION + 1) / (times + norm[places])
        self.keys = keys
        self.scheme = scheme
        self.lengths = lengths.astype(np.int32)
        self.starts = np.concatenate([[0], np.cumsum(held_by), [len(words)]]).astype(np.int32)
        self.places = places.astype(np.int32)
        self.times = np.minimum(times, np.iinfo(np.uint16).max).astype(np.uint16)
        self.worth = worth.astype(np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        columns = (self.keys, self.lengths, self.starts, self.places, self.times, self.worth)
        return sum(column.nbytes for column in columns)

    def postings(
        self,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
        """Words, as places in `keys`, places of texts, and times."""
        import numpy as np  # noqa: PLC0415

        return (
            np.repeat(np.arange(len(self.keys)), np.diff(self.starts[:-1])),
            self.places,
            self.times,
        )

    def find(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The numbers of words, by their hashes; as many as `keys` for those that no text holds.

        Shape (n,). They are the numbers of all indices that `text_indices` made at once.
        """
        found = self.keys.searchsorted(hashes)
        if len(self.keys):
            found[self.keys.take(found, mode="clip") != hashes] = len(self.keys)
        return found

    def look_up(self, numbers: npt.NDArray[np.int64]) -> Postings:
        """The postings of words, by their numbers."""
        return Postings(self, numbers)

    def scores(self, query: Query, limit: int | None = _MOST_WORDS) -> npt.NDArray[np.float64]:
        """Each text's score for a query; 0 where no word matches; shape (texts,).

        Args:
            query: its words, or stems; each counts once.
            limit: how many of them to look for.
        """
        terms = make_terms(query, limit)
        (scores,) = scores_together([self.look_up(self.find(terms.hashes))], terms)
        return scores


class Terms(msgspec.Struct, frozen=True):
    """The words of a query.

    Attributes:
        hashes: theirs, each once; shape (n,).
        weights: what each counts; shape (n,).
        groups: words of which only the best counts in a text, by the number of their group; -1 for
            a word that counts by itself; shape (n,). None if all do.
    """

    hashes: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    groups: npt.NDArray[np.int64] | None = None


def make_terms(query: Query, limit: int | None = _MOST_WORDS) -> Terms:
    """The first words of a query, at most `limit`; of no limit, all."""
    import numpy as np  # noqa: PLC0415

    weights = query if isinstance(query, Mapping) else dict.fromkeys(query, 1.0)
    taken = dict(islice(weights.items(), limit))
    count = len(taken)
    return Terms(
        np.fromiter(map(hash, taken), np.int64, count),
        np.fromiter(taken.values(), np.float64, count),
    )


class Postings:
    """Where some words stand in an index, word after word.

    All words are taken in one step each: a step for each word takes five times as long.

    Args:
        index: the index.
        numbers: of the words; shape (words,).

    Attributes:
        index: the index.
        counts: how many texts hold each word; shape (words,).
    """

    def __init__(self, index: TextIndex, numbers: npt.NDArray[np.int64]) -> None:
        starts, stops = index.starts[numbers], index.starts[numbers + 1]
        self.index = index
        self.counts = stops - starts
        self._numbers = numbers
        self._kept: npt.NDArray[np.bool_] | None = None
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        self._slices = [slice(start, stop) for start, stop in pairs if start < stop]

    @cached_property
    def places(self) -> npt.NDArray[np.int32]:
        """The places of the texts that hold each word; shape (postings,)."""
        return self._joined(self.index.places)

    @cached_property
    def times(self) -> npt.NDArray[np.uint16]:
        """How often they do; shape (postings,)."""
        return self._joined(self.index.times)

    @property
    def worth(self) -> npt.NDArray[np.float32]:
        """Return what that is worth, if the index has all texts; shape (postings,)."""
        return self._joined(self.index.worth)

    def without(self, left_out: npt.NDArray[np.bool_]) -> Postings:
        """These without some of the postings; shape (postings,)."""
        import numpy as np  # noqa: PLC0415

        words = len(self.counts)
        kept = ~left_out
        fewer = Postings(self.index, self._numbers)
        fewer.counts = np.bincount(self.of_each(np.arange(words))[kept], minlength=words)
        fewer._kept = kept
        return fewer

    def of_each(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """The words' values, for each posting of a word; shape (postings,)."""
        return values.repeat(self.counts)

    def sums(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The sum of the postings' values for each text; shape (texts,)."""
        import numpy as np  # noqa: PLC0415

        count = len(self.index.lengths)
        # of no postings it makes integers
        return np.bincount(self.places, values, count).astype(np.float64, copy=False)

    def sums_of_best(
        self, values: npt.NDArray[Any], groups: npt.NDArray[np.int64] | None
    ) -> npt.NDArray[np.float64]:
        """The sum of the postings' values for each text, of a group the best; shape (texts,).

        Args:
            values: of the postings; shape (postings,).
            groups: see `Terms`.
        """
        import numpy as np  # noqa: PLC0415

        if groups is None:
            return self.sums(values)
        alone = self.of_each(groups) < 0
        count = len(self.index.lengths)
        total = np.bincount(self.places[alone], values[alone], count).astype(np.float64, copy=False)
        stops = np.cumsum(self.counts)
        held = [term for term in (groups >= 0).nonzero()[0].tolist() if self.counts[term]]
        for group in {int(groups[term]) for term in held}:
            best = np.zeros(count)
            for term in held:
                if groups[term] == group:
                    here = slice(stops[term] - self.counts[term], stops[term])
                    places = self.places[here]
                    best[places] = np.maximum(best[places], values[here])
            total += best
        return total

    def _joined(self, column: npt.NDArray[Number]) -> npt.NDArray[Number]:
        import numpy as np  # noqa: PLC0415

        slices = self._slices
        joined = np.concatenate([column[one] for one in slices]) if slices else column[:0]
        return joined if self._kept is None else joined[self._kept]


def scores_together(found: Sequence[Postings], terms: Terms) -> list[npt.NDArray[np.float64]]:
    """Each index's scores, with the weights that words have in all of the indices together.

    The scores are those of one index over all texts.

    Args:
        found: the terms' postings in indices of one scheme, one or more.
        terms: the query.
    """
    import numpy as np  # noqa: PLC0415

    weights = terms.weights.astype(np.float32)
    if len(found) == 1:  # its weights are those of all texts
        (one,) = found
        return [one.sums_of_best(one.worth * one.of_each(weights), terms.groups)]
    scheme = found[0].index.scheme
    lengths = [one.index.lengths for one in found]
    size = sum(map(len, lengths))
    mean = sum(int(one.sum()) for one in lengths) / size if size else 0.0
    mean = max(mean, scheme.least_mean) or 1.0
    rare = rarity(sum(one.counts for one in found), size)
    scores = []
    for one in found:
        norm = _SATURATION * (1 - scheme.b + scheme.b * one.index.lengths / mean)
        often = one.times.astype(np.int64)
        worth = one.of_each(rare) * often * (_SATURATION + 1) / (often + norm[one.places])
        values = worth.astype(np.float32) * one.of_each(weights)
        scores.append(one.sums_of_best(values, terms.groups))
    return scores


class Groups:
    """Groups of the texts of one or more indices, whose scores are those of one text each.

    Args:
        indices: the indices, one after the other.
        columns: for each index, the group of each text, from 0; shape (texts,).
        count: how many groups there are.

    Attributes:
        columns: as given.
    """

    def __init__(
        self,
        indices: Sequence[TextIndex],
        columns: Sequence[npt.NDArray[np.int32]],
        count: int,
    ) -> None:
        import numpy as np  # noqa: PLC0415

        lengths = np.zeros(count)
        for one, column in zip(indices, columns, strict=True):
            lengths += np.bincount(column, one.lengths, count)
        mean = float(lengths.mean()) if count else 0.0
        self.columns = columns
        self._count = count
        self._norm = _SATURATION * (1 - _GROUP_B + _GROUP_B * lengths / (mean or 1.0))

    def scores(self, found: Sequence[Postings], terms: Terms) -> npt.NDArray[np.float64]:
        """The score of each group; shape (count,).

        Args:
            found: the terms' postings in each index.
            terms: the query.
        """
        import numpy as np  # noqa: PLC0415

        size, count = len(terms.weights), self._count
        if not count or not size:
            return np.zeros(count)
        times = np.zeros(size * count)
        first = np.arange(0, size * count, count)
        for one, column in zip(found, self.columns, strict=True):
            times += np.bincount(column[one.places] + one.of_each(first), one.times, size * count)
        held = times.reshape(size, count)
        worth = held * (_SATURATION + 1) / (held + self._norm)
        # no product of matrices: BLAS divides a large one among threads
        worth *= (rarity(np.add.reduce(held > 0, axis=1), count) * terms.weights)[:, None]
        scores: npt.NDArray[np.float64] = np.add.reduce(worth, axis=0)
        return scores


def rarity(held_by: Any, size: int) -> npt.NDArray[np.float64]:
    """Return what words are worth that so many of all texts hold."""
    import numpy as np  # noqa: PLC0415

    rare: npt.NDArray[np.float64] = np.log(1 + (size - held_by + 0.5) / (held_by + 0.5))
    return rare
