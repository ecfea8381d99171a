"""A memory in shards, as one runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import anyio

from remora.api.batches import append_batches
from remora.api.build import Internals
from remora.api.changes import Changes
from remora.api.dead_letters import check_droppable, pick_dead_letters
from remora.api.health import Health, merge_health
from remora.api.runtime import Runtime
from remora.api.session import Session
from remora.api.shards import home_of, make_shards, opened_parts, options_of
from remora.api.shared import SharedScope
from remora.api.statistics import RuntimeStatistics, add_figures
from remora.api.status import make_answer
from remora.api.user import User
from remora.cluster.merging import (
    ShardIds,
    add_progress,
    merge_users,
)
from remora.cluster.sharding import WHOLE, ShardedDirectory, Share, choose_layout, shard_of
from remora.cluster.transfers import LocalTransfers, WholeTransfers
from remora.config import Config
from remora.errors import ConfigError, InvalidInput, RemoraError, RuntimeClosed
from remora.ids import SHARED_PREFIX, SessionKey, validate_id
from remora.messages import MessageLike, Receipt
from remora.runtime.concurrency import map_concurrently
from remora.runtime.jobs import Job
from remora.runtime.threads import run_in_thread
from remora.services.answering import AnswerThread, start_answering
from remora.services.arguments import (
    check_flag,
    check_function,
    check_int,
    check_page,
    check_path,
    check_seconds,
    collect,
)
from remora.services.deleting import DeletionReceipt
from remora.services.erasure import ErasureReceipt
from remora.services.parts import OfOneProcess
from remora.services.rebuild import ReembedProgress
from remora.storage.erasure_notes import WaitingErasure
from remora.storage.export.transfer import TransferReport
from remora.storage.layout import ShardLayout
from remora.storage.listing import ListingOrder
from remora.storage.ports import JournalCounts, LongTermStatistics, UserListing

if TYPE_CHECKING:
    from remora.maintenance.backup import BackupReport
    from remora.maintenance.export import Progress

Answer = TypeVar("Answer")


class Shard(Protocol):
    """One shard: a `remora.Runtime`, or one that is open in another process."""

    @property
    def config(self) -> Config:
        """See `remora.Runtime`, as for all that follows."""
        ...

    @property
    def reembedding(self) -> ReembedProgress | None: ...  # noqa: D102

    def user(self, user: str) -> User: ...  # noqa: D102

    def shared(self, name: str) -> SharedScope: ...  # noqa: D102

    def message_tokens(self, message: MessageLike) -> int: ...  # noqa: D102

    def statistics(self) -> RuntimeStatistics: ...  # noqa: D102

    def health(self) -> Health: ...  # noqa: D102

    def erasures(self, user: str | None = None) -> list[WaitingErasure]: ...  # noqa: D102

    def reschedule(self, task: str, seconds: float) -> None: ...  # noqa: D102

    async def start(self) -> object: ...  # noqa: D102

    async def aclose(self) -> None: ...  # noqa: D102

    async def ready(self, *, timeout_s: float | None = None) -> None: ...  # noqa: D102

    async def settle(self) -> None: ...  # noqa: D102

    async def counts(self, user: str | None = None) -> JournalCounts: ...  # noqa: D102

    async def users(  # noqa: D102
        self,
        *,
        prefix: str = "",
        order: ListingOrder = "name",
        limit: int | None = 100,
        after: str | None = None,
    ) -> Sequence[UserListing]: ...

    async def long_term_statistics(self) -> LongTermStatistics: ...  # noqa: D102

    async def reembedded(  # noqa: D102
        self, progress: Callable[[int, int], None] | None = None
    ) -> None: ...

    async def dead_letters(self) -> list[Job]: ...  # noqa: D102

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int: ...  # noqa: D102

    async def drop_dead_letters(self, ids: Sequence[str]) -> int: ...  # noqa: D102

    async def retry_erasures(self) -> list[WaitingErasure]: ...  # noqa: D102


class ShardedRuntime(OfOneProcess):
    """A memory in shards, with the methods of `remora.Runtime`.

    Everything of a user is in one shard, and so is everything of a shared scope. What concerns the
    whole memory asks all shards, and gives one answer: figures are added, listings are merged.

    Args:
        shards: by number; all that are in `share`, in the order in which the memory was divided.
        transfers: exports, imports and copies all of them; None if they are of this process.
        directory: owned while it is open; None if somebody else sees to that.
        share: which shards of the memory these are; other processes own the others.
        of: how many shards the memory has; None for as many as are given.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        *,
        transfers: WholeTransfers | None = None,
        directory: ShardedDirectory | None = None,
        share: Share = WHOLE,
        of: int | None = None,
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
        self._transfers = transfers
        self._directory = directory
        self._share = share
        self.count = of or len(shards)
        """How many shards the memory has; other processes may own some of them."""
        self._ids = ShardIds(self.count, share)
        self._life: _Life | None = None
        self._answering: AnswerThread | None = None

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
        return cls(made, transfers=transfers, directory=directory, share=share, of=layout.shards)

    def __repr__(self) -> str:
        where = "" if self.path is None else f"{str(self.path)!r}, "
        return f"ShardedRuntime({where}{len(self.shards)} shards)"

    # -- handles -----------------------------------------------------------------------------------

    def user(self, user: str) -> User:
        """See `remora.Runtime.user`."""
        name = validate_id(user, "a user id")
        return self._shard_of(name).user(name)

    def session(self, user: str, session: str) -> Session:
        """See `remora.Runtime.session`."""
        return self.user(user).session(session)

    def shared(self, name: str) -> SharedScope:
        """See `remora.Runtime.shared`."""
        scope = validate_id(name, "a shared scope's name")
        return self._shard_of(SHARED_PREFIX + scope).shared(scope)

    def _shard_of(self, user: str) -> Shard:
        return self._shard(shard_of(user, self.count))

    def _shard(self, number: int) -> Shard:
        own = self._share.of(self.count)
        if number not in own:
            raise InvalidInput(f"another process owns shard {number} of the memory: ask that one")
        return self.shards[own.index(number)]

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Open the shards, or none. See `remora.Runtime.start`."""
        if self._life is not None:
            raise InvalidInput("the runtime is open already, or another task opens or closes it")
        life = self._life = _Life()
        try:
            if self._directory is not None:
                await self._directory.open()
                self._answering = await run_in_thread(self._start_answering, self._directory.path)
            await life.open(self.shards[:1])  # it loads the models of all
            await life.open(self.shards[1:])
        except BaseException:
            with anyio.CancelScope(shield=True):
                try:
                    await self._close()
                finally:
                    self._life = None
            raise
        finally:
            life.started.set()
        return self

    async def aclose(self) -> None:
        """Close all shards. See `remora.Runtime.aclose`."""
        life = self._life
        if life is None:
            return
        life.closing = True
        if life.started.is_set():
            await self._close()
            self._life = None
        else:
            await self._each(lambda shard: shard.aclose())
            await life.started.wait()

    async def _close(self) -> None:
        errors: list[Exception] = []

        async def close(shard: Shard) -> None:
            try:
                await shard.aclose()
            except Exception as e:
                errors.append(e)

        try:
            await self._each(close)
        finally:
            answering, self._answering = self._answering, None
            with anyio.CancelScope(shield=True):
                if answering is not None:
                    await run_in_thread(answering.stop)
                if self._directory is not None:
                    await self._directory.close()
        if errors:
            raise errors[0]

    def _start_answering(self, directory: Path) -> AnswerThread | None:
        local = [shard for shard in self.shards if isinstance(shard, Runtime)]

        def opened() -> list[Internals]:
            parts = [one for one in map(opened_parts, local) if one is not None]
            return parts if len(parts) == len(local) else []

        async def forget(user: str, session: str | None) -> ErasureReceipt:
            who = self.user(user)
            return await (who if session is None else who.session(session)).forget()

        async def delete(key: SessionKey, ids: Sequence[str]) -> DeletionReceipt:
            return await self.session(key.user, key.session).delete(ids)

        changes = Changes(
            lambda: home_of(local[0]),
            retry=self.retry_dead_letters,
            drop=self.drop_dead_letters,
            forget=forget,
            delete=delete,
        )
        answer = make_answer(
            self.health,
            opened,
            changes=changes,
            shards=self.count,
            share=self._share.of(self.count),
        )
        return start_answering(directory, answer, self._share.number)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def ready(self, *, timeout_s: float | None = None) -> None:
        """See `remora.Runtime.ready`."""
        check_seconds(timeout_s, "timeout_s")
        await self._each(lambda shard: shard.ready(timeout_s=timeout_s))

    async def settle(self) -> None:
        """See `remora.Runtime.settle`."""
        await self._each(lambda shard: shard.settle())

    # -- state -------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The memory directory, which has one for each shard; None in memory."""
        if self._directory is not None:
            return self._directory.path
        return getattr(self.shards[0], "path", None) if len(self.shards) == 1 else None

    @property
    def config(self) -> Config:
        """The configuration in force in each shard."""
        return self.shards[0].config

    def message_tokens(self, message: MessageLike) -> int:
        """See `remora.Runtime.message_tokens`."""
        return self.shards[0].message_tokens(message)

    # -- figures -----------------------------------------------------------------------------------

    def statistics(self) -> RuntimeStatistics:
        """Return those of all shards, added.

        `shards` has those of each. See `Runtime.statistics`.
        """
        return add_figures([shard.statistics() for shard in self.shards])

    def health(self) -> Health:
        """That of all shards, as one. See `Runtime.health`."""
        numbers = self._share.of(self.count)
        return merge_health(
            {number: one.health() for number, one in zip(numbers, self.shards, strict=True)}
        )

    async def counts(self, user: str | None = None) -> JournalCounts:
        """See `remora.Runtime.counts`."""
        if user is not None:
            name = validate_id(user, "a user id")
            return await self._shard_of(name).counts(name)
        return add_figures(await self._each(lambda shard: shard.counts()))

    async def users(
        self,
        *,
        prefix: str = "",
        order: ListingOrder = "name",
        limit: int | None = 100,
        after: str | None = None,
    ) -> Sequence[UserListing]:
        """See `remora.Runtime.users`; a cursor is right for all shards."""
        page = check_page(order, prefix, limit, after)
        listings = await self._each(
            lambda shard: shard.users(prefix=prefix, order=order, limit=limit, after=after)
        )
        return merge_users(listings, page)

    async def long_term_statistics(self) -> LongTermStatistics:
        """Return those of all shards, added. See `remora.Runtime.long_term_statistics`."""
        return add_figures(await self._each(lambda shard: shard.long_term_statistics()))

    # -- rebuilding and periodic tasks -------------------------------------------------------------

    @property
    def reembedding(self) -> ReembedProgress | None:
        """Progress of all shards, added. See `remora.Runtime.reembedding`."""
        return add_progress([shard.reembedding for shard in self.shards])

    async def reembedded(self, progress: Callable[[int, int], None] | None = None) -> None:
        """See `remora.Runtime.reembedded`."""
        check_function(progress, "progress")
        told: dict[int, tuple[int, int]] = {}

        async def wait(shard: Shard) -> None:
            def tell(done: int, total: int) -> None:
                told[id(shard)] = (done, total)
                if progress is not None:
                    progress(sum(one for one, _ in told.values()), sum(n for _, n in told.values()))

            await shard.reembedded(None if progress is None else tell)

        await self._each(wait)

    def reschedule(self, task: str, seconds: float) -> None:
        """See `remora.Runtime.reschedule`."""
        for shard in self.shards:
            shard.reschedule(task, seconds)

    # -- dead letters and erasures -----------------------------------------------------------------

    async def dead_letters(self) -> list[Job]:
        """Return those of all shards, by shard.

        Ids say which. See `remora.Runtime.dead_letters`.
        """
        return self._ids.name(await self._each(lambda shard: shard.dead_letters()))

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:
        """See `remora.Runtime.retry_dead_letters`."""
        if ids is None:
            return sum(await self._each(lambda shard: shard.retry_dead_letters()))
        found = await self._find_dead_letters(ids)
        return sum([await self._shard(n).retry_dead_letters(own) for n, own in found.items()])

    async def drop_dead_letters(self, ids: Sequence[str]) -> int:
        """See `remora.Runtime.drop_dead_letters`."""
        found = await self._find_dead_letters(ids, check=check_droppable)
        return sum([await self._shard(n).drop_dead_letters(own) for n, own in found.items()])

    async def _find_dead_letters(
        self, ids: Sequence[str], check: Callable[[Job], None] | None = None
    ) -> dict[int, list[str]]:
        """Ids of dead letters, by shard, all of them sound: each shard changes its own."""
        wanted = self._ids.split(ids)
        for job in pick_dead_letters(ids, await self.dead_letters()):
            if check is not None:
                check(job)
        return wanted

    def erasures(self, user: str | None = None) -> list[WaitingErasure]:
        """Return those of all shards, by shard; ids say which. See `remora.Runtime.erasures`."""
        if user is not None:
            validate_id(user, "a user id")
        return self._ids.name([shard.erasures(user) for shard in self.shards])

    async def retry_erasures(self) -> list[WaitingErasure]:
        """See `remora.Runtime.retry_erasures`."""
        return self._ids.name(await self._each(lambda shard: shard.retry_erasures()))

    # -- many sessions, and all --------------------------------------------------------------------

    async def append_many(
        self,
        batches: Iterable[tuple[Session, MessageLike | Iterable[MessageLike], str | None]],
        *,
        concurrency: int = 64,
    ) -> list[Receipt | RemoraError]:
        """See `remora.Runtime.append_many`."""
        check_int(concurrency, "concurrency", low=1)
        self.shards[0].message_tokens(_ANY)  # raises if it is not open; a refused batch does not
        return await append_batches(collect(batches, "batches"), concurrency=concurrency)

    async def export(
        self, path: str | Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """All shards as one export. See `remora.Runtime.export`."""
        target = check_path(path, "path")
        check_flag(overwrite, "overwrite")
        check_function(progress, "progress")
        return await self._transfers.export(target, overwrite=overwrite, progress=progress)

    async def import_(
        self, path: str | Path, *, skip_existing: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """Import into the shards that its users are in. See `remora.Runtime.import_`."""
        source = check_path(path, "path")
        check_flag(skip_existing, "skip_existing")
        check_function(progress, "progress")
        return await self._transfers.import_(source, skip_existing=skip_existing, progress=progress)

    async def backup(
        self, dest: str | Path, *, progress: Callable[[int, int], None] | None = None
    ) -> BackupReport:
        """Copy all shards, each as of one moment. See `remora.Runtime.backup`."""
        target = check_path(dest, "dest")
        check_function(progress, "progress")
        return await self._transfers.backup(target, progress=progress)

    async def _each(self, ask: Callable[[Shard], Awaitable[Answer]]) -> list[Answer]:
        """Return what each shard answers, by number; they are asked together."""
        return await map_concurrently(ask, self.shards, concurrency=len(self.shards))


class _Life:
    """One opening of the memory, up to its closing."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.closing = False

    async def open(self, shards: Sequence[Shard]) -> None:
        if not self.closing:
            await map_concurrently(
                lambda shard: shard.start(), shards, concurrency=len(shards) or 1
            )
        if self.closing:
            raise RuntimeClosed("the runtime was closed while it opened")


_ANY: MessageLike = {"role": "user", "content": ""}
