"""A session's buffer as its handle returns it: messages, search results, plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from remora.actors.policies.bm25 import bm25_scores
from remora.actors.session.messages import SessionView
from remora.errors import InvalidInput, InvalidMessage
from remora.messages import (
    ChatDict,
    Entry,
    Message,
    MessageLike,
    Role,
    decode_chat,
    plain_text,
)
from remora.models.ports import Embedder, embed_texts
from remora.recall.quotes import summary_message
from remora.recall.shown import shown_digests
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.threads import run_in_thread
from remora.services.archive import are_long, restore_messages
from remora.services.arguments import MAX_IDS
from remora.services.intake import Intake, PlainMessage, as_batch, as_messages
from remora.services.metadata import MetadataFilter
from remora.services.parts import Parts
from remora.storage.records import Summary

_IDS_SEPARATE = "ids of messages are given as ids=[…]"


class BufferHit(msgspec.Struct, frozen=True):
    """A message of the buffer that a search found; `score` is comparable within one search only."""

    message: Message
    score: float


async def messages_of(buffer: SessionView, instance: str) -> list[Message]:
    """The messages of the buffer."""
    return await run_in_thread_if(
        are_long(buffer.entries), restore_messages, instance, buffer.sid, buffer.entries
    )


def summaries_of(buffer: SessionView) -> list[Summary]:
    """The running summary, if there is one, and the summary entries, oldest first.

    Without one that is written again, since a message of it was deleted.
    """
    listed = [*([buffer.summary] if buffer.summary else []), *buffer.summaries]
    return [one for one in listed if not one.blank]


def summary_messages(
    parts: Parts, user: str, buffer: SessionView, prefix: str | None = None
) -> list[ChatDict]:
    """The summaries as messages, with their own prefix or this one; `record` will know them."""
    config = parts.config.context
    messages = [summary_message(one, config, prefix) for one in summaries_of(buffer)]
    parts.contexts.note_summaries(user, shown_digests(messages))
    return messages


async def filter_messages(
    buffer: SessionView,
    instance: str,
    role: Role | None,
    metadata: MetadataFilter,
    limit: int | None,
) -> list[Message]:
    """See `remora.Session.get_messages`."""
    entries = [entry for entry in buffer.entries if role is None or entry.role == role]
    filters = bool(metadata.conditions)
    if limit is not None and not filters:
        entries = entries[max(len(entries) - limit, 0) :]
    messages = await run_in_thread_if(
        are_long(entries), restore_messages, instance, buffer.sid, entries
    )
    if filters:
        messages = [one for one in messages if metadata.fits(one.metadata or {})]
    return messages if limit is None else messages[max(len(messages) - limit, 0) :]


def choose_embedder(intake: Intake, semantic: bool | None) -> Embedder | None:
    """Return what a search by meaning uses; None for a search by words.

    Raises:
        InvalidInput: `semantic` is set, and there is no embedder.
    """
    if semantic and intake.embedder is None:
        raise InvalidInput(
            "there is no embedder to search by meaning with: models.embedder is none"
        )
    by_meaning = intake.buffer.vector_search if semantic is None else semantic
    return intake.embedder if by_meaning else None


async def search_buffer(
    buffer: SessionView, instance: str, query: str, limit: int, embedder: Embedder | None
) -> list[BufferHit]:
    """The `limit` best matches, by meaning if there is an embedder, by words otherwise."""
    texts = await run_in_thread_if(
        are_long(buffer.entries),
        lambda: [plain_text(decode_chat(entry.chat)) for entry in buffer.entries],
    )
    if embedder is not None and texts:
        vectors = await embed_texts(embedder, [query, *texts])
        scores = [float(score) for score in vectors[1:] @ vectors[0]]
    else:
        scores = await run_in_thread(bm25_scores, query, texts)
    places = [place for place in range(len(texts)) if scores[place] > 0]
    best = sorted(places, key=lambda place: -scores[place])[:limit]
    entries = [buffer.entries[place] for place in best]
    found = await run_in_thread_if(
        are_long(entries), restore_messages, instance, buffer.sid, entries
    )
    return [BufferHit(message, scores[place]) for message, place in zip(found, best, strict=True)]


async def to_state(buffer: SessionView, instance: str) -> dict[str, Any]:
    """See `remora.Session.state_dict`."""
    return await run_in_thread_if(are_long(buffer.entries), _state_of, buffer, instance)


def _state_of(buffer: SessionView, instance: str) -> dict[str, Any]:
    """The buffer and the summaries as plain data."""
    messages = []
    for one in restore_messages(instance, buffer.sid, buffer.entries):
        state = {**one.to_chat(), "id": one.id}
        if one.created_at is not None:
            state["created_at"] = one.created_at.isoformat()
        if one.metadata:
            state["metadata"] = one.metadata
        messages.append(state)
    text = "\n".join(one.text for one in summaries_of(buffer)) or None
    return {"messages": messages, "summary": text}


def parse_state(state: Mapping[str, Any], *, strict: bool) -> tuple[list[PlainMessage], str | None]:
    """The messages and the summary of a `to_state`.

    Raises:
        InvalidInput: it has no ``messages``, and `strict` is set; or a summary that is not text.
        InvalidMessage: its messages are not a list.
    """
    if not isinstance(state, Mapping) or ("messages" not in state and strict):
        raise InvalidInput(
            "a state must be a dict with the key messages; pass strict=False to take one without"
        )
    messages = state.get("messages", [])
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise InvalidMessage(
            f"the messages of a state must be a list, not {type(messages).__name__}"
        )
    text = state.get("summary")
    if text is not None and not isinstance(text, str):
        raise InvalidInput(f"the summary of a state must be text, not {type(text).__name__}")
    return as_messages(messages, most=MAX_IDS), text or None


async def encode_all(intake: Intake, user: str, messages: Sequence[MessageLike]) -> list[Entry]:
    """Encode messages that may be none."""
    if isinstance(messages, (list, tuple)) and not messages:
        return []
    return await intake.encode(user, as_batch(messages))
