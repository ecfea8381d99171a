"""Export of sessions and users from a runtime that is in use.

Each session is exported as it was at one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from remora.actors.blocks.state import (
    block_progress,
    exclusion_item,
    exclusions,
    progress_item,
    renumber_ranges,
)
from remora.actors.session.messages import Inspect, SessionView
from remora.actors.user.messages import InspectUser, UserView
from remora.errors import StorageError
from remora.ids import SessionKey, UserKey, message_id, row_id
from remora.messages import Entry, decode_chat, restore_message
from remora.recall.attached import attach_all
from remora.runtime.concurrency import Progress, map_concurrently
from remora.runtime.threads import compute_in_thread, in_background, run_in_thread
from remora.services.archive import Renumbering
from remora.services.parts import TransferParts
from remora.storage.export.targets import open_writer
from remora.storage.export.transfer import (
    FORMAT,
    Exported,
    ExportHeader,
    MessageExport,
    SessionExport,
    TransferReport,
    UserExport,
)
from remora.storage.files import AtomicTarget
from remora.storage.records import (
    ENTRY_KIND,
    INSTRUCTION,
    EntryFlushSpec,
    MemoryItem,
    StateItem,
)

_AT_ONCE = 8  # sessions read and written together
_ATTEMPTS = 20  # at reading a session whose past changes at the same time
# Numbers of jobs, valid in this journal only; and what an import finds out for itself.
_NOT_EXPORTED = frozenset({"changed", "counter"})
_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode
_encode = msgspec.msgpack.Encoder().encode


async def export_session(source: TransferParts, key: SessionKey) -> SessionExport | None:
    """A session as it is now; None if it has neither messages nor keyed state.

    Raises:
        StorageError: the journal cannot be read, or the session changed during each attempt.
    """
    exported, _ = await _session(source, key)
    return exported


async def _session(
    source: TransferParts, key: SessionKey
) -> tuple[SessionExport | None, Renumbering]:
    journal = source.journal
    view = await _inspect(source, key)
    for _ in range(_ATTEMPTS):
        entries = await journal.read(key, 1, view.last_seq)
        entries = await attach_all(entries, key.user, journal.attachments.get)
        pruned = set(await journal.pruned_seqs(key))
        left = [one for one in await journal.state_items(key) if one.kind == ENTRY_KIND]
        after = await _inspect(source, key)
        if _version_read(view) == _version_read(after):
            break
        view = after
    else:
        raise StorageError(f"{key.words} changed each time that it was read; export it again")
    numbers = Renumbering([entry.seq for entry in entries], view.last_seq)
    if not entries and view.keyed is None:
        return None, numbers
    return await compute_in_thread(
        _build, key, view, entries, pruned, left, numbers, journal.instance
    ), numbers


async def _inspect(source: TransferParts, key: SessionKey) -> SessionView:
    return await source.registry.ask(key, Inspect())


def _version_read(view: SessionView) -> tuple[Any, ...]:
    """The parts that must not change while the messages are read; appends and indexing may."""
    return (
        view.watermarks.generation,
        view.watermarks.archived_through,
        view.summary,
        view.summaries,
        view.blocks,
    )


def _build(
    key: SessionKey,
    view: SessionView,
    entries: Sequence[Entry],
    pruned: set[int],
    left: Sequence[StateItem],
    numbers: Renumbering,
    instance: str,
) -> SessionExport:
    messages = []
    for number, entry in enumerate(entries, start=1):
        whole = restore_message(entry, entry.id or message_id(instance, view.sid, entry.seq))
        assert whole.id is not None
        assert whole.created_at is not None
        messages.append(
            MessageExport(
                number,
                whole.id,
                whole.created_at,
                entry.tokens,
                entry.importance,
                decode_chat(entry.chat),
                whole.metadata,
                entry.seq in pruned,
            )
        )
    state_items = list(view.blocks)
    if not numbers.gapless:
        state_items = _renumber_blocks(view.blocks, numbers)
    for state_item in left:
        spec = _decode_entry(state_item.value)
        moved = EntryFlushSpec(0, numbers.summary(spec.entry), spec.at_us)
        state_items.append(StateItem(ENTRY_KIND, str(moved.entry.through), _encode(moved)))
    if view.keyed is not None:
        state_items.extend(view.keyed.state_items)
    return SessionExport(
        user=key.user,
        session=key.session,
        messages=tuple(messages),
        front=numbers.through(view.watermarks.archived_through),
        flushed=numbers.through(view.watermarks.indexing_through),
        summary=numbers.summary(view.summary) if view.summary else None,
        summaries=tuple(map(numbers.summary, view.summaries)),
        state_items=tuple(state_items),
    )


def _renumber_blocks(blocks: Sequence[StateItem], numbers: Renumbering) -> list[StateItem]:
    """The state items of the blocks, with new message numbers."""
    state_items = []
    for name, progress in block_progress(blocks).items():
        seen = renumber_ranges(progress.seen, numbers.through)
        state_items.append(progress_item(name, msgspec.structs.replace(progress, seen=seen)))
    if unseen := exclusions(blocks, 0):
        state_items.append(exclusion_item(renumber_ranges(unseen, numbers.through)))
    order = {state_item.name: place for place, state_item in enumerate(blocks)}
    return sorted(state_items, key=lambda state_item: order[state_item.name])


async def _user(
    source: TransferParts, key: UserKey, renumbered_sessions: dict[str, Renumbering]
) -> UserExport | None:
    state_items = [
        one for one in await source.journal.state_items(key) if one.kind not in _NOT_EXPORTED
    ]
    if source.registry.is_live(key):  # its newest access counts may not be in the journal yet
        view: UserView = await source.registry.ask_control(key, InspectUser(), keeps_alive=False)
        state_items = [one for one in state_items if one.kind != "access"]
        state_items += [StateItem("access", row, _encode(n)) for row, n in view.accesses.items()]
    memories = await source.journal.memories(key.user)
    if not state_items and not memories:
        return None
    moved: dict[str, str | None] = {}
    for session, numbers in renumbered_sessions.items():
        one = SessionKey(key.user, session)
        moved.update(
            (row_id(one, old), None if new is None else row_id(one, new))
            for old, new in numbers.items()
        )
    renumbered = []
    for item in state_items:
        # access counts are named by row ids, which contain the numbers of messages
        name = moved.get(item.name, item.name) if item.kind == "access" else item.name
        if name is not None:
            renumbered.append(StateItem(item.kind, name, item.value))
    exported = [_renumber_fact(item, renumbered_sessions) for item in memories]
    exported = [item for item in exported if item.type != INSTRUCTION or item.sources]
    return UserExport(key.user, tuple(exported), tuple(renumbered))


def _renumber_fact(item: MemoryItem, sessions: Mapping[str, Renumbering]) -> MemoryItem:
    """The memory; if it is a fact, with the new numbers of the messages that it rests on."""
    numbers = sessions.get(item.session)
    if not item.sources or numbers is None:
        return item
    new = dict(numbers.items())
    sources = (new.get(seq) for seq in item.sources)
    return msgspec.structs.replace(item, sources=tuple(seq for seq in sources if seq is not None))


async def export_to(
    sources: Sequence[TransferParts], path: Path, *, overwrite: bool, progress: Progress | None
) -> TransferReport:
    """Write everything to `path`: a file if its name ends in ``.jsonl``, else Parquet files.

    Args:
        sources: the runtime, or each shard of a memory.
        path: the file or directory.
        overwrite: replace what is there.
        progress: called with the number of messages done, and of all.

    Raises:
        InvalidInput: `path` exists, or its name ends like that of another kind of file.
        StorageError: see `export_session`; or the disk failed. Nothing is left at `path`.
    """
    journal = sources[0].journal
    remora = await run_in_thread(_version)
    header = ExportHeader(
        FORMAT,
        remora,
        datetime.now(UTC),
        await journal.setting("embedder") or "",
        await journal.setting("counter") or "",
    )
    target = await run_in_thread(lambda: AtomicTarget(path, overwrite=overwrite))
    writer = await run_in_thread(open_writer, target, header)
    try:
        with in_background():
            report = await _write_all(sources, writer.write, progress)
        await run_in_thread(writer.close)
        await run_in_thread(target.commit)
    except OSError as e:
        raise StorageError(f"{path} cannot be written: {e.strerror or e}") from e
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(writer.abandon)
            await run_in_thread(target.abandon)
    return report


def _write_sessions(
    write: Callable[[Sequence[Exported]], None],
    read: list[tuple[SessionExport | None, Renumbering]],
) -> tuple[int, int]:
    """Write sessions, and free them here: large ones would hold the event loop.

    How many sessions and messages were written.
    """
    found = [one for one, _ in read if one is not None]
    read.clear()
    write(found)
    return len(found), sum(len(one.messages) for one in found)


async def _write_all(
    sources: Sequence[TransferParts],
    write: Callable[[Sequence[Exported]], None],
    progress: Progress | None,
) -> TransferReport:
    """All sessions, then all users, as the readers of both forms expect."""
    total = sum([(await source.journal.counts()).messages for source in sources])
    written = _Written()
    gaps: dict[str, dict[str, Renumbering]] = {}

    def tell() -> None:
        if progress is not None:
            progress(min(written.messages, total), total)

    for source in sources:
        await _write_all_sessions(source, write, gaps, written, tell)
    for source in sources:
        await _write_all_users(source, write, gaps, written)
    if progress is not None:
        progress(total, total)
    return TransferReport(written.sessions, written.messages, written.users, written.memories)


class _Written(msgspec.Struct):
    """How much was written."""

    sessions: int = 0
    messages: int = 0
    users: int = 0
    memories: int = 0


async def _write_all_sessions(
    source: TransferParts,
    write: Callable[[Sequence[Exported]], None],
    gaps: dict[str, dict[str, Renumbering]],
    written: _Written,
    tell: Callable[[], None],
) -> None:
    keys = [key for key, _ in await source.journal.indexed_through()]
    sessions = [key for key in keys if isinstance(key, SessionKey)]
    for start in range(0, len(sessions), _AT_ONCE):
        chunk = sessions[start : start + _AT_ONCE]
        read = await map_concurrently(partial(_session, source), chunk, concurrency=_AT_ONCE)
        for key, (_, numbers) in zip(chunk, read, strict=True):
            if not numbers.gapless:
                gaps.setdefault(key.user, {})[key.session] = numbers
        count, messages = await compute_in_thread(_write_sessions, write, read)
        written.sessions += count
        written.messages += messages
        tell()


async def _write_all_users(
    source: TransferParts,
    write: Callable[[Sequence[Exported]], None],
    gaps: dict[str, dict[str, Renumbering]],
    written: _Written,
) -> None:
    keys = [key for key, _ in await source.journal.indexed_through()]
    # a live user may have access counts that are not in the journal
    live = source.registry.live_keys()
    for key in dict.fromkeys(key for key in (*keys, *live) if isinstance(key, UserKey)):
        exported = await _user(source, key, gaps.get(key.user, {}))
        if exported is not None:
            await compute_in_thread(write, [exported])
            written.users += 1
            written.memories += len(exported.memories)


def _version() -> str:
    # it imports email, zipfile and csv
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("remora")
    except PackageNotFoundError:  # a source tree that is not installed
        return ""
