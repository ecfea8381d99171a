"""What the rest of remora needs of a store: two protocols, and the rows that cross them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from remora.identity import SessionKey
from remora.messages import Entry
from remora.runtime.log import Job, Log

if TYPE_CHECKING:  # numpy is loaded by those who compute with it, at first use
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "Candidate",
    "Journal",
    "JournalCounts",
    "LongTermStatistics",
    "LongTermStore",
    "MemoryRow",
    "SessionListing",
    "Vector",
]

Vector: TypeAlias = "npt.NDArray[np.float32]"
"""One unit vector, shape (dimension,), or a matrix of them, shape (n, dimension)."""


class JournalCounts(msgspec.Struct, frozen=True):
    """How much a journal holds."""

    users: int
    sessions: int
    messages: int
    tokens: int
    summaries: int
    pending_jobs: int
    dead_jobs: int


class SessionListing(msgspec.Struct, frozen=True):
    """One session in a listing."""

    key: SessionKey
    messages: int
    last_at_us: int


class Journal(Log, Protocol):
    """The write-ahead journal of all sessions.

    Committed writes of one session become visible in the order in which they were handed over; a write is wholly there
    or wholly absent. Reads see committed data only.
    """

    instance: str
    """Six hex digits that tell this journal's message ids from another's."""

    async def read(self, key: SessionKey, first: int, last: int) -> Sequence[Entry]:
        """Messages `first`…`last` of a session, in order; cleared and folded ones too."""
        ...

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        """Job rows, oldest first: those still to be done, or the dead letters."""
        ...

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        """A user's sessions, newest message last."""
        ...

    async def unflushed(self, limit: int) -> Sequence[SessionKey]:
        """Sessions with messages that no flush job has been written for."""
        ...

    async def counts(self) -> JournalCounts:
        """How much it holds."""
        ...

    async def setting(self, name: str, value: str | None = None) -> str | None:
        """Read a named setting of this journal; with `value`, set it first if it was never set."""
        ...

    async def checkpoint(self) -> None:
        """Move what the write-ahead log holds into the main file."""
        ...

    async def aclose(self) -> None:
        """Commit what is queued and release the files."""
        ...


class MemoryRow(msgspec.Struct, frozen=True):
    """One row of long-term memory, without its vector.

    Attributes:
        id: deterministic (`remora.identity.row_id`).
        user: the owner.
        session: where it was said.
        seq: the message's number there.
        role: chat role of who said it.
        speaker: the name, where several share a role, else empty.
        content: what was said, as text.
        turn: how it is searched: "(8 May 2023) Speaker: text".
        window: it and its neighbours in the session, each cut short.
        memory_type: ``"message"``, or what a later tier stores.
        importance: 0 to 1.
        created_us: microseconds since the epoch.
        tokens: size in a context.
    """

    id: str
    user: str
    session: str
    seq: int
    role: str
    speaker: str
    content: str
    turn: str
    window: str
    memory_type: str
    importance: float
    created_us: int
    tokens: int


class Candidate(msgspec.Struct, frozen=True):
    """A row that a search found, with its score in each list that found it (``turn``, ``window``, ``vector``)."""

    row: MemoryRow
    scores: dict[str, float]


class LongTermStatistics(msgspec.Struct, frozen=True):
    """What long-term memory holds and has done."""

    rows: int
    commits: int
    merges: int
    fragments: int
    compactions: int


class LongTermStore(Protocol):
    """Long-term memory: rows with vectors, searched within one user."""

    async def add(self, rows: Sequence[MemoryRow], vectors: Vector | None, *, doubtful: bool) -> None:
        """Store rows; `doubtful` says that an earlier attempt may have stored some, which must not double them.

        Raises:
            LongTermError: nothing is known to be stored.
        """
        ...

    async def search(self, user: str, text: str, vector: Vector | None, *, depth: int) -> Sequence[Candidate]:
        """The user's rows that match, unranked; the `depth` best of each list.

        Raises:
            LongTermError: the search failed.
        """
        ...

    async def compact(self) -> int:
        """Compact what needs it; returns how many shards did."""
        ...

    async def statistics(self) -> LongTermStatistics:
        """Rows and counters."""
        ...

    async def row_ids(self) -> Sequence[str]:
        """Every row's id, doubled where a row is doubled: for checks."""
        ...

    async def aclose(self) -> None:
        """Finish what was accepted and release the files."""
        ...
