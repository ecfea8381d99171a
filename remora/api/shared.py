"""Memory that agents share, by grants; see docs/explanation/long-term-memory.md for its messages.

A shared scope is an actor like a user's, with a name that no user can have: no user's data is in
it, and no user's handle reaches it. The actor keeps the grants; they are checked before anything is
read or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from remora.actors.user.messages import Grant, ReadGrants, Right
from remora.api.deletion import Deletable
from remora.api.memories import LongTermHandle, MemoryLike
from remora.errors import NotGranted
from remora.ids import SHARED_PREFIX, UserKey, validate_id
from remora.recall.memory import Memory
from remora.services.arguments import check_choice
from remora.services.deleting import DeletionReceipt
from remora.services.erasure import ErasureReceipt
from remora.services.parts import PartsHolder
from remora.services.recording import name_failures

_READ: tuple[Right, ...] = ("read", "write", "own")
_WRITE: tuple[Right, ...] = ("write", "own")
_OWN: tuple[Right, ...] = ("own",)


class SharedScope:
    """A memory that agents share. Get one from `Runtime.shared`; making it does no I/O."""

    __slots__ = ("_holder", "name")

    def __init__(self, holder: PartsHolder, name: str) -> None:
        self._holder = holder
        self.name = name

    def __repr__(self) -> str:
        return f"SharedScope({self.name!r}, {self._holder.described})"

    def as_(self, who: str) -> SharedMember:
        """The scope as one agent may use it, by what it was granted.

        Raises:
            InvalidId: the id cannot name an agent.
        """
        return SharedMember(self._holder, self.name, validate_id(who, "an agent's id"))


class SharedMember:
    """A shared scope as one agent may use it. Get one from `SharedScope.as_`.

    Give each agent its own handle and no other: its holder has that agent's rights.
    """

    __slots__ = ("_holder", "_key", "_members", "_mine", "scope", "who")

    def __init__(self, holder: PartsHolder, scope: str, who: str) -> None:
        self._holder = holder
        self._key = UserKey(SHARED_PREFIX + scope)
        self._members = LongTermHandle(holder, self._key.user)
        self._mine = LongTermHandle(holder, self._key.user, who)
        self.scope = scope
        self.who = who

    def __repr__(self) -> str:
        return f"SharedMember({self.scope!r}, {self.who!r}, {self._holder.described})"

    async def remember(
        self,
        content: MemoryLike | Iterable[MemoryLike],
        *,
        type: str = "fact",  # noqa: A002
        importance: float | None = None,
    ) -> list[str]:
        """Record memories for all members, under this agent's name; see `User.remember`.

        Raises:
            NotGranted: this agent may not write here; nothing was written.
        """
        await self._check("write", _WRITE)
        return await self._mine.remember(content, type=type, importance=importance)

    async def recall(
        self,
        query: str,
        *,
        limit: int = 5,
        types: str | Iterable[str] | None = None,
        by: str | None = None,
    ) -> list[Memory]:
        """Return what members recorded and matches `query`, best first; see `User.recall`.

        Args:
            query: what is asked.
            limit: how many at most.
            types: memory types; None for all.
            by: only what this agent recorded; None for all members.

        Raises:
            NotGranted: this agent may not read here; nothing was read.
        """
        await self._check("read", _READ)
        found = await self._members.recall(query, limit=limit, types=types, agent=by)
        await self._check("read", _READ)  # it may have been revoked since
        return found

    async def memories(
        self, types: str | Iterable[str] | None = None, *, limit: int | None = None
    ) -> list[Memory]:
        """All that members recorded, oldest first; see `User.memories`.

        Raises:
            NotGranted: this agent may not read here; nothing was read.
        """
        await self._check("read", _READ)
        found = await self._members.memories(types, limit=limit)
        await self._check("read", _READ)
        return found

    async def memory(self, id: str) -> Memory | None:  # noqa: A002
        """Read a memory of any member; None if there is none. See `User.memory`.

        Raises:
            NotGranted: this agent may not read here; nothing was read.
        """
        await self._check("read", _READ)
        found = await self._members.memory(validate_id(id, "a memory's id"))
        await self._check("read", _READ)
        return found

    async def update_memory(
        self,
        id: str,  # noqa: A002
        content: str | None = None,
        *,
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Memory:
        """Change a memory that this agent recorded; an owner, anybody's. See `User.update_memory`.

        It still carries the name of who recorded it.

        Raises:
            NotGranted: this agent may not write here; nothing was changed.
            NoSuchMemory: there is none with this id, or it is another agent's.
        """
        await self._check("write", _WRITE)
        return await self._mine.update_memory(id, content, importance=importance, metadata=metadata)

    async def delete(self, which: Deletable | Iterable[Deletable]) -> DeletionReceipt:
        """Delete memories that this agent recorded; an owner, anybody's. See `User.delete`.

        Raises:
            NotGranted: this agent may not write here; nothing was deleted.
            NotFound: there is none of these ids, or they are another agent's.
        """
        await self._check("write", _WRITE)
        return await self._mine.delete(which)

    async def claim(self) -> None:
        """Become the owner of a scope that has none; does nothing if this agent owns it already.

        Raises:
            NotGranted: another agent owns it.
        """
        await self._grant(self.who, "own")

    async def grant(self, to: str, right: Right = "read") -> None:
        """Let an agent read, write (and read), or own (write, and grant).

        The first to grant in a scope without an owner becomes its owner.

        Raises:
            InvalidInput: no such right, or an id that cannot name an agent.
            NotGranted: this agent does not own the scope; nothing was changed.
            RecordingFailed: the journal failed.
        """
        check_choice(right, "right", _READ)
        await self._grant(validate_id(to, "an agent's id"), right)

    async def revoke(self, to: str) -> None:
        """Take an agent's rights away. What it recorded stays.

        Raises:
            NotGranted: this agent does not own the scope, or the other is its last owner; nothing
                was changed.
            RecordingFailed: the journal failed.
        """
        await self._grant(validate_id(to, "an agent's id"), None)

    async def members(self) -> dict[str, str]:
        """Each agent's right.

        Raises:
            NotGranted: this agent is not among them.
        """
        return await self._check("read", _READ)

    async def forget(self) -> ErasureReceipt:
        """Erase the scope and its grants down to the bytes; see `User.forget`.

        Raises:
            NotGranted: this agent does not own the scope; nothing was erased.
            ReentrantAsk, CommitFailed, StorageError, RuntimeClosed: see `User.forget`.
        """
        await self._check("forget", _OWN)
        return await self._holder.parts.work.forget(self._key.user)

    async def settle(self) -> None:
        """Wait until what was remembered can be recalled: for tests, scripts and shutdown."""
        await self._members.settle()

    async def _grant(self, to: str, right: Right | None) -> None:
        try:
            with name_failures("grant", self.scope):
                await self._holder.parts.actors.ask(self._key, Grant(self.who, to, right))
        except NotGranted as e:
            # the application knows the scope by its own name
            raise NotGranted(str(e), scope=self.scope, who=self.who) from None

    async def _check(self, wanted: str, rights: tuple[Right, ...]) -> dict[str, str]:
        grants: dict[str, str] = await self._holder.parts.actors.ask(self._key, ReadGrants())
        if grants.get(self.who) not in rights:
            raise NotGranted(
                f"the member may not {wanted} in the shared scope; its owner can grant that",
                scope=self.scope,
                who=self.who,
            )
        return grants
