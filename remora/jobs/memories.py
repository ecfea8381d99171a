"""The record queue: indexes recorded memories in long-term memory.

Long-term memory is an index over the journal: a memory is added to the journal first, and removed
from it first. A job that runs again makes the index agree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from remora.ids import UserKey
from remora.jobs.rows import MEMORY_TYPES, IndexAccess, memory_row
from remora.runtime.concurrency import map_concurrently
from remora.runtime.jobs import Job, JobAttempt, JobResult
from remora.runtime.probes import probe
from remora.storage.ports import MemoryRow, Scope
from remora.storage.records import INSTRUCTION, RecordSpec

_BATCH_ROWS = 256  # embedded and written together
_USERS_AT_ONCE = 16


def count_new_memories(job: Job) -> int:
    """How many memories a job indexes; 0 of one that removes rows, too."""
    return 0 if job.payload.replaced else len(job.payload.ids)


class RecordHandler:
    """Runs the jobs of the record queue.

    Args:
        access: to the journal and long-term memory.
    """

    def __init__(self, access: IndexAccess) -> None:
        self._access = access

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        """Run one attempt; rows that exist already stay as they are."""
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(spec, RecordSpec)
        assert isinstance(key, UserKey)
        if spec.replaced:
            # No other job writes a row of an earlier text after this.
            async with self._access.users.exclusive(key.user):
                await self._access.delete(key.user, spec.replaced)
                self._access.changed(key.user)
        await self._write_all(key.user, spec.ids)
        return JobResult()

    async def index_together(
        self, attempts: Sequence[JobAttempt], _: Callable[[], None]
    ) -> Sequence[JobResult]:
        """Index the memories of several jobs, those of a user as one; none of them removes rows.

        Raises:
            RedactionFailed, ModelError, LongTermError: see `__call__`; of one job, perhaps.
        """
        by_user: dict[str, list[str]] = {}
        for attempt in attempts:
            assert isinstance(attempt.job.key, UserKey)
            by_user.setdefault(attempt.job.key.user, []).extend(attempt.job.payload.ids)

        async def write(one: tuple[str, list[str]]) -> None:
            await self._write_all(*one)

        await map_concurrently(write, list(by_user.items()), concurrency=_USERS_AT_ONCE)
        return [JobResult() for _ in attempts]

    async def rebuild(self, user: str) -> None:
        """Write the memories of a user that long-term memory is missing."""
        rows = await (await self._access.store()).rows(user, Scope(types=MEMORY_TYPES))
        present = {row.id for row in rows}
        memories = await self._access.journal.memories(user)
        items = [
            item.id for item in memories if item.row_id not in present and item.type != INSTRUCTION
        ]
        if items:
            await self._write_all(user, items)

    async def _write_all(self, user: str, ids: Sequence[str]) -> None:
        try:
            for start in range(0, len(ids), _BATCH_ROWS):
                await self._write(user, ids[start : start + _BATCH_ROWS])
        finally:
            self._access.changed(user)

    async def adopt(self, user: str, read: Callable[[], Awaitable[Sequence[MemoryRow]]]) -> None:
        """Copy the rows of a user's memory blocks from another store, and embed them."""
        async with self._access.users.shared(
            user
        ):  # before the read: a row deleted in between must not come back
            rows = await read()
            for start in range(0, len(rows), _BATCH_ROWS):
                batch = rows[start : start + _BATCH_ROWS]
                some, vectors = await self._access.prepare(batch, redacted=True)
                await (await self._access.store()).add(some, vectors, may_exist=True)

    async def _write(self, user: str, ids: Sequence[str]) -> None:
        items = await self._access.journal.memories(user, ids)
        found = [memory_row(user, item) for item in items if item.type != INSTRUCTION]
        if not found:
            return
        rows, vectors = await self._access.prepare(found)
        store = await self._access.store()
        async with self._access.users.shared(user):
            # rows that were removed during embedding must not come back
            items = await self._access.journal.memories(user, ids)
            present = {item.row_id: item.importance for item in items}
            kept = [place for place, row in enumerate(rows) if row.id in present]
            if len(kept) < len(rows):
                probe("memory_gone_while_embedded")
            # A first attempt may find the row: the same text recorded twice is one memory with two
            # jobs.
            if kept:
                left = None if vectors is None else vectors[kept]
                current = [
                    msgspec.structs.replace(rows[place], importance=present[rows[place].id])
                    for place in kept
                ]
                await store.add(current, left, may_exist=True)
