"""The queue of a journal's writing connection: writes of all sessions, and work between them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import anyio

from remora.errors import CommitFailed, OwnershipLost, StorageError
from remora.logging import get_logger
from remora.runtime.log import LogStatistics, Write
from remora.runtime.meters import SIZES, HistogramMeter, OutageLog
from remora.runtime.probes import probe

T = TypeVar("T")

_logger = get_logger(__name__)

FORGOTTEN = "this was forgotten in the meantime; nothing of it was kept"
"""Refuses a write for an actor that was erased."""


class WriteQueue:
    """The queue of a journal's writer, which its task empties; before that runs, who queues work.

    Args:
        owned: whether the journal is still this process's.
        max_batch_writes: writes joined in one group commit.

    Attributes:
        meter: counts commits.
    """

    def __init__(self, owned: OwnershipWatch, *, max_batch_writes: int) -> None:
        self.meter = CommitMeter()
        self._owned = owned
        self._outage = OutageLog(
            _logger, "commit_failed", ended="commits_resumed", monotonic=time.monotonic
        )
        self._max_batch = max_batch_writes
        self._queue: list[Write] = []
        self._taken = 0
        """Writes that left the queue since opening."""
        self._work: deque[ExclusiveWork[Any]] = deque()
        self._event = anyio.Event()
        self._committing = anyio.Lock()
        """Held by the task; before it starts, by the caller that does the queued work."""
        self._acknowledger = Acknowledger()
        self._erased: set[int] = set()
        """Actors erased since opening."""
        self._closed = False

    @property
    def closed(self) -> bool:
        """No work is accepted any more."""
        return self._closed

    def check_ownership(self) -> None:
        """Raise `OwnershipLost` where that is known."""
        self._owned.check()

    async def wait_until_lost(self) -> None:
        """See `remora.storage.ports.Journal.wait_until_lost`."""
        await self._owned.wait_until_lost()

    def check_lease(self) -> None:
        """See `remora.storage.ports.Journal.check_lease`: nobody else may own it."""

    async def run_exclusively(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Run this after everything written before. A caller that leaves does not stop it."""
        if self._closed:
            raise StorageError("the journal is closed")
        work = ExclusiveWork(operation, self._taken + len(self._queue))
        self._work.append(work)
        self._event.set()
        if not self._committing.locked():  # the task has not started
            self._committing.acquire_nowait()
            try:
                await self._commit_queued()
            finally:
                self._committing.release()
        return await work.result()

    @property
    def _commits_here(self) -> bool:
        """Return whether the doer of the other work commits what is queued behind it."""
        return True

    async def _commit_queued(self) -> None:
        """Commit and work until nothing is queued. The caller holds `_committing`."""
        with anyio.CancelScope(shield=True):
            while self._work or (self._queue and self._commits_here):
                room = self._max_batch
                if self._work:
                    room = min(room, self._work[0].after - self._taken)
                    if not room:
                        probe("writer_did_other_work")
                        self._acknowledger.answer_all()
                        await self._work.popleft().run()
                        continue
                batch = self._take(room)
                if batch:
                    await self._commit(batch)

    def _take(self, room: int) -> list[Write]:
        """The next writes to commit; they leave the queue before any sender writes again."""
        taken = self._queue[:room]
        self._taken += len(taken)
        del self._queue[:room]
        unfenced = [write for write in taken if not write.fenced]
        if not self._erased:
            return unfenced
        # one that is refused may make others fenced
        return [one for one in unfenced if not one.fenced and not self._refuse(one)]

    def _put_back(self, batch: Sequence[Write]) -> None:
        """Put back what was taken: it is next again."""
        self._queue[:0] = batch
        self._taken -= len(batch)

    def _is_erased(self, write: Write) -> bool:
        """Return whether it is for an actor that was erased."""
        return any(getattr(record, "sid", 0) in self._erased for record in write.records)

    def _refuse(self, write: Write) -> bool:
        """Refuse a write for an erased actor; returns whether it was one."""
        if not self._is_erased(write):
            return False
        probe("write_of_erased_refused")
        self._acknowledger.answer_all()
        write.acknowledge(CommitFailed(FORGOTTEN))
        return True

    async def _commit(self, batch: Sequence[Write]) -> None:
        """Commit these together. A failure goes to `_fail`."""
        raise NotImplementedError

    def _note_commit(self) -> None:
        """There was a commit: the journal takes writes."""
        self.meter.count()
        if self._outage.lasts:
            self._outage.succeed()

    def _acknowledge(self, batch: Sequence[Write], records: int, seconds: float) -> None:
        """Tell the senders of a group commit, which had so many records and took so long."""
        self.meter.add(len(batch), records, seconds)
        self._acknowledger.add(batch)

    async def _fail(self, batch: Sequence[Write], error: Exception, *, one_write: bool) -> None:
        """Tell the senders of a failed commit, after those of all commits before it.

        Args:
            batch: its writes.
            error: why it failed; nothing of it is there, or nobody knows.
            one_write: it may be the fault of one of them: the others are committed without it.
        """
        self.meter.fail(None if one_write else error)
        if one_write and len(batch) > 1:
            probe("batch_halved")
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                unfenced = [write for write in half if not write.fenced]  # by an earlier failure
                if unfenced:
                    await self._commit(unfenced)
            return
        self._log_failure(error, len(batch))
        self._acknowledger.answer_all()
        for write in batch:
            if not write.fenced:
                write.acknowledge(error)

    def _log_failure(self, error: Exception, writes: int) -> None:
        if self._owned.lost is None:  # why it lost the journal is logged already, once
            self._outage.fail(error, writes=writes)

    async def _finish(self) -> None:
        """Commit what is queued, and accept no further work. The task has ended."""
        self._closed = True
        await self._commit_queued()
        self._acknowledger.answer_all()


# -- telling the senders of durable writes, and work that waits its turn between commits -----------


_AT_ONCE = 16


class Acknowledger:
    """Answers the senders of committed writes, slice by slice.

    Most senders answer with their next message. Answered all at once, they would all work while the
    disk is idle, and then all wait for it. In slices, the next commit takes what the first have
    sent while the others are being answered.
    """

    def __init__(self) -> None:
        self._committed: deque[Write] = deque()
        self._sliced = False

    def add(self, batch: Sequence[Write]) -> None:
        """Answer these, after all that were added before."""
        self._committed.extend(batch)
        if not self._sliced:
            self._answer_slice()

    def answer_all(self) -> None:
        """Answer at once: before a failure is reported, and before other work."""
        while self._committed:
            self._committed.popleft().acknowledge(None)

    def _answer_slice(self) -> None:
        committed = self._committed
        try:
            for _ in range(min(_AT_ONCE, len(committed))):
                committed.popleft().acknowledge(None)
        finally:
            self._sliced = bool(committed)
            if self._sliced:
                import asyncio  # noqa: PLC0415  # `import remora` does without it

                asyncio.get_running_loop().call_soon(self._answer_slice)


class ExclusiveWork(Generic[T]):
    """Work between the writes queued before it and those queued after it.

    Args:
        operation: the work.
        after: how many writes leave the queue before it.
    """

    def __init__(self, operation: Callable[[], Awaitable[T]], after: int) -> None:
        self.after = after
        self._done = anyio.Event()
        self._operation = operation
        self._result: list[T] = []
        self._error: Exception | None = None

    async def run(self) -> None:
        """Do it; `result` has what came of it."""
        try:
            self._result.append(await self._operation())
        except Exception as e:
            self._error = e
        self._done.set()

    async def result(self) -> T:
        """Wait for what `operation` returns, or raises."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]


# -- counts of a journal's commits -----------------------------------------------------------------

_REFUSING_S = 10.0


class CommitMeter:
    """Counts commits, those that failed, and what was in them.

    Args:
        monotonic: seconds that never go back.

    Attributes:
        commit_s, batch_writes: see `LogStatistics`.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._commits = self._failed = self._writes = self._records = 0
        self.commit_s, self.batch_writes = HistogramMeter(), HistogramMeter(SIZES)
        self._failing = ""
        self._failed_at = 0.0

    def count(self) -> None:
        """There was a commit."""
        self._commits += 1
        self._failing = ""

    def add(self, writes: int, records: int, seconds: float) -> None:
        """It was a group commit: it had these, and took so long."""
        self._writes += writes
        self._records += records
        if records:  # otherwise nothing was written
            self.commit_s.add(seconds)
            self.batch_writes.add(writes)

    def fail(self, error: Exception | None) -> None:
        """A commit failed; None if the fault may be that of one write alone."""
        self._failed += 1
        if error is not None:
            name = getattr(error.__cause__ or error, "sqlite_errorname", "")
            self._failing = name or type(error.__cause__ or error).__name__
            self._failed_at = self._monotonic()

    def figures(
        self, backlog: int, wal_bytes: int = 0, wal_held_s: float = 0.0, lost: str = ""
    ) -> LogStatistics:
        """Return what was counted; any thread may ask. See `LogStatistics` for the arguments."""
        failing = self._failing
        return LogStatistics(
            self._commits,
            self._failed,
            self._writes,
            self._records,
            backlog,
            wal_bytes,
            wal_held_s,
            lost,
            failing,
            bool(failing) and self._monotonic() - self._failed_at < _REFUSING_S,
            self.commit_s.figures(),
            self.batch_writes.figures(),
        )


# -- the ownership of a journal --------------------------------------------------------------------


class OwnershipWatch:
    """Notes that the journal is lost, once, and refuses everything from then on.

    Args:
        name: of the journal, in errors.
        epoch: of its owner, this process.
        where: the fields of log lines that say which journal it is.

    Attributes:
        lost: why nothing can be stored any more.
    """

    def __init__(self, name: str, epoch: int, **where: str) -> None:
        self.lost: OwnershipLost | None = None
        self._name = name
        self._epoch = epoch
        self._where = where
        self._event = anyio.Event()

    def check(self) -> None:
        """Raise `OwnershipLost` where that is known."""
        if self.lost is not None:
            raise self.lost

    async def wait_until_lost(self) -> None:
        """See `remora.storage.ports.Journal.wait_until_lost`."""
        await self._event.wait()

    def check_epoch(self, epoch: int) -> None:
        """Notice that another process has the journal, though nothing is written."""
        if epoch != self._epoch:
            self.taken_over()

    def taken_over(self) -> OwnershipLost:
        """Another process has the journal."""
        if self.lost is None:
            probe("ownership_lost")
        return self._lose(
            "ownership_lost",
            f"another process has taken {self._name} over; nothing more can be stored here, and "
            "the runtime ends: open it again when that process has gone",
            epoch=self._epoch,
        )

    def _lose(self, event: str, text: str, **fields: Any) -> OwnershipLost:
        if self.lost is None:
            self.lost = OwnershipLost(text)
            self._event.set()
            _logger.critical(event, **self._where, **fields)
        return self.lost
