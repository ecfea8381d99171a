"""The two storage ports: `Journal` and `LongTermStore`, and the data that crosses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from remora.faces import publish
from remora.ids import SessionKey, UserKey
from remora.runtime.log import Write
from remora.storage.journal_port import (
    Erased,
    Erasure,
    Finding,
    Journal,
    JournalCounts,
    Retention,
    SummaryFigures,
    check_owned,
)
from remora.storage.listing import ListingPage, SessionListing, UserListing
from remora.storage.lookups import earlier_buffer
from remora.storage.pending import NEIGHBOURS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "BLOCK_TYPE",
    "EVERYTHING",
    "NEIGHBOURS",
    "Candidate",
    "Erased",
    "Erasure",
    "Finding",
    "Journal",
    "JournalCounts",
    "ListingPage",
    "LongTermStatistics",
    "LongTermStore",
    "MemoryRow",
    "Retention",
    "RowOrder",
    "Scope",
    "SessionKey",
    "SessionListing",
    "SummaryFigures",
    "UserKey",
    "UserListing",
    "Vector",
    "Write",
    "check_owned",
    "earlier_buffer",
]


# -- the long-term memory port: rows with vectors, and the store that keeps them -------------------

Vector: TypeAlias = "npt.NDArray[np.float32]"
"""One unit vector, shape (dimension,), or a matrix of them, shape (n, dimension)."""

BLOCK_TYPE = "block"
"""Memory type of the rows of memory blocks: not recalled, not listed, never pruned."""


class MemoryRow(msgspec.Struct, frozen=True, gc=False):
    """One row of long-term memory, without its vector.

    Attributes:
        id: deterministic (`remora.ids.row_id`).
        user: the owner.
        session: of the message.
        seq: the message's number in the session; 0 if it is not a message.
        role: chat role of the sender; ``system`` if it is not a message.
        speaker: the sender's name if several share a role, else empty.
        content: the text.
        turn: the text that is searched: "(8 May 2023) Speaker: text".
        window: the message and its neighbours in the session, each shortened; empty where the store
            has `makes_windows`.
        memory_type: ``message``; ``summary``, an entry that left a session's summary list; the type
            of a recorded memory: ``fact``, ``preference``, ``context``, ``procedural``,
            ``message_batch``; or `BLOCK_TYPE`.
        importance: 0 to 1.
        created_us: microseconds since the epoch.
        tokens: size in a context.
        agent: whose memory it is; empty for all of the user's agents.
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
    agent: str = ""


class Scope(msgspec.Struct, frozen=True):
    """Selects rows of a user: those that match every given attribute.

    Attributes:
        session: rows of this session.
        agent: rows of this agent only; None for rows of all agents and of none.
        types: rows of these memory types.
        ids: rows with these ids; None for all.
    """

    session: str | None = None
    agent: str | None = None
    types: tuple[str, ...] = ()
    ids: tuple[str, ...] | None = None


EVERYTHING = Scope()

RowOrder: TypeAlias = Literal["created", "importance"]
"""Oldest first, or the most important first, of equals the older."""


class Candidate(msgspec.Struct, frozen=True):
    """A row that a search found.

    Attributes:
        row: the row.
        scores: its score in each list that found it (``turn``, ``vector``, and ``window`` where the
            store keeps windows).
    """

    row: MemoryRow
    scores: dict[str, float]


class LongTermStatistics(msgspec.Struct, frozen=True):
    """Counters of long-term memory.

    Attributes:
        rows: rows it holds.
        commits: writes of any kind since it was opened.
        merges: writes of rows that may have existed.
        fragments: writes since each part was last compacted, together.
        compactions: parts compacted since it was opened.
        damaged: damaged rows that were left out of answers since it was opened.
        rewritten_bytes: bytes that compacting and erasing wrote since it was opened.
    """

    rows: int
    commits: int
    merges: int
    fragments: int
    compactions: int
    damaged: int = 0
    rewritten_bytes: int = 0


class LongTermStore(Protocol):
    """Long-term memory: rows with vectors, searched within one user."""

    async def add(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        """Store rows, as durably as the store can.

        Args:
            rows: the rows.
            vectors: theirs, in order; None in a store without vectors.
            may_exist: an earlier attempt may have stored some, which must not be doubled.

        Raises:
            LongTermError: nothing is known to be stored.
        """
        ...

    async def search(
        self, user: str, text: str, vector: Vector | None, *, depth: int, scope: Scope = EVERYTHING
    ) -> Sequence[Candidate]:
        """The user's rows in `scope` that match, unranked; the `depth` best of each list.

        Raises:
            LongTermError: the search failed.
        """
        ...

    async def rows(
        self,
        user: str,
        scope: Scope = EVERYTHING,
        *,
        limit: int | None = None,
        by: RowOrder = "created",
    ) -> Sequence[MemoryRow]:
        """The user's rows in `scope`: all, or the first `limit` that are not of memory blocks.

        Raises:
            LongTermError: they cannot be read.
        """
        ...

    async def count(self, user: str) -> int:
        """How many rows the user has, without those of memory blocks.

        Raises:
            LongTermError: they cannot be counted.
        """
        ...

    async def embedded_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """`rows` with their vectors, shape (rows, dimension); None in a store without vectors.

        Raises:
            LongTermError: they cannot be read.
        """
        ...

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        """Remove some of the user's rows; returns how many were there.

        Ids of other users' rows are ignored.

        Raises:
            LongTermError: some may be removed; call again.
        """
        ...

    async def remove(self, user_key: str, session_key: str = "") -> int:
        """Remove all rows of a user, or of one of their sessions; their bytes may stay.

        Nothing finds the rows afterwards. `erase` removes the bytes, for many such calls at once.

        Args:
            user_key: see `erase`.
            session_key: see `erase`.

        Returns:
            How many rows were there.

        Raises:
            LongTermError: some may be left; call again.
        """
        ...

    async def erase(self, user_key: str, session_key: str = "") -> int:
        """Remove all rows of a user, or of one of their sessions, down to the bytes.

        No older version, index, log or temporary file has any of their text afterwards. A second
        call finishes what a crash interrupted. Other users' rows stay readable.

        Args:
            user_key: `remora.ids.user_key` of the user.
            session_key: `remora.ids.session_key` of the session; empty for the whole user.

        Returns:
            How many rows were there.

        Raises:
            LongTermError: some may be left; call again.
        """
        ...

    async def verify(self, *, deep: bool = False) -> Sequence[Finding]:
        """Damaged files, and rows that are doubled, damaged or in the wrong place.

        Args:
            deep: read every byte, not just names, sizes and ids.

        Raises:
            LongTermError: it cannot be checked.
        """
        ...

    async def compact(self) -> int:
        """Compact what needs it; returns how many shards did."""
        ...

    async def statistics(self) -> LongTermStatistics:
        """Rows and counters."""
        ...

    async def row_ids(self) -> Sequence[str]:
        """Every row's id, for checks; a doubled row's id comes twice."""
        ...

    async def aclose(self) -> None:
        """Finish accepted writes and release the files."""
        ...


publish(__name__, __all__, globals())
