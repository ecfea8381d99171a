"""From several lists of candidates to one ranking.

Each list is min-max scaled over its candidates, weighted and added; then each message gains a share of its best neighbour's
score, the less the longer it is itself, since the evidence often stands beside the words that match; then who spoke and what
kind of message it is are weighed:

* who is named in the query is more often whom its answer is by than whom it is about;
* a question is seldom an answer, and what follows it often is;
* where speakers have no names, what users say is asked for more often than what assistants say.

A vector list that has nothing in common with the text lists is not trusted much: an embedder that is broken, or of another
language, would otherwise push good messages down. Reciprocal rank fusion, LanceDB's default, was worse than the better of its own
lists on every set; a prior for recency hurt at every weight. What else was tried is in docs/benchmarks.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import sqrt

import msgspec

from remora.config import RecallConfig
from remora.storage.ports import Candidate, MemoryRow

__all__ = ["Ranked", "asks", "fuse", "question_share", "speakers_named"]

_MARKS = "?\uff1f\u061f"  # of a question: Latin, Chinese and Japanese, Arabic
_SENTENCE = re.compile(rf"([^.!\u3002\uff01\n{_MARKS}]+)([.!\u3002\uff01{_MARKS}]*)")
_ASKS = re.compile(rf"[{_MARKS}][^\w{_MARKS}]*(?:[\[(][^\[\]()]*[\])])?[^\w{_MARKS}]*$")
_MARK = re.compile(f"[{_MARKS}]")
_END_CHARS = 200  # of a message, where its last question is looked for
_JUDGED_CHARS = 1_000  # of a message, for its share of questions: what is longer is mostly no question
_FEWEST_JUDGED = 30  # candidates from which on two lists can be said to agree or not
_LEAST_TRUST = 0.2


class Ranked(msgspec.Struct, frozen=True):
    """A row, its final score, and what each list gave it (scaled, before weighting)."""

    row: MemoryRow
    score: float
    parts: dict[str, float]


def fuse(candidates: Sequence[Candidate], config: RecallConfig, query: str = "") -> list[Ranked]:
    """Rank candidates, best first; ties go to the earlier message.

    Args:
        candidates: what the searches found.
        config: weights.
        query: what was asked; speakers that it names count for more.
    """
    weights = {"turn": config.turn_weight, "window": config.window_weight, "vector": config.vector_weight}
    parts = _scaled(candidates, tuple(weights))
    weights["vector"] *= _trust(parts, config)
    named = speakers_named(query, {candidate.row.speaker for candidate in candidates})
    base = {}
    for part, candidate in zip(parts, candidates, strict=True):
        row = candidate.row
        score = sum(weights[name] * value for name, value in part.items())
        # Where speakers have names, both are people, and who they are says nothing about who knows.
        base[_place(row)] = score * (config.user_prior if row.role == "user" and not row.speaker else 1.0)
    asking = {_place(c.row) for c in candidates if asks(c.row.content)}
    ranked = []
    for part, candidate in zip(parts, candidates, strict=True):
        row = candidate.row
        session, seq = _place(row)
        before, after = (session, seq - 1), (session, seq + 1)
        # An assistant's answer says little about its user.
        answers = before in asking and (row.speaker or row.role == "user")
        bonus = config.neighbour_bonus + (config.answer_bonus if answers else 0.0)
        near = max(bonus * base.get(before, 0.0), config.neighbour_bonus * base.get(after, 0.0))
        # A long message holds its evidence itself.
        score = base[session, seq] + near * min(1.0, config.neighbour_chars / max(len(row.content), 1))
        score *= config.speaker_prior if row.speaker in named else 1.0
        score *= 1 - config.question_penalty * question_share(row.content)
        ranked.append(Ranked(row, score, part))
    ranked.sort(key=lambda one: (-one.score, one.row.created_us, one.row.session, one.row.seq))
    return ranked


def _scaled(candidates: Sequence[Candidate], names: Sequence[str]) -> list[dict[str, float]]:
    parts: list[dict[str, float]] = [{} for _ in candidates]
    for name in names:
        present = [c.scores[name] for c in candidates if name in c.scores]
        if not present:
            continue
        low, high = min(present), max(present)
        spread = high - low
        for part, candidate in zip(parts, candidates, strict=True):
            if name in candidate.scores:
                part[name] = (candidate.scores[name] - low) / spread if spread else 1.0
    return parts


def _trust(parts: Sequence[dict[str, float]], config: RecallConfig) -> float:
    """How far the vector list is believed: by its correlation with the text lists, over its own candidates."""
    if not config.vector_agreement:
        return 1.0
    pairs = [
        (part["vector"], config.turn_weight * part.get("turn", 0.0) + config.window_weight * part.get("window", 0.0))
        for part in parts
        if "vector" in part
    ]
    if len(pairs) < _FEWEST_JUDGED:
        return 1.0
    count = len(pairs)
    mean_x, mean_y = sum(x for x, _ in pairs) / count, sum(y for _, y in pairs) / count
    var_x, var_y = sum((x - mean_x) ** 2 for x, _ in pairs), sum((y - mean_y) ** 2 for _, y in pairs)
    if not var_x or not var_y:  # no words to go by
        return 1.0
    correlation = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / sqrt(var_x * var_y)
    return min(max(correlation / config.vector_agreement, _LEAST_TRUST), 1.0)


def speakers_named(query: str, speakers: set[str]) -> set[str]:
    """Which of these speakers a query names, by any part of the name.

    "When will Ann call?" names Ann and not Will; in a query without capitals, both might be meant.
    """
    words = set(re.findall(r"\w+", query))
    plain = query == query.lower()
    capitals = {word.casefold() for word in words if plain or word != word.lower()}
    found = set()
    for speaker in speakers:
        names = [name for name in re.split(r"[\W_]+", speaker) if len(name) > 1 and not name.isdigit()]
        # Scripts without blanks between words: a name is found wherever it stands.
        if any(n.casefold() in capitals or n in words or (not n.isascii() and n in query) for n in names):
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


def _place(row: MemoryRow) -> tuple[str, int]:
    """Where a row stands: a message in its session, anything else alone, however many share its session."""
    return (row.session, row.seq) if row.seq > 0 else (row.id, -1)
