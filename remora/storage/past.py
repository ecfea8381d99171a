"""A session's buffer at an earlier message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from remora.errors import InvalidInput, JournalDamaged
from remora.ids import SessionKey
from remora.messages import Entry, leading_instructions
from remora.storage.lookups import BufferStart, EarlierBuffer
from remora.storage.pending import NEIGHBOURS
from remora.storage.records import Summary

_AT_ONCE = 16  # messages


class History(Protocol):
    """The part of `Journal` that shows a session's past."""

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        """See `Journal`."""
        ...

    async def any_removed(self, key: SessionKey, first: int, last: int, *, since: int) -> bool:
        """See `Journal`."""
        ...

    async def buffer_start(self, key: SessionKey, at: int) -> BufferStart:
        """See `Journal`."""
        ...


def buffer_start_from(
    changes: Sequence[tuple[str, int, Summary]], *, trimmed: int = 0
) -> BufferStart:
    """Where the buffer begins after these changes of its front and summaries.

    Args:
        changes: oldest first, each with its kind and generation. Where only the front moved, the
            summary's `through` is the front, and its `first` the last message that was cleared.
        trimmed: messages up to here are gone from the journal.
    """
    if not changes:
        return BufferStart(0, None, (), 0, trimmed)
    current = changes[-1][1]
    mine = [(kind, summary) for kind, generation, summary in changes if generation == current]
    running = [summary for kind, summary in mine if kind == "summary"]
    summary = running[-1] if running else None
    covered = summary.through if summary else 0
    # a later entry up to the same message replaces the one before
    listed = {one.through: one for kind, one in mine if kind == "entry" and one.through > covered}
    entries = tuple(listed.values())
    cleared = [one.first for kind, _, one in changes if kind not in {"summary", "entry"}]
    front = max(one.through for _, one in mine)
    return BufferStart(front, summary, entries, cleared[-1] if cleared else 0, trimmed)


async def read_instructions(
    journal: History, key: SessionKey, after: int, through: int, *, at: int | None = None
) -> tuple[Entry, ...]:
    """The messages behind `after`, up to `through`, before the first of a user, model or tool.

    Those that are damaged are left out: the conversation can be shown without them.
    """
    found: list[Entry] = []
    with suppress(JournalDamaged):
        for first in range(after + 1, through + 1, _AT_ONCE):
            read = await journal.read(key, first, min(first + _AT_ONCE - 1, through), at=at)
            count = leading_instructions(read)
            found.extend(read[:count])
            if count < len(read) or not read:  # trimmed, or deleted
                break
    return tuple(found)


async def earlier_buffer(
    journal: History, key: SessionKey, at: int, *, as_it_was: bool = False
) -> EarlierBuffer:
    """The session's buffer when message `at` was its newest.

    With `as_it_was`, it has messages that were removed later. Without, it has none of them: a
    summary that covers one is left out, and the messages that it covered are in the buffer again.

    Raises:
        InvalidInput: with `as_it_was`, if messages of that buffer were trimmed.
    """
    start = await journal.buffer_start(key, at)
    if as_it_was:
        if start.front < start.trimmed:
            raise InvalidInput(
                f"what the session was at message {at} is not kept any more: messages up to "
                f"{start.trimmed} are gone"
            )
        if any(one.blank for one in _summaries(start)):  # it covered a deleted message
            start = BufferStart(start.cleared, None, (), start.cleared, start.trimmed)
        return _fill(start, await journal.read(key, start.front + 1, at, at=at))
    if start.trimmed and start.front < start.trimmed + NEIGHBOURS:
        return _fill(start, (), exists=False)
    exists = at == 0 or bool(await journal.read(key, at, at))
    summaries = _summaries(start)
    if summaries:
        covered = max(one.through for one in summaries)
        lacks = any(one.blank for one in summaries)
        if lacks or await journal.any_removed(key, start.cleared + 1, covered, since=at):
            start = BufferStart(start.cleared, None, (), start.cleared)
    return _fill(start, await journal.read(key, start.front + 1, at), exists=exists)


def _summaries(start: BufferStart) -> tuple[Summary, ...]:
    return (*((start.summary,) if start.summary else ()), *start.summaries)


def _fill(start: BufferStart, entries: Iterable[Entry], *, exists: bool = True) -> EarlierBuffer:
    return EarlierBuffer(
        start.front,
        start.summary,
        start.summaries,
        start.cleared,
        start.trimmed,
        tuple(entries),
        exists,
    )
