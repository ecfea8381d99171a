"""BM25 over texts in memory, and how words are found for it.

It is used in two ways, each with its `Scheme`. `RECALL` searches one user's rows. It finds words as
LanceDB's full-text index does (runs of letters and digits, lower case, accents folded, stop words
and words of more than 40 letters left out, English stems), so that a user who outgrows memory is
searched in the same way. Only the weight of a word differs: here it is rare among the user's own
rows, there among the shard's. Its `b` is 0.5 and not 0.75, because a neighbourhood is long or short
for reasons that have nothing to do with the content; benchmarks/NOTES.md has the figures.
`BUFFER` searches the messages of a buffer by the words as they stand.

Building an index takes 20 µs for a row of a conversation.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from remora.actors.policies.text_index import Scheme, TextIndex
from remora.languages.search_words import WORD, cut_text, fold_accents, make_stemmer

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

_ASCII_WORD = re.compile("[a-z0-9]+")  # twice as fast
_LETTERS = {
    ord(one): two
    for one, two in zip("ßæœøđðþłı", ("ss", "ae", "oe", "o", "d", "d", "th", "l", "i"), strict=True)
}
_PLAIN_WORD = re.compile(r"\w+")
_MOST_CHARS = 2_000  # that are normalized together: other threads wait, 10 ms at most
_LONGEST = 40  # letters of a word; what is longer is an address or a number
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


def surface_words(text: str) -> list[str]:
    """A text's words as they stand, without stop words and very long ones."""
    return [word for word in _split(text) if word not in _STOP_WORDS and len(word) <= _LONGEST]


def words(text: str) -> list[str]:
    """Stems of a text's words, in order, by `RECALL`."""
    return stem_words(surface_words(text))


def stem_words(words: Sequence[str]) -> list[str]:
    """The stem of each word."""
    stems: list[str] = make_stemmer("english").stemWords(words)
    return stems


def _split(text: str) -> list[str]:
    """Runs of letters and digits, in lower case and without accents."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    if len(text) > _MOST_CHARS:
        return [word for piece in cut_text(text, _MOST_CHARS) for word in _split(piece)]
    return WORD.findall(fold_accents(text.lower()).translate(_LETTERS))


def _split_plain(text: str) -> list[str]:
    return _PLAIN_WORD.findall(text.lower())


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
        self._stem = make_stemmer("english").stemWord if scheme.stems else None

    def __missing__(self, word: str) -> int:
        number = -1
        if self._stem is None:
            number = self.stems.setdefault(word, len(self.stems))
        elif word not in _STOP_WORDS and len(word) <= _LONGEST:
            number = self.stems.setdefault(self._stem(word), len(self.stems))
        self[word] = number
        return number


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
    keys = np.sort(np.concatenate([hashes, *(index.keys for index in earlier[:1])]))
    keys = keys[np.diff(keys, prepend=~keys[:1]) != 0]  # `unique` takes three times as long
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
                mine = lines[line] = _read_line(line, numbers, lines)
            found += mine
        lengths[place] = len(found) - before
    return np.array(found, np.int64), lengths


def _read_line(line: str, numbers: _Numbers, lines: dict[str, array[int]]) -> array[int]:
    """The numbers of a line's words; a line in a neighbourhood is often another without its date.

    So the words behind a date are found once.
    """
    end = line.find(") ") + 2 if line.startswith("(") and len(line) <= _MOST_CHARS else 1
    found = array("q")
    for part in (line[:end], line[end:]) if end > 1 else (line,):
        mine = lines.get(part)
        if mine is None:
            words = numbers.split(part)
            mine = lines[part] = array("q", [n for word in words if (n := numbers[word]) >= 0])
        found += mine
    return found
