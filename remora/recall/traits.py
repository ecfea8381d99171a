"""The traits of messages that a ranking needs: questions, speakers, neighbours."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from remora.actors.policies.bm25 import words
from remora.languages.dates import Period, find_periods
from remora.languages.detection import language_of
from remora.recall.days import day_of
from remora.storage.ports import MemoryRow

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

_MARKS = "?\uff1f\u061f"  # of a question: Latin, Chinese and Japanese, Arabic
_SENTENCE = re.compile(rf"([^.!\u3002\uff01\n{_MARKS}]+)([.!\u3002\uff01{_MARKS}]*)")
_ASKS = re.compile(rf"[{_MARKS}][^\w{_MARKS}]*(?:[\[(][^\[\]()]*[\])])?[^\w{_MARKS}]*$")
_MARK = re.compile(f"[{_MARKS}]")
_END_CHARS = 200  # of a message, in which its last question is looked for
_JUDGED_CHARS = 1_000  # of a message, for its share of questions: more is seldom a question

_MOST_FOUND = 4_096  # texts of which it is known what they show: 400 kB

_TOLD_BY = frozenset({"user", "tool"})
_CALLS = "[calls "  # as `remora.messages.text.plain_text` writes a tool call

_MOST_PARALLEL = 8  # times that what is before results is doubled: more than calls of a message

_COLUMNS: Mapping[str, tuple[str, Callable[[MemoryRow], float]]] = {
    "asks": ("bool", lambda row: asks(row.content)),
    "question_share": ("float32", lambda row: question_share(row.content)),
    "chars": ("int32", lambda row: max(len(row.content), 1)),
    "importance": ("float32", lambda row: row.importance),
    "days": ("int32", lambda row: day_of(row.created_us)),
    "told": ("bool", lambda row: row.role in _TOLD_BY),
    "is_result": ("bool", lambda row: row.role == "tool"),
    "calls": ("bool", lambda row: row.role == "assistant" and _CALLS in row.content),
    "unnamed_assistant": ("bool", lambda row: row.role == "assistant" and not row.speaker),
    "said": ("bool", lambda row: row.memory_type == "message"),
    "seqs": ("int64", lambda row: row.seq),
}


class TextFindings:
    """Findings in the texts of a user's rows, by hashes: it holds no text."""

    def __init__(self) -> None:
        self._languages: dict[int, str] = {}
        self._periods: dict[int, Sequence[Period]] = {}

    def language(self, row: MemoryRow) -> str:
        """The language of a row; see `remora.languages.detection.language_of`."""
        key = hash(row.content)
        found = self._languages.get(key)
        if found is None:
            if len(self._languages) == _MOST_FOUND:
                self._languages = {}
            found = self._languages[key] = language_of(row.content)
        return found

    def periods(self, row: MemoryRow) -> Sequence[Period]:
        """The days that a row speaks of; see `remora.languages.dates.find_periods`."""
        day = day_of(row.created_us)
        key = hash((row.content, day))
        found = self._periods.get(key)
        if found is None:
            if len(self._periods) == _MOST_FOUND:
                self._periods = {}
            found = self._periods[key] = tuple(find_periods(row.content, day))
        return found


class Kept(msgspec.Struct, frozen=True):
    """Which rows are those of an earlier index.

    Attributes:
        new: places of the rows that it has not; ascending; shape (new,).
        old: places of the others; ascending; shape (old,).
        before: the places that these have in it; shape (old,).
    """

    new: npt.NDArray[np.intp]
    old: npt.NDArray[np.intp]
    before: npt.NDArray[np.intp]

    def take(
        self,
        rows: Sequence[MemoryRow],
        dtype: str,
        make: Callable[[MemoryRow], float],
        earlier: Any,
    ) -> npt.NDArray[Any]:
        """A column of the rows: of those that are new it is made, the others' is taken over.

        Args:
            rows: all rows.
            dtype: of the column.
            make: the value of a row.
            earlier: the column of the earlier index; None without one.
        """
        import numpy as np  # noqa: PLC0415

        column = np.empty(len(rows), dtype)
        if earlier is not None:
            column[self.old] = earlier[self.before]
        column[self.new] = [make(rows[place]) for place in self.new.tolist()]
        return column


def _none_kept(count: int) -> Kept:
    """All of so many rows are new."""
    import numpy as np  # noqa: PLC0415

    nothing = np.zeros(0, np.intp)
    return Kept(np.arange(count), nothing, nothing)


class NameColumn:
    """A column of names, as numbers.

    Args:
        rows: the rows.
        name: the field that has the names.
        kept: which rows are those of an earlier column.
        earlier: that column; None without one.

    Attributes:
        numbers: the number of each name that a row has.
        column: the number of each row's name; shape (rows,).
    """

    def __init__(
        self, rows: Sequence[MemoryRow], name: str, kept: Kept, earlier: NameColumn | None
    ) -> None:
        import numpy as np  # noqa: PLC0415

        numbers = {} if earlier is None else dict(earlier.numbers)
        self.numbers: dict[str, int] = numbers

        def number(row: MemoryRow) -> int:
            return numbers.setdefault(getattr(row, name), len(numbers))

        before = None if earlier is None else earlier.column
        self.column: npt.NDArray[np.int32] = kept.take(rows, "int32", number, before)
        used = np.bincount(self.column, minlength=len(numbers)) > 0
        if not used.all():  # no row has such a name any more
            renumbered = (np.cumsum(used) - 1).astype(np.int32)
            self.column = renumbered[self.column]
            pairs = zip(numbers.items(), used.tolist(), renumbered.tolist(), strict=True)
            self.numbers = {one: new for (one, _), there, new in pairs if there}

    def numbered_by(self, numbers: dict[str, int]) -> npt.NDArray[np.int32]:
        """The column with the numbers that names have in several columns; it adds new names."""
        import numpy as np  # noqa: PLC0415

        if not numbers:
            numbers.update(self.numbers)
            return self.column
        common = [numbers.setdefault(name, len(numbers)) for name in self.numbers]
        return np.array(common, np.int32)[self.column]

    def is_any_of(self, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which rows have one of these names."""
        import numpy as np  # noqa: PLC0415

        wanted = [self.numbers[name] for name in names if name in self.numbers]
        if len(wanted) == 1:
            return np.asarray(self.column == wanted[0])
        return np.isin(self.column, wanted)


class Traits:
    """The traits of rows that the ranking needs, in columns.

    Args:
        rows: in `rank_order`, each once.
        earlier: the traits of earlier rows.
        kept: which rows these are; None if all are new.

    Attributes:
        findings: what texts show.
        sessions: the sessions of the rows.
        named: their speakers.
        before: the place of the message before each message, and after the last place where there
            is none; shape (rows,).
        after: the same of the message after it.
        speakers: the number of each speaker's name.
        speaker: of each row, by number; shape (rows,).
    """

    asks: npt.NDArray[np.bool_]
    question_share: npt.NDArray[np.float32]
    chars: npt.NDArray[np.int32]
    importance: npt.NDArray[np.float32]
    days: npt.NDArray[np.int32]
    told: npt.NDArray[np.bool_]
    is_result: npt.NDArray[np.bool_]
    calls: npt.NDArray[np.bool_]
    unnamed_assistant: npt.NDArray[np.bool_]
    said: npt.NDArray[np.bool_]
    seqs: npt.NDArray[np.int64]

    def __init__(
        self,
        rows: Sequence[MemoryRow],
        earlier: Traits | None = None,
        kept: Kept | None = None,
    ) -> None:
        if earlier is None or kept is None:
            kept = _none_kept(len(rows))
        self.findings: TextFindings = TextFindings() if earlier is None else earlier.findings
        for name, (dtype, make) in _COLUMNS.items():
            setattr(self, name, kept.take(rows, dtype, make, getattr(earlier, name, None)))
        self.sessions = NameColumn(rows, "session", kept, getattr(earlier, "sessions", None))
        self.named = NameColumn(rows, "speaker", kept, getattr(earlier, "named", None))
        self.speakers, self.speaker = self.named.numbers, self.named.column
        self.before, self.after = _neighbours(self.sessions.column, self.seqs)

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
        numbers = dict(self.speakers)
        renumbered = others.named.numbered_by(numbers)
        both.speakers = numbers
        both.speaker = np.concatenate([self.speaker, renumbered])
        both.findings = self.findings
        return both

    @cached_property
    def replies_to(self) -> npt.NDArray[np.int32]:
        """As `before`, but before each result of a message's calls is that message."""
        import numpy as np  # noqa: PLC0415

        before = self.before.copy()
        results = np.append(self.is_result, False)
        for _ in range(_MOST_PARALLEL):
            behind = (self.is_result & results[before]).nonzero()[0]
            if not len(behind):
                break
            before[behind] = before[before[behind]]
        return before

    @cached_property
    def of_people(self) -> bool:
        """Return whether people speak with each other, and not a user with an assistant.

        They have names, and so has each of those who write in the assistant's role.
        """
        return any(self.speakers) and not self.unnamed_assistant.any()

    @cached_property
    def mixed(self) -> bool:
        """Return whether some rows are messages, and others were recorded."""
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
        return sum(column.nbytes for column in (*columns, self.sessions.column))


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
    """Return whether a message ends in a question; a smiley or words in brackets may follow."""
    return _ASKS.search(text[-_END_CHARS:]) is not None


def _neighbours(
    sessions: npt.NDArray[np.int32], seqs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The places of the messages before and after each; only messages have neighbours.

    A neighbour that is not there has the place after the last.
    """
    import numpy as np  # noqa: PLC0415

    count = len(seqs)
    before, after = np.full((2, count), count, np.int32)
    order = np.lexsort((seqs, sessions))
    first, second = order[:-1], order[1:]
    follow = (sessions[first] == sessions[second]) & (seqs[first] + 1 == seqs[second])
    follow &= seqs[first] > 0
    first, second = first[follow], second[follow]
    before[second], after[first] = first, second
    return before, after
