"""Redis: Debian's redis-server, started here on a free loopback port, through redis-py with
hiredis.

An append counts the tokens and is one `RPUSH`, a load one `LRANGE` of the newest 150. The
append-only file is synced at every write (`redis`) or every second (`redis-everysec`).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError

from benchmarks.speed.claim import Skipped
from benchmarks.speed.stores.store import RECENT, Store, within
from benchmarks.speed.text import counter, role_of

_START_S = 10.0


class Redis(Store):
    def __init__(self, server: subprocess.Popen[bytes], client: Any) -> None:
        self.server = server.pid
        self._process = server
        self._client = client
        self._count = counter()

    def _row(self, role: str, text: str) -> str:
        return json.dumps({"role": role, "content": text, "tokens": self._count(text)})

    async def append(self, session: str, role: str, text: str) -> None:
        await self._client.rpush(session, self._row(role, text))

    async def load(self, session: str) -> Sequence[Any]:
        found = [json.loads(one) for one in await self._client.lrange(session, -RECENT, -1)]
        return within([(message, message["tokens"]) for message in found])

    async def fill(self, session: str, texts: Sequence[str]) -> None:
        await self._client.rpush(
            session, *(self._row(role_of(n), text) for n, text in enumerate(texts))
        )

    async def close(self) -> int:
        stored = 0
        async for key in self._client.scan_iter(count=1_000):
            stored += await self._client.llen(key)
        await self._client.aclose()
        self._process.terminate()
        await asyncio.to_thread(self._process.wait, 30)
        return stored


async def opened(contestant: str, directory: Path) -> Store:
    """Start a server.

    Raises:
        Skipped: there is no redis-server.
    """
    binary = shutil.which("redis-server")
    if binary is None:
        raise Skipped("no redis-server on the path")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": directory,
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec" if contestant.endswith("everysec") else "always",
        "logfile": directory / "redis.log",
    }
    words = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    server = subprocess.Popen([binary, *words])  # noqa: ASYNC220 -- before anything is measured; ends with this process's group, should it not be ended below
    pool = redis.BlockingConnectionPool(host="127.0.0.1", port=port, max_connections=64, timeout=60)
    client = redis.Redis(connection_pool=pool)
    begun = time.monotonic()
    while True:
        try:
            await client.ping()
        except RedisError:
            if server.poll() is not None or time.monotonic() - begun > _START_S:
                server.kill()
                raise
            await asyncio.sleep(0.02)
        else:
            return Redis(server, client)
