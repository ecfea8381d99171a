"""How long the newest compactions of this process took: they are in no file."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from remora.ids import SessionKey

__all__ = ["CompactionDurations"]

_KEPT = 2_000


class _Duration(NamedTuple):
    session: int  # a digest: an erased id is not kept
    through: int
    tokens: int
    seconds: float


class CompactionDurations:
    """The newest 2,000 of all sessions, for tools."""

    def __init__(self) -> None:
        self._newest: deque[_Duration] = deque(maxlen=_KEPT)

    def add(self, session: SessionKey, through: int, tokens: int, seconds: float) -> None:
        """Note a compaction.

        Args:
            session: that was compacted.
            through: the last message that the summary covers.
            tokens: of the summary.
            seconds: from when the job began.
        """
        self._newest.append(_Duration(hash(session), through, tokens, seconds))

    def of(self, session: SessionKey) -> list[tuple[int, int, float]]:
        """Those of a session, oldest first: `through`, `tokens`, `seconds`; any thread may ask."""
        wanted = hash(session)
        return [one[1:] for one in self._newest.copy() if one.session == wanted]
