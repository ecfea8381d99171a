"""Embedders that a test looks at, or holds up."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import numpy as np
import numpy.typing as npt

from remora.testing import HashEmbedder

__all__ = ["HeldEmbedder", "NotingEmbedder"]


class NotingEmbedder(HashEmbedder):
    """Notes each text that it embeds, in `texts`."""

    def __init__(self, dimension: int = 64) -> None:
        super().__init__(dimension)
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.texts += texts
        return await super().embed(texts)


class HeldEmbedder(HashEmbedder):
    """Waits at a text with this word in it until `go` is set; `reached` is set then."""

    def __init__(self, word: str, dimension: int = 64) -> None:
        super().__init__(dimension)
        self.word = word
        self.reached, self.go = anyio.Event(), anyio.Event()

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if any(self.word in text for text in texts):
            self.reached.set()
            await self.go.wait()
        return await super().embed(texts)
