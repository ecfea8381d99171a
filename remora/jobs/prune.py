"""The prune queue: removes rows of a user's long-term memory until it is within its limit.

The journal records the rows before they are deleted, so an attempt after a crash finishes the first
one's work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, cast

from remora.actors.policies.pruning import PruneRow, PruningStrategy, victims
from remora.actors.user.messages import UserView
from remora.config import ImportanceConfig
from remora.ids import SessionKey, UserKey, entry_id, memory_of_row
from remora.jobs.rows import MEMORY_TYPES, IndexAccess
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.jobs import JobAttempt, JobResult
from remora.runtime.log import commit_records
from remora.runtime.probes import probe
from remora.storage.ports import BLOCK_TYPE, MemoryRow, Scope
from remora.storage.records import ENTRY_KIND, MemoriesRemoved, Pruned, PruneSpec

_DAY_S = 86_400
_IN_THREAD = 500  # rows from which on choosing among them is a thread's work


class PruneHandler:
    """Runs the jobs of the prune queue.

    Args:
        access: to the journal and long-term memory.
        look: the view of a user's actor, which counts how often each row was retrieved.
        now: seconds since the epoch.
        importance: formula and half-life.
    """

    def __init__(
        self,
        access: IndexAccess,
        look: Callable[[UserKey], Awaitable[UserView]],
        *,
        now: Callable[[], float],
        importance: ImportanceConfig,
    ) -> None:
        self._access = access
        self._look = look
        self._now = now
        self._importance = importance

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        """Run one attempt; it first finishes an earlier one."""
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(spec, PruneSpec)
        assert isinstance(key, UserKey)
        store = await self._access.store()
        async with self._access.users.exclusive(key.user):
            found = await store.rows(key.user, Scope(types=spec.types))
            large = len(found) > _IN_THREAD
            rows = await run_in_thread_if(large, _without_blocks, found)
            begun: Collection[str] = ()
            if attempt.job.resumed or attempt.job.attempts > 0:
                probe("prune_resumed")
                begun = await self._forgotten_in_journal(key.user, rows)
            accesses = (await self._look(key)).accesses
            chosen, leaving = await run_in_thread_if(
                large, self._choose_victims, spec, rows, begun, accesses
            )
            try:
                if leaving:
                    records = await self._records(spec.sid, leaving)
                    await commit_records(self._access.journal, records)
                gone = chosen.union(begun)
                ids = await run_in_thread_if(large, _ids_among, rows, gone)
                await store.delete(key.user, ids)
            finally:
                self._access.removed(key.user)
        return JobResult()

    def _choose_victims(
        self,
        spec: PruneSpec,
        rows: Sequence[MemoryRow],
        begun: Collection[str],
        accesses: Mapping[str, tuple[int, int]],
    ) -> tuple[set[str], list[MemoryRow]]:
        """The ids of the rows that leave, and these rows; those that have `begun` to, apart."""
        plain = []
        for row in rows:
            if row.id in begun:
                continue
            count, last_us = accesses.get(memory_of_row(row.id), (0, None))
            plain.append(PruneRow(row.id, row.created_us, last_us, count, row.importance))
        ids = victims(
            plain,
            len(rows) if spec.keep < 0 else spec.keep,
            cast("PruningStrategy", spec.strategy),
            now_us=int(self._now() * 1_000_000),
            half_life_s=self._importance.half_life_days * _DAY_S,
            formula=self._importance.formula,
            max_age_s=spec.max_age_s or float("inf"),
        )
        chosen = set(ids)
        return chosen, [row for row in rows if row.id in chosen]

    async def _forgotten_in_journal(self, user: str, rows: Sequence[MemoryRow]) -> set[str]:
        """Rows that an earlier attempt removed from the journal, but did not delete.

        The rows were read before the journal, so what was recorded since does not count.
        """
        recorded = {item.row_id for item in await self._access.journal.memories(user)}
        memories = (row.id for row in rows if row.memory_type in MEMORY_TYPES)
        gone = {id_ for id_ in memories if id_ not in recorded}
        messages = await run_in_thread_if(len(rows) > _IN_THREAD, _by_session, rows)
        for key, said in messages.items():
            pruned = set(await self._access.journal.pruned_seqs(key))
            gone.update(row.id for row in said if row.seq in pruned)
        return gone

    async def _records(self, sid: int, rows: Sequence[MemoryRow]) -> list[Any]:
        """The records that remove these rows from the journal."""
        large = len(rows) > _IN_THREAD
        messages = await run_in_thread_if(large, _by_session, rows)
        records: list[Any] = [
            Pruned(key, tuple(row.seq for row in said)) for key, said in messages.items()
        ]
        entries_of = await run_in_thread_if(large, _by_session, rows, "summary")
        for key, summaries in entries_of.items():
            ids = {row.id for row in summaries}
            items = await self._access.journal.state_items(key)
            entries = [int(one.name) for one in items if one.kind == ENTRY_KIND]
            leaving = tuple(one for one in entries if entry_id(key, one) in ids)
            records.append(Pruned(key, (), leaving))
        recorded = {row.id for row in rows if row.memory_type in MEMORY_TYPES}
        if not recorded:
            return records
        # A row of an earlier text goes, and the memory stays.
        wanted = list(map(memory_of_row, recorded))
        memories = await self._access.journal.memories(rows[0].user, wanted)
        gone = tuple(item.id for item in memories if item.row_id in recorded)
        return [*records, MemoriesRemoved(sid, gone)] if gone else records


def _without_blocks(rows: Sequence[MemoryRow]) -> list[MemoryRow]:
    return [row for row in rows if row.memory_type != BLOCK_TYPE]


def _ids_among(rows: Sequence[MemoryRow], ids: Collection[str]) -> list[str]:
    """The ids of these rows that are among `ids`, in the rows' order."""
    return [row.id for row in rows if row.id in ids]


def _by_session(
    rows: Sequence[MemoryRow], memory_type: str = "message"
) -> dict[SessionKey, list[MemoryRow]]:
    """The messages among them, or the summary entries, by session."""
    found: dict[SessionKey, list[MemoryRow]] = {}
    for row in rows:
        if row.memory_type == memory_type:
            found.setdefault(SessionKey(row.user, row.session), []).append(row)
    return found
