"""Histograms: how many values there were up to each of some bounds, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Bounds for how long something takes."""
SIZES = tuple(float(1 << power) for power in range(12))
"""Bounds for how many things there are, up to 2,048."""


if TYPE_CHECKING:
    import structlog


class Histogram(msgspec.Struct, frozen=True):
    """How often a value was how large, since start.

    Attributes:
        bounds: upper bounds of the values that are counted together, rising.
        counts: how many values were above the bound before and up to this one; one more than
            there are bounds: the last is of the values above all of them.
        sum: of all values.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    sum: float = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The bound that this share of the values does not exceed; 0 without values.

        For values above all bounds, it is the largest bound.
        """
        left = share * self.count
        if not left:
            return 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            left -= count
            if left <= 0:
                return bound
        return self.bounds[-1] if self.bounds else 0.0

    def since(self, before: Histogram) -> Histogram:
        """The values that came after an earlier histogram of the same; all, if it was not."""
        counts = tuple(new - old for new, old in zip(self.counts, before.counts, strict=False))
        if self.bounds != before.bounds or min(counts) < 0:
            return self
        return Histogram(self.bounds, counts, self.sum - before.sum)


def add_histograms(all_of_them: Sequence[Histogram]) -> Histogram:
    """The values of all of them; those with other bounds than the first that has some are left out.

    An owner of another release may have other bounds.
    """
    bounds = next((one.bounds for one in all_of_them if one.bounds), ())
    same = [one for one in all_of_them if one.bounds == bounds]
    counts = tuple(map(sum, zip(*(one.counts for one in same), strict=True)))
    return Histogram(bounds, counts, sum(one.sum for one in same))


class HistogramMeter:
    """Counts values.

    Args:
        bounds: see `Histogram`.

    Attributes:
        on_add: is told of each value; None for nobody.
    """

    __slots__ = ("_bounds", "_counts", "_sum", "on_add")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self.on_add: Callable[[float], object] | None = None

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        if self.on_add is not None:
            self.on_add(value)

    def figures(self) -> Histogram:
        """Return what was counted; any thread may ask."""
        return Histogram(self._bounds, tuple(self._counts), self._sum)


# -- a failure that repeats is logged once, then in summary, and so is its end ---------------------
#
# While a disk is full, every commit and every attempt of a job fails: hundreds of lines a second
# would fill another disk, and hide what else happens.

_SUMMARY_S = 60.0
_QUIET_S = 5.0  # a disk that is nearly full takes some writes, and refuses others


class OutageLog:
    """Logs the failures of one kind of work.

    Args:
        logger: of the module whose work it is.
        event: the event of a failure; a summary has `failures` and `seconds` as well.
        ended: the event of its end.
        monotonic: seconds that never go back.
        level: of failures.

    Attributes:
        lasts: something failed, and the end is not logged yet.
    """

    def __init__(
        self,
        logger: structlog.stdlib.BoundLogger,
        event: str,
        *,
        ended: str,
        monotonic: Callable[[], float],
        level: Literal["warning", "error"] = "error",
    ) -> None:
        self._logger = logger
        self._event = event
        self._ended = ended
        self._monotonic = monotonic
        self._level = level
        self.lasts = False
        self._reasons: set[str] = set()
        """What was reported since the outage began; empty while there is none."""
        self._began = self._reported = self._latest = 0.0
        self._failures = 0

    def fail(self, error: Exception, **fields: Any) -> None:
        """Note a failure; it is logged if it is the first of its reason, or a summary is due."""
        self._latest = now = self._monotonic()
        if not self.lasts:
            self._began, self._failures, self.lasts = now, 0, True
        self._failures += 1
        cause = error.__cause__ or error
        reason = f"{type(error).__name__} {getattr(cause, 'sqlite_errorname', '')}"
        if reason in self._reasons:
            if now - self._reported < _SUMMARY_S:
                return
            fields = {"failures": self._failures, "seconds": round(now - self._began, 1)}
        self._reasons.add(reason)
        self._reported = now
        text = f"{type(error).__name__}: {error}"
        getattr(self._logger, self._level)(self._event, error=text, **fields)

    def succeed(self) -> None:
        """Note a success; the first after a quiet time ends the outage."""
        if self.lasts and self._monotonic() - self._latest >= _QUIET_S:
            self._reasons.clear()
            self.lasts = False
            self._logger.info(
                self._ended,
                failures=self._failures,
                seconds=round(self._latest - self._began, 1),
            )
