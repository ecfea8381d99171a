"""Sessions that an application gives to an adapter, and their messages for the framework."""

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
from remora.recall.context import Context, ContextEntry
from remora.recall.memory import quote_memories
from remora.recall.quotes import is_recalled
from remora.services.arguments import MAX_TEXT_CHARACTERS
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


async def stored_messages(session: Conversation, context: Context) -> list[Message | ChatDict]:
    """The messages of a context, for an adapter that makes the framework's own of them.

    One that is shown as it was stored comes with its metadata; others (a summary, recalled lines,
    a memory block, a message that has recalled lines at its start) are plain dicts.
    """
    _, buffer = await session.contents()
    stored = {message.seq: message for message in buffer}
    shown: list[Message | ChatDict] = []
    for chat, entry in zip(context.messages, context.entries, strict=True):
        original = stored.get(entry.seq) if entry is not None else None
        same = original is not None and original.to_chat() == chat
        shown.append(original if original is not None and same else {**chat})
    return shown


async def load_stored(
    session: Conversation, query: str, *, max_tokens: int | None = None
) -> tuple[list[Message | ChatDict], ChatDict | None]:
    """The `stored_messages` for a message that is not stored yet, and the one with recalled lines.

    Recalled lines come apart, since they belong right before the new message.
    """
    context = await session.load(query if query.strip() else None, max_tokens=max_tokens)
    shown: list[Message | ChatDict] = []
    recalled: ChatDict | None = None
    for one in await stored_messages(session, context):
        if recalled is None and isinstance(one, dict) and is_recalled(one):
            recalled = one
        else:
            shown.append(one)
    return shown, recalled


async def recalled_message(session: Conversation, query: str) -> ChatDict | None:
    """A message with what is recalled for `query` and is not among the session's recent messages.

    None if nothing is, or there is no query.
    """
    if not query.strip():
        return None
    context = await session.load(query[:MAX_TEXT_CHARACTERS])
    _, found = split_recalled(context)
    if found is not None:
        return found
    # `recall.insert_method: user` has put it into a stored message
    text = quote_memories(context.memories)
    return {"role": "user", "content": text} if text else None


def split_recalled(
    context: Context,
) -> tuple[list[tuple[ChatDict, ContextEntry | None]], ChatDict | None]:
    """The other messages of a context, each with what it is of, and the one with recalled lines."""
    kept: list[tuple[ChatDict, ContextEntry | None]] = []
    found: ChatDict | None = None
    for message, entry in zip(context.messages, context.entries, strict=True):
        if found is None and entry is None and is_recalled(message):
            found = {**message}
        else:
            kept.append(({**message}, entry))
    return kept, found
