"""A cache of embeddings.

A repeated text costs no call, nor does one that is being embedded. Texts are identified by a
digest, so that an entry's size does not depend on the text, and the cache holds no text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import anyio
import msgspec

from remora.errors import InvalidInput
from remora.models.ports import Embedder, NearWords, embed_texts
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.probes import probe

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

_IN_THREAD = 500  # texts whose digests take a thread a millisecond
_CHARACTERS_IN_THREAD = 500_000


class EmbeddingCacheStatistics(msgspec.Struct, frozen=True):
    """How often the cache was used.

    Attributes:
        hits: texts that needed no embedding, repetitions within one call and texts that another
            call had embedded included.
        misses: texts that were embedded.
        evictions: vectors that were removed for newer ones.
        size: vectors held.
    """

    hits: int
    misses: int
    evictions: int
    size: int


class CachingEmbedder:
    """Implements `remora.models.ports.Embedder` over another, under its name.

    Keeps the vectors of the texts that were asked for last.

    Args:
        embedder: embeds the texts that are not held.
        size: most vectors held.

    Raises:
        InvalidInput: `size` is less than 1.

    Attributes:
        gives_unit_vectors: for `embed_texts`, which need not look at them again.
    """

    gives_unit_vectors = True

    def __init__(self, embedder: Embedder, *, size: int = 1000) -> None:
        if size < 1:
            raise InvalidInput(f"an embedding cache holds at least 1 vector, not {size}")
        self.name = embedder.name
        self.dimension = embedder.dimension
        self._embedder = embedder
        if isinstance(embedder, NearWords):
            self.near_words = embedder.near_words
            self.vocabulary = embedder.vocabulary
        self._size = size
        self._vectors: OrderedDict[bytes, npt.NDArray[np.float32]] = OrderedDict()
        self._in_flight: dict[bytes, _InFlight] = {}
        self._hits = self._misses = self._evictions = 0

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Unit vectors, shape (len(texts), dimension), which the caller may change.

        All texts that are not held go into one call, each once. A text that another call is
        embedding is waited for; if that call fails, or is cancelled, this one embeds it.

        Raises:
            ModelError: as `embed_texts` does; nothing of the call is held then.
        """
        import numpy as np  # noqa: PLC0415

        result = np.empty((len(texts), self.dimension), dtype=np.float32)
        large = len(texts) > _IN_THREAD or sum(map(len, texts)) > _CHARACTERS_IN_THREAD
        digests = await run_in_thread_if(large, _digests, texts)
        rows: dict[bytes, list[int]] = {}  # of texts that are not held
        for row, key in enumerate(digests):
            held = self._vectors.get(key)
            if held is None:
                rows.setdefault(key, []).append(row)
            else:
                result[row] = held  # at once: it may be evicted while the others are embedded
                self._vectors.move_to_end(key)
        others = {key: self._in_flight[key] for key in rows if key in self._in_flight}
        mine = {key: texts[rows[key][0]] for key in rows if key not in others}
        self._hits += len(texts) - len(rows)
        for key, vector in (await self._embed_missing(mine)).items():
            result[rows[key]] = vector
        for key, embedding in others.items():
            await embedding.done.wait()
            probe("embedding_joined")
            if (joined := embedding.vectors.get(key)) is not None:
                self._hits += 1
                result[rows[key]] = joined
        left = [key for key, embedding in others.items() if key not in embedding.vectors]
        if left:
            probe("embedding_joined_failed")
            again = await self.embed([texts[rows[key][0]] for key in left])
            for key, vector in zip(left, again, strict=True):
                result[rows[key]] = vector
        return result

    async def _embed_missing(self, texts: dict[bytes, str]) -> dict[bytes, npt.NDArray[np.float32]]:
        """Vectors of texts by digest, in one call that concurrent requests for them share."""
        if not texts:
            return {}
        self._misses += len(texts)
        embedding = _InFlight()
        self._in_flight.update(dict.fromkeys(texts, embedding))
        try:
            fresh = dict(
                zip(texts, await embed_texts(self._embedder, list(texts.values())), strict=True)
            )
            for key in list(fresh)[-self._size :]:
                self._keep(key, fresh[key])
            embedding.vectors = fresh
            return fresh
        finally:
            for key in texts:
                del self._in_flight[key]
            embedding.done.set()

    def clear(self) -> None:
        """Drop all vectors."""
        self._vectors.clear()

    def statistics(self) -> EmbeddingCacheStatistics:
        """The counts so far."""
        return EmbeddingCacheStatistics(
            self._hits, self._misses, self._evictions, len(self._vectors)
        )

    def _keep(self, key: bytes, vector: npt.NDArray[np.float32]) -> None:
        self._vectors[key] = vector.copy()  # a view would keep its whole batch
        self._vectors.move_to_end(key)
        if len(self._vectors) > self._size:
            self._vectors.popitem(last=False)
            self._evictions += 1


class _InFlight:
    """Texts that one call embeds; without vectors when it is done, the call failed."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.vectors: dict[bytes, npt.NDArray[np.float32]] = {}


def _digests(texts: Sequence[str]) -> list[bytes]:
    return [
        blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts
    ]
