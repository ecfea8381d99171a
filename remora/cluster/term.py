"""One term of a node's ownership of a shard: its runtime, and the workers that ask it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from remora.api.runtime import Runtime
from remora.cluster.serving import Served
from remora.errors import OwnerUnreachable, RemoraError
from remora.logging import get_logger
from remora.storage.membership import ShardLoad

_logger = get_logger(__name__)
_LOOK_S = 0.25


class ShardTerm:
    """See `remora.cluster.node.Term`.

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
        """See `remora.cluster.node.Term`, as for the others."""
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
