"""Memories that agents share, over HTTP. The verbs are those of `remora.SharedMember`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from remora.actors.user.messages import Right
from remora.api.deletion import Deletable, parse_which
from remora.api.memories import MemoryLike
from remora.api.shared import check_right
from remora.client.messages import erasure_of
from remora.client.service import Service
from remora.client.session import ERASURE_S
from remora.client.user import as_types, plain_memories
from remora.errors import InvalidInput
from remora.ids import validate_id
from remora.recall.memory import Memory
from remora.rest import memory_shapes as shapes
from remora.rest import shared_operations as ask
from remora.services.arguments import (
    check_int,
    check_query,
    check_result_count,
)
from remora.services.deleting import DeletionReceipt
from remora.services.erasure import ErasureReceipt

__all__ = ["ClientMember", "ClientScope"]

_MOST = 10_000  # memories of one answer


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

    async def remember(
        self,
        content: MemoryLike | Iterable[MemoryLike],
        *,
        type: str = "fact",  # noqa: A002
        importance: float | None = None,
    ) -> list[str]:
        """Record memories for all members. See `remora.SharedMember.remember`."""
        given = shapes.Sharing(content=plain_memories(content), type=type, importance=importance)
        return (await self._service.call(ask.remember_shared, self._names, given)).ids

    async def recall(
        self,
        query: str,
        *,
        limit: int = 5,
        types: str | Iterable[str] | None = None,
        by: str | None = None,
    ) -> list[Memory]:
        """Return what members recorded and matches `query`. See `remora.SharedMember.recall`."""
        given = shapes.SharedRecall(
            query=check_query(query), limit=check_result_count(limit), types=as_types(types), by=by
        )
        return (await self._service.call(ask.recall_shared, self._names, given)).memories

    async def memories(
        self, types: str | Iterable[str] | None = None, *, limit: int | None = None
    ) -> list[Memory]:
        """All that members recorded, oldest first. See `remora.SharedMember.memories`.

        Raises:
            InvalidInput: there are more than 10,000, and no `limit`.
        """
        kinds = as_types(types)
        given = shapes.SharedAsked(
            limit=_MOST if limit is None else check_int(limit, "limit", low=1, high=_MOST),
            types=None if kinds is None else ",".join(kinds),
        )
        found = (await self._service.call(ask.list_shared, self._names, given)).memories
        if limit is None and len(found) == _MOST:
            raise InvalidInput(f"there are {_MOST} memories or more: pass a limit")
        return found

    async def memory(self, id: str) -> Memory | None:  # noqa: A002
        """Read a memory of any member; None if there is none."""
        names = {**self._names, "memory": validate_id(id, "a memory's id")}
        return (await self._service.call(ask.read_shared, names)).memory

    async def update_memory(
        self,
        id: str,  # noqa: A002
        content: str | None = None,
        *,
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Memory:
        """Change a memory. See `remora.SharedMember.update_memory`."""
        given = shapes.MemoryChange(
            content=content,
            importance=importance,
            metadata=None if metadata is None else dict(metadata),
        )
        names = {**self._names, "memory": validate_id(id, "a memory's id")}
        return await self._service.call(ask.update_shared, names, given)

    async def delete(self, which: Deletable | Iterable[Deletable]) -> DeletionReceipt:
        """Delete memories. See `remora.SharedMember.delete`."""
        given = shapes.MemoryIds(ids=[id_ for _, id_ in parse_which(which)])
        return await self._service.call(ask.delete_shared, self._names, given)

    async def claim(self) -> None:
        """Become the owner of a scope that has none. See `remora.SharedMember.claim`."""
        await self._service.call(ask.claim_scope, self._names)

    async def grant(self, to: str, right: Right = "read") -> None:
        """Let an agent read, write, or own. See `remora.SharedMember.grant`."""
        given = shapes.GrantGiven(to=validate_id(to, "an agent's id"), right=check_right(right))
        await self._service.call(ask.grant_right, self._names, given)

    async def revoke(self, to: str) -> None:
        """Take an agent's rights away. See `remora.SharedMember.revoke`."""
        given = shapes.MemberNamed(to=validate_id(to, "an agent's id"))
        await self._service.call(ask.revoke_right, self._names, given)

    async def members(self) -> dict[str, str]:
        """Each agent's right."""
        return (await self._service.call(ask.list_members, self._names)).members

    async def forget(self) -> ErasureReceipt:
        """Erase the scope and its grants. See `remora.SharedMember.forget`."""
        return erasure_of(
            await self._service.call(ask.forget_scope, self._names, timeout_s=ERASURE_S)
        )
