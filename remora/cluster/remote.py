"""The shards of a memory that another process owns: handles are made of them as of a runtime."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, cast

import anyio
from anyio.abc import TaskGroup

from remora.api.host import Host, HostTasks
from remora.api.models import build_intake_models
from remora.api.options import Options
from remora.api.runtime import Runtime
from remora.api.session import Session
from remora.api.shards import options_of
from remora.api.shared import SharedScope
from remora.api.user import User
from remora.cluster.connection import Connection
from remora.cluster.ports import (
    RemoteActors,
    RemoteArchive,
    RemoteContexts,
    RemoteRecalls,
    RemoteTransfers,
    RemoteTurns,
    RemoteWork,
    ShardLine,
)
from remora.cluster.wire import WIRE, Hello, ShardInfo, Welcome, release
from remora.config import Config
from remora.errors import ConfigError, OwnershipLost, RuntimeClosed
from remora.ids import validate_id
from remora.logging import get_logger
from remora.messages import MessageLike, encode_message
from remora.services.intake import Intake
from remora.services.parts import Parts, PartsHolder
from remora.tokens import count_message

__all__ = ["RemoteMemory", "RemoteShard"]

_logger = get_logger(__name__)


class RemoteMemory:
    """All shards that one owner serves.

    Args:
        like: a runtime for each shard, made as the owner makes it and not opened: it says how
            messages are checked, redacted, counted and embedded, which is done in this process.
        dial: gives the path of the socket of an owner that listens; starts one if need be.
        digest: of the configuration.

    Attributes:
        shards: by number.
        hello: what it says of itself to an owner.
    """

    def __init__(
        self, like: Sequence[Runtime], dial: Callable[[], Awaitable[str]], *, digest: str = ""
    ) -> None:
        self.shards = tuple(RemoteShard(self, number, one) for number, one in enumerate(like))
        self._options = self.shards[0].options
        self._dial = dial
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self.hello = Hello(WIRE, release(), digest, name)
        self._host: Host | None = None
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

    async def aclose(self) -> None:
        """Finish what was begun, and disconnect. The owner goes on."""
        if self._host is not None and not self._host.ended:
            await self._host.stop()

    # -- in the host's task ------------------------------------------------------------------------

    async def _live(self, host: Host) -> None:
        config = self._options.config
        closers: list[Callable[[], Any]] = []
        self._instances = ()
        connection = Connection(
            self._dial,
            self.hello,
            config.mailbox.max_total_bytes,
            self._check,
            config.mailbox.timeout_s,
        )
        try:
            intake = await _build_intake(self._options, closers)
            welcome = await connection.open()
            async with anyio.create_task_group() as tasks:
                for shard, info in zip(self.shards, welcome.shards, strict=True):
                    shard.open_parts(connection, info, intake)
                    shard.turns.start(cast("TaskGroup", HostTasks(tasks)))
                host.mark_open()
                await host.wait_for_stop()
                closed = RuntimeClosed("the runtime is closing; no new turns begin")
                with anyio.CancelScope(shield=True):  # each is bounded in time
                    for shard in self.shards:
                        shard.turns.close(closed)
                        await shard.turns.interrupt()
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

    def _check(self, welcome: Welcome) -> None:
        if len(welcome.shards) != len(self.shards):
            raise ConfigError(
                f"the owner of the memory serves {len(welcome.shards)} shards, and this process "
                f"expects {len(self.shards)}: give both the same configuration, and restart the "
                "older one",
                key="cluster.shards",
            )
        instances = tuple(shard.instance for shard in welcome.shards)
        if self._instances and instances != self._instances:
            raise OwnershipLost(
                "the directory was replaced while it was in use: the owner serves another memory"
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
    _line: ShardLine

    def __init__(self, memory: RemoteMemory, number: int, like: Runtime) -> None:
        self.options = options_of(like)
        path = self.options.path
        self.holder = PartsHolder("in memory" if path is None else repr(str(path)))
        self._memory = memory
        self._number = number

    def open_parts(self, connection: Connection, info: ShardInfo, intake: Intake) -> None:
        """Give handles their parts."""
        config = self.options.config
        line = self._line = ShardLine(connection, self._number, config)
        actors = RemoteActors(line)
        self.turns = RemoteTurns(line)
        self.holder.open(
            Parts(
                config=config,
                instance=info.instance,
                intake=intake,
                actors=actors,
                appends=actors,
                contexts=RemoteContexts(line, intake.counter, info),
                turns=self.turns,
                archive=RemoteArchive(line),
                recalls=RemoteRecalls(line) if info.recalls else None,
                work=RemoteWork(line),
                transfers=RemoteTransfers(line),
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
