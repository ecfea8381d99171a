"""An agent server in plain ASGI, for any ASGI server.

``pip install uvicorn; uvicorn examples.asgi_server:app``

POST /{user}/{session} with a JSON body {"content": "…", "id": "a unique request id"} answers with
the agent's reply. A retry with the same id gets the same reply. GET /livez and
/readyz are the probes of a container; GET /ready waits a second for models and tables, and answers
with status 503 until they are loaded. The "model" here only counts, so
that the example needs no key; put yours in `think`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import remora
from remora import errors

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
runtime = remora.Runtime(os.environ.get("MEMORY_DIR", "remora-memory"))


async def think(messages: Sequence[Mapping[str, Any]]) -> str:
    return f"I can see {len(messages)} messages, the last: {messages[-1]['content']}"


async def chat(user: str, session: str, content: str, request: str) -> str:
    conversation = runtime.session(user, session)
    async with conversation.turn(content, key=request, max_tokens=8_000) as turn:
        if turn.replayed:  # the request came before, and was answered
            return str(turn.replies[-1].content)
        reply = await think(turn.context.messages)
        await turn.reply(reply)
        return reply


async def live(receive: Receive, send: Send) -> None:
    """The server's lifespan: it does not start if the memory directory cannot be opened."""
    await receive()
    async with contextlib.AsyncExitStack() as opened:
        try:
            await opened.enter_async_context(runtime)
        except errors.RemoraError as e:
            await send({"type": "lifespan.startup.failed", "message": str(e)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await live(receive, send)
        return
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    status, headers = 200, [(b"content-type", b"application/json")]
    answer: dict[str, Any] = {}
    try:
        if scope["path"] in {"/livez", "/readyz"}:  # what Kubernetes asks
            health = runtime.health()
            good = health.live if scope["path"] == "/livez" else health.ready
            status, answer = 200 if good else 503, {"problems": [p.code for p in health.problems]}
        elif scope["path"] == "/ready":
            await runtime.ready(timeout_s=1)
        else:
            user, session = (unquote(part) for part in scope["path"].strip("/").split("/"))
            request = json.loads(body)
            answer = {"reply": await chat(user, session, request["content"], request["id"])}
    except errors.RemoraError as e:
        status, wait_s = remora.http_status(e)
        answer = {"error": str(e), "retry": "no" if wait_s is None else "with the same id"}
        if wait_s is not None:
            headers.append((b"retry-after", str(wait_s).encode()))
    except (ValueError, KeyError, TypeError) as e:
        status, answer = 400, {"error": str(e)}
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
