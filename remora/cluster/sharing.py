"""``remora serve`` on one of several machines: a node, its shards, and what asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from hashlib import blake2b
from typing import Any, NoReturn, Protocol

import msgspec

from remora.api.build import Internals
from remora.api.database import check_directory, open_database
from remora.api.health import Health, HealthProblem, merge_health, of_problems
from remora.api.runtime import Runtime
from remora.api.shards import change_options, make_database_shards, opened_parts, options_of
from remora.api.status import answering, make_status
from remora.cluster.link import OwnerEnd
from remora.cluster.loading import load_rest
from remora.cluster.machines import Machines
from remora.cluster.serving import Served
from remora.cluster.target import Target
from remora.cluster.tcp import TcpListener
from remora.cluster.wire import Hello, Welcome, WireError, release
from remora.errors import (
    ConfigError,
    JournalTooNew,
    LongTermError,
    OwnershipLost,
    OwnerUnreachable,
    RemoraError,
    StorageError,
)
from remora.logging import get_logger
from remora.runtime.meters import OutageLog
from remora.runtime.threads import run_in_thread
from remora.storage.journal_port import Journal
from remora.storage.lance.objects import ObjectStore, is_object_store
from remora.storage.layout import ShardLayout
from remora.storage.membership import NodeInfo, NodeState, Placement, ShardLoad
from remora.system.forks import give_up_in_children, keep_in_children

# -- one term of a node's ownership of a shard: its runtime, and the workers that ask it -----------

_LOOK_S = 0.25


class ShardTerm:
    """See `remora.cluster.sharing.Term`.

    Args:
        number: of the shard.
        runtime: the shard's, not opened; its journal is opened if nobody's lease runs.
        drain_s: how long accepted requests may take when it is given back.

    Attributes:
        served: takes connections of workers; None while the shard is not served.
    """

    def __init__(self, number: int, runtime: Runtime, drain_s: float) -> None:
        self.number = number
        self.runtime = runtime
        self.served: Served | None = None
        self._drain_s = drain_s
        self._given = asyncio.Event()

    @property
    def load(self) -> ShardLoad | None:
        """See `remora.cluster.sharing.Term`, as for the others."""
        if self.served is None:
            return None
        try:
            registry = self.runtime.statistics().registry
        except RemoraError:  # it closes
            return None
        return ShardLoad(self.number, registry.live, registry.queued)

    def give(self) -> None:  # noqa: D102
        self._given.set()

    async def run(self) -> None:  # noqa: D102
        await self.runtime.start()
        try:
            internals = self.runtime.internals
            served = self.served = Served([(internals, self.runtime)], whole=self.runtime)
            _logger.info("shard_served", shard=self.number, epoch=served.shards[0].info.epoch)
            lost = await self._wait_for_end()
            if lost is not None:
                _logger.error("shard_lost", shard=self.number, error=lost)
            await served.drain(self._drain_s if lost is None else 0)
        finally:
            self.served = None
            await self.runtime.aclose()
        _logger.info("shard_left", shard=self.number)

    async def _wait_for_end(self) -> str | None:
        """Return when it is to be given back, or why it is lost."""
        while not self._given.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._given.wait()
            if (problem := find_loss(self.runtime)) is not None:
                return problem
        return find_loss(self.runtime)


def find_loss(runtime: Runtime) -> str | None:
    """Why a runtime has ended by itself; None if it has not."""
    try:
        runtime.internals  # noqa: B018  # it raises
    except OwnerUnreachable:  # for now: its lease was not renewed in time
        return None
    except RemoraError as e:
        return str(e)
    return None


# -- a node: one of the processes that share the shards of a memory --------------------------------
#
# It says that it lives, sees which shards it should own, owns them one by one as their leases get
# free, and gives back those that are another's. What a term of ownership is, and where nodes see
# each other, is given: so this runs in the simulation as well.

_BEAT_S = 0.5
_BEATS = 6  # in one lease, at least
_REST_S = 5.0
_LONGEST_REST_S = 300.0
_ELSEWHERE = {StorageError, OwnershipLost}


class Ledger(Protocol):
    """Where nodes say that they live: `remora.storage.postgres.cluster.Membership`."""

    async def join(self) -> None:
        """See there, as for the others."""
        ...

    async def beat(  # noqa: D102
        self, state: NodeState, loads: Sequence[ShardLoad]
    ) -> tuple[bool, Placement]: ...

    async def leave(self) -> None: ...  # noqa: D102


class Term(Protocol):
    """One term of owning a shard."""

    @property
    def load(self) -> ShardLoad | None:
        """Return what there is to do for it; None while it is not served."""
        ...

    def give(self) -> None:
        """Answer what was accepted, and give the shard back: `run` returns then."""
        ...

    async def run(self) -> None:
        """Own the shard until `give`, or until it is lost.

        Raises:
            StorageError: another process owns it, or the database is away.
            RemoraError: it cannot be opened.
        """
        ...


class Node:
    """Shares the shards with the other nodes until it is told to leave.

    Args:
        ledger: where nodes say that they live.
        me: this node.
        lease_s: of the shards.
        begin: makes a term for the shard of a number.

    Attributes:
        placement: what was seen last; None before the first beat.
    """

    def __init__(
        self, ledger: Ledger, me: NodeInfo, lease_s: float, begin: Callable[[int], Term]
    ) -> None:
        self.placement: Placement | None = None
        self._ledger = ledger
        self._me = me
        self._lease_s = lease_s
        self._beat_s = min(_BEAT_S, lease_s / _BEATS)
        self._begin = begin
        self._terms: dict[int, tuple[Term, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._leaving = False
        self._rests_until, self._rest_s = 0.0, _REST_S
        self._seen_at = 0.0
        self._former: NodeInfo | None = None
        self._loop = asyncio.get_running_loop()
        self._outage = OutageLog(
            _logger, "placement_unknown", ended="placement_known", monotonic=self._loop.time
        )

    @property
    def me(self) -> NodeInfo:
        """This node, as it is now."""
        state: NodeState = "leaving" if self._leaving else "serving"
        if state == "serving" and self._loop.time() < self._rests_until:
            state = "resting"
        loads = tuple(load for term, _ in self._terms.values() if (load := term.load) is not None)
        return msgspec.structs.replace(self._me, state=state, loads=loads)

    @property
    def silent_s(self) -> float:
        """For how long the database has not answered; infinite before it first did."""
        return self._loop.time() - self._seen_at if self._seen_at else float("inf")

    @property
    def rests_s(self) -> float:
        """For how long it takes no more shards."""
        return max(self._rests_until - self._loop.time(), 0.0)

    def leave(self) -> None:
        """Give all shards back, and end."""
        self._leaving = True
        self._wake.set()

    async def run(self) -> None:
        """Share the shards until `leave`.

        Raises:
            ConfigError: this node cannot be one of them; the text says why.
        """
        try:
            if not await self._join():
                return
            while not (self._leaving and not self._terms):
                look_s = self._beat_s
                placement = await self._beat()
                if placement is not None or self._leaving:
                    look_s = min(self._follow(placement), look_s)
                await self._pause(look_s)
        finally:
            await self._give_all()
            with suppress(RemoraError):  # others notice by the time
                await self._ledger.leave()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    # -- the others --------------------------------------------------------------------------------

    async def _join(self) -> bool:
        """Become one of the nodes; False if it was told to leave before."""
        while not self._leaving:
            seen = await self._ask()
            if seen is not None:
                self._check_secrets(seen[1])
                if not self._is_taken(seen[1]) and await self._enter():
                    _logger.info("node_joined", address=self._me.address, shards=seen[1].shards)
                    return True
            await self._pause(self._beat_s)
        return False

    async def _beat(self) -> Placement | None:
        """Say that this node lives; what there is, or None while the database does not answer."""
        seen = await self._ask()
        if seen is None:
            return None
        joined, placement = seen
        if not joined:
            if (other := self._find_other(placement)) is not None:
                self._refuse_address(other)
            await self._enter()  # it was silent for long
        self._check_secrets(placement)
        self.placement, self._seen_at = placement, self._loop.time()
        return placement

    async def _ask(self) -> tuple[bool, Placement] | None:
        me = self.me
        try:
            seen = await self._ledger.beat(me.state, me.loads)
        except RemoraError as e:
            self._outage.fail(e)
            return None
        self._outage.succeed()
        return seen

    async def _enter(self) -> bool:
        try:
            await self._ledger.join()
        except RemoraError as e:
            self._outage.fail(e)
            return False
        return True

    def _is_taken(self, placement: Placement) -> bool:
        """Return whether a node under this address has still to end: one that died here, maybe.

        Raises:
            ConfigError: it lives.
        """
        former, self._former = self._former, self._find_other(placement)
        if former is None or self._former is None or former.node != self._former.node:
            return self._former is not None
        if former.until != self._former.until:
            self._refuse_address(self._former)
        return True

    def _find_other(self, placement: Placement) -> NodeInfo | None:
        """Another node under the address of this one."""
        for one in placement.nodes:
            if one.address == self._me.address and one.node != self._me.node:
                return one
        return None

    def _refuse_address(self, other: NodeInfo) -> NoReturn:
        raise ConfigError(
            f"{other.owner} has joined under the address of this node, {other.address}: give each "
            "machine a cluster.listen or cluster.address of its own",
            key="cluster.address",
        )

    def _check_secrets(self, placement: Placement) -> None:
        """Of two nodes with different secrets, the one that joined later ends."""
        since = [one.since for one in placement.nodes if one.node == self._me.node]
        for one in placement.nodes:
            if one.fingerprint != self._me.fingerprint and (not since or one.since <= since[0]):
                raise ConfigError(
                    f"cluster.secret is another one than that of the node at {one.address} "
                    f"({one.owner}), which shares this memory: copy it from there; or name another "
                    "journal.schema, if this is to be another memory",
                    key="cluster.secret",
                )

    # -- its shards --------------------------------------------------------------------------------

    def _follow(self, placement: Placement | None) -> float:
        """Do this node's part of the plan; returns when to look again, at the latest."""
        if self._leaving or placement is None:
            for term, _ in self._terms.values():
                term.give()
            return self._beat_s
        todo = plan(self.me, self._terms.keys(), placement)
        for number in todo.give:
            self._terms[number][0].give()
        for number in todo.claim:
            term = self._begin(number)
            task = self._loop.create_task(self._hold(number, term), name="remora.shard")
            self._terms[number] = (term, task)
        return todo.look_s

    async def _hold(self, number: int, term: Term) -> None:
        try:
            await term.run()
        except Exception as e:
            self._take_failure(number, e)
        else:
            self._rest_s = _REST_S
            self._wake.set()
        finally:
            del self._terms[number]
            if self._leaving:
                self._wake.set()

    def _take_failure(self, number: int, error: Exception) -> None:
        if type(error) in _ELSEWHERE:  # another was faster, or the database is away
            _logger.info("shard_not_claimed", shard=number, problem=str(error)[:200])
            return
        if not self.rests_s:  # shards that were claimed together often fail of one cause
            self._rests_until = self._loop.time() + self._rest_s
            self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
        rests_s = round(self.rests_s, 1)
        if isinstance(error, RemoraError):
            text = f"{type(error).__name__}: {error}"
            _logger.error("shard_failed", shard=number, error=text, rests_s=rests_s)
        else:
            _logger.error("shard_crashed", shard=number, rests_s=rests_s, exc_info=error)

    async def _give_all(self) -> None:
        held = list(self._terms.values())
        for term, _ in held:
            term.give()
        await asyncio.gather(*(task for _, task in held), return_exceptions=True)


# -- which node should own which shard: a pure function of what all nodes see ----------------------
#
# Each node computes it for all of them, and does its own part. Two that see different moments may
# both want a shard; its lease goes to one of them.
#
# * No node has two shards more than another.
# * As few shards move as that allows: those of nodes that are gone, and what a node has too much.
# * Which ones move, and where to, is decided by a digest of node and shard (rendezvous hashing).

_SOON_S = 0.1
_LATER_S = 0.02  # than a lease ends


class Plan(msgspec.Struct, frozen=True):
    """The plan of a node.

    Attributes:
        claim: numbers of shards to own; nobody's lease runs.
        give: numbers of shards to give back.
        look_s: when to look again, at the latest; infinity if nothing is expected.
    """

    claim: tuple[int, ...]
    give: tuple[int, ...]
    look_s: float


def assign(
    shards: Sequence[int], nodes: Collection[str], owners: Mapping[int, str]
) -> dict[int, str]:
    """The node for each shard.

    Args:
        shards: their numbers.
        nodes: that take shards.
        owners: of shards; a shard whose owner is none of `nodes`, or that has none, needs one.

    Returns:
        Nothing if there are no nodes.
    """
    if not nodes:
        return {}
    kept: dict[str, list[int]] = {node: [] for node in nodes}
    homeless: list[int] = []
    for shard in shards:
        kept.get(owners.get(shard, ""), homeless).append(shard)
    least, more = divmod(len(shards), len(nodes))
    # the fullest nodes have one more: then fewest shards move
    fullest = sorted(nodes, key=lambda node: (-len(kept[node]), node))
    room = {node: least + (place < more) for place, node in enumerate(fullest)}
    for node, own in kept.items():
        own.sort(key=lambda shard: -_weight(node, shard))
        homeless += own[room[node] :]
        del own[room[node] :]
    found = {shard: node for node, own in kept.items() for shard in own}
    for shard in sorted(homeless):
        free = [node for node in nodes if len(kept[node]) < room[node]]
        best = max(free, key=lambda node: (_weight(node, shard), node))
        kept[best].append(shard)
        found[shard] = best
    return found


def _weight(node: str, shard: int) -> int:
    return int.from_bytes(blake2b(f"{node}/{shard}".encode(), digest_size=8).digest())


def plan(me: NodeInfo, held: Collection[int], placement: Placement) -> Plan:
    """Return what this node is to do now.

    Args:
        me: this node, as it is now.
        held: numbers of the shards that it owns, or is about to.
        placement: what there is; this node's own row in it may be older.
    """
    if me.state == "leaving":
        return Plan((), tuple(sorted(held)), _SOON_S)
    others = [one for one in placement.nodes if one.address != me.address]
    staying = [one for one in (*others, me) if one.state != "leaving"]
    # a node of a newer release brings journals up to date, which others then cannot read
    oldest = min(one.format for one in staying)
    taking = {one.address for one in staying if one.state == "serving" and one.format == oldest}
    keeping = {one.address for one in staying} - taking
    owners = {one.number: one.address for one in placement.leases if one.runs}
    divided = [one.number for one in placement.leases if owners.get(one.number) not in keeping]
    target = assign(divided, taking, owners)
    live = {one.address for one in others}
    claim, expected = [], []
    for lease in placement.leases:
        if target.get(lease.number) != me.address or lease.number in held:
            continue
        if not lease.runs:
            claim.append(lease.number)
        elif lease.address in live:  # that one is about to give it back
            expected.append(_SOON_S)
        else:
            assert lease.left_s is not None
            expected.append(lease.left_s + _LATER_S)
    give = sorted(one for one in held if target.get(one, me.address) != me.address)
    return Plan(tuple(claim), tuple(give), min(expected, default=float("inf")))


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
                change_options(runtime, journal=partial(self._open_journal, runtime, address))
            await self._keep_models(stack)
            node = self._node = self._make_node(stack, layout, address)
            status = make_status(self._health, self._opened, shards=layout.shards)
            control = options_of(self._target.runtime).control
            answered = answering(self._target.directory, status, control)
            await stack.enter_async_context(answered)
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
