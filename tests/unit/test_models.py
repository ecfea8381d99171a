"""What may be a chat model: anything that answers a prompt, at once or piece by piece; and what
becomes of garbage.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from remora.actors.policies.summary import shorten
from remora.errors import ConfigError, ModelAnswerInvalid
from remora.messages import ChatDict
from remora.models.ports import as_chat_model, embed_texts
from remora.testing import FaultyEmbedder, HashEmbedder
from remora.testing.models import GARBAGE_VECTORS
from remora.tokens import CallableCounter, TiktokenCounter

pytestmark = pytest.mark.anyio


def plain(prompt: str) -> str:
    return f"What you said: {prompt}"


async def later(prompt: str) -> str:
    return f"What you said: {prompt}"


def stream(prompt: str) -> Iterator[str]:
    yield from ["What you ", "said: ", prompt]


async def stream_later(prompt: str) -> AsyncIterator[str]:
    for piece in ["What you ", "said: ", prompt]:
        yield piece


async def stream_handed_over(prompt: str) -> AsyncIterator[str]:
    return stream_later(prompt)


class Whole:
    async def complete(self, messages: Sequence[ChatDict]) -> str:
        return plain(messages[0]["content"])


class Streaming:
    name = "streaming"

    async def complete(self, messages: Sequence[ChatDict]) -> AsyncIterator[str]:
        async for piece in stream_later(messages[0]["content"]):
            yield piece


async def test_sync_async_and_streaming() -> None:
    """S4.20: sync or async, whole or in pieces, callable or object: the answer is one text."""
    models: tuple[Any, ...] = (
        *(plain, later, stream, stream_later, stream_handed_over),
        Whole(),
        Streaming(),
    )
    for model in models:
        answer = await as_chat_model(model).complete([{"role": "user", "content": "hello"}])
        assert answer == "What you said: hello", model


def endless(prompt: str) -> Iterator[str]:
    while True:
        yield prompt * 1_000


async def endless_later(prompt: str) -> AsyncIterator[str]:
    while True:
        yield ""


async def test_an_endless_answer_is_stopped() -> None:
    """G10: also one whose thread nobody waits for any more."""
    models: tuple[Any, ...] = (endless, endless_later, lambda prompt: prompt * 1_000_000)
    for model in models:
        with pytest.raises(ModelAnswerInvalid, match="longer than"):
            await as_chat_model(model).complete([{"role": "user", "content": "hello"}])


async def test_what_fails_within_a_stream() -> None:
    """S4.20: a stream that breaks off is a failure, not half an answer."""

    async def broken(prompt: str) -> AsyncIterator[str]:
        yield prompt
        raise OSError("cut off")

    with pytest.raises(OSError, match="cut off"):
        await as_chat_model(broken).complete([{"role": "user", "content": "hello"}])
    with pytest.raises(ConfigError):
        as_chat_model(7)  # type: ignore[arg-type]


async def test_an_embedder_that_answers_garbage_is_told_so() -> None:
    """G6: never a vector that is none, nor one of zeros for numbers too large to be told apart (it
    came as one).
    """
    for garbage in GARBAGE_VECTORS:
        embedder = FaultyEmbedder(HashEmbedder(4), lambda: "garbage", garbage=[garbage])
        with pytest.raises(ModelAnswerInvalid):
            await embed_texts(embedder, ["tea", "boats"])


def test_an_endless_answer_is_cut_before_it_is_counted() -> None:
    """G5: a million letters took the event loop a second to count, for everybody (it counted all of
    them).
    """
    exact, longest = TiktokenCounter(), [0]

    def count(piece: str) -> int:
        longest[0] = max(longest[0], len(piece))
        return exact.count(piece)

    for text in ("a" * 1_000_000, "and so on and " * 100_000, "=" * 1_000_000):
        short = shorten(text, 80, CallableCounter(count))
        assert exact.count(short) <= 80
        assert text.startswith(short.removesuffix(" …"))
        assert len(short) > 200
        assert longest[0] < 20_000


def test_what_just_fits_is_left_alone() -> None:
    """S1.27: the bound is in tokens; a long text of few tokens is no endless one."""
    text = "=" * 5_120
    assert shorten(text, TiktokenCounter().count(text), TiktokenCounter()) == text
