"""What the rest of remora needs of a store: two protocols, and the rows that cross them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from remora.errors import InvalidInput
from remora.ids import SessionKey, UserKey
from remora.messages import Entry
from remora.runtime.log import Job, Log
from remora.storage.records import EarlierBuffer, MemoryItem, StateItem, Summary

if TYPE_CHECKING:  # numpy is loaded by those who compute with it, at first use
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "BLOCK_TYPE",
    "EVERYTHING",
    "NEIGHBOURS",
    "BufferStart",
    "Candidate",
    "Erased",
    "Erasure",
    "Finding",
    "Histories",
    "Journal",
    "JournalCounts",
    "LongTermStatistics",
    "LongTermStore",
    "MemoryRow",
    "Retention",
    "Scope",
    "SessionListing",
    "SummaryFigures",
    "Vector",
    "buffer_start_from",
    "earlier_buffer",
]

Vector: TypeAlias = "npt.NDArray[np.float32]"
"""One unit vector, shape (dimension,), or a matrix of them, shape (n, dimension)."""


NEIGHBOURS = 2
"""Messages either side of one that its row in long-term memory holds words of: when it goes, their
rows are written anew.
"""


class JournalCounts(msgspec.Struct, frozen=True):
    """How much a journal holds."""

    users: int
    sessions: int
    messages: int
    tokens: int
    summaries: int
    pending_jobs: int
    dead_jobs: int
    memories: int = 0


class SummaryFigures(msgspec.Struct, frozen=True):
    """How often a session was summarized, and what that took.

    Attributes:
        calls: summaries that came in.
        tokens_in: what the summarizer was given, by the runtime's counter.
        tokens_out: what it answered.
        degraded: how many of them an extract stood in for.
    """

    calls: int
    tokens_in: int
    tokens_out: int
    degraded: int


class BufferStart(msgspec.Struct, frozen=True):
    """Where a session's buffer began at an earlier message.

    Attributes:
        front: messages up to here were out of the buffer.
        summary: the running summary then.
        summaries: the entries then that it did not cover.
        cleared: messages up to here had been cleared.
        trimmed: messages up to here are gone since: they were kept as long as they had to be
            (`Journal.trim`).
    """

    front: int
    summary: Summary | None
    summaries: tuple[Summary, ...]
    cleared: int = 0
    trimmed: int = 0


def buffer_start_from(
    folds: Sequence[tuple[str, int, Summary]], *, trimmed: int = 0
) -> BufferStart:
    """What the folds up to some moment, oldest first, each with its kind and generation, add up
    to.
    """
    if not folds:
        return BufferStart(0, None, (), 0, trimmed)
    current = folds[-1][1]
    mine = [(kind, summary) for kind, generation, summary in folds if generation == current]
    running = [summary for kind, summary in mine if kind == "summary"]
    summary = running[-1] if running else None
    covered = summary.through if summary else 0
    entries = tuple(one for kind, one in mine if kind == "entry" and one.through > covered)
    # The rows of a front that moved hold the mark of the last clear where those of summaries hold
    # their first message.
    cleared = [one.first for kind, _, one in folds if kind not in {"summary", "entry"}]
    return BufferStart(
        max(one.through for _, one in mine),
        summary,
        entries,
        cleared[-1] if cleared else 0,
        trimmed,
    )


class SessionListing(msgspec.Struct, frozen=True):
    """One session in a listing."""

    key: SessionKey
    messages: int
    last_at_us: int


class Erasure(msgspec.Struct, frozen=True):
    """A note in the journal that something is being forgotten, by digests alone.

    It must be no trace of what it names (G13).

    Attributes:
        number: the note's own.
        user_key: `remora.ids.user_key` of the user.
        session_key: `remora.ids.session_key` of the session; empty for all that is the user's.
    """

    number: int
    user_key: str
    session_key: str = ""


class Erased(msgspec.Struct, frozen=True):
    """What the journal deleted, and the note that it left.

    Attributes:
        erasure: the note.
        removed: how many rows went, by table: ``actors``, ``messages``, ``folds``, ``state_items``,
            ``memories``, ``jobs``.
    """

    erasure: Erasure
    removed: dict[str, int]


class Retention(msgspec.Struct, frozen=True):
    """How long archived originals are kept: messages that left the buffer; 0 is no bound.

    Attributes:
        max_age_days: older ones go.
        max_messages: those beyond, in each session, go; the oldest first.
        max_bytes: those beyond, of all sessions together, go; the oldest first.
    """

    max_age_days: float = 0.0
    max_messages: int = 0
    max_bytes: int = 0


class Journal(Log, Protocol):
    """The write-ahead journal of all sessions.

    Committed writes of one session become visible in the order in which they were handed over; a
    write is wholly there or wholly absent. Reads see committed data only, and what they give is
    what was written: a row that is not any more fails with `JournalDamaged`, which names it, and no
    other session notices.

    `erase`, `erased`, `scrub` and `trim` are done by `run`, in their turn among the writes.
    """

    instance: str
    """Six hex digits that tell this journal's message ids from another's."""

    async def run(self) -> None:
        """Commit what is queued, for ever: the runtime's own task, cancelled before `aclose`."""
        ...

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        """Messages `first`…`last` of a session, in order.

        Cleared and folded ones too, removed and trimmed ones not.

        With `at`, as it was when message `at` was the newest: what was removed later is there.

        Raises:
            JournalDamaged: one of them is missing, or is not as it was written.
        """
        ...

    async def past(self, key: SessionKey, at: int) -> BufferStart:
        """What the session's buffer began with when message `at` was its newest."""
        ...

    async def folds(self, key: SessionKey) -> SummaryFigures:
        """How often the session was summarized, and what that took."""
        ...

    async def memories(self, user: str, ids: Sequence[str] | None = None) -> Sequence[MemoryItem]:
        """What was recorded of a user on purpose, oldest first; with `ids`, those alone."""
        ...

    async def pruned(self, key: SessionKey) -> Sequence[int]:
        """Numbers of the session's messages that long-term memory is not to have."""
        ...

    async def state_items(self, key: SessionKey | UserKey) -> Sequence[StateItem]:
        """All of an actor's facets, in the order in which they were first put."""
        ...

    async def flushed(self) -> Sequence[tuple[SessionKey | UserKey, int]]:
        """Every actor, in a fixed order, and up to which message it is in long-term memory, but for
        what `owed` names.
        """
        ...

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        """Job rows, oldest first: those still to be done, or the dead letters.

        Each is `resumed`.
        """
        ...

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        """A user's sessions, newest message last."""
        ...

    async def unflushed(self, limit: int) -> Sequence[SessionKey]:
        """Sessions with messages that no flush job has been written for."""
        ...

    async def counts(self, user: str | None = None) -> JournalCounts:
        """How much it holds, of everybody or of one user."""
        ...

    async def setting(self, name: str, value: str | None = None) -> str | None:
        """Read a named setting of this journal; with `value`, set it first if it was never set."""
        ...

    async def change(self, settings: Mapping[str, str]) -> None:
        """Set these settings, whatever they were: all at once, durably, or none (G4).

        An empty text means unset.

        Raises:
            StorageError: nothing is known to have changed.
        """
        ...

    async def erase(self, user: str, session: str | None = None) -> Erased:
        """Delete everything of a user, or of one session, and leave a note (G13): all at once,
        after what was written before.

        Of a user: every row of theirs; grants in shared scopes name agents, who are nobody's user.
        Of a session: its messages, folds, facets, jobs and memories, and what of it the user's own
        actor holds: the synopsis, and items of working memory.

        The names are free again afterwards; numbers of actors, and so message ids and ids of jobs,
        are not given out again. Whoever holds an actor of it in memory lets go of it first: what is
        written for that actor later fails with `CommitFailed`.

        Raises:
            CommitFailed: nothing was deleted.
            OutcomeUnknown: all of it was deleted, or nothing; erase it again.
        """
        ...

    async def erasures(self) -> Sequence[Erasure]:
        """The notes of what is not known to be gone to its last byte, oldest first."""
        ...

    async def erased(self, number: int) -> None:
        """The note goes, durably; one that is gone already is none the less.

        Raises:
            CommitFailed, OutcomeUnknown: see `erase`.
        """
        ...

    async def scrub(self) -> None:
        """See to it that no byte of any deleted row is left in the journal's files (G13).

        Reads go on; writes wait meanwhile.

        Raises:
            StorageError: it could not be done, or a reader is in the way for too long; do it again.
        """
        ...

    async def trim(self, limits: Retention, now_us: int) -> int:
        """Remove archived originals beyond the limits, oldest first.

        Returns how many messages went.

        Archived are those that left their session's buffer. One goes only when nobody needs it any
        more: long-term memory has it, or is never to have it; no job of the session, dead letters
        included, has yet to read it; and it is not one of the newest two that are archived, whose
        words stand beside the buffer's first in long-term memory. So a bound may be overstepped for
        a while. Idempotency keys go with the messages that came under them: a request can be
        retried for as long as they are kept. Numbers are never used again, and `read` begins behind
        what is gone.

        Args:
            limits: what is kept.
            now_us: the time, in microseconds since the epoch.

        Raises:
            CommitFailed, OutcomeUnknown, StorageError: some of it may have gone; trim again.
        """
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
        id: deterministic (`remora.ids.row_id`).
        user: the owner.
        session: where it was said.
        seq: the message's number there; 0 for what is no message.
        role: chat role of who said it; ``system`` for what is no message.
        speaker: the name, where several share a role, else empty.
        content: what was said, as text.
        turn: how it is searched: "(8 May 2023) Speaker: text".
        window: it and its neighbours in the session, each cut short.
        memory_type: ``message``; ``summary``, an entry that left a session's summary list; or what
            it was recorded as: ``fact``, ``preference``, ``context``, ``procedural``,
            ``message_batch``. `BLOCK_TYPE` is what a memory block keeps.
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
    """Which of a user's rows are meant; what is given narrows, and all of it must hold.

    Attributes:
        session: rows of this session.
        agent: rows of this agent, and of no other; None for all agents' rows and those of none.
        types: rows of these memory types.
    """

    session: str | None = None
    agent: str | None = None
    types: tuple[str, ...] = ()


EVERYTHING = Scope()
BLOCK_TYPE = "block"
"""Memory type of what a memory block keeps: its own business, in no recall, no listing and no
pruning.
"""


class Candidate(msgspec.Struct, frozen=True):
    """A row that a search found, with its score in each list that found it (``turn``, ``window``,
    ``vector``).
    """

    row: MemoryRow
    scores: dict[str, float]


class Histories(Protocol):
    """What of a `Journal` it takes to look at a buffer of the past."""

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        """See `Journal.read`."""
        ...

    async def past(self, key: SessionKey, at: int) -> BufferStart:
        """See `Journal.past`."""
        ...


async def earlier_buffer(
    journal: Histories, key: SessionKey, at: int, *, as_it_was: bool = False
) -> EarlierBuffer:
    """The session's buffer when message `at` was its newest.

    With `as_it_was`, messages removed since are there, too.

    Without it, a summary that tells of messages removed since is left out, and what it covered is
    in the buffer again.

    Raises:
        InvalidInput: with `as_it_was`, if messages of that buffer are gone, since originals are not
            kept for ever.
    """
    past = await journal.past(key, at)
    if as_it_was:
        if past.front < past.trimmed:
            raise InvalidInput(
                f"what the session was at message {at} is not kept any more: messages up to "
                f"{past.trimmed} are gone"
            )
        entries = await journal.read(key, past.front + 1, at, at=at)
        return EarlierBuffer(past.front, past.summary, past.summaries, tuple(entries), past.cleared)
    if past.trimmed and past.front < past.trimmed + NEIGHBOURS:
        return EarlierBuffer(
            past.front, past.summary, past.summaries, (), past.cleared, there=False
        )
    there = at == 0 or bool(await journal.read(key, at, at))
    told = [one.through for one in (*((past.summary,) if past.summary else ()), *past.summaries)]
    if told:
        covered = max(told)
        then = await journal.read(key, past.cleared + 1, covered, at=at)
        if len(then) != len(await journal.read(key, past.cleared + 1, covered)):
            past = BufferStart(past.cleared, None, (), past.cleared)
    entries = await journal.read(key, past.front + 1, at)
    return EarlierBuffer(
        past.front, past.summary, past.summaries, tuple(entries), past.cleared, there
    )


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it should be, as `verify` reports it.

    Attributes:
        kind: ``journal``, ``wal``, ``missing``, ``orphan``, ``doubled``, ``foreign``, ``file``,
            ``table``, or ``erasure``: one that is not finished.
        where: which file, table, session or row.
        detail: what is wrong with it.
        repairable: whether it can be made again from what is left.
    """

    kind: str
    where: str
    detail: str
    repairable: bool


class LongTermStatistics(msgspec.Struct, frozen=True):
    """What long-term memory holds and has done.

    Attributes:
        rows: rows it holds.
        commits: writes of any kind since it was opened.
        merges: writes of rows that might have been there.
        fragments: writes since each part was last compacted, together.
        compactions: parts compacted since it was opened.
        damaged: rows that were left out of an answer since it was opened, because they are not as
            they were written.
        rewritten_bytes: what compacting and erasing have written since it was opened.
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
        """Store rows.

        `may_exist` says that an earlier attempt may have stored some, which must not double them
        (G7).

        When it returns, they are as durable as the store can make them: the journal counts them as
        flushed from then on.

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

    async def rows(self, user: str, scope: Scope = EVERYTHING) -> Sequence[MemoryRow]:
        """All of the user's rows in `scope`, oldest first.

        Raises:
            LongTermError: they cannot be read.
        """
        ...

    async def embedded_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """The same with their vectors, shape (rows, dimension); None in a store without vectors.

        Raises:
            LongTermError: they cannot be read.
        """
        ...

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        """Remove some of the user's rows; returns how many were there.

        Ids of others are passed over.

        Raises:
            LongTermError: it is not known which are gone; do it again.
        """
        ...

    async def erase(self, user_key: str, session_key: str = "") -> int:
        """Remove all rows of a user, or of one of their sessions, down to the bytes (G13).

        No older version, index, log or temporary file holds anything of them afterwards. Doing it
        again does no harm, and finishes what a crash cut short; other users' rows can be read
        meanwhile.

        Args:
            user_key: `remora.ids.user_key` of the user.
            session_key: `remora.ids.session_key` of the session; empty for all that is the user's.

        Returns:
            How many rows were there.

        Raises:
            LongTermError: it is not known to be gone; do it again.
        """
        ...

    async def verify(self, *, deep: bool = False) -> Sequence[Finding]:
        """What is not as it should be: damaged files, rows that are doubled, damaged or in the
        wrong place.

        Args:
            deep: read every byte, not just names, sizes and ids.

        Raises:
            LongTermError: it could not be looked at.
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
