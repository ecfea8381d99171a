"""A user's long-term memory: recall, listing, export as a table, pruning."""

from __future__ import annotations

from typing import Any

import msgspec

from remora.actors.user.messages import InspectUser, PruneNow, Touch, UserView
from remora.errors import LongTermError
from remora.ids import UserKey
from remora.models.ports import Embedder
from remora.recall.current import rows_of
from remora.recall.memory import Memory
from remora.recall.recall import Recall
from remora.runtime.clock import Clock
from remora.runtime.registry import ActorRegistry
from remora.runtime.supervisor import Supervisor
from remora.runtime.threads import run_in_thread
from remora.services.metadata import MetadataFilter
from remora.services.remembered import MemoryPage, Remembered
from remora.storage.ports import Journal, RowOrder, Scope, check_owned


class LocalRecalls:
    """Recall in this process.

    Args:
        recall: searches long-term memory.
        actors: users, who count what was retrieved.
        journal: for recorded memories and dead letters.
        supervisor: prunes.
        embedder: None if there is none.
        clock: says when memories were retrieved.
    """

    def __init__(
        self,
        recall: Recall,
        actors: ActorRegistry,
        journal: Journal,
        supervisor: Supervisor,
        embedder: Embedder | None,
        clock: Clock,
    ) -> None:
        self._recall = recall
        self._actors = actors
        self._journal = journal
        self._remembered = Remembered(journal)
        self._supervisor = supervisor
        self._embedder = embedder
        self._clock = clock

    async def recall(
        self, user: str, query: str, k: int, scope: Scope, where: MetadataFilter
    ) -> list[Memory]:
        """See `remora.User.recall`."""
        if where.conditions:
            ids = await self._remembered.row_ids(user, MemoryPage(scope, where))
            if not ids:
                return []
            scope = msgspec.structs.replace(scope, ids=ids)
        found = await self._recall(user, query, limit=k, scope=scope)
        check_owned(self._journal)  # an embedder or a reranker may have taken long
        if found:
            rows = rows_of(user, found)
            self._actors.post(UserKey(user), Touch(rows, int(self._clock.time() * 1_000_000)))
        return found

    async def memory(self, user: str, id_: str, agent: str | None) -> Memory | None:
        """See `remora.User.memory`."""
        return await self._remembered.memory(user, id_, agent)

    async def remembered(self, user: str, page: MemoryPage) -> list[Memory]:
        """See `remora.User.remembered`."""
        return await self._remembered.page(user, page)

    async def memories(
        self, user: str, scope: Scope, limit: int | None = None, by: RowOrder = "created"
    ) -> list[Memory]:
        """See `remora.User.memories`."""
        return await self._recall.rows(user, scope, limit=limit, by=by)

    async def arrow_table(self, user: str, scope: Scope) -> Any:
        """See `remora.User.export_arrow`."""
        from remora.storage.export.arrow import memory_table  # noqa: PLC0415  # preloaded

        rows, vectors = await self._recall.embedded_rows(user, scope)
        view: UserView = await self._actors.ask(UserKey(user), InspectUser())
        dimension = self._embedder.dimension if self._embedder is not None else 0
        return await run_in_thread(
            lambda: memory_table(rows, vectors, view.accesses, dimension=dimension)
        )

    async def prune(self, user: str, message: PruneNow, *, wait: bool) -> None:
        """See `remora.User.prune`."""
        if not (await self._journal.counts(user)).users:
            return  # the job would make the user one
        job: str = await self._actors.ask(UserKey(user), message)
        if not wait:
            return
        await self._supervisor.wait_for_job(job)
        for dead in await self._journal.jobs(dead=True):
            if dead.id == job:
                raise LongTermError(
                    f"pruning for {UserKey(user).words} failed: {dead.error}. It is the dead "
                    f"letter {job}: Runtime.dead_letters() lists it, retry_dead_letters() runs it "
                    "again; without a server, remora jobs does",
                    retryable=False,
                )
