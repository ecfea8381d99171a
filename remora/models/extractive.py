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
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from remora.languages.ascii import make_splitter
from remora.languages.cues import says_i, says_when
from remora.languages.detection import language_of, may_be_foreign
from remora.languages.function_words import FUNCTION_WORDS
from remora.languages.search_words import pair_characters
from remora.models.ports import Line
from remora.models.sentences import cut_sentences
from remora.models.turn_list import TurnList, is_turn_list, without_calls
from remora.runtime.threads import compute_apart

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
