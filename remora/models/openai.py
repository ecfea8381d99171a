"""Any OpenAI-compatible endpoint as chat model and embedder.

Needs the extra: ``pip install "remora[openai]"``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from remora.config import ModelConfig
from remora.errors import ConfigError, ModelAnswerInvalid
from remora.messages import ChatDict
from remora.models.endpoint import Endpoint

__all__ = ["OpenAIChatModel", "OpenAIEmbedder"]

Result = TypeVar("Result")
_DEFAULT_URL = "https://api.openai.com/v1"


class _AnswerMessage(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _AnswerMessage


class _ChatAnswer(msgspec.Struct):
    choices: list[msgspec.Raw]  # of which one is read


class _Embedding(msgspec.Struct):
    index: int
    embedding: msgspec.Raw  # read one by one: no other thread runs while a decoder does


class _EmbeddingAnswer(msgspec.Struct):
    data: list[_Embedding]


def _read_text(content: bytes) -> str | None:
    choices = msgspec.json.decode(content, type=_ChatAnswer).choices
    return msgspec.json.decode(choices[0], type=_Choice).message.content if choices else None


def _read_vectors(content: bytes) -> list[npt.NDArray[np.float32]]:
    """The vectors, in the order of their texts."""
    data = msgspec.json.decode(content, type=_EmbeddingAnswer).data
    return [
        np.asarray(msgspec.json.decode(one.embedding, type=list[float]), dtype=np.float32)
        for one in sorted(data, key=lambda one: one.index)
    ]


class _OpenAI:
    """An OpenAI-compatible endpoint."""

    def __init__(self, config: ModelConfig) -> None:
        url = config.base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL
        key = config.api_key.reveal() or os.environ.get("OPENAI_API_KEY", "")
        if not key and url == _DEFAULT_URL:
            raise ConfigError(
                "OpenAI needs a key: set models.api_key or OPENAI_API_KEY, or models.base_url for "
                "another endpoint",
                key="models.api_key",
            )
        self._url = url.removesuffix("/")
        self._endpoint = Endpoint(key, config.timeout_s)

    async def post(
        self, path: str, body: dict[str, Any], read: Callable[[bytes], Result]
    ) -> Result:
        return await self._endpoint.post(f"{self._url}/{path}", body, read)

    async def aclose(self) -> None:
        await self._endpoint.aclose()


class OpenAIChatModel:
    """``POST chat/completions``."""

    def __init__(self, config: ModelConfig) -> None:
        self.name = config.chat_model
        self._endpoint = _OpenAI(config)

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        """The first choice's text."""
        text = await self._endpoint.post(
            "chat/completions", {"model": self.name, "messages": list(messages)}, _read_text
        )
        if not text or not text.strip():
            raise ModelAnswerInvalid(f"{self.name} answered with an empty text")
        return text

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()


class OpenAIEmbedder:
    """``POST embeddings``, in batches of at most 256 texts."""

    _BATCH = 256

    def __init__(self, config: ModelConfig) -> None:
        self.name = config.embedding_model
        self.dimension = config.embedding_dimension
        self._endpoint = _OpenAI(config)

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector per text, shape (n, dimension)."""
        rows: list[npt.NDArray[np.float32]] = []
        for start in range(0, len(texts), self._BATCH):
            # an endpoint refuses the empty string
            batch = [text or " " for text in texts[start : start + self._BATCH]]
            vectors = await self._endpoint.post(
                "embeddings", {"model": self.name, "input": batch}, _read_vectors
            )
            if len(vectors) != len(batch):
                raise ModelAnswerInvalid(
                    f"{self.name} returned {len(vectors)} vectors for {len(batch)} texts"
                )
            rows.extend(vectors)
        try:
            return np.asarray(rows, dtype=np.float32).reshape(len(texts), self.dimension)
        except ValueError as e:
            raise ModelAnswerInvalid(
                f"{self.name} did not return vectors of {self.dimension} numbers: {e}"
            ) from e

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()
