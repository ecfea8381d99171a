"""The page of `remora view` without a socket, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx

from remora import Config
from remora.cluster.reading import MemoryReader
from remora.view.app import Guard, ViewOptions, build_app

TOKEN = "t" * 43
HOME = "http://127.0.0.1:8700"


@asynccontextmanager
async def living(app: Guard) -> AsyncIterator[None]:
    """The application between its startup and its shutdown, as a server has it."""
    begin, end, told = anyio.Event(), anyio.Event(), anyio.Event()
    asked = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> dict[str, str]:
        message = next(asked)
        if message["type"] == "lifespan.shutdown":
            await end.wait()
        return message

    async def send(message: MutableMapping[str, Any]) -> None:
        assert not message["type"].endswith("failed"), message
        (begin if message["type"] == "lifespan.startup.complete" else told).set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app, {"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
        await begin.wait()
        yield
        end.set()
        await told.wait()


@asynccontextmanager
async def opened_page(
    directory: Path, config: Config, *, token: str | None = TOKEN, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the page, with its token unless that is None."""
    app = build_app(MemoryReader(directory, config), ViewOptions(TOKEN, 8700, **options))
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    transport: Any = httpx.ASGITransport(app)
    async with (
        living(app),
        httpx.AsyncClient(transport=transport, base_url=HOME, headers=headers) as client,
    ):
        yield client
