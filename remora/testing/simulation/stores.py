"""The stores of a simulated world: what a power cut leaves, and LanceDB in a queue of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from remora.config import LongTermConfig
from remora.errors import LongTermError
from remora.storage.lance.store import LanceStore
from remora.storage.memory import MemoryStore
from remora.storage.ports import (
    EVERYTHING,
    Candidate,
    Finding,
    LongTermStatistics,
    MemoryRow,
    RowOrder,
    Scope,
    Vector,
)
from remora.testing.simulation.loop import SeededLoop

T = TypeVar("T")


class SimulatedStore(MemoryStore):
    """The in-memory store.

    It writes in two steps, so that a crash may come between, and knows what would have been
    doubled.

    Attributes:
        doubled: ids of rows that were added, as surely new, though they were there: a store without
            unique ids has them twice.
    """

    def __init__(self, dimension: int | None) -> None:
        super().__init__(dimension)
        self.doubled: list[str] = []

    async def add(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        """Store the first half, then the rest."""
        if not may_exist:
            self.doubled += [row.id for row in rows if row.id in self._users.get(row.user, {})]
        half = len(rows) // 2
        for part in (slice(None, half), slice(half, None)):
            await super().add(
                rows[part], None if vectors is None else vectors[part], may_exist=may_exist
            )


class LaneStore:
    """LanceDB in a simulated world.

    Each call is one step, in which the real store does the whole of it on a loop of its own.

    LanceDB works in threads of its own, which no seed can order; so the world stands still until
    they are done. What happens *between* calls is the simulation's, what happens within one is not.
    """

    def __init__(self, store: LanceStore, host: _Host, loop: SeededLoop) -> None:
        self._store = store
        self._host = host
        self._loop = loop

    @classmethod
    def open(
        cls, path: Path, *, dimension: int | None, config: LongTermConfig, loop: SeededLoop
    ) -> Self:
        """Open or create it. Blocks."""
        host = _Host()
        try:
            store = host.run(LanceStore.open(path, dimension=dimension, config=config))
            host.start(store.run())
        except BaseException:
            host.end()
            raise
        return cls(store, host, loop)

    async def _step(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._loop.run_in_executor(None, lambda: self._host.run(call()))

    def drop(self) -> None:
        """Release the files: the world that used it is dead. Blocks."""
        self._host.end()

    async def add(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        """See `LongTermStore`."""
        await self._step(lambda: self._store.add(rows, vectors, may_exist=may_exist))

    async def search(
        self, user: str, text: str, vector: Vector | None, *, depth: int, scope: Scope = EVERYTHING
    ) -> Sequence[Candidate]:
        """See `LongTermStore`."""
        return await self._step(
            lambda: self._store.search(user, text, vector, depth=depth, scope=scope)
        )

    async def rows(
        self,
        user: str,
        scope: Scope = EVERYTHING,
        *,
        limit: int | None = None,
        by: RowOrder = "created",
    ) -> Sequence[MemoryRow]:
        """See `LongTermStore`."""
        return await self._step(lambda: self._store.rows(user, scope, limit=limit, by=by))

    async def count(self, user: str) -> int:
        """See `LongTermStore`."""
        return await self._step(lambda: self._store.count(user))

    async def embedded_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """See `LongTermStore`."""
        return await self._step(lambda: self._store.embedded_rows(user, scope))

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        """See `LongTermStore`."""
        return await self._step(lambda: self._store.delete(user, ids))

    async def remove(self, user_key: str, session_key: str = "") -> int:
        """See `LongTermStore`."""
        return await self._step(lambda: self._store.remove(user_key, session_key))

    async def erase(self, user_key: str, session_key: str = "") -> int:
        """See `LongTermStore`."""
        return await self._step(lambda: self._store.erase(user_key, session_key))

    async def verify(self, *, deep: bool = False) -> Sequence[Finding]:
        """See `LongTermStore`."""
        return await self._step(lambda: self._store.verify(deep=deep))

    async def compact(self) -> int:
        """See `LongTermStore`."""
        return await self._step(self._store.compact)

    async def statistics(self) -> LongTermStatistics:
        """See `LongTermStore`."""
        return await self._step(self._store.statistics)

    async def row_ids(self) -> Sequence[str]:
        """See `LongTermStore`."""
        return await self._step(self._store.row_ids)

    async def aclose(self) -> None:
        """Finish what was accepted and release the files."""
        await self._step(self._store.aclose)
        self._host.end()


class _Host:
    """An event loop in a thread, for libraries that have threads of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="remora.simulation.lancedb", daemon=True
        )
        self._thread.start()
        self._started: list[Any] = []

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return its result. Blocks.

        Raises:
            LongTermError: the store is closed, as LanceDB's own says.
        """
        if self._loop.is_closed():
            coroutine.close()
            raise LongTermError("long-term memory failed: it is closed", retryable=False)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Let it run."""
        self._started.append(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def end(self) -> None:
        """Cancel what runs, and end the thread."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._wind_up)
        self._thread.join()
        self._loop.close()

    def _wind_up(self) -> None:
        left = asyncio.all_tasks(self._loop)

        async def cancel_all() -> None:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._loop.stop()

        self._started.append(self._loop.create_task(cancel_all()))
