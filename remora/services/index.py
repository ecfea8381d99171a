"""A runtime's long-term memory: the store in use, opened at first use, rebuilt and pruned."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import msgspec

from remora.actors.user.messages import PruneNow
from remora.config import Config
from remora.errors import LongTermError, RuntimeClosed, StorageError
from remora.ids import UserKey
from remora.jobs.flush import FlushHandler
from remora.jobs.memories import RecordHandler
from remora.logging import get_logger
from remora.models.ports import Embedder, embedder_name
from remora.runtime.clock import Clock
from remora.runtime.concurrency import Progress
from remora.runtime.jobs import RetryPolicy
from remora.runtime.registry import ActorRegistry
from remora.runtime.shared_call import SharedCall
from remora.runtime.threads import run_in_thread
from remora.services.index_directory import (
    IndexDirectory,
    Place,
    TableDirectory,
    choose_directory,
    list_directories,
    location_of,
    remove_old,
    request_rebuild,
)
from remora.services.rebuild import Rebuild, RowRebuilder
from remora.storage.lance.objects import ObjectStore, is_object_store
from remora.storage.lance.versions import JournalVersions
from remora.storage.ports import BLOCK_TYPE, Journal, LongTermStore

if TYPE_CHECKING:
    from remora.storage.lance.store import LanceStore

_logger = get_logger(__name__)
_DAY_S = 86_400.0


class LongTermIndex:
    """Chooses and opens the store, and does its upkeep.

    Args:
        journal: has what rows are made of, and says which store is in use.
        config: of the runtime.
        path: the memory directory; None for a runtime in memory.
        given: a store of the application's own; it is used as it is.
        embedder: what makes vectors now; None for text search alone.
        clock: for back-off, and the age of what is pruned.
        rng: for jitter.
    """

    def __init__(
        self,
        journal: Journal,
        config: Config,
        path: Path | None,
        *,
        given: LongTermStore | None,
        embedder: Embedder | None,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._journal = journal
        self._config = config
        self._path = path
        self._given = given
        self._embedder = embedder
        self._clock = clock
        self._rng = rng
        self._store: LongTermStore | None = None
        self._lance: LanceStore | None = None
        self._closed = False
        self._opening = SharedCall(self._open)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._current: IndexDirectory | None = None
        self._start_rebuild: Callable[[], Rebuild] | None = None
        self._row_rebuilder: RowRebuilder | None = None
        self._changed_users: dict[str, None] = {}
        self._pruned_once = False
        self._leftovers_in_use = anyio.Lock()  # an erasure has them open, or they are removed
        self.reembedding: Rebuild | None = None
        """The rebuild that runs, or that has run last."""

    @property
    def _base(self) -> Place | None:
        """Where LanceDB's directories are; None in memory, or with a store of the application's."""
        elsewhere = self._path is None or self._given is not None
        return None if elsewhere else self._config.long_term.uri.reveal() or self._path

    # -- life --------------------------------------------------------------------------------------

    async def prepare(self, *, reembed: bool) -> None:
        """Choose the store to use, a new one if need be, and remove old ones.

        Raises:
            EmbedderChanged: another embedder made what is there, and `reembed` is not set.
            ConfigError: the object store cannot be used, or has another memory's tables.
        """
        await self._check_object_store()
        self._current = await choose_directory(
            self._journal,
            self._base,
            embedder=embedder_name(self._embedder),
            shards=self._config.long_term.shards,
            reembed=reembed,
            directory=self._path,
            rng=self._rng,
        )
        if self._current.whole:
            await self._sweep()

    async def _check_object_store(self) -> None:
        base, config = self._base, self._config.long_term
        if not (config.enabled and isinstance(base, str) and is_object_store(base)):
            return
        if not self._journal.epoch:  # it is only read
            return
        objects = await run_in_thread(ObjectStore, base, config.object_store)
        try:
            await objects.claim(self._journal.instance)
        except LongTermError as e:  # messages are stored all the same
            _logger.warning("object_store_away", error=str(e))

    def serve(
        self,
        registry: ActorRegistry,
        flush: FlushHandler,
        record: RecordHandler,
        retry: RetryPolicy,
    ) -> None:
        """Prepare for rebuilding with these handlers' rows; call it before `start`."""
        assert self._current is not None
        self._start_rebuild = partial(
            self._make_rebuild, self._current, registry, flush, record, retry
        )
        if not self._current.whole:
            self.reembedding = self._start_rebuild()

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start background tasks in this group."""
        self._tasks = tasks
        self._opening.start(tasks)
        if self.reembedding is not None:
            tasks.start_soon(self.reembedding.run, name="remora.reembed")

    async def wait_until_rebuilt(self, progress: Progress | None) -> None:
        """See `remora.Runtime.reembedded`."""
        if self._config.long_term.enabled and not self._closed:
            await self._opening.wait()  # it may begin a rebuild
        if self.reembedding is not None:
            await self.reembedding.wait(progress)

    async def aclose(self) -> None:
        """Close the store; from now on, `store` refuses."""
        self._closed = True
        if self._store is not None:
            await self._store.aclose()

    # -- stores ------------------------------------------------------------------------------------

    async def store(self) -> LongTermStore:
        """The store in use, opened at first use.

        Raises:
            LongTermError: it cannot be opened; the next call tries again.
            RuntimeClosed: before `start`, and after `aclose`.
        """
        if self._closed:
            raise RuntimeClosed("long-term memory is closed")
        if self._store is None:
            self._store = self._given or await self._opening.result()
        return self._store

    async def _open(self) -> LongTermStore:
        if self._given is not None:
            return self._given
        assert self._tasks is not None
        assert self._current is not None
        store = await self._open_store(self._current.used)
        self._store = self._lance = store
        self._tasks.start_soon(store.run, name="remora.longterm.writer")
        if store.refill_needed:
            await self._refill(store, self._tasks)
        return store

    async def _open_store(self, directory: TableDirectory) -> LanceStore:
        base = self._base
        return await self._open_store_at(
            None if base is None else location_of(base, directory.name), directory
        )

    async def _open_store_at(self, place: Place | None, directory: TableDirectory) -> LanceStore:
        from remora.storage.lance.store import LanceStore  # noqa: PLC0415  # preloaded

        config = msgspec.structs.replace(self._config.long_term, shards=directory.shards)
        return await LanceStore.open(
            place,
            dimension=directory.dimension,
            config=config,
            digests=directory.digests,
            sync=self._config.journal.durability == "power",
            words_from=self._config.recall.hot_rows // 2 if self._config.recall.hot_mb else 0,
            versions=JournalVersions(self._journal, directory.name),
        )

    @asynccontextmanager
    async def open_all_stores(self) -> AsyncIterator[Sequence[LongTermStore]]:
        """Open each store that may hold rows, the one in use last.

        Rows are erased in old ones first, because a rebuild copies rows from them into the one in
        use. Directories at other addresses, and of a time when long-term memory was switched on,
        are included.
        """
        async with self._leftovers_in_use, AsyncExitStack() as opened:
            stores: list[LongTermStore] = []
            known: set[Place] = set()
            current = await self.store() if self._config.long_term.enabled else self._given
            if self._current is not None and (base := self._base) is not None:
                known.add(location_of(base, self._current.used.name))
                if self._row_rebuilder is not None:
                    stores.extend(await self._row_rebuilder.before())
                    known.update(location_of(base, one.name) for one in self._current.leftovers)
            bases = dict.fromkeys(base for base in (self._base, self._path) if base is not None)
            for base, one in [
                (base, one) for base in bases for one in await list_directories(self._journal)
            ]:
                place = location_of(base, one.name)
                there = not isinstance(place, Path) or await run_in_thread(place.exists)
                if there and place not in known:
                    known.add(place)
                    store = await self._open_store_at(place, one)
                    opened.push_async_callback(store.aclose)
                    stores.append(store)
            if current is not None:
                stores.append(current)
            yield stores

    async def _sweep(self) -> None:
        from remora.storage.lance.store import LanceStore  # noqa: PLC0415  # preloaded

        try:
            drop = partial(LanceStore.drop, config=self._config.long_term.object_store)
            await remove_old(self._journal, self._base, drop)
        except (OSError, StorageError):
            _logger.exception("leftovers_not_removed")  # the next start does it

    # -- rebuilding --------------------------------------------------------------------------------

    async def _refill(self, store: LanceStore, tasks: anyio.abc.TaskGroup) -> None:
        """Rebuild, in the background, what was quarantined as damaged."""
        _logger.warning("long_term_refilled")
        if self.reembedding is not None and not self.reembedding.ended:
            await self.reembedding.again()
        else:
            await request_rebuild(self._journal)
            assert self._start_rebuild is not None
            self.reembedding = self._start_rebuild()
            tasks.start_soon(self.reembedding.run, name="remora.reembed")
        await store.clear_refill()

    def _make_rebuild(
        self,
        used: IndexDirectory,
        registry: ActorRegistry,
        flush: FlushHandler,
        record: RecordHandler,
        retry: RetryPolicy,
    ) -> Rebuild:
        journal = self._journal
        flush.merging = True

        leftovers = used.leftovers if self._base is not None else ()
        rows = self._row_rebuilder = RowRebuilder(
            journal, registry, flush, record, self._embedder, leftovers, self._open_store
        )

        async def complete() -> None:
            flush.merging = False
            async with self._leftovers_in_use:
                self._row_rebuilder = None
                await rows.aclose()
                await self._sweep()

        return Rebuild(
            journal,
            digests=used.used.digests,
            session=rows.of_session,
            user=rows.of_user,
            complete=complete,
            clock=self._clock,
            retry=retry,
            rng=self._rng,
            concurrency=self._config.supervisor.flush_concurrency,
        )

    def withdraw(self, matches: Callable[[Hashable], bool]) -> None:
        """Stop rebuilding the rows of these actors."""
        if self.reembedding is not None:
            self.reembedding.withdraw(matches)

    # -- upkeep ------------------------------------------------------------------------------------

    async def compact(self) -> None:
        """Compact the store, if it is open."""
        if self._store is not None:
            await self._store.compact()

    async def index_written(self) -> None:
        """Have the words of all rows indexed that are in the store, if they came in bulk."""
        if self._lance is None or self._closed:
            return
        try:
            await self._lance.index_written()
        except LongTermError:
            _logger.exception("rows_not_indexed")  # the next compaction does it

    def note_change(self, user: str, *, gone: bool) -> None:
        """Rows of a user were written, so that the next round of pruning looks at them; or erased.

        Args:
            user: whose.
            gone: all of them were erased.
        """
        if gone:
            self._changed_users.pop(user, None)
        elif self._config.long_term.max_user_rows:
            self._changed_users[user] = None

    async def prune(self, tell: Callable[..., Awaitable[Any]]) -> None:
        """Prune users whose rows have grown since the last round beyond the configured bounds.

        Args:
            tell: delivers a message to an actor.
        """
        config = self._config.long_term
        max_age_s = config.max_age_days * _DAY_S if config.prune == "age" else 0.0
        store = await self.store()
        # rows of idle users age as well; otherwise each user is looked at once
        if config.prune == "age" or not self._pruned_once:
            self._changed_users.update(
                (key.user, None) for key, _ in await self._journal.indexed_through()
            )
            self._pruned_once = True
        keep = config.max_user_rows or -1
        for user in list(self._changed_users):
            self._changed_users.pop(user, None)  # rows written from now on are for the next round
            try:
                rows = [row for row in await store.rows(user) if row.memory_type != BLOCK_TYPE]
                too_old_us = (self._clock.time() - max_age_s) * 1_000_000 if max_age_s else 0.0
                if len(rows) > keep >= 0 or (rows and rows[0].created_us < too_old_us):
                    await tell(
                        UserKey(user), PruneNow(keep, config.prune, max_age_s), keeps_alive=False
                    )
            except Exception:
                _logger.exception("prune_failed", user=UserKey(user))  # other users are pruned
                self._changed_users[user] = None
