"""Of statements about one matter the newest comes first: an older one may no longer be true.

Two messages are about one matter if they have the same words of the question and are alike, or if
the newer says itself that something changed. A later message that only speaks of the same subject
is none: it would take the place of what answers. What was found is reordered among the first few
only, and nothing else: both stay found.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from remora.actors.policies.bm25 import words
from remora.languages.patterns import late
from remora.recall.traits import asks
from remora.storage.ports import MemoryRow

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
_OF_CHANGE = late(
    r"(?i)\bno longer\b|\bnot\b.{1,30}\banymore\b"
    r"|\b(?:has|have|was|were|got|is|been) (?:been |now )?(?:moved|changed|rescheduled|postponed"
    r"|replaced|cancel+ed|pushed|increased|decreased|raised|lowered) (?:to|by|from)\b"
    r"|\b(?:changed|switched) (?:it |this |that )?(?:to|from)\b"
    r"|\b(?:i|we|they|he|she)(?:'ve|'d| have| had| has)?(?: just| finally| now| recently| since)? "
    r"(?:upgraded|downgraded|switched|migrated|cancel+ed|quit|replaced|sold|swapped|renamed"
    r"|rescheduled|postponed|pushed back)\b"
    r"|\bnicht mehr\b|\bjetzt doch\b|\bne\b.{1,20}\bplus\b|\bya no\b|もう.{1,12}ない|に変わ|に変更"
    r"|不再|改成|改为|改為|换成|換成"
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
        return self._tells and _OF_CHANGE().search(self._text) is not None

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
