"""A reranker behind HTTP: the request and answer that Cohere, Jina, vLLM and Infinity share.

The request is ``{"model": …, "query": …, "documents": […], "top_n": …}``, the answer
``{"results": [{"index": 0, "relevance_score": 0.98}, …]}`` in any order. Needs the extra:
``pip install "remora[openai]"``.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from remora.config import ModelConfig
from remora.errors import ConfigError, ModelAnswerInvalid
from remora.models.endpoint import Endpoint

_FRAME = 64_000  # bytes of an answer, besides what it says of each text
_PER_TEXT = 1_000


class _Result(msgspec.Struct):
    index: int
    relevance_score: float


class _Answer(msgspec.Struct):
    results: list[_Result]


def _decode(content: bytes) -> _Answer:
    return msgspec.json.decode(content, type=_Answer)


class HttpReranker:
    """``POST`` to `models.rerank_url`.

    Args:
        config: URL, model and key.

    Raises:
        ConfigError: there is no URL, or it is none of HTTP.
    """

    def __init__(self, config: ModelConfig) -> None:
        if not config.rerank_url.startswith(("http://", "https://")):
            raise ConfigError(
                "models.reranker is http: set models.rerank_url to the whole URL of the endpoint, "
                "as https://api.jina.ai/v1/rerank",
                key="models.rerank_url",
            )
        self.name = config.rerank_model or "http"
        self._model = config.rerank_model
        self._url = config.rerank_url
        self._endpoint = Endpoint(config.rerank_api_key.reveal(), config.timeout_s)

    async def rank(self, query: str, texts: list[str]) -> list[float]:
        """The score of each text.

        Raises:
            ModelError: the endpoint failed, left texts out, or answered with much more than scores.
        """
        body: dict[str, Any] = {"query": query, "documents": texts, "top_n": len(texts)}
        if self._model:
            body["model"] = self._model
        # many endpoints repeat the texts, and escape what is not ASCII
        max_bytes = _FRAME + sum(_PER_TEXT + 3 * len(text.encode()) for text in texts)
        answer = await self._endpoint.post(self._url, body, _decode, max_bytes=max_bytes)
        scores = [math.nan] * len(texts)
        for one in answer.results:
            if not 0 <= one.index < len(texts):
                raise ModelAnswerInvalid(f"it judged text {one.index} of {len(texts)}")
            scores[one.index] = one.relevance_score
        judged = {one.index for one in answer.results}
        if len(judged) != len(texts):
            raise ModelAnswerInvalid(f"it judged {len(judged)} of {len(texts)} texts")
        return scores

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()
