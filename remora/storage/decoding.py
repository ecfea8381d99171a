"""From rows back to records. Every row's checksum is verified: a row that differs is damaged."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import msgspec

from remora.errors import JournalDamaged
from remora.ids import SessionKey, UserKey, actor_key, words_of
from remora.logging import get_logger
from remora.messages import Entry, decode_chat
from remora.runtime.jobs import Job
from remora.storage.records import MemoryItem, Spec, StateItem, Summary
from remora.storage.rows import ROLES, SEQ_BITS, SHARES, FactDetails, FallbackCover, row_crc

_logger = get_logger(__name__)
SEQ_MASK = (1 << SEQ_BITS) - 1
ENTRY_COLUMNS = (
    "m.pos, m.at_us, m.tokens, m.role, m.chat, m.meta, m.id, m.importance, m.key, m.batch, m.crc"
)
JOB_COLUMNS = (
    "j.id, j.queue, s.user, s.session, j.payload, j.attempts, j.not_before, j.dead, j.error, "
    "j.sid, j.crc"
)
SUMMARY_COLUMNS = (
    "f.sid, f.at_seq, f.kind, f.generation, f.first, f.through, f.prefix, f.text, f.tokens, "
    "f.degraded, f.model, f.input_tokens, f.cover, f.crc"
)
STATE_ITEM_COLUMNS = "x.sid, x.kind, x.name, x.value, x.crc"
MEMORY_COLUMNS = (
    "m.id, m.sid, m.session, m.agent, m.content, m.type, m.importance, m.created_us, m.tokens, "
    "m.details, m.crc"
)
ACTOR, MESSAGE, SUMMARY, DIGEST, WITH_IDS, STATE_ITEM, JOB = range(7)
"""Kinds of rows in the image of an actor."""
_SUMMARY_TEXTS = (6, 7, 10)  # prefix, text and model
_MEMORY_TEXTS = (3, 4, 5)  # agent, content and type
_IN_THREAD = 500  # rows from which on decoding them is a thread's work
_BYTES_IN_THREAD = 200_000
_decode_payload = msgspec.msgpack.Decoder(Spec).decode
_decode_details = msgspec.msgpack.Decoder(FactDetails).decode
_decode_cover = msgspec.msgpack.Decoder(FallbackCover).decode


class RowDamaged(ValueError):
    """A row does not agree with its checksum, or cannot be read; the text says which."""


def are_long(rows: Sequence[Sequence[Any]], *columns: int) -> bool:
    """Return whether decoding these rows would hold the event loop for milliseconds.

    Args:
        rows: of one table or several.
        columns: places of what can be long in a row.
    """
    if len(rows) >= _IN_THREAD:
        return True
    size = 0
    for row in rows:
        for column in columns:
            value = row[column]
            if isinstance(value, (bytes, str)):
                size += len(value)
    return size > _BYTES_IN_THREAD


def as_text(value: Any) -> Any:
    """Return the text of a column, which a database may keep as bytes.

    What is not UTF-8 is damage of one row, so that it must not fail a query over others.
    """
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def checksum_differs(crc: int | None, values: tuple[Any, ...]) -> bool:
    """Return whether a row is not as it was written.

    A summary that lost its text has no checksum, and is not.
    """
    if crc is None:
        return False
    try:
        return crc != row_crc(values)
    except (ValueError, TypeError, OverflowError):  # a value that cannot have been written
        return True


def row_damage(key: Hashable, what: object) -> JournalDamaged:
    """The error for a damaged row of an actor."""
    return JournalDamaged(
        f"the journal is damaged: of {words_of(key)}, {what}; `remora verify` lists all damage, a "
        "backup may have it"
    )


def decode_key(
    sid: int, user: str, session: str, created_us: int, crc: int | None
) -> SessionKey | UserKey:
    """The key of an actor's row, verified.

    Raises:
        RowDamaged: it is not as it was written: its owner is not known.
    """
    if checksum_differs(crc, (sid, user, session, created_us)):
        raise RowDamaged(f"the name of the actor {sid} is not as it was written")
    return actor_key(user, session)


def decode_jobs(rows: Iterable[Sequence[Any]]) -> list[Job]:
    """The jobs in rows of `JOB_COLUMNS`.

    A damaged one is logged and left out.
    """
    found = []
    for row in rows:
        try:
            found.append(_job(*row))
        except (msgspec.DecodeError, RowDamaged) as e:
            _logger.error("job_unreadable", job=row[0], queue=row[1], error=str(e))
    return found


def _job(
    id_: str, queue: str, user: str, session: str, payload: bytes, attempts: int,
    not_before: float, dead: int, error: str, sid: int, crc: int | None,
) -> Job:  # fmt: skip
    if checksum_differs(crc, (id_, queue, sid, payload)):
        raise RowDamaged(f"the job {id_} is not as it was written")
    key = actor_key(user, session)
    return Job(
        id_,
        queue,
        key,
        _decode_payload(payload),
        attempts,
        not_before,
        resumed=True,
        dead=bool(dead),
        error=as_text(error),
    )


def decode_entry(row: tuple[Any, ...]) -> Entry:
    """The message in a row of `ENTRY_COLUMNS`.

    Raises:
        RowDamaged: it is not as it was written.
    """
    pos, at_us, tokens, code, chat, meta, id_, importance, digest, batch, crc = row
    try:
        share = SHARES // 2 if importance == 0.5 else int(importance * SHARES)
        if checksum_differs(crc, (pos, at_us, tokens, code, chat, meta, id_, share, digest, batch)):
            raise RowDamaged(f"message {pos & SEQ_MASK} is not as it was written")
        role = ROLES[code]
        calls: tuple[str, ...] = ()
        answers = None
        if role == "assistant" and b"tool_calls" in chat:
            calls = tuple(call["id"] for call in decode_chat(chat).get("tool_calls") or ())
        elif role == "tool":
            answers = decode_chat(chat)["tool_call_id"]
    except (msgspec.DecodeError, LookupError, TypeError, OverflowError) as e:
        raise RowDamaged(f"message {pos & SEQ_MASK} cannot be read ({e})") from e
    return Entry(pos & SEQ_MASK, at_us, tokens, role, chat, meta, id_, calls, answers, importance)


def decode_summary(row: Sequence[Any]) -> tuple[str, int, Summary]:
    """Kind, generation and summary in a row of `SUMMARY_COLUMNS`.

    Raises:
        RowDamaged: it is not as it was written.
    """
    *values, cover, crc = row
    for column in _SUMMARY_TEXTS:
        values[column] = as_text(values[column])
    # the checksum of a row without it is of the other values
    if checksum_differs(crc, tuple(values) if cover is None else (*values, cover)):
        raise RowDamaged(f"a summary up to message {row[5]} is not as it was written")
    _, _, kind, generation, first, through, prefix, text, tokens, degraded, model, input_tokens = (
        values
    )
    summary = Summary(through, prefix, text, tokens, bool(degraded), model, first, input_tokens)
    if cover is not None:
        try:
            found = _decode_cover(cover)
        except (msgspec.DecodeError, TypeError) as e:
            raise RowDamaged(f"a summary up to message {through} cannot be read ({e})") from e
        summary = msgspec.structs.replace(summary, **msgspec.structs.asdict(found))
    return kind, generation, summary


def decode_state_item(row: Sequence[Any]) -> StateItem:
    """The state item in a row of `STATE_ITEM_COLUMNS`.

    Raises:
        RowDamaged: it is not as it was written.
    """
    sid, kind, name, value, crc = row
    name = as_text(name)
    if checksum_differs(crc, (sid, kind, name, value)):
        raise RowDamaged(f"what is kept as {kind!r}, {name!r}, is not as it was written")
    return StateItem(kind, name, value)


def decode_memory(row: Sequence[Any]) -> MemoryItem:
    """The recorded memory in a row of `MEMORY_COLUMNS`.

    Raises:
        RowDamaged: it is not as it was written.
    """
    *values, details, crc = row
    for column in _MEMORY_TEXTS:
        values[column] = as_text(values[column])
    if checksum_differs(crc, tuple(values) if details is None else (*values, details)):
        raise RowDamaged(f"the memory {row[0]} is not as it was written")
    id_, _, *what = values
    if details is None:
        return MemoryItem(id_, *what)
    try:
        found = _decode_details(details)
    except (msgspec.DecodeError, TypeError) as e:
        raise RowDamaged(f"the memory {row[0]} cannot be read ({e})") from e
    return MemoryItem(id_, *what, *msgspec.structs.astuple(found))
