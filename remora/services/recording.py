"""Intake of memories: check, redact, count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from remora.actors.policies.importance import DEFAULT_IMPORTANCE
from remora.actors.policies.redaction import redact_text
from remora.config import BufferConfig
from remora.errors import (
    CommitFailed,
    InvalidInput,
    OutcomeUnknown,
    RecordingFailed,
)
from remora.ids import actor_key, keyed_memory_id, memory_id, validate_id
from remora.jobs.rows import LISTED_TYPES, MEMORY_TYPES
from remora.messages import (
    MessageLike,
    dated_line,
    decode_chat,
    encode_message,
    parse_time,
    plain_text,
    without_surrogates,
)
from remora.recall.quotes import said_in
from remora.recall.shown import text_digest
from remora.runtime.concurrency import run_in_thread_if
from remora.services.arguments import check_choice, check_length, collect
from remora.services.intake import Intake, are_large, as_messages
from remora.services.metadata import check_metadata
from remora.storage.records import MemoryItem

_KEYS = frozenset(
    {"content", "type", "importance", "session", "agent", "created_at", "key", "metadata"}
)
_RECORDED_ROLES = ("user", "assistant")


@contextmanager
def name_failures(op: str, user: str, session: str = "") -> Iterator[None]:
    """Have a failure of the journal say what was being recorded.

    Raises:
        RecordingFailed: for CommitFailed and OutcomeUnknown.
    """
    try:
        yield
    except (CommitFailed, OutcomeUnknown) as e:
        raise RecordingFailed(
            f"{op} failed for {actor_key(user, session).words}: {e}",
            op=op,
            user=user,
            session=session,
            cause=type(e).__name__,
        ) from e


def make_item(
    intake: Intake,
    user: str,
    content: object,
    defaults: Mapping[str, Any],
    agent_of: Callable[[str | None], str | None],
) -> MemoryItem:
    """A memory, its tokens not yet counted.

    Args:
        intake: of the runtime.
        user: whose it is.
        content: a text, or a dict; see `remora.api.memories.MemoryLike`.
        defaults: for the keys that the dict does not have.
        agent_of: checks whose memory it may be.

    Raises:
        InvalidInput: a value that is missing or out of range.
        RedactionFailed: the redaction hook failed on it.
    """
    given: Mapping[str, Any] = {"content": content}
    if isinstance(content, Mapping):
        given = content
        if unknown := sorted(set(map(str, content)) - _KEYS):
            raise InvalidInput(
                f"a memory has no {', '.join(unknown):.80}; it may have {', '.join(sorted(_KEYS))}"
            )
    values = {**defaults, **{key: value for key, value in given.items() if value is not None}}
    kind = values["type"]
    text = clean_text(intake, values.get("content"))
    check_choice(kind, "a memory's type", MEMORY_TYPES)
    agent = agent_of(values["agent"]) or ""
    session = values["session"]
    key = values.get("key")
    if key is not None:
        key = validate_id(key, "a memory's key")
    return MemoryItem(
        id=keyed_memory_id(user, agent, key) if key else memory_id(user, agent, text),
        session="" if session is None else validate_id(session, "a session id"),
        agent=agent,
        content=text,
        type=kind,
        importance=check_importance(values["importance"]),
        created_us=_parse_created_at(intake, values.get("created_at")),
        tokens=0,
        key=key or "",
        metadata="" if (metadata := values.get("metadata")) is None else check_metadata(metadata),
    )


def clean_text(intake: Intake, text: object) -> str:
    """The text of a memory, redacted.

    Raises:
        InvalidInput: it is no text, empty or too long.
        RedactionFailed: the redaction hook failed on it.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a memory must be text, not {type(text).__name__}")
    text = without_surrogates(text)
    if intake.redact is not None:
        text = without_surrogates(redact_text(text, intake.redact))
    if not text.strip():
        raise InvalidInput("a memory must not be empty")
    check_length(text, "a memory")
    limit = intake.buffer.max_message_bytes
    if len(text.encode()) > limit:
        raise InvalidInput(f"a memory has {len(text.encode())} bytes; at most {limit} are allowed")
    return text


def check_importance(value: object) -> float:
    """The importance; the default for None.

    Raises:
        InvalidInput: it is no number from 0 to 1.
    """
    if value is None:
        return DEFAULT_IMPORTANCE
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not 0 <= value <= 1
    ):
        raise InvalidInput(f"importance must be a number from 0 to 1, not {value!r:.40}")
    return float(value)


def _parse_created_at(intake: Intake, value: object) -> int:
    if value is None:
        return int(intake.clock.time() * 1_000_000)
    try:
        return parse_time(value)
    except ValueError as e:
        raise InvalidInput(f"created_at {e}") from e


def conversation_texts(
    messages: MessageLike | Iterable[MessageLike],
    buffer: BufferConfig,
) -> list[tuple[str, bytes]]:
    """Return what the user and the assistant said in these messages, each with its digest.

    What remora added to a message of a context is left out: an agent may record a whole context
    again. Whether a text is a summary that remora wrote, its digest tells.

    Args:
        messages: one or many.
        buffer: for the largest message.

    Raises:
        InvalidMessage: one of them is not a chat message.
    """
    texts = []
    for number, message in enumerate(as_messages(messages)):
        entry, _ = encode_message(message, index=number, max_bytes=buffer.max_message_bytes)
        chat = decode_chat(entry.chat)
        chat.pop("tool_calls", None)
        text = said_in(plain_text(chat))
        if entry.role in _RECORDED_ROLES and text.strip():
            texts.append((text, text_digest(text)))
    return texts


async def count_items(intake: Intake, items: Sequence[MemoryItem]) -> tuple[MemoryItem, ...]:
    """The memories with their tokens; counted in a thread if they are many or long."""
    count = intake.counter.count

    def counted() -> tuple[MemoryItem, ...]:
        return tuple(
            msgspec.structs.replace(item, tokens=count(dated_line(item.created_us, item.content)))
            for item in items
        )

    return await run_in_thread_if(are_large([item.content for item in items]), counted)


def check_types(types: str | Iterable[str] | None) -> tuple[str, ...]:
    """Memory types, sorted; empty for all of them.

    Raises:
        InvalidInput: an unknown one, or an empty list.
    """
    if types is not None and not isinstance(types, Iterable):
        raise InvalidInput(f"types must be texts, not {types!r:.40}")
    kinds = () if types is None else (types,) if isinstance(types, str) else collect(types, "types")
    if types is not None and not kinds:
        raise InvalidInput("no memory type is given; leave types out for all of them")
    for kind in kinds:
        check_choice(kind, "a memory's type", LISTED_TYPES)
    return tuple(sorted(set(kinds)))
