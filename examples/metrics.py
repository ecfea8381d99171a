"""Figures of a runtime as text for Prometheus, served as ``/metrics`` by any ASGI server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import remora
import remora.metrics

Send = Callable[[dict[str, Any]], Awaitable[None]]


async def answer_metrics(runtime: remora.Runtime, send: Send) -> None:
    """What the server does for GET /metrics."""
    headers = [(b"content-type", remora.metrics.CONTENT_TYPE.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": remora.metrics.render(runtime).encode()})


async def main() -> None:
    async def send(event: dict[str, Any]) -> None:
        print(event.get("body", b"").decode(), end="")

    async with remora.Runtime.in_memory() as runtime:
        await runtime.session("alice", "chat").append({"role": "user", "content": "Hello"})
        await answer_metrics(runtime, send)


if __name__ == "__main__":
    asyncio.run(main())
