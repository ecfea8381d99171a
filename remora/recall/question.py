"""A question as searches take it: its text, its vector, and what each of its words counts.

A message that says the same in other words is found by *near words*: each word of the question also
looks for the words nearest to it in meaning that the user has said, and they count less. The words
come from a fixed vocabulary and not from the user's, so nothing has to be made or held for a user.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import msgspec

from remora.actors.policies.bm25 import stem_words, surface_words, words
from remora.actors.policies.text_index import TextIndex
from remora.errors import ModelError
from remora.languages.dates import Period, find_periods
from remora.languages.detection import language_of
from remora.languages.search_words import question_forms, reading_size
from remora.models.ports import Embedder, NearWords, embed_texts
from remora.runtime.concurrency import run_in_thread_if
from remora.storage.ports import Vector

__all__ = ["Question", "ask", "weigh_words"]

_NEAR_SAID = 5  # near words that a word looks for, of those that the user said
_MOST_WORDS = 32  # of a question, that have near ones, or several stems
_LONG = 4_000  # characters of English, whose words take half a millisecond
_ON_LOOP = 6  # words whose near ones are looked for on the event loop, in 0.6 ms at most
_NAME = re.compile(r"(?<=[^.!?\W]\s)[^\W\d_a-z]\w+")  # a capital within a sentence


class _Near(msgspec.Struct, frozen=True):
    """The words near one word of a question.

    Attributes:
        stems: theirs, nearest first.
        cosines: how near they are.
    """

    stems: Sequence[str]
    cosines: Sequence[float]


class Question(msgspec.Struct, frozen=True, dict=True):
    """What is asked.

    Attributes:
        text: the question.
        vector: its unit vector, shape (dimension,); None for the words alone.
        near: the words near its words, by word.
        periods: the days that it names.
    """

    text: str
    vector: Vector | None = None
    near: Mapping[str, _Near] = {}
    periods: Sequence[Period] = ()

    @cached_property
    def language(self) -> str:
        """Its language, as an ISO 639-1 code; empty if it shows none."""
        return language_of(self.text)

    @property
    def is_long(self) -> bool:
        """Whether finding its words would hold the event loop for too long."""
        return reading_size([self.text]) > _LONG

    @cached_property
    def searched(self) -> str:
        """The text for full-text search: in another language than English, with stems."""
        if self._forms is None:
            return self.text
        return " ".join(dict.fromkeys(form for forms in self._forms for form in forms))

    @cached_property
    def stems(self) -> tuple[str, ...]:
        """The stems of its words, each once."""
        return tuple(dict.fromkeys(words(self.searched)))

    @cached_property
    def alternatives(self) -> Sequence[Sequence[str]]:
        """For each word that is looked for by several stems, these; none in English."""
        several = [forms for forms in dict.fromkeys(self._forms or ()) if len(forms) > 1]
        found = [tuple(dict.fromkeys(words(" ".join(forms)))) for forms in several[:_MOST_WORDS]]
        return [stems for stems in found if len(stems) > 1]

    @cached_property
    def _forms(self) -> Sequence[tuple[str, ...]] | None:
        return None if self.language == "en" else question_forms(self.text)


async def ask(
    text: str,
    embedder: Embedder | None,
    near_words: NearWords | None = None,
    *,
    today: int | None = None,
) -> Question:
    """A question with its vector and, if an embedder is given for them, near words.

    Args:
        text: the question.
        embedder: None for the words alone.
        near_words: finds near words; None for none.
        today: the day on which it is asked, as days since the epoch; None to look for no days.

    Raises:
        ModelError: the embedder failed.
    """
    question = Question(text)
    if today is not None:
        question = Question(text, periods=find_periods(text, today))
    if embedder is None or not text.strip():
        return question
    vector = (await embed_texts(embedder, [text]))[0]
    if not vector.any():
        # without a word that the embedder knows it would be equally near to everything
        return question
    question = msgspec.structs.replace(question, vector=vector)
    if near_words is None or question.language not in {"", "en"}:
        return question  # the vocabularies of near words are English
    wanted = await run_in_thread_if(question.is_long, _words_with_near_ones, text)
    try:
        near = await run_in_thread_if(len(wanted) > _ON_LOOP, _find_near, near_words, wanted)
    except Exception as e:
        raise ModelError(f"near_words of the embedder failed: {type(e).__name__}: {e}") from e
    return msgspec.structs.replace(question, near=near)


def weigh_words(
    question: Question, names: Collection[str], texts: Sequence[TextIndex], share: float
) -> dict[str, float]:
    """What each stem counts: 1 for the question's own, less for those near them.

    Args:
        question: the question.
        names: words of speakers' names, in lower case; nothing is near them.
        texts: near words that are in none of these are of no use.
        share: what a near word counts, times its cosine.
    """
    import numpy as np  # noqa: PLC0415

    weights = dict.fromkeys(question.stems, 1.0)
    found = [near for word, near in question.near.items() if word not in names]
    if not found:
        return weights
    stems = list(dict.fromkeys([stem for near in found for stem in near.stems]))
    hashes = np.fromiter(map(hash, stems), np.int64, len(stems))
    held = np.logical_or.reduce([one.find(hashes) < len(one.keys) for one in texts])
    said = {stems[place] for place in held.nonzero()[0].tolist()} - set(weights)
    for near in found:
        taken: set[str] = set()
        for stem, cosine in zip(near.stems, near.cosines, strict=True):
            if stem in said:
                weights[stem] = max(weights.get(stem, 0.0), share * cosine)
                taken.add(stem)
            if len(taken) == _NEAR_SAID:
                break
    return weights


def _words_with_near_ones(text: str) -> list[str]:
    names = {name.casefold() for name in _NAME.findall(text)}
    wanted = [word for word in dict.fromkeys(surface_words(text)) if word not in names]
    return wanted[:_MOST_WORDS]


def _find_near(embedder: NearWords, wanted: Sequence[str]) -> dict[str, _Near]:
    near = {word: found for word in wanted if (found := embedder.near_words(word))}
    stems = iter(stem_words([other for found in near.values() for other, _ in found]))
    return {
        word: _Near([next(stems) for _ in found], [cosine for _, cosine in found])
        for word, found in near.items()
    }
