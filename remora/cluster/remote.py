"""The shards of a memory that another process owns: handles are made of them as of a runtime."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import anyio
import msgspec
from anyio.abc import TaskGroup

from remora.api.health import Health, HealthProblem, of_problems
from remora.api.host import Host, HostTasks
from remora.api.models import build_intake_models
from remora.api.operations import check_interval
from remora.api.options import Options
from remora.api.runtime import Runtime
from remora.api.session import Session
from remora.api.shards import options_of
from remora.api.shared import SharedScope
from remora.api.statistics import RuntimeStatistics
from remora.api.user import User
from remora.cluster.connection import Connection, Dial
from remora.cluster.ports import (
    RemoteActors,
    RemoteContexts,
    RemoteTurns,
    ShardLine,
    remote_port,
)
from remora.cluster.sharding import another_division
from remora.cluster.wire import WIRE, Hello, ShardInfo, Welcome, release
from remora.config import Config
from remora.errors import (
    InvalidInput,
    OwnershipLost,
    ProtocolMismatch,
    RemoraError,
    RuntimeClosed,
)
from remora.ids import UNKEYED, Digests, validate_id
from remora.logging import get_logger
from remora.messages import MessageLike, encode_message
from remora.runtime.jobs import Job
from remora.runtime.schedule import check_change
from remora.runtime.threads import run_in_thread
from remora.services.arguments import (
    MAX_IDS,
    check_function,
    check_page,
    check_seconds,
    collect,
)
from remora.services.intake import Intake, attachment_limits
from remora.services.parts import (
    Archive,
    OfOneProcess,
    Parts,
    PartsHolder,
    Recalls,
    Transfers,
    Work,
)
from remora.services.rebuild import ReembedProgress
from remora.storage.erasure_notes import WaitingErasure, of_user
from remora.storage.export.transfer import TransferReport
from remora.storage.listing import ListingOrder
from remora.storage.ports import JournalCounts, LongTermStatistics, UserListing
from remora.tokens import count_message

if TYPE_CHECKING:
    from remora.maintenance.backup import BackupReport

_logger = get_logger(__name__)
_FIGURES = ("statistics", "health", "erasures", "reembedding")
_FIGURES_S = 1.0
_SILENT_S = 5.0


class RemoteMemory(OfOneProcess):
    """All shards that one owner serves.

    Args:
        like: a runtime for each shard, made as the owner makes it and not opened: it says how
            messages are checked, redacted, counted and embedded, which is done in this process.
        dial: see `Connection`.
        digest: of the configuration.
        shard: the one that is asked for, if shards have owners of their own; `like` has it alone.
            Or the number of the owner, if several of this machine own the memory.
        owners: how many own the memory on this machine.
        of: how many shards the memory has; 0 to leave that to others.
        shares_files: the owner is on this machine.

    Attributes:
        shards: by number.
        transfers: exports, imports and copies all of them.
        hello: what it says of itself to an owner, with a name that is drawn when it connects.
    """

    def __init__(
        self,
        like: Sequence[Runtime],
        dial: Dial,
        *,
        digest: str = "",
        shard: int = 0,
        owners: int = 1,
        of: int = 0,
        shares_files: bool = True,
    ) -> None:
        self.shares_files = shares_files
        self.shards = tuple(RemoteShard(self, number, one) for number, one in enumerate(like))
        self.transfers = RemoteWholeTransfers(self.shards[0])
        self._options = self.shards[0].options
        self._dial = dial
        self.hello = Hello(WIRE, release(), digest, shard=shard, owners=owners, shards=of)
        self._host: Host | None = None
        self._connection: Connection | None = None
        self._opening = anyio.Lock()
        self._instances: tuple[str, ...] = ()

    async def open(self) -> Sequence[RemoteShard]:
        """Connect to the owner; returns the shards. If it is open, nothing happens.

        Raises:
            OwnerUnreachable, OwnerFailed, ProtocolMismatch: there is no owner to talk to.
            ConfigError: the owner serves another number of shards.
        """
        async with self._opening:
            if self._host is None or self._host.ended:
                self._host = Host(self._live)
                await self._host.start()
        return self.shards

    def drop(self) -> None:
        """End the connection to an owner that is none any more, and look for the next."""
        if self._connection is not None:
            self._connection.drop()

    async def aclose(self) -> None:
        """Finish what was begun, and disconnect. The owner goes on."""
        if self._host is not None and not self._host.ended:
            await self._host.stop()

    # -- in the host's task ------------------------------------------------------------------------

    async def _live(self, host: Host) -> None:
        config = self._options.config
        closers: list[Callable[[], Any]] = []
        self._instances = ()
        # drawn here: processes may be forked from the one that made this object
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        connection = Connection(
            self._dial,
            msgspec.structs.replace(self.hello, worker=name),
            config.mailbox.max_total_bytes,
            self._check,
            config.mailbox.timeout_s,
            self._greet,
        )
        self._connection = connection
        try:
            intake = await _build_intake(self._options, closers)
            welcome = await connection.open()
            async with anyio.create_task_group() as tasks:
                for shard in self.shards:
                    shard.connect(connection)
                await self._refresh_shards()
                for shard, info in zip(self.shards, welcome.shards, strict=True):
                    shard.open_parts(info, intake)
                    shard.turns.start(cast("TaskGroup", HostTasks(tasks)))
                figures = anyio.CancelScope()
                tasks.start_soon(self._refresh, figures, name="remora.figures")
                host.mark_open()
                await host.wait_for_stop()
                closed = RuntimeClosed("the runtime is closing; no new turns begin")
                with anyio.CancelScope(shield=True):  # each is bounded in time
                    for shard in self.shards:
                        shard.turns.close(closed)
                        await shard.turns.interrupt()
                figures.cancel()  # closing does not wait for them
                await host.drain(connection.drain, config.supervisor.drain_s)
                for shard in self.shards:
                    shard.holder.close()
                tasks.cancel_scope.cancel()
        finally:
            for shard in self.shards:
                shard.holder.close()
            with anyio.CancelScope(shield=True):
                await connection.aclose()
                for close in closers:
                    try:
                        await close()
                    except Exception:
                        _logger.exception("close_failed")

    async def _refresh(self, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                await anyio.sleep(_FIGURES_S)
                with suppress(RemoraError):  # there is no owner now
                    await self._refresh_shards()

    async def _refresh_shards(self) -> None:
        """Ask all shards in one frame, as are the answers."""
        await asyncio.gather(*(shard.refresh() for shard in self.shards))

    def _greet(self) -> None:
        for shard in self.shards:
            if shard.holder.phase == "open":
                shard.contexts.tell_owner()

    def _check(self, welcome: Welcome) -> None:
        if len(welcome.shards) != len(self.shards):
            raise another_division(len(welcome.shards), len(self.shards))
        instances = tuple(shard.instance for shard in welcome.shards)
        if self._instances and instances != self._instances:
            raise OwnershipLost(
                "the directory was replaced while it was in use: the owner serves another memory; "
                "close this one, and connect again"
            )
        self._instances = instances


async def _build_intake(options: Options, closers: list[Callable[[], Any]]) -> Intake:
    counter, _, embedder = await build_intake_models(options, closers)
    config = options.config
    return Intake(
        config.buffer,
        counter,
        options.clock,
        options.redact,
        options.scorer,
        embedder,
        config.state,
        attachments=attachment_limits(config),
    )


class RemoteShard:
    """One shard. It has the verbs of `remora.Runtime`.

    Args:
        memory: it is one of.
        number: which one.
        like: see `RemoteMemory`.

    Attributes:
        options: what the application passed to `like`.
        holder: gives handles its parts while it is open.
    """

    turns: RemoteTurns
    contexts: RemoteContexts
    _line: ShardLine
    _info: ShardInfo
    _refreshed_s: float

    def __init__(self, memory: RemoteMemory, number: int, like: Runtime) -> None:
        self.options = options_of(like)
        path = self.options.path
        where = "in memory" if path is None else repr(str(path))
        self.holder = PartsHolder(where, "async with remora.connect(…) as memory")
        self._figures: Mapping[str, Any] = dict.fromkeys(_FIGURES)
        self._memory = memory
        self._number = number

    def connect(self, connection: Connection) -> None:
        """Ask the owner over this connection from now on."""
        self._line = ShardLine(connection, self._number, self.options.config)

    def open_parts(self, info: ShardInfo, intake: Intake) -> None:
        """Give handles their parts; `refresh` has asked for the figures that they may want."""
        self._info = info
        config, line = self.options.config, self._line
        actors = RemoteActors(line)
        self.turns = RemoteTurns(line)
        self.contexts = RemoteContexts(line, intake.counter, info)
        archive: Archive = remote_port("archive", line)
        recalls: Recalls | None = remote_port("recalls", line) if info.recalls else None
        work: Work = remote_port("work", line)
        transfers: Transfers = remote_port("transfers", line)
        self.holder.open(
            Parts(
                config=config,
                instance=info.instance,
                intake=intake,
                actors=actors,
                appends=actors,
                contexts=self.contexts,
                turns=self.turns,
                archive=archive,
                recalls=recalls,
                work=work,
                transfers=transfers,
            )
        )

    def __repr__(self) -> str:
        return f"RemoteShard({self._number}, {self.holder.described})"

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect to the owner, with the memory's other shards."""
        await self._memory.open()
        return self

    async def aclose(self) -> None:
        """Disconnect, with the memory's other shards."""
        await self._memory.aclose()

    # -- handles -----------------------------------------------------------------------------------

    def user(self, user: str) -> User:
        """See `remora.Runtime.user`."""
        return User(self.holder, validate_id(user, "a user id"))

    def session(self, user: str, session: str) -> Session:
        """See `remora.Runtime.session`."""
        return self.user(user).session(session)

    def shared(self, name: str) -> SharedScope:
        """See `remora.Runtime.shared`."""
        return SharedScope(self.holder, validate_id(name, "a shared scope's name"))

    @property
    def config(self) -> Config:
        """The configuration of the memory."""
        return self.options.config

    def message_tokens(self, message: MessageLike) -> int:
        """See `remora.Runtime.message_tokens`."""
        return count_message(self.holder.parts.intake.counter, encode_message(message)[1])

    # -- figures, which the owner is asked for every second ----------------------------------------

    async def refresh(self) -> None:
        """Ask the owner for what `statistics`, `health`, `erasures` and `reembedding` give."""
        found = await asyncio.gather(*map(self._ask_figure, _FIGURES))
        self._figures = dict(zip(_FIGURES, found, strict=True))
        self._refreshed_s = time.monotonic()

    async def _ask_figure(self, name: str) -> Any:
        try:
            return await self._line.call(f"runtime.{name}")
        except ProtocolMismatch as e:
            return e  # a caller who needs this figure is told, and no other

    def _figure(self, name: str) -> Any:
        found = self._figures[name]
        if isinstance(found, ProtocolMismatch):
            raise ProtocolMismatch(str(found), theirs=found.theirs, ours=found.ours)
        return found

    def statistics(self) -> RuntimeStatistics:
        """See `remora.Runtime.statistics`; at most a second old."""
        self.holder.check_open()
        statistics: RuntimeStatistics = self._figure("statistics")
        return statistics

    def health(self) -> Health:
        """See `remora.Runtime.health`; at most a second old."""
        phase = self.holder.phase
        if phase != "open":
            code = "not_opened" if phase == "not opened" else "closed"
            return of_problems([HealthProblem(code, "not ready", "the runtime is not open")])
        silent_s = time.monotonic() - self._refreshed_s
        if silent_s > _SILENT_S:
            text = f"the owner of the memory has not answered for {silent_s:.0f} s"
            return of_problems([HealthProblem("owner_silent", "not ready", text)])
        health = self._figures["health"]
        if isinstance(health, ProtocolMismatch):
            problem = HealthProblem("owner_differs", "degraded", str(health))
            return of_problems([problem])
        return cast("Health", health)

    def erasures(self, user: str | None = None) -> list[WaitingErasure]:
        """See `remora.Runtime.erasures`; at most a second old."""
        if user is not None:
            validate_id(user, "a user id")
        self.holder.check_open()
        waiting: list[WaitingErasure] = self._figure("erasures")
        if user is None:
            return list(waiting)
        digests = [UNKEYED, *(Digests(key) for key in self._info.digest_keys if key)]
        return of_user(waiting, user, digests)

    @property
    def reembedding(self) -> ReembedProgress | None:
        """See `remora.Runtime.reembedding`; at most a second old."""
        progress: ReembedProgress | None = self._figure("reembedding")
        return progress

    async def counts(self, user: str | None = None) -> JournalCounts:
        """See `remora.Runtime.counts`."""
        if user is not None:
            user = validate_id(user, "a user id")
        return await self.holder.parts.archive.counts(user)

    async def users(
        self,
        *,
        prefix: str = "",
        order: ListingOrder = "name",
        limit: int | None = 100,
        after: str | None = None,
    ) -> Sequence[UserListing]:
        """See `remora.Runtime.users`."""
        page = check_page(order, prefix, limit, after)
        return await self.holder.parts.archive.users(page)

    async def long_term_statistics(self) -> LongTermStatistics:
        """See `remora.Runtime.long_term_statistics`."""
        found: LongTermStatistics = await self._verb("long_term_statistics")
        return found

    # -- work --------------------------------------------------------------------------------------

    async def ready(self, *, timeout_s: float | None = None) -> None:
        """See `remora.Runtime.ready`."""
        check_seconds(timeout_s, "timeout_s")
        await self._verb("ready", timeout_s=timeout_s)

    async def settle(self) -> None:
        """See `remora.Runtime.settle`."""
        await self._verb("settle")
        await self.refresh()

    async def reembedded(self, progress: Callable[[int, int], None] | None = None) -> None:
        """See `remora.Runtime.reembedded`."""
        check_function(progress, "progress")
        await self._verb("reembedded", on_progress=progress)
        await self.refresh()

    def reschedule(self, task: str, seconds: float) -> None:
        """See `remora.Runtime.reschedule`."""
        name, interval = check_interval(task, seconds)
        check_change(name, interval, self.statistics().schedule)
        self._line.send("runtime.reschedule", name, interval)

    async def dead_letters(self) -> list[Job]:
        """See `remora.Runtime.dead_letters`."""
        jobs: list[Job] = await self._verb("dead_letters")
        return jobs

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:
        """See `remora.Runtime.retry_dead_letters`."""
        wanted = None if ids is None else collect(ids, "ids", validate_id, most=MAX_IDS)
        count: int = await self._verb("retry_dead_letters", wanted)
        await self.refresh()
        return count

    async def drop_dead_letters(self, ids: Sequence[str]) -> int:
        """See `remora.Runtime.drop_dead_letters`."""
        wanted = collect(ids, "ids", validate_id, most=MAX_IDS)
        count: int = await self._verb("drop_dead_letters", wanted)
        await self.refresh()
        return count

    async def retry_erasures(self) -> list[WaitingErasure]:
        """See `remora.Runtime.retry_erasures`."""
        waiting: list[WaitingErasure] = await self._verb("retry_erasures")
        await self.refresh()
        return waiting

    async def call_whole(self, name: str, path: Path, **named: Any) -> Any:
        """A verb of the whole memory; the owner may have another working directory.

        Raises:
            InvalidInput: the owner may be on another machine, with other files.
        """
        if not self._memory.shares_files:
            raise InvalidInput(
                "the owner of the memory may be on another machine, whose files are others: export "
                "and import sessions (session.export, user.import_session); the journal's backup "
                "is PostgreSQL's (pg_basebackup, or pg_dump of the schemas of all shards)"
            )
        absolute = await run_in_thread(Path.absolute, path)
        return await self._verb(name, absolute, **named)

    async def _verb(self, name: str, *positional: Any, **named: Any) -> Any:
        self.holder.parts  # noqa: B018  # raises
        return await self._line.call(f"runtime.{name}", *positional, **named)


class RemoteWholeTransfers:
    """`remora.cluster.transfers.WholeTransfers`: the owner reads and writes the files."""

    def __init__(self, shard: RemoteShard) -> None:
        self._shard = shard

    async def export(
        self, path: Path, *, overwrite: bool, progress: Callable[[int, int], None] | None
    ) -> TransferReport:
        """See `remora.Runtime.export`."""
        report: TransferReport = await self._shard.call_whole(
            "export", path, overwrite=overwrite, on_progress=progress
        )
        return report

    async def import_(
        self, path: Path, *, skip_existing: bool, progress: Callable[[int, int], None] | None
    ) -> TransferReport:
        """See `remora.Runtime.import_`."""
        report: TransferReport = await self._shard.call_whole(
            "import_", path, skip_existing=skip_existing, on_progress=progress
        )
        return report

    async def backup(
        self, dest: Path, *, progress: Callable[[int, int], None] | None
    ) -> BackupReport:
        """See `remora.Runtime.backup`."""
        report: BackupReport = await self._shard.call_whole("backup", dest, on_progress=progress)
        return report
