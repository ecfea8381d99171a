"""What a ranking needs to know of messages: questions, speakers, neighbours."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from remora.actors.policies.bm25 import words
from remora.recall.days import day_of
from remora.storage.ports import MemoryRow

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

__all__ = ["Traits", "asks", "question_share", "rank_order", "speakers_named"]

_MARKS = "?\uff1f\u061f"  # of a question: Latin, Chinese and Japanese, Arabic
_SENTENCE = re.compile(rf"([^.!\u3002\uff01\n{_MARKS}]+)([.!\u3002\uff01{_MARKS}]*)")
_ASKS = re.compile(rf"[{_MARKS}][^\w{_MARKS}]*(?:[\[(][^\[\]()]*[\])])?[^\w{_MARKS}]*$")
_MARK = re.compile(f"[{_MARKS}]")
_END_CHARS = 200  # of a message, in which its last question is looked for
_JUDGED_CHARS = 1_000  # of a message, for its share of questions: more is seldom a question

_COLUMNS = (
    "asks",
    "question_share",
    "chars",
    "importance",
    "by_user",
    "unnamed_assistant",
    "days",
    "said",
)


class Traits:
    """What the ranking needs to know of rows, in columns.

    Args:
        rows: in `rank_order`, each once.
        earlier: the traits of earlier rows: questions are not looked for again.
        kept: for each row its place in `earlier` if it is the same, or -1; shape (rows,).
    """

    def __init__(
        self,
        rows: Sequence[MemoryRow],
        earlier: Traits | None = None,
        kept: npt.NDArray[np.int64] | None = None,
    ) -> None:
        import numpy as np  # noqa: PLC0415

        count = len(rows)
        place_of = {_position(row): place for place, row in enumerate(rows)}
        # a neighbour that is not there has the place after the last
        self.before = np.fromiter(
            (place_of.get(_position(row, -1), count) for row in rows), np.int32, count
        )
        self.after = np.fromiter(
            (place_of.get(_position(row, 1), count) for row in rows), np.int32, count
        )
        self.asks = np.zeros(count, np.bool_)
        self.question_share = np.zeros(count, np.float32)
        if earlier is None or kept is None:
            kept = np.full(count, -1)
        else:
            same = kept >= 0
            self.asks[same] = earlier.asks[kept[same]]
            self.question_share[same] = earlier.question_share[kept[same]]
        for place in np.flatnonzero(kept < 0).tolist():
            self.asks[place] = asks(rows[place].content)
            self.question_share[place] = question_share(rows[place].content)
        self.chars = np.fromiter((max(len(row.content), 1) for row in rows), np.int32, count)
        self.importance = np.fromiter((row.importance for row in rows), np.float32, count)
        self.days = np.fromiter((day_of(row.created_us) for row in rows), np.int32, count)
        self.by_user = np.fromiter((row.role == "user" for row in rows), np.bool_, count)
        self.unnamed_assistant = np.fromiter(
            (row.role == "assistant" and not row.speaker for row in rows), np.bool_, count
        )
        self.said = np.fromiter((row.memory_type == "message" for row in rows), np.bool_, count)
        self.speakers: dict[str, int] = {}
        self.speaker = np.fromiter(
            (self.speakers.setdefault(row.speaker, len(self.speakers)) for row in rows),
            np.int32,
            count,
        )

    def joined(self, others: Traits, follow: Sequence[tuple[int, int]]) -> Traits:
        """The traits of these rows and, behind them, of others.

        Args:
            others: the traits of the other rows.
            follow: pairs of places, in the joined columns, of messages of which the second follows
                the first in their session, one of them here and one in `others`.
        """
        import numpy as np  # noqa: PLC0415

        count, more = len(self.before), len(others.before)
        both = Traits.__new__(Traits)
        for name in _COLUMNS:
            setattr(both, name, np.concatenate([getattr(self, name), getattr(others, name)]))
        for name in ("before", "after"):
            mine, theirs = getattr(self, name), getattr(others, name)
            near = [np.where(mine == count, more, mine - count), theirs]
            setattr(both, name, (np.concatenate(near) + count).astype(np.int32))
        for first, second in follow:
            both.after[first], both.before[second] = second, first
        both.speakers = dict(self.speakers)
        numbers = [both.speakers.setdefault(name, len(both.speakers)) for name in others.speakers]
        renumbered = np.array(numbers, np.int32)[others.speaker]
        both.speaker = np.concatenate([self.speaker, renumbered])
        return both

    @cached_property
    def of_people(self) -> bool:
        """Whether people speak with each other, and not a user with an assistant.

        They have names, and so has each of those who write in the assistant's role.
        """
        return any(self.speakers) and not self.unnamed_assistant.any()

    @cached_property
    def mixed(self) -> bool:
        """Whether some rows are messages, and others were recorded."""
        return bool(self.said.any() and not self.said.all())

    @cached_property
    def words_of_names(self) -> frozenset[str]:
        """The words of the speakers' names, in lower case."""
        parts = re.findall(r"\w+", " ".join(self.speakers))
        return frozenset([part.casefold() for part in parts])

    @cached_property
    def stems_of_names(self) -> frozenset[str]:
        """The stems of the speakers' names."""
        return frozenset(words(" ".join(self.speakers)))

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        columns = [getattr(self, name) for name in (*_COLUMNS, "before", "after", "speaker")]
        return sum(column.nbytes for column in columns)


def rank_order(row: MemoryRow) -> tuple[int, str, int, str]:
    """The order of rows before they are ranked: of equals, the earlier message comes first."""
    return (row.created_us, row.session, row.seq, row.id)


def speakers_named(query: str, speakers: Collection[str]) -> set[str]:
    """The speakers that a query names, by any part of the name.

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
        # Scripts without blanks between words: a name is found anywhere in the text.
        if any(
            n.casefold() in capitals or n in words or (not n.isascii() and n in query)
            for n in names
        ):
            found.add(speaker)
    return found


def question_share(text: str) -> float:
    """The share of a message that is questions, 0 to 1."""
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
    """Whether a message ends in a question; a smiley or words in brackets may follow."""
    return _ASKS.search(text[-_END_CHARS:]) is not None


def _position(row: MemoryRow, step: int = 0) -> tuple[str, int]:
    """The position of a row, or of its neighbour. Only messages have neighbours."""
    return (row.session, row.seq + step) if row.seq > 0 else (row.id, step - 1)
