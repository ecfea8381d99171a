"""A memory in shards, as one runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self, TypeVar

import anyio
import msgspec

from remora.api.base import BaseRuntime, holder_of
from remora.api.build import Internals
from remora.api.dead_letters import check_droppable, no_dead_letter, pick_dead_letters
from remora.api.health import Health, merge_health
from remora.api.runtime import Runtime
from remora.api.shards import make_shards, opened_parts, options_of
from remora.api.status import RuntimeStatistics, TellsStatus, add_figures, answering, make_status
from remora.cluster.serving import Served
from remora.cluster.sharding import WHOLE, ShardedDirectory, Share, choose_layout, shard_of
from remora.cluster.transfers import LocalTransfers, WholeTransfers
from remora.config import Config
from remora.errors import ConfigError, InvalidInput, RuntimeClosed
from remora.ids import validate_id
from remora.runtime.concurrency import Progress, map_concurrently
from remora.runtime.jobs import Job
from remora.services.answering import PARTING_S, AnswerThread, Workers
from remora.services.arguments import MAX_IDS, collect
from remora.services.parts import PartsHolder
from remora.services.rebuild import ReembedProgress
from remora.storage.erasure_notes import WaitingErasure
from remora.storage.layout import ShardLayout
from remora.storage.ports import LongTermStatistics

# -- one answer from the answers of all shards -----------------------------------------------------

Named = TypeVar("Named", Job, WaitingErasure)


def add_progress(rebuilds: Sequence[ReembedProgress | None]) -> ReembedProgress | None:
    """The progress of all rebuilds; None if nothing is left to do anywhere."""
    running = [one for one in rebuilds if one is not None]
    return add_figures(running) if running else None


class ShardIds:
    """Ids of jobs and erasures that say which shard they are of: its number, a slash, and the id.

    Args:
        shards: how many there are; ids of a single one stay as they are.
        share: whose they are that listings come of, and that ids may be of.
    """

    def __init__(self, shards: int, share: Share = WHOLE) -> None:
        self._shards = shards
        self._own = share.of(shards)

    def name(self, listings: Sequence[Sequence[Named]]) -> list[Named]:
        """Return those of each shard, in one list, with the ids of the whole memory."""
        if self._shards == 1:
            return list(listings[0])
        replace = msgspec.structs.replace
        return [
            replace(one, id=self.name_one(number, one.id))
            for number, listing in zip(self._own, listings, strict=True)
            for one in listing
        ]

    def name_one(self, number: int, id_: str) -> str:
        """The id of the whole memory for one of a shard's own."""
        return id_ if self._shards == 1 else f"{number}/{id_}"

    def split(self, ids: Sequence[str]) -> dict[int, list[str]]:
        """The shards' own ids, by shard.

        Raises:
            NoDeadLetter: an id names no shard.
            InvalidInput: an id is no text, or there are too many.
        """
        found: dict[int, list[str]] = {}
        unknown = []
        for id_ in dict.fromkeys(collect(ids, "ids", validate_id, most=MAX_IDS)):
            number, slash, own = id_.partition("/") if self._shards > 1 else ("0", "/", id_)
            if slash and number.isdecimal() and number.isascii() and int(number) in self._own:
                found.setdefault(int(number), []).append(own)
            else:
                unknown.append(id_)
        if unknown:
            raise no_dead_letter(unknown)
        return found


Answer = TypeVar("Answer")


class ShardedOperator:
    """`remora.api.operator.Operator` of all shards, as one.

    Args:
        shards: by number.
        transfers: exports, imports and copies all of them.
        ids: names their jobs and erasures.
    """

    def __init__(
        self, shards: Mapping[int, BaseRuntime], transfers: WholeTransfers, ids: ShardIds
    ) -> None:
        self._shards = shards
        self._ids = ids
        self.backup = transfers.backup
        self.export = transfers.export
        self.import_ = transfers.import_

    @property
    def reembedding(self) -> ReembedProgress | None:
        """See `remora.Runtime`, as for all that follows."""
        return add_progress([shard.reembedding for shard in self._shards.values()])

    def statistics(self) -> RuntimeStatistics:  # noqa: D102
        return add_figures([shard.statistics() for shard in self._shards.values()])

    def health(self) -> Health:  # noqa: D102
        return merge_health({number: one.health() for number, one in self._shards.items()})

    def reschedule(self, task: str, seconds: float) -> None:  # noqa: D102
        for shard in self._shards.values():
            shard.reschedule(task, seconds)

    def erasures(self, user: str | None = None) -> list[WaitingErasure]:  # noqa: D102
        return self._ids.name([shard.erasures(user) for shard in self._shards.values()])

    async def ready(self, *, timeout_s: float | None = None) -> None:  # noqa: D102
        await self.each(lambda shard: shard.ready(timeout_s=timeout_s))

    async def settle(self) -> None:  # noqa: D102
        await self.each(lambda shard: shard.settle())

    async def long_term_statistics(self) -> LongTermStatistics:  # noqa: D102
        return add_figures(await self.each(lambda shard: shard.long_term_statistics()))

    async def reembedded(self, progress: Progress | None = None) -> None:  # noqa: D102
        told: dict[int, tuple[int, int]] = {}

        async def wait(shard: BaseRuntime) -> None:
            def tell(done: int, total: int) -> None:
                told[id(shard)] = (done, total)
                if progress is not None:
                    progress(sum(one for one, _ in told.values()), sum(n for _, n in told.values()))

            await shard.reembedded(None if progress is None else tell)

        await self.each(wait)

    async def dead_letters(self) -> list[Job]:  # noqa: D102
        return self._ids.name(await self.each(lambda shard: shard.dead_letters()))

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:  # noqa: D102
        if ids is None:
            return sum(await self.each(lambda shard: shard.retry_dead_letters()))
        found = await self._find_dead_letters(ids)
        return sum([await self._shards[n].retry_dead_letters(own) for n, own in found.items()])

    async def drop_dead_letters(self, ids: Sequence[str]) -> int:  # noqa: D102
        found = await self._find_dead_letters(ids, check=check_droppable)
        return sum([await self._shards[n].drop_dead_letters(own) for n, own in found.items()])

    async def _find_dead_letters(
        self, ids: Sequence[str], check: Callable[[Job], None] | None = None
    ) -> dict[int, list[str]]:
        """Ids of dead letters, by shard, all of them sound: each shard changes its own."""
        wanted = self._ids.split(ids)
        for job in pick_dead_letters(ids, await self.dead_letters()):
            if check is not None:
                check(job)
        return wanted

    async def retry_erasures(self) -> list[WaitingErasure]:  # noqa: D102
        return self._ids.name(await self.each(lambda shard: shard.retry_erasures()))

    async def each(self, ask: Callable[[BaseRuntime], Awaitable[Answer]]) -> list[Answer]:
        """Return what each shard answers, by number; they are asked together."""
        return await map_concurrently(ask, list(self._shards.values()))


class ShardedRuntime(BaseRuntime):
    """A memory in shards, with the methods of `remora.Runtime`.

    Everything of a user is in one shard, and so is everything of a shared scope. What concerns the
    whole memory asks all shards, and gives one answer: figures are added, listings are merged.

    Args:
        shards: by number; all that are in `share`, in the order in which the memory was divided.
        transfers: exports, imports and copies all of them; None if they are of this process.
        directory: owned while it is open; None if somebody else sees to that.
        share: which shards of the memory these are; other processes own the others.
        of: how many shards the memory has; None for as many as are given.
        control: answers other processes for the memory; None for a socket of its own.
    """

    def __init__(
        self,
        shards: Sequence[BaseRuntime],
        *,
        transfers: WholeTransfers | None = None,
        directory: ShardedDirectory | None = None,
        share: Share = WHOLE,
        of: int | None = None,
        control: TellsStatus | None = None,
    ) -> None:
        if not shards:
            raise ConfigError("a memory has at least one shard")
        self.shards = tuple(shards)
        """By number: for figures of each, for instance."""
        if transfers is None:
            local = [shard for shard in shards if isinstance(shard, Runtime)]
            if len(local) != len(shards):
                raise ConfigError("transfers= is missing, which exports and imports all shards")
            transfers = LocalTransfers(local)
        self._directory = directory
        self._share = share
        self.count = of or len(shards)
        """How many shards the memory has; other processes may own some of them."""
        numbered = dict(zip(share.of(self.count), self.shards, strict=True))
        self._all = ShardedOperator(numbered, transfers, ShardIds(self.count, share))
        self._life: _Life | None = None
        self._control = control
        self._answering = AsyncExitStack()
        self._workers: Workers | None = None

    @classmethod
    def of(cls, runtime: Runtime, *, shards: int | None = None, share: Share = WHOLE) -> Self:
        """The shards of the memory in a runtime's directory. Reads ``shards.json``: it blocks.

        Args:
            runtime: not opened; says what each shard is made of. They share its models.
            shards: how many there are to be; None for those that there are, or `DEFAULT_SHARDS`.
            share: which of them.

        Raises:
            InvalidInput: `shards` is out of range, or the memory has another number of them.
            ConfigError: the runtime was given a journal or a store, and there are several shards.
            DirectoryUnusable: ``shards.json`` cannot be used.
        """
        options = options_of(runtime)
        path = None if options.path is None else options.path.absolute()
        if path is None:
            layout = ShardLayout.new(shards) if shards and shards > 1 else None
        else:
            layout = choose_layout(path, shards)
        if layout is None:
            return cls([runtime])
        every = make_shards(runtime, layout)
        made = [every[number] for number in share.of(layout.shards)]
        directory = None
        if path is not None:
            wait_s = options.config.lock_wait_s
            directory = ShardedDirectory(
                path, layout, wait_s=wait_s, clock=options.clock, shared=share != WHOLE
            )
        transfers = LocalTransfers(made, path, layout)
        return cls(
            made,
            transfers=transfers,
            directory=directory,
            share=share,
            of=layout.shards,
            control=options.control,
        )

    def __repr__(self) -> str:
        where = "" if self.path is None else f"{str(self.path)!r}, "
        return f"ShardedRuntime({where}{len(self.shards)} shards)"

    # -- of the base -------------------------------------------------------------------------------

    @property
    def _holders(self) -> Sequence[PartsHolder]:
        return [holder_of(shard) for shard in self.shards]

    def _holder_of(self, user: str) -> PartsHolder:
        number, own = shard_of(user, self.count), self._share.of(self.count)
        if number not in own:
            raise InvalidInput(f"another process owns shard {number} of the memory: ask that one")
        return holder_of(self.shards[own.index(number)])

    @property
    def _operator(self) -> ShardedOperator:
        return self._all

    @property
    def path(self) -> Path | None:
        """The memory directory, which has one for each shard; None in memory."""
        if self._directory is not None:
            return self._directory.path
        return self.shards[0].path if len(self.shards) == 1 else None

    @property
    def config(self) -> Config:
        """The configuration in force in each shard."""
        return self.shards[0].config

    # -- life --------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._life is not None:
            raise InvalidInput("the runtime is open already, or another task opens or closes it")
        life = self._life = _Life()
        thread = None
        try:
            if self._directory is not None:
                await self._directory.open()
                thread = await self._start_answering(self._directory.path)
            await life.open(self.shards[:1])  # it loads the models of all
            await life.open(self.shards[1:])
            if thread is not None:
                self._workers = await self._serve_workers(thread)
        except BaseException:
            with anyio.CancelScope(shield=True):
                try:
                    await self._close_shards()
                finally:
                    self._life = None
            raise
        finally:
            life.started.set()

    async def _close(self) -> None:
        life = self._life
        if life is None:
            return
        life.closing = True
        if life.started.is_set():
            await self._close_shards()
            self._life = None
        else:
            await self._all.each(lambda shard: shard.aclose())
            await life.started.wait()

    async def _close_shards(self) -> None:
        errors: list[Exception] = []

        async def close(shard: BaseRuntime) -> None:
            try:
                await shard.aclose()
            except Exception as e:
                errors.append(e)

        workers, self._workers = self._workers, None
        try:
            if workers is not None:
                await workers.drain(self.config.supervisor.drain_s, PARTING_S)
            await self._all.each(close)
        finally:
            with anyio.CancelScope(shield=True):
                await self._answering.aclose()
                if self._directory is not None:
                    await self._directory.close()
        if errors:
            raise errors[0]

    async def _start_answering(self, directory: Path) -> AnswerThread | None:
        local = runtimes_of(self)

        def opened() -> list[Internals]:
            parts = [one for one in map(opened_parts, local) if one is not None]
            return parts if len(parts) == len(local) else []

        share = self._share.of(self.count)
        status = make_status(self.health, opened, shards=self.count, share=share)
        answered = answering(directory, status, self._control)
        return await self._answering.enter_async_context(answered)

    async def _serve_workers(self, thread: AnswerThread) -> Workers:
        """Serve commands and the page as workers; an owner has its own."""

        def make() -> Served:
            shards = [(one.internals, one) for one in runtimes_of(self)]
            return Served(shards, whole=self, share=self._share, of=self.count)

        workers = Workers(thread, asyncio.get_running_loop(), make)
        await workers.start()
        return workers


def runtimes_of(memory: BaseRuntime) -> list[Runtime]:
    """The runtimes of a memory that is open in this process, by shard."""
    shards = memory.shards if isinstance(memory, ShardedRuntime) else (memory,)
    return [shard for shard in shards if isinstance(shard, Runtime)]


class _Life:
    """One opening of the memory, up to its closing."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.closing = False

    async def open(self, shards: Sequence[BaseRuntime]) -> None:
        if not self.closing:
            await map_concurrently(lambda shard: shard.start(), shards)
        if self.closing:
            raise RuntimeClosed("the runtime was closed while it opened")
