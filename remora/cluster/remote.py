"""The shards of a memory that another process owns: handles are made of them as of a runtime."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec
from anyio.abc import TaskGroup

from remora.actors.session.messages import Append, Load, Replace, Snapshot, TurnView
from remora.actors.user.messages import Synopsis
from remora.api.base import BaseRuntime
from remora.api.health import Health, HealthProblem, of_problems
from remora.api.host import Host, HostTasks
from remora.api.options import Options, build_intake_models
from remora.api.runtime import Runtime
from remora.api.shards import options_of
from remora.api.status import RuntimeStatistics
from remora.cluster.calls import CALLS
from remora.cluster.connection import Connection, Dial
from remora.cluster.router import repeat_of
from remora.cluster.sharding import another_division
from remora.cluster.transfers import WholeTransfers
from remora.cluster.wire import (
    WIRE,
    Ask,
    Call,
    Hello,
    Returned,
    ShardInfo,
    UnreadableCall,
    Welcome,
    release,
)
from remora.config import Config
from remora.errors import (
    InvalidInput,
    MailboxFull,
    OwnershipLost,
    ProtocolMismatch,
    RemoraError,
    RuntimeClosed,
)
from remora.ids import UNKEYED, Digests, SessionKey, UserKey
from remora.logging import get_logger
from remora.messages import Entry, Receipt
from remora.recall.attached import attach
from remora.recall.context import Context
from remora.recall.planner import show_snapshot
from remora.recall.shown import ShownSummaries, shown_digests
from remora.runtime.actor import Asked, Reply
from remora.runtime.concurrency import Progress
from remora.runtime.jobs import Job
from remora.runtime.promise import AwaitablePromise, new_promise
from remora.runtime.schedule import check_change
from remora.runtime.threads import run_in_thread
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
from remora.services.turns import TurnStreams
from remora.storage.erasure_notes import WaitingErasure, of_user
from remora.storage.export.transfer import TransferReport
from remora.storage.ports import LongTermStatistics
from remora.tokens import TokenCounter

if TYPE_CHECKING:
    from remora.maintenance.backup import BackupReport


# -- the ports of `remora.services.parts`, for a shard that another process owns -------------------

_NEVER = float("inf")
_RESENT = 256  # summaries that a new owner hears of at once


class ShardLine:
    """Requests to one shard.

    Args:
        connection: to the owner.
        shard: its number.
        config: of the memory.
    """

    def __init__(self, connection: Connection, shard: int, config: Config) -> None:
        self.shard = shard
        self.config = config
        self.timeout_s = config.mailbox.timeout_s
        self._connection = connection
        self._router = connection.router

    async def ask(
        self,
        key: SessionKey | UserKey,
        message: Asked[Reply],
        *,
        size: int = 0,
        timeout_s: float | None = None,
        patience_s: float = 0.0,
    ) -> Reply:
        """The reply of an actor; `patience_s`: what the owner may take beyond the deadline."""
        router = self._router
        number = router.next_number()
        promise = new_promise()
        seconds = self.timeout_s if timeout_s is None else timeout_s
        session = key[1] if len(key) > 1 else ""
        router.submit(
            Ask(number, self.shard, key[0], session, cast("Any", message), size, timeout_s),
            promise,
            self._connection.now() + seconds + patience_s,
            repeat=repeat_of(message),
            size=size,
        )
        return cast("Reply", await self._wait(number, promise))

    def post(self, key: SessionKey | UserKey, message: Any) -> bool:
        """Tell an actor something, without a reply."""
        session = key[1] if len(key) > 1 else ""
        request = Ask(0, self.shard, key[0], session, message)
        try:
            self._router.submit(request, None, _NEVER, repeat="never")
        except MailboxFull:
            return False
        return True

    async def call(
        self,
        name: str,
        *positional: Any,
        on_progress: Callable[[int, int], object] | None = None,
        **named: Any,
    ) -> Any:
        """Return what a port's method, or a verb of the runtime, returns.

        See `remora.cluster.calls`.
        """
        call = CALLS[name]
        data = await call.encode_arguments_slowly(*positional, **named)
        router = self._router
        number = router.next_number()
        promise = new_promise()
        router.submit(
            Call(number, self.shard, name, data),
            promise,
            _NEVER,
            repeat=call.repeat,
            size=len(data),
            on_progress=on_progress,
        )
        returned: Returned = await self._wait(number, promise)
        try:
            return await call.decode_result(returned.value)
        except UnreadableCall as e:
            raise ProtocolMismatch(
                f"the owner of the memory is of another release than this process (remora "
                f"{release()}): {e}; upgrade the older one of the two",
                theirs=WIRE,
                ours=WIRE,
            ) from e

    async def _wait(self, number: int, promise: AwaitablePromise) -> Any:
        try:
            return await promise.answer
        except BaseException:
            self._router.cancel(number)
            raise

    def send(self, name: str, *positional: Any, first: bool = False) -> None:
        """Call something whose result nobody waits for; `first`: before all that waits.

        It is not refused, however much waits: nobody would send it again, and a turn that does not
        end keeps all later ones waiting. What is sent is small, and follows an answer.
        """
        data = CALLS[name].encode_arguments(*positional)
        request = Call(0, self.shard, name, data)
        self._router.submit(
            request, None, _NEVER, repeat="never", size=len(data), first=first, always=True
        )


class RemoteActors:
    """`remora.services.parts.Actors` and `Appends`."""

    def __init__(self, line: ShardLine) -> None:
        self.ask = line.ask
        self.post = line.post
        buffer = line.config.buffer
        self._patience_s = buffer.overdraft_wait_s if buffer.overdraft == "wait" else 0.0

    async def append(self, key: SessionKey, request: Append, timeout_s: float | None) -> Receipt:
        """See `remora.Session.append`."""
        return await self.ask(
            key, request, size=request.size, timeout_s=timeout_s, patience_s=self._patience_s
        )

    def begin(
        self, key: SessionKey, request: Append, timeout_s: float | None
    ) -> Awaitable[Receipt]:
        """See `remora.services.appending.LocalAppends`: the owner keeps the order."""
        return self.append(key, request, timeout_s)

    async def replace(self, key: SessionKey, request: Replace) -> Receipt:
        """See `remora.Session.load_state_dict`."""
        return await self.ask(key, request, size=request.size)


class RemoteContexts:
    """`remora.services.parts.Contexts`: a conversation alone is put together here.

    Args:
        line: to the shard.
        counter: counts tokens.
        info: what the owner says of the shard.
    """

    def __init__(self, line: ShardLine, counter: TokenCounter, info: ShardInfo) -> None:
        self._line = line
        self._counter = counter
        self._blocks = info.blocks
        self._shown = ShownSummaries(partial(line.send, "contexts.note_summaries"))

    async def load(
        self,
        key: SessionKey,
        budget: int,
        query: str | None = None,
        *,
        override: Sequence[Entry] | None = None,
        about: Sequence[Entry] | None = None,
        at: int | None = None,
        turn: TurnView | None = None,
        timeout_s: float | None = None,
    ) -> Context:
        """See `remora.Session.load`."""
        alone = query is None and override is None and at is None and not self._blocks
        if alone and (turn is None or not turn.at):
            request = Load(budget) if turn is None else Load(budget, turn.without, turn.sid)
            snapshot: Snapshot = await self._line.ask(key, request, timeout_s=timeout_s)
            config = self._line.config.context
            most = int(self._line.config.attachments.context_mb * (1 << 20))
            context = await show_snapshot(
                snapshot,
                self._counter,
                config,
                budget,
                prefix_changed=snapshot.prefix_changed,
                attach=lambda shown: attach(shown, key.user, self._fetch, most),
            )
            if context.summary is not None:
                first, count = snapshot.pinned, context.sources.summary.count
                shown = context.messages[first : first + count]
                self._shown.note(key.user, shown_digests(shown))
            return context
        loaded: Context = await self._line.call(
            "contexts.load",
            key,
            budget,
            query,
            override=override,
            about=about,
            at=at,
            turn=turn,
            timeout_s=timeout_s,
        )
        return loaded

    async def _fetch(self, user: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = await self._line.call("archive.blobs", user, list(digests))
        return found

    async def synopsis(self, user: str, *, refresh: bool, timeout_s: float | None) -> Synopsis:
        """See `remora.User.synopsis`."""
        synopsis: Synopsis = await self._line.call(
            "contexts.synopsis", user, refresh=refresh, timeout_s=timeout_s
        )
        return synopsis

    def note_summaries(self, user: str, digests: Sequence[bytes]) -> None:
        """Remember that the user was shown these summaries; the owner hears of each once."""
        self._shown.note(user, digests)

    def tell_owner(self) -> None:
        """Tell an owner that may be a new one of the newest summaries that were shown.

        Of older ones it hears when they are shown again.
        """
        for user, digests in self._shown.keep(_RESENT).items():
            self._line.send("contexts.note_summaries", user, digests, first=True)

    async def find_summaries(self, user: str, digests: Sequence[bytes]) -> Sequence[bool]:
        """Which of these texts the user was shown as summaries, by whichever process."""
        found: list[bool] = await self._line.call("contexts.find_summaries", user, digests)
        return found


class RemoteTurns(TurnStreams):
    """`remora.services.parts.Turns`: the owner has the lines, of the sessions of all workers."""

    def __init__(self, line: ShardLine) -> None:
        super().__init__()
        self._line = line
        self._closed = ""

    async def begin(self, key: SessionKey, *, wait: bool = True) -> int:
        """Begin a turn, when those before it have ended; returns its number, which `end` takes."""
        if self._closed:
            raise RuntimeClosed(self._closed)
        number: int = await self._line.call("turns.begin", key, wait=wait)
        return number

    def end(self, key: SessionKey, number: int) -> None:
        """End this turn, if it runs; the next in line begins."""
        self._streams.pop(key, None)
        self._line.send("turns.end", key, number)

    def close(self, error: RuntimeClosed) -> None:
        """Refuse later turns."""
        self._closed = str(error)


def remote_port(name: str, line: ShardLine) -> Any:
    """Return a port of `remora.services.parts` whose methods the owner performs.

    Each is a call of `remora.cluster.calls`.

    Args:
        name: of the port in calls.
        line: to the shard.
    """
    calls = [call for call in CALLS if call.startswith(f"{name}.")]
    return SimpleNamespace(
        **{call.removeprefix(f"{name}."): partial(line.call, call) for call in calls}
    )


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
        self.transfers: WholeTransfers = self.shards[0].operator
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
        await asyncio.gather(*(shard.operator.refresh() for shard in self.shards))

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


class RemoteShard(BaseRuntime):
    """One shard.

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

    def __init__(self, memory: RemoteMemory, number: int, like: Runtime) -> None:
        self.options = options_of(like)
        path = self.options.path
        where = "in memory" if path is None else repr(str(path))
        self.holder = PartsHolder(where, "async with remora.connect(…) as memory")
        self.operator = RemoteOperator(self.holder, shares_files=memory.shares_files)
        self._memory = memory
        self._number = number

    def connect(self, connection: Connection) -> None:
        """Ask the owner over this connection from now on."""
        self._line = self.operator.line = ShardLine(connection, self._number, self.options.config)

    def open_parts(self, info: ShardInfo, intake: Intake) -> None:
        """Give handles their parts; `RemoteOperator.refresh` has asked for the figures."""
        self.operator.info = info
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

    @property
    def path(self) -> Path | None:
        """The memory directory; None if there is none."""
        return self.options.path

    @property
    def config(self) -> Config:
        """The configuration of the memory."""
        return self.options.config

    @property
    def _holders(self) -> Sequence[PartsHolder]:
        return (self.holder,)

    @property
    def _operator(self) -> RemoteOperator:
        return self.operator

    async def _open(self) -> None:
        await self._memory.open()  # with its other shards

    async def _close(self) -> None:
        await self._memory.aclose()


class RemoteOperator:
    """`remora.api.operator.Operator` of a shard that another process owns.

    The owner is asked every second for what `statistics`, `health`, `erasures` and `reembedding`
    give.

    Args:
        holder: of the shard.
        shares_files: the owner is on this machine.

    Attributes:
        line: to the shard.
        info: what the owner says of it.
    """

    line: ShardLine
    info: ShardInfo
    _refreshed_s: float

    def __init__(self, holder: PartsHolder, *, shares_files: bool) -> None:
        self._holder = holder
        self._shares_files = shares_files
        self._figures: Mapping[str, Any] = dict.fromkeys(_FIGURES)

    async def refresh(self) -> None:
        """Ask the owner for the figures."""
        found = await asyncio.gather(*map(self._ask_figure, _FIGURES))
        self._figures = dict(zip(_FIGURES, found, strict=True))
        self._refreshed_s = time.monotonic()

    async def _ask_figure(self, name: str) -> Any:
        try:
            return await self.line.call(f"runtime.{name}")
        except ProtocolMismatch as e:
            return e  # a caller who needs this figure is told, and no other

    def _figure(self, name: str) -> Any:
        found = self._figures[name]
        if isinstance(found, ProtocolMismatch):
            raise ProtocolMismatch(str(found), theirs=found.theirs, ours=found.ours)
        return found

    @property
    def reembedding(self) -> ReembedProgress | None:
        """See `remora.Runtime`, as for all that follows."""
        progress: ReembedProgress | None = self._figure("reembedding")
        return progress

    def statistics(self) -> RuntimeStatistics:  # noqa: D102
        self._holder.check_open()
        statistics: RuntimeStatistics = self._figure("statistics")
        return statistics

    def health(self) -> Health:  # noqa: D102
        phase = self._holder.phase
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

    def erasures(self, user: str | None = None) -> list[WaitingErasure]:  # noqa: D102
        self._holder.check_open()
        waiting: list[WaitingErasure] = self._figure("erasures")
        if user is None:
            return list(waiting)
        digests = [UNKEYED, *(Digests(key) for key in self.info.digest_keys if key)]
        return of_user(waiting, user, digests)

    def reschedule(self, task: str, seconds: float) -> None:  # noqa: D102
        check_change(task, seconds, self.statistics().schedule)
        self.line.send("runtime.reschedule", task, seconds)

    async def ready(self, *, timeout_s: float | None = None) -> None:  # noqa: D102
        await self._call("ready", timeout_s=timeout_s)

    async def settle(self) -> None:  # noqa: D102
        await self._change("settle")

    async def long_term_statistics(self) -> LongTermStatistics:  # noqa: D102
        found: LongTermStatistics = await self._call("long_term_statistics")
        return found

    async def reembedded(self, progress: Progress | None = None) -> None:  # noqa: D102
        await self._change("reembedded", on_progress=progress)

    async def dead_letters(self) -> list[Job]:  # noqa: D102
        jobs: list[Job] = await self._call("dead_letters")
        return jobs

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:  # noqa: D102
        count: int = await self._change("retry_dead_letters", ids)
        return count

    async def drop_dead_letters(self, ids: Sequence[str]) -> int:  # noqa: D102
        count: int = await self._change("drop_dead_letters", ids)
        return count

    async def retry_erasures(self) -> list[WaitingErasure]:  # noqa: D102
        waiting: list[WaitingErasure] = await self._change("retry_erasures")
        return waiting

    # The owner exports, imports and copies all shards.

    async def backup(  # noqa: D102
        self, dest: Path, *, progress: Progress | None = None
    ) -> BackupReport:
        report: BackupReport = await self._call_whole("backup", dest, on_progress=progress)
        return report

    async def export(  # noqa: D102
        self, path: Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        report: TransferReport = await self._call_whole(
            "export", path, overwrite=overwrite, on_progress=progress
        )
        return report

    async def import_(  # noqa: D102
        self, path: Path, *, skip_existing: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        report: TransferReport = await self._call_whole(
            "import_", path, skip_existing=skip_existing, on_progress=progress
        )
        return report

    async def _call_whole(self, name: str, path: Path, **named: Any) -> Any:
        """Call a verb of the whole memory; the owner may have another working directory."""
        if not self._shares_files:
            raise InvalidInput(
                "the owner of the memory may be on another machine, whose files are others: export "
                "and import sessions (session.export, user.import_session); the journal's backup "
                "is PostgreSQL's (pg_basebackup, or pg_dump of the schemas of all shards)"
            )
        absolute = await run_in_thread(Path.absolute, path)
        return await self._call(name, absolute, **named)

    async def _change(self, name: str, *positional: Any, **named: Any) -> Any:
        """Call what changes the figures."""
        result = await self._call(name, *positional, **named)
        await self.refresh()
        return result

    async def _call(self, name: str, *positional: Any, **named: Any) -> Any:
        self._holder.parts  # noqa: B018  # raises
        return await self.line.call(f"runtime.{name}", *positional, **named)
