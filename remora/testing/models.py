"""Models for tests: they answer from a script, and need nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from remora.errors import ModelError
from remora.messages import ChatDict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ChatResponse(msgspec.Struct, frozen=True):
    """One scripted answer; `usage` is for callers that count."""

    message: str
    usage: int | None = None


class ScriptedChatModel:
    """Returns the scripted answers in order, then fails.

    Args:
        responses: texts, `ChatResponse` objects, or exceptions to raise.

    Attributes:
        requests: the messages of each call so far.
    """

    name = "scripted"

    def __init__(self, responses: Sequence[str | ChatResponse | Exception]) -> None:
        self._responses = list(responses)
        self.requests: list[list[ChatDict]] = []

    def script(self, *responses: str | ChatResponse | Exception) -> None:
        """Add answers after those that are left."""
        self._responses += responses

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        """The next answer.

        Raises:
            ModelError: the script is exhausted.
        """
        self.requests.append(list(messages))
        if not self._responses:
            raise ModelError("scripted model exhausted responses")
        response = self._responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response.message if isinstance(response, ChatResponse) else response


class HashEmbedder:
    """Feature hashing of words: deterministic, instant, and near for texts that share words.

    Args:
        dimension: length of the vectors.
    """

    def __init__(self, dimension: int = 64) -> None:
        self.name = f"hash-{dimension}"
        self.dimension = dimension

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector per text."""
        import numpy as np  # noqa: PLC0415

        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                digest = int.from_bytes(blake2b(word.encode(), digest_size=8).digest())
                vectors[row, digest % self.dimension] += 1 if digest >> 63 else -1
        return vectors
