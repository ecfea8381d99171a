"""A session kept for one caller, without a message to begin a turn with."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any, Self

from remora.errors import TurnClosed
from remora.ids import SessionKey
from remora.services.parts import PartsHolder, Turns
from remora.services.turns import end_when_dropped

__all__ = ["Exclusive"]


class Exclusive:
    """A block in which no turn of the session runs. Get one from `Session.exclusive`.

    Use it once, with ``async with``.
    """

    __slots__ = ("__weakref__", "_dropped", "_entered", "_holder", "_line", "_session")

    def __init__(self, holder: PartsHolder, session: SessionKey) -> None:
        self._holder = holder
        self._session = session
        self._entered = False
        self._line: tuple[Turns, int] | None = None
        self._dropped: weakref.finalize[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"Exclusive({self._session.user!r}, {self._session.session!r})"

    async def __aenter__(self) -> Self:
        if self._entered:
            raise TurnClosed("this is entered once; make another with session.exclusive()")
        self._entered = True
        turns = self._holder.parts.turns
        number = await turns.begin(self._session)
        self._line = turns, number
        self._dropped = end_when_dropped(self, turns, self._session, number)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        line, self._line = self._line, None
        if self._dropped is not None:
            self._dropped.detach()
        if line is not None:
            turns, number = line
            turns.end(self._session, number)
