"""Opening and closing a runtime: lock, journal, parts, background tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio
import anyio.abc

from remora.api.build import Internals, build
from remora.api.database import open_database
from remora.api.health import Health, HealthProblem, find_problems, of_problems
from remora.api.host import Host, HostTasks
from remora.api.operator import LocalOperator
from remora.api.options import JournalLike, Options
from remora.api.status import answering, make_status
from remora.errors import ConfigError, InvalidInput, OwnershipLost, RuntimeClosed
from remora.logging import get_logger
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.jobs import Job
from remora.runtime.threads import LoopWatch, is_loading, run_in_thread, wait_until_loaded
from remora.services.answering import (
    PARTING_S,
    AnswerThread,
    ServesWorkers,
    Workers,
)
from remora.services.index_directory import check_location, check_temporary
from remora.services.parts import PartsHolder
from remora.services.preload import preload
from remora.services.upkeep import flush_unindexed
from remora.storage.files import unusable_directory
from remora.storage.lance.allocators import limit_arenas
from remora.storage.layout import check_unsharded, end_division, is_dividing
from remora.storage.lock import DirectoryLock, wait_for_lock
from remora.storage.ports import Journal

_logger = get_logger(__name__)


class Lifetime:
    """Opens a runtime's parts, runs its background tasks, and closes it; again, if asked.

    Args:
        options: what the application chose.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.holder = PartsHolder("in memory" if options.path is None else repr(str(options.path)))
        """Gives handles the parts while the runtime is open."""
        self.built: Internals | None = None
        """What was built on opening; it stays when the runtime has closed."""
        self._host: Host | None = None
        self._closers: list[Callable[[], Any]] = []
        self._given_closed = False
        self._watch: LoopWatch

    @property
    def internals(self) -> Internals:
        """The parts, for code on the runtime's event loop.

        Raises:
            RuntimeClosed: the runtime is not open.
            WrongLoop: another event loop runs, or none.
        """
        self.holder.parts  # noqa: B018  # raises
        assert self.built is not None
        return self.built

    @property
    def internals_anywhere(self) -> Internals:
        """The parts, also for other threads: for reading counters.

        Raises:
            RuntimeClosed: the runtime is not open.
        """
        self.holder.check_open()
        assert self.built is not None
        return self.built

    @property
    def opened(self) -> Internals | None:
        """The parts while the runtime is open, otherwise None; any thread may ask."""
        return self.built if self.holder.phase == "open" else None

    @property
    def home(self) -> object:
        """The event loop of the open runtime.

        Raises:
            RuntimeClosed: it is not open.
        """
        return self.holder.home

    def health(self) -> Health:
        """See `remora.Runtime.health`."""
        return of_problems(list(self._problems()))

    def _problems(self) -> Iterator[HealthProblem]:
        host, holder, built = self._host, self.holder, self.built
        if holder.lost:
            yield HealthProblem("lost", "not live", holder.lost)
        elif holder.phase == "open" and built is not None:
            if host is not None and host.stopping:
                yield HealthProblem("closing", "not ready", "the runtime is closing")
            yield from find_problems(built, 0.0 if holder.is_here else self._watch.stuck_s())
        elif host is None or not (host.opened or host.stopping):
            opens = host is not None and not host.ended
            text = "the runtime is being opened" if opens else "the runtime is not open"
            yield HealthProblem("opening" if opens else "not_opened", "not ready", text)
        elif host.stopping:
            yield HealthProblem("closed", "not ready", "the runtime is closed")
        else:
            yield HealthProblem(
                "ended", "not live", "background work has ended by itself; the log says why"
            )

    async def start(self) -> None:
        """See `remora.Runtime.start`."""
        before = self._host
        if before is not None and not before.ended:
            before.home.check()
            raise InvalidInput("the runtime is open already, or another task opens or closes it")
        if self._given_closed:
            raise RuntimeClosed(
                "the runtime closed the journal or store that it was given, so it cannot be opened "
                "again: make another runtime"
            )
        self._host = Host(self._live)
        await self._host.start()

    async def _prepare(self) -> None:
        """Check what can be checked before anything is opened."""
        options = self.options
        _require_one_shard(options)
        sqlite = options.journal is None and options.path is not None
        if sqlite or (options.store is None and options.config.long_term.enabled):
            _require_asyncio()
        long_term = options.config.long_term
        local = options.store is None and not long_term.uri.reveal()
        if options.path is not None and long_term.enabled and local:
            check_location(options.path)
            await run_in_thread(check_temporary)

    async def aclose(self) -> None:
        """See `remora.Runtime.aclose`."""
        if self._host is not None and not self._host.ended:
            await self._host.stop()

    # -- in the host's task ------------------------------------------------------------------------

    async def _live(self, host: Host) -> None:
        await self._prepare()
        long_term = self.options.config.long_term
        if long_term.enabled and long_term.tune_allocators:
            limit_arenas()  # before there are many threads
        path = self.options.path
        lock = DirectoryLock(path) if path is not None else None
        self._closers = []
        try:
            await run_in_thread(preload)
            if lock is not None:
                await self._check_whole()  # the owner of a memory in shards has locked it
                await wait_for_lock(lock, self.options.config.lock_wait_s, self.options.clock)
                await self._check_whole(owned=True)
            async with self._answering() as thread, self._open_journal() as journal:
                # What can fail comes before the task group, which would wrap its exception.
                self.built = await build(self.options, journal, self._closers)
                self.built.supervisor.dead.add(await journal.jobs(dead=True))
                workers = None
                if thread is not None and _runs_asyncio():
                    workers = Workers(thread, host.home.loop, self._make_served)
                await self._run(host, self.built, await journal.jobs(), workers)
        finally:
            self.holder.close()
            with anyio.CancelScope(shield=True):
                if lock is not None:
                    await run_in_thread(lock.release)
                await run_in_thread_if(is_loading(), wait_until_loaded)

    # -- other processes ---------------------------------------------------------------------------

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[AnswerThread | None]:
        """Answer other processes; yields the thread that does, if it is the runtime's own."""
        options = self.options
        if options.path is None or options.shard is not None:  # all shards are answered for as one
            yield None
            return

        def opened() -> list[Internals]:
            parts = self.opened
            return [] if parts is None else [parts]

        status = make_status(self.health, opened)
        async with answering(options.path, status, options.control) as thread:
            yield thread

    def _make_served(self) -> ServesWorkers:
        """Serve commands and the page as workers; each can do what an application can."""
        from remora.cluster.serving import Served  # noqa: PLC0415  # above; when one comes

        operator = LocalOperator(self)
        return Served([(self.internals_anywhere, operator)], whole=operator)

    async def _check_whole(self, *, owned: bool = False) -> None:
        path = self.options.path
        if path is None or self.options.shard is not None:
            return

        def check() -> None:
            try:
                if owned:
                    end_division(path)
                if not is_dividing(path):
                    check_unsharded(path)
            except OSError as e:
                raise unusable_directory(path, e) from e

        await run_in_thread(check)

    @asynccontextmanager
    async def _open_journal(self) -> AsyncIterator[Journal]:
        options = self.options
        given = [one for one in (options.journal, options.store) if one is not None]
        self._given_closed = not all(callable(one) for one in given)
        journal: Journal
        if options.journal is not None:
            journal = await _open_given(options.journal)
        elif options.config.journal.dsn.reveal():
            journal = await open_database(options.config.journal, options.path)
        elif options.path is None:
            from remora.storage.memory import MemoryJournal  # noqa: PLC0415  # preloaded

            journal = MemoryJournal()
        else:
            from remora.storage.sqlite.journal import SqliteJournal  # noqa: PLC0415  # preloaded

            config = options.config.journal
            journal = await SqliteJournal.open(
                options.path / "journal.db",
                durability=config.durability,
                max_batch_writes=config.max_batch_writes,
                max_wal_mb=config.max_wal_mb,
                first_settings=None if options.shard is None else options.shard.settings,
            )
        try:
            yield journal
        finally:
            with anyio.CancelScope(shield=True):
                for close in self._closers:
                    try:
                        await close()
                    except Exception:
                        _logger.exception("close_failed")  # unfinished jobs are in the journal
                await journal.aclose()

    async def _run(
        self, host: Host, internals: Internals, left: Sequence[Job], workers: Workers | None
    ) -> None:
        """Run all background tasks until the host is told to stop."""
        try:
            async with anyio.create_task_group() as tasks:
                internals.turns.start(tasks)
                self._start(internals, left, cast("anyio.abc.TaskGroup", HostTasks(tasks)))
                self._watch = LoopWatch(host.home.loop, internals.clock.monotonic)
                self.holder.open(internals.parts, internals.journal.check_lease)
                tasks.start_soon(self._end_when_lost, host, internals, name="remora.ownership")
                host.mark_open()
                if workers is not None:
                    await workers.start()
                await host.wait_for_stop()
                drain_s = self.options.config.supervisor.drain_s
                if workers is not None:
                    await host.drain(
                        partial(workers.drain, drain_s, PARTING_S), drain_s + PARTING_S
                    )
                internals.turns.close(RuntimeClosed("the runtime is closing; no new turns begin"))
                with anyio.CancelScope(shield=True):  # each is bounded in time
                    await internals.turns.interrupt()
                internals.registry.stop_intake()
                if not self.holder.lost:
                    await host.drain(internals.registry.drain, drain_s)
                # callers get an answer before what would give it ends
                self._abandon(
                    internals,
                    RuntimeClosed(
                        "the runtime closed before this was done; the next start continues what is "
                        "in the journal"
                    ),
                )
                tasks.cancel_scope.cancel()
        except (KeyboardInterrupt, SystemExit, anyio.get_cancelled_exc_class()):
            raise
        except BaseException:
            # A bug in remora must not end the application. Acknowledged data is in the journal.
            _logger.exception("background_failed")
        finally:
            self._abandon(
                internals,
                RuntimeClosed(
                    "remora's background work has ended; if it was not closed, the log says why"
                ),
            )

    def _start(self, internals: Internals, left: Sequence[Job], tasks: anyio.abc.TaskGroup) -> None:
        options, index = self.options, internals.index
        tasks.start_soon(internals.journal.run, name="remora.journal.writer")
        internals.registry.start(tasks)
        internals.supervisor.submit(left)
        internals.supervisor.start(tasks)
        internals.schedule.start(tasks)
        internals.eraser.start(tasks)
        internals.warm_up.start(tasks)
        if internals.recall is not None:
            internals.recall.start(tasks)
            flush = partial(
                flush_unindexed,
                internals.journal,
                internals.registry,
                options.clock,
                options.config.activation.idle_s,
            )
            tasks.start_soon(flush, name="remora.unindexed")
        index.start(tasks)
        if internals.recall is not None and options.warm_up:
            internals.warm_up.begin()

    async def _end_when_lost(self, host: Host, internals: Internals) -> None:
        """End at once: what is in memory may be older than what the new owner stores."""
        await internals.journal.wait_until_lost()
        lost = internals.journal.statistics().lost
        self.holder.close(lost)
        self._abandon(internals, OwnershipLost(lost))
        host.request_stop()

    def _abandon(self, internals: Internals, error: RuntimeClosed | OwnershipLost) -> None:
        internals.turns.close(error)
        internals.registry.stop_intake()
        internals.registry.abandon(error)
        internals.supervisor.abandon(error)
        internals.eraser.abandon()
        self.holder.close()


def _require_one_shard(options: Options) -> None:
    """Check that a runtime of its own is not asked for a memory that nodes share in shards."""
    shards = options.config.cluster.shards
    alone = options.journal is None and options.shard is None
    if alone and shards not in {None, 1} and options.config.journal.dsn.reveal():
        raise ConfigError(
            f"cluster.shards says {shards}, and a Runtime has its journal in PostgreSQL in one "
            "piece: start `remora serve` with this configuration and use remora.connect, or leave "
            "cluster.shards out",
            key="cluster.shards",
        )


def _runs_asyncio() -> bool:
    import asyncio  # noqa: PLC0415  # `import remora` does without it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _require_asyncio() -> None:
    """Check the event loop: aiosqlite and LanceDB wait for futures of asyncio."""
    if not _runs_asyncio():
        raise InvalidInput(
            "a memory directory and long-term memory need asyncio's event loop, or uvloop's: run "
            "the program with asyncio.run(main()), or anyio.run(main, backend='asyncio')"
        )


async def _open_given(journal: JournalLike) -> Journal:
    return await journal() if callable(journal) else journal
