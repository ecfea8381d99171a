"""What may be a chat model: anything that answers a prompt, at once or piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from remora.errors import ConfigError
from remora.messages import ChatDict
from remora.models.ports import as_chat_model

pytestmark = pytest.mark.anyio

PIECES = ["What you ", "said: ", "hello"]


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


@pytest.mark.parametrize("model", [plain, later, stream, stream_later, stream_handed_over, Whole(), Streaming()], ids=str)
async def test_sync_async_and_streaming(model: Any) -> None:
    """S4.20: sync or async, whole or in pieces, callable or object: the answer is one text."""
    assert await as_chat_model(model).complete([{"role": "user", "content": "hello"}]) == "What you said: hello"


async def test_what_fails_within_a_stream() -> None:
    """S4.20: a stream that breaks off is a failure, not half an answer."""

    async def broken(prompt: str) -> AsyncIterator[str]:
        yield prompt
        raise OSError("cut off")

    with pytest.raises(OSError, match="cut off"):
        await as_chat_model(broken).complete([{"role": "user", "content": "hello"}])
    with pytest.raises(ConfigError):
        as_chat_model(7)  # type: ignore[arg-type]
