"""The embedded summarizer: it extracts the sentences that carry facts, and needs no model.

Sentences are scored by their idf mass over the root of their length, with factors for the first
person, numbers and dates, names within a sentence, and against questions; maximal marginal
relevance (Carbonell & Goldstein 1998) then picks from them within the token budget. On 272 LoCoMo
sessions this kept twice the evidence of LexRank, and embedding centroids were worse than random:
they choose sentences that fit into any conversation. The weights were set once, by hand, and
not tuned.

A running summary is continued by letting the previous summary's lines compete with the new
sentences.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from remora.languages.cues import says_i, says_when
from remora.languages.detection import FUNCTION_WORDS, language_of, may_be_foreign
from remora.languages.patterns import make_splitter
from remora.languages.search_words import pair_characters
from remora.models.clipping import cut_sentences
from remora.models.ports import Line
from remora.runtime.threads import compute_apart

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# -- the list of turns of an agent's conversation: each turn of the user, in a few words -----------
#
# Results of tools have most of the words of such a conversation, and least of what it is about. So
# an extract begins with what the user asked, turn by turn, none missing while a few words fit: the
# identifiers, numbers, names and dates that the user said, then the words that are rare. Newer
# turns get more words. What was answered follows, in a few words each, since an answer says again
# what a tool found; and where there is room, calls of tools by name and identifiers.
#
# A line holds the turns of one day: ``- 8 May 2026, User: [asked] flight New York Seattle May 20th;
# user ID mia_li_3668``, ``- 8 May 2026, Assistant: [called] get_user_details mia_li_3668``, and ``-
# 8 May 2026, Assistant: [answered] booked HAT190 May 20th``.

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


def _scalars(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _scalars(one)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)


_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_PLAIN_WORD = re.compile(r"[^\W_]+")  # "I'll" is the first person, too
_split_ascii = make_splitter(str.isalnum)
_DAY_US = 86_400_000_000
_DIGIT = re.compile(r"\d")
_INNER_NAME = re.compile(r"[A-Z](?<=[a-z,;] .)[\w-]+")  # a capital first: so `re` skips the rest
_LINE = re.compile(r"^- (?P<head>.+?): (?P<text>.+)$")
_BEGINNING = re.compile("[A-Za-z0-9]{1,40}")  # no sentence ends within these
_LAMBDA = 0.8
_HELD_S = 600.0
_MAX_CANDIDATES = 2_000
_MAX_SENTENCE_CHARS = 600  # for text without sentence ends (logs, JSON)
_STOP = frozenset(
    (  # noqa: SIM905 -- of English; of other languages, their function words
        "a an and are as at be been but by can could did do does for from get go had has have he "
        "her him his "
        "how i if in into is it its just let like me my no not of oh on or our out she so some "
        "that the their "
        "them then there they this to too up us was we well were what when where which who will "
        "with would "
        "yes you your"
    ).split()
)
_TELL_NOTHING = _STOP.union(
    ["please", "thanks", "thank", "yes", "okay", "ok", "hi", "hello", "sure", "much", "also"],
    *FUNCTION_WORDS.values(),
)


class _Sentence(msgspec.Struct, gc=False):  # thousands, which Python's collector need not visit
    head: str
    text: str
    language: str
    words: tuple[str, ...]
    factor: float  # of its score: see `_factor`
    tokens: int = -1

    @property
    def line(self) -> str:
        return f"- {self.head}: {self.text}"

    @property
    def length(self) -> int:
        """Characters of the line and its end."""
        return len(self.head) + len(self.text) + 5


class RecentExtracts:
    """The sentences of the last extracts, for those that continue them.

    To read a summary again takes a quarter of an extract's time. It holds texts of users, so it
    holds nothing unless it is told to: in a process that ends when nobody asks it any more.
    """

    def __init__(self) -> None:
        self._most = 0
        self._held: OrderedDict[tuple[str, str], tuple[float, list[_Sentence]]] = OrderedDict()

    def hold(self, most: int) -> None:
        """Hold so many from now on, each for ten minutes."""
        self._most = most
        self._held.clear()

    def keep(self, counter: str, text: str, sentences: Sequence[_Sentence]) -> None:
        """Hold sentences as they would be read from a text that has a line for each.

        Args:
            counter: the name of what counted their tokens.
            text: the text.
            sentences: its lines.
        """
        if not self._most:
            return
        read: list[_Sentence] = []
        for one in sentences:
            found, listed = ([one], []) if _is_read_so(one) else _read_lines(one.line)
            if listed or len(found) != 1:
                return
            read += found
        self._held.pop((counter, text), None)
        self._held[counter, text] = time.monotonic(), read
        self.drop_old()
        if len(self._held) > self._most:
            self._held.popitem(last=False)

    def get(self, counter: str, text: str) -> list[_Sentence] | None:
        """The sentences of a text; None if they are not held, or not any more."""
        self.drop_old()
        found = self._held.get((counter, text))
        return None if found is None else found[1]

    def drop_old(self) -> None:
        """Hold nothing that is older than ten minutes."""
        now_s = time.monotonic()
        while self._held and next(iter(self._held.values()))[0] < now_s - _HELD_S:
            self._held.popitem(last=False)


recent_extracts = RecentExtracts()
"""Those of this process."""


def _is_read_so(one: _Sentence) -> bool:
    """Return whether the sentence that is read from a sentence's line is surely the same."""
    return (
        one.language == "en"
        and not may_be_foreign(one.text)
        and ": " not in one.head
        and one.head.isprintable()
        and not is_turn_list(one.text)
    )


class _Read(NamedTuple):
    """The lines as they were read.

    Attributes:
        turns: of an agent's conversation; None of another.
        sentences: all of them, in their order.
        worded: those that have words.
        shortened: the same, each as it may be chosen; of most it is the same object.
        candidates: their places are those in `shortened`; None if there are none.
    """

    turns: TurnList | None
    sentences: Sequence[_Sentence]
    worded: Sequence[_Sentence]
    shortened: Sequence[_Sentence]
    candidates: MostRelevant | None


def _read(previous: str | None, lines: Sequence[Line], counter: str) -> _Read:
    known = recent_extracts.get(counter, previous or "")
    earlier, listed = _read_lines(previous or "") if known is None else (known, [])
    sentences = earlier + _sentences(lines)
    worded = [one for one in sentences if one.words]
    turns, candidates = None, worded
    if listed or any(line.role == "tool" for line in lines):
        turns = TurnList(listed, lines, _head, _TELL_NOTHING)
        said = [
            msgspec.structs.replace(line, text=without_calls(line), calls=())
            for line in lines
            if line.role != "tool"
        ]
        candidates = [one for one in earlier + _sentences(said) if one.words]
    shortened = [_shorten(one) for one in candidates]
    found = _candidates(shortened) if shortened else None
    return _Read(turns, sentences, worded, shortened, found)


class ExtractiveSummarizer:
    """Implements `remora.models.ports.Summarizer` in a worker thread.

    Args:
        count: tokens in a text.
    """

    name = "extractive"
    extracts = True

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        """Lines "- 8 May 2023, Caroline: …", in the order of the conversation."""
        return await self.prepare(previous, lines)(max_tokens)

    def prepare(
        self, previous: str | None, lines: Sequence[Line], sizes: Sequence[int] = ()
    ) -> Callable[[int], Awaitable[str]]:
        """`summarize` for several sizes: sentences are cut and scored once.

        Args:
            previous: the summary before, if any.
            lines: what is new.
            sizes: most tokens of each summary that may be asked for.

        Returns:
            A function that takes the most tokens. As long as it is held, so are the texts.
        """
        made: dict[int, str] = {}

        async def summarize(max_tokens: int) -> str:
            if max_tokens not in made:
                wanted = list(dict.fromkeys([max_tokens, *sizes]))
                texts = await compute_apart(_extract_all, previous, lines, self._count, wanted)
                made.update(zip(wanted, texts, strict=True))
            return made[max_tokens]

        return summarize

    def extract(self, previous: str | None, lines: Sequence[Line], max_tokens: int) -> str:
        """`summarize`, on the calling thread: a few milliseconds per hundred sentences."""
        return _Extract(previous, lines, self._count)(max_tokens)


class _Extract:
    """Extracts from some lines, within any number of tokens; blocking, for one thread.

    Args:
        previous: the summary before, if any.
        lines: what is new.
        count: tokens in a text.
    """

    def __init__(
        self, previous: str | None, lines: Sequence[Line], count: Callable[[str], int]
    ) -> None:
        self._count = count
        self._counter = str(getattr(getattr(count, "__self__", None), "name", ""))
        self._read = _read(previous, lines, self._counter)

    def __call__(self, max_tokens: int) -> str:
        read = self._read
        if self._fit(read, max_tokens):
            return self._join(read.sentences)
        if read.turns is None:
            return self._join(self._choose(read, max_tokens))
        turns = read.turns.fit(max_tokens, self._count)
        max_tokens -= self._count("\n".join([*turns, ""])) if turns else 0
        return "\n".join([*turns, *[one.line for one in self._choose(read, max_tokens)]])

    def _join(self, sentences: Sequence[_Sentence]) -> str:
        text = "\n".join([one.line for one in sentences])
        recent_extracts.keep(self._counter, text, sentences)
        return text

    def _fit(self, read: _Read, max_tokens: int) -> bool:
        """Return whether all sentences do. The best are counted first: they may be chosen."""
        left = max_tokens
        if read.turns is not None:
            if read.turns.continues:  # nobody knows what it left out
                return False
            return sum([self._cost(one) for one in read.sentences]) <= left
        best = [] if read.candidates is None else read.candidates.ranking
        wordless = (one for one in read.sentences if not one.words)
        for sentence in chain((read.worded[place] for place in best), wordless):
            left -= self._cost(sentence)
            if left < 0:
                return False
        return True

    def _choose(self, read: _Read, max_tokens: int) -> list[_Sentence]:
        candidates = read.candidates
        if candidates is None:
            return []
        candidates.restart()
        left = max_tokens
        longest = 0.0  # characters of a token, in the lines that were counted
        # to count all that do not fit would take most of the time
        while left > 0 and (place := candidates.take_best(left * longest or math.inf)) is not None:
            best = read.shortened[place]
            cost = self._cost(best)
            longest = max(longest, best.length / max(cost, 1))
            if cost <= left:
                left -= cost
                candidates.choose(place)
        return [read.shortened[place] for place in sorted(candidates.chosen)]

    def _cost(self, sentence: _Sentence) -> int:
        """Tokens of a sentence's line, which are counted once."""
        if sentence.tokens < 0:
            sentence.tokens = self._count(sentence.line + "\n")
        return sentence.tokens


def _extract_all(
    previous: str | None, lines: Sequence[Line], count: Callable[[str], int], sizes: Sequence[int]
) -> list[str]:
    return [*map(_Extract(previous, lines, count), sizes)]


def extracted_lines(text: str) -> Callable[[Line], bool]:
    """Return what says whether all of a message's text is in lines that a summarizer extracted.

    It knows the lines of all three: `extractive`, `lead` and `tail`.
    """
    lines, bounded = {*text.split("\n")}, f"\n{text}\n"
    beginnings = {
        (match["head"], beginning[0])
        for line in lines
        if (match := _LINE.match(line)) and (beginning := _BEGINNING.match(match["text"]))
    }

    def is_whole(line: Line) -> bool:
        if not line.text.strip():
            return True
        spoken = line.spoken  # to look for its first line alone takes far less time
        if spoken.partition("\n")[0] in lines and f"\n{spoken}\n" in bounded:
            return True
        head, found = _head(line), False
        # the first sentence of most messages was not extracted: then none need be found
        beginning = _BEGINNING.match(line.text.lstrip())
        if beginning and ": " not in head and (head, beginning[0]) not in beginnings:
            return False
        for sentence in cut_sentences(line.text, _language_of(line.text)):
            if f"- {head}: {sentence}" not in lines:
                return False
            found = True
        return found

    return is_whole


def _make_sentence(head: str, text: str, language: str) -> _Sentence:
    said = plain_words(text)
    words = _words(text, said, language)
    return _Sentence(head, text, language, words, _factor(text, said, language))


def _shorten(sentence: _Sentence) -> _Sentence:
    """A sentence that does not take the place of many."""
    if len(sentence.text) <= _MAX_SENTENCE_CHARS:
        return sentence
    text = sentence.text[: _MAX_SENTENCE_CHARS - 1] + "…"
    return _make_sentence(sentence.head, text, sentence.language)


def _read_lines(summary: str) -> tuple[list[_Sentence], list[tuple[str, str]]]:
    """The sentences of a summary, and the heads and texts of its turns."""
    found, listed = [], []
    for line in summary.splitlines():
        match = _LINE.match(line)
        head, text = (match["head"], match["text"]) if match else ("Earlier", line.strip())
        if match and is_turn_list(text):
            listed.append((head, text))
        elif text:
            found.append(_make_sentence(head, text, _language_of(text)))
    return found, listed


def _sentences(lines: Sequence[Line]) -> list[_Sentence]:
    found: list[_Sentence] = []
    for line in lines:
        head, language = _head(line), _language_of(line.text)
        found.extend(
            [_make_sentence(head, text, language) for text in cut_sentences(line.text, language)]
        )
    return found


def _head(line: Line) -> str:
    return f"{_date(line.at_us // _DAY_US)}, {line.speaker}"


@functools.lru_cache(maxsize=1_000)
def _date(day: int) -> str:
    at = datetime.fromtimestamp(day * 86_400, UTC)
    return f"{at.day} {at:%b %Y}"


def _language_of(text: str) -> str:
    """The language that a text shows, or English."""
    return (may_be_foreign(text) and language_of(text)) or "en"


def _words(text: str, said: list[str], language: str) -> tuple[str, ...]:
    """The words without stop words; `said` are the plain ones."""
    stop = _STOP if language == "en" else FUNCTION_WORDS.get(language, _STOP)
    if not text.isascii():
        said = _WORD.findall(pair_characters(text).lower())
    elif "'" in text:
        said = _WORD.findall(text.lower())
    return tuple([word for word in said if word not in stop])


def plain_words(text: str) -> list[str]:
    """The runs of letters and digits of a text, in lower case."""
    if text.isascii():
        return _split_ascii(text)
    return _PLAIN_WORD.findall(text.lower())


def _factor(text: str, said: Sequence[str], language: str) -> float:
    """Return what the signs of a fact multiply a sentence's score by.

    `said` are its plain words.
    """
    factor = 1.08 ** min(len(_INNER_NAME.findall(text)), 4)
    if says_i(text, said, language):
        factor *= 1.25
    if says_when(text, said, language) or _DIGIT.search(text):
        factor *= 1.2
    if text.endswith(("?", "\uff1f")):
        factor *= 0.5
    return factor


class Vectors(NamedTuple):
    """Sentences by their words, in arrays: those of one sentence after those of another.

    Attributes:
        words: a number for each word of a sentence.
        weights: of each in its sentence.
        sizes: how many words each sentence has; one that is said twice is one.
    """

    words: npt.NDArray[np.intp]
    weights: npt.NDArray[np.float64]
    sizes: npt.NDArray[np.intp]


def _candidates(sentences: Sequence[_Sentence]) -> MostRelevant:
    """The sentences, scored as this module says; one without words has the score 0."""
    import numpy as np  # noqa: PLC0415

    number = len(sentences)
    said = [len(one.words) for one in sentences]
    number_of: defaultdict[str, int] = defaultdict(lambda: len(number_of))
    every = chain.from_iterable([one.words for one in sentences])
    numbers = np.fromiter(map(number_of.__getitem__, every), np.intp, sum(said))
    # a key for each word of each sentence: once, and how often it is said there
    keys = np.repeat(np.arange(number), said) * len(number_of) + numbers
    keys, times = np.unique(keys, return_counts=True)
    places, words = np.divmod(keys, len(number_of))
    idf = np.log1p(number / np.bincount(words))[words]
    weights = idf * times
    lengths = np.sqrt(np.bincount(places, weights * weights, number))
    sizes = np.bincount(places, minlength=number)
    vectors = Vectors(words, weights / lengths[places], sizes)
    factors = np.array([one.factor for one in sentences])
    masses = np.bincount(places, idf, number)
    scores = masses / np.sqrt(np.maximum(said, 1)) * factors
    return MostRelevant(scores, np.array([one.length for one in sentences]), vectors)


class MostRelevant:
    """Sentences by maximal marginal relevance: the best is what is said that was not said yet.

    In arrays: thousands of sentences are compared with each of hundreds that are chosen.

    Args:
        scores: of each sentence, shape (sentences,).
        lengths: of its line, likewise.
        vectors: of the sentences.

    Attributes:
        ranking: the places of all sentences, the highest score first.
        chosen: the places of those that were chosen.
    """

    def __init__(
        self,
        scores: npt.NDArray[np.float64],
        lengths: npt.NDArray[np.intp],
        vectors: Vectors,
    ) -> None:
        import numpy as np  # noqa: PLC0415

        best = np.argsort(-scores, kind="stable")
        self.ranking: list[int] = best.tolist()
        best = best[:_MAX_CANDIDATES]
        self._rank = {place: rank for rank, place in enumerate(best.tolist())}
        # the words of the candidates, the best one's first
        sizes = vectors.sizes[best]
        ends = sizes.cumsum()
        moved = vectors.sizes.cumsum()[best] - ends
        order = np.arange(ends[-1]) + moved.repeat(sizes)
        self._words, self._own = vectors.words[order], vectors.weights[order]
        self._slices = [*map(slice, (ends - sizes).tolist(), ends.tolist())]
        # for each word, one after the other: the candidates that have it, and its weight in each
        by_word = np.argsort(self._words, kind="stable")
        self._places = np.arange(len(best)).repeat(sizes)[by_word]
        self._weights = self._own[by_word]
        self._counts = np.bincount(self._words)
        self._ends = self._counts.cumsum()
        self._lengths = lengths[best]
        self._longest = int(self._lengths.max())
        self._relevance = _LAMBDA * scores[best] / (scores[best[0]] or 1.0)
        self.restart()

    def restart(self) -> None:
        """Begin again, with nothing taken or chosen."""
        import numpy as np  # noqa: PLC0415

        self.chosen: list[int] = []
        self._similarity = np.zeros(len(self._relevance))
        self._left = self._relevance.copy()  # of those that were not taken
        self._worth = self._relevance.copy()

    def take_best(self, most_chars: float = math.inf) -> int | None:
        """The place of the best that was not taken before; of equals, of the higher score.

        Args:
            most_chars: what is longer, with the end of its line, is left where it is.
        """
        import numpy as np  # noqa: PLC0415

        worth = self._worth
        if most_chars < self._longest:
            worth = np.where(self._lengths <= most_chars, worth, -math.inf)
        rank = int(worth.argmax())
        if worth[rank] == -math.inf:
            return None
        self._worth[rank] = self._left[rank] = -math.inf
        return self.ranking[rank]

    def choose(self, place: int) -> None:
        """Choose a sentence that was taken: what is like it loses."""
        import numpy as np  # noqa: PLC0415

        self.chosen.append(place)
        own = self._slices[self._rank[place]]
        words = self._words[own]
        counts = self._counts.take(words)
        # the places of all its words, one word after the other
        skipped = self._ends.take(words) - counts.cumsum()
        found = np.arange(counts.sum()) + skipped.repeat(counts)
        products = self._weights.take(found) * self._own[own].repeat(counts)
        cosines = np.bincount(self._places.take(found), products, len(self._relevance))
        np.maximum(self._similarity, cosines, out=self._similarity)
        self._worth = self._left - (1 - _LAMBDA) * self._similarity
