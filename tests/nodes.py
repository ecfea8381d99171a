"""Nodes that share a memory, on the event loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from remora import Runtime
from remora.cluster.connected import ConnectedRuntime
from remora.cluster.machines import read_machines
from remora.cluster.sharing import NodeServer
from remora.cluster.target import Target, digest_of
from tests.patience import until

__all__ = ["connected", "node", "serve", "two_nodes"]


def target_of(runtime: Runtime) -> Target:
    assert runtime.path is not None
    return Target("tests", runtime, runtime.path, digest_of(runtime.config))


async def serve(runtime: Runtime) -> None:
    """What a node does that nobody tells to stop."""
    async with node(runtime, stopped=False):
        pass


@asynccontextmanager
async def node(runtime: Runtime, *, stopped: bool = True) -> AsyncIterator[NodeServer]:
    """One node; it is told to leave in the end."""
    machines = read_machines(runtime.config)
    assert machines is not None
    stop = asyncio.Event()
    target = target_of(runtime)
    await anyio.Path(target.directory).mkdir(parents=True, exist_ok=True)
    server = NodeServer(target, machines, stop)
    running = asyncio.ensure_future(server.run())
    try:
        yield server
    finally:
        if stopped:
            stop.set()
        await running


@asynccontextmanager
async def two_nodes(
    make: Callable[[Path], Runtime], path: Path, shards: int
) -> AsyncIterator[Sequence[NodeServer]]:
    """Two nodes, each of which serves its part of the shards."""
    async with node(make(path / "one")) as one, node(make(path / "two")) as two:
        await until(
            lambda: min(len(one.served), len(two.served)) >= shards // 2, "both serve their shards"
        )
        yield one, two


@asynccontextmanager
async def connected(runtime: Runtime) -> AsyncIterator[ConnectedRuntime]:
    """A worker's memory."""
    async with ConnectedRuntime(target_of(runtime)) as memory:
        yield memory
