"""Finding the owner of a memory on several machines: the lease says where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from remora.cluster.machines import Machines, parse_address
from remora.cluster.tcp import RemoteOwner
from remora.errors import ConfigError, OwnerUnreachable, RemoraError, StorageError
from remora.logging import get_logger

__all__ = ["OwnerSeeker"]

_logger = get_logger(__name__)
_PAUSE_S = 0.1
_LOOK_S = 1.0


class OwnerSeeker:
    """Reads the lease: to find an owner, and to notice that it has been replaced.

    An owner that stands still, or is cut off, ends no connection. So the lease is read every
    second while there is one.

    Args:
        machines: what is configured.
        wait_s: how long an owner is looked for.
        drop: called when another owner than the one that was found has the lease.

    Raises:
        ConfigError: asyncpg is missing.
    """

    def __init__(self, machines: Machines, wait_s: float, drop: Callable[[], None]) -> None:
        try:
            from remora.storage.postgres.owners import OwnerLookup  # noqa: PLC0415  # an extra
        except ImportError as e:
            raise ConfigError(str(e), key="journal.dsn") from e
        self._machines = machines
        self._wait_s = wait_s
        self._drop = drop
        self._lookup = OwnerLookup(machines.dsn, machines.schema)
        self._watch: asyncio.Task[None] | None = None

    async def find(self) -> RemoteOwner:
        """An owner that has the lease.

        Raises:
            OwnerUnreachable: none had it within `wait_s`.
            ConfigError: the database cannot be used.
        """
        self._stop_watching()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._wait_s
        while True:
            why = "no process has its lease"
            try:
                owner = await self._lookup.read()
            except StorageError as e:
                owner, why = None, str(e)
            if owner is not None and owner.left_s:
                if not owner.address:
                    why = f"{owner.owner} owns it, and takes no connections: use remora serve"
                else:
                    address = parse_address(owner.address, "the address in the lease")
                    found = RemoteOwner(self._machines, address, owner.epoch)
                    self._watch = loop.create_task(self._look(found), name="remora.lease")
                    return found
            if loop.time() > end:
                raise OwnerUnreachable(
                    f"no owner of the journal in the schema {self._machines.schema} was found "
                    f"within cluster.wait_s ({self._wait_s:g} s): {why}; start one with `remora "
                    "serve`"
                )
            await asyncio.sleep(_PAUSE_S)

    async def _look(self, found: RemoteOwner) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            owner = None
            with suppress(RemoraError):  # the connection to the owner may work all the same
                owner = await self._lookup.read()
            if owner is not None and owner.epoch > found.epoch:
                _logger.info("owner_replaced", owner=owner.owner, epoch=owner.epoch)
                self._drop()
                return

    def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def close(self) -> None:
        """Stop looking."""
        self._stop_watching()
        self._lookup.close()
