"""`remora.Client`: a memory over HTTP, with the handles of a `Runtime`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import anyio

from remora.api.batches import append_batches, append_by_id
from remora.api.shared import SharedMember
from remora.api.user import User
from remora.client.messages import list_all
from remora.client.service import Service
from remora.client.session import ClientSession, ClientState
from remora.client.verbs import ERASURE_S, MOST, composed, served
from remora.config import TurnConfig
from remora.errors import InvalidInput, RemoraError, RuntimeClosed
from remora.ids import SHARED_PREFIX, SessionKey, UserKey, validate_id
from remora.messages import MessageLike, Receipt
from remora.recall.memory import Memory
from remora.rest import differences as ask
from remora.rest import job_operations, shapes
from remora.runtime.jobs import Job
from remora.services.arguments import (
    MAX_IDS,
    check_choice,
    check_flag,
    check_int,
    check_page,
    check_seconds,
    check_text,
    collect,
)
from remora.services.recording import check_types
from remora.services.turns import LocalTurns
from remora.storage.listing import ListingOrder, SessionListing, UserListing

if TYPE_CHECKING:
    import httpx2

__all__ = ["Client", "ClientMember", "ClientScope", "ClientUser"]

_KEY = "REMORA_API_KEY"


class Client:
    """A memory that `remora http` serves: ``async with Client("https://…") as memory: …``.

    Its handles have the verbs of a `Runtime`'s, with the same arguments, results and exceptions, so
    code changes from an embedded memory to a served one by the line that opens it. Two things
    differ: turns of one session wait for one another within a client, not across clients; and what
    is JSON only arrives as JSON, so bytes in a message's metadata become base64 text.

    What is safe to repeat is sent again until there is an answer, or the time is over: reads,
    appends and turns (which always have an idempotency key), what is remembered, erasure.

    Needs the extra: ``pip install "remora[client]"``. It runs on asyncio and on trio.

    Args:
        url: of the server, ``https://memory.example``, with a path if it is mounted under one.
        api_key: as ``remora keys FILE --add TENANT`` printed it; None for the environment variable
            ``REMORA_API_KEY``.
        timeout_s: seconds that a verb takes at most, with all requests that are sent again;
            erasures take up to 300.
        http: an `httpx2.AsyncClient` that sends the requests, for proxies and certificates of your
            own; the client does not close it. None for one of its own.

    Raises:
        InvalidInput: the address is no HTTP address, there is no key, or another argument is not
            valid.
        ImportError: on entering: httpx2 is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        key = os.environ.get(_KEY) if api_key is None else api_key
        if not key:
            raise InvalidInput(f"a client needs an API key: pass api_key, or set {_KEY}")
        check_seconds(timeout_s, "timeout_s")
        self._service = Service(url, key, timeout_s, http)
        self._turns = LocalTurns(TurnConfig())
        self._open: AsyncExitStack | None = None

    def __repr__(self) -> str:
        return f"Client({self._service.url!r})"

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise InvalidInput("the client is open already")
        async with AsyncExitStack() as stack:
            await self._service.open()
            stack.push_async_callback(self._service.aclose)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            self._turns = LocalTurns(TurnConfig())
            self._turns.start(tasks)
            self._open = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened, self._open = self._open, None
        if opened is None:
            return
        self._turns.close(RuntimeClosed("the client is closed: nothing ran"))
        with anyio.CancelScope(shield=True):
            await self._turns.interrupt()
        await opened.aclose()  # the group would wrap an exception of the block

    # -- handles -----------------------------------------------------------------------------------

    def user(self, user: str) -> ClientUser:
        """A handle on a user.

        Raises:
            InvalidId: the id cannot name a user.
        """
        return ClientUser(self._service, self._turns, validate_id(user, "a user id"))

    def session(self, user: str, session: str) -> ClientSession:
        """Short for ``client.user(user).session(session)``."""
        return self.user(user).session(session)

    def shared(self, name: str) -> ClientScope:
        """A handle on a memory that agents share.

        Raises:
            InvalidId: the name is not valid.
        """
        return ClientScope(self._service, validate_id(name, "a shared scope's name"))

    # -- many --------------------------------------------------------------------------------------

    async def dead_letters(self) -> list[Job]:
        """Background jobs that failed too often; see `remora.Runtime.dead_letters`.

        Their payloads stay on the server.
        """
        found = await self._service.call(job_operations.list_dead_letters, {})
        return [_job_of(one) for one in found.jobs]

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:
        """Run dead letters again, by default all; see `remora.Runtime.retry_dead_letters`."""
        given = job_operations.Retrying(
            ids=None if ids is None else collect(ids, "ids", validate_id, most=MAX_IDS)
        )
        answer = await self._service.call(job_operations.retry_dead_letters, {}, given)
        return answer.jobs

    async def drop_dead_letters(self, ids: Sequence[str]) -> int:
        """Give dead letters up; see `remora.Runtime.drop_dead_letters`."""
        given = job_operations.Dropping(ids=collect(ids, "ids", validate_id, most=MAX_IDS))
        answer = await self._service.call(job_operations.drop_dead_letters, {}, given)
        return answer.jobs

    async def users(
        self,
        *,
        prefix: str = "",
        order: ListingOrder = "name",
        limit: int | None = 100,
        after: str | None = None,
    ) -> Sequence[UserListing]:
        """The users of the API key's tenant, a page of them. See `remora.Runtime.users`."""
        check_page(order, prefix, limit, None)
        if after is not None:
            check_text(after, "after")

        async def page(size: int, behind: str | None) -> list[UserListing]:
            given = shapes.Listing(prefix=prefix, order=order, limit=size, after=behind)
            found = await self._service.call(ask.list_users, {}, given)
            return [
                UserListing(one.user, one.sessions, one.last_at, one.cursor) for one in found.users
            ]

        return await list_all(page, limit, after)

    async def append_many(
        self,
        batches: Iterable[tuple[ClientSession, MessageLike | Iterable[MessageLike], str | None]],
        *,
        concurrency: int = 16,
    ) -> list[Receipt | RemoraError]:
        """Append to many sessions of any users. See `remora.Runtime.append_many`.

        Batches for one session are sent one after the other.
        """
        check_int(concurrency, "concurrency", low=1)
        given = collect(batches, "batches")
        return await append_batches(given, concurrency=concurrency, kind=ClientSession)


def _job_of(one: job_operations.DeadLetter) -> Job:
    user = SHARED_PREFIX + (one.scope or "") if one.user is None else one.user
    key = UserKey(user) if one.session is None else SessionKey(user, one.session)
    return Job(one.id, one.queue, key, None, attempts=one.attempts, dead=True, error=one.error)


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


class ClientScope:
    """A memory that agents share. Get one from `Client.shared`; making it does no I/O."""

    __slots__ = ("_service", "name")

    def __init__(self, service: Service, name: str) -> None:
        self._service, self.name = service, name

    def __repr__(self) -> str:
        return f"ClientScope({self.name!r}, {self._service.url})"

    def as_(self, who: str) -> ClientMember:
        """The scope as one agent may use it, by what it was granted.

        Raises:
            InvalidId: the id cannot name an agent.
        """
        return ClientMember(self._service, self.name, validate_id(who, "an agent's id"))


class ClientMember:
    """A shared scope as one agent may use it: `remora.SharedMember`, by requests.

    The API key's holder may act as any agent: grants are between the agents of one application.
    """

    __slots__ = ("_service", "scope", "who")

    def __init__(self, service: Service, scope: str, who: str) -> None:
        self._service, self.scope, self.who = service, scope, who

    def __repr__(self) -> str:
        return f"ClientMember({self.scope!r}, {self.who!r}, {self._service.url})"

    @property
    def _names(self) -> dict[str, str]:
        return {"scope": self.scope, "agent": self.who}

    remember = served(SharedMember.remember)
    recall = served(SharedMember.recall)
    memory = served(SharedMember.memory)
    update_memory = served(SharedMember.update_memory)
    delete = served(SharedMember.delete)
    claim = served(SharedMember.claim)
    grant = served(SharedMember.grant)
    revoke = served(SharedMember.revoke)
    members = served(SharedMember.members)
    forget = served(SharedMember.forget, timeout_s=ERASURE_S)

    async def memories(
        self, types: str | Iterable[str] | None = None, *, limit: int | None = None
    ) -> list[Memory]:
        """All that members recorded, oldest first. See `remora.SharedMember.memories`.

        Raises:
            InvalidInput: there are more than 10,000, and no `limit`.
        """
        kinds = check_types(types)
        given = shapes.SharedAsked(
            limit=MOST if limit is None else check_int(limit, "limit", low=1, high=MOST),
            types=",".join(kinds) or None,
        )
        found = (await self._service.call(ask.list_shared, self._names, given)).memories
        if limit is None and len(found) == MOST:
            raise InvalidInput(f"there are {MOST} memories or more: pass a limit")
        return found
