"""`remora.Client`: a memory over HTTP, with the handles of a `Runtime`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from remora.api.batches import append_batches
from remora.client.messages import list_all
from remora.client.service import Service
from remora.client.session import ClientSession
from remora.client.shared import ClientScope
from remora.client.user import ClientUser
from remora.config import TurnConfig
from remora.errors import InvalidInput, RemoraError, RuntimeClosed
from remora.ids import SHARED_PREFIX, SessionKey, UserKey, validate_id
from remora.messages import MessageLike, Receipt
from remora.rest import differences, job_operations, shapes
from remora.runtime.jobs import Job
from remora.services.arguments import (
    MAX_IDS,
    check_int,
    check_page,
    check_seconds,
    check_text,
    collect,
)
from remora.services.turns import LocalTurns
from remora.storage.listing import ListingOrder, UserListing

if TYPE_CHECKING:
    import httpx2

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
            found = await self._service.call(differences.list_users, {}, given)
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
