"""The journal port: the write-ahead journal of all sessions, and what its queries return."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar, runtime_checkable

import anyio
import msgspec

from remora.errors import JournalDamaged, OwnershipLost
from remora.ids import SessionKey, UserKey
from remora.messages import Entry
from remora.runtime.jobs import Job
from remora.runtime.log import Log
from remora.storage.attachments import Attachments
from remora.storage.listing import ListingPage, SessionListing, UserListing
from remora.storage.lookups import BufferStart, SessionPart
from remora.storage.records import MemoryItem, StateItem


class JournalCounts(msgspec.Struct, frozen=True):
    """Numbers of rows in a journal.

    Attributes:
        state_keys: keys of keyed state, of users and of sessions.
    """

    users: int
    sessions: int
    messages: int
    tokens: int
    summaries: int
    pending_jobs: int
    dead_jobs: int
    memories: int = 0
    state_keys: int = 0


class SummaryFigures(msgspec.Struct, frozen=True):
    """How often a session was summarized, and the tokens of that.

    Attributes:
        calls: summaries that were made.
        tokens_in: tokens given to the summarizer.
        tokens_out: tokens of its answers.
        degraded: how many are fallback summaries.
    """

    calls: int
    tokens_in: int
    tokens_out: int
    degraded: int


class Erasure(msgspec.Struct, frozen=True):
    """A note in the journal that something is being erased. It holds digests only.

    Attributes:
        number: of the note.
        user_key: digest of the user, under the first of the journal's keys
            (`remora.storage.erasure_notes.DIGEST_KEYS`).
        session_key: digest of the session; empty for the whole user.
        others: the same two under each of the other keys.
    """

    number: int
    user_key: str
    session_key: str = ""
    others: tuple[tuple[str, str], ...] = ()

    @property
    def owners(self) -> tuple[tuple[str, str], ...]:
        """The two digests under each key."""
        return ((self.user_key, self.session_key), *self.others)


class Erased(msgspec.Struct, frozen=True):
    """The result of an erasure in the journal, and the note that it left.

    Attributes:
        erasure: the note.
        removed: how many rows were deleted, by table: ``actors``, ``messages``, ``summaries``,
            ``state_items``, ``memories``, ``jobs``.
    """

    erasure: Erasure
    removed: dict[str, int]


class Retention(msgspec.Struct, frozen=True):
    """How long archived originals are kept: messages that left the buffer; 0 is no bound.

    Attributes:
        max_age_days: older ones are removed.
        max_messages: more than this in one session are removed, oldest first.
        max_bytes: more than this in all sessions together are removed, oldest first.
    """

    max_age_days: float = 0.0
    max_messages: int = 0
    max_bytes: int = 0


class Finding(msgspec.Struct, frozen=True):
    """Damage or an inconsistency, as `verify` reports it.

    Attributes:
        kind: ``journal``, ``wal``, ``missing``, ``orphan``, ``doubled``, ``foreign``, ``file``,
            ``table``, or ``erasure``: one that is not finished.
        where: which file, table, session or row.
        detail: what is wrong with it.
        repairable: whether it can be restored from what is left.
    """

    kind: str
    where: str
    detail: str
    repairable: bool


@runtime_checkable
class IndexesUses(Protocol):
    """A journal whose index of last uses is behind its messages; other processes may read it."""

    def unwritten_uses(self) -> tuple[int, ...] | None:
        """The numbers of the sessions whose last use is not in the index yet.

        Any thread may ask. None if the index cannot be relied on.
        """
        ...


class Journal(Log, Protocol):
    """The write-ahead journal of all sessions.

    Writes of one session are committed in the order of queueing; a write is stored whole or not at
    all. When a connection breaks during a commit, the journal finds out what became of it, or
    acknowledges `OutcomeUnknown`. In both cases it makes sure that the commit is not stored later:
    what a read shows after the next write was acknowledged does not change any more. Queries see
    only committed data, and return what was written: a damaged row raises `JournalDamaged`, which
    names it, and other sessions are not affected.

    `run` also does `erase`, `finish_erasure`, `scrub`, `trim` and changes of settings, in the order
    of queueing. Settings can also be changed before `run` starts.
    """

    instance: str
    """Six hex digits in the ids of this journal's messages."""

    attachments: Attachments
    """The attachments of its messages."""

    epoch: int
    """How many owners opened this journal so far, this one included; 0 if it is not counted.

    Opening takes the journal over. Every commit, and every other change, is refused with
    `OwnershipLost` when the journal has a newer owner by then: the check and the rows are one step
    for the database.
    """

    @property
    def commit_number(self) -> int:
        """The number of the newest commit that this owner knows of; 0 if commits are not counted.

        The journal stores it with the rows, so the next owner continues it. After a connection
        broke it says what became of the commit: stored, if the database has its number. Commits
        that hold only messages need not be counted.
        """
        ...

    async def run(self) -> None:
        """Commit queued writes until cancelled; the runtime ends this task before `aclose`."""
        ...

    async def wait_until_lost(self) -> None:
        """Return when nothing can be stored any more, and `statistics().lost` says why.

        Another process took the journal over, or its files are gone. The runtime ends then: what it
        has in memory may be older than what the new owner stores.
        """
        ...

    def check_lease(self) -> None:
        """Raise `OwnerUnreachable` while another process may own the journal.

        Called before each operation of the runtime, so it must be fast: it compares times. Nothing
        may be answered from memory while it raises, since a new owner may have stored more.
        """
        ...

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        """Messages `first`…`last` of a session, in order, without removed and trimmed ones.

        With `at`, those that existed when message `at` was the newest.

        Raises:
            JournalDamaged: one of them is missing or damaged.
        """
        ...

    async def read_ranges(
        self, ranges: Sequence[tuple[SessionKey, int, int]], *, max_bytes: int
    ) -> Sequence[SessionPart] | None:
        """`read` of the messages `first`…`last` of several sessions, in the order of `ranges`.

        Args:
            ranges: a session, its first message and the last.
            max_bytes: of all messages; None is returned if they have more.

        Raises:
            JournalDamaged: see `read`.
        """
        ...

    async def any_removed(self, key: SessionKey, first: int, last: int, *, since: int) -> bool:
        """Return whether a message of `first`…`last` was removed after `since + 1` came."""
        ...

    async def buffer_start(self, key: SessionKey, at: int) -> BufferStart:
        """Where the session's buffer began when message `at` was its newest."""
        ...

    async def summary_figures(self, key: SessionKey) -> SummaryFigures:
        """How often the session was summarized, and the tokens of that."""
        ...

    async def memories(self, user: str, ids: Sequence[str] | None = None) -> Sequence[MemoryItem]:
        """A user's recorded memories, oldest first; only those of `ids`, if given."""
        ...

    async def list_memories(
        self, user: str, *, after: tuple[int, str] | None, limit: int
    ) -> Sequence[MemoryItem]:
        """A user's recorded memories by `created_us` and id: the next ones behind `after`."""
        ...

    async def facts(
        self, user: str, *, session: str | None = None, topics: Collection[str] | None = None
    ) -> Sequence[MemoryItem]:
        """A user's extracted facts, oldest first: those of a session, or of these topics."""
        ...

    async def instructions(self, user: str, *, limit: int) -> Sequence[MemoryItem]:
        """The user's newest memories of the type `INSTRUCTION`, newest first.

        Of each topic it returns the three newest, and it looks at the newest ``4 * limit``.
        """
        ...

    async def removed_messages(
        self, user: str, messages: Collection[tuple[str, int]]
    ) -> Collection[tuple[str, int]]:
        """Return those of these messages, by session and number, that were deleted or rewound."""
        ...

    async def message_ids(
        self, user: str, messages: Collection[tuple[str, int]]
    ) -> Mapping[tuple[str, int], str]:
        """The ids of these messages, by session and number; without those that are not there."""
        ...

    async def sessions_of(self, user: str, ids: Collection[str]) -> Sequence[tuple[str, str]]:
        """Messages' ids, each with a session of the user that has or had a message of that id."""
        ...

    async def pruned_seqs(self, key: SessionKey) -> Sequence[int]:
        """Numbers of the session's messages that must not be in long-term memory."""
        ...

    async def state_items(self, key: SessionKey | UserKey) -> Sequence[StateItem]:
        """All state items of an actor, in the order in which they were created."""
        ...

    async def indexed_through(self) -> Sequence[tuple[SessionKey | UserKey, int]]:
        """Every actor, in a fixed order, and how far its messages are in long-term memory.

        Messages that `pending_flushes` names are not there yet.
        """
        ...

    async def session_indexed_through(self, key: SessionKey) -> int:
        """The same of one session; 0 for a session without messages."""
        ...

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        """Jobs, oldest first: those to be done, or the dead letters; all are marked `resumed`."""
        ...

    async def user_jobs(self, user: str) -> Sequence[Job]:
        """A user's jobs, and those of their sessions, oldest first; dead letters included."""
        ...

    async def unindexed(
        self, user: str, limit: int, sessions: Collection[str] | None = None
    ) -> Sequence[tuple[SessionKey, int]]:
        """A user's messages that have no flush job yet, by session and number, the newest first.

        Of messages with one time, those of the session that began last come first. Without removed
        ones, and those that must not be in long-term memory. It must not look at the sessions of
        other users.

        Args:
            user: the user.
            limit: how many at most.
            sessions: only those of these sessions; None for all.
        """
        ...

    async def find_unindexed(
        self, user: str, words: Sequence[str], limit: int
    ) -> Sequence[tuple[SessionKey, int]]:
        """A user's messages that are not indexed and have some of these words, as `unindexed`.

        Those with the rarest of the words come first. Messages whose flush job has not ended are
        among them.

        Args:
            user: the user.
            words: are looked for within the content. Their ASCII letters are small, and those of
                the content count as such; others are compared as they are.
            limit: how many at most.
        """
        ...

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        """A user's sessions; the one with the newest message comes last."""
        ...

    async def list_sessions(self, user: str, page: ListingPage) -> Sequence[SessionListing]:
        """A page of a user's sessions, those without a message left out."""
        ...

    async def list_users(self, page: ListingPage) -> Sequence[UserListing]:
        """A page of all users, those without sessions included; shared scopes are no users."""
        ...

    async def sessions_to_flush(self, limit: int) -> Sequence[SessionKey]:
        """Sessions with messages that have no flush job yet."""
        ...

    async def sessions_with_fallbacks(self, limit: int) -> Sequence[SessionKey]:
        """Sessions that had fallback summaries since their past was last replaced.

        They may have lost messages; their actors know.
        """
        ...

    async def counts(self, user: str | None = None) -> JournalCounts:
        """Numbers of rows, of all users or of one."""
        ...

    async def setting(self, name: str) -> str | None:
        """A named setting of this journal; None if it was never set."""
        ...

    async def init_setting(self, name: str, value: str) -> str:
        """Set a setting durably if it was never set; returns its value.

        Raises:
            StorageError: it may not be set.
        """
        ...

    async def change_settings(self, settings: Mapping[str, str]) -> None:
        """Set these settings durably, all or none. An empty text means unset.

        Raises:
            StorageError: they may not be set.
        """
        ...

    async def erase(self, user: str, session: str | None = None) -> Erased:
        """Delete all rows of a user or session, and leave a note.

        Queued writes are committed first, and then deleted too. Of a user every row is deleted
        (grants in shared scopes name agents, not users). Of a session its messages, summaries,
        state items, jobs and memories are deleted, and those state items of the user that may
        quote it: the synopsis, and items of working memory. Once the note is there, no query finds
        any of them; messages can be deleted in steps, with other writes in between.

        The names can be used again. Numbers of actors, and so ids of messages and jobs, are never
        reused. The caller evicts the actors first: later writes for them fail with `CommitFailed`.

        Raises:
            CommitFailed: nothing was deleted.
            OutcomeUnknown: all was deleted, or nothing, or not all rows are gone yet; erase again.
        """
        ...

    async def erasures(self) -> Sequence[Erasure]:
        """The notes of unfinished erasures, oldest first."""
        ...

    async def finish_erasure(self, number: int) -> None:
        """Remove a note, durably; does nothing if there is none.

        Raises:
            CommitFailed, OutcomeUnknown: see `erase`.
        """
        ...

    async def scrub(self) -> None:
        """Leave no byte of any deleted row in the journal's files. Writes wait; reads do not.

        What an interrupted `erase` left is deleted first.

        Raises:
            CommitFailed, OutcomeUnknown, StorageError: it failed, or a reader blocked it for too
                long; call again.
        """
        ...

    async def trim(self, limits: Retention, now_us: int) -> int:
        """Remove archived originals beyond the limits, oldest first; returns how many.

        Archived messages are those that left their session's buffer. One is removed only if
        nothing needs it: long-term memory has it or must not have it, no job of the session (dead
        letters included) will read it, and it is not one of the newest two archived messages, whose
        words are indexed with the first messages of the buffer. So a bound can be exceeded for a
        while. Idempotency keys are removed with their messages, which bounds how long a request can
        be retried. Numbers are never reused, and `read` begins after the removed messages.

        Args:
            limits: how much is kept.
            now_us: the time, in microseconds since the epoch.

        Raises:
            CommitFailed, OutcomeUnknown, StorageError: some may be removed; trim again.
        """
        ...

    async def checkpoint(self) -> None:
        """Do what a journal must do now and then, and notice a newer owner.

        For SQLite: move the write-ahead log into the main file.
        """
        ...

    async def aclose(self) -> None:
        """Commit queued writes and release the files."""
        ...


def check_owned(journal: Journal) -> None:
    """Check that the journal is still this runtime's, after a wait for others.

    Raises:
        OwnershipLost: what was read before may be out of date by now.
    """
    if lost := journal.statistics().lost:
        raise OwnershipLost(lost)


async def read_undamaged(
    journal: Journal, key: SessionKey, first: int, last: int
) -> tuple[Sequence[Entry], dict[int, JournalDamaged]]:
    """The messages `first`…`last` that can be read, in order; and why each other one cannot."""
    found: list[Entry] = []
    damaged: dict[int, JournalDamaged] = {}
    spans = [(first, last)]
    while spans:
        first, last = spans.pop()
        try:
            found += await journal.read(key, first, last)
        except JournalDamaged as e:
            if first == last:
                damaged[first] = e
            else:
                middle = (first + last) // 2
                spans += [(middle + 1, last), (first, middle)]
    return found, damaged


AnyJournal = TypeVar("AnyJournal", bound=Journal)


@asynccontextmanager
async def running(run: Callable[[], Coroutine[object, object, object]]) -> AsyncIterator[None]:
    """Run a function that does not end while the body runs, and cancel it at the end.

    What the body raises is raised as it is, not in a group.
    """
    error: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            yield
        except Exception as e:  # raised outside of the group, which would wrap it
            error = e
        tasks.cancel_scope.cancel()
    if error is not None:
        raise error


@asynccontextmanager
async def running_journal(journal: AnyJournal) -> AsyncIterator[AnyJournal]:
    """Run an open journal, and close it at the end. What the body raises is raised as it is."""
    try:
        async with running(journal.run):
            yield journal
    finally:
        with anyio.CancelScope(shield=True):
            await journal.aclose()
