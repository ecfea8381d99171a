"""A proxy before the tests' PostgreSQL, which may stand still, be slow, or change what is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.postgres import Cluster

__all__ = ["PostgresProxy", "running_proxy"]


class PostgresProxy:
    """What a network does: `freeze` forwards nothing more, and ends no connection.

    Attributes:
        dsn: of the cluster behind it.
        delay_s: before each piece of what the server says.
        change: makes another text of what the server says.
        mark: the next statement with these bytes breaks its connection: before the server gets it,
            or, with `answers_lost`, when the server has answered and nobody has heard it.
        refuses: new connections end at once.
    """

    mark: bytes | None = None
    answers_lost = False
    refuses = False

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.delay_s = 0.0
        self.change: Callable[[bytes], bytes] = bytes
        self._flows = asyncio.Event()
        self._flows.set()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    async def copy(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        change: Callable[[bytes], bytes],
        *,
        slow: bool,
        broken: asyncio.Event,
    ) -> None:
        """Forward one direction of a connection."""
        try:
            while data := await source.read(1 << 16):
                if self.mark is not None and self.mark in data:  # only clients say it
                    self.mark = None
                    if not self.answers_lost:
                        break
                    broken.set()
                elif broken.is_set():  # the answer
                    break
                if slow and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._flows.wait()
                sink.write(change(data))
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


@asynccontextmanager
async def running_proxy(cluster: Cluster, directory: Path) -> AsyncIterator[PostgresProxy]:
    """A proxy on a Unix socket in a directory, which is not the cluster's."""
    where = cluster.dsn().rpartition("host=")[2]
    proxy = PostgresProxy(cluster.dsn().replace(where, str(directory)))
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if proxy.refuses:
            writer.transport.abort()
            return
        broken = asyncio.Event()
        theirs, ours = await asyncio.open_unix_connection(f"{where}/.s.PGSQL.5432")
        for source, sink, change, slow in (
            (reader, ours, bytes, False),
            (theirs, writer, proxy.change, True),
        ):
            task = asyncio.ensure_future(proxy.copy(source, sink, change, slow=slow, broken=broken))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_unix_server(serve, directory / ".s.PGSQL.5432")
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
