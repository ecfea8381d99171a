"""A memory that this process serves over HTTP: its application, its keys, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from remora import Client, Runtime
from remora.rest.app import RestOptions, build_app
from remora.rest.keys import KeyFile, add_key
from remora.rest.limits import RateLimit
from remora.rest.server import make_server
from remora.runtime.clock import SystemClock
from remora.system.sockets import listen_tcp

__all__ = ["NOT_SERVED", "WHO_RUNS_IT", "Service", "Settled", "connected", "is_served"]

NOT_SERVED = {
    "Runtime": """aclose backup config counts erasures export
        from_file health import_ in_memory internals long_term_statistics message_tokens path ready
        reembedded reembedding reschedule retry_erasures settle start
        statistics""",
    "User": "agent export_arrow import_session inspect record_many settle tools",
    "Session": "exclusive export inspect load_state_dict settle state_dict",
    "SharedMember": "settle",
}
"""Verbs of the operator, or of who holds the process. docs/how-to/http.md says so."""
WHO_RUNS_IT = frozenset(
    """
    a backup over something, a context is recorded, a past that was rewritten, a periodic task,
    agents, an agent's memory, an exclusive block, an export of nothing, an import over another,
    another session, figures, listings, no export at all, no interval, no such task,
    no user, nothing to import, sessions that exist, tokens, tools, what is configured
    """.replace("\n    ", " ")
    .strip()
    .split(", ")
)
"""Calls of `tests.verbs` that use several verbs, and one of `NOT_SERVED`."""


def is_served(name: str) -> bool:
    """Whether a call of `tests.verbs` is one that a client can make."""
    kind, _, verb = name.partition(".")
    return not (
        kind in {"Agent", "Runtime"}
        or verb in NOT_SERVED.get(kind, "").split()
        or name in WHO_RUNS_IT
    )


class Service:
    """The application.

    Args:
        runtime: what is served.
        path: a directory for the file of keys.
        rate: of the requests of one key.
        options: of the application, which has no limit of wrong keys a second without one.

    Attributes:
        file: of keys.
        keys: as they were when they were read.
        address: while it listens.
    """

    def __init__(
        self, runtime: Runtime, path: Path, rate: RateLimit | None = None, **options: Any
    ) -> None:
        self.runtime = runtime
        self.file = path / "keys.txt"
        self.key()
        self.keys = KeyFile(self.file)
        rate = rate or RateLimit(0, SystemClock())
        self._app = build_app(
            runtime, self.keys, rate, RestOptions(**{"keyless_rate": 1e9} | options)
        )

    address = ""

    def key(self, tenant: str = "shop") -> str:
        """A new key of a tenant."""
        return add_key(self.file, tenant)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, with the keys of this moment; a server looks at them once a second."""
        self.keys.refresh()
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """A server of it, with the keys that there are now; yields its port.

        Event streams of all servers of it end with this one.
        """
        self.keys.refresh()
        with listen_tcp("127.0.0.1", 0) as listener:
            server = make_server(self._app)
            serving = asyncio.create_task(server.serve([listener]))
            port = int(listener.getsockname()[1])
            self.address = f"http://127.0.0.1:{port}"
            try:
                yield port
            finally:
                server.should_exit = True
                await serving


class Settled(Client):
    """A client that can wait for the memory behind it, and export it, as tests need to."""

    behind: Runtime

    async def settle(self) -> None:
        await self.behind.settle()

    async def export(self, path: Path) -> Any:
        return await self.behind.export(path)


@asynccontextmanager
async def connected(
    runtime: Runtime, path: Path, *, tenant: str = "shop", **options: Any
) -> AsyncIterator[Settled]:
    """A client of a service of this process, over a socket: only there an answer is a stream."""
    service = Service(runtime, path)
    key = service.key(tenant)
    async with service.listening():
        async with Settled(f"{service.address}/", api_key=key, **options) as client:
            client.behind = runtime
            yield client
