"""Lost messages are summarized again when the model is back.

Each call of the model gets a bounded part of them: with the next compaction, or in a job of its
own. A job that fails ends; `Resummarizer` has the session start another one later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from remora.actors.session.messages import Resummarize
from remora.errors import RemoraError
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import Entry
from remora.models.breaker import CircuitBreaker
from remora.runtime.probes import probe
from remora.storage.ports import Journal
from remora.storage.records import MessageRange

_logger = get_logger(__name__)
_SLICE = 64  # messages read at once
_AT_START = 1_000  # sessions that are asked after a start
_PER_RUN = 50  # sessions that are asked in one run
_MOST_PAUSE = 2_880  # runs between two repairs of a session: a day by default


async def read_lost(
    journal: Journal, key: SessionKey, lost: Sequence[MessageRange], max_tokens: int
) -> tuple[list[Entry], tuple[MessageRange, ...]]:
    """The first lost messages, of up to `max_tokens` or one message, and the ranges that are left.

    Messages that are gone from the journal are in neither: no summary can be made of them.
    """
    found: list[Entry] = []
    tokens = 0
    for place, one in enumerate(lost):
        taken = 0
        for first in range(one.first, one.last + 1, _SLICE):
            for entry in await journal.read(key, first, min(first + _SLICE - 1, one.last)):
                if found and tokens + entry.tokens > max_tokens:
                    span = one.last - entry.seq + 1  # some may have been deleted before
                    left = MessageRange(entry.seq, one.last, min(max(one.count - taken, 1), span))
                    return found, (left, *lost[place + 1 :])
                found.append(entry)
                tokens += entry.tokens
                taken += 1
    return found, ()


class Resummarizer:
    """Has sessions with lost messages summarize them, periodically.

    After a start it asks the sessions that had fallback summaries, then those that the summarize
    queue reports.

    Args:
        journal: knows which sessions had fallback summaries.
        tell: sends a message to a session.
        breaker: while it is open, nothing is tried.
    """

    def __init__(
        self,
        journal: Journal,
        tell: Callable[[SessionKey, Resummarize], Awaitable[bool]],
        breaker: CircuitBreaker,
    ) -> None:
        self._journal = journal
        self._tell = tell
        self._breaker = breaker
        self._run = 0
        self._waiting: dict[SessionKey, int] | None = None  # the run that asks it
        self._reported: dict[SessionKey, None] = {}
        self._pauses: dict[SessionKey, int] = {}  # runs before it is asked again

    def report(self, key: SessionKey) -> None:
        """A session has lost messages."""
        self._reported[key] = None

    def postpone(self, key: SessionKey) -> None:
        """A model answered, and not with a summary: to ask it each time would only cost money."""
        probe("repair_postponed")
        pause = self._pauses[key] = min(self._pauses.get(key, 1) * 2, _MOST_PAUSE)
        if self._waiting is not None:
            self._waiting[key] = self._run + pause

    async def __call__(self) -> None:
        """Ask the sessions that wait longest."""
        if self._breaker.open:
            return
        self._run += 1
        if self._waiting is None:
            found: Sequence[SessionKey] = ()
            if hasattr(self._journal, "sessions_with_fallbacks"):  # an older port has none
                found = await self._journal.sessions_with_fallbacks(_AT_START)
            self._waiting = dict.fromkeys(found, 0)
        waiting = self._waiting
        for key in self._reported:
            waiting.setdefault(key, self._run + self._pauses.get(key, 0))
        self._reported.clear()
        for key in _take_turns([key for key, run in waiting.items() if run <= self._run])[
            :_PER_RUN
        ]:
            del waiting[key]
            try:
                if await self._tell(key, Resummarize()):
                    probe("session_resummarized")
                    waiting.setdefault(key, self._run + self._pauses.get(key, 1))  # at the end
                else:
                    self._pauses.pop(key, None)
            except RemoraError as e:  # being forgotten, damaged, or resting
                self._pauses.pop(key, None)
                _logger.info("session_not_resummarized", session=key, error=type(e).__name__)


def _take_turns(keys: Sequence[SessionKey]) -> list[SessionKey]:
    """The first session of each user, then the second ones, and so on: none holds up the others."""
    ranks: Counter[str] = Counter()
    places: list[tuple[int, int, SessionKey]] = []
    for key in keys:
        places.append((ranks[key.user], len(places), key))
        ranks[key.user] += 1
    return [key for _, _, key in sorted(places)]
