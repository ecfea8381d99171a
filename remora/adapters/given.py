"""Sessions that an application gives to an adapter, once or for each run."""

from __future__ import annotations

from typing import Any, TypeGuard

from remora.api.session import Session
from remora.blocking import Session as BlockingSession
from remora.errors import InvalidInput

__all__ = ["find_session"]


def find_session(given: Any, context: Any) -> Session | BlockingSession:
    """The session of a run.

    Args:
        given: a session, or a function of the run's context that gives it.
        context: of the run.

    Raises:
        InvalidInput: it is, or the function gave, something else.
    """
    session = given(context) if callable(given) else given
    if not _is_session(session):
        raise InvalidInput(
            f"this is, or gave, a {type(session).__name__}, not a session of a Runtime, of "
            "remora.connect or of remora.blocking"
        )
    return session


def _is_session(value: object) -> TypeGuard[Session | BlockingSession]:
    return isinstance(value, Session | BlockingSession)
