"""From what a caller hands over to entries: checked, redacted, encoded once, counted once, and
weighed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import anyio.to_thread
import msgspec

from remora.actors.policies.redaction import redact_chat, redact_metadata
from remora.actors.policies.scoring import NEUTRAL_SCORE, validate_score
from remora.config import Config
from remora.errors import InvalidMessage
from remora.logging import get_logger
from remora.messages import ChatDict, Entry, Message, MessageLike, encode_message
from remora.runtime.clock import Clock
from remora.tokens import INLINE_CHARACTERS, TokenCounter, count_message

__all__ = ["Door", "batch_of", "encode_entries"]

_logger = get_logger("remora.door")


class Door(Protocol):
    """What stands at the door of a runtime."""

    @property
    def config(self) -> Config:
        """For the largest message."""
        ...

    @property
    def counter(self) -> TokenCounter:
        """Counts tokens."""
        ...

    @property
    def clock(self) -> Clock:
        """Says when a message came that does not say it itself."""
        ...

    @property
    def redact(self) -> Callable[[str], str] | None:
        """Goes over every text before the journal sees it."""
        ...

    @property
    def scorer(self) -> Callable[[ChatDict], float] | None:
        """Says what a message is worth keeping."""
        ...


def batch_of(messages: MessageLike | Iterable[MessageLike]) -> list[MessageLike]:
    """One message or many, as a list.

    Raises:
        InvalidMessage: it is neither, or there is none.
    """
    if isinstance(
        messages, (dict, Message, Mapping)
    ):  # of a dict, the look at an abstract class is saved
        return [messages]
    found: object = messages
    if isinstance(found, (str, bytes)) or not isinstance(messages, Iterable):
        raise InvalidMessage(
            "a message is a dict in the OpenAI chat format or a remora.Message, not "
            f"{type(messages).__name__}"
        )
    batch = list(messages)
    if not batch:
        raise InvalidMessage("there is no message to append")
    return batch


async def encode_entries(door: Door, batch: Sequence[MessageLike]) -> list[Entry]:
    """The entries of a batch, not yet numbered.

    Batches over 16 000 characters are counted in a thread.

    Raises:
        InvalidMessage: one of them is no chat message.
        RedactionFailed: the redaction hook failed on one of them.
    """
    limit, now_us = door.config.buffer.max_message_bytes, int(door.clock.time() * 1_000_000)
    encoded = [
        encode_message(message, index=i, max_bytes=limit, now_us=now_us)
        for i, message in enumerate(batch)
    ]
    if door.redact is not None:
        encoded = [_redact_entry(pair, i, door.redact, limit) for i, pair in enumerate(encoded)]
    size = 0
    for entry, _ in encoded:
        size += len(entry.chat)
    if size > INLINE_CHARACTERS:
        counts = await anyio.to_thread.run_sync(_count_tokens, door.counter, encoded)
    else:
        counts = _count_tokens(door.counter, encoded)
    scorer = door.scorer
    return [
        e.with_weight(tokens, NEUTRAL_SCORE if scorer is None else _score(scorer, chat))
        for (e, chat), tokens in zip(encoded, counts, strict=True)
    ]


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
    """What a scorer says.

    One that fails leaves the message neutral, for what is said matters more than what it is worth.
    """
    try:
        return validate_score(
            scorer(chat), str(getattr(scorer, "__qualname__", type(scorer).__qualname__))
        )
    except Exception:
        _logger.exception("scorer_failed")
        return NEUTRAL_SCORE
