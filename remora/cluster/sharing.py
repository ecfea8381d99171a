"""``remora serve`` on one of several machines: a node, its shards, and what asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from remora.api.build import Internals
from remora.api.database import check_directory, open_database
from remora.api.health import Health, HealthProblem, merge_health, of_problems
from remora.api.runtime import Runtime
from remora.api.shards import make_database_shards, opened_parts, options_of, with_journal
from remora.api.status import answer_line, make_status
from remora.cluster.link import OwnerEnd
from remora.cluster.loading import load_rest
from remora.cluster.machines import Machines
from remora.cluster.node import Node
from remora.cluster.serving import Served
from remora.cluster.target import Target
from remora.cluster.tcp import TcpListener
from remora.cluster.term import ShardTerm
from remora.cluster.wire import Hello, Welcome, WireError, release
from remora.errors import ConfigError, JournalTooNew, LongTermError, OwnerUnreachable, StorageError
from remora.logging import get_logger
from remora.runtime.meters import OutageLog
from remora.runtime.threads import run_in_thread
from remora.services.answering import start_answering
from remora.storage.forks import give_up_in_children, keep_in_children
from remora.storage.journal_port import Journal
from remora.storage.lance.objects import ObjectStore, is_object_store
from remora.storage.layout import ShardLayout

_logger = get_logger(__name__)
_PAUSE_S = 0.5


class NodeServer:
    """Serves this machine's shards of a memory in PostgreSQL until it is told to stop.

    Args:
        target: the memory.
        machines: how it is shared; `listen` is set.
        stop: set when it is to end.
    """

    def __init__(self, target: Target, machines: Machines, stop: asyncio.Event) -> None:
        self._target = target
        self._machines = machines
        self._stop = stop
        self._lease_s = target.config.journal.lease_s
        self._runtimes: Sequence[Runtime] = ()
        self._terms: dict[int, ShardTerm] = {}
        self._node: Node | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def served(self) -> dict[int, Runtime]:
        """The shards that it serves now, by number."""
        return {
            number: term.runtime
            for number, term in list(self._terms.items())
            if term.served is not None
        }

    async def run(self) -> None:
        """Serve.

        Raises:
            ConfigError: this node cannot be one of the memory's; the text says why.
            JournalTooNew: a newer remora made the memory.
        """
        if self._machines.listen is None:
            raise ConfigError(
                "cluster.listen must say where this owner takes connections of workers: "
                "10.0.0.5:7731, an address of this machine; or 127.0.0.1:7731",
                key="cluster.listen",
            )
        async with AsyncExitStack() as stack:
            # what this machine lacks is said before there is a memory
            await self._check_object_store()
            listener = await run_in_thread(TcpListener, self._machines)
            stack.callback(listener.close)
            if (layout := await self._open_memory()) is None:
                return
            address = str(listener.address)
            self._runtimes = make_database_shards(self._target.runtime, layout)
            for runtime in self._runtimes:
                with_journal(runtime, partial(self._open_journal, runtime, address))
            await self._keep_models(stack)
            node = self._node = self._make_node(stack, layout, address)
            await self._answer(stack, layout)
            for work in (
                listener.accept(partial(ShardDoor, self._find)),
                self._load_rest(),
                self._leave_when_told(node),
            ):
                task = self._loop.create_task(work, name="remora.node")
                stack.push_async_callback(_end, task)
            _logger.info("node_serves", address=address, shards=layout.shards)
            await node.run()

    # -- what a node is made of --------------------------------------------------------------------

    async def _check_object_store(self) -> None:
        """Check the bucket; one that cannot be reached is what shards can wait for."""
        long_term = self._target.config.long_term
        address = long_term.uri.reveal()
        if long_term.enabled and is_object_store(address):
            store = await run_in_thread(ObjectStore, address, long_term.object_store)
            try:
                await store.check()
            except LongTermError as e:
                _logger.warning("object_store_away", error=str(e))

    async def _open_memory(self) -> ShardLayout | None:
        """The memory, also if PostgreSQL is away at first; None if it was told to stop."""
        await run_in_thread(check_directory, self._target.directory)
        try:
            from remora.storage.postgres.cluster import open_cluster  # noqa: PLC0415  # an extra
        except ImportError as e:
            raise ConfigError(str(e), key="journal.dsn") from e
        outage = OutageLog(
            _logger, "database_away", ended="database_back", monotonic=self._loop.time
        )
        journal, machines = self._target.config.journal, self._machines
        while not self._stop.is_set():
            try:
                return await open_cluster(
                    machines.dsn,
                    machines.schema,
                    machines.shards,
                    memory=journal.memory,
                    lease_s=self._lease_s,
                    durability=journal.durability,
                )
            except JournalTooNew:
                raise
            except StorageError as e:
                outage.fail(e)
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    await self._stop.wait()
        return None

    async def _open_journal(self, runtime: Runtime, address: str) -> Journal:
        options = options_of(runtime)
        return await open_database(
            options.config.journal, options.path, place=options.shard, wait_s=0, address=address
        )

    async def _keep_models(self, stack: AsyncExitStack) -> None:
        """Hold the models that all shards share, as long as this node lives."""
        options = options_of(self._runtimes[0])
        assert options.models is not None
        closers: list = []  # type: ignore[type-arg]
        await options.models.build(options, closers)
        for close in closers:
            stack.push_async_callback(close)

    def _make_node(self, stack: AsyncExitStack, layout: ShardLayout, address: str) -> Node:
        from remora.storage.postgres.cluster import Membership  # noqa: PLC0415  # an extra

        ledger = Membership(
            self._machines.dsn,
            self._machines.schema,
            layout,
            address=address,
            release=release(),
            fingerprint=self._machines.fingerprint,
            lease_s=self._lease_s,
        )
        stack.callback(ledger.close)
        return Node(ledger, ledger.me, self._lease_s, self._begin)

    def _begin(self, number: int) -> ShardTerm:
        drain_s = self._target.config.supervisor.drain_s
        term = self._terms[number] = ShardTerm(number, self._runtimes[number], drain_s)
        return term

    def _find(self, shard: int) -> Served | None:
        term = self._terms.get(shard)
        return None if term is None else term.served

    async def _leave_when_told(self, node: Node) -> None:
        await self._stop.wait()
        node.leave()

    async def _load_rest(self) -> None:
        """Load what requests with a query need; others do not wait for it."""
        await asyncio.sleep(_PAUSE_S)
        await run_in_thread(load_rest, self._target, abandon_on_cancel=True)

    # -- what others ask of it ---------------------------------------------------------------------

    async def _answer(self, stack: AsyncExitStack, layout: ShardLayout) -> None:
        status = make_status(self._health, self._opened, shards=layout.shards)
        told = options_of(self._target.runtime).told
        if told is not None:
            told.status = status
            return
        line = partial(answer_line, status)
        thread = await run_in_thread(start_answering, self._target.directory, line)
        if thread is not None:
            stack.push_async_callback(run_in_thread, thread.stop)

    def _opened(self) -> list[Internals]:
        found = [opened_parts(term.runtime) for term in list(self._terms.values())]
        return [one for one in found if one is not None]

    def _health(self) -> Health:
        """That of this machine's shards, and whether it knows which they are; from any thread."""
        healths = {number: runtime.health() for number, runtime in self.served.items()}
        problems = list(merge_health(healths).problems)
        node = self._node
        if self._stop.is_set():
            problems.append(HealthProblem("closing", "not ready", "the node is leaving"))
        elif node is None or node.silent_s > self._lease_s:
            problems.append(
                HealthProblem(
                    "placement_unknown",
                    "not ready",
                    "PostgreSQL does not say which shards are this node's",
                )
            )
        elif node.rests_s:
            problems.append(
                HealthProblem(
                    "shard_failed",
                    "degraded",
                    "a shard could not be opened, so this node takes no others for "
                    f"{node.rests_s:.0f} s",
                )
            )
        return of_problems(problems)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# -- where connections to a node come in: each goes to the shard that its worker asks for ----------

_NO_EPOCHS = b"\x90"


class ShardDoor(asyncio.Protocol):
    """One connection until its worker has said which shard it wants.

    Args:
        find: gives what serves a shard; None if this node does not serve it now.
    """

    def __init__(self, find: Callable[[int], Served | None]) -> None:
        self._find = find
        self._end = OwnerEnd(self._greet, _NO_EPOCHS)
        self._wanted: Served | None = None
        self._data = bytearray()
        self._transport: Any = None
        self._descriptor = -1

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`, as for the others."""
        self._transport = transport
        self._descriptor = transport.get_extra_info("socket").fileno()
        give_up_in_children(self._descriptor)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See `asyncio.Protocol`."""
        keep_in_children(self._descriptor)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._data += data
        try:
            self._end.feed(data)
        except WireError as e:
            _logger.warning("worker_garbled", problem=str(e)[:200])
            self._transport.abort()
            return
        if self._wanted is not None:
            self._pass_on(self._wanted)
        elif self._end.refused:
            frame = self._end.take()
            assert frame is not None
            self._transport.write(frame)
            self._transport.close()

    def _greet(self, hello: Hello) -> Welcome:
        """Note what serves the shard, which then reads the hello itself."""
        self._wanted = self._find(hello.shard)
        raise OwnerUnreachable(
            f"this node does not serve shard {hello.shard} now: another one does, or will"
        )

    def _pass_on(self, served: Served) -> None:
        keep_in_children(self._descriptor)
        protocol = served.make_protocol()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(bytes(self._data))
