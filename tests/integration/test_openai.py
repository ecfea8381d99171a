"""A real OpenAI-compatible endpoint on loopback: it works, refuses, hangs, or talks nonsense."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remora import Config, Runtime
from remora.config import ModelConfig, Secret
from remora.errors import (
    ConfigError,
    ModelAnswerInvalid,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
)
from remora.models.openai import OpenAIChatModel, OpenAIEmbedder
from tests.endpoints import Answer, Endpoint, started_endpoint
from tests.patience import until

pytestmark = pytest.mark.anyio
ASKED: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with started_endpoint() as endpoint:
        yield endpoint


def models(endpoint: Endpoint, **more: Any) -> ModelConfig:
    known: dict[str, Any] = {"embedding_dimension": 4, "timeout_s": 600, **more}
    return ModelConfig(base_url=endpoint.url, api_key=Secret("sk-test"), **known)


async def test_chat_and_embeddings(endpoint: Endpoint) -> None:
    """S0.10, S4.20: requests as the API wants them, answers in the order of the texts."""
    chat, embedder = OpenAIChatModel(models(endpoint)), OpenAIEmbedder(models(endpoint))
    assert await chat.complete(ASKED) == "They spoke of 5 characters."
    vectors = await embedder.embed(["a", "", "ccc"])
    assert vectors.dtype == np.float32
    assert vectors[:, 0].tolist() == [1.0, 1.0, 3.0]
    assert [path for path, _, _ in endpoint.requests] == ["/v1/chat/completions", "/v1/embeddings"]
    assert all(authorization == "Bearer sk-test" for _, authorization, _ in endpoint.requests)
    await chat.aclose()
    await embedder.aclose()


async def test_nonsense(endpoint: Endpoint) -> None:
    """S4.30: whatever the endpoint says, the error is ours."""
    nonsense: list[tuple[Answer, type[Exception]]] = [
        ((500, b"{}"), ModelUnavailable),
        ((401, b'{"error": "bad key"}'), ModelUnavailable),
        ((200, b"<html>proxy</html>"), ModelAnswerInvalid),
        ((200, b"{}"), ModelAnswerInvalid),
        ((200, b'{"choices": []}'), ModelAnswerInvalid),
        ((200, b'{"choices": [{"message": {"content": "  "}}]}'), ModelAnswerInvalid),
        ((200, b'{"choices": [{"message": {"content": 7}}]}'), ModelAnswerInvalid),
    ]
    chat = OpenAIChatModel(models(endpoint))
    for answer, error in nonsense:
        endpoint.answer = lambda *_, said=answer: said
        with pytest.raises(error):
            await chat.complete(ASKED)
    await chat.aclose()


async def test_refused_and_timed_out(endpoint: Endpoint) -> None:
    """S4.30: a dead port and a silent one."""
    hang = endpoint.hang

    def silent(*_: Any) -> Answer:
        hang.wait()
        return 500, b"{}"

    endpoint.answer = silent
    slow = OpenAIChatModel(models(endpoint, timeout_s=0.2))
    with pytest.raises(ModelTimeout):
        await slow.complete(ASKED)
    await slow.aclose()
    dead = OpenAIChatModel(ModelConfig(base_url="http://127.0.0.1:9", timeout_s=600))
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        await dead.complete(ASKED)
    await dead.aclose()


async def test_large_answers(endpoint: Endpoint) -> None:
    """They are read in a thread: the same vectors and texts, and the same errors."""
    embedder, chat = OpenAIEmbedder(models(endpoint)), OpenAIChatModel(models(endpoint))
    texts = ["x" * n for n in range(2_000)]
    assert (await embedder.embed(texts))[:, 0].tolist() == [max(n, 1) for n in range(2_000)]
    said = "word " * 40_000
    answer = {"choices": [{"message": {"content": said}}]}
    endpoint.answer = lambda *_: (200, json.dumps(answer).encode())
    assert await chat.complete(ASKED) == said
    endpoint.answer = lambda *_: (200, b"[" * 500_000)
    for asked in (chat.complete(ASKED), embedder.embed(["a"])):
        with pytest.raises(ModelAnswerInvalid):
            await asked
    endpoint.answer = lambda *_: (503, b"no " * 500_000)
    with pytest.raises(ModelUnavailable, match=r"answered 503$"):
        await chat.complete(ASKED)
    endpoint.answer = lambda *_: (400, b"no " * 500_000)
    with pytest.raises(ModelError, match=r"answered 400$"):
        await chat.complete(ASKED)
    await embedder.aclose()
    await chat.aclose()


SECRET = "the violin is hidden"


class RefusedError(Exception):
    """As clients of endpoints raise it: its text has the answer."""

    def __init__(self, status_code: int, answer: str) -> None:
        super().__init__(f"Error code: {status_code} - {answer}")
        self.status_code = status_code


@pytest.mark.parametrize("status", [400, 429, 500])
@pytest.mark.parametrize("plugged", [False, True], ids=["endpoint", "client"])
async def test_no_log_has_what_an_endpoint_answers(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture, status: int, *, plugged: bool
) -> None:
    """A refusal may repeat the prompt: no line, traceback or dead letter has it."""
    endpoint.answer = lambda _, body: (status, json.dumps({"error": body}).encode())

    async def complete(prompt: str) -> str:
        raise RefusedError(status, prompt)

    async def embed(texts: Sequence[str]) -> Any:
        raise RefusedError(status, texts[0])

    models: dict[str, Any] = {"summarizer": "openai", "embedder": "openai"}
    models |= {"chat_model": "m", "embedding_model": "e", "embedding_dimension": 4}
    tree = {
        "buffer": {"token_limit": 100, "summary_tokens": 40},
        "facts": {"enabled": True},
        "models": {**models, "base_url": endpoint.url},
        "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.02, "max_attempts": 2},
        "tokens": {"counter": "heuristic"},
    }
    plug_ins: dict[str, Any] = {"chat_model": complete, "embedder": embed} if plugged else {}
    caplog.set_level(logging.DEBUG)
    async with Runtime.in_memory(config=Config.from_dict(tree), **plug_ins) as runtime:
        chat = runtime.session("alice", "chat")
        for number in range(20):
            await chat.append({"role": "user", "content": f"{number}: {SECRET}"})
        await until(lambda: "summary_degraded" in caplog.text)
        found = await chat.load("violin")
        told = [str(one) for _, one in found.sources.items()]
        with pytest.raises(ModelError) as refused:
            await runtime.user("alice").learn(SECRET)
        told += [one.error for one in await runtime.dead_letters()]
        told += traceback.format_exception(refused.value)
    own = [one for one in caplog.records if one.name.startswith("remora")]
    told += [logging.Formatter().format(one) for one in own]
    assert any(str(status) in one for one in told if one)
    assert [one for one in told if "violin" in str(one)] == []


async def test_wrong_vectors(endpoint: Endpoint) -> None:
    """S2.10: too few, or of another dimension."""
    embedder = OpenAIEmbedder(models(endpoint))
    for vectors in ([], [[1.0, 2.0]], [[1.0, 2.0, 3.0, 4.0], [1.0]]):
        data = [{"index": i, "embedding": v} for i, v in enumerate(vectors)]
        endpoint.answer = lambda *_, d=data: (200, json.dumps({"data": d}).encode())
        with pytest.raises(ModelAnswerInvalid):
            await embedder.embed(["a"] * max(len(vectors), 1))
    await embedder.aclose()


async def test_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.34: the missing key is named, and where it may be put; the environment gives base URL and
    key.
    """
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAIChatModel(ModelConfig())


async def test_runtime_over_http(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.10, S4.03, G6: a whole runtime on the endpoint; when it breaks down, summaries degrade
    visibly and nothing is lost.
    """
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    config = Config.from_dict(
        {
            "buffer": {"token_limit": 300, "summary_tokens": 80},
            "models": {
                "summarizer": "openai",
                "embedder": "openai",
                "embedding_dimension": 4,
                "timeout_s": 600,
            },
            "supervisor": {"max_attempts": 2, "backoff_s": 0.01, "max_backoff_s": 0.1},
            "long_term": {"batch_ms": 5},
            "recall": {"deadline_s": 600},
        }
    )
    async with Runtime(tmp_path, config=config) as runtime:
        chat = runtime.session("alice", "one")

        async def chat_on(numbers: range) -> None:
            for number in numbers:
                said = f"Sentence number {number} is about gardens and trees."
                await chat.append({"role": "user", "content": said})

        await chat_on(range(24))
        await chat.settle()
        context = await chat.load()
        assert (context.summary or "").startswith("They spoke of")
        assert context.sources["summary"].status == "ok"
        assert {authorization for _, authorization, _ in endpoint.requests} == {"Bearer sk-env"}
        assert len(await runtime.user("alice").recall("gardens", limit=3)) == 3
        endpoint.answer = lambda *_: (503, b"overloaded")
        await chat_on(range(24, 44))

        async def degraded() -> Any:
            return (await chat.load()).sources["summary"].status == "degraded"

        await until(degraded, "the summary is degraded")
        assert (await chat.load(query="trees")).sources["long_term"].status == "failed"
        # with room beside messages that wait for the next summary
        found = (await chat.load(query="gardens", max_tokens=3_000)).sources.long_term
        assert found.status == "ok", "S2.05: its vector is at hand"
        assert found.count > 0
        assert len(await chat.history()) == 44
        endpoint.answer = endpoint.sensible
        await chat.settle()
        assert await runtime.dead_letters() == []
        # with room beside the profile, which may be written by now
        context = await chat.load(query="gardens", max_tokens=400)
        assert context.sources.long_term.count > 0
