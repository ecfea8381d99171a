"""A user of a memory over HTTP. Its verbs are those of `remora.User`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from remora.actors.policies.pruning import PruningStrategy
from remora.actors.user.messages import Synopsis
from remora.api.deletion import Deletable, parse_which
from remora.api.memories import MemoryLike
from remora.api.user import WorkingHit
from remora.client.keyed_state import ClientState
from remora.client.messages import erasure_of, list_all, plain_messages
from remora.client.service import Service
from remora.client.session import ERASURE_S, ClientSession
from remora.errors import InvalidInput, RemoraError
from remora.ids import SessionKey, validate_id
from remora.messages import MessageLike, Receipt
from remora.recall.found_sessions import FoundSession, find_sessions
from remora.recall.memory import Memory, newest_that_hold
from remora.rest import memory_shapes as shapes
from remora.rest import session_operations
from remora.rest import shapes as session_shapes
from remora.rest import user_operations as ask
from remora.rest.state_operations import USER_STATE
from remora.runtime.concurrency import map_concurrently
from remora.services.archive import UserStatistics
from remora.services.arguments import (
    check_flag,
    check_int,
    check_page,
    check_query,
    check_result_count,
    check_text,
    collect,
)
from remora.services.deleting import DeletionReceipt
from remora.services.erasure import ErasureReceipt
from remora.services.turns import LocalTurns
from remora.storage.listing import ListingOrder, SessionListing
from remora.storage.records import INSTRUCTION

__all__ = ["ClientUser", "as_types", "plain_memories"]

_MOST = 10_000  # memories of one answer
_AT_ONCE = 8
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


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
        return ClientState(self._service, USER_STATE, self._names)

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
            given = session_shapes.SessionsListing(
                prefix=prefix, order=order, limit=size, after=behind, empty=empty
            )
            found = await self._service.call(session_operations.list_sessions, self._names, given)
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
        given: object = messages
        if not isinstance(given, Mapping):
            raise InvalidInput(
                f"messages must be a dict by session ids, not {type(given).__name__}"
            )

        async def append(name: str) -> Receipt | RemoraError:
            try:
                return await self.session(name).append(messages[name])
            except RemoraError as e:
                return e

        names = [validate_id(name, "a session id") for name in messages]
        results = await map_concurrently(append, names, concurrency=_AT_ONCE)
        receipts = {}
        for name, result in zip(names, results, strict=True):
            if isinstance(result, RemoraError):
                raise result
            receipts[name] = result
        return receipts

    # -- long-term memory --------------------------------------------------------------------------

    async def remember(
        self,
        content: MemoryLike | Iterable[MemoryLike],
        *,
        type: str = "fact",  # noqa: A002
        importance: float | None = None,
        session: str | None = None,
        agent: str | None = None,
        key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        replace: bool = False,
    ) -> list[str]:
        """Store one memory or many, all or none; returns their ids. See `remora.User.remember`."""
        given = shapes.Remember(
            content=plain_memories(content),
            type=type,
            importance=importance,
            session=session,
            agent=agent,
            key=key,
            metadata=None if metadata is None else dict(metadata),
            replace=check_flag(replace, "replace"),
        )
        return (await self._service.call(ask.remember, self._names, given)).ids

    async def record(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[str]:
        """Remember what was said in a conversation kept elsewhere. See `remora.User.record`."""
        given = shapes.Recording(messages=plain_messages(messages), session=session, agent=agent)
        return (await self._service.call(ask.record, self._names, given)).ids

    async def recall(
        self,
        query: str,
        *,
        limit: int = 5,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[Memory]:
        """Find what was said or remembered and matches `query`. See `remora.User.recall`."""
        given = shapes.Recall(
            query=check_query(query),
            limit=check_result_count(limit),
            types=as_types(types),
            session=session,
            agent=agent,
            where=None if where is None else dict(where),
        )
        return (await self._service.call(ask.recall, self._names, given)).memories

    async def recall_many(
        self,
        queries: Iterable[str],
        *,
        limit: int = 5,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[list[Memory]]:
        """Find memories for several queries at once, in the queries' order; see `recall`."""
        kinds = as_types(types)

        async def one(query: str) -> list[Memory]:
            return await self.recall(query, limit=limit, types=kinds, session=session, agent=agent)

        return await map_concurrently(one, collect(queries, "queries"), concurrency=_AT_ONCE)

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
        kinds = as_types(types)
        given = shapes.MemoryAsked(
            limit=_MOST if limit is None else check_int(limit, "limit", low=1, high=_MOST),
            messages=True,
            types=None if kinds is None else ",".join(kinds),
            order=order,
            session=session,
            agent=agent,
        )
        found = (await self._service.call(ask.list_memories, self._names, given)).memories
        if limit is None and len(found) == _MOST:
            raise InvalidInput(
                f"there are {_MOST} memories or more: pass a limit, list them by session or type, "
                "or what was recorded page by page, with remembered()"
            )
        return found

    async def instructions(self) -> list[Memory]:
        """Standing instructions that hold, newest first. See `remora.User.instructions`."""
        return newest_that_hold(await self.remembered(types=INSTRUCTION, limit=None))

    async def find_sessions(self, query: str, *, limit: int = 10) -> list[FoundSession]:
        """Find sessions by what was said in them. See `remora.User.find_sessions`."""
        check_int(limit, "limit", low=1)
        return await find_sessions(self, query, limit)

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
        if limit is not None:
            check_int(limit, "limit", low=1)

        async def page(size: int, behind: str | None) -> list[Memory]:
            given = shapes.MemoryPageAsked(
                limit=size,
                after=behind,
                types=as_types(types),
                session=session,
                agent=agent,
                where=None if where is None else dict(where),
            )
            return (await self._service.call(ask.list_remembered, self._names, given)).memories

        return await list_all(page, limit, after)

    async def memory(
        self, id: str | None = None, *, key: str | None = None, agent: str | None = None  # noqa: A002
    ) -> Memory | None:  # fmt: skip
        """Read a memory by its id, or by its key; None if there is none. See `User.memory`."""
        if (id is None) == (key is None):
            raise InvalidInput("pass a memory's id, or its key")
        if key is not None:
            named = shapes.MemoryNamed(key=key, agent=agent)
            return (await self._service.call(ask.find_memory, self._names, named)).memory
        names = {**self._names, "memory": validate_id(id, "a memory's id")}
        return (await self._service.call(ask.read_memory, names)).memory

    async def update_memory(
        self,
        id: str,  # noqa: A002
        content: str | None = None,
        *,
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Memory:
        """Change a memory; what is not given stays. See `remora.User.update_memory`."""
        given = shapes.MemoryChange(
            content=content,
            importance=importance,
            metadata=None if metadata is None else dict(metadata),
        )
        names = {**self._names, "memory": validate_id(id, "a memory's id")}
        return await self._service.call(ask.update_memory, names, given)

    async def delete(
        self, which: Deletable | Iterable[Deletable], *, saved_only: bool = False
    ) -> DeletionReceipt:
        """Delete what was said or remembered. See `remora.User.delete`."""
        ids = [id_ for _, id_ in parse_which(which)]
        given = shapes.UserDeletion(ids=ids, saved_only=check_flag(saved_only, "saved_only"))
        return await self._service.call(ask.delete_memories, self._names, given)

    async def prune(
        self,
        *,
        keep: int | None = None,
        strategy: PruningStrategy | None = None,
        max_age_s: float | None = None,
        types: str | Iterable[str] | None = None,
        wait: bool = True,
    ) -> None:
        """Remove the least important rows from long-term memory. See `remora.User.prune`."""
        given = shapes.Pruning(
            keep=keep, strategy=strategy, max_age_s=max_age_s, types=as_types(types), wait=wait
        )
        await self._service.call(ask.prune_memories, self._names, given)

    # -- working memory, profile -------------------------------------------------------------------

    async def learn(
        self, text: str | Iterable[str], *, source: str = "application", session: str = ""
    ) -> list[str]:
        """Note texts in working memory, for a while. See `remora.User.learn`."""
        texts = [text] if isinstance(text, str) else collect(text, "what is learned")
        given = shapes.Learning(texts=texts, source=source, session=session)
        return (await self._service.call(ask.learn, self._names, given)).ids

    async def search_working(
        self, query: str, limit: int = 5, session: str | None = None
    ) -> list[WorkingHit]:
        """Search working memory. See `remora.User.search_working`."""
        given = shapes.WorkingSearch(
            query=check_query(query), limit=check_result_count(limit), session=session
        )
        found = await self._service.call(ask.search_working, self._names, given)
        return [
            WorkingHit(
                one.text,
                one.source,
                one.session,
                _BEGIN + timedelta(microseconds=one.created_at_us),
                one.score,
                one.id,
            )
            for one in found.items
        ]

    async def synopsis(self, *, refresh: bool = False, timeout_s: float | None = None) -> Synopsis:
        """The user's profile. See `remora.User.synopsis`."""
        given = shapes.SynopsisAsked(refresh=check_flag(refresh, "refresh"))
        return await self._service.call(ask.read_synopsis, self._names, given, timeout_s=timeout_s)

    async def forget(self) -> ErasureReceipt:
        """Erase the user: no byte of them is left in the memory. See `remora.User.forget`."""
        return erasure_of(
            await self._service.call(ask.forget_user, self._names, timeout_s=ERASURE_S)
        )

    async def stats(self) -> UserStatistics:
        """Count what is stored of the user."""
        return await self._service.call(ask.count_user, self._names)


def as_types(types: str | Iterable[str] | None) -> list[str] | None:
    """Memory types as a list; None for all."""
    if types is None:
        return None
    return [types] if isinstance(types, str) else collect(types, "types", check_text)


def plain_memories(content: MemoryLike | Iterable[MemoryLike]) -> Any:
    """Return what is to be remembered, as a request has it."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return [dict(content)]
    found = collect(content, "content")
    return [dict(one) if isinstance(one, Mapping) else one for one in found]
