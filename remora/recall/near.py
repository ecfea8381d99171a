"""Near words: of the words that a user said, those nearest in meaning to the words of a question.

They are words of the embedder's own vocabulary, so nothing has to be made for a user but the list
of the words of the vocabulary that the user said. A question's words are compared with these alone:
most of the vocabulary is of no use, as nobody said it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio

from remora.actors.policies.bm25 import stem_words
from remora.actors.policies.text_index import TextIndex
from remora.logging import get_logger
from remora.models.ports import NearWords
from remora.runtime.guard import call_guarded, is_requested
from remora.runtime.probes import probe
from remora.runtime.threads import call_function, run_plugin_in_thread

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

_logger = get_logger(__name__)
_MOST = 1.001  # of a cosine of rounded vectors


class Vocabulary:
    """The words that an embedder has near words among, found by their stems.

    Args:
        embedder: it must have embedded something before `load`.
    """

    def __init__(self, embedder: NearWords) -> None:
        self._embedder = embedder
        self._threads = anyio.CapacityLimiter(1)  # a second caller waits, and finds it done
        self._stems: Sequence[str] | None = None

    async def load(self) -> None:
        """Find the stems of the words, in a thread; once.

        If the embedder fails, there are no near words.
        """
        if self._stems is None:
            try:
                await call_guarded(run_plugin_in_thread, self._load, limiter=self._threads)
            except Exception as e:
                self._give_up("vocabulary", e)

    def _load(self) -> None:
        import numpy as np  # noqa: PLC0415

        if self._stems is not None:
            return
        stems = stem_words([*self._embedder.vocabulary()])
        hashes = np.fromiter(map(hash, stems), np.int64, len(stems))
        self._order = hashes.argsort(kind="stable").astype(np.int32)
        self._hashes = hashes[self._order]
        self._stems = stems

    def words_in(self, texts: TextIndex) -> npt.NDArray[np.int32]:
        """The places of the words whose stems are in some texts; shape (words,)."""
        import numpy as np  # noqa: PLC0415

        if not self._stems:
            return np.zeros(0, np.int32)
        # looked for among the vocabulary's 10,000, which takes as long as the user said words
        first = self._hashes.searchsorted(texts.keys)
        held = self._hashes.take(first, mode="clip") == texts.keys
        first = first[held]
        counts = self._hashes.searchsorted(texts.keys[held], side="right") - first
        ends = np.cumsum(counts)
        places = np.arange(counts.sum()) + (first - ends + counts).repeat(counts)
        found: npt.NDArray[np.int32] = self._order[places]
        return found

    def near(
        self, words: Sequence[str], said: npt.NDArray[np.int32]
    ) -> list[list[tuple[str, float]]]:
        """For each word the stems near it, nearest first, and their cosines.

        If the embedder fails, there are none, from then on: recall finds by words and vectors.

        Args:
            words: in lower case.
            said: the places of the words to look among; see `words_in`.
        """
        stems = self._stems
        if not stems or not len(said):
            return [[] for _ in words]
        found, error = call_function(partial(self._ask, words, said))
        if error is None:
            return found or []
        if is_requested(error):
            raise error
        self._give_up("near_words", error)
        return [[] for _ in words]

    def _ask(
        self, words: Sequence[str], said: npt.NDArray[np.int32]
    ) -> list[list[tuple[str, float]]]:
        stems = self._stems or ()
        found = []
        for near in self._embedder.near_words(words, said):
            if not all(place >= 0 and -1 <= cosine <= _MOST for place, cosine in near):
                raise ValueError("a place below 0, or a cosine that is none")
            found.append([(stems[place], cosine) for place, cosine in near])
        return found

    def _give_up(self, method: str, error: BaseException) -> None:
        probe("near_words_failed")
        self._stems = ()
        # without its text, which may have a word of the question
        _logger.warning("near_words_failed", method=method, error=type(error).__name__)
