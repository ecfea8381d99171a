"""A runtime behind a Unix socket, and a worker that uses it; both on this event loop."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread

from remora import Config, Message, Runtime
from remora.api.operator import Operator
from remora.cluster.remote import RemoteMemory, RemoteShard
from remora.cluster.serving import Served
from remora.cluster.sharded import ShardedRuntime
from remora.services.answering import SOCKET_NAME, AnswerThread, Workers, start_answering
from tests.integration.conftest import PLAIN

__all__ = ["Owner", "remote", "said", "spin", "whole_turn", "workers"]


class Owner:
    """Serves runtimes at a path; one that is stopped can be started again.

    Args:
        make: makes the runtimes, or a memory in shards, not opened.
    """

    def __init__(self, make: Callable[[], Sequence[Runtime] | ShardedRuntime]) -> None:
        self._make = make
        self.path = ""
        self.served: Served | None = None
        self.shards: Sequence[Runtime] = ()
        self._stack = AsyncExitStack()
        self.dialed = 0

    def make(self) -> Sequence[Runtime]:
        """The runtime of each shard, not opened."""
        return _runtimes(self._make())

    async def start(self) -> None:
        """Open the runtimes and listen."""
        made = self._make()
        whole: Operator | None = made if isinstance(made, ShardedRuntime) else None
        self.shards = _runtimes(made)
        for one in self.shards if not isinstance(made, ShardedRuntime) else [made]:
            await self._stack.enter_async_context(one)
        if whole is None:
            whole = self.shards[0] if len(self.shards) == 1 else ShardedRuntime(self.shards)
        served = self.served = Served([(one.internals, one) for one in self.shards], whole=whole)
        thread = await anyio.to_thread.run_sync(self._listen)
        await Workers(thread, asyncio.get_running_loop(), lambda: served).start()
        self._stack.push_async_callback(anyio.to_thread.run_sync, thread.stop)

    def _listen(self) -> AnswerThread:
        directory = tempfile.mkdtemp(prefix="remora-")
        self._stack.push_async_callback(self._remove, directory)
        self.path = str(Path(directory) / SOCKET_NAME)
        thread = start_answering(Path(directory), bytes)
        assert thread is not None
        return thread

    @staticmethod
    async def _remove(directory: str) -> None:
        await anyio.to_thread.run_sync(shutil.rmtree, directory)

    async def stop(self, seconds: float = 5.0) -> None:
        """Answer what was asked, and close."""
        if self.served is not None:
            await self.served.drain(seconds)
            self.served = None
        await self._stack.aclose()

    async def dial(self) -> str:
        """What a worker calls."""
        self.dialed += 1
        return self.path

    def worker(self) -> RemoteMemory:
        """A worker's memory, not opened."""
        return RemoteMemory(self.make(), self.dial)


def _runtimes(made: Sequence[Runtime] | ShardedRuntime) -> Sequence[Runtime]:
    if isinstance(made, ShardedRuntime):
        return [one for one in made.shards if isinstance(one, Runtime)]
    return made


@asynccontextmanager
async def remote(make: Callable[[], Runtime]) -> AsyncIterator[RemoteShard]:
    """A shard that is used through a socket."""
    async with _workers(lambda: [make()], 1) as (_, (shard,)):
        yield shard


@asynccontextmanager
async def workers(
    path: Path, count: int, config: Config = PLAIN
) -> AsyncIterator[tuple[Owner, list[RemoteShard]]]:
    """An owner and so many workers."""
    async with _workers(lambda: [Runtime(path / "memory", config=config)], count) as found:
        yield found


@asynccontextmanager
async def _workers(
    make: Callable[[], Sequence[Runtime]], count: int
) -> AsyncIterator[tuple[Owner, list[RemoteShard]]]:
    owner = Owner(make)
    await owner.start()
    memories = [owner.worker() for _ in range(count)]
    try:
        yield owner, [(await one.open())[0] for one in memories]
    finally:
        for one in memories:
            await one.aclose()
        await owner.stop()


async def whole_turn(shard: RemoteShard, session: str, text: str) -> None:
    """A turn of ann's, with an answer."""
    async with shard.session("ann", session).turn(text) as turn:
        await turn.reply("yes")


def said(messages: Sequence[Message]) -> list[Any]:
    """What is in them."""
    return [one.content for one in messages]


async def spin(times: int = 20) -> None:
    """Let what was sent arrive."""
    for _ in range(times):
        await asyncio.sleep(0)
