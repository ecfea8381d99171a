"""How long the newest compactions of this process took: they are in no file."""

from __future__ import annotations

from remora.ids import SessionKey

_SESSIONS = 4_096
_EACH = 20


class CompactionDurations:
    """The newest of the sessions that were compacted last, for tools."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[tuple[int, int, float], ...]] = {}
        """By a digest of the session: an erased id is not kept."""

    def add(self, session: SessionKey, through: int, tokens: int, seconds: float) -> None:
        """Note a compaction.

        Args:
            session: that was compacted.
            through: the last message that the summary covers.
            tokens: of the summary.
            seconds: from when the job began.
        """
        known = self._newest.pop(hash(session), ())
        self._newest[hash(session)] = (*known, (through, tokens, seconds))[-_EACH:]
        if len(self._newest) > _SESSIONS:
            del self._newest[next(iter(self._newest))]

    def of(self, session: SessionKey) -> tuple[tuple[int, int, float], ...]:
        """Return those of a session, oldest first: `through`, `tokens`, `seconds`.

        Any thread may ask.
        """
        return self._newest.get(hash(session), ())
