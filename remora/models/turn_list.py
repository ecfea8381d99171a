"""The list of turns of an agent's conversation: each turn of the user, in a few words.

Results of tools have most of the words of such a conversation, and least of what it is about. So an
extract begins with what the user asked, turn by turn, none missing while a few words fit: the
identifiers, numbers, names and dates that the user said, then the words that are rare. Newer turns
get more words. What was answered follows, in a few words each, since an answer says again what a
tool found; and where there is room, calls of tools by name and identifiers.

A line holds the turns of one day: ``- 8 May 2026, User: [asked] flight New York Seattle May 20th;
user ID mia_li_3668``, ``- 8 May 2026, Assistant: [called] get_user_details mia_li_3668``, and
``- 8 May 2026, Assistant: [answered] booked HAT190 May 20th``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from remora.models.ports import Line

_SEPARATOR = "; "
_ASKED, _CALLED, _ANSWERED = "[asked] ", "[called] ", "[answered] "
_KINDS = (_ASKED, _CALLED, _ANSWERED)
_LEVELS = (16, 12, 9, 7, 5, 4, 3, 2)  # words of a turn
_SHARES = {16: 0.7, 12: 0.7, 9: 0.75, 7: 0.8, 5: 0.85}  # of the room; the rest is for sentences
_LEAST_SHARE = 0.95
_ANSWER_WORDS = 4  # of an answer
_LEGIBLE = 9  # words of a turn from which on those that tell nothing are among them
_WITH_MORE = 5  # words of a turn from which on all answers are listed, and calls if they fit
_LONGEST_WORD = 40  # characters
_MOST_MARKED = 8  # of a turn, that are listed in any case
_MARKED = 10.0  # the weight of an identifier that nobody had said before
_MARKS = " \t\"'`*_#>()[]{}<>,;:!?…\u00b7\u3002\uff0c\uff1f\uff01"
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")
_PIECE = re.compile(r"[\x21-\x7e]+|[^\x00-\x7f\u3001\u3002\uff0c\uff01\uff1f]{1,12}")
"""Of scripts without blanks: runs of ASCII, and up to twelve other characters."""
_ENDS = ".:?!\u3002\uff1f\uff01"
_SHORT_FORM = re.compile(r"['\u2019](?:m|d|s|t|re|ve|ll)$")
_NEGATIONS = frozenset(
    "not no never none nothing without cannot nicht kein keine keinen nie ohne ne pas jamais sans "  # noqa: SIM905
    "sin nunca ninguno não nao sem nem non mai senza niet geen nooit zonder".split()
)
"""Of several languages: what says the opposite of the words after it."""
_IDENTIFIER = re.compile(r"(?=.*\d)(?=.*[^\W\d_]).{3,}|\d{3,}|.*[@_/\\].*|[$€£¥]\d.*|\d+[.:-]\d.*")
_NUMBER = re.compile(r".*\d")


class _Word(NamedTuple):
    """A word, and whether it is within a sentence: there a capital letter begins a name."""

    text: str
    inner: bool


class _Turn(msgspec.Struct, gc=False):
    """A question, or a call.

    Attributes:
        head: the day and the speaker, and whether it was asked, called or answered.
        words: in their order.
        ranked: places of the words, the most telling first.
        marked: how many of `ranked` are identifiers that nobody had said before.
        telling: how many of `ranked` tell something.
    """

    head: tuple[str, str]
    words: list[str]
    ranked: list[int]
    marked: int
    telling: int

    def gist(self, count: int) -> str:
        """So many words, and no fewer than what only they tell."""
        if count < _LEGIBLE:
            count = min(count, max(self.telling, 3))
        chosen = sorted(self.ranked[: max(count, min(self.marked, _MOST_MARKED))])
        return " ".join([self.words[place] for place in chosen])


def is_turn_list(text: str) -> bool:
    """Return whether the text of a line of a summary lists turns.

    A message that begins so is read as a list of what its speaker asked.
    """
    return text.startswith(_KINDS)


def without_calls(line: Line) -> str:
    """Return a message's text without the calls of tools at its end."""
    text = line.text.rstrip()
    for name, arguments in reversed(line.calls):
        text = text.removesuffix(f"[calls {name} {arguments}]").rstrip()
    return text


class TurnList:
    """The turns of a conversation.

    Args:
        earlier: heads and texts of an earlier list's lines.
        lines: the messages, oldest first.
        head: the day and the speaker of a message.
        stop_words: words that tell nothing.

    Attributes:
        continues: whether there was an earlier one.
    """

    def __init__(
        self,
        earlier: Iterable[tuple[str, str]],
        lines: Sequence[Line],
        head: Callable[[Line], str],
        stop_words: frozenset[str],
    ) -> None:
        given = []
        for said_by, text in earlier:
            kind = next(one for one in _KINDS if text.startswith(one))
            told = text.removeprefix(kind).split(_SEPARATOR)
            given += [(said_by, kind, gist) for gist in told]
        self.continues = bool(given)
        for line in lines:
            if line.role == "user":
                given.append((head(line), _ASKED, line.text))
            given += [(head(line), _CALLED, _show_call(*call)) for call in line.calls]
            if line.role == "assistant" and (said := without_calls(line)):
                given.append((head(line), _ANSWERED, said))
        self._stop_words = stop_words
        self._said: set[str] = set()
        split = [(head, kind, _split(text)) for head, kind, text in given]
        self._often = Counter(one.text for _, _, words in split for one in {*words})
        self._turns: list[_Turn] = []
        self._answers: list[_Turn] = []
        for said_by, kind, words in split:
            turn = self._turn((said_by, kind), words)
            turns = self._answers if kind is _ANSWERED else self._turns
            last = turns[-1] if turns else None
            if words and not (last and (last.head, last.words) == (turn.head, turn.words)):
                turns.append(turn)

    def fit(self, most: int, count: Callable[[str], int]) -> list[str]:
        """The lines, in at most `most` tokens: each turn in as many words as that leaves.

        Args:
            most: tokens.
            count: tokens in a text.
        """
        if not self._turns:
            return []
        asked = [one for one in self._turns if one.head[1] == _ASKED]
        for words in _LEVELS:
            room = most * _SHARES.get(words, _LEAST_SHARE)
            answers = self._lines(_ANSWER_WORDS, self._answers) if words >= _WITH_MORE else []
            for turns in (self._turns, asked) if words >= _WITH_MORE else (asked,):
                lines = self._lines(words, turns) + answers
                tokens = count("\n".join(lines))
                if tokens <= room:
                    return lines if answers else lines + self._fit_answers(most - tokens, count)
        telling = [one for one in asked if one.marked]
        left = len(telling)
        while left > 0:  # the newest that say what nothing else says
            lines = self._lines(1, telling[-left:])
            tokens = count("\n".join(lines))
            if tokens <= most:
                return lines
            left = min(left * most // tokens, left - 1)
        return []

    def _fit_answers(self, most: int, count: Callable[[str], int]) -> list[str]:
        """Lines of the newest answers, in half of the room."""
        left = len(self._answers)
        while left > 0:
            lines = self._lines(_ANSWER_WORDS, self._answers[-left:])
            tokens = 2 * count("\n".join(lines))
            if tokens <= most:
                return lines
            left = min(left * most // tokens, left - 1)
        return []

    def _lines(self, words: int, turns: Sequence[_Turn]) -> list[str]:
        newest = len(turns) * 3 // 4
        told: dict[tuple[str, str], list[str]] = {}
        for place, one in enumerate(turns):
            gist = one.gist(2 * words if place >= newest else words)
            told.setdefault(one.head, []).append(gist)
        return [f"- {head}: {kind}{_SEPARATOR.join(gists)}" for (head, kind), gists in told.items()]

    def _turn(self, head: tuple[str, str], words: Sequence[_Word]) -> _Turn:
        weights = [self._weigh(word) for word in words]
        ranked = sorted(range(len(words)), key=lambda place: (-weights[place], place))
        marked = sum(1 for weight in weights if weight >= _MARKED)
        self._said.update([word.text.lower() for word in words])
        texts, telling = [word.text for word in words], sum(1 for weight in weights if weight)
        return _Turn(head, texts, ranked, marked, telling)

    def _weigh(self, word: _Word) -> float:
        lower = word.text.lower()
        if _IDENTIFIER.fullmatch(lower):
            return 4 if lower in self._said else _MARKED
        if lower in _NEGATIONS or lower.endswith(("n't", "n\u2019t")):
            return 5
        if lower in self._stop_words or _SHORT_FORM.search(lower):
            return 0
        rare = 1 / self._often[word.text]
        if _NUMBER.match(lower) or (word.inner and word.text[0].isupper()):
            return 3 + rare
        return 1 + rare


def _split(text: str) -> list[_Word]:
    words, inner = [], False
    for raw in text.split():
        for piece in _PIECE.findall(raw) if _UNSPACED.search(raw) else [raw]:
            if word := piece.strip(_MARKS).rstrip(".").replace(";", ","):
                cut = word if len(word) <= _LONGEST_WORD else f"{word[:_LONGEST_WORD]}…"
                words.append(_Word(cut, inner))
        inner = raw[-1] not in _ENDS
    return words


def _show_call(name: str, arguments: str) -> str:
    """A call: the tool's name and the values that it was given."""
    values: list[str] = []
    with suppress(msgspec.DecodeError, RecursionError):
        values = [value for value in _scalars(msgspec.json.decode(arguments)) if value]
    return " ".join([name, *[value for value in values if len(value) <= _LONGEST_WORD]])


def _scalars(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _scalars(one)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)
