"""Vectors of texts that were embedded lately (S2.05): a repeated text costs no call.

Texts are told apart by a digest, so that an entry takes the same room whatever the text's length, and the cache keeps nothing
that anyone said.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from remora.errors import InvalidInput
from remora.models.ports import Embedder, embed_texts

if TYPE_CHECKING:  # loaded by those who compute with it, at first use
    import numpy as np
    import numpy.typing as npt

__all__ = ["CachingEmbedder", "EmbeddingCacheStatistics"]


class EmbeddingCacheStatistics(msgspec.Struct, frozen=True):
    """What the cache saved.

    Attributes:
        hits: texts that needed no embedding, repetitions within one call included.
        misses: texts that did.
        evictions: vectors that gave way to newer ones.
        size: vectors held.
    """

    hits: int
    misses: int
    evictions: int
    size: int


class CachingEmbedder:
    """Implements `remora.models.ports.Embedder` over another, under its name; keeps the vectors of the texts last asked for.

    Args:
        embedder: what embeds the texts that are not held.
        size: how many vectors to hold, at most.

    Raises:
        InvalidInput: `size` is less than 1.
    """

    def __init__(self, embedder: Embedder, *, size: int = 1000) -> None:
        if size < 1:
            raise InvalidInput(f"an embedding cache holds at least 1 vector, not {size}")
        self.name = embedder.name
        self.dimension = embedder.dimension
        self._embedder = embedder
        self._size = size
        self._vectors: OrderedDict[bytes, npt.NDArray[np.float32]] = OrderedDict()
        self._hits = self._misses = self._evictions = 0

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Unit vectors, shape (len(texts), dimension), the caller's own; all texts that are not held go into one call, each once.

        Raises:
            ModelError: as `embed_texts` does; nothing of the call is held then.
        """
        import numpy as np  # noqa: PLC0415

        keys = [_digest(text) for text in texts]
        result = np.empty((len(texts), self.dimension), dtype=np.float32)
        missing: dict[bytes, str] = {}
        for row, (key, text) in enumerate(zip(keys, texts, strict=True)):
            held = self._vectors.get(key)
            if held is None:
                missing.setdefault(key, text)
            else:
                result[row] = held  # now: it may be evicted while the others are embedded
                self._vectors.move_to_end(key)
        self._hits += len(texts) - len(missing)
        self._misses += len(missing)
        if missing:
            fresh = dict(zip(missing, await embed_texts(self._embedder, list(missing.values())), strict=True))
            for row, key in enumerate(keys):
                if key in fresh:
                    result[row] = fresh[key]
            for key in list(fresh)[-self._size :]:
                self._hold(key, fresh[key])
        return result

    def clear(self) -> None:
        """Hold nothing any more."""
        self._vectors.clear()

    def statistics(self) -> EmbeddingCacheStatistics:
        """The present counts."""
        return EmbeddingCacheStatistics(self._hits, self._misses, self._evictions, len(self._vectors))

    def _hold(self, key: bytes, vector: npt.NDArray[np.float32]) -> None:
        self._vectors[key] = vector.copy()  # a view would keep its whole batch
        self._vectors.move_to_end(key)
        if len(self._vectors) > self._size:
            self._vectors.popitem(last=False)
            self._evictions += 1


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
