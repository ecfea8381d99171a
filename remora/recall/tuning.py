"""Fit the weights of the fusion to questions whose answers are known.

The fusion has few weights, so a coordinate search is enough: each weight in turn tries the values
of a short list while the others stay, the best one is kept if it gains at least `MIN_GAIN`, and
three rounds of that are made at most. What is maximized is the mean of recall@5 and recall@10.
Whatever the ranking does with the weights is the ranking's own code: what is searched for does not
depend on them, so it is searched once for each question, and only ranked again.

*Held out.* Weights that fit the questions that they were fitted to say nothing. So the questions
are split into parts by user: each part is ranked with weights that were fitted to the others. The
figures are of these rankings alone; the weights that are handed out are then fitted to all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from remora.config import RecallConfig
from remora.messages import without_surrogates
from remora.recall.question import Question
from remora.recall.ranking import Matches, rank, with_answers
from remora.recall.user_index import SearchedRows, Sessions, UserIndex, find_matches
from remora.runtime.concurrency import Progress
from remora.storage.ports import MemoryRow, Vector

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

AT = (5, 10)
"""Recall is measured among so many of the best memories."""

MIN_GAIN = 0.002
"""A weight is changed for more than this: fewer changes hold better elsewhere."""

_ROUNDS = 3
_PARTS = 5
_SAMPLES = 2_000  # of the bootstrap
_MANY_USERS = 5  # from which on the bootstrap is over users
_TRIED: Mapping[str, tuple[float, ...]] = {
    "window_weight": (0.0, 0.15, 0.25, 0.35, 0.5, 0.65, 0.8, 1.0),
    "vector_weight": (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0),
    "session_weight": (0.0, 0.1, 0.2, 0.3, 0.5),
    "neighbour_bonus": (0.0, 0.15, 0.3, 0.45, 0.6),
    "answer_bonus": (0.0, 0.1, 0.2, 0.4),
    "question_penalty": (0.0, 0.15, 0.3, 0.5),
    "speaker_prior": (1.0, 1.25, 1.5, 2.0),
    "user_prior": (1.0, 1.25, 1.5, 2.0, 3.0),
    "identifier_bonus": (0.0, 0.5, 1.0, 2.0),
    "time_bonus": (1.0, 1.15, 1.3, 1.6, 2.0),
}
"""All weights but `turn_weight`, which is the unit: twice all weights is the same ranking."""

_Weights = tuple[float, ...]  # in the order of `_TRIED`


class LabelledQuestion(msgspec.Struct, frozen=True):
    """A question, what the searches found, and which rows answer it.

    Attributes:
        user: whose memories are searched.
        question: what is asked.
        index: the user's rows.
        matches: what the searches found in them.
        wanted: for each relevant memory, the places of the rows that hold it.
    """

    user: str
    question: Question
    index: UserIndex
    matches: Matches
    wanted: Sequence[frozenset[int]]


class Gain(msgspec.Struct, frozen=True):
    """A figure before and after, on questions that the weights were not fitted to.

    Attributes:
        before: with the present weights.
        after: with the fitted ones.
        low: the difference, lower end of an interval of 95 % (bootstrap).
        high: the upper end.
    """

    before: float
    after: float
    low: float
    high: float


class TuningReport(msgspec.Struct, frozen=True):
    """The result of a fit.

    Attributes:
        questions: how many there were.
        users: whose memories they are about.
        parts: into how many parts they were split.
        by_user: no user is in two parts.
        gains: by figure, ``recall@5`` and ``recall@10``, and ``both``, their mean.
        weights: those of `RecallConfig` that change if all questions are fitted.
    """

    questions: int
    users: int
    parts: int
    by_user: bool
    gains: dict[str, Gain]
    weights: dict[str, float]

    @property
    def verdict(self) -> str:
        """``better``, ``no better``, or ``unclear``: the gain may be chance."""
        both = self.gains["both"]
        if not self.weights or both.after <= both.before:
            return "no better"
        return "better" if both.low > 0 else "unclear"


async def prepare_questions(
    user: str,
    rows: Sequence[MemoryRow],
    vectors: Vector | None,
    labelled: Sequence[tuple[str, Sequence[Collection[str]]]],
    config: RecallConfig,
    ask: Callable[[str], Awaitable[Question]],
) -> list[LabelledQuestion]:
    """Search one user's rows for labelled questions.

    Args:
        user: the user.
        rows: all that a recall searches.
        vectors: theirs, shape (rows, dimension); None if nothing is embedded.
        labelled: each question with its relevant memories: for each, the ids of the rows that
            hold it.
        config: depth and near words.
        ask: makes a question of a text, as `Recall.ask` does.

    Raises:
        ModelError: the embedder failed.
    """
    import numpy as np  # noqa: PLC0415

    index = UserIndex(rows, vectors)
    wide = msgspec.structs.replace(config, session_weight=config.session_weight or 1.0)
    searched = SearchedRows([index], index.rows, index.traits, Sessions([index]))
    eligible = np.ones(len(index), np.bool_)
    found = []
    for text, relevant in labelled:
        query = without_surrogates(text)
        asked = await ask(query)
        matches = find_matches(searched, asked, eligible, wide)
        matches = with_answers(matches, asked, index.rows, index.traits, eligible)
        wanted = [frozenset(index.place_of[id_] for id_ in ids) for ids in relevant]
        found.append(LabelledQuestion(user, asked, index, matches, wanted))
    return found


def fit_weights(
    questions: Sequence[LabelledQuestion],
    config: RecallConfig,
    *,
    gain: float = 1.0,
    progress: Progress = lambda _, __: None,
) -> TuningReport:
    """Fit the weights, and say what they are worth on questions that they were not fitted to.

    Args:
        questions: at least two.
        config: the present weights.
        gain: of importance; see `remora.recall.ranking.fuse`.
        progress: called with the number of rankings tried, and of all.
    """
    import numpy as np  # noqa: PLC0415

    users = list(dict.fromkeys(one.user for one in questions))
    part_of = _split([one.user for one in questions])
    parts = int(part_of.max()) + 1
    search = _Search(questions, config, gain, progress, fits=parts + 1)
    before = search.recalls(search.start)
    after = np.empty_like(before)
    for part in range(parts):
        held_out = part_of == part
        after[held_out] = search.recalls(search.fit(~held_out))[held_out]
    fitted = search.fit(np.ones(len(questions), np.bool_))
    groups: Sequence[Hashable] = [one.user for one in questions]
    if len(users) < _MANY_USERS:
        groups = range(len(questions))
    gains = {f"recall@{k}": _compare(before[:, i], after[:, i], groups) for i, k in enumerate(AT)}
    gains["both"] = _compare(before.mean(axis=1), after.mean(axis=1), groups)
    changed = {
        name: new for name, old, new in zip(_TRIED, search.start, fitted, strict=True) if new != old
    }
    return TuningReport(len(questions), len(users), parts, len(users) > 1, gains, changed)


class _Search:
    """Ranks the questions with some weights, each weights once."""

    def __init__(
        self,
        questions: Sequence[LabelledQuestion],
        config: RecallConfig,
        gain: float,
        progress: Progress,
        *,
        fits: int,
    ) -> None:
        self._questions = questions
        self._config = config
        self._gain = gain
        self._progress = progress
        self._known: dict[_Weights, npt.NDArray[np.float64]] = {}
        self.start: _Weights = tuple(getattr(config, name) for name in _TRIED)
        self._tries = _ROUNDS * sum(map(len, _TRIED.values()))
        self._total, self._fitted = fits * self._tries, 0

    def recalls(self, weights: _Weights) -> npt.NDArray[np.float64]:
        """The share of each question's memories among the best, shape (questions, len(AT))."""
        import numpy as np  # noqa: PLC0415

        known = self._known.get(weights)
        if known is None:
            config = msgspec.structs.replace(
                self._config, **dict(zip(_TRIED, weights, strict=True))
            )
            shares = [_shares(one, config, self._gain) for one in self._questions]
            known = self._known[weights] = np.array(shares)
        return known

    def fit(self, fitted_to: npt.NDArray[np.bool_]) -> _Weights:
        """The weights that are best for some of the questions."""
        best, most = self.start, float(self.recalls(self.start)[fitted_to].mean())
        done = self._fitted * self._tries
        for _ in range(_ROUNDS):
            before = best
            for place, values in enumerate(_TRIED.values()):
                around = best
                for value in values:
                    tried = (*around[:place], value, *around[place + 1 :])
                    mean = float(self.recalls(tried)[fitted_to].mean())
                    if mean > most + MIN_GAIN:
                        best, most = tried, mean
                    done += 1
                    self._progress(done, self._total)
            if best == before:
                break
        self._fitted += 1
        self._progress(self._fitted * self._tries, self._total)
        return best


def _shares(question: LabelledQuestion, config: RecallConfig, gain: float) -> list[float]:
    index, matches = question.index, question.matches
    if not config.session_weight:
        matches = msgspec.structs.replace(matches, sessions=None)
    ranking = rank(index.rows, index.traits, matches, config, question.question, gain=gain)
    position = {place: n for n, place in enumerate(ranking.places[: max(AT)].tolist())}
    last = max(AT)
    firsts = [min(position.get(place, last) for place in one) for one in question.wanted]
    return [sum(first < k for first in firsts) / len(firsts) for k in AT]


def _split(users: Sequence[str]) -> npt.NDArray[np.intp]:
    """The part of each question: each user to the smallest part; one user's questions in a row."""
    import numpy as np  # noqa: PLC0415

    counts: dict[str, int] = {}
    for user in users:
        counts[user] = counts.get(user, 0) + 1
    if len(counts) == 1:
        return np.arange(len(users)) * min(_PARTS, len(users)) // len(users)
    sizes = [0] * min(_PARTS, len(counts))
    part_of: dict[str, int] = {}
    for user in sorted(counts, key=lambda one: -counts[one]):
        part = part_of[user] = sizes.index(min(sizes))
        sizes[part] += counts[user]
    return np.array([part_of[user] for user in users], np.intp)


def _compare(
    before: npt.NDArray[np.float64], after: npt.NDArray[np.float64], groups: Sequence[Hashable]
) -> Gain:
    """Means, and an interval of their difference: a paired bootstrap over groups of questions."""
    import numpy as np  # noqa: PLC0415

    number_of: dict[Hashable, int] = {}
    numbers = np.array([number_of.setdefault(one, len(number_of)) for one in groups])
    sums = np.bincount(numbers, weights=after - before)
    counts = np.bincount(numbers)
    drawn = np.random.default_rng(0).integers(0, len(sums), (_SAMPLES, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Gain(float(before.mean()), float(after.mean()), float(low), float(high))
