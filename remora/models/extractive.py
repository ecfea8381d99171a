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
import importlib
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain

import msgspec

from remora.languages.cues import says_i, says_when
from remora.languages.detection import language_of, may_be_foreign
from remora.languages.function_words import FUNCTION_WORDS
from remora.languages.search_words import pair_characters
from remora.models.ports import Line
from remora.runtime.threads import compute_in_thread

__all__ = ["ExtractiveSummarizer", "MostRelevant", "extracted_lines", "plain_words"]

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_PLAIN_WORD = re.compile(r"[^\W_]+")  # "I'll" is the first person, too
# To translate and split ASCII takes less than half of the time that a pattern takes.
_PLAIN_ASCII = (
    "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
    .encode()
    .ljust(256)
)
_DAY_US = 86_400_000_000
_DIGIT = re.compile(r"\d")
_INNER_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][\w-]+")
_LINE = re.compile(r"^- (?P<head>.+?): (?P<text>.+)$")
_LAMBDA = 0.8
_MAX_CANDIDATES = 2_000
_MAX_PIECE_CHARS = 4_000  # of a text that is cut into sentences at once
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


class _Sentence(msgspec.Struct, gc=False):  # thousands, which Python's collector need not visit
    head: str
    text: str
    order: int
    words: tuple[str, ...]
    language: str
    tokens: int = -1
    score: float = 0.0
    vector: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def line(self) -> str:
        return f"- {self.head}: {self.text}"

    @property
    def length(self) -> int:
        """Characters of the line and its end."""
        return len(self.head) + len(self.text) + 5


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
        self, previous: str | None, lines: Sequence[Line]
    ) -> Callable[[int], Awaitable[str]]:
        """`summarize` for several sizes: sentences are cut and scored once.

        Args:
            previous: the summary before, if any.
            lines: what is new.

        Returns:
            A function that takes the most tokens. As long as it is held, so are the texts.
        """
        extract = _Extract(previous, lines, self._count)

        async def summarize(max_tokens: int) -> str:
            return await compute_in_thread(extract, max_tokens)

        return summarize

    def extract(self, previous: str | None, lines: Sequence[Line], max_tokens: int) -> str:
        """`summarize`, blocking: a few milliseconds per hundred sentences."""
        return _Extract(previous, lines, self._count)(max_tokens)


class _Extract:
    """Extracts from some lines, within any number of tokens; blocking.

    Args:
        previous: the summary before, if any.
        lines: what is new.
        count: tokens in a text.
    """

    def __init__(
        self, previous: str | None, lines: Sequence[Line], count: Callable[[str], int]
    ) -> None:
        self._previous = previous
        self._lines = lines
        self._count = count
        self._sentences: list[_Sentence] | None = None
        self._scored: list[_Sentence] | None = None
        self._candidates: MostRelevant | None = None

    def __call__(self, max_tokens: int) -> str:
        if self._sentences is None:
            self._sentences = _previous_sentences(self._previous) + _sentences(self._lines)
        if whole := self._whole(self._sentences, max_tokens):
            return whole
        if self._scored is None:
            self._scored = [_shorten(one) for one in self._sentences if one.words]
            for order, sentence in enumerate(self._scored):
                sentence.order = order
            _score(self._scored)
        if not self._scored:
            return ""
        if self._candidates is None:
            self._candidates = MostRelevant(self._scored)
        candidates = self._candidates
        candidates.restart()
        left = max_tokens
        longest = 0.0  # characters of a token, in the lines that were counted
        # to count all that do not fit would take most of the time
        while left > 0 and (best := candidates.take_best(left * longest or math.inf)) is not None:
            cost = self._cost(best)
            longest = max(longest, best.length / max(cost, 1))
            if cost <= left:
                left -= cost
                candidates.choose(best)
        chosen = sorted(candidates.chosen, key=lambda one: one.order)
        return "\n".join([one.line for one in chosen])

    def _whole(self, sentences: Sequence[_Sentence], max_tokens: int) -> str:
        """All sentences, if they fit; otherwise nothing."""
        left = max_tokens
        for sentence in sentences:
            left -= self._cost(sentence)
            if left < 0:
                return ""
        return "\n".join(sentence.line for sentence in sentences)

    def _cost(self, sentence: _Sentence) -> int:
        """Tokens of a sentence's line, which are counted once."""
        if sentence.tokens < 0:
            sentence.tokens = self._count(sentence.line + "\n")
        return sentence.tokens


def extracted_lines(text: str) -> Callable[[Line], bool]:
    """What says whether all of a message's text is in lines that a summarizer extracted.

    It knows the lines of all three: `extractive`, `lead` and `tail`.
    """
    lines, bounded = {*text.split("\n")}, f"\n{text}\n"

    def is_whole(line: Line) -> bool:
        if not line.text.strip():
            return True
        spoken = line.spoken  # to look for its first line alone takes far less time
        if spoken.partition("\n")[0] in lines and f"\n{spoken}\n" in bounded:
            return True
        head, found = _head(line), False
        for sentence in _texts(line.text, _language_of(line.text)):
            if f"- {head}: {sentence}" not in lines:
                return False
            found = True
        return found

    return is_whole


def _shorten(sentence: _Sentence) -> _Sentence:
    """A sentence that does not take the place of many."""
    if len(sentence.text) <= _MAX_SENTENCE_CHARS:
        return sentence
    text = sentence.text[: _MAX_SENTENCE_CHARS - 1] + "…"
    words = _words(text, sentence.language)
    return _Sentence(sentence.head, text, 0, words, sentence.language)


def _previous_sentences(previous: str | None) -> list[_Sentence]:
    found = []
    for line in (previous or "").splitlines():
        match = _LINE.match(line)
        head, text = (match["head"], match["text"]) if match else ("Earlier", line.strip())
        if text:
            language = _language_of(text)
            found.append(_Sentence(head, text, 0, _words(text, language), language))
    return found


def _sentences(lines: Sequence[Line]) -> list[_Sentence]:
    found: list[_Sentence] = []
    for line in lines:
        head, language = _head(line), _language_of(line.text)
        found.extend(
            _Sentence(head, text, 0, _words(text, language), language)
            for text in _texts(line.text, language)
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


def _texts(text: str, language: str) -> Iterator[str]:
    """The sentences of a text, each in one line."""
    segment = importlib.import_module("sentencex").segment
    for piece in _cut(text):
        for sentence in segment(language, piece):
            if joined := " ".join(sentence.split()):
                yield joined


def _cut(text: str) -> Iterator[str]:
    """Pieces of a long text, which end at white space if they can.

    sentencex 1.0 takes time with the square of the quotation marks in a text, and keeps the
    interpreter's lock for all of it: 6 s for 200 000 of them.
    """
    start = 0
    while len(text) - start > _MAX_PIECE_CHARS:
        middle, end = start + _MAX_PIECE_CHARS // 2, start + _MAX_PIECE_CHARS
        at = max(text.rfind("\n", middle, end), text.rfind(" ", middle, end))
        end = end if at < 0 else at + 1
        yield text[start:end]
        start = end
    yield text[start:]


def _words(text: str, language: str) -> tuple[str, ...]:
    stop = _STOP if language == "en" else FUNCTION_WORDS.get(language, _STOP)
    if not text.isascii():
        found = _WORD.findall(pair_characters(text).lower())
    elif "'" in text:
        found = _WORD.findall(text.lower())
    else:
        found = plain_words(text)
    return tuple([word for word in found if word not in stop])


def plain_words(text: str) -> list[str]:
    """The runs of letters and digits of a text, in lower case."""
    if text.isascii():
        return text.encode().translate(_PLAIN_ASCII).decode().split()
    return _PLAIN_WORD.findall(text.lower())


def _score(sentences: Sequence[_Sentence]) -> None:
    appearances = Counter(chain.from_iterable([set(sentence.words) for sentence in sentences]))
    idf_of = {n: math.log(1 + len(sentences) / n) for n in set(appearances.values())}
    idf = {word: idf_of[n] for word, n in appearances.items()}
    for sentence in sentences:
        words = sentence.words
        if not words:
            continue
        weights = [idf[word] for word in words]
        vector = dict(zip(words, weights, strict=True))
        mass = sum(vector.values())
        if len(vector) < len(words):  # a word that is said twice weighs twice
            for word, weight in zip(words, weights, strict=True):
                vector[word] += weight
            for word in vector:
                vector[word] -= idf[word]
        length = math.sqrt(sum([value * value for value in vector.values()])) or 1.0
        sentence.vector = {word: value / length for word, value in vector.items()}
        score = mass / math.sqrt(len(words))
        said = plain_words(sentence.text)
        if says_i(sentence.text, said, sentence.language):
            score *= 1.25
        if says_when(sentence.text, said, sentence.language) or _DIGIT.search(sentence.text):
            score *= 1.2
        score *= 1.08 ** min(len(_INNER_NAME.findall(sentence.text)), 4)
        if sentence.text.endswith(("?", "\uff1f")):
            score *= 0.5
        sentence.score = score


class MostRelevant:
    """Sentences by maximal marginal relevance: the best is what is said that was not said yet.

    In arrays: thousands of sentences are compared with each of hundreds that are chosen.

    Attributes:
        chosen: the sentences that were chosen.
    """

    def __init__(self, sentences: Sequence[_Sentence]) -> None:
        import numpy as np  # noqa: PLC0415

        self._best = best = sorted(sentences, key=lambda one: -one.score)[:_MAX_CANDIDATES]
        self._number_of: dict[str, int] = {}
        number_of = self._number_of
        numbers = [
            number_of.setdefault(word, len(number_of)) for one in best for word in one.vector
        ]
        # for each word, one after the other: the sentences that have it, and its weight in each
        order = np.argsort(np.array(numbers, np.intp), kind="stable")
        places = np.repeat(np.arange(len(best)), [len(one.vector) for one in best])
        weights = np.array([weight for one in best for weight in one.vector.values()])
        self._places, self._weights = places.take(order), weights.take(order)
        self._counts = np.bincount(numbers)
        self._ends = self._counts.cumsum()
        self._lengths = np.array([one.length for one in best])
        self._longest = int(self._lengths.max())
        scores = np.array([one.score for one in best])
        self._relevance = _LAMBDA * scores / (best[0].score or 1.0)
        self.restart()

    def restart(self) -> None:
        """Begin again, with nothing taken or chosen."""
        import numpy as np  # noqa: PLC0415

        self.chosen: list[_Sentence] = []
        self._similarity = np.zeros(len(self._best))
        self._left = self._relevance.copy()  # of those that were not taken
        self._worth = self._relevance.copy()

    def take_best(self, most_chars: float = math.inf) -> _Sentence | None:
        """The best that was not taken before; of equals, the one with the higher score.

        Args:
            most_chars: what is longer, with the end of its line, is left where it is.
        """
        import numpy as np  # noqa: PLC0415

        worth = self._worth
        if most_chars < self._longest:
            worth = np.where(self._lengths <= most_chars, worth, -math.inf)
        place = int(worth.argmax())
        if worth[place] == -math.inf:
            return None
        self._worth[place] = self._left[place] = -math.inf
        return self._best[place]

    def choose(self, sentence: _Sentence) -> None:
        """Choose a sentence that was taken: what is like it loses."""
        import numpy as np  # noqa: PLC0415

        self.chosen.append(sentence)
        numbers = np.array([self._number_of[word] for word in sentence.vector], np.intp)
        counts = self._counts.take(numbers)
        # the places of all its words, one word after the other
        skipped = self._ends.take(numbers) - counts.cumsum()
        found = np.arange(counts.sum()) + np.repeat(skipped, counts)
        products = self._weights.take(found) * np.repeat([*sentence.vector.values()], counts)
        cosines = np.bincount(self._places.take(found), products, len(self._best))
        np.maximum(self._similarity, cosines, out=self._similarity)
        self._worth = self._left - (1 - _LAMBDA) * self._similarity
