"""The operator's methods of a runtime: figures, backup, dead letters, erasures, rebuilding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remora.api.health import Health
from remora.api.lifetime import Lifetime
from remora.api.statistics import RuntimeStatistics, statistics_of
from remora.errors import InvalidInput
from remora.ids import validate_id
from remora.runtime.concurrency import run_to_end
from remora.runtime.jobs import Job
from remora.services.arguments import (
    check_function,
    check_page,
    check_path,
    check_seconds,
    check_text,
)
from remora.services.parts import OfOneProcess, long_term_is_off
from remora.services.rebuild import ReembedProgress
from remora.storage.erasure_notes import WaitingErasure
from remora.storage.listing import ListingOrder
from remora.storage.ports import JournalCounts, LongTermStatistics, UserListing

if TYPE_CHECKING:
    from remora.maintenance.backup import BackupReport


class Operations(OfOneProcess):
    """The operator's methods of a runtime; applications get it as `remora.Runtime`."""

    _lifetime: Lifetime

    # -- figures -----------------------------------------------------------------------------------

    def statistics(self) -> RuntimeStatistics:
        """Counters of the parts, without I/O; any thread may call it.

        Raises:
            RuntimeClosed: the runtime is not open.
        """
        return statistics_of(self._lifetime.internals_anywhere)

    def health(self) -> Health:
        """Return whether the memory works: live, ready, degraded, and why; any thread may call it.

        Without I/O, and it never waits, so it can answer the probes of a container:
        `Health.live` says whether only another start of the process helps, `Health.ready` whether
        requests are served. It raises nothing: a runtime that is not open is not ready.
        """
        return self._lifetime.health()

    async def counts(self, user: str | None = None) -> JournalCounts:
        """How much the journal holds, in all or of one user."""
        if user is not None:
            user = validate_id(user, "a user id")
        return await self._lifetime.internals.parts.archive.counts(user)

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
        return await self._lifetime.holder.parts.archive.users(page)

    async def long_term_statistics(self) -> LongTermStatistics:
        """How much long-term memory holds.

        Raises:
            InvalidInput: it is switched off.
            LongTermError: it cannot be opened or read.
        """
        internals = self._lifetime.internals
        if internals.recall is None:
            raise long_term_is_off()
        return await (await internals.long_term()).statistics()

    # -- rebuilding and periodic tasks -------------------------------------------------------------

    @property
    def reembedding(self) -> ReembedProgress | None:
        """Progress of rebuilding long-term memory, for another embedder or after damage.

        None if nothing is left to do. Damage is found when long-term memory is opened, a moment
        after the runtime: see `reembedded`.
        """
        built = self._lifetime.built
        rebuild = None if built is None else built.index.reembedding
        return None if rebuild is None or rebuild.over else rebuild.progress

    async def reembedded(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Return when long-term memory is complete: at once, unless it is being rebuilt.

        Args:
            progress: called with the number of messages done, and of all.

        Raises:
            RuntimeClosed: the runtime closed before; the next start continues.
            StorageError, ModelError: what failed repeatedly; the next start continues.
        """
        check_function(progress, "progress")
        await self._lifetime.internals.index.wait_until_rebuilt(progress)

    def reschedule(self, task: str, seconds: float) -> None:
        """Run a periodic task, ``fifo_cleanup`` for instance, every `seconds` from now on.

        `statistics` lists the tasks.

        Raises:
            InvalidInput: there is no such task, or the interval is not a positive number.
            RuntimeClosed: the runtime is not open.
        """
        name, interval = check_interval(task, seconds)
        self._lifetime.internals.schedule.change(name, interval)

    # -- backup and dead letters -------------------------------------------------------------------

    async def backup(
        self, dest: str | Path, *, progress: Callable[[int, int], None] | None = None
    ) -> BackupReport:
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
        # preloaded
        from remora.maintenance.backup import backup  # noqa: PLC0415
        from remora.storage.sqlite.journal import SqliteJournal  # noqa: PLC0415

        target = check_path(dest, "dest")
        check_function(progress, "progress")
        journal, options = self._lifetime.internals.journal, self._lifetime.options
        if options.path is None or not isinstance(journal, SqliteJournal):
            raise InvalidInput(
                "there is nothing to copy: this runtime's journal is not in a memory directory. "
                "One in a database is copied with the database's tools: of PostgreSQL, "
                "pg_basebackup or pg_dump"
            )
        return await run_to_end(
            backup,
            options.path,
            target,
            options.config,
            take=journal.backup,
            progress=progress,
        )

    async def dead_letters(self) -> list[Job]:
        """Dead-lettered jobs, oldest first; their messages still load."""
        return await self._lifetime.internals.dead_letters.jobs()

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:
        """Run dead letters again, all or those of `ids`; returns how many.

        Call it when the cause is removed. `settle` waits for them. What an earlier attempt wrote is
        not doubled.

        Raises:
            NoDeadLetter: one of `ids` is not a dead letter; nothing was changed.
            CommitFailed, OutcomeUnknown: see `Session.append`.
        """
        return await self._lifetime.internals.dead_letters.retry(ids)

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
        return await self._lifetime.internals.dead_letters.drop(ids)

    # -- erasures ----------------------------------------------------------------------------------

    def erasures(self, user: str | None = None) -> list[WaitingErasure]:
        """Erasures whose files are not rewritten yet, oldest first: how often each failed, and why.

        The journal has erased them; until the files are rewritten, bytes can be left there. They
        are named by digests that are computed with a key of the journal.

        Args:
            user: only this user's.

        Raises:
            InvalidId: the id cannot name a user.
        """
        if user is not None:
            validate_id(user, "a user id")
        return self._lifetime.internals_anywhere.eraser.waiting(user)

    async def retry_erasures(self) -> list[WaitingErasure]:
        """Try all waiting erasures now, and erase what was deleted one by one from the files.

        Call it when the cause of a failure is removed, or not to wait for `retention.deleted_s` and
        `retention.forgotten_s`.

        Returns:
            Those that still wait.

        Raises:
            RuntimeClosed: the runtime closed before; the next start goes on.
        """
        return await self._lifetime.internals.eraser.retry()


def check_interval(task: object, seconds: object) -> tuple[str, float]:
    """The name of a periodic task, and its interval.

    Raises:
        InvalidInput: one of them cannot be that.
    """
    name = check_text(task, "task")
    interval = check_seconds(seconds, f"the interval of {name}")
    if interval is None or interval == float("inf"):
        raise InvalidInput(f"the interval of {name} must be finite, not {seconds!r}")
    return name, interval
