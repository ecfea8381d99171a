"""A long-term store that fails when it is told to, as LanceDB does."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

import anyio

from remora.errors import LongTermError
from remora.storage.ports import (
    EVERYTHING,
    Candidate,
    Finding,
    LongTermStatistics,
    LongTermStore,
    MemoryRow,
    RowOrder,
    Scope,
    Vector,
)

Result = TypeVar("Result")

StoreFault = Literal["refused", "kept", "conflict", "timeout", "hang"]
"""What goes wrong with an operation: ``refused``: nothing is done.

``kept``: it is done, and reported as failed; ``conflict``: another write was faster, and nothing is
done; ``timeout``: it fails late, and may have been done or not; ``hang``: it takes very long, and
is done. One that only reads changes nothing: it fails with all but ``hang``.
"""


class FaultyStore:
    """Implements `remora.storage.ports.LongTermStore` by another, with faults.

    See `remora.testing.during` for one that is down.

    It raises what `LanceStore` raises (`remora.storage.lance.errors`): a `LongTermError` that may
    be retried. An operation that is cancelled while it is slow was not done. `aclose` never fails.

    Args:
        inner: what keeps the rows; ask it what is there in truth.
        fault: asked once before each operation what is to go wrong with it; None for nothing.
        latency_s: asked before each operation how long it takes.
        hang_s: how long one that hangs takes on top.
        timeout_s: how long one takes on top that times out.
        rng: says whether one that timed out was done.
    """

    def __init__(
        self,
        inner: LongTermStore,
        fault: Callable[[], StoreFault | None],
        *,
        latency_s: Callable[[], float] = lambda: 0.0,
        hang_s: float = 120.0,
        timeout_s: float = 30.0,
        rng: random.Random | None = None,
    ) -> None:
        self.inner = inner
        self._fault = fault
        self._latency_s = latency_s
        self._hang_s = hang_s
        self._timeout_s = timeout_s
        self._rng = rng or random.Random(0)

    async def add(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        """See `LongTermStore.add`."""
        await self._write("writing", lambda: self.inner.add(rows, vectors, may_exist=may_exist))

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        """See `LongTermStore.delete`."""
        return await self._write("deleting", lambda: self.inner.delete(user, ids))

    async def remove(self, user_key: str, session_key: str = "") -> int:
        """See `LongTermStore.remove`."""
        return await self._write("removing", lambda: self.inner.remove(user_key, session_key))

    async def erase(self, user_key: str, session_key: str = "") -> int:
        """See `LongTermStore.erase`."""
        return await self._write("erasing", lambda: self.inner.erase(user_key, session_key))

    async def compact(self) -> int:
        """See `LongTermStore.compact`."""
        return await self._write("compacting", self.inner.compact)

    async def search(
        self, user: str, text: str, vector: Vector | None, *, depth: int, scope: Scope = EVERYTHING
    ) -> Sequence[Candidate]:
        """See `LongTermStore.search`."""
        return await self._read(
            "searching", lambda: self.inner.search(user, text, vector, depth=depth, scope=scope)
        )

    async def rows(
        self,
        user: str,
        scope: Scope = EVERYTHING,
        *,
        limit: int | None = None,
        by: RowOrder = "created",
    ) -> Sequence[MemoryRow]:
        """See `LongTermStore.rows`."""
        return await self._read("reading", lambda: self.inner.rows(user, scope, limit=limit, by=by))

    async def count(self, user: str) -> int:
        """See `LongTermStore.count`."""
        return await self._read("counting", lambda: self.inner.count(user))

    async def embedded_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """See `LongTermStore.embedded_rows`."""
        return await self._read("reading", lambda: self.inner.embedded_rows(user, scope))

    async def verify(self, *, deep: bool = False) -> Sequence[Finding]:
        """See `LongTermStore.verify`."""
        return await self._read("verifying", lambda: self.inner.verify(deep=deep))

    async def statistics(self) -> LongTermStatistics:
        """See `LongTermStore.statistics`."""
        return await self._read("counting", self.inner.statistics)

    async def row_ids(self) -> Sequence[str]:
        """See `LongTermStore.row_ids`."""
        return await self._read("listing", self.inner.row_ids)

    async def aclose(self) -> None:
        """Close the inner one."""
        await self.inner.aclose()

    async def _write(self, doing: str, operation: Callable[[], Awaitable[Result]]) -> Result:
        fault = await self._next_fault()
        if fault is None:
            return await operation()
        if fault == "kept" or (fault == "timeout" and self._rng.random() < 0.5):
            await operation()
        raise await self._error(doing, fault)

    async def _read(self, doing: str, operation: Callable[[], Awaitable[Result]]) -> Result:
        fault = await self._next_fault()
        if fault is None:
            return await operation()
        raise await self._error(doing, fault)

    async def _next_fault(self) -> StoreFault | None:
        """Return what is left to go wrong, after the time that it takes."""
        fault = self._fault()
        await anyio.sleep(self._latency_s())
        if fault != "hang":
            return fault
        await anyio.sleep(self._hang_s)
        return None

    async def _error(self, doing: str, fault: StoreFault) -> LongTermError:
        told = "the disk failed"
        if fault == "conflict":
            told = "another write was faster"
        elif fault == "timeout":
            await anyio.sleep(self._timeout_s)
            told = "it took too long"
        return LongTermError(f"long-term memory failed {doing}: {told} (injected)", retryable=True)
