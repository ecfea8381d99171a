"""Sessions that an application gives to an adapter, once or for each run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from remora.api.deletion import Deletable
from remora.api.session import Session
from remora.api.threads import await_here, awaiter_of, original_of, waiter_of
from remora.blocking import Session as BlockingSession
from remora.errors import InvalidInput
from remora.ids import SessionKey
from remora.messages import ChatDict, Message, MessageLike, Receipt, Role
from remora.recall.context import Context
from remora.services.deleting import DeletionReceipt


@runtime_checkable
class Conversation(Protocol):
    """The methods of a session that adapters use, of any runtime or `remora.Client`."""

    key: SessionKey

    async def append(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        key: str | None = None,
        replace: bool = False,
    ) -> Receipt:
        """See `remora.Session.append`."""
        ...

    async def load(self, query: str | None = None, *, max_tokens: int | None = None) -> Context:
        """See `remora.Session.load`."""
        ...

    async def contents(self) -> tuple[list[ChatDict], list[Message]]:
        """See `remora.Session.contents`."""
        ...

    async def get_messages(
        self, role: Role | None = None, *, limit: int | None = None
    ) -> list[Message]:
        """See `remora.Session.get_messages`."""
        ...

    async def history(self) -> list[Message]:
        """See `remora.Session.history`."""
        ...

    async def delete(
        self,
        which: Deletable | Iterable[Deletable] = (),
        *,
        positions: int | Iterable[int] | None = None,
    ) -> DeletionReceipt:
        """See `remora.Session.delete`."""
        ...

    async def clear(self) -> int:
        """See `remora.Session.clear`."""
        ...


class GivenSession(NamedTuple):
    """A session that an adapter was given, and how to call it.

    Attributes:
        session: its async handle.
        run: awaits a coroutine function of the handle.
        call: calls one from a thread, and waits.
    """

    session: Conversation
    run: Callable[..., Coroutine[Any, Any, Any]]
    call: Callable[..., Any]


def take_session(given: Conversation | BlockingSession) -> GivenSession:
    """The session that an application gave.

    Raises:
        InvalidInput: it is something else.
    """
    if isinstance(given, Session | BlockingSession):
        return GivenSession(original_of(given), awaiter_of(given), waiter_of(given))
    if isinstance(given, type) or not isinstance(given, Conversation):
        raise InvalidInput(
            f"this is, or gave, a {type(given).__name__}, not a session of a Runtime, of "
            "remora.connect, of remora.Client or of remora.blocking"
        )
    return GivenSession(given, await_here, _refuse)


def find_session(given: Any, context: Any) -> GivenSession:
    """The session of a run.

    Args:
        given: a session, or a function of the run's context that gives it.
        context: of the run.

    Raises:
        InvalidInput: it is, or the function gave, something else.
    """
    return take_session(given(context) if callable(given) else given)


def _refuse(*_arguments: Any, **_options: Any) -> Any:
    raise InvalidInput(
        "a session of remora.Client is for an event loop: call the async methods, or give a "
        "session of remora.blocking"
    )
