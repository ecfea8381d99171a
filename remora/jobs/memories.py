"""What is recorded in long-term memory on purpose, and what is taken out of it again.

The journal holds what was recorded; long-term memory is an index over it. So whatever goes wrong,
the order is the same: what comes is in the journal first, what goes is gone from the journal first,
and a job that runs again makes the index agree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, cast

from remora.actors.policies.pruning import PruneRow, PruningStrategy, victims
from remora.actors.user.messages import UserView
from remora.config import ImportanceConfig
from remora.ids import SessionKey, UserKey, entry_id
from remora.jobs.sessions import prepare_rows, standalone_row
from remora.messages import dated_line
from remora.models.ports import Embedder
from remora.runtime.locks import SharedLocks
from remora.runtime.probes import probe
from remora.runtime.supervisor import JobAttempt, JobResult, commit_records
from remora.storage.ports import BLOCK_TYPE, Journal, LongTermStore, MemoryRow, Scope
from remora.storage.records import (
    ENTRY_KIND,
    MemoriesRemoved,
    MemoryItem,
    Pruned,
    PruneSpec,
    RecordSpec,
)

__all__ = ["MEMORY_TYPES", "ROW_TYPES", "PruneHandler", "RecordHandler", "memory_row"]

MEMORY_TYPES = ("fact", "preference", "context", "procedural", "message_batch")
"""What may be recorded on purpose."""

ROW_TYPES = ("message", "summary", *MEMORY_TYPES)
"""What long-term memory holds."""

_AT_ONCE = 256  # rows that are embedded and written together
_DAY_S = 86_400


def memory_row(user: str, item: MemoryItem) -> MemoryRow:
    """The row of a memory."""
    return standalone_row(
        item.id,
        user,
        item.session,
        item.content,
        dated_line(item.created_us, item.content),
        memory_type=item.type,
        importance=item.importance,
        created_us=item.created_us,
        tokens=item.tokens,
        agent=item.agent,
    )


class RecordHandler:
    """The record lane: memories from the journal into long-term memory.

    Args:
        journal: where they are.
        store: opens long-term memory at first use.
        embedder: None for text search alone.
        redact: goes over every text before long-term memory sees it.
        written: told the user of whatever was written, or may have been.
        users: keeps it apart from the pruning of the same user's rows.
    """

    def __init__(
        self,
        journal: Journal,
        store: Callable[[], Awaitable[LongTermStore]],
        embedder: Embedder | None,
        *,
        redact: Callable[[str], str] | None,
        written: Callable[[str], None],
        users: SharedLocks,
    ) -> None:
        self._journal = journal
        self._store = store
        self._embedder = embedder
        self._redact = redact
        self._written = written
        self._users = users

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        """One attempt; those of its memories that are searchable already stay as they are."""
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(spec, RecordSpec)
        assert isinstance(key, UserKey)
        await self._bring(key.user, spec.ids)
        return JobResult()

    async def rebuild(self, user: str) -> None:
        """Write from the journal alone what was recorded of a user."""
        await self._bring(user, [item.id for item in await self._journal.memories(user)])

    async def _bring(self, user: str, ids: Sequence[str]) -> None:
        try:
            for start in range(0, len(ids), _AT_ONCE):
                await self._record(user, ids[start : start + _AT_ONCE])
        finally:
            self._written(user)

    async def adopt(self, user: str, read: Callable[[], Awaitable[Sequence[MemoryRow]]]) -> None:
        """Take a user's rows over from another store, embedded anew.

        Those of memory blocks, which no journal has.
        """
        async with self._users.shared(
            user
        ):  # from the reading on, or rows that are forgotten meanwhile would come back
            rows = await read()
            for start in range(0, len(rows), _AT_ONCE):
                some, vectors = await prepare_rows(
                    rows[start : start + _AT_ONCE], None, self._embedder
                )
                await (await self._store()).add(some, vectors, may_exist=True)

    async def _record(self, user: str, ids: Sequence[str]) -> None:
        found = [memory_row(user, item) for item in await self._journal.memories(user, ids)]
        if not found:
            return
        rows, vectors = await prepare_rows(found, self._redact, self._embedder)
        store = await self._store()
        async with self._users.shared(user):
            # The model took its time, and what was removed meanwhile must not come back.
            present = {item.id for item in await self._journal.memories(user, ids)}
            kept = [place for place, row in enumerate(rows) if row.id in present]
            if len(kept) < len(rows):
                probe("memory_gone_while_embedded")
            # Doubtful even at the first attempt: the same words recorded twice are one memory with
            # two jobs.
            if kept:
                await store.add(
                    [rows[place] for place in kept],
                    None if vectors is None else vectors[kept],
                    may_exist=True,
                )


class PruneHandler:
    """The prune lane: a user's long-term memory down to its bound.

    Args:
        journal: told what goes before it goes.
        store: opens long-term memory at first use.
        look: how the user's own actor stands; it knows how often each row was retrieved.
        now: seconds since the epoch.
        importance: formula and half-life.
        written: told the user of whatever was removed, or may have been.
        users: keeps it apart from what writes the same user's rows.
    """

    def __init__(
        self,
        journal: Journal,
        store: Callable[[], Awaitable[LongTermStore]],
        look: Callable[[UserKey], Awaitable[UserView]],
        *,
        now: Callable[[], float],
        importance: ImportanceConfig,
        written: Callable[[str], None],
        users: SharedLocks,
    ) -> None:
        self._journal = journal
        self._store = store
        self._look = look
        self._now = now
        self._importance = importance
        self._written = written
        self._users = users

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        """One attempt.

        A later one first finishes what an earlier one began, and then finds nothing more to do.
        """
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(spec, PruneSpec)
        assert isinstance(key, UserKey)
        store = await self._store()
        async with self._users.alone(key.user):
            found = await store.rows(key.user, Scope(types=spec.types))
            rows = [row for row in found if row.memory_type != BLOCK_TYPE]
            begun: Collection[str] = ()
            if attempt.job.resumed or attempt.job.attempts > 0:
                probe("prune_resumed")
                begun = await self._forgotten_in_journal(key.user, rows)
            chosen = set(
                await self._chosen(key, spec, [row for row in rows if row.id not in begun])
            )
            leaving = [row for row in rows if row.id in chosen]
            try:
                if leaving:
                    await commit_records(self._journal, await self._records(spec.sid, leaving))
                await store.delete(
                    key.user, [row.id for row in rows if row.id in chosen or row.id in begun]
                )
            finally:
                self._written(key.user)
        return JobResult()

    async def _chosen(self, key: UserKey, spec: PruneSpec, rows: Sequence[MemoryRow]) -> list[str]:
        accesses = (await self._look(key)).accesses
        plain = []
        for row in rows:
            count, last_us = accesses.get(row.id, (0, None))
            plain.append(PruneRow(row.id, row.created_us, last_us, count, row.importance))
        return victims(
            plain,
            len(rows) if spec.keep < 0 else spec.keep,
            cast("PruningStrategy", spec.strategy),
            now_us=int(self._now() * 1_000_000),
            half_life_s=self._importance.half_life_days * _DAY_S,
            formula=self._importance.formula,
            max_age_s=spec.max_age_s or float("inf"),
        )

    async def _forgotten_in_journal(self, user: str, rows: Sequence[MemoryRow]) -> set[str]:
        """Rows that an earlier attempt had the journal forget, and did not come to delete.

        The rows were read before the journal is: what was recorded since cannot look forgotten.
        """
        recorded = {item.id for item in await self._journal.memories(user)}
        gone = {
            row.id for row in rows if row.memory_type in MEMORY_TYPES and row.id not in recorded
        }
        for key, said in _by_session(rows).items():
            pruned = set(await self._journal.pruned(key))
            gone.update(row.id for row in said if row.seq in pruned)
        return gone

    async def _records(self, sid: int, rows: Sequence[MemoryRow]) -> list[Any]:
        """What the journal is told of rows that go."""
        records: list[Any] = [
            Pruned(key, tuple(row.seq for row in said)) for key, said in _by_session(rows).items()
        ]
        for key, summaries in _by_session(rows, "summary").items():
            ids = {row.id for row in summaries}
            kept = [
                int(state_item.name)
                for state_item in await self._journal.state_items(key)
                if state_item.kind == ENTRY_KIND
            ]
            records.append(
                Pruned(key, (), tuple(through for through in kept if entry_id(key, through) in ids))
            )
        recorded = tuple(row.id for row in rows if row.memory_type in MEMORY_TYPES)
        return [*records, MemoriesRemoved(sid, recorded)] if recorded else records


def _by_session(
    rows: Sequence[MemoryRow], memory_type: str = "message"
) -> dict[SessionKey, list[MemoryRow]]:
    """The messages among them, or the summary entries, by session."""
    found: dict[SessionKey, list[MemoryRow]] = {}
    for row in rows:
        if row.memory_type == memory_type:
            found.setdefault(SessionKey(row.user, row.session), []).append(row)
    return found
