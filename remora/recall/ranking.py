"""From several lists of candidates to one ranking.

Each list is min-max scaled over its candidates, weighted and added, and so is the match of the
message's whole session. Then each message gains a share
of its best neighbour's score, because the evidence is often next to the words that match; a long
message gains less. Then the speaker and the kind of message are weighed:

* a speaker that the query names is more often the author of the answer than its subject;
* the message after a question often answers it, and among people a question is seldom an answer
  itself; a user who asks an assistant for help states facts in the same message;
* questions are more often about what a user said, or a tool found, than about what an assistant
  said, unless they ask for just that ("What did you recommend?");
* a tool's result answers its call;
* what a user states of the matter that a question about themselves asks, and what was said on the
  days that it asks of alone, is an answer without a word of it;
* a message that has an identifier of the question (`remora.recall.question`) is about it;
* a message that repeats words of a question, and says little else, is no answer.

If a question asks for several things (`asks_for_several`), a message loses a share of its score
for each better one of its session.

Of the first, the newest of statements about one matter comes first.

A vector list that does not agree with the text lists loses weight: an embedder that is broken, or
made for another language, would otherwise push good messages down. Reciprocal rank fusion,
LanceDB's default, was worse than the better of its own lists on every set; preferring recent
messages hurt at every weight. benchmarks/NOTES.md has what else was tried.

A ranking is computed on columns (`Traits`), so a user whose rows are in memory is ranked without a
look at any row, and by the same code as what a store found.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from remora.actors.policies.bm25 import words
from remora.actors.policies.text_index import rarity
from remora.config import RecallConfig
from remora.languages.patterns import late
from remora.languages.personal import SINGLE, states
from remora.recall.days import of_days_named, time_stems, weigh_messages
from remora.recall.question import Question
from remora.recall.traits import Traits, asks, rank_order, speakers_named
from remora.storage.ports import Candidate, MemoryRow

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

    Places: TypeAlias = npt.NDArray[np.intp]
    Numbers: TypeAlias = npt.NDArray[np.float64]

_FEWEST_JUDGED = 30  # candidates below which their spread says nothing
_LEAST_TRUST = 0.2
_HEAD_WORDS = 4  # of a line: a date, and who says it
_AT_ONCE = 32  # ranked rows made at a time
_ROW_BYTES = 480  # of a row's object, its numbers and dates
_LISTS = ("turn", "window", "vector")
_NO_QUESTION = Question("")
_ANSWER = 1.5  # what all lists and the session together give at most


class Ranked(msgspec.Struct, frozen=True):
    """A row, its final score, and what each list gave it (scaled, before weighting)."""

    row: MemoryRow
    score: float
    parts: dict[str, float]


class ScoreList(msgspec.Struct, frozen=True):
    """The result of one search.

    Attributes:
        places: of the rows in their columns, each once; shape (n,).
        scores: their scores, in any unit, higher is better; shape (n,).
    """

    places: Places
    scores: Numbers


class Matches(msgspec.Struct, frozen=True):
    """The results of the searches of a question.

    Attributes:
        lists: by name, ``turn``, ``window`` and ``vector``; those that did not search are left out.
        sessions: how well each row's session matches, 0 to 1, shape (rows,); None if not searched.
        timely: which rows say when, shape (rows,); None if the question does not ask for it.
        dated: which rows are of the days that the question names, shape (rows,); None if it names
            none.
        grouped: the session of each row, by number, negative for none, shape (rows,); None if the
            question does not ask for several things.
        coverage: see `Ranking`.
        answers: what each row counts that is an answer whether or not a list found it, 0 to 1,
            shape (rows,); None if that is not known of any.
        identified: how much of the question's identifiers each row has, 0 to 1, the rare ones more;
            shape (rows,); None if no row has any.
        novelty: a factor for rows that say little but words of the question, up to 1, shape
            (rows,); None if nothing is asked, or it is not known.
        other_language: the question is in another language than the rows; then the vector list is
            trusted whether or not it agrees with the text lists.
    """

    lists: Mapping[str, ScoreList]
    sessions: Numbers | None = None
    timely: npt.NDArray[np.bool_] | None = None
    coverage: float = 1.0
    other_language: bool = False
    dated: npt.NDArray[np.bool_] | None = None
    grouped: npt.NDArray[np.integer] | None = None
    answers: Numbers | None = None
    identified: Numbers | None = None
    novelty: Numbers | None = None


class Ranking(msgspec.Struct, frozen=True):
    """Ranked rows, as columns; iterating makes `Ranked` objects on demand.

    Attributes:
        rows: the rows that places refer to; it may hold others.
        places: places of the ranked rows, best first; shape (n,).
        scores: final scores, shape (n,).
        parts: by list, the scaled score (0…1) that it gave; NaN where it did not find the row;
            shape (n,).
        row_bytes: size of the rows, where the ranking alone holds them.
        coverage: how much of the question, by the weight of its words, the message that has most of
            it and its neighbours have, 0 to 1; 1 where it is not known.
        mixed: whether some of the rows are messages, and others were recorded.
        several: whether the question asks for several things.
    """

    rows: Sequence[MemoryRow]
    places: Places
    scores: Numbers
    parts: dict[str, Numbers]
    row_bytes: int = 0
    coverage: float = 1.0
    mixed: bool = True
    several: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that holding it takes."""
        columns = (self.places, self.scores, *self.parts.values())
        return self.row_bytes + sum(column.nbytes for column in columns)

    def __iter__(self) -> Iterator[Ranked]:
        return self.iterate()

    def iterate(self, without: Collection[tuple[str, int]] = ()) -> Iterator[Ranked]:
        """The rows without messages of these sessions and numbers."""
        for start in range(0, len(self.places), _AT_ONCE):
            yield from self._slice(slice(start, start + _AT_ONCE), without)

    def _slice(self, here: slice, without: Collection[tuple[str, int]]) -> list[Ranked]:
        columns = [(name, part[here].tolist()) for name, part in self.parts.items()]
        pairs = zip(self.places[here].tolist(), self.scores[here].tolist(), strict=True)
        return [
            Ranked(
                row,
                score,
                # NaN, which says that the list did not find the row, does not equal itself
                {name: part[i] for name, part in columns if part[i] == part[i]},
            )
            for i, (place, score) in enumerate(pairs)
            if ((row := self.rows[place]).session, row.seq) not in without
        ]


def add_related(
    found: Sequence[Candidate],
    others: Sequence[Candidate],
    related: Mapping[str, str],
    share: float,
) -> list[Candidate]:
    """Return what a store found for a question, with what it found for related words.

    Of the words that are related to one word of the question, the average counts, and nothing in
    a message that has this word itself.

    Args:
        found: for the words of the question.
        others: for the related words.
        related: these, each with the word of the question; stems.
        share: of their scores, that counts.
    """
    merged = {one.row.id: one for one in found}
    for one in others:
        said = frozenset(words(one.row.turn))
        held = {other: stem for other, stem in related.items() if other in said}
        more = share * len({*held.values()} - said) / max(len(held), 1)
        if more:
            before = merged.get(one.row.id)
            scores = {} if before is None else before.scores
            sums = {name: scores.get(name, 0.0) + more * one.scores[name] for name in one.scores}
            row = one.row if before is None else before.row
            merged[row.id] = Candidate(row, {**scores, **sums})
    return list(merged.values())


def fuse(
    candidates: Sequence[Candidate],
    config: RecallConfig,
    question: Question = _NO_QUESTION,
    *,
    gain: float = 1.0,
) -> Ranking:
    """Rank what a store found; of equals, the more important comes first, then the earlier.

    Args:
        candidates: what the store's searches found.
        config: weights.
        question: what is asked; speakers that it names count for more.
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
    traits = Traits(rows)
    known = main_languages(rows, traits.findings.language)
    other_language = is_other_language(question.language, known)
    stems = frozenset(time_stems(question.text))
    said = [words(one.row.turn) for one in ordered] if stems or question.asks else []
    matches = Matches(
        lists,
        _score_sessions(rows, lists["turn"]) if config.session_weight else None,
        np.array([not stems.isdisjoint(one) for one in said], np.bool_) if stems else None,
        other_language=other_language,
        novelty=_judge_novelty(said, question.stems) if question.asks else None,
        grouped=_grouped(question, rows),
        identified=weigh_identifiers(
            [
                np.array([_holds(one.row.turn, stems) for one in ordered], np.bool_)
                for stems in question.identifiers
            ]
        ),
    )
    matches = with_answers(matches, question, rows, traits, np.ones(len(rows), np.bool_))
    ranking = rank(rows, traits, matches, config, question, gain=gain)
    return msgspec.structs.replace(ranking, row_bytes=size_of_rows(rows))


def rank(
    rows: Sequence[MemoryRow],
    traits: Traits,
    matches: Matches,
    config: RecallConfig,
    question: Question = _NO_QUESTION,
    *,
    gain: float = 1.0,
) -> Ranking:
    """Rank what searches found; see `fuse`.

    Args:
        rows: all rows that places refer to, in `rank_order`.
        traits: their traits.
        matches: what they found.
        config: weights.
        question: what was asked.
        gain: see `fuse`.
    """
    import numpy as np  # noqa: PLC0415

    lists = {name: matches.lists[name] for name in _LISTS if name in matches.lists}
    parts = {name: _scale(one, of_words=name != "vector") for name, one in lists.items()}
    base = _add_lists(lists, parts, len(rows), config, trusted=matches.other_language)
    found, asking = np.zeros((2, len(base)), np.bool_)
    for one in lists.values():
        found[one.places] = True
    if matches.answers is not None:
        base[:-1] += _ANSWER * matches.answers
        found[:-1] |= matches.answers > 0
    places = found.nonzero()[0]
    if config.floor:
        places = places[_matched(matches, len(base), config.floor)[places]]
    score = base[places]
    if matches.sessions is not None:
        score += config.session_weight * matches.sessions[places]
    people = traits.of_people
    # whose word counts
    told = (traits.said & ~traits.told if question.is_of_assistant else traits.told)[places]
    if not people:
        score[told] *= config.user_prior
    base[places] = score
    before, after = traits.replies_to[places], traits.after[places]
    asking[places] = traits.asks[places] | traits.calls[places]
    answers = asking[before]
    if not people:
        answers &= told  # an assistant's answer says little about its user
    bonus = np.where(answers, config.answer_bonus + config.neighbour_bonus, config.neighbour_bonus)
    near = np.maximum(bonus * base[before], config.neighbour_bonus * base[after])
    # A long message contains its evidence itself; but what a result is about, its call says.
    whole = traits.is_result[places] & answers
    score += near * np.where(
        whole, 1.0, np.minimum(config.neighbour_chars / traits.chars[places], 1.0)
    )
    for speaker in speakers_named(question.text, traits.speakers):
        score[traits.speaker[places] == traits.speakers[speaker]] *= config.speaker_prior
    if people:
        score *= 1.0 - config.question_penalty * traits.question_share[places].astype(np.float64)
    if matches.novelty is not None:
        score *= matches.novelty[places]
    if matches.identified is not None:
        score *= 1.0 + config.identifier_bonus * matches.identified[places]
    if matches.timely is not None:
        score[matches.timely[places]] *= config.time_bonus
    if matches.dated is not None:
        score[matches.dated[places]] *= config.date_bonus
    importance = traits.importance[places].astype(np.float64)
    if gain != 1.0:
        # An exponent keeps the factor positive, so the order is monotone for any weight.
        score *= gain ** (2 * np.minimum(np.maximum(importance, 0.0), 1.0) - 1)
    order = np.lexsort((-importance, -score))  # of equals, the first place stays first
    places, score = places[order], score[order]
    if matches.grouped is not None:
        factors = (1.0 - config.list_spread) ** np.arange(MOST_BETTER + 1)
        score *= factors[better_in_group(matches.grouped[places])]
        order = (-score).argsort(kind="stable")
        places, score = places[order], score[order]
    if matches.dated is None:
        first = [rows[place] for place in places[:DEPTH].tolist()]
        scores, stated = score[:DEPTH].tolist(), []
        if matches.answers is not None and question.matter in SINGLE:
            stated = (matches.answers[places[:DEPTH]] > 0).tolist()
        newest = order_newest_first(question.text, question.stems, first, scores, stated)
        if newest is not None:
            places[: len(newest)] = places[newest]
    columns = {}
    for name, part in parts.items():
        base.fill(np.nan)
        base[lists[name].places] = part
        columns[name] = base[places]
    return Ranking(
        rows,
        places,
        score,
        columns,
        coverage=matches.coverage,
        mixed=traits.mixed,
        several=matches.grouped is not None,
    )


def _matched(matches: Matches, rows: int, floor: float) -> npt.NDArray[np.bool_]:
    """Which rows have to do with the question.

    They or their neighbours have a word of it, they are of a day that it names, they are near it in
    meaning, or they answer it without any of that.
    """
    import numpy as np  # noqa: PLC0415

    matched = np.zeros(rows, np.bool_)
    for name, one in matches.lists.items():
        matched[one.places[one.scores >= floor if name == "vector" else one.scores > 0]] = True
    if matches.dated is not None:
        matched[: len(matches.dated)] |= matches.dated
    if matches.answers is not None:
        matched[: len(matches.answers)] |= matches.answers > 0
    return matched


def with_answers(
    matches: Matches,
    question: Question,
    rows: Sequence[MemoryRow],
    traits: Traits,
    eligible: npt.NDArray[np.bool_],
) -> Matches:
    """The matches with the rows that answer whatever their words are.

    They are of the days which the question names, or state what it asks of its asker.

    Args:
        matches: what was found.
        question: what is asked.
        rows: all rows that places refer to.
        traits: their traits.
        eligible: which rows are searched, shape (rows,).
    """
    if question.matter:
        stated = find_statements(question.matter, rows, eligible)
        matches = msgspec.structs.replace(matches, answers=stated)
    if not question.periods:
        return matches
    best = matches.lists["turn"]
    candidates = best.places[(-best.scores).argsort(kind="stable")]
    find = traits.findings.periods
    dated = of_days_named(question.periods, rows, traits.days, eligible, candidates, find)
    if question.of_days_alone and dated is not None:
        answers = weigh_messages(dated & eligible, traits.chars)
        matches = msgspec.structs.replace(matches, answers=answers)
    return msgspec.structs.replace(matches, dated=dated)


def weigh_identifiers(held: Sequence[npt.NDArray[np.bool_]]) -> Numbers | None:
    """See `Matches.identified`.

    Args:
        held: for each identifier, which rows have it, shape (rows,).
    """
    import numpy as np  # noqa: PLC0415

    if not held:
        return None
    counts = np.array([np.count_nonzero(one) for one in held])
    worth = np.where(counts > 0, rarity(counts, len(held[0])), 0.0)
    if not counts.any():
        return None
    whole = max(float(worth.sum()), float(rarity(1, len(held[0]))))
    shares = [share * one for one, share in zip(held, worth / whole, strict=True)]
    total: Numbers = np.add.reduce(shares)
    return total


def _score_sessions(rows: Sequence[MemoryRow], turns: ScoreList) -> Numbers:
    """How well the messages that were found of each row's session match together, 0 to 1.

    A row that is in no session has its own score.
    """
    import numpy as np  # noqa: PLC0415

    sums: Counter[str] = Counter()
    scores = np.zeros(len(rows), np.float64)
    for place, score in zip(turns.places.tolist(), turns.scores.tolist(), strict=True):
        sums[rows[place].session] += score
        scores[place] = score
    whole = np.array([sums[row.session] if row.session else 0.0 for row in rows], np.float64)
    whole /= whole.max(initial=0.0) or 1.0
    scores /= scores.max(initial=0.0) or 1.0
    outside = np.array([not row.session for row in rows], np.bool_)
    return np.where(outside, scores, whole)


def _judge_novelty(said: Sequence[Sequence[str]], asked: Sequence[str]) -> Numbers:
    """See `judge_novelty`, of the words of messages."""
    import numpy as np  # noqa: PLC0415

    own = frozenset(asked)
    lengths = np.array([len(one) for one in said], np.float64)
    repeated = np.array([sum(word in own for word in one) for one in said], np.float64)
    return judge_novelty(lengths, repeated)


def judge_novelty(words_said: Numbers, repeated: Numbers) -> Numbers:
    """See `Matches.novelty`: a message without another word loses half, with one a quarter.

    Args:
        words_said: how many words lines of messages have, shape (rows,).
        repeated: how many of these are words of the question, shape (rows,).
    """
    import numpy as np  # noqa: PLC0415

    novel = np.maximum(words_said - _HEAD_WORDS - repeated, 0.0)
    return (novel + 0.5) / (novel + 1.0)


def _holds(text: str, stems: Sequence[str]) -> bool:
    text = text.lower()
    return all(one in text for one in stems)


def _grouped(question: Question, rows: Sequence[MemoryRow]) -> npt.NDArray[np.integer] | None:
    """See `Matches.grouped`."""
    if not asks_for_several(question.text, question.language):
        return None
    import numpy as np  # noqa: PLC0415

    numbers = {"": -1}
    return np.array([numbers.setdefault(row.session, len(numbers)) for row in rows], np.intp)


def size_of_rows(rows: Sequence[MemoryRow]) -> int:
    """Bytes that rows take which do not hold the text that is searched."""
    return sum(map(size_of_row, rows))


def size_of_row(row: MemoryRow) -> int:
    """Bytes that a row takes which does not hold the text that is searched."""
    return sys.getsizeof(row.content) + sys.getsizeof(row.id) + _ROW_BYTES


def _add_lists(
    lists: Mapping[str, ScoreList],
    parts: Mapping[str, Numbers],
    rows: int,
    config: RecallConfig,
    *,
    trusted: bool,
) -> Numbers:
    """The weighted sum of the lists' scaled scores, by row.

    One longer than the rows: the last place stands for a neighbour that does not exist. If not
    `trusted`, the vector list loses weight where it does not agree with the text lists.
    """
    import numpy as np  # noqa: PLC0415

    weights = {
        "turn": config.turn_weight,
        "window": config.window_weight,
        "vector": config.vector_weight,
    }
    base = np.zeros(rows + 1)
    for name, part in parts.items():
        places, weight = lists[name].places, weights[name]
        if name == "vector" and not trusted:
            weight *= _trust(part, base[places], config)
        base[places] += weight * part
    return base


def _scale(found: ScoreList, *, of_words: bool) -> Numbers:
    """Min-max over what the list found; of few found by words, the worst is not worth nothing."""
    import numpy as np  # noqa: PLC0415

    scores = found.scores
    if not len(scores):
        return scores
    few = of_words and len(scores) < _FEWEST_JUDGED
    low = 0.0 if few else np.minimum.reduce(scores)
    high = np.maximum.reduce(scores)
    return (scores - low) / (high - low) if high > low else np.ones(len(scores))


def _trust(near: Numbers, words: Numbers, config: RecallConfig) -> float:
    """The trust in the vector list: its correlation with the text lists over its candidates."""
    import numpy as np  # noqa: PLC0415

    if not config.vector_agreement or len(near) < _FEWEST_JUDGED:
        return 1.0
    near = near - np.add.reduce(near) / len(near)
    words = words - np.add.reduce(words) / len(words)
    spread = math.sqrt((near @ near) * (words @ words))
    if not spread:  # no words to go by
        return 1.0
    return min(max(float(near @ words) / spread / config.vector_agreement, _LEAST_TRUST), 1.0)


# -- statements that answer a question about its asker which has none of their words ---------------
#
# See `remora.languages.personal`.

_MOST_READ = 5_000  # messages, the newest, in 15 ms
_OLDEST = 0.8  # what the oldest statement counts: the newest is true


def find_statements(
    matter: str, rows: Sequence[MemoryRow], eligible: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64] | None:
    """Return what each row counts as a statement of a matter, 0.8 to 1, newer ones more.

    Shape (rows,).

    None if there is none. Only what users themselves said counts.

    Args:
        matter: see `remora.languages.personal.find_matter`.
        rows: in any order.
        eligible: which rows are searched, shape (rows,).
    """
    import numpy as np  # noqa: PLC0415

    is_statement = states(matter)
    mine = [place for place in eligible.nonzero()[0].tolist() if rows[place].role == "user"]
    mine.sort(key=lambda place: rows[place].created_us)
    found = [place for place in mine[-_MOST_READ:] if is_statement(rows[place].content)]
    if not found:
        return None
    counts = np.zeros(len(rows))
    counts[found] = np.linspace(_OLDEST, 1.0, len(found)) if len(found) > 1 else 1.0
    return counts


# -- questions that ask for several things: their answers are spread over sessions -----------------
#
# "Which books have I read?", "How many …", "all the …": what is said on one day about one of these
# things matches best several times over, and hides the others. So a message counts less for each
# better one of its session.

MOST_BETTER = 7
"""Messages of a session that count against another, at most: what is left is never nothing."""

_MOST_CHARS = 500  # of a question, whose patterns take 3 ms at most
_SMALL = 1 << 15
_EN_VERB = r"(?:do|does|did|is|are|was|were|has|have|had|can|could|would|will|should|might)\b"
_EN_SINGULAR = (  # words with an s at their end
    r"(?:\w+ss|\w*(?:news|series|gas|bus|status|process|business|focus|always|this|its|his|yes|us"
    r"|tennis|lens|bonus|virus|campus|chaos|christmas))\b"
)
_ASKED = {
    "en": (
        r"\bhow many\b|\b(?:what|which) (?:kinds|types|sorts)\b|\b(?:what|who|which) (?:are|were)\b"
        r"|\b(?:list|name|tell me) (?:me )?(?:all|every|each|the|my)\b"
        r"|\b(?:all|every one|each) of\b|\ball the\b|\bwhat all\b|\ball\W*$|\bboth\b"
        # a noun in the plural: "which old books did"
        rf"|\b(?:what|which|whose) (?:(?!{_EN_VERB})[\w'\u2019-]+ ){{0,4}}?"
        rf"(?!{_EN_SINGULAR}|{_EN_VERB})(?:[a-z][a-z-]+[^\s\W]s|people|children|men|women) "
        rf"{_EN_VERB}"
        # the perfect asks for all until now: "where has she been"
        r"|\b(?:what|which|where|who|whom)\b"
        r"(?:(?!\b(?:do|does|did|is|are|was|were)\b).){0,60}?\b(?:has|have)\b"
    ),
    "de": (
        r"\bwie ?viele\b|\balle[nrs]?\b|\bjede[nrs]?\b"
        r"|\b(?:welche[nr]?|was für) (?:\w+e[nr]? )?\w+(?:en|er|e|s)\b"
    ),
    "fr": r"\bcombien de\b(?! temps)|\b(?:les)?quel(?:le)?s\b|\btou(?:s|tes)\b|\bchacune?\b",
    "es": (
        r"\bcu[aá]nt[oa]s\b|\bcu[aá]les\b|\btod[oa]s\b"
        r"|\bqu[eé] (?:\w+ )?(?!(?:eres|más|somos|estás|tienes|haces)\b)\w{3,}s\b"
    ),
    "ja": "いくつ|何[人回個本冊枚匹台度種件軒か]|すべて|全て|全部|どんな|一覧|どれだけ",
    "zh": "多少|几[个次本位只条种家部]|幾[個次本位隻條種家部]|哪些|所有|全部|一共|列出",
}


def asks_for_several(question: str, language: str = "") -> bool:
    """Return whether a question asks for several things, by its wording; a guess.

    It looks at the first 500 characters.

    Args:
        question: in English, German, French, Spanish, Japanese or Chinese.
        language: its language, as an ISO 639-1 code, if it is known.
    """
    question = " ".join(question[:_MOST_CHARS].split())
    return any(pattern.search(question) is not None for pattern in _asked(language))


@cache
def _asked(language: str) -> Sequence[re.Pattern[str]]:
    wanted = [_ASKED[language]] if language in _ASKED else _ASKED.values()
    return [re.compile(one, re.IGNORECASE) for one in wanted]


def better_in_group(groups: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """How many before each are of the same group, at most 7; of those in none, 0; shape (n,).

    Args:
        groups: the group of each, negative for none; shape (n,).
    """
    import numpy as np  # noqa: PLC0415

    if len(groups) and groups.max() < _SMALL:
        groups = groups.astype(np.int16)  # sorted in half the time
    order = groups.argsort(kind="stable")
    ordered = groups[order]
    begins = np.ones(len(groups), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    places = np.arange(len(groups))
    earlier = np.empty(len(groups), np.intp)
    earlier[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    earlier[groups < 0] = 0
    return np.minimum(earlier, MOST_BETTER)


# -- the languages of a user's rows, and questions in another one ----------------------------------
#
# Then few words are shared, and those by chance: nothing can be told from how well they match, and
# the vectors are what finds the answer.

_LOOKED_AT = 64  # rows, in 0.3 ms
_LEAST_SHARE = 0.1  # of the rows that show a language


def main_languages(rows: Sequence[MemoryRow], find: Callable[[MemoryRow], str]) -> frozenset[str]:
    """The languages that many of the rows are in, as ISO 639-1 codes; it looks at 64 of them.

    Args:
        rows: the rows.
        find: the language of one; empty if it shows none.
    """
    step = max(len(rows) // _LOOKED_AT, 1)
    counts = Counter(map(find, rows[::step][:_LOOKED_AT]))
    del counts[""]
    least = _LEAST_SHARE * counts.total()
    return frozenset(language for language, count in counts.items() if count >= least)


def is_other_language(language: str, known: Collection[str]) -> bool:
    """Return whether a question's language is none of these; not if either is unknown."""
    return bool(language and known) and language not in known


# -- of statements about one matter the newest comes first: an older one may no longer be true -----
#
# Two messages are about one matter if they have the same words of the question and are alike, or if
# the newer says itself that something changed. A later message that only speaks of the same subject
# is none: it would take the place of what answers. What was found is reordered among the first few
# only, and nothing else: both stay found.

DEPTH = 10
"""So many of the best are compared."""

# Of the older one's: what is much worse is about something else.
_LEAST_SCORE, _LEAST_SCORE_OF_CHANGE = 0.6, 0.3
_ALIKE, _ALIKE_RESULT = 0.4, 0.7  # of their words; results of one tool have the same keys
_COMPARED_CHARS = 400
_OF_CORRECTION = late(
    r"(?i)^\W*(?:(?:small |quick )?correction|update|actually|scratch that|change of plans?"
    r"|sorry,? i meant|i was wrong|korrektur|kleine korrektur|correccion|corrección)\b"
    r"|\b(?:my|our|the|a|got) new (?:number|address|phone|email|password|date|deadline|plan|name"
    r"|job|boss)\b(?! (?:for|to|of)\b)|\bthe old (?:one|number|address)\b"
)
_OF_CHANGE = late(  # in small letters, with one boundary before all: a quarter of the time
    r"\b(?:no longer\b|not\b.{1,30}\banymore\b"
    r"|(?:has|have|was|were|got|is|been) (?:been |now )?(?:moved|changed|rescheduled|postponed"
    r"|replaced|cancel+ed|pushed|increased|decreased|raised|lowered) (?:to|by|from)\b"
    r"|(?:changed|switched) (?:it |this |that )?(?:to|from)\b"
    r"|(?:i|we|they|he|she)(?:'ve|'d| have| had| has)?(?: just| finally| now| recently| since)? "
    r"(?:upgraded|downgraded|switched|migrated|cancel+ed|quit|replaced|sold|swapped|renamed"
    r"|rescheduled|postponed|pushed back)\b"
    r"|nicht mehr\b|jetzt doch\b|ne\b.{1,20}\bplus\b|ya no\b)"
    r"|もう.{1,12}ない|に変わ|に変更|不再|改成|改为|改為|换成|換成"
)
_OF_PAST = late(
    r"(?i)\b(?:first|original(?:ly)?|initial(?:ly)?|used to|before|previous(?:ly)?|old|earlier"
    r"|zuerst|ursprünglich|früher|vorher|avant|d'abord|auparavant|antes"
    r"|primero|anterior)\b|最初|以前|前は|原来|原來|之前|一开始"
)


def order_newest_first(
    question: str,
    stems: Sequence[str],
    rows: Sequence[MemoryRow],
    scores: Sequence[float],
    stated: Sequence[bool] = (),
) -> list[int] | None:
    """The places of the first rows in their new order; None if nothing changes.

    Args:
        question: what is asked; one that asks of the past changes nothing.
        stems: of its words.
        rows: the best, best first.
        scores: theirs.
        stated: which of them state what is asked of their user, of which one statement holds.
    """
    if len(rows) < 2 or _OF_PAST().search(question) is not None:
        return None
    said = [_Said(row, frozenset(stems)) for row in rows]
    order = list(range(len(rows)))
    places = [place for place, states in enumerate(stated) if states]
    newest = sorted(places, key=lambda place: -rows[place].created_us)
    for place, row in zip(places, newest, strict=True):
        order[place] = row
    for here in range(len(order)):
        for there in range(here + 1, len(order)):
            older, newer = order[here], order[there]
            one, other = rows[older], rows[newer]
            if (
                other.created_us > one.created_us
                and scores[older] > 0
                and other.role == one.role != "assistant"
                and (other.speaker, other.memory_type) == (one.speaker, one.memory_type)
                and _takes_place(said[older], said[newer], scores[newer] / scores[older])
            ):
                order.insert(here, order.pop(there))
    return order if order != sorted(order) else None


class _Said:
    """The features of a message that are compared, found when they are asked for."""

    def __init__(self, row: MemoryRow, asked: frozenset[str]) -> None:
        self._text = row.content[:_COMPARED_CHARS]
        self._asked = asked
        self.role = row.role

    @cached_property
    def words(self) -> frozenset[str]:
        """The stems of its words."""
        return frozenset(words(self._text))

    @cached_property
    def of_question(self) -> frozenset[str]:
        """Return those that the question has, too."""
        return self.words & self._asked

    @property
    def told(self) -> frozenset[str]:
        """Return those that the question has not."""
        return self.words - self._asked

    @cached_property
    def corrects(self) -> bool:
        """Return whether it says that it corrects what was said."""
        return self._tells and _OF_CORRECTION().search(self._text) is not None

    @cached_property
    def changes(self) -> bool:
        """Return whether it says that something changed."""
        return self._tells and _OF_CHANGE().search(self._text.lower()) is not None

    @property
    def _tells(self) -> bool:
        return self.role == "user" and not asks(self._text)


def _takes_place(older: _Said, newer: _Said, share: float) -> bool:
    """Return whether a message, with so much of the older one's score, is about the same matter."""
    if share < _LEAST_SCORE_OF_CHANGE or not newer.of_question or older.words == newer.words:
        return False
    if share >= _LEAST_SCORE and older.of_question <= newer.of_question:
        alike = len(older.words & newer.words) / len(older.words | newer.words)
        if alike >= (_ALIKE_RESULT if newer.role == "tool" else _ALIKE):
            return True
    if 2 * len(newer.of_question) < len(older.of_question):
        return False
    # What no longer holds is named: "I cancelled FitHouse" is no news of the dentist.
    return newer.corrects or (newer.changes and not older.told.isdisjoint(newer.told))
