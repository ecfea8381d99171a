"""Locks for the keys that are in use, and none for the others: one owner at a time, or many beside
each other and one alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import anyio

__all__ = ["KeyedLocks", "SharedLocks"]


class KeyedLocks:
    """Work on one key happens one piece at a time, in the order of asking.

    Work on different keys at once.
    """

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[anyio.Lock, int]] = {}

    @asynccontextmanager
    async def __call__(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the key's lock."""
        lock, users = self._locks.get(key, (anyio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    def __len__(self) -> int:
        """Keys in use."""
        return len(self._locks)


class SharedLocks:
    """For each key, work that may go on side by side, and work that must be alone.

    Whoever must be alone is let in first.
    """

    def __init__(self) -> None:
        self._rooms: dict[Hashable, _Room] = {}

    @asynccontextmanager
    async def shared(self, key: Hashable) -> AsyncIterator[None]:
        """Work beside others on the key; begins when nobody is, or waits to be, alone with it."""
        async with self._room(key) as room:
            async with room.moved:
                while room.alone:
                    await room.moved.wait()
                room.sharing += 1
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    async with room.moved:
                        room.sharing -= 1
                        room.moved.notify_all()

    @asynccontextmanager
    async def alone(self, key: Hashable) -> AsyncIterator[None]:
        """Work on the key with nobody beside."""
        async with self._room(key) as room:
            room.alone += 1
            try:
                async with room.turn:
                    async with room.moved:
                        while room.sharing:
                            await room.moved.wait()
                    yield
            finally:
                room.alone -= 1
                with anyio.CancelScope(shield=True):
                    async with room.moved:
                        room.moved.notify_all()

    @asynccontextmanager
    async def _room(self, key: Hashable) -> AsyncIterator[_Room]:
        room = self._rooms.setdefault(key, _Room())
        room.users += 1
        try:
            yield room
        finally:
            room.users -= 1
            if not room.users:
                del self._rooms[key]

    def __len__(self) -> int:
        """Keys in use."""
        return len(self._rooms)


class _Room:
    """Who works on one key."""

    __slots__ = ("alone", "moved", "sharing", "turn", "users")

    def __init__(self) -> None:
        self.users = self.sharing = self.alone = 0
        self.moved = anyio.Condition()
        self.turn = anyio.Lock()
