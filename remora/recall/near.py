"""Near words: of the words that a user said, those nearest in meaning to the words of a question.

They are words of the embedder's own vocabulary, so nothing has to be made for a user but the list
of the words of the vocabulary that the user said. A question's words are compared with these alone:
most of the vocabulary is of no use, as nobody said it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remora.actors.policies.bm25 import stem_words
from remora.actors.policies.text_index import TextIndex
from remora.errors import ModelError
from remora.models.ports import NearWords
from remora.runtime.concurrency import run_in_thread_if

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

__all__ = ["Vocabulary"]


class Vocabulary:
    """The words that an embedder has near words among, found by their stems.

    Args:
        embedder: it must have embedded something before `load`.
    """

    def __init__(self, embedder: NearWords) -> None:
        self._embedder = embedder
        self._stems: Sequence[str] | None = None

    async def load(self) -> None:
        """Find the stems of the words, in a thread; once."""
        if self._stems is None:
            await run_in_thread_if(True, self._load)

    def _load(self) -> None:
        import numpy as np  # noqa: PLC0415

        stems = stem_words(self._embedder.vocabulary())
        hashes = np.fromiter(map(hash, stems), np.int64, len(stems))
        self._order = hashes.argsort(kind="stable").astype(np.int32)
        self._hashes = hashes[self._order]
        self._stems = stems

    def words_in(self, texts: TextIndex) -> npt.NDArray[np.int32]:
        """The places of the words whose stems are in some texts; shape (words,)."""
        import numpy as np  # noqa: PLC0415

        if self._stems is None:
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

        Args:
            words: in lower case.
            said: the places of the words to look among; see `words_in`.

        Raises:
            ModelError: the embedder failed.
        """
        stems = self._stems
        if stems is None or not len(said):
            return [[] for _ in words]
        try:
            found = self._embedder.near_words(words, said)
            return [[(stems[place], cosine) for place, cosine in one] for one in found]
        except Exception as e:
            raise ModelError(f"near_words of the embedder failed: {type(e).__name__}: {e}") from e
