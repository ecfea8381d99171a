"""Import of sessions and users. The whole export is checked before anything is written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import msgspec

from remora.actors.blocks.state import block_progress, exclusions, progress_item
from remora.actors.policies.redaction import redact_chat, redact_metadata, redact_text, redact_value
from remora.actors.session.messages import Adopt
from remora.actors.user.messages import AdoptUser, Right
from remora.actors.user.state import SynopsisPart
from remora.actors.user.synopsis import SYNOPSIS_PARTS
from remora.actors.user.working import WorkingItem, WorkingMemory
from remora.errors import InvalidExport, InvalidInput, InvalidMessage, RemoraError
from remora.ids import (
    SHARED_PREFIX,
    SessionKey,
    UserKey,
    keyed_memory_id,
    memory_id,
    validate_id,
    working_id,
)
from remora.jobs.rows import MEMORY_TYPES, embed_items
from remora.messages import ChatDict, Entry, counted_chat, dated_line, encode_message, remove_hidden
from remora.messages.attachments import decode_attached, take_attachments
from remora.models.ports import embedder_name
from remora.runtime.concurrency import Progress, map_concurrently
from remora.runtime.threads import compute_in_thread, in_background, run_in_thread
from remora.services.arguments import check_int
from remora.services.intake import Intake
from remora.services.metadata import check_metadata
from remora.services.parts import TransferParts
from remora.services.state_values import check_state_items, redact_item
from remora.storage.attachments import take_blobs
from remora.storage.export.targets import open_reader
from remora.storage.export.transfer import (
    Exported,
    ExportReader,
    MessageExport,
    Placed,
    SessionExport,
    TransferReport,
    UserExport,
)
from remora.storage.keyed_values import KEYED_DECODERS
from remora.storage.records import (
    ENTRY_KIND,
    INSTRUCTION,
    EntryFlushSpec,
    MemoryItem,
    StateItem,
    Summary,
)
from remora.tokens import count_message

FindTarget: TypeAlias = Callable[[str], TransferParts]
"""The runtime that a user is in."""

_AT_ONCE = 32  # sessions read, counted and written together
_BYTES_AT_ONCE = 64 << 20  # or fewer, if they take more
_ITEMS_AT_ONCE = 500  # memories of a user, and items of working memory: an actor's 10 ms
_ROW_BYTES = 512
_TOPIC = re.compile("[0-9a-f]{16}")
_TIMEOUT_S = 600.0  # a session is one commit, however long it is
_ENVELOPE = frozenset({"id", "created_at", "metadata", "seq"})
_USER_STATE_ITEMS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "embedder": msgspec.msgpack.Decoder(str),
    "working": msgspec.msgpack.Decoder(WorkingItem),
    "access": msgspec.msgpack.Decoder(tuple[int, int]),
    "synopsis": msgspec.msgpack.Decoder(SynopsisPart),
    "grant": msgspec.msgpack.Decoder(Right),
    **KEYED_DECODERS,
}
_encode = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode


# -- checking --------------------------------------------------------------------------------------


def check_session(one: SessionExport, intake: Intake) -> SessionExport:
    """Check that a session can be imported, and return it.

    Raises:
        InvalidInput: a name, a number or a state item is invalid.
        InvalidMessage: a message is invalid.
    """
    validate_id(one.user, "a user id")
    validate_id(one.session, "a session id")
    last = len(one.messages)
    if not last and not one.state_items:
        raise InvalidInput(
            f"{SessionKey(one.user, one.session).words} has no messages and no state"
        )
    for place, message in enumerate(one.messages):
        if message.seq != place + 1:
            raise InvalidInput(
                f"messages are numbered 1, 2, 3 …: {message.seq} is in the place of {place + 1}"
            )
        validate_id(message.id, "a message id")
        if not 0 <= message.importance <= 1:
            raise InvalidInput(
                f"the importance of message {message.seq} is {message.importance}, not between 0 "
                "and 1"
            )
        if message.created_at.tzinfo is None:
            raise InvalidInput(f"the time of message {message.seq} has no time zone")
        _encode_entry(message, message.chat, message.metadata, intake)
    if not (0 <= one.front <= last and 0 <= one.flushed <= last):
        raise InvalidInput(
            f"front {one.front} and flushed {one.flushed} must be numbers of the {last} messages, "
            "or 0"
        )
    reached = 0
    for summary in (*([one.summary] if one.summary else []), *one.summaries):
        _check_numbers(summary.first, summary.input_tokens)
        if not (reached <= summary.through <= one.front and summary.first <= summary.through + 1):
            raise InvalidInput(
                f"a summary of messages {summary.first} to {summary.through} does not fit: the "
                f"buffer begins after {one.front}, the summary before it ends at {reached}"
            )
        _check_cover(summary)
        reached = summary.through
    for state_item in one.state_items:
        _check_session_item(state_item)
    check_state_items(one.state_items, intake.state)
    return one


def _check_session_item(state_item: StateItem) -> None:
    try:
        if state_item.kind == ENTRY_KIND:
            spec = _decode_entry(state_item.value)
            _check_time(spec.at_us)
            summary = spec.entry
            _check_numbers(spec.sid, summary.first, summary.through, summary.tokens)
        elif state_item.kind == "block":
            block_progress([state_item])
            exclusions([state_item], 0)
        elif state_item.kind not in KEYED_DECODERS:
            raise InvalidInput(f"a session has no state items of the kind {state_item.kind!r}")
    except msgspec.MsgspecError as e:
        raise InvalidInput(
            f"the state item {state_item.kind}/{state_item.name} cannot be read: {e}"
        ) from e


def check_user(one: UserExport, target: TransferParts) -> None:
    """Check that what a user has apart from sessions can be imported.

    Raises:
        InvalidInput: a name, a number, a memory or a state item is invalid.
    """
    validate_id(one.user.removeprefix(SHARED_PREFIX), "a user id")
    for item in one.memories:
        validate_id(item.id, "a memory's id")
        known = item.type in MEMORY_TYPES or item.type == INSTRUCTION
        if not item.content or not known or not 0 <= item.importance <= 1:
            raise InvalidInput(
                f"the memory {item.id} has no content, an unknown type, or an importance that is "
                "not 0 to 1"
            )
        _check_time(item.created_us)
        _check_details(one.user, item)
    for state_item in one.state_items:
        match _decode_user_item(state_item):
            case WorkingItem() as held:
                _check_time(held.at_us)
                _check_numbers(held.tokens)
                _check_room(held, target)
            case SynopsisPart(expires_at=expires_at, tokens=tokens):
                _check_numbers(tokens)
                if not math.isfinite(expires_at):
                    raise InvalidInput("a synopsis expires at a time that is not a number")
                if state_item.name not in SYNOPSIS_PARTS:
                    raise InvalidInput(f"a synopsis has no part {state_item.name!r}")
            case (int() as count, int() as accessed_us):
                _check_numbers(count)
                _check_time(accessed_us)
            case _:
                pass
    check_state_items(one.state_items, target.intake.state)


def _check_details(user: str, item: MemoryItem) -> None:
    _check_time(item.updated_us)
    _check_numbers(item.revision)
    if item.metadata:
        check_metadata(msgspec.json.decode(item.metadata))
    if item.sources and (item.sources != tuple(sorted(set(item.sources))) or not item.topic):
        raise InvalidInput(f"the fact {item.id} rests on messages {item.sources}")
    _check_numbers(*item.sources)
    if item.topic and not _TOPIC.fullmatch(item.topic):
        raise InvalidInput(f"the topic of the fact {item.id} is none")
    extracted = item.type in {"fact", INSTRUCTION}
    if item.topic and not (extracted and item.id.startswith(item.topic)):
        raise InvalidInput(f"the memory {item.id} is no fact of its topic")
    if item.key:
        validate_id(item.key, "a memory's key")
        if item.id != keyed_memory_id(user, item.agent, item.key):
            raise InvalidInput(f"the memory {item.id} is not the one that its key names")


def _check_room(item: WorkingItem, target: TransferParts) -> None:
    embedder = target.intake.embedder
    if embedder is not None:
        cost = WorkingMemory(embedder.dimension).cost(item)
        if cost > target.working_bytes:
            raise InvalidInput(
                f"item {item.id!r} takes {cost} bytes; working memory may hold "
                f"{target.working_bytes}"
            )


def _check_time(at_us: int) -> None:
    """Refuse microseconds since the epoch that are no date: they could not be read back."""
    try:
        datetime.fromtimestamp(at_us / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError) as e:
        raise InvalidInput(f"the time {at_us} is not in the calendar") from e


def _check_numbers(*numbers: int) -> None:
    """Refuse negative numbers, and those that the journal's 64 bits cannot hold."""
    for number in numbers:
        check_int(number, "a number of the export")


def _decode_user_item(state_item: StateItem) -> Any:
    if state_item.kind not in _USER_STATE_ITEMS:
        raise InvalidInput(f"a user has no state items of the kind {state_item.kind!r}")
    try:
        return _USER_STATE_ITEMS[state_item.kind].decode(state_item.value)
    except msgspec.MsgspecError as e:
        raise InvalidInput(
            f"the state item {state_item.kind}/{state_item.name} cannot be read: {e}"
        ) from e


class _Contents(msgspec.Struct):
    """The contents of an export.

    Attributes:
        sessions: its sessions.
        messages: how many messages.
        instructed: the messages, by session and number, of which it has the instructions.
    """

    sessions: set[SessionKey]
    messages: int
    instructed: set[tuple[SessionKey, int]]


def _validate(reader: ExportReader, find_target: FindTarget) -> _Contents:
    found = _Contents(set(), 0, set())
    for line, one in reader.read():
        try:
            target = find_target(one.user)
            if isinstance(one, UserExport):
                check_user(one, target)
                found.instructed.update(
                    (SessionKey(one.user, item.session), seq)
                    for item in one.memories
                    if item.type == INSTRUCTION
                    for seq in item.sources
                )
                continue
            check_session(one, target.intake)
            key = SessionKey(one.user, one.session)
            if key in found.sessions:
                raise InvalidInput(f"{key.words} is in the export twice")
        except (RemoraError, ValueError, TypeError, OverflowError) as e:
            raise InvalidExport(
                f"what begins at line {line} cannot be imported: {e}; nothing was written",
                line=line,
            ) from e
        found.sessions.add(key)
        found.messages += len(one.messages)
    return found


# -- writing ---------------------------------------------------------------------------------------


async def import_session(
    target: TransferParts,
    export: SessionExport,
    key: SessionKey,
    instructed: Collection[tuple[SessionKey, int]] = (),
) -> int:
    """Create the session `key` from `export`; returns the number of messages.

    What its messages ask for is noticed, as when they are appended; not of `instructed` messages.

    Raises:
        InvalidInput, InvalidMessage: see `check_session`; or the session has messages already.
        RedactionFailed: the redaction hook failed; nothing was written.
        MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`.
    """
    blocks = target.indexed_blocks(key)
    notice = target.instructions

    def prepare() -> tuple[Adopt, Sequence[MemoryItem]]:
        adopt = _adopt_message(target.intake, export, blocks)
        if notice is None:
            return adopt, ()
        said = [(one, one.seq) for one in adopt.entries if (key, one.seq) not in instructed]
        return adopt, notice.find(key, said)

    adopt, items = await compute_in_thread(prepare)
    entries, blobs = take_blobs(adopt.entries)
    adopt = msgspec.structs.replace(adopt, entries=entries)
    async with target.journal.attachments.storing(key.user, key.session, blobs):
        count: int = await target.registry.ask(key, adopt, timeout_s=_TIMEOUT_S)
    if notice is not None and items:
        await notice.record_imported(key, items)
    return count


def _adopt_message(intake: Intake, export: SessionExport, indexed: Collection[str]) -> Adopt:
    """The message to the actor. `indexed` blocks start again, because rows are not exported."""
    check_session(export, intake)
    entries = tuple(_entry(intake, message) for message in export.messages)
    return Adopt(
        entries=entries,
        size=sum(entry.size for entry in entries),
        front=export.front,
        flushing=export.flushed,
        summary=import_summary(intake, export.summary) if export.summary else None,
        summaries=tuple(import_summary(intake, one) for one in export.summaries),
        state_items=tuple(
            import_session_item(intake, one)
            for one in export.state_items
            if one.kind != "block" or one.name not in indexed
        ),
        flush=True,
        pruned=tuple(message.seq for message in export.messages if message.pruned),
    )


def _plain(chat: ChatDict) -> ChatDict:
    """The chat dict without keys that `append` reads as the envelope."""
    return {name: value for name, value in chat.items() if name not in _ENVELOPE}


def _entry(intake: Intake, message: MessageExport) -> Entry:
    chat, metadata = message.chat, message.metadata
    if (redact := intake.redact) is not None:
        chat = redact_chat(chat, redact)
        metadata = None if metadata is None else redact_metadata(metadata, redact)
    entry = _encode_entry(message, chat, metadata, intake)
    tokens = count_message(intake.counter, counted_chat(decode_attached(entry.chat), entry.meta))
    return msgspec.structs.replace(entry, tokens=tokens)


def _encode_entry(
    message: MessageExport, chat: ChatDict, metadata: dict[str, Any] | None, intake: Intake
) -> Entry:
    """The message as it is written, its tokens not counted: what can be checked can be written.

    Raises:
        InvalidMessage: it cannot.
    """
    index = message.seq - 1
    envelope = {"created_at": message.created_at, "metadata": metadata}
    checked, _ = encode_message(
        {**_plain(chat), **envelope},
        index=index,
        max_bytes=intake.buffer.max_message_bytes,
        attachments=intake.attachments,
    )
    blobs = dict(checked.blobs or {})
    try:
        if blobs and intake.attachments is not None:
            chat = take_attachments(chat, intake.attachments.min_bytes, blobs)
        encoded = _encode(chat)  # with keys of its own that `append` would read as the envelope
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise InvalidMessage(f"message {index} cannot be encoded: {e}", index=index) from e
    return Entry(
        message.seq,
        checked.at_us,
        0,
        checked.role,
        encoded,
        checked.meta,
        message.id,
        checked.calls,
        checked.answers,
        message.importance,
        blobs or None,
    )


def _check_cover(summary: Summary) -> None:
    for one in (*summary.lost, *summary.verbatim):
        inside = summary.first <= one.first <= one.last + 1 <= summary.through + 1
        if not inside or not 0 <= one.count <= one.last - one.first + 1:
            raise InvalidInput(
                f"messages {one.first} to {one.last} ({one.count}) are not in a summary of "
                f"messages {summary.first} to {summary.through}"
            )
    if not 0 <= summary.prose <= len(summary.text):
        raise InvalidInput(
            f"a summary of {len(summary.text)} characters has {summary.prose} by a model"
        )


async def _adopt_user(target: TransferParts, one: UserExport) -> int:
    """Add a user's memories and state items; returns the number of memories that are new.

    What the user has already does not change.
    """
    intake = target.intake
    memories = await compute_in_thread(
        lambda: tuple(import_memory(intake, one.user, item) for item in one.memories)
    )
    there = await target.journal.memories(one.user, [item.id for item in memories])
    kept = tuple(i for i in one.state_items if i.kind not in {"embedder", "working"})
    state_items = await compute_in_thread(import_user_items, intake, kept)
    working = await _working(target, one)
    for start in range(0, max(len(memories), len(working), 1), _ITEMS_AT_ONCE):
        some = slice(start, start + _ITEMS_AT_ONCE)
        adopt = AdoptUser(memories[some], working[some], () if start else state_items)
        await target.registry.ask(UserKey(one.user), adopt, timeout_s=_TIMEOUT_S)
    return len(memories) - len(there)


async def _working(target: TransferParts, one: UserExport) -> tuple[WorkingItem, ...]:
    """Working memory; embedded again if another embedder made its vectors."""
    embedder = target.intake.embedder
    if embedder is None:
        return ()

    def decode() -> tuple[list[WorkingItem], bool]:
        held = [
            made
            for item in one.state_items
            if item.kind == "working"
            and (made := import_working_item(target.intake, _decode_user_item(item)))
        ]
        names = (_decode_user_item(item) for item in one.state_items if item.kind == "embedder")
        mine = next(names, "") == embedder_name(embedder)
        return held, mine and _are_sound(held, embedder.dimension)

    items, usable = await compute_in_thread(decode)
    return tuple(items) if usable or not items else await embed_items(embedder, items)


def _are_sound(items: Sequence[WorkingItem], dimension: int) -> bool:
    """Return whether working memory takes these vectors."""
    memory = WorkingMemory(dimension)
    try:
        memory.validate_items(items)
    except InvalidInput:
        return False
    return True


async def import_from(
    targets: Sequence[TransferParts],
    path: Path,
    *,
    find_target: FindTarget | None = None,
    skip_existing: bool,
    progress: Progress | None,
) -> TransferReport:
    """Import the export at `path` into one runtime, or into that of `targets` that a user is in.

    Raises:
        InvalidExport: it is invalid or incomplete; nothing was written.
        InvalidInput: `path` cannot be read, or a session exists and `skip_existing` is false;
            nothing was written.
        RedactionFailed: the redaction hook failed on a session; those before it were imported.
    """
    find = find_target or (lambda _: targets[0])
    opening = partial(open_reader, path, max_bytes=targets[0].import_bytes)
    reader = await run_in_thread(opening)
    try:
        contents = await compute_in_thread(_validate, reader, find)
        there: set[SessionKey] = set()
        for target in targets:
            keys = [key for key, _ in await target.journal.indexed_through()]
            there |= contents.sessions.intersection(keys)
        if there and not skip_existing:
            raise InvalidInput(
                f"{len(there)} of the {len(contents.sessions)} sessions exist already, "
                f"{min(there).words} for instance: nothing was written; pass skip_existing=True "
                "(--skip-existing) to import the others"
            )
        with in_background():  # one session at a time: several threads take turns with the loop
            return await _import_all(find, reader.read(), contents, there, progress)
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(reader.close)


async def check_export(target: TransferParts, path: Path) -> None:
    """Check that the export at `path` can be imported, and write nothing.

    Raises:
        InvalidExport, InvalidInput: see `import_from`.
    """
    reader = await run_in_thread(partial(open_reader, path, max_bytes=target.import_bytes))
    try:
        await compute_in_thread(_validate, reader, lambda _: target)
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(reader.close)


async def _import_all(
    find_target: FindTarget,
    placed: Iterator[Placed],
    contents: _Contents,
    there: set[SessionKey],
    progress: Progress | None,
) -> TransferReport:
    sessions = messages = users = memories = done = 0

    async def take(one: Exported) -> int:
        if isinstance(one, UserExport):
            return await _adopt_user(find_target(one.user), one)
        key = SessionKey(one.user, one.session)
        return await import_session(find_target(one.user), one, key, contents.instructed)

    async def take_all(chunk: Sequence[Exported]) -> None:
        nonlocal sessions, messages, users, memories, done
        wanted = [
            one
            for one in chunk
            if isinstance(one, UserExport) or (one.user, one.session) not in there
        ]
        for one, count in zip(
            wanted, await map_concurrently(take, wanted, concurrency=_AT_ONCE), strict=True
        ):
            if isinstance(one, UserExport):
                users, memories = users + 1, memories + count
            else:
                sessions, messages = sessions + 1, messages + count
        done += sum(len(one.messages) for one in chunk if isinstance(one, SessionExport))

    while chunk := await compute_in_thread(partial(_next, placed)):
        await take_all(chunk)
        if progress is not None:
            progress(done, contents.messages)
        await run_in_thread(chunk.clear)  # to free 10 000 messages takes 20 ms
    return TransferReport(sessions, messages, users, memories, len(there))


def _next(placed: Iterator[Placed]) -> list[Exported]:
    """The sessions and users that are written together: at least one, if there is one."""
    found: list[Exported] = []
    size = 0
    while size < _BYTES_AT_ONCE and len(found) < _AT_ONCE and (one := next(placed, None)):
        found.append(one[1])
        size += _size(one[1])
    return found


def _size(one: Exported) -> int:
    """About how many bytes it takes."""
    if isinstance(one, UserExport):
        return sum(_ROW_BYTES + len(item.content) for item in one.memories)
    return sum(_ROW_BYTES + len(str(message.chat.get("content"))) for message in one.messages)


# -- the content of an import as the journal takes it: redacted, and counted again -----------------
#
# The runtime that wrote the export may have had another redaction hook, or none. Everything that it
# derived from messages, its summaries for example, goes through the hook as the messages do.

_decode = msgspec.msgpack.Decoder().decode
_decode_part = msgspec.msgpack.Decoder(SynopsisPart).decode


def import_summary(intake: Intake, summary: Summary) -> Summary:
    """A summary, without hidden characters, redacted and counted again."""

    def count(text: str) -> int:
        message = {"role": "system", "content": summary.prefix + text}
        return count_message(intake.counter, message)

    prose = _redact(intake, remove_hidden(summary.text[: summary.prose]))
    text = prose + _redact(intake, remove_hidden(summary.text[summary.prose :]))
    brief = _redact(intake, remove_hidden(summary.brief))
    return msgspec.structs.replace(
        summary,
        text=text,
        tokens=count(text),
        prose=len(prose),
        brief=brief,
        brief_tokens=count(brief) if brief else 0,
    )


def import_session_item(intake: Intake, item: StateItem) -> StateItem:
    """A state item of a session: texts of blocks, summary entries and keyed state are redacted."""
    if intake.redact is None:
        return item
    if item.kind == ENTRY_KIND:
        spec = _decode_entry(item.value)
        entry = import_summary(intake, spec.entry)
        return StateItem(item.kind, item.name, _encode(msgspec.structs.replace(spec, entry=entry)))
    for name, progress in block_progress([item]).items():
        if progress.state:
            state = _encode(redact_value(_decode(progress.state), intake.redact))
            return progress_item(name, msgspec.structs.replace(progress, state=state))
    return redact_item(item, intake.redact)


def import_memory(intake: Intake, user: str, item: MemoryItem) -> MemoryItem:
    """The memory, redacted and counted again; it gets a new id if its text changes."""
    text = _redact(intake, item.content)
    metadata = item.metadata
    if item.type == INSTRUCTION and metadata and intake.redact is not None:
        named = redact_metadata(msgspec.json.decode(metadata), intake.redact)
        metadata = check_metadata(named)
    own = item.key or item.revision or item.topic  # its id does not come from its text
    id_ = item.id if own or text == item.content else memory_id(user, item.agent, text)
    return msgspec.structs.replace(
        item,
        id=id_,
        content=text,
        metadata=metadata,
        tokens=intake.counter.count(dated_line(item.created_us, text)),
        revision=min(item.revision, 1),  # below all that the user's actor gives from now on
    )


def import_working_item(intake: Intake, item: WorkingItem) -> WorkingItem | None:
    """An item of working memory, redacted.

    If its text changes it gets a new id, and loses its vector, which says what the text was. None
    if no text is left.
    """
    text = _redact(intake, item.text)
    if text == item.text:
        return item
    if not text.strip():
        return None
    return msgspec.structs.replace(
        item,
        id=working_id(item.scope, text),
        text=text,
        tokens=intake.counter.count(text),
        vector=b"",
    )


def import_user_items(intake: Intake, items: Sequence[StateItem]) -> tuple[StateItem, ...]:
    """A user's state items: the synopsis redacted and counted again, keyed state redacted."""
    if intake.redact is None:
        return tuple(items)
    return tuple(
        _synopsis_item(intake, one) if one.kind == "synopsis" else redact_item(one, intake.redact)
        for one in items
    )


def _synopsis_item(intake: Intake, item: StateItem) -> StateItem:
    part = _decode_part(item.value)
    text = _redact(intake, part.text)
    if text == part.text:
        return item
    part = msgspec.structs.replace(part, text=text, tokens=intake.counter.count(text))
    return StateItem(item.kind, item.name, _encode(part))


def _redact(intake: Intake, text: str) -> str:
    return text if intake.redact is None or not text else redact_text(text, intake.redact)
