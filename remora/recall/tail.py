"""Recall of messages that are not indexed yet, together with those that are.

`UserIndex` has the rows of long-term memory. A `Tail` has the rows that it lacks: made of messages
and memories that are acknowledged, and whose index job has not run. Both are searched as if they
were one index: words have the weights that they have in all rows together, and neighbours are
found across the border. So indexing a message later does not change its rank.

A user who is searched in the store has no index in memory. Then the tail's scores are brought to
the store's scale: both are computed for what the store found, and the median of their ratio is the
factor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from remora.actors.policies.text_index import Terms, TextIndex, make_terms, scores_together
from remora.config import RecallConfig
from remora.ids import SessionKey, row_id
from remora.recall.question import Question
from remora.recall.ranking import Ranking, ScoreList
from remora.recall.user_index import (
    SearchedRows,
    Sessions,
    UserIndex,
    is_large_search,
    make_all_terms,
    search_rows,
    top,
)
from remora.runtime.concurrency import run_in_thread_if
from remora.storage.ports import Candidate, MemoryRow, Scope, Vector

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

_TEXTS = ("turn", "window")


class Tail:
    """A user's rows that are not indexed yet; immutable.

    Args:
        version: of these rows; no two tails have the same, except empty ones, which have 0.
        rows: the rows, in any order.
        vectors: theirs, shape (rows, dimension), zeros for those without; None without an embedder.
        earlier: the index of the user's tail before, which makes this one faster to build.
        hidden: ids of indexed rows that were removed, and are still in long-term memory.
        rewritten: ids of rows that were indexed and are being indexed again, because a message near
            them came or went: long-term memory may lack them for a moment.
        note: what of it is not searched, for people; empty if all is.
        cut: there are older rows that it lacks.
    """

    def __init__(
        self,
        version: int = 0,
        rows: Sequence[MemoryRow] = (),
        vectors: Vector | None = None,
        earlier: UserIndex | None = None,
        *,
        hidden: frozenset[str] = frozenset(),
        rewritten: frozenset[str] = frozenset(),
        note: str = "",
        cut: bool = False,
    ) -> None:
        self.version = version
        self.rows = rows
        self.vectors = vectors
        self.hidden = hidden
        self.rewritten = rewritten
        self.note = note
        self.cut = cut
        self.index = UserIndex(rows, vectors, earlier) if rows else None
        self._combined: CombinedIndex | None = None

    def __bool__(self) -> bool:
        return bool(self.rows or self.hidden)

    def shown(self, without: Collection[tuple[str, int]]) -> tuple[str, ...]:
        """Ids of the rows that are among these messages, by session and number."""
        return tuple([row.id for row in self.rows if (row.session, row.seq) in without])

    def with_more(self, rows: Sequence[MemoryRow]) -> Tail:
        """This one with rows that it lacks, which have no vectors."""
        import numpy as np  # noqa: PLC0415

        vectors = self.vectors
        if vectors is not None:
            vectors = np.vstack([vectors, np.zeros((len(rows), vectors.shape[1]), np.float32)])
        return Tail(
            self.version,
            [*self.rows, *rows],
            vectors,
            self.index,
            hidden=self.hidden,
            rewritten=self.rewritten,
            note=self.note,
            cut=True,
        )

    def rewritten_places(self, scope: Scope) -> list[int]:
        """The places of its rows that were indexed, and are being indexed again."""
        if self.index is None or not self.rewritten:
            return []
        mine = self.index.within(scope)
        return [
            place for place, row in enumerate(self.rows) if row.id in self.rewritten and mine[place]
        ]

    def combined_with(self, index: UserIndex) -> CombinedIndex:
        """Both as one; made once for an index."""
        if self._combined is None or self._combined.base is not index:
            self._combined = CombinedIndex(index, self)
        return self._combined


EMPTY_TAIL = Tail()


class CombinedIndex:
    """The rows of a user's index and of a tail, searched as one.

    A row that is in both is searched once: an index job may end between the reading of the two.

    Args:
        base: the user's rows of long-term memory.
        tail: the others.
    """

    def __init__(self, base: UserIndex, tail: Tail) -> None:
        import numpy as np  # noqa: PLC0415

        self.base = base
        fresh = [place for place, row in enumerate(tail.rows) if row.id not in base.place_of]
        more = tail.index
        if more is not None and len(fresh) < len(tail.rows):
            vectors = None if tail.vectors is None else tail.vectors[fresh]
            rows = [tail.rows[place] for place in fresh]
            more = UserIndex(rows, vectors, more) if rows else None
        self._more = more
        self.rows, traits, parts = base.rows, base.traits, [base]
        if more is not None:
            self.rows = (*base.rows, *more.rows)
            traits = base.traits.joined(more.traits, _find_neighbours(base, more))
            parts.append(more)
        self._searched = SearchedRows(parts, self.rows, traits, Sessions(parts))
        self._left_out = np.zeros(len(self.rows), np.bool_)
        self._left_out[[base.place_of[id_] for id_ in tail.hidden if id_ in base.place_of]] = True

    def __len__(self) -> int:
        return len(self.rows)

    async def rank(
        self,
        question: Question,
        scope: Scope,
        config: RecallConfig,
        *,
        gain: float = 1.0,
        without: Collection[str] = (),
    ) -> Ranking:
        """Rank the rows that match, best first; see `UserIndex.rank`.

        Args:
            question: what is asked.
            scope: which rows to search.
            config: weights, and how many candidates each list gives.
            gain: see `fuse`.
            without: ids of rows of the tail to leave out.
        """
        left_out = self._left_out
        if self._more is not None and without:
            places = [self._more.place_of[one] for one in without if one in self._more.place_of]
            left_out = left_out.copy()
            left_out[[len(self.base) + place for place in places]] = True
        search = partial(search_rows, self._searched, question, scope, config, gain, left_out)
        return await run_in_thread_if(is_large_search(len(self), question), search)


def add_tail(
    candidates: Sequence[Candidate],
    tail: Tail,
    question: Question,
    scope: Scope,
    *,
    depth: int,
    without: Collection[str] = (),
    lists_of_words: Sequence[str] = _TEXTS,
    related: Mapping[str, str] = {},
    share: float = 0.0,
) -> list[Candidate]:
    """Return what a store found, and what matches in the tail, with scores on the store's scale.

    Args:
        candidates: what the store's searches found.
        tail: the rows that the store lacks.
        question: what is asked.
        scope: which rows to search.
        depth: candidates of each list of the tail, at most.
        without: ids of rows of the tail to leave out.
        lists_of_words: those that the store searches.
        related: words that are related to words of the question, each with that word; stems.
        share: what these count.
    """
    found = [one for one in candidates if one.row.id not in tail.hidden]
    more = tail.index
    if more is None:
        return found
    left_out = {*without, *(one.row.id for one in found)}
    mine = more.within(scope)
    mine[[place for id_, place in more.place_of.items() if id_ in left_out]] = False
    own = make_terms(question.stems)
    terms = make_all_terms(dict.fromkeys(question.stems, 1.0), related, share)
    near = UserIndex([one.row for one in found], None)
    lists: dict[str, ScoreList] = {}
    for name in lists_of_words:
        texts = near.texts[name], more.texts[name]
        theirs, _ = _score_together(texts, own)
        _, ours = _score_together(texts, terms)
        given = {one.row.id: one.scores[name] for one in found if name in one.scores}
        scores = ours * _ratio(given, near, theirs)
        lists[name] = top(scores, (scores > 0) & mine, depth)
    if question.vector is not None and more.has_vectors:
        lists["vector"] = top(more.cosines(question.vector), more.embedded & mine, depth)
    return found + _as_candidates(more, tail, lists)


def _score_together(texts: Sequence[TextIndex], terms: Terms) -> Sequence[npt.NDArray[np.float64]]:
    return scores_together([one.look_up(one.find(terms.hashes)) for one in texts], terms)


def _as_candidates(more: UserIndex, tail: Tail, lists: Mapping[str, ScoreList]) -> list[Candidate]:
    rows = {row.id: row for row in tail.rows}
    scores: dict[str, dict[str, float]] = {}
    for name, one in lists.items():
        for place, score in zip(one.places.tolist(), one.scores.tolist(), strict=True):
            scores.setdefault(more.rows[place].id, {})[name] = score
    return [Candidate(rows[id_], of_lists) for id_, of_lists in scores.items()]


def _ratio(given: Mapping[str, float], near: UserIndex, scores: npt.NDArray[np.float64]) -> float:
    """How much larger a store's scores are than those computed here, in the median."""
    import numpy as np  # noqa: PLC0415

    ratios = [
        score / scores[near.place_of[id_]]
        for id_, score in given.items()
        if scores[near.place_of[id_]] > 0
    ]
    return float(np.median(ratios)) if ratios else 1.0


def _find_neighbours(base: UserIndex, more: UserIndex) -> list[tuple[int, int]]:
    """Pairs of messages, one in each index, of which the second follows the first."""
    count = len(base)
    pairs = []
    for column, step in ((more.traits.before, -1), (more.traits.after, 1)):
        for place in (column == len(more)).nonzero()[0].tolist():
            row = more.rows[place]
            if row.seq > 0:
                id_ = row_id(SessionKey(row.user, row.session), row.seq + step)
                other, here = base.place_of.get(id_), count + place
                if other is not None:
                    pairs.append((other, here) if step < 0 else (here, other))
    return pairs
