"""From several lists of candidates to one ranking.

Each list is min-max scaled over its candidates, weighted and added; then each message gains a share
of its best neighbour's score, the less the longer it is itself, since the evidence often stands
beside the words that match; then who spoke and what kind of message it is are weighed:

* who is named in the query is more often whom its answer is by than whom it is about;
* a question is seldom an answer, and what follows it often is;
* where speakers have no names, what users say is asked for more often than what assistants say.

A vector list that has nothing in common with the text lists is not trusted much: an embedder that
is broken, or of another language, would otherwise push good messages down. Reciprocal rank fusion,
LanceDB's default, was worse than the better of its own lists on every set; a prior for recency hurt
at every weight. What else was tried is in docs/benchmarks.md.

Rows are ranked by their places in columns (`Traits`), so that a user whose rows are in memory is
ranked without looking at a row, and by the same code as what a store found.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from remora.config import RecallConfig
from remora.storage.ports import Candidate, MemoryRow

if TYPE_CHECKING:  # loaded by those who compute with it, at first use
    import numpy as np
    import numpy.typing as npt

    Places: TypeAlias = npt.NDArray[np.intp]
    Numbers: TypeAlias = npt.NDArray[np.float64]
    Flags: TypeAlias = npt.NDArray[np.bool_]

__all__ = [
    "Ranked",
    "Ranking",
    "ScoreList",
    "Traits",
    "asks",
    "fuse",
    "question_share",
    "rank",
    "rank_order",
    "size_of_rows",
    "speakers_named",
]

_MARKS = "?\uff1f\u061f"  # of a question: Latin, Chinese and Japanese, Arabic
_SENTENCE = re.compile(rf"([^.!\u3002\uff01\n{_MARKS}]+)([.!\u3002\uff01{_MARKS}]*)")
_ASKS = re.compile(rf"[{_MARKS}][^\w{_MARKS}]*(?:[\[(][^\[\]()]*[\])])?[^\w{_MARKS}]*$")
_MARK = re.compile(f"[{_MARKS}]")
_END_CHARS = 200  # of a message, where its last question is looked for
_JUDGED_CHARS = (
    1_000  # of a message, for its share of questions: what is longer is mostly no question
)
_FEWEST_JUDGED = 30  # candidates from which on two lists can be said to agree or not
_LEAST_TRUST = 0.2
_AT_ONCE = 32  # ranked rows made at a time
_ROW_BYTES = 480  # of a row's object, its numbers and dates
_LISTS = ("turn", "window", "vector")


class Ranked(msgspec.Struct, frozen=True):
    """A row, its final score, and what each list gave it (scaled, before weighting)."""

    row: MemoryRow
    score: float
    parts: dict[str, float]


class ScoreList(msgspec.Struct, frozen=True):
    """One list of what a search found.

    Attributes:
        places: of the rows in their columns, each once; shape (n,).
        scores: theirs, in any unit: the more the better; shape (n,).
    """

    places: Places
    scores: Numbers


class Ranking(msgspec.Struct, frozen=True):
    """Rows, ranked: columns, from which `Ranked` rows are made as far as they are read.

    Attributes:
        rows: the rows that places refer to; it may hold others.
        places: places of the ranked rows, best first; shape (n,).
        scores: final scores, shape (n,).
        parts: by list, the scaled score (0…1) that it gave; NaN where it did not find the row;
            shape (n,).
        row_bytes: size of the rows, where the ranking alone holds them.
    """

    rows: Sequence[MemoryRow]
    places: Places
    scores: Numbers
    parts: dict[str, Numbers]
    row_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that holding it takes."""
        columns = (self.places, self.scores, *self.parts.values())
        return self.row_bytes + sum(column.nbytes for column in columns)

    def __iter__(self) -> Iterator[Ranked]:
        for start in range(0, len(self.places), _AT_ONCE):
            yield from self._slice(slice(start, start + _AT_ONCE))

    def _slice(self, here: slice) -> list[Ranked]:
        columns = [(name, part[here].tolist()) for name, part in self.parts.items()]
        pairs = zip(self.places[here].tolist(), self.scores[here].tolist(), strict=True)
        return [
            Ranked(
                self.rows[place],
                score,
                # NaN, which says that the list did not find the row, does not equal itself
                {name: part[i] for name, part in columns if part[i] == part[i]},
            )
            for i, (place, score) in enumerate(pairs)
        ]


class Traits:
    """What the ranking looks at, of rows in `rank_order`; in columns of one entry a row.

    Args:
        rows: in `rank_order`, each once.
    """

    def __init__(self, rows: Sequence[MemoryRow]) -> None:
        import numpy as np  # noqa: PLC0415

        count = len(rows)
        homes = {_place(row): place for place, row in enumerate(rows)}
        # where there is none: the place behind the last, which holds nothing
        self.before = np.fromiter(
            (homes.get(_place(row, -1), count) for row in rows), np.int32, count
        )
        self.after = np.fromiter(
            (homes.get(_place(row, 1), count) for row in rows), np.int32, count
        )
        self.asks = np.fromiter((asks(row.content) for row in rows), np.bool_, count)
        self.question_share = np.fromiter(
            (question_share(row.content) for row in rows), np.float32, count
        )
        self.chars = np.fromiter((max(len(row.content), 1) for row in rows), np.int32, count)
        self.importance = np.fromiter((row.importance for row in rows), np.float32, count)
        # Where speakers have names, both are people, and who they are says nothing about who knows.
        self.unnamed_user = np.fromiter(
            (row.role == "user" and not row.speaker for row in rows), np.bool_, count
        )
        # An assistant's answer says little about its user.
        self.may_answer = np.fromiter(
            (bool(row.speaker) or row.role == "user" for row in rows), np.bool_, count
        )
        self.speakers: dict[str, int] = {}
        self.speaker = np.fromiter(
            (self.speakers.setdefault(row.speaker, len(self.speakers)) for row in rows),
            np.int32,
            count,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        columns = (
            self.before,
            self.after,
            self.asks,
            self.question_share,
            self.chars,
            self.importance,
            self.unnamed_user,
            self.may_answer,
            self.speaker,
        )
        return sum(column.nbytes for column in columns)


def rank_order(row: MemoryRow) -> tuple[int, str, int, str]:
    """How rows are sorted before they are ranked: of equals, the earlier message comes first."""
    return (row.created_us, row.session, row.seq, row.id)


def fuse(
    candidates: Sequence[Candidate], config: RecallConfig, query: str = "", *, gain: float = 1.0
) -> Ranking:
    """Rank what a store found; of equals, the more important comes first, then the earlier.

    Args:
        candidates: what the store's searches found.
        config: weights.
        query: the question; speakers that it names count for more.
        gain: factor on the score of the most important; the least important is divided by it, and
            importance 0.5 changes nothing.
    """
    import numpy as np  # noqa: PLC0415

    ordered = sorted(candidates, key=lambda one: rank_order(one.row))
    # without the text that was searched, so that a ranking is small to hold
    rows = [msgspec.structs.replace(one.row, turn="", window="") for one in ordered]
    lists = {}
    for name in _LISTS:
        pairs = [
            (place, one.scores[name]) for place, one in enumerate(ordered) if name in one.scores
        ]
        places, scores = zip(*pairs, strict=True) if pairs else ((), ())
        lists[name] = ScoreList(np.array(places, np.intp), np.array(scores, np.float64))
    ranking = rank(rows, Traits(rows), lists, config, query, gain=gain)
    return msgspec.structs.replace(ranking, row_bytes=size_of_rows(rows))


def rank(
    rows: Sequence[MemoryRow],
    traits: Traits,
    lists: Mapping[str, ScoreList],
    config: RecallConfig,
    query: str = "",
    *,
    gain: float = 1.0,
) -> Ranking:
    """Rank what the lists ``turn``, ``window`` and ``vector`` found; see `fuse`.

    Args:
        rows: all rows that places refer to, in `rank_order`.
        traits: theirs.
        lists: by name; those that did not search may be left out.
        config: weights.
        query: what was asked.
        gain: see `fuse`.
    """
    import numpy as np  # noqa: PLC0415

    everything = [lists[name].places for name in _LISTS if name in lists]
    places = np.unique(np.concatenate(everything)) if everything else np.empty(0, np.intp)
    parts = {name: _scaled(lists[name], places) for name in _LISTS if name in lists}
    weights = {
        "turn": config.turn_weight,
        "window": config.window_weight,
        "vector": config.vector_weight,
    }
    weights["vector"] *= _trust(parts, config)
    score = np.zeros(len(places))
    for name, part in parts.items():
        score += weights[name] * np.nan_to_num(part, nan=0.0)
    score[traits.unnamed_user[places]] *= config.user_prior
    # One longer than the rows: the last stands for the neighbour that is not there, or that nobody
    # found.
    base = np.zeros(len(traits.before) + 1)
    base[places] = score
    asking = np.zeros(len(base), np.bool_)
    asking[places] = traits.asks[places]
    before, after = traits.before[places], traits.after[places]
    bonus = (
        np.where(asking[before] & traits.may_answer[places], config.answer_bonus, 0.0)
        + config.neighbour_bonus
    )
    near = np.maximum(bonus * base[before], config.neighbour_bonus * base[after])
    # A long message holds its evidence itself.
    score += near * np.minimum(config.neighbour_chars / traits.chars[places], 1.0)
    named = speakers_named(query, traits.speakers)
    if named:
        spoke = np.isin(traits.speaker[places], [traits.speakers[one] for one in named])
        score[spoke] *= config.speaker_prior
    score *= 1.0 - config.question_penalty * traits.question_share[places].astype(np.float64)
    importance = traits.importance[places].astype(np.float64)
    if gain != 1.0:
        # An exponent keeps the factor positive, and so the order monotone, whatever the weight.
        score *= gain ** (2 * np.clip(importance, 0.0, 1.0) - 1)
    order = np.lexsort((places, -importance, -score))
    scaled = {name: part[order] for name, part in parts.items()}
    return Ranking(rows, places[order], score[order], scaled)


def size_of_rows(rows: Sequence[MemoryRow]) -> int:
    """Bytes that rows take which do not hold the text that is searched."""
    texts = sum(sys.getsizeof(row.content) + sys.getsizeof(row.id) for row in rows)
    return texts + _ROW_BYTES * len(rows)


def _scaled(found: ScoreList, places: Places) -> Numbers:
    """Min-max over what the list found; NaN at places where it found nothing."""
    import numpy as np  # noqa: PLC0415

    scaled = np.full(len(places), np.nan)
    if len(found.places):
        low, high = found.scores.min(), found.scores.max()
        mine = (found.scores - low) / (high - low) if high > low else np.ones(len(found.scores))
        scaled[np.searchsorted(places, found.places)] = mine
    return scaled


def _trust(parts: Mapping[str, Numbers], config: RecallConfig) -> float:
    """How far the vector list is believed.

    By its correlation with the text lists, over its own candidates.
    """
    import numpy as np  # noqa: PLC0415

    if not config.vector_agreement or "vector" not in parts:
        return 1.0
    mine = ~np.isnan(parts["vector"])
    near = parts["vector"][mine]
    if len(near) < _FEWEST_JUDGED:
        return 1.0
    words = np.zeros(len(near))
    for name, weight in (("turn", config.turn_weight), ("window", config.window_weight)):
        if name in parts:
            words += weight * np.nan_to_num(parts[name][mine], nan=0.0)
    near, words = near - near.mean(), words - words.mean()
    spread = float(np.sqrt((near @ near) * (words @ words)))
    if not spread:  # no words to go by
        return 1.0
    return min(max(float(near @ words) / spread / config.vector_agreement, _LEAST_TRUST), 1.0)


def speakers_named(query: str, speakers: Collection[str]) -> set[str]:
    """Which of these speakers a query names, by any part of the name.

    "When will Ann call?" names Ann and not Will; in a query without capitals, both might be meant.
    """
    words = set(re.findall(r"\w+", query))
    plain = query == query.lower()
    capitals = {word.casefold() for word in words if plain or word != word.lower()}
    found = set()
    for speaker in speakers:
        names = [
            name for name in re.split(r"[\W_]+", speaker) if len(name) > 1 and not name.isdigit()
        ]
        # Scripts without blanks between words: a name is found wherever it stands.
        if any(
            n.casefold() in capitals or n in words or (not n.isascii() and n in query)
            for n in names
        ):
            found.add(speaker)
    return found


def question_share(text: str) -> float:
    """How much of a message stands in questions, 0 to 1."""
    text = text[:_JUDGED_CHARS]
    if _MARK.search(text) is None:
        return 0.0
    whole = asked = 0
    for said, end in _SENTENCE.findall(text):
        size = len(said.strip())
        whole += size
        if end and _MARK.search(end) is not None:
            asked += size
    return asked / whole if whole else 0.0


def asks(text: str) -> bool:
    """A message ends in a question; a smile or an aside in brackets may follow."""
    return _ASKS.search(text[-_END_CHARS:]) is not None


def _place(row: MemoryRow, step: int = 0) -> tuple[str, int]:
    """Where a row stands, or its neighbour.

    A message in its session, anything else alone, however many share its session.
    """
    return (row.session, row.seq + step) if row.seq > 0 else (row.id, step - 1)
