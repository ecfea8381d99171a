"""A failure that repeats is logged once, then in summary, and so is its end.

While a disk is full, every commit and every attempt of a job fails: hundreds of lines a second
would fill another disk, and hide what else happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import structlog

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
        self._reasons: set[str] = set()
        """What was reported since the outage began; empty while there is none."""
        self._began = self._reported = self._latest = 0.0
        self._failures = 0

    def fail(self, error: Exception, **fields: Any) -> None:
        """Note a failure; it is logged if it is the first of its reason, or a summary is due."""
        self._latest = now = self._monotonic()
        if not self._reasons:
            self._began, self._failures = now, 0
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
        if self._reasons and self._monotonic() - self._latest >= _QUIET_S:
            self._reasons.clear()
            self._logger.info(
                self._ended,
                failures=self._failures,
                seconds=round(self._latest - self._began, 1),
            )
