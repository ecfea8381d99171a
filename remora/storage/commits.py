"""Counts of a journal's commits."""

from __future__ import annotations

import time
from collections.abc import Callable

from remora.runtime.log import LogStatistics
from remora.runtime.meters import SIZES, HistogramMeter

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
        """It had these, and took so long."""
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
