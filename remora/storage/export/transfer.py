"""The contents of an export as plain data, for every form of file.

Messages are numbered from 1 without gaps: deleted and rewound messages are left out, and
watermarks, summaries and block states have the new numbers. Idempotency keys are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias

import msgspec

from remora.messages import ChatDict
from remora.storage.records import MemoryItem, StateItem, Summary

FORMAT = 1
"""The format that this remora writes, and the newest that it reads."""


class MessageExport(msgspec.Struct, frozen=True):
    """One message, exactly as it was appended.

    Attributes:
        seq: its number in the export, from 1.
        id: the sender's, or the session's; an import keeps it.
        created_at: aware UTC time.
        tokens: size by the exporting runtime's counter; an import counts again.
        importance: 0 to 1.
        chat: the chat dict.
        metadata: the sender's.
        pruned: it must not be in long-term memory.
    """

    seq: int
    id: str
    created_at: datetime
    tokens: int
    importance: float
    chat: ChatDict
    metadata: dict[str, Any] | None = None
    pruned: bool = False


class SessionExport(msgspec.Struct, frozen=True):
    """A session with its past.

    Attributes:
        user: whose it is.
        session: its id.
        messages: all that were not removed, oldest first.
        front: messages up to here have left the buffer.
        flushed: messages up to here are in long-term memory, or are being indexed.
        summary: the running summary.
        summaries: entries that the running summary does not cover, oldest first.
        state_items: states of memory blocks, summary entries that left the list, keyed state.
    """

    user: str
    session: str
    messages: tuple[MessageExport, ...]
    front: int
    flushed: int
    summary: Summary | None
    summaries: tuple[Summary, ...]
    state_items: tuple[StateItem, ...] = msgspec.field(name="facets")


class UserExport(msgspec.Struct, frozen=True):
    """A user without the sessions.

    Attributes:
        user: the user.
        memories: recorded as such, oldest first.
        state_items: working memory, user profile, access counts, grants, keyed state.
    """

    user: str
    memories: tuple[MemoryItem, ...]
    state_items: tuple[StateItem, ...] = msgspec.field(name="facets")


Exported: TypeAlias = SessionExport | UserExport
Placed: TypeAlias = tuple[int, Exported]
"""The line (or row) where a session or user begins, and the session or user."""


class ExportHeader(msgspec.Struct, frozen=True):
    """The first record of an export.

    Attributes:
        format: see `FORMAT`.
        remora: the version that wrote it.
        created_at: when.
        embedder: name and dimension of the embedder; an import embeds again, with its own.
        counter: the token counter.
    """

    format: int
    remora: str
    created_at: datetime
    embedder: str
    counter: str


def newer_format(number: int) -> str:
    """The message about an export of a format that this remora does not read."""
    return f"the export has the format {number}, this remora reads up to {FORMAT}: upgrade remora"


class TransferReport(msgspec.Struct, frozen=True):
    """How much an export or an import wrote.

    Attributes:
        sessions: how many.
        messages: of these sessions.
        users: that have more than sessions.
        memories: of these users; in an import, those that were not there.
        skipped: sessions that existed already.
    """

    sessions: int = 0
    messages: int = 0
    users: int = 0
    memories: int = 0
    skipped: int = 0


class ExportWriter(Protocol):
    """Writes an export; its methods block."""

    def write(self, exported: Sequence[Exported]) -> None:
        """Add sessions or users."""
        ...

    def close(self) -> None:
        """Finish the export; it is on disk afterwards."""
        ...

    def abandon(self) -> None:
        """Close the files of an unfinished export."""
        ...


class ExportReader(Protocol):
    """Reads an export; its methods block. Every error names a line, or a file and a row."""

    header: ExportHeader

    def read(self) -> Iterator[Placed]:
        """Every session and user, from the beginning.

        Raises:
            InvalidExport: a part is invalid, or the end is missing.
        """
        ...

    def close(self) -> None:
        """Release the files."""
        ...
