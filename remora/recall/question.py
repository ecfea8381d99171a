"""A question as searches take it: its text, its vector, and what each of its words counts.

A message that says the same in other words is found by *near words*: each word of the question also
looks for the words nearest to it in meaning that the user has said, and they count less. The words
come from a fixed vocabulary and not from the user's, so nothing has to be made or held for a user.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import anyio.to_thread
import msgspec

from remora.actors.policies.bm25 import TextIndex, stem_words, surface_words, words
from remora.errors import ModelError
from remora.models.ports import Embedder, NearWords, embed_texts
from remora.storage.ports import Vector

__all__ = ["Question", "ask", "asks_for_time", "weigh_words"]

_NEAR_SAID = 5  # near words that a word looks for, of those that the user said
_MOST_WORDS = 32  # of a question, that have near ones
_NAME = re.compile(r"(?<=[^.!?\W]\s)[^\W\d_a-z]\w+")  # a capital within a sentence
_TIME = re.compile(
    r"^\W*when\b|\bhow long\b|\b(?:what|which)\b.{0,20}\b(?:date|day|week|month|year|time)\b",
    re.IGNORECASE,
)


class _Near(msgspec.Struct, frozen=True):
    """The words near one word of a question.

    Attributes:
        stems: theirs, nearest first.
        hashes: of the stems.
        cosines: how near they are.
    """

    stems: Sequence[str]
    hashes: Sequence[int]
    cosines: Sequence[float]


class Question(msgspec.Struct, frozen=True, dict=True):
    """What is asked.

    Attributes:
        text: the question.
        vector: its unit vector, shape (dimension,); None for the words alone.
        near: the words near its words, by word.
    """

    text: str
    vector: Vector | None = None
    near: Mapping[str, _Near] = {}

    @cached_property
    def stems(self) -> tuple[str, ...]:
        """The stems of its words, each once."""
        return tuple(dict.fromkeys(words(self.text)))


async def ask(text: str, embedder: Embedder | None, *, near_words: bool) -> Question:
    """A question with its vector and, if wanted and the embedder has them, near words.

    Raises:
        ModelError: the embedder failed.
    """
    if embedder is None or not text.strip():
        return Question(text)
    vector = (await embed_texts(embedder, [text]))[0]
    if not vector.any():
        # without a word that the embedder knows it would be equally near to everything
        return Question(text)
    if not near_words or not isinstance(embedder, NearWords):
        return Question(text, vector)
    try:
        near = await anyio.to_thread.run_sync(_find_near, embedder, text, abandon_on_cancel=True)
    except Exception as e:
        raise ModelError(f"near_words of the embedder failed: {type(e).__name__}: {e}") from e
    return Question(text, vector, near)


def weigh_words(
    question: Question, names: Collection[str], texts: Sequence[TextIndex], share: float
) -> dict[str, float]:
    """What each stem counts: 1 for the question's own, less for those near them.

    Args:
        question: the question.
        names: of speakers; nothing is near a name.
        texts: near words that are in none of these are of no use.
        share: what a near word counts, times its cosine.
    """
    weights = dict.fromkeys(question.stems, 1.0)
    own = set(weights)
    parts = {part.casefold() for name in names for part in re.findall(r"\w+", name)}
    for word, near in question.near.items():
        if word in parts:
            continue
        taken: set[str] = set()
        for place in _are_there(near.hashes, texts):
            stem = near.stems[place]
            if stem not in own:
                weights[stem] = max(weights.get(stem, 0.0), share * near.cosines[place])
                taken.add(stem)
            if len(taken) == _NEAR_SAID:
                break
    return weights


def asks_for_time(text: str) -> bool:
    """Whether a question in English asks when something was, or how long it took."""
    return _TIME.search(text) is not None


def _find_near(embedder: NearWords, text: str) -> dict[str, _Near]:
    names = {name.casefold() for name in _NAME.findall(text)}
    found = {}
    wanted = [word for word in dict.fromkeys(surface_words(text)) if word not in names]
    for word in wanted[:_MOST_WORDS]:
        near = embedder.near_words(word)
        if near:
            stems = stem_words([other for other, _ in near])
            found[word] = _Near(stems, [*map(hash, stems)], [cosine for _, cosine in near])
    return found


def _are_there(hashes: Sequence[int], texts: Sequence[TextIndex]) -> list[int]:
    """Places of the words that any of the texts has, in order."""
    found = zip(*(one.find(hashes) for one in texts), strict=True)
    return [place for place, numbers in enumerate(found) if max(numbers) >= 0]
