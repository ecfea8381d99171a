"""A session's messages, read as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from remora.ids import SessionKey
from remora.messages import Message
from remora.services.parts import Archive

_FIRST, _MOST = 8, 100  # messages that one call reads


class Following:
    """Who reads a session's messages as they come, and how far that is.

    Args:
        archive: what is read.
        key: of the session.
        after: the number of the last message that was read; None to begin with the next one.
        sid: the session's number in its journal; 0 if it is not known yet.
    """

    def __init__(self, archive: Archive, key: SessionKey, after: int | None, sid: int = 0) -> None:
        self.after, self.sid = after, sid
        self._archive, self._key = archive, key
        self._limit = _FIRST

    async def read(self) -> list[Message] | None:
        """The next messages, when there are some; None if the session was erased.

        The first call returns at once, maybe with none, if `after` was None. A call that is
        cancelled takes nothing.
        """
        found = await self._archive.follow(
            self._key, after=self.after, sid=self.sid, limit=self._limit
        )
        if found.ended:
            return None
        # fewer come than were read where messages are long
        self._limit = min(2 * max(len(found.messages), 1), _MOST)
        self.after, self.sid = found.after, found.sid
        return found.messages

    async def messages(self) -> AsyncGenerator[Message]:
        """One after the other, until the session is erased."""
        while (found := await self.read()) is not None:
            for message in found:
                yield message


def start_following(session: Any, after: int | None, sid: int) -> Following:
    """`Session.follow` for a server, whose clients come back.

    Args:
        session: a `Session`.
        after: see `Following`.
        sid: see `Following`.
    """
    holder = session._holder  # noqa: SLF001 - a handle of the same layer
    return Following(holder.parts.archive, session.key, after, sid)
