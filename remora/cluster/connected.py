"""A worker's side of a memory that another process owns."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from remora.api.runtime import Runtime
from remora.api.shards import make_database_shards, make_shards
from remora.api.status import StatusQuestion, ask_owner, ask_status
from remora.cluster.machines import Machines, parse_address, read_machines
from remora.cluster.place import Place
from remora.cluster.reading import without_long_term
from remora.cluster.remote import RemoteMemory
from remora.cluster.sharded import ShardedRuntime
from remora.cluster.sharding import Share, choose_layout, count_owners
from remora.cluster.spawn import OwnerFinder
from remora.cluster.target import Target, digest_of
from remora.cluster.tcp import RemoteOwner
from remora.cluster.transfers import WholeTransfers
from remora.cluster.upkeep import SeparateTransfers
from remora.cluster.watch import OwnerWatch, count_live_owners
from remora.config import Config
from remora.errors import (
    ConfigError,
    JournalTooNew,
    OwnerFailed,
    OwnerUnreachable,
    RemoraError,
    StorageError,
)
from remora.logging import get_logger
from remora.runtime.threads import run_in_thread
from remora.storage.layout import ShardLayout
from remora.storage.membership import Placement, ShardLease
from remora.system.forks import run_at_fork


class ConnectedRuntime(ShardedRuntime):
    """A memory that other processes own, with the methods of `Runtime`; see `remora.connect`.

    Entering it raises `OwnerUnreachable` if no owner answers in time, `OwnerFailed` if none can be
    started, and `ProtocolMismatch` if it and this process are of releases that do not understand
    each other. A memory that was connected before its process was forked is closed in the child:
    connect in each worker.

    Args:
        target: the memory.
        there: how many processes have it open, if none is to be started or watched.
    """

    def __init__(self, target: Target, *, there: int = 0) -> None:
        self._target = target
        self._there = there
        self._seeker: OwnerSeeker | None = None
        machines = read_machines(target.config)
        self._owners: list[_Owner] = []
        transfers: WholeTransfers | None = None
        if machines is None:
            self._remotes = self._share_directory()
            if len(self._remotes) > 1:
                transfers = SeparateTransfers(target.directory, target.config)
        else:
            self._seeker = OwnerSeeker(machines, target.config.cluster.wait_s, self._drop)
            self._remotes = self._share_database(machines.shards, self._seeker)
        every, owners = [one.shards for one in self._remotes], len(self._remotes)
        count = sum(map(len, every))
        shards = [every[number % owners][number // owners] for number in range(count)]
        transfers = transfers or self._remotes[0].transfers
        super().__init__(shards, transfers=transfers)
        _connected.update(self._remotes)

    def _share_directory(self) -> list[RemoteMemory]:
        """The shards of each owner."""
        target = self._target
        wanted = None if self._there else target.config.cluster.shards
        layout = choose_layout(target.directory, wanted)
        like = [target.runtime] if layout is None else make_shards(target.runtime, layout)
        owners = self._there or count_owners(target.config.cluster, layout)
        shares = [Share(number, owners) for number in range(owners)]
        self._owners = [_Owner(target, share, there=self._there > 0) for share in shares]
        return [
            RemoteMemory(
                [like[number] for number in one.share.of(len(like))],
                one.dial,
                digest=target.digest,
                shard=one.share.number,
                owners=owners,
                of=len(like),
            )
            for one in self._owners
        ]

    def _share_database(self, shards: int, seeker: OwnerSeeker) -> list[RemoteMemory]:
        """Each shard of the memory, which has an owner of its own."""
        like = make_database_shards(self._target.runtime, ShardLayout.new(shards))
        return [
            RemoteMemory(
                [one],
                partial(seeker.find, number),
                digest=self._target.digest,
                shard=number,
                shares_files=False,
            )
            for number, one in enumerate(like)
        ]

    def __repr__(self) -> str:
        return f"connect({self._target.text!r})"

    @property
    def path(self) -> Path:
        """The memory directory."""
        return self._target.directory

    async def _open(self) -> None:
        try:
            await super()._open()
        except BaseException:
            if self._seeker is not None:
                self._seeker.close()
            raise

    async def _close(self) -> None:
        try:
            await super()._close()
        finally:
            for one in self._owners:
                one.stop_watching()
            if self._seeker is not None:
                self._seeker.close()

    def _drop(self, shard: int) -> None:
        self._remotes[shard].drop()


class _Owner:
    """An owner of some of the shards, as this worker finds it."""

    def __init__(self, target: Target, share: Share, *, there: bool) -> None:
        self.share = share
        self._there = there
        self._limits = target.config.cluster
        self._place = Place(target.directory, share.number)
        self._finder = OwnerFinder(target, self._place, share)
        self._watch: OwnerWatch | None = None

    async def dial(self) -> str:
        """The socket of one that serves, which is watched from now on, unless it was there."""
        if self._there:
            return await self._find_there()
        info = await run_in_thread(self._finder.find, abandon_on_cancel=True)
        self.stop_watching()
        self._watch = OwnerWatch(info, self._limits)
        self._watch.start()
        return info.socket

    async def _find_there(self) -> str:
        place, question = self._place, msgspec.json.encode(StatusQuestion(figures=False))
        ask = partial(ask_owner, place.directory, question, PATIENCE_S, place.number)
        if await run_in_thread(ask, abandon_on_cancel=True) is None:
            raise OwnerFailed(
                f"the process that had {place.directory} open has closed it or was killed: run the "
                "command again; if several processes own the memory, a worker (remora.connect) or "
                "`remora serve` starts the one that is missing"
            )
        return str(place.socket)

    def stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()


async def connect_there(directory: Path, config: Config) -> ConnectedRuntime | None:
    """A memory through the processes that have it open, to be entered; None if none has.

    Args:
        directory: of the memory.
        config: says how long to wait for them.

    Raises:
        DirectoryUnusable: it is no directory, or this account may not look into it.
        OwnerUnreachable: a process that has it open does not answer.
    """
    if not await run_in_thread(directory.exists):
        return None
    limits = config.cluster

    def look() -> ConnectedRuntime | None:
        if ask_status(directory, StatusQuestion(figures=False), PATIENCE_S) is None:
            return None
        path = directory.absolute()
        runtime = Runtime(path, config=without_long_term(config))
        target = Target(str(path), runtime, path, digest_of(config))
        return ConnectedRuntime(target, there=count_live_owners(path, limits))

    return await run_in_thread(look)


_connected: weakref.WeakSet[RemoteMemory] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked process shares the sockets of its parent, whose requests it would garble."""
    for memory in list(_connected):
        for shard in memory.shards:
            if shard.holder.phase == "open":
                shard.holder.close(
                    why="this process was forked from one that had connected to the memory: "
                    "connect in each worker, after the fork (in its lifespan, for instance)"
                )


run_at_fork(in_child=_close_in_child)


# -- finding the owners of shards on several machines: their leases say where they are -------------

_logger = get_logger(__name__)
PATIENCE_S = 5.0  # of the process that has a memory open
_PAUSE_S = 0.1
_LOOK_S = 1.0


class OwnerSeeker:
    """Reads the leases: to find owners, and to notice that one has been replaced.

    An owner that stands still, or is cut off, ends no connection. So the leases are read every
    second while there is one.

    Args:
        machines: what is configured.
        wait_s: how long an owner is looked for.
        drop: called with a shard when another owner than the one that was found has its lease.

    Raises:
        ConfigError: asyncpg is missing.
    """

    def __init__(self, machines: Machines, wait_s: float, drop: Callable[[int], None]) -> None:
        try:
            from remora.storage.postgres.cluster import ClusterReader  # noqa: PLC0415  # an extra
        except ImportError as e:
            raise ConfigError(str(e), key="journal.dsn") from e
        self._machines = machines
        self._wait_s = wait_s
        self._drop = drop
        self._reader = ClusterReader(machines.dsn, machines.schema, machines.shards)
        self._reading: asyncio.Future[Placement | None] | None = None
        self._found: dict[int, int] = {}
        self._watch: asyncio.Task[None] | None = None

    async def find(self, shard: int) -> RemoteOwner:
        """The process that has the lease of a shard.

        Raises:
            OwnerUnreachable: none had it within `wait_s`.
            ConfigError: the database cannot be used, or the memory has another number of shards.
            JournalTooNew: a newer remora made the memory.
        """
        self._found.pop(shard, None)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._wait_s
        while True:
            lease, why = await self._look_for(shard)
            if lease is not None:
                address = parse_address(lease.address, "the address in the lease")
                self._found[shard] = lease.epoch
                if self._watch is None:
                    self._watch = loop.create_task(self._look(), name="remora.leases")
                return RemoteOwner(self._machines, address, lease.epoch)
            if loop.time() > end:
                raise OwnerUnreachable(
                    f"no owner of shard {shard} of the memory in the schema "
                    f"{self._machines.schema} was found within cluster.wait_s "
                    f"({self._wait_s:g} s): {why}; start one with `remora serve`"
                )
            await asyncio.sleep(_PAUSE_S)

    async def _look_for(self, shard: int) -> tuple[ShardLease | None, str]:
        """The lease of a shard that runs, or why there is none."""
        try:
            placement = await self._read()
        except JournalTooNew:
            raise
        except StorageError as e:
            return None, str(e)
        if placement is None:
            return None, "nobody has made it yet"
        lease = placement.leases[shard]
        if not lease.runs:
            return None, "no process has its lease"
        if not lease.address:
            return None, f"{lease.owner} owns it, and takes no connections: use remora serve"
        return lease, ""

    async def _read(self) -> Placement | None:
        """Return what there is; all who ask while it is read get the same answer."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._reader.read())
            self._reading.add_done_callback(_take_exception)
        return await asyncio.shield(self._reading)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            placement = None
            with suppress(RemoraError):  # the connection to the owner may work all the same
                placement = await self._read()
            for lease in placement.leases if placement is not None else ():
                if lease.epoch > self._found.get(lease.number, lease.epoch):
                    del self._found[lease.number]
                    _logger.info(
                        "shard_moved",
                        shard=lease.number,
                        owner=lease.owner,
                        epoch=lease.epoch,
                    )
                    self._drop(lease.number)

    def close(self) -> None:
        """Stop looking."""
        for task in (self._watch, self._reading):
            if task is not None:
                task.cancel()
        self._watch = None
        self._reader.close()


def _take_exception(reading: asyncio.Future[Placement | None]) -> None:
    """Take the exception: the askers may have been cancelled."""
    if not reading.cancelled():
        reading.exception()
