"""Intake of messages: check, redact, encode once, count once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio.to_thread
import msgspec

from remora.actors.policies.redaction import redact_chat, redact_metadata, redact_text
from remora.actors.policies.scoring import NEUTRAL_SCORE, validate_score
from remora.actors.policies.summary import shorten
from remora.config import BufferConfig
from remora.errors import InvalidMessage
from remora.logging import get_logger
from remora.messages import (
    ChatDict,
    Entry,
    Message,
    MessageLike,
    encode_message,
    without_surrogates,
)
from remora.models.cache import CachingEmbedder
from remora.runtime.clock import Clock
from remora.services.arguments import MAX_PARTS, collect
from remora.storage.records import Summary
from remora.tokens import INLINE_CHARACTERS, TokenCounter, count_message

__all__ = ["Intake", "as_batch"]

_logger = get_logger(__name__)
_INLINE_MESSAGES = 100  # encoded on the event loop: about a millisecond


class Intake(msgspec.Struct, frozen=True):
    """What every message and memory passes through on its way in.

    Attributes:
        buffer: bounds the size of a message.
        counter: counts tokens.
        clock: says when a message came that does not say it itself.
        redact: replaces every text before the journal sees it.
        scorer: says what a chat message is worth keeping.
        embedder: None if there is none.
    """

    buffer: BufferConfig
    counter: TokenCounter
    clock: Clock
    redact: Callable[[str], str] | None
    scorer: Callable[[ChatDict], float] | None
    embedder: CachingEmbedder | None

    async def encode(self, batch: Sequence[MessageLike]) -> list[Entry]:
        """The entries of a batch, not yet numbered.

        Made in a thread if they are many, counted in one if they are long.

        Raises:
            InvalidMessage: one of them is not a chat message.
            RedactionFailed: the redaction hook failed on one of them.
        """
        for index, message in enumerate(batch):
            _check_parts(message, index)
        now_us = int(self.clock.time() * 1_000_000)
        if len(batch) > _INLINE_MESSAGES:
            encoded = await anyio.to_thread.run_sync(self._encode, batch, now_us)
        else:
            encoded = self._encode(batch, now_us)
        size = 0
        for entry, _ in encoded:
            size += len(entry.chat)
        if size > INLINE_CHARACTERS:
            counts = await anyio.to_thread.run_sync(_count_tokens, self.counter, encoded)
        else:
            counts = _count_tokens(self.counter, encoded)
        scorer = self.scorer
        return [
            e.with_weight(tokens, NEUTRAL_SCORE if scorer is None else _score(scorer, chat))
            for (e, chat), tokens in zip(encoded, counts, strict=True)
        ]

    def _encode(self, batch: Sequence[MessageLike], now_us: int) -> list[tuple[Entry, ChatDict]]:
        limit = self.buffer.max_message_bytes
        encoded = [
            encode_message(message, index=i, max_bytes=limit, now_us=now_us)
            for i, message in enumerate(batch)
        ]
        if self.redact is None:
            return encoded
        return [_redact_entry(pair, i, self.redact, limit) for i, pair in enumerate(encoded)]

    async def restore_summary(self, text: str) -> Summary:
        """A summary from outside: redacted, and no longer than one of remora's own."""
        if self.redact is not None:
            text = redact_text(text, self.redact)
        prefix, counter = self.buffer.summary_prefix, self.counter
        room = self.buffer.summary_tokens - counter.message_overhead - counter.count(prefix)
        text = await anyio.to_thread.run_sync(
            shorten, without_surrogates(text), max(room, 1), counter
        )
        tokens = count_message(counter, {"role": "system", "content": prefix + text})
        return Summary(0, prefix, text, tokens, degraded=False, model="restored")

    async def count_texts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text; counted in a thread if they are long."""
        count = self.counter.count
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            return [count(text) for text in texts]
        return await anyio.to_thread.run_sync(lambda: [count(text) for text in texts])

    def now_us(self) -> int:
        """Microseconds since the epoch."""
        return int(self.clock.time() * 1_000_000)


def as_batch(messages: MessageLike | Iterable[MessageLike]) -> list[MessageLike]:
    """One message or many, as a list.

    Raises:
        InvalidMessage: it is neither, or there is none.
        InvalidInput: more than `MAX_BATCH`.
    """
    # a dict is the usual case, and the check of an abstract class is slow
    if isinstance(messages, (dict, Message, Mapping)):
        return [messages]
    found: object = messages
    if isinstance(found, (str, bytes)) or not isinstance(messages, Iterable):
        raise InvalidMessage(
            "a message is a dict in the OpenAI chat format or a remora.Message, not "
            f"{type(messages).__name__}"
        )
    batch = collect(messages, "messages")
    if not batch:
        raise InvalidMessage("there is no message to append")
    return batch


def _check_parts(message: object, index: int) -> None:
    """Refuse what would take the interpreter long at one go.

    Raises:
        InvalidMessage: it has more than `MAX_PARTS` content parts or tool calls.
    """
    if isinstance(message, Message):
        several: tuple[object, ...] = (message.content, message.tool_calls)
    elif isinstance(message, Mapping):
        several = (message.get("content"), message.get("tool_calls"))
    else:
        return
    for one in several:
        if isinstance(one, (list, tuple)) and len(one) > MAX_PARTS:
            raise InvalidMessage(
                f"message {index} has {len(one)} content parts or tool calls; at most {MAX_PARTS} "
                "are allowed",
                index=index,
            )


def _count_tokens(counter: TokenCounter, encoded: Sequence[tuple[Entry, ChatDict]]) -> list[int]:
    return [count_message(counter, chat) for _, chat in encoded]


def _redact_entry(
    pair: tuple[Entry, ChatDict], index: int, redact: Callable[[str], str], limit: int
) -> tuple[Entry, ChatDict]:
    entry, chat = pair
    message: dict[str, Any] = redact_chat(chat, redact)
    if entry.meta:
        message["metadata"] = redact_metadata(msgspec.msgpack.decode(entry.meta), redact)
    if entry.id is not None:
        message["id"] = entry.id
    fresh, chat = encode_message(message, index=index, max_bytes=limit)
    return msgspec.structs.replace(fresh, at_us=entry.at_us), chat


def _score(scorer: Callable[[ChatDict], float], chat: ChatDict) -> float:
    """The scorer's answer; neutral if it fails, since keeping the message matters more."""
    try:
        return validate_score(
            scorer(chat), str(getattr(scorer, "__qualname__", type(scorer).__qualname__))
        )
    except Exception:
        _logger.exception("scorer_failed")
        return NEUTRAL_SCORE
