"""A user of a memory over HTTP. Its verbs are those of `remora.User`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from remora.api.batches import append_by_id
from remora.api.user import User
from remora.client.keyed_state import ClientState
from remora.client.messages import list_all
from remora.client.service import Service
from remora.client.session import ClientSession
from remora.client.verbs import ERASURE_S, MOST, composed, served
from remora.errors import InvalidInput
from remora.ids import SessionKey, validate_id
from remora.messages import MessageLike, Receipt
from remora.recall.memory import Memory
from remora.rest import differences as ask
from remora.rest import shapes
from remora.services.arguments import check_choice, check_flag, check_int, check_page
from remora.services.recording import check_types
from remora.services.turns import LocalTurns
from remora.storage.listing import ListingOrder, SessionListing

__all__ = ["ClientUser"]

_AT_ONCE = 8


class ClientUser:
    """One user of a memory over HTTP: `remora.User`, by requests.

    Each verb does, returns and raises what the verb of `remora.User` does, and may raise
    `OwnerUnreachable`, `RateLimited` and `KeyRefused` as well.
    """

    __slots__ = ("_service", "_turns", "id")

    def __init__(self, service: Service, turns: LocalTurns, id_: str) -> None:
        self._service, self._turns, self.id = service, turns, id_

    def __repr__(self) -> str:
        return f"ClientUser({self.id!r}, {self._service.url})"

    @property
    def _names(self) -> dict[str, str]:
        return {"user": self.id}

    @property
    def state(self) -> ClientState:
        """Small JSON values that the application keeps with the user, for all of their sessions."""
        return ClientState(self._service, self._names)

    # -- sessions ----------------------------------------------------------------------------------

    def session(self, session: str) -> ClientSession:
        """A handle on one of the user's sessions.

        Raises:
            InvalidId: the id cannot name a session.
        """
        key = SessionKey(self.id, validate_id(session, "a session id"))
        return ClientSession(self._service, self._turns, key)

    async def sessions(
        self,
        *,
        prefix: str = "",
        order: ListingOrder = "oldest",
        limit: int | None = None,
        after: str | None = None,
        empty: bool = False,
    ) -> Sequence[SessionListing]:
        """List the user's sessions, all or a page of them. See `remora.User.sessions`."""
        check_page(order, prefix, limit, after)
        check_flag(empty, "empty")

        async def page(size: int, behind: str | None) -> list[SessionListing]:
            given = shapes.SessionsListing(
                prefix=prefix, order=order, limit=size, after=behind, empty=empty
            )
            found = await self._service.call(ask.list_sessions, self._names, given)
            return [
                SessionListing(
                    SessionKey(self.id, one.session), one.messages, one.last_at, one.cursor
                )
                for one in found.sessions
            ]

        return await list_all(page, limit, after)

    async def append_many(
        self, messages: Mapping[str, MessageLike | Iterable[MessageLike]]
    ) -> dict[str, Receipt]:
        """Append to several of the user's sessions at once. See `remora.User.append_many`."""
        return await append_by_id(self.session, messages, concurrency=_AT_ONCE, kind=ClientSession)

    # -- long-term memory --------------------------------------------------------------------------

    remember = served(User.remember)
    record = served(User.record)
    recall = served(User.recall)
    recall_many = composed(User.recall_many)
    find_sessions = composed(User.find_sessions)
    instructions = composed(User.instructions)
    update_memory = served(User.update_memory)
    delete = served(User.delete)
    prune = served(User.prune)
    _remembered = served(User.remembered)

    async def memories(
        self,
        types: str | Iterable[str] | None = None,
        *,
        order: Literal["created", "importance"] = "created",
        limit: int | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[Memory]:
        """List what long-term memory holds, messages included. See `remora.User.memories`.

        Raises:
            InvalidInput: there are more than 10,000, and no `limit`: list them by session or type.
        """
        kinds = check_types(types)
        check_choice(order, "order", ("created", "importance"))
        given = shapes.MemoryAsked(
            limit=MOST if limit is None else check_int(limit, "limit", low=1, high=MOST),
            messages=True,
            types=",".join(kinds) or None,
            order=order,
            session=None if session is None else validate_id(session, "a session id"),
            agent=None if agent is None else validate_id(agent, "an agent's id"),
        )
        found = (await self._service.call(ask.list_memories, self._names, given)).memories
        if limit is None and len(found) == MOST:
            raise InvalidInput(
                f"there are {MOST} memories or more: pass a limit, list them by session or type, "
                "or what was recorded page by page, with remembered()"
            )
        return found

    async def remembered(
        self,
        *,
        where: Mapping[str, Any] | None = None,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
        limit: int | None = 100,
        after: str | None = None,
    ) -> list[Memory]:
        """List what was recorded, a page of it. See `remora.User.remembered`."""

        async def page(size: int, behind: str | None) -> list[Memory]:
            return await self._remembered(
                where=where, types=types, session=session, agent=agent, limit=size, after=behind
            )

        return await list_all(page, limit, after)

    async def memory(
        self, id: str | None = None, *, key: str | None = None, agent: str | None = None  # noqa: A002
    ) -> Memory | None:  # fmt: skip
        """Read a memory by its id, or by its key; None if there is none. See `User.memory`."""
        if (id is None) == (key is None):
            raise InvalidInput("pass a memory's id, or its key")
        if key is not None:
            named = shapes.MemoryNamed(
                key=validate_id(key, "a memory's key"),
                agent=None if agent is None else validate_id(agent, "an agent's id"),
            )
            return cast("Memory | None", await self._service.ask("find_memory", self._names, named))
        names = {**self._names, "memory": validate_id(id, "a memory's id")}
        return cast("Memory | None", await self._service.ask("read_memory", names))

    # -- working memory, profile -------------------------------------------------------------------

    learn = served(User.learn)
    search_working = served(User.search_working)
    synopsis = served(User.synopsis)
    forget = served(User.forget, timeout_s=ERASURE_S)
    stats = served(User.stats)
