"""The kernel's port to what makes records durable."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import msgspec

from remora.runtime.meters import Histogram
from remora.runtime.promise import new_promise


class Write(msgspec.Struct, eq=False):
    """Records that become durable together, or not at all.

    A write without records changes nothing: its acknowledgement says that the log has dealt with
    all earlier writes of its owner.

    Attributes:
        records: in their order.
        acknowledge: the log calls it once, on the event loop; for the writes of one owner, in the
            order in which it received them. With None if the records are durable, with
            `CommitFailed` if provably none of them is stored; any other error means that the
            outcome is unknown.
        size: bytes of the records.
        fenced: set by the owner: it must not be committed any more. One that is already being
            committed may be.
    """

    records: Sequence[Any]
    acknowledge: Callable[[Exception | None], None]
    size: int = 0
    fenced: bool = False


class LogStatistics(msgspec.Struct, frozen=True):
    """Counters of a log since it was opened.

    Attributes:
        commits: group commits.
        failed_commits: those that failed.
        writes: committed writes.
        records: records in them.
        backlog: writes that wait for the next commit.
        wal_bytes: size of the write-ahead log at the last checkpoint, where there is one.
        wal_held_s: how long a reader has kept it beyond its bound; 0 if none does.
        lost: why nothing can be stored any more (`OwnershipLost`); empty while it can.
        failing: why the last commit failed; empty if it did not.
        refusing: that was within the last ten seconds.
        commit_s: how long each group commit took, in seconds, with its sync.
        batch_writes: how many writes each had.
    """

    commits: int
    failed_commits: int
    writes: int
    records: int
    backlog: int
    wal_bytes: int = 0
    wal_held_s: float = 0.0
    lost: str = ""
    failing: str = ""
    refusing: bool = False
    commit_s: Histogram = Histogram()
    batch_writes: Histogram = Histogram()


class Log(Protocol):
    """Makes records durable. All calls come from the event loop that opened it."""

    def write(self, write: Write) -> None:
        """Queue a write for the next group commit; never blocks, never raises."""
        ...

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[Any]:
        """For each actor its image, or the exception that reading it raised.

        Committed records only.
        """
        ...

    async def fetch(self, key: Hashable, query: object) -> Any:
        """Answer an actor's question about its own cold records."""
        ...

    def statistics(self) -> LogStatistics:
        """Counters since opening."""
        ...


async def commit_records(log: Log, records: Sequence[Any]) -> None:
    """Write records that no actor decided on; return when they are durable.

    Raises:
        CommitFailed: nothing is stored.
        OutcomeUnknown: the outcome is unknown.
    """
    promise = new_promise()

    def acknowledge(error: Exception | None) -> None:
        if error is None:
            promise.resolve(None)
        else:
            promise.reject(error)

    log.write(Write(records, acknowledge))
    await promise.answer
