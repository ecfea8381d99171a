"""Locks by key, kept only while they are used: exclusive ones, and shared or exclusive ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import anyio


class KeyedLocks:
    """One holder for each key at a time, in the order of asking; different keys in parallel.

    Attributes:
        used: by key, the lock that somebody holds, and how many hold it or wait for it.
    """

    def __init__(self) -> None:
        self.used: dict[Hashable, tuple[anyio.Lock, int]] = {}

    @asynccontextmanager
    async def __call__(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the key's lock."""
        lock, users = self.used.get(key, (anyio.Lock(), 0))
        self.used[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self.used[key]
            if users == 1:
                del self.used[key]
            else:
                self.used[key] = (lock, users - 1)


class SharedLocks:
    """For each key many shared holders or one exclusive holder, in the order of asking."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, _Lock] = {}

    @asynccontextmanager
    async def shared(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the key's lock together with others."""
        async with self._lock(key) as lock:
            async with lock.turn:
                lock.sharing += 1
            try:
                yield
            finally:
                lock.sharing -= 1
                if not lock.sharing:
                    lock.free.set()

    @asynccontextmanager
    async def exclusive(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the key's lock alone."""
        async with self._lock(key) as lock, lock.turn:
            if lock.sharing:
                lock.free = anyio.Event()
                await lock.free.wait()
            yield

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

    __slots__ = ("free", "sharing", "turn", "users")

    def __init__(self) -> None:
        self.users = self.sharing = 0
        self.free = anyio.Event()
        self.turn = anyio.Lock()
