"""Memories that agents share, over HTTP. The verbs are those of `remora.SharedMember`."""

from __future__ import annotations

from collections.abc import Iterable

from remora.api.shared import SharedMember
from remora.client.service import Service
from remora.client.verbs import ERASURE_S, MOST, served
from remora.errors import InvalidInput
from remora.ids import validate_id
from remora.recall.memory import Memory
from remora.rest import differences as ask
from remora.rest import shapes
from remora.services.arguments import check_int
from remora.services.recording import check_types

__all__ = ["ClientMember", "ClientScope"]


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
