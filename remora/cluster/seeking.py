"""Finding the owners of shards on several machines: their leases say where they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from remora.cluster.machines import Machines, parse_address
from remora.cluster.tcp import RemoteOwner
from remora.errors import ConfigError, JournalTooNew, OwnerUnreachable, RemoraError, StorageError
from remora.logging import get_logger
from remora.storage.membership import Placement, ShardLease

_logger = get_logger(__name__)
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
