"""What each request does: one function over the same handles that an application uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from remora.api.session import Session
from remora.api.turn import Turn
from remora.api.user import User
from remora.errors import InvalidInput
from remora.ids import validate_id
from remora.recall.context import Context
from remora.recall.memory import Memory
from remora.rest import shapes
from remora.storage.listing import UserListing

__all__ = ["OPERATIONS", "Asked", "Operation", "Served"]

_NOT_MESSAGES = ("fact", "preference", "context", "procedural", "message_batch")


class Served(Protocol):
    """The runtime that is served: a `Runtime`, or what `remora.connect` gives."""

    def user(self, user: str) -> User:
        """A user's handle."""
        ...

    async def users(
        self, *, prefix: str, order: Any, limit: int | None, after: str | None
    ) -> Sequence[UserListing]:
        """A page of users."""
        ...


class Asked(NamedTuple):
    """A request that was understood.

    Attributes:
        runtime: what is served.
        tenant: whose API key it has.
        names: what its path names: user, session, memory.
        given: the body, or the query's parameters; None for a request without any.
        key: its idempotency key.
    """

    runtime: Served
    tenant: str
    names: dict[str, str]
    given: Any
    key: str | None

    @property
    def user(self) -> User:
        """The user: of this tenant, whatever the name."""
        return self.runtime.user(self._own(validate_id(self.names["user"], "a user id")))

    @property
    def session(self) -> Session:
        """The session."""
        return self.user.session(self.names["session"])

    @property
    def prefix(self) -> str:
        """What the ids of the tenant's users begin with in the memory."""
        return self._own("")

    def _own(self, user: str) -> str:
        return f"{self.tenant}/{user}"


class Operation(NamedTuple):
    """A method on a path.

    Attributes:
        method: of HTTP.
        path: with names in braces.
        summary: what it does, for the description.
        run: does it.
        answers: the type of its answer.
        body: the type of its body.
        query: the type of the query's parameters.
        keyed: whether it takes an idempotency key; ``"required"``: it needs one.
    """

    method: str
    path: str
    summary: str
    run: Callable[[Asked], Awaitable[Any]]
    answers: type
    body: type | None = None
    query: type | None = None
    keyed: bool | str = False

    @property
    def name(self) -> str:
        """Its id in the description."""
        run: Any = self.run
        return str(run.__name__)


async def list_users(asked: Asked) -> shapes.UserPage:
    """Users of the tenant."""
    page, own = asked.given, asked.prefix
    found = await asked.runtime.users(
        prefix=own + page.prefix, order=page.order, limit=page.limit, after=page.after
    )
    users = [
        shapes.UserItem(one.user.removeprefix(own), one.sessions, one.last_at) for one in found
    ]
    return shapes.UserPage(users, _next(found, page.limit))


async def list_sessions(asked: Asked) -> shapes.SessionPage:
    """Sessions of a user."""
    page = asked.given
    found = await asked.user.sessions(
        prefix=page.prefix, order=page.order, limit=page.limit, after=page.after
    )
    sessions = [shapes.SessionItem(one.session, one.messages, one.last_at) for one in found]
    return shapes.SessionPage(sessions, _next(found, page.limit))


async def append_messages(asked: Asked) -> shapes.Appended:
    """Messages for a session."""
    given = asked.given
    receipt = await asked.session.append(
        given.messages, key=asked.key, allow_duplicates=given.allow_duplicates
    )
    return shapes.Appended(receipt.seqs, receipt.ids, receipt.duplicate)


async def list_messages(asked: Asked) -> shapes.MessagePage:
    """Messages of a session."""
    page = asked.given
    found = await asked.session.history(
        include_archived=page.archived, at=page.at, after=page.after, limit=page.limit + 1
    )
    shown = found[: page.limit]
    return shapes.MessagePage(shown, shown[-1].seq if len(found) > len(shown) else None)


async def load_context(asked: Asked) -> shapes.ContextShown:
    """What a model should see."""
    given = asked.given
    context = await asked.session.load(given.query, max_tokens=given.max_tokens, at=given.at)
    return _shown(context)


async def begin_turn(asked: Asked) -> shapes.TurnShown:
    """The user's message is stored, and the context loaded."""
    given = asked.given
    query: Any = given.query if given.recall else False
    turn = asked.session.turn(
        given.message, key=asked.key, query=query, max_tokens=given.max_tokens
    )
    async with turn:
        context = None if turn.replayed else _shown(turn.context)
        return shapes.TurnShown(turn.replayed, turn.replies, context)


async def reply_to_turn(asked: Asked) -> shapes.TurnShown:
    """The reply is stored, once."""
    given = asked.given
    async with asked.session.turn(given.message, key=asked.key, query=False) as turn:
        if not turn.resumed and not turn.replayed and given.stored:
            raise InvalidInput(f"the turn has no reply yet, and `stored` is {given.stored}")
        if not turn.replayed and len(turn.replies) <= given.stored:
            if len(turn.replies) < given.stored:
                raise InvalidInput(
                    f"the turn has {len(turn.replies)} replies, and `stored` is {given.stored}"
                )
            await turn.reply(given.reply)
        return shapes.TurnShown(turn.replayed or _is_answered(turn), turn.replies, None)


async def clear_session(asked: Asked) -> shapes.Cleared:
    """The buffer and the summary are emptied; history and memories stay."""
    return shapes.Cleared(await asked.session.clear())


async def forget_session(asked: Asked) -> shapes.Erased:
    """A session is erased down to the bytes."""
    receipt = await asked.session.forget()
    return shapes.Erased(receipt.journal, receipt.long_term)


async def forget_user(asked: Asked) -> shapes.Erased:
    """A user is erased down to the bytes."""
    receipt = await asked.user.forget()
    return shapes.Erased(receipt.journal, receipt.long_term)


async def recall(asked: Asked) -> shapes.Recalled:
    """What was said or remembered and matches a question."""
    return shapes.Recalled(await asked.user.recall(asked.given.query, limit=asked.given.limit))


async def list_memories(asked: Asked) -> shapes.Recalled:
    """What long-term memory holds of a user."""
    types = None if asked.given.messages else _NOT_MESSAGES
    return shapes.Recalled(await asked.user.memories(types, limit=asked.given.limit))


async def remember(asked: Asked) -> shapes.Remembered:
    """A memory for all of a user's sessions."""
    given = asked.given
    (id_,) = await asked.user.remember(
        given.content,
        type=given.type,
        importance=given.importance,
        session=given.session,
        key=given.key,
        metadata=given.metadata,
        replace=given.replace,
    )
    return shapes.Remembered(id_)


async def update_memory(asked: Asked) -> Any:
    """A memory is changed."""
    given = asked.given
    return await asked.user.update_memory(
        asked.names["memory"], given.content, importance=given.importance, metadata=given.metadata
    )


async def delete_memory(asked: Asked) -> shapes.Deleted:
    """A memory is deleted."""
    return shapes.Deleted(await asked.user.delete_memories(asked.names["memory"]))


_USER = "/v1/users/{user}"
_SESSION = _USER + "/sessions/{session}"
_get, _post = partial(Operation, "GET"), partial(Operation, "POST")
OPERATIONS: tuple[Operation, ...] = (
    _get("/v1/users", "List users", list_users, shapes.UserPage, query=shapes.Listing),
    Operation("DELETE", _USER, "Erase a user", forget_user, shapes.Erased),
    _get(
        _USER + "/sessions",
        "List a user's sessions",
        list_sessions,
        shapes.SessionPage,
        query=shapes.Listing,
    ),
    Operation("DELETE", _SESSION, "Erase a session", forget_session, shapes.Erased),
    _get(
        _SESSION + "/messages",
        "Read a session's messages",
        list_messages,
        shapes.MessagePage,
        query=shapes.Messages,
    ),
    _post(
        _SESSION + "/messages",
        "Append messages: all are durable, or none",
        append_messages,
        shapes.Appended,
        body=shapes.Append,
        keyed=True,
    ),
    _post(
        _SESSION + "/context",
        "Load what a model should see",
        load_context,
        shapes.ContextShown,
        body=shapes.ContextAsked,
    ),
    _post(
        _SESSION + "/turns",
        "Begin or resume a turn: store the user's message, load the context",
        begin_turn,
        shapes.TurnShown,
        body=shapes.TurnAsked,
        keyed="required",
    ),
    _post(
        _SESSION + "/turns/replies",
        "Store a reply of a turn",
        reply_to_turn,
        shapes.TurnShown,
        body=shapes.Reply,
        keyed="required",
    ),
    _post(_SESSION + "/clear", "Empty the buffer and the summary", clear_session, shapes.Cleared),
    _post(
        _USER + "/recall",
        "Search what was said or remembered",
        recall,
        shapes.Recalled,
        body=shapes.Recall,
    ),
    _get(
        _USER + "/memories",
        "List a user's memories",
        list_memories,
        shapes.Recalled,
        query=shapes.MemoryAsked,
    ),
    _post(
        _USER + "/memories",
        "Store a memory",
        remember,
        shapes.Remembered,
        body=shapes.Remember,
    ),
    Operation(
        "PATCH",
        _USER + "/memories/{memory}",
        "Change a memory",
        update_memory,
        Memory,
        body=shapes.MemoryChange,
    ),
    Operation(
        "DELETE", _USER + "/memories/{memory}", "Delete a memory", delete_memory, shapes.Deleted
    ),
)
"""All that can be asked, besides health and the description."""


def _next(found: Sequence[Any], limit: int) -> str | None:
    return found[-1].cursor if len(found) == limit else None


def _is_answered(turn: Turn) -> bool:
    """Whether the newest reply ends the turn: an assistant that calls no tool, and is complete."""
    if not turn.replies:
        return False
    last = turn.replies[-1]
    return last.role == "assistant" and not last.tool_calls


def _shown(context: Context) -> shapes.ContextShown:
    return shapes.ContextShown(
        list(context.messages),
        context.tokens,
        context.summary,
        context.memories,
        context.pending,
        context.omitted,
        context.awaiting,
    )
