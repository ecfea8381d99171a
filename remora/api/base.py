"""The methods of a runtime, which are the same wherever its memory is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from remora.api.batches import append_batches
from remora.api.health import Health
from remora.api.operator import Operator
from remora.api.session import Session
from remora.api.shared import SharedScope
from remora.api.status import RuntimeStatistics, add_figures
from remora.api.user import User
from remora.config import Config
from remora.errors import InvalidInput, RemoraError
from remora.ids import SHARED_PREFIX, validate_id
from remora.messages import MessageLike, Receipt, encode_message
from remora.runtime.concurrency import Progress, map_concurrently
from remora.runtime.jobs import Job
from remora.services.arguments import (
    MAX_IDS,
    check_flag,
    check_function,
    check_int,
    check_page,
    check_path,
    check_seconds,
    check_text,
    collect,
)
from remora.services.parts import OfOneProcess, PartsHolder
from remora.services.rebuild import ReembedProgress
from remora.storage.erasure_notes import WaitingErasure
from remora.storage.export.transfer import TransferReport
from remora.storage.listing import ListingOrder, merge_users
from remora.storage.ports import JournalCounts, LongTermStatistics, UserListing
from remora.tokens import count_message

if TYPE_CHECKING:
    from remora.maintenance.backup import BackupReport

Answer = TypeVar("Answer")


class BaseRuntime(OfOneProcess, ABC):
    """Handles and the operator's methods of a memory, wherever it is.

    A `remora.Runtime` has it in this process, one of `remora.connect` in another. Arguments are
    checked here; a subclass has the memory's shards, and an `Operator` that works on all of them.
    """

    __slots__ = ()

    # -- of a subclass -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def _holders(self) -> Sequence[PartsHolder]:
        """The shards' holders, by number."""

    @property
    @abstractmethod
    def _operator(self) -> Operator: ...

    @abstractmethod
    async def _open(self) -> None: ...

    @abstractmethod
    async def _close(self) -> None: ...

    @property
    @abstractmethod
    def path(self) -> Path | None:
        """The memory directory; None for a runtime in memory."""

    @property
    @abstractmethod
    def config(self) -> Config:
        """The configuration in force."""

    def _holder_of(self, user: str) -> PartsHolder:  # noqa: ARG002  # shards differ by user
        return self._holders[0]

    # -- handles -----------------------------------------------------------------------------------

    def user(self, user: str) -> User:
        """A handle on a user.

        Raises:
            InvalidId: the id cannot name a user.
        """
        name = validate_id(user, "a user id")
        return User(self._holder_of(name), name)

    def session(self, user: str, session: str) -> Session:
        """Short for ``runtime.user(user).session(session)``."""
        return self.user(user).session(session)

    def shared(self, name: str) -> SharedScope:
        """A handle on a memory that agents share, of any user or none.

        Raises:
            InvalidId: the name is not valid.
        """
        scope = validate_id(name, "a shared scope's name")
        return SharedScope(self._holder_of(SHARED_PREFIX + scope), scope)

    def message_tokens(self, message: MessageLike) -> int:
        """Tokens of a chat message by the runtime's counter.

        Raises:
            InvalidMessage: it is not a chat message.
        """
        counter = self._holders[0].parts_anywhere.intake.counter
        return count_message(counter, encode_message(message)[1])

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Open the runtime, as entering ``async with`` does; returns the runtime.

        Close it with `aclose`, from any task of the same event loop. Prefer ``async with``, which
        closes it in every case. A closed runtime can be opened again, on another event loop as
        well; one in memory is then empty, and one that was given a journal or a store as an object
        is refused.

        Raises:
            RuntimeClosed: the runtime closed the journal or store that it was given, or another
                task closed it while it opened.
            InvalidInput: it is open already, or the event loop is not asyncio's.
            WrongLoop: it is open on another event loop.
            ConfigError, DirectoryLocked, DirectoryUnusable, JournalTooNew, JournalDamaged,
                EmbedderChanged: see `Runtime`.
        """
        await self._open()
        return self

    async def aclose(self) -> None:
        """Refuse new requests, finish accepted ones, leave jobs for the next start, and close.

        Leaving ``async with`` does the same. Any task of the runtime's event loop may call it, and
        more than once. It returns when the directory is free.

        Raises:
            ReentrantAsk: called from background work: a chat model, a memory block, an embedder.
            WrongLoop: the runtime is open on another event loop.
        """
        await self._close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def ready(self, *, timeout_s: float | None = None) -> None:
        """Wait until models and tables are loaded, so that the first recall is as fast as others.

        Loading begins when the runtime opens, in the background, and takes a second or more.
        Appends and `Session.load` without a query need none of it. Call this before a server takes
        traffic, or in its readiness probe: once everything is loaded, it returns at once. What
        failed to load is tried again by each call. Models behind a network are not called.

        Args:
            timeout_s: seconds to wait; None for no limit. Loading goes on afterwards.

        Raises:
            NotReady: it took longer than `timeout_s`.
            LongTermError: long-term memory cannot be opened.
            ModelError: the embedded embedder cannot be loaded.
            RuntimeClosed: the runtime is not open, or closed before it was ready.
            InvalidInput: `timeout_s` is not a number of seconds.
        """
        check_seconds(timeout_s, "timeout_s")
        await self._operator.ready(timeout_s=timeout_s)

    async def settle(self) -> None:
        """Wait until all background work that exists now is done, for tests and shutdown.

        Rows that came in bulk are then in the indices of long-term memory as well.
        """
        await self._operator.settle()

    # -- many sessions, and all --------------------------------------------------------------------

    async def append_many(
        self,
        batches: Iterable[tuple[Session, MessageLike | Iterable[MessageLike], str | None]],
        *,
        concurrency: int = 64,
    ) -> list[Receipt | RemoraError]:
        """Append to many sessions of any users; each batch is all or none, as by `Session.append`.

        Nothing is raised for a refused batch: the result has a `Receipt` or the exception for each,
        in their order. Batches for one session keep their order.

        Args:
            batches: a session, one message or many, and an idempotency key or None.
            concurrency: sessions at once.

        Raises:
            InvalidInput: `concurrency` is not positive.
        """
        check_int(concurrency, "concurrency", low=1)
        self._holders[0].parts  # noqa: B018  # raises, although a refused batch does not
        return await append_batches(collect(batches, "batches"), concurrency=concurrency)

    async def export(
        self, path: str | Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """Write all sessions and users to a file or a directory (docs/reference/export-format.md).

        Appends go on: each session is written as it is when its turn comes. `path` is complete and
        on disk at the end; until then nothing is there.

        Args:
            path: a file that ends in ``.jsonl``; any other name becomes a directory of Parquet
                files.
            overwrite: replace what is there.
            progress: called with the number of messages done, and of all.

        Raises:
            InvalidInput: `path` exists, or looks like a file and does not end in ``.jsonl``.
            StorageError: the journal cannot be read, or the disk refused.
        """
        target = check_path(path, "path")
        check_flag(overwrite, "overwrite")
        check_function(progress, "progress")
        return await self._operator.export(target, overwrite=overwrite, progress=progress)

    async def import_(
        self, path: str | Path, *, skip_existing: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """Import what `export` wrote, here or elsewhere.

        The whole export is checked before anything is written. Tokens are counted, and long-term
        memory is embedded, by this runtime's own models, in the background: `settle` waits for
        that. Idempotency keys are not imported. A crash leaves whole sessions; repeat the call with
        `skip_existing`.

        Args:
            path: a file or a directory.
            skip_existing: keep existing sessions as they are; otherwise nothing is imported if any
                exists.
            progress: called with the number of messages done, and of all.

        Raises:
            InvalidExport: it is not a complete export, `line` says where; nothing was written.
            InvalidInput: a session exists, or there is nothing to read at `path`; nothing was
                written.
            RedactionFailed: the redaction hook failed on a session; those before it are there.
        """
        source = check_path(path, "path")
        check_flag(skip_existing, "skip_existing")
        check_function(progress, "progress")
        return await self._operator.import_(source, skip_existing=skip_existing, progress=progress)

    async def backup(self, dest: str | Path, *, progress: Progress | None = None) -> BackupReport:
        """Copy the memory directory to `dest` while it is in use (docs/how-to/backup.md).

        ``remora backup`` does the same. All messages acknowledged before are in the copy. `dest` is
        complete and on disk at the end; until then nothing is there.

        Args:
            dest: a directory that does not exist, or is empty.
            progress: called with the number of rows of long-term memory compared, and of all.

        Raises:
            InvalidInput: there is no directory to copy, or something is at `dest`.
            StorageError: it cannot be read, or the disk refused; nothing is at `dest` then.
        """
        target = check_path(dest, "dest")
        check_function(progress, "progress")
        return await self._operator.backup(target, progress=progress)

    # -- figures -----------------------------------------------------------------------------------

    def statistics(self) -> RuntimeStatistics:
        """Counters of the parts, without I/O; any thread may call it.

        Raises:
            RuntimeClosed: the runtime is not open.
        """
        return self._operator.statistics()

    def health(self) -> Health:
        """Return whether the memory works: live, ready, degraded, and why; any thread may call it.

        Without I/O, and it never waits, so it can answer the probes of a container:
        `Health.live` says whether only another start of the process helps, `Health.ready` whether
        requests are served. It raises nothing: a runtime that is not open is not ready.
        """
        return self._operator.health()

    async def counts(self, user: str | None = None) -> JournalCounts:
        """How much the journal holds, in all or of one user."""
        if user is not None:
            name = validate_id(user, "a user id")
            return await self._holder_of(name).parts.archive.counts(name)
        return add_figures(await self._each(lambda one: one.parts.archive.counts()))

    async def users(
        self,
        *,
        prefix: str = "",
        order: ListingOrder = "name",
        limit: int | None = 100,
        after: str | None = None,
    ) -> Sequence[UserListing]:
        """The users with their number of sessions and last use, a page of them.

        A user is listed from the first write on: a message, a memory, a profile. The next page
        begins behind the last one of a page: ``after=page[-1].cursor``. It stays right while users
        are added and forgotten; in an order by use, one who writes between two pages moves to a new
        place.

        Args:
            prefix: only users whose id begins with this.
            order: ``name``: by id; ``newest``: who wrote last comes first, who has no messages
                last; ``oldest``: the reverse.
            limit: how many at most; None for all.
            after: the `cursor` of a listing in the same order; None for the first page.

        Raises:
            InvalidInput: an argument is out of range, or `after` is no cursor in this order.
            RuntimeClosed: the runtime is not open.
        """
        page = check_page(order, prefix, limit, after)
        found = await self._each(lambda one: one.parts.archive.users(page))
        return found[0] if len(found) == 1 else merge_users(found, page)

    async def long_term_statistics(self) -> LongTermStatistics:
        """How much long-term memory holds.

        Raises:
            InvalidInput: it is switched off.
            LongTermError: it cannot be opened or read.
        """
        return await self._operator.long_term_statistics()

    # -- rebuilding and periodic tasks -------------------------------------------------------------

    @property
    def reembedding(self) -> ReembedProgress | None:
        """Progress of rebuilding long-term memory, for another embedder or after damage.

        None if nothing is left to do. Damage is found when long-term memory is opened, a moment
        after the runtime: see `reembedded`.
        """
        return self._operator.reembedding

    async def reembedded(self, progress: Progress | None = None) -> None:
        """Return when long-term memory is complete: at once, unless it is being rebuilt.

        Args:
            progress: called with the number of messages done, and of all.

        Raises:
            RuntimeClosed: the runtime closed before; the next start continues.
            StorageError, ModelError: what failed repeatedly; the next start continues.
        """
        check_function(progress, "progress")
        await self._operator.reembedded(progress)

    def reschedule(self, task: str, seconds: float) -> None:
        """Run a periodic task, ``fifo_cleanup`` for instance, every `seconds` from now on.

        `statistics` lists the tasks.

        Raises:
            InvalidInput: there is no such task, or the interval is not a positive number.
            RuntimeClosed: the runtime is not open.
        """
        name = check_text(task, "task")
        interval = check_seconds(seconds, f"the interval of {name}")
        if interval is None or interval == float("inf"):
            raise InvalidInput(f"the interval of {name} must be finite, not {seconds!r}")
        self._operator.reschedule(name, interval)

    # -- dead letters and erasures -----------------------------------------------------------------

    async def dead_letters(self) -> list[Job]:
        """Dead-lettered jobs, oldest first; their messages still load."""
        return await self._operator.dead_letters()

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:
        """Run dead letters again, all or those of `ids`; returns how many.

        Call it when the cause is removed. `settle` waits for them. What an earlier attempt wrote is
        not doubled.

        Raises:
            NoDeadLetter: one of `ids` is not a dead letter; nothing was changed.
            CommitFailed, OutcomeUnknown: see `Session.append`.
        """
        return await self._operator.retry_dead_letters(None if ids is None else _check_ids(ids))

    async def drop_dead_letters(self, ids: Sequence[str]) -> int:
        """Drop dead letters, all of these or none; returns how many.

        No message is lost: those of a flush job will not be in long-term memory, and load as
        before.

        Raises:
            NoDeadLetter: one of `ids` is not a dead letter; nothing was changed.
            InvalidInput: one of them can only be retried: a summary that messages wait for, a
                deletion in long-term memory.
            CommitFailed, OutcomeUnknown: see `Session.append`.
        """
        return await self._operator.drop_dead_letters(_check_ids(ids))

    def erasures(self, user: str | None = None) -> list[WaitingErasure]:
        """Erasures whose files are not rewritten yet, oldest first: how often each failed, and why.

        The journal has erased them; until the files are rewritten, bytes can be left there. They
        are named by digests that are computed with a key of the journal.

        Args:
            user: only this user's.

        Raises:
            InvalidId: the id cannot name a user.
        """
        return self._operator.erasures(None if user is None else validate_id(user, "a user id"))

    async def retry_erasures(self) -> list[WaitingErasure]:
        """Try all waiting erasures now, and erase what was deleted one by one from the files.

        Call it when the cause of a failure is removed, or not to wait for `retention.deleted_s` and
        `retention.forgotten_s`.

        Returns:
            Those that still wait.

        Raises:
            RuntimeClosed: the runtime closed before; the next start goes on.
        """
        return await self._operator.retry_erasures()

    async def _each(self, ask: Callable[[PartsHolder], Awaitable[Answer]]) -> list[Answer]:
        """Return what each shard answers, by number; they are asked together."""
        return await map_concurrently(ask, self._holders)


def holder_of(runtime: BaseRuntime) -> PartsHolder:
    """Return what gives handles the parts of a runtime, or those of its first shard."""
    return runtime._holders[0]  # noqa: SLF001  # of the same module


def _check_ids(ids: Sequence[str]) -> list[str]:
    return collect(ids, "ids", validate_id, most=MAX_IDS)
