"""An ASGI application whose workers share a memory: what the recipes of docs/how-to/workers.md run.

``MEMORY`` in the environment is the target. ``/append/USER/NUMBER`` appends, with a key;
``/history/USER`` lists; each answer has the worker's process id in a header.
"""

from __future__ import annotations

import json
import os
from typing import Any

import remora

__all__ = ["app"]

_state: dict[str, Any] = {}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """The application."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
        return
    status, body = 200, b""
    try:
        body = json.dumps(await _answer(scope["path"].split("/")[1:])).encode()
    except remora.errors.RemoraError as e:
        status, body = 500, f"{type(e).__name__}: {e}".encode()
    headers = [(b"x-pid", str(os.getpid()).encode()), (b"connection", b"close")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _answer(words: list[str]) -> Any:
    memory = _state["memory"]
    match words:
        case ["append", user, number]:
            chat = memory.session(user, "s")
            message = {"role": "user", "content": number}
            return (await chat.append(message, key=f"k{number}")).seqs
        case ["history", user]:
            return [message.content for message in await memory.session(user, "s").history()]
        case _:
            return None


async def _live(receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "lifespan.startup"
    async with remora.connect(os.environ["MEMORY"]) as memory:
        _state["memory"] = memory
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
    await send({"type": "lifespan.shutdown.complete"})
