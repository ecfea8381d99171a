"""Locks by key, kept only while they are used: exclusive ones, and shared or exclusive ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import anyio

__all__ = ["KeyedLocks", "SharedLocks"]


class KeyedLocks:
    """One holder for each key at a time, in the order of asking; different keys in parallel."""

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

    def __contains__(self, key: Hashable) -> bool:
        """Whether somebody holds the key's lock, or waits for it."""
        return key in self._locks

    def __len__(self) -> int:
        """Keys in use."""
        return len(self._locks)


class SharedLocks:
    """For each key many shared holders or one exclusive holder; a waiting exclusive one is next."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, _Lock] = {}

    @asynccontextmanager
    async def shared(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the key's lock together with others, when no exclusive holder has it or waits."""
        async with self._lock(key) as lock:
            async with lock.changed:
                while lock.exclusive:
                    await lock.changed.wait()
                lock.sharing += 1
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    async with lock.changed:
                        lock.sharing -= 1
                        lock.changed.notify_all()

    @asynccontextmanager
    async def exclusive(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the key's lock alone."""
        async with self._lock(key) as lock:
            lock.exclusive += 1
            try:
                async with lock.turn:
                    async with lock.changed:
                        while lock.sharing:
                            await lock.changed.wait()
                    yield
            finally:
                lock.exclusive -= 1
                with anyio.CancelScope(shield=True):
                    async with lock.changed:
                        lock.changed.notify_all()

    @asynccontextmanager
    async def _lock(self, key: Hashable) -> AsyncIterator[_Lock]:
        lock = self._locks.setdefault(key, _Lock())
        lock.users += 1
        try:
            yield lock
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[key]

    def __len__(self) -> int:
        """Keys in use."""
        return len(self._locks)


class _Lock:
    """The lock of one key: who holds it, and who waits for it."""

    __slots__ = ("changed", "exclusive", "sharing", "turn", "users")

    def __init__(self) -> None:
        self.users = self.sharing = 0
        self.exclusive = 0
        """Exclusive holders, and those that wait."""
        self.changed = anyio.Condition()
        self.turn = anyio.Lock()
