"""One user's rows in memory: what a recall needs of them, in columns, searched without a store.

Searching 1,000 rows takes half a millisecond, LanceDB 10 to 30 ms on both cores. Building takes
30 µs a row, so an index takes over from the one before it what did not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from remora.actors.policies.bm25 import text_indices
from remora.actors.policies.text_index import (
    Groups,
    Postings,
    Terms,
    TextIndex,
    make_terms,
    rarity,
    scores_together,
)
from remora.config import RecallConfig
from remora.recall.days import time_stems
from remora.recall.near import Vocabulary
from remora.recall.question import Question, related_words, weigh_words
from remora.recall.ranking import (
    Matches,
    Ranking,
    ScoreList,
    asks_for_several,
    is_other_language,
    judge_novelty,
    main_languages,
    rank,
    size_of_row,
    weigh_identifiers,
    with_answers,
)
from remora.recall.traits import Kept, NameColumn, Traits, rank_order
from remora.runtime.concurrency import run_in_thread_if
from remora.storage.ports import BLOCK_TYPE, MemoryRow, Scope, Vector

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

MAX_ON_LOOP = 5_000
"""Rows that are searched on the event loop, in 0.8 ms; more would hold it for too long."""

_TEXTS = ("turn", "window")
Number = TypeVar("Number", bound="np.generic")
_DECIMALS = 6  # of a cosine: the last bits of a product depend on the place of the row


def is_large_search(rows: int, question: Question) -> bool:
    """Return whether searching so many rows would hold the event loop for too long.

    If the question names days, they are looked for in the texts of messages: 1.6 ms a long one;
    and so are statements of what it asks of its asker.
    """
    return rows > MAX_ON_LOOP or question.is_long or question.reads_texts


class UserIndex:
    """All rows of a user except those of memory blocks, ready to be searched; immutable.

    Args:
        rows: in any order.
        vectors: their vectors, shape (rows, dimension), of any length; None if nothing is embedded.
        earlier: the user's index before: rows that did not change take a tenth of the time.

    Attributes:
        rows: the rows, in the order of their places, without the texts that are searched.
        traits: what the ranking needs to know of them.
        texts: the indices of their words, by list: ``turn`` and ``window``.
        embedded: which rows have a vector; only with vectors.
        agents: the agents of the rows.
        types: the types of the rows.
        sizes: bytes that each row takes without its columns; shape (rows,).
        size_bytes: bytes that all of it takes.
    """

    def __init__(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, earlier: UserIndex | None = None
    ) -> None:
        import numpy as np  # noqa: PLC0415

        places = [place for place, row in enumerate(rows) if row.memory_type != BLOCK_TYPE]
        places.sort(key=lambda place: rank_order(rows[place]))
        mine = [rows[place] for place in places]
        # All fields identify a row: with another neighbourhood it is another row.
        self.hashes = np.fromiter(map(hash, mine), np.int64, len(mine))
        before = () if earlier is None else tuple(earlier.texts.values())
        known = [] if earlier is None else earlier.hashes.tolist()
        place_of = {one: place for place, one in enumerate(known)}
        before_of = np.fromiter(
            (place_of.get(one, -1) for one in self.hashes.tolist()), np.intp, len(mine)
        )
        old = (before_of >= 0).nonzero()[0]
        kept = Kept((before_of < 0).nonzero()[0], old, before_of[old])
        made = text_indices(
            [[row.turn for row in mine], [row.window for row in mine]], before, before_of
        )
        self.texts: dict[str, TextIndex] = dict(zip(("turn", "window"), made, strict=True))
        self.traits: Traits = Traits(mine, None if earlier is None else earlier.traits, kept)
        self._words_of: tuple[Vocabulary, npt.NDArray[np.int32]] | None = None
        self._place_of: dict[str, int] | None = None
        self._vectors: Vector | None = None
        if vectors is not None:
            self._vectors = np.ascontiguousarray(vectors[places], np.float32)
            lengths = np.linalg.norm(self._vectors, axis=1, keepdims=True)
            self._vectors /= np.where(lengths == 0, 1, lengths)
            # a row without a word that the embedder knows is near to nothing
            self.embedded = lengths[:, 0] != 0
        # Columns hold what is searched; rows share one copy of each name.
        names: dict[str, str] = {}
        held: list[MemoryRow] = mine.copy()
        if earlier is not None:
            for place, there in zip(kept.old.tolist(), kept.before.tolist(), strict=True):
                held[place] = earlier.rows[there]
        for place in kept.new.tolist():
            held[place] = _without_search_text(mine[place], names)
        self.rows: tuple[MemoryRow, ...] = tuple(held)
        self.agents = NameColumn(mine, "agent", kept, getattr(earlier, "agents", None))
        self.types = NameColumn(mine, "memory_type", kept, getattr(earlier, "types", None))
        self.sizes = kept.take(mine, "int32", size_of_row, getattr(earlier, "sizes", None))
        columns: list[npt.NDArray[Any]] = [self.hashes, self.sizes]
        columns += [self.agents.column, self.types.column]
        columns += [] if self._vectors is None else [self._vectors]
        self.size_bytes: int = int(self.sizes.sum()) + self.traits.nbytes
        self.size_bytes += sum(one.nbytes for one in columns)
        self.size_bytes += sum(one.nbytes for one in self.texts.values())

    def __len__(self) -> int:
        return len(self.rows)

    async def rank(
        self, question: Question, scope: Scope, config: RecallConfig, *, gain: float = 1.0
    ) -> Ranking:
        """Rank the rows that match, best first; see `fuse`.

        Args:
            question: what is asked.
            scope: which rows to search.
            config: weights, and how many candidates each list gives.
            gain: see `fuse`.
        """
        # made for each search: held, it would keep the index in memory until the next collection
        searched = SearchedRows([self], self.rows, self.traits, self._sessions)
        search = partial(search_rows, searched, question, scope, config, gain)
        return await run_in_thread_if(is_large_search(len(self), question), search)

    @cached_property
    def _sessions(self) -> Sessions:
        return Sessions([self])

    def cosines(self, vector: Vector) -> npt.NDArray[np.float64]:
        """How near each row is to a unit vector; there must be vectors."""
        import numpy as np  # noqa: PLC0415

        assert self._vectors is not None
        # No matrix product: BLAS splits even a small one among threads, and waits 10 ms for the
        # last of them when cores are busy.
        near: npt.NDArray[np.float64] = np.vecdot(self._vectors, vector).astype(np.float64)
        return np.round(near, _DECIMALS)

    @cached_property
    def languages(self) -> frozenset[str]:
        """The languages that many of the rows are in."""
        return main_languages(self.rows, self.traits.findings.language)

    def words_of(self, vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
        """The places of a vocabulary's words that are in messages; shape (words,)."""
        held = self._words_of
        if held is None or held[0] is not vocabulary:
            held = self._words_of = vocabulary, vocabulary.words_in(self.texts["turn"])
        return held[1]

    @property
    def sessions(self) -> NameColumn:
        """The session of each row."""
        return self.traits.sessions

    @property
    def has_vectors(self) -> bool:
        """Return whether rows are searched by meaning."""
        return self._vectors is not None

    @property
    def place_of(self) -> Mapping[str, int]:
        """The places of the rows, by id."""
        if self._place_of is None:
            self._place_of = {row.id: place for place, row in enumerate(self.rows)}
        return self._place_of

    def within(self, scope: Scope) -> npt.NDArray[np.bool_]:
        """Which rows are in a scope."""
        import numpy as np  # noqa: PLC0415

        mine = np.ones(len(self), np.bool_)
        if scope.session is not None:
            mine &= self.sessions.is_any_of((scope.session,))
        if scope.agent is not None:
            mine &= self.agents.is_any_of((scope.agent,))
        if scope.types:
            mine &= self.types.is_any_of(scope.types)
        if scope.ids is not None:
            wanted = frozenset(scope.ids)
            mine &= np.fromiter((row.id in wanted for row in self.rows), np.bool_, len(self))
        return mine


class Sessions:
    """The sessions of the rows of a user's indices.

    Args:
        parts: the indices, one after the other.

    Attributes:
        groups: the rows by session.
        column: the session of each row, by its number; shape (rows,).
        outside: which rows are in no session, shape (rows,); None if all are in one.
    """

    def __init__(self, parts: Sequence[UserIndex]) -> None:
        numbers: dict[str, int] = {}
        columns = [one.sessions.numbered_by(numbers) for one in parts]
        self.groups = Groups([one.texts["turn"] for one in parts], columns, len(numbers))
        self.column = joined(columns)
        self.outside = self.column == numbers[""] if "" in numbers else None

    @property
    def numbers(self) -> npt.NDArray[np.int32]:
        """The session of each row, by its number; -1 for none; shape (rows,)."""
        import numpy as np  # noqa: PLC0415

        return self.column if self.outside is None else np.where(self.outside, -1, self.column)


class SearchedRows(msgspec.Struct, frozen=True):
    """A user's indices, searched as if they were one.

    Attributes:
        parts: the indices, one after the other.
        rows: all their rows.
        traits: of all their rows.
        sessions: of all their rows.
    """

    parts: Sequence[UserIndex]
    rows: Sequence[MemoryRow]
    traits: Traits
    sessions: Sessions


def search_rows(
    searched: SearchedRows,
    question: Question,
    scope: Scope,
    config: RecallConfig,
    gain: float,
    left_out: npt.NDArray[np.bool_] | None = None,
) -> Ranking:
    """Search a user's rows; see `UserIndex.rank`.

    Args:
        searched: the rows.
        question: what is asked.
        scope: which rows to search.
        config: weights, and how many candidates each list gives.
        gain: see `fuse`.
        left_out: rows not to find, shape (rows,); None for none.
    """
    eligible = joined([one.within(scope) for one in searched.parts])
    if left_out is not None:
        eligible &= ~left_out
    matches = find_matches(searched, question, eligible, config)
    rows, traits = searched.rows, searched.traits
    matches = with_answers(matches, question, rows, traits, eligible)
    return rank(rows, traits, matches, config, question, gain=gain)


def find_matches(
    searched: SearchedRows,
    question: Question,
    eligible: npt.NDArray[np.bool_],
    config: RecallConfig,
) -> Matches:
    """Return what the searches find in a user's rows.

    Args:
        searched: the rows.
        question: what is asked.
        eligible: which rows to find, shape (rows,).
        config: weights, and how many candidates each list gives.
    """
    parts, traits = searched.parts, searched.traits
    said = _words_said(parts, question.vocabulary)
    weights = weigh_words(question, traits.words_of_names, said, config.near_words)
    related = related_words(question, traits.stems_of_names) if config.near_words else {}
    terms = make_all_terms(weights, related, config.near_words)
    found = _look_up(parts, terms.hashes)
    if numbers := question.bare_numbers:
        found = {name: _without_dates(one, terms, numbers, traits) for name, one in found.items()}
    scores = {name: joined(scores_together(found[name], terms)) for name in _TEXTS}
    lists = {name: top(one, (one > 0) & eligible, config.depth) for name, one in scores.items()}
    if question.vector is not None and parts[0].has_vectors:
        near = joined([one.cosines(question.vector) for one in parts])
        embedded = joined([one.embedded for one in parts])
        lists["vector"] = top(near, embedded & eligible, config.depth)
    known = frozenset[str]().union(*(one.languages for one in parts))
    other_language = is_other_language(question.language, known)
    asked = asks_for_several(question.text, question.language)
    return Matches(
        lists,
        _session_scores(searched.sessions, found["turn"], terms, scores["turn"])
        if config.session_weight
        else None,
        _find_words(parts, stems) if (stems := time_stems(question.text)) else None,
        1.0 if other_language else _coverage(found, question, traits.stems_of_names, len(eligible)),
        other_language=other_language,
        grouped=searched.sessions.numbers if asked else None,
        identified=weigh_identifiers([_holds_all(parts, one) for one in question.identifiers]),
        novelty=_judge_novelty(found["turn"], len(question.stems)) if question.asks else None,
    )


def make_all_terms(weights: Mapping[str, float], related: Mapping[str, str], share: float) -> Terms:
    """The words to look for; of those that are related to one word, and itself, the best counts."""
    import numpy as np  # noqa: PLC0415

    related = {other: stem for other, stem in related.items() if other not in weights}
    if not related:
        return make_terms(weights)
    terms = make_terms({**weights, **dict.fromkeys(related, share)})
    number_of = {stem: number for number, stem in enumerate(dict.fromkeys(related.values()))}
    groups = [number_of.get(related.get(stem, stem), -1) for stem in (*weights, *related)]
    return msgspec.structs.replace(terms, groups=np.array(groups[: len(terms.hashes)]))


def _words_said(parts: Sequence[UserIndex], vocabulary: Vocabulary | None) -> npt.NDArray[np.int32]:
    """The places of a vocabulary's words that are in messages."""
    import numpy as np  # noqa: PLC0415

    if vocabulary is None:
        return np.zeros(0, np.int32)
    places = [one.words_of(vocabulary) for one in parts]
    if len(places) == 1:
        return places[0]
    said = np.zeros(max(int(one.max(initial=-1)) for one in places) + 1, np.bool_)
    for one in places:  # `unique` takes six times as long
        said[one] = True
    return said.nonzero()[0].astype(np.int32)


def _look_up(
    parts: Sequence[UserIndex], hashes: npt.NDArray[np.int64]
) -> dict[str, list[Postings]]:
    """The postings of words in each index, by list: the texts of an index number words alike."""
    numbers = [one.texts["turn"].find(hashes) for one in parts]
    return {
        name: [one.texts[name].look_up(mine) for one, mine in zip(parts, numbers, strict=True)]
        for name in _TEXTS
    }


def _without_dates(
    found: Sequence[Postings], terms: Terms, numbers: Collection[str], traits: Traits
) -> list[Postings]:
    """The postings without those of numbers that are only the day before a message's text.

    "Which bus goes to room 7?" does not ask for what was said on the seventh of a month.
    """
    import numpy as np  # noqa: PLC0415

    number_of = {hash(one): int(one) for one in numbers}
    asked = np.array([number_of.get(one, 0) for one in terms.hashes.tolist()])
    kept, start = [], 0
    for one in found:
        days = traits.days[start : start + len(one.index.lengths)].astype("datetime64[D]")
        of_month = (days - days.astype("datetime64[M]")).astype(np.int64) + 1
        kept.append(one.without((one.of_each(asked) == of_month[one.places]) & (one.times == 1)))
        start += len(days)
    return kept


def _session_scores(
    sessions: Sessions,
    found: Sequence[Postings],
    terms: Terms,
    own: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """How well each row's session matches, 0 to 1; of a row that is in none, the row itself."""
    by_row: npt.NDArray[np.float64] = _scaled(sessions.groups.scores(found, terms))[sessions.column]
    if sessions.outside is not None:
        by_row[sessions.outside] = _scaled(own)[sessions.outside]
    return by_row


def _coverage(
    found: Mapping[str, Sequence[Postings]], question: Question, names: Collection[str], rows: int
) -> float:
    """See `Ranking.coverage`; names of speakers are in every message, and so count for nothing.

    The question's own words come first among those that were looked up.
    """
    import numpy as np  # noqa: PLC0415

    counts = np.add.reduce([one.counts for one in found["turn"]])
    weights = rarity(counts, rows)
    weights[[place for place, one in enumerate(question.stems[: len(counts)]) if one in names]] = 0
    weights[len(question.stems) :] = 0
    weights[_rarer_forms(question, counts)] = 0
    whole = float(weights.sum())
    best = [one.sums(one.of_each(weights)).max(initial=0.0) for one in found["window"]]
    return float(max(best)) / whole if whole else 1.0


def _rarer_forms(question: Question, counts: npt.NDArray[np.int64]) -> list[int]:
    """Places of the stems that stand for a word of which another stem is in more messages."""
    place_of = {stem: place for place, stem in enumerate(question.stems[: len(counts)])}
    rarer = []
    for stems in question.alternatives:
        places = [place_of[stem] for stem in stems if stem in place_of]
        if places:
            most = max(places, key=counts.__getitem__)
            rarer += [place for place in places if place != most]
    return rarer


def _holds_all(parts: Sequence[UserIndex], stems: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which messages hold all of these words."""
    hashes = make_terms(stems).hashes
    found = _look_up(parts, hashes)["turn"]
    counts = joined([one.sums(one.places >= 0) for one in found])
    there: npt.NDArray[np.bool_] = counts == len(hashes)
    return there


def _judge_novelty(found: Sequence[Postings], own: int) -> npt.NDArray[np.float64]:
    """See `Matches.novelty`; the question's own words come first among those looked up."""
    import numpy as np  # noqa: PLC0415

    asked = np.arange(len(found[0].counts)) < own
    repeated = [one.sums(one.times * one.of_each(asked)) for one in found]
    lengths = joined([one.index.lengths for one in found]).astype(np.float64)
    return judge_novelty(lengths, joined(repeated))


def _scaled(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    best = scores.max(initial=0.0)
    return scores / best if best > 0 else scores


def _find_words(parts: Sequence[UserIndex], stems: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which messages hold any of some words."""
    import numpy as np  # noqa: PLC0415

    found = []
    for one in _look_up(parts, make_terms(stems).hashes)["turn"]:
        there = np.zeros(len(one.index.lengths), np.bool_)
        there[one.places] = True
        found.append(there)
    return joined(found)


def joined(columns: Sequence[npt.NDArray[Number]]) -> npt.NDArray[Number]:
    """The columns of several indices as one; of one index, its own."""
    import numpy as np  # noqa: PLC0415

    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def top(scores: npt.NDArray[np.float64], eligible: npt.NDArray[np.bool_], depth: int) -> ScoreList:
    """The `depth` best of the eligible rows, by place; of equals, the first."""
    import numpy as np  # noqa: PLC0415

    places = eligible.nonzero()[0]
    found = scores[places]
    if len(places) > depth:
        least = np.partition(found, -depth)[-depth]
        kept = found >= least
        more = np.count_nonzero(kept) - depth
        if more:
            kept[(found == least).nonzero()[0][-more:]] = False
        places, found = places[kept], found[kept]
    return ScoreList(places, found)


def _without_search_text(row: MemoryRow, names: dict[str, str]) -> MemoryRow:
    """The row without the text that is searched, its names shared with other rows."""
    same = {
        name: names.setdefault(value, value)
        for name in _NAMES
        if (value := getattr(row, name)) is not None
    }
    return msgspec.structs.replace(row, turn="", window="", **same)


_NAMES = ("user", "session", "role", "speaker", "memory_type", "agent")
