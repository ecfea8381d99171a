"""A session kept for one caller, without a message to begin a turn with."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from remora.errors import TurnClosed
from remora.ids import SessionKey
from remora.services.parts import OfOneProcess, PartsHolder
from remora.services.turns import HeldTurn


class Exclusive(OfOneProcess):
    """A block in which no turn of the session runs. Get one from `Session.exclusive`.

    Use it once, with ``async with``.
    """

    __slots__ = ("__weakref__", "_entered", "_holder", "_session", "_turn")

    def __init__(self, holder: PartsHolder, session: SessionKey) -> None:
        self._holder = holder
        self._session = session
        self._entered = False
        self._turn: HeldTurn | None = None

    def __repr__(self) -> str:
        return f"Exclusive({self._session.user!r}, {self._session.session!r})"

    async def __aenter__(self) -> Self:
        if self._entered:
            raise TurnClosed("this is entered once; make another with session.exclusive()")
        self._entered = True
        turns = self._holder.parts.turns
        number = await turns.begin(self._session)
        self._turn = HeldTurn(self, turns, self._session, number)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._turn is not None:
            self._turn.end()
