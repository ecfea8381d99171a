"""The kernel's port to whatever makes records durable, and the records of its own that it writes
there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import msgspec

__all__ = [
    "DeadLetterRetried",
    "Job",
    "JobDeadLettered",
    "JobDone",
    "JobRetried",
    "Log",
    "LogStatistics",
    "Write",
]


class Job(msgspec.Struct, frozen=True):
    """Work for the supervisor, journalled with the records that caused it.

    Attributes:
        id: deterministic, so that a job written twice is one job.
        lane: which lane's handler runs it.
        key: the actor that it works for.
        payload: the handler's own; plain data that the log can store.
        attempts: failures so far.
        not_before: wall time before which it must not run again, in seconds since the epoch.
        resumed: it was found in the log at start, so an earlier run may have had effects.
        dead: it failed for good and rests among the dead letters.
        error: what the last failure said.
    """

    id: str
    lane: str
    key: Hashable
    payload: Any
    attempts: int = 0
    not_before: float = 0.0
    resumed: bool = False
    dead: bool = False
    error: str = ""


class JobRetried(msgspec.Struct, frozen=True):
    """A job failed and will run again."""

    id: str
    attempts: int
    not_before: float
    error: str


class JobDeadLettered(msgspec.Struct, frozen=True):
    """A job failed for good: a dead letter."""

    id: str
    attempts: int
    error: str


class DeadLetterRetried(msgspec.Struct, frozen=True):
    """A dead letter is to run again, as if it had never failed.

    What it failed of stays to be read.
    """

    id: str


class JobDone(msgspec.Struct, frozen=True):
    """A job's effects are in, or nobody wants them any longer; its row may go."""

    id: str


class Write:
    """Records that become durable together, or not at all (G4).

    The log calls `acknowledge` once, on the event loop, in the order in which the writes of one
    owner were handed over. A write that its owner has `fenced` meanwhile must not be committed any
    more; where the log was at it already, it may be. One without records changes nothing, and is
    settled in its turn: its owner wants to know that the log is past those before.
    """

    __slots__ = ("fenced", "on_acknowledged", "records", "size")

    def __init__(
        self,
        records: Sequence[Any],
        on_acknowledged: Callable[[Write, Exception | None], None],
        *,
        size: int = 0,
    ) -> None:
        self.records = records
        self.on_acknowledged = on_acknowledged
        self.size = size
        self.fenced = False

    def acknowledge(self, error: Exception | None) -> None:
        """Say what became of it: None for durable, CommitFailed for provably absent, anything else
        for uncertain.
        """
        self.on_acknowledged(self, error)


class LogStatistics(msgspec.Struct, frozen=True):
    """Counters of a log since it was opened.

    Attributes:
        commits: group commits.
        failed_commits: those that failed.
        writes: what was committed.
        records: what was in it.
        backlog: writes that wait for the next commit.
        wal_bytes: size of the write-ahead log at the last checkpoint, where there is one.
        wal_held_s: how long a reader has kept it beyond its bound; 0 when none does.
    """

    commits: int
    failed_commits: int
    writes: int
    records: int
    backlog: int
    wal_bytes: int = 0
    wal_held_s: float = 0.0


class Log(Protocol):
    """What makes records durable. All calls come from the event loop that opened it."""

    def write(self, write: Write) -> None:
        """Queue a write for the next group commit; never blocks, never raises."""
        ...

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[Any]:
        """For each actor its image, or the exception that reading it raised.

        Committed records only.
        """
        ...

    async def fetch(self, key: Hashable, query: Any) -> Any:
        """Answer an actor's question about its own cold records."""
        ...

    def statistics(self) -> LogStatistics:
        """Counters since opening."""
        ...
