"""Bringing sessions and users into a runtime: looked through to the end before anything is written (S4.37)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from remora.actors.block_state import progress_of, unseen_of
from remora.actors.protocol import Adopt
from remora.actors.redaction import redacted_chat, redacted_metadata, redacted_text
from remora.errors import InvalidExport, InvalidInput, RemoraError
from remora.identity import SessionKey, memory_id, validated_id
from remora.messages import ChatDict, Entry, encode_message
from remora.runtime.directory import Directory
from remora.runtime.encoding import Door
from remora.runtime.exporting import Progress
from remora.runtime.gather import in_order
from remora.storage.ports import Journal
from remora.storage.records import ENTRY_FACET, EntryFlushSpec, Facet, MemoryItem, Summary
from remora.storage.targets import open_reader
from remora.storage.transfer import Exported, ExportReader, MessageExport, Placed, SessionExport, TransferReport, UserExport
from remora.tokens import count_message

__all__ = ["Target", "checked_session", "import_from", "imported_session"]

_AT_ONCE = 32  # sessions that are read, counted and written together
_TIMEOUT_S = 600.0  # a session is one commit, however long it is
_ENVELOPE = frozenset({"id", "created_at", "metadata", "seq"})
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode


class Target(msgspec.Struct, frozen=True):
    """Where an import writes.

    Attributes:
        directory: of live actors.
        journal: for what is there already.
        door: what counts and redacts what comes in.
        adopt_user: takes what a user has beside sessions; what is there already stays as it is.
    """

    directory: Directory
    journal: Journal
    door: Door
    adopt_user: Callable[[UserExport], Any]


# -- looking through --------------------------------------------------------------------------------------------------


def checked_session(one: SessionExport, *, max_bytes: int) -> SessionExport:
    """`one`, if a session can be made of it.

    Raises:
        InvalidInput: a name, a number or a facet that cannot be.
        InvalidMessage: a message that is none.
    """
    validated_id(one.user, "a user id")
    validated_id(one.session, "a session id")
    last = len(one.messages)
    if not last:
        raise InvalidInput(f"the session {one.session} has no messages")
    for place, message in enumerate(one.messages):
        if message.seq != place + 1:
            raise InvalidInput(f"messages are numbered 1, 2, 3 …: number {message.seq} stands where {place + 1} should")
        validated_id(message.id, "a message id")
        if not 0 <= message.importance <= 1:
            raise InvalidInput(f"the importance of message {message.seq} is {message.importance}, not between 0 and 1")
        if message.created_at.tzinfo is None:
            raise InvalidInput(f"the time of message {message.seq} has no time zone")
        encode_message(_plain(message.chat), index=place, max_bytes=max_bytes)
    if not (0 <= one.front <= last and 0 <= one.flushed <= last):
        raise InvalidInput(f"front {one.front} and flushed {one.flushed} must be numbers of the {last} messages, or 0")
    reached = 0
    for summary in (*([one.summary] if one.summary else []), *one.summaries):
        if not (reached <= summary.through <= one.front and summary.first <= summary.through + 1):
            raise InvalidInput(f"a summary of messages {summary.first} to {summary.through} cannot stand before {one.front}")
        reached = summary.through
    for facet in one.facets:
        _check_session_facet(facet)
    return one


def _check_session_facet(facet: Facet) -> None:
    try:
        if facet.kind == ENTRY_FACET:
            _decode_entry(facet.value)
        elif facet.kind == "block":
            progress_of([facet])
            unseen_of([facet], 0)
        else:
            raise InvalidInput(f"a session keeps nothing of the kind {facet.kind!r}")
    except msgspec.MsgspecError as e:
        raise InvalidInput(f"the facet {facet.kind}/{facet.name} cannot be read: {e}") from e


def _checked_user(one: UserExport) -> None:
    validated_id(one.user, "a user id")
    for item in one.memories:
        validated_id(item.id, "a memory's id")
        if not item.content or not 0 <= item.importance <= 1:
            raise InvalidInput(f"the memory {item.id} has no content, or an importance that is not between 0 and 1")
    for facet in one.facets:
        try:
            _decode(facet.value)
        except msgspec.MsgspecError as e:
            raise InvalidInput(f"the facet {facet.kind}/{facet.name} cannot be read: {e}") from e


class _Contents(msgspec.Struct):
    """What a whole export holds."""

    sessions: set[SessionKey]
    messages: int


def _look_through(reader: ExportReader, max_bytes: int) -> _Contents:
    found = _Contents(set(), 0)
    for line, one in reader.read():
        try:
            if isinstance(one, UserExport):
                _checked_user(one)
                continue
            checked_session(one, max_bytes=max_bytes)
            key = SessionKey(one.user, one.session)
            if key in found.sessions:
                raise InvalidInput(f"{key!r} stands here a second time")
        except (RemoraError, ValueError, TypeError, OverflowError) as e:
            raise InvalidExport(f"what begins at line {line} cannot be imported: {e}; nothing was written", line=line) from e
        found.sessions.add(key)
        found.messages += len(one.messages)
    return found


# -- taking -----------------------------------------------------------------------------------------------------------


async def imported_session(target: Target, export: SessionExport, key: SessionKey) -> int:
    """Begin the session `key` as what `export` says; returns how many messages that is.

    Raises:
        InvalidInput, InvalidMessage: see `checked_session`; or the session has messages already.
        RedactionFailed: the redaction hook failed; nothing was written.
        MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`.
    """
    adopt = await anyio.to_thread.run_sync(_adopt, target.door, export)
    count: int = await target.directory.ask(key, adopt, timeout_s=_TIMEOUT_S)
    return count


def _adopt(door: Door, export: SessionExport) -> Adopt:
    checked_session(export, max_bytes=door.config.buffer.max_message_bytes)
    return Adopt(
        entries=tuple(_entry(door, message) for message in export.messages),
        front=export.front,
        flushing=export.flushed,
        summary=_summary(door, export.summary) if export.summary else None,
        summaries=tuple(_summary(door, one) for one in export.summaries),
        facets=export.facets,
        flush=True,
        pruned=tuple(message.seq for message in export.messages if message.pruned),
    )


def _plain(chat: ChatDict) -> ChatDict:
    """The chat dict without the keys that `append` would take for the envelope; a `Message` may carry such keys as `extra`."""
    return {name: value for name, value in chat.items() if name not in _ENVELOPE}


def _entry(door: Door, message: MessageExport) -> Entry:
    chat, metadata = message.chat, message.metadata
    if (redact := door.redact) is not None:
        chat = redacted_chat(chat, redact)
        metadata = None if metadata is None else redacted_metadata(metadata, redact)
    checked, _ = encode_message(_plain(chat), index=message.seq - 1, max_bytes=door.config.buffer.max_message_bytes)
    timed, _ = encode_message({"role": "user", "content": "", "created_at": message.created_at})
    return Entry(
        message.seq,
        timed.at_us,
        count_message(door.counter, chat),
        checked.role,
        _encode(chat),
        _encode(metadata) if metadata else None,
        message.id,
        checked.calls,
        checked.answers,
        message.importance,
    )


def _summary(door: Door, summary: Summary) -> Summary:
    text = summary.text if door.redact is None else redacted_text(summary.text, door.redact)
    tokens = count_message(door.counter, {"role": "system", "content": summary.prefix + text})
    return msgspec.structs.replace(summary, text=text, tokens=tokens)


def _memories(door: Door, one: UserExport) -> UserExport:
    """Counted anew, and redacted; what redaction changes has another id."""

    def memory(item: MemoryItem) -> MemoryItem:
        text = item.content if door.redact is None else redacted_text(item.content, door.redact)
        id_ = item.id if text == item.content else memory_id(one.user, item.agent, text)
        return msgspec.structs.replace(item, id=id_, content=text, tokens=door.counter.count(text))

    return UserExport(one.user, tuple(memory(item) for item in one.memories), one.facets)


async def import_from(target: Target, path: Path, *, skip_existing: bool, progress: Progress | None) -> TransferReport:
    """Take over everything that the export at `path` holds.

    Raises:
        InvalidExport: it is no whole export; nothing was written.
        InvalidInput: `path` cannot be read, or sessions are there already and are not to be skipped; nothing was written.
        RedactionFailed: the redaction hook failed on a session; those before it are there.
    """
    reader = await anyio.to_thread.run_sync(open_reader, path)
    try:
        limit = target.door.config.buffer.max_message_bytes
        contents = await anyio.to_thread.run_sync(_look_through, reader, limit)
        there = contents.sessions.intersection([key for key, _ in await target.journal.flushed()])
        if there and not skip_existing:
            some = ", ".join(f"{key.user}/{key.session}" for key in sorted(there)[:3])
            raise InvalidInput(
                f"{len(there)} of the {len(contents.sessions)} sessions are there already, {some} for instance: nothing was "
                "written; pass skip_existing=True (--skip-existing) to import the others"
            )
        return await _take_all(target, reader.read(), contents, there, progress)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(reader.close)


async def _take_all(
    target: Target, placed: Iterator[Placed], contents: _Contents, there: set[SessionKey], progress: Progress | None
) -> TransferReport:  # fmt: skip
    sessions = messages = users = memories = done = 0

    async def take(one: Exported) -> int:
        if isinstance(one, UserExport):
            await target.adopt_user(await anyio.to_thread.run_sync(_memories, target.door, one))
            return len(one.memories)
        return await imported_session(target, one, SessionKey(one.user, one.session))

    while chunk := await anyio.to_thread.run_sync(partial(_next, placed)):
        wanted = [one for one in chunk if isinstance(one, UserExport) or (one.user, one.session) not in there]
        for one, count in zip(wanted, await in_order(take, wanted, concurrency=_AT_ONCE), strict=True):
            if isinstance(one, UserExport):
                users, memories = users + 1, memories + count
            else:
                sessions, messages = sessions + 1, messages + count
        done += sum(len(one.messages) for one in chunk if isinstance(one, SessionExport))
        if progress is not None:
            progress(done, contents.messages)
    return TransferReport(sessions, messages, users, memories, len(there))


def _next(placed: Iterator[Placed]) -> Sequence[Exported]:
    return [one for _, one in islice(placed, _AT_ONCE)]
