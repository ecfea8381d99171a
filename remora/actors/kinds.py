"""Two kinds of actor behind one directory, so that its bounds on what lives in memory hold for both
together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.state import SessionState
from remora.actors.user.behavior import UserBehavior
from remora.actors.user.state import UserState
from remora.ids import SessionKey, UserKey
from remora.runtime.actor import Behavior, Decision, NeedsLookup
from remora.runtime.log import Job
from remora.storage.records import SavedSession, SavedUser

__all__ = ["ByKind"]


class ByKind:
    """Implements `remora.runtime.actor.Behavior` by handing each call to the behaviour of that kind
    of actor.

    Which kind it is, the type of what a call is about says, be it a key, an image or a state: one
    look into a dict, on the way of every append.

    Args:
        session: of sessions.
        user: of users' own actors.
    """

    def __init__(self, session: SessionBehavior, user: UserBehavior) -> None:
        self._of: dict[type, Behavior[Any]] = {
            SessionKey: session,
            SavedSession: session,
            SessionState: session,
            UserKey: user,
            SavedUser: user,
            UserState: user,
        }

    def restore(self, key: Hashable, image: Any) -> Any:
        """The state that the journal's rows add up to."""
        return self._of[type(key)].restore(key, image)

    def jobs(self, image: Any) -> Sequence[Job]:
        """The actor's jobs that stand in the journal."""
        return self._of[type(image)].jobs(image)

    def handle(self, state: Any, message: Any) -> Decision | NeedsLookup:
        """One turn."""
        return self._of[type(state)].handle(state, message)

    def apply(self, state: Any, record: Any) -> None:
        """Fold one record into the state."""
        self._of[type(state)].apply(state, record)

    def store_answer(self, state: Any, query: Any, answer: Any) -> None:
        """Take what a turn missed."""
        self._of[type(state)].store_answer(state, query, answer)

    def on_idle(self, state: Any) -> Any | None:
        """What an idle actor has to do before it may leave memory."""
        return self._of[type(state)].on_idle(state)

    def on_close(self, state: Any) -> Any | None:
        """What an actor had put off writing."""
        return self._of[type(state)].on_close(state)

    def size(self, state: Any) -> int:
        """Bytes that the state holds."""
        return self._of[type(state)].size(state)
