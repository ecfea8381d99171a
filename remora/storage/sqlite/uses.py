"""When sessions were last used, as an indexed column: written behind, so that appends pay nothing.

An update with every append would double what a commit writes, since sessions that are used at the
same time are far apart in the table and in its indices. So the last use of each session is held in
memory, and written when a listing needs it, with a commit when many are held, and at the end. A
setting says that all are written; the next owner that does not find it, after a crash, looks at
every session's newest message once, before the first listing that needs it.
"""

from __future__ import annotations

import msgspec

from remora.storage.sqlite.connection import Step
from remora.storage.sqlite.listing import LAST_USE

USES_COMPLETE = "uses_complete"
"""The setting: ``1`` while no last use is held in memory alone."""
_ALL_WRITTEN = Step(f"INSERT OR REPLACE INTO settings VALUES ('{USES_COMPLETE}', '1')")

MANY_HELD = 4_096
"""Sessions whose last use is held in memory before a commit writes it."""
COMPUTED_AT_ONCE = 2_000
"""Sessions whose newest messages are looked at in one transaction."""
_UPDATE = (
    "UPDATE actors SET used_us = u.value FROM json_each(?) AS u WHERE sid = CAST(u.key AS INTEGER)"
)
_COMPUTE = (
    f"UPDATE actors AS s SET used_us = {LAST_USE} "
    f"WHERE s.sid BETWEEN ? AND ? AND s.session != '' AND s.used_us != {LAST_USE}"
)
_encode = msgspec.json.Encoder().encode


class SessionUses:
    """The last uses that are not written yet.

    Args:
        complete: all earlier ones are written.

    Attributes:
        held: when each session's newest message was created, by the session's number.
    """

    def __init__(self, *, complete: bool) -> None:
        self.held: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        """What the running transaction writes."""
        self._computed_through: int | None = None if complete else 0

    @property
    def complete(self) -> bool:
        """All are written, or held."""
        return self._computed_through is None

    def unwritten(self) -> tuple[int, ...]:
        """The numbers of the sessions whose last use is held; any thread may ask."""
        held = tuple(self.held)  # first: a transaction takes what is held, and then commits it
        return tuple({*held, *self._taken})

    def compute_some(self, last_sid: int) -> list[Step]:
        """Statements that look at the next sessions' newest messages, up to `last_sid`.

        They go into one transaction; `computed` comes after it.
        """
        assert self._computed_through is not None
        first = self._computed_through + 1
        return [Step(_COMPUTE, [(first, min(first + COMPUTED_AT_ONCE - 1, last_sid))])]

    def computed(self, last_sid: int) -> None:
        """Note that the result of `compute_some` is committed."""
        assert self._computed_through is not None
        done = self._computed_through + COMPUTED_AT_ONCE
        self._computed_through = None if done >= last_sid else done

    def take(self) -> list[Step]:
        """Statements that write what is held; `committed` or `take_back` comes after them."""
        self._taken, self.held = self.held, {}
        return [Step(_UPDATE, [(_encode(self._taken).decode(),)])] if self._taken else []

    def take_back(self) -> None:
        """Take back what `take` gave: it was not committed."""
        self.held = {**self._taken, **self.held}
        self._taken = {}

    def committed(self) -> None:
        """Note that what `take` gave is written."""
        self._taken = {}

    def finish(self) -> list[Step]:
        """The last statements of an owner; empty if the next one has to look at the messages."""
        return [*self.take(), _ALL_WRITTEN] if self.complete else []
