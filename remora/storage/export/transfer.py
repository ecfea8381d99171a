"""What an export holds: plain data, whatever it is written to.

Messages are numbered from 1 without gaps: what was deleted or rewound is not carried over, and
whatever refers to a message by its number (marks, summaries, block states) refers to its number
here. Idempotency keys are not carried over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias

import msgspec

from remora.messages import ChatDict
from remora.storage.records import MemoryItem, StateItem, Summary

__all__ = [
    "FORMAT",
    "ExportHeader",
    "ExportReader",
    "ExportWriter",
    "Exported",
    "MessageExport",
    "Placed",
    "SessionExport",
    "TransferReport",
    "UserExport",
]

FORMAT = 1
"""The newest format of exports that this remora reads, and the one that it writes."""


class MessageExport(msgspec.Struct, frozen=True):
    """One message, exactly as it was appended.

    Attributes:
        seq: its number in the export, from 1.
        id: its sender's, or the one that the session gave it; either is kept.
        created_at: aware UTC time.
        tokens: size by the exporting runtime's counter; an import counts again.
        importance: 0 to 1.
        chat: the chat dict.
        metadata: the sender's.
        pruned: long-term memory is not to have it.
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
    """A session, its past included.

    Attributes:
        user: whose it is.
        session: its id.
        messages: all that were not removed, oldest first.
        front: messages up to here are out of the buffer.
        flushed: messages up to here are in long-term memory, or on their way.
        summary: the running summary.
        summaries: entries that it does not cover, oldest first.
        state_items: states of memory blocks, and summary entries that left their list.
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
    """What a user has besides sessions.

    Attributes:
        user: the user.
        memories: what was recorded on purpose, oldest first.
        state_items: working memory, synopsis, figures of access, grants.
    """

    user: str
    memories: tuple[MemoryItem, ...]
    state_items: tuple[StateItem, ...] = msgspec.field(name="facets")


Exported: TypeAlias = SessionExport | UserExport
Placed: TypeAlias = tuple[int, Exported]
"""A session or a user, and the line (or row) where it begins."""


class ExportHeader(msgspec.Struct, frozen=True):
    """What stands in front of an export.

    Attributes:
        format: see `FORMAT`.
        remora: the version that wrote it.
        created_at: when.
        embedder: name and dimension of the embedder; an import embeds again, with its own.
        counter: what counted the tokens.
    """

    format: int
    remora: str
    created_at: datetime
    embedder: str
    counter: str


class TransferReport(msgspec.Struct, frozen=True):
    """What an export or an import came to.

    Attributes:
        sessions: written, or taken over.
        messages: theirs.
        users: with anything besides sessions.
        memories: recorded on purpose.
        skipped: sessions that were there already.
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
        """Finish what was written; it is on the disk then."""
        ...

    def abandon(self) -> None:
        """Let go of what was written so far."""
        ...


class ExportReader(Protocol):
    """Reads an export; its methods block. Every error names a line, or a file and a row."""

    header: ExportHeader

    def read(self) -> Iterator[Placed]:
        """All of it, from the beginning.

        Raises:
            InvalidExport: something in it is not what it should be, or the end is missing.
        """
        ...

    def close(self) -> None:
        """Release the files."""
        ...
