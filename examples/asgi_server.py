"""An agent server in plain ASGI, for any ASGI server.

``pip install uvicorn; uvicorn examples.asgi_server:app``

POST /{user}/{session} with a JSON body {"content": "…", "id": "a unique request id"} answers with
the agent's reply. A retry with the same id stores nothing twice. The "model" here only counts, so
that the example needs no key; put yours in `think`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import remora

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
runtime = remora.Runtime(os.environ.get("MEMORY_DIR", "remora-memory"))


async def think(messages: list[dict[str, Any]]) -> str:
    return f"I can see {len(messages)} messages, the last: {messages[-1]['content']}"


async def chat(user: str, session: str, content: str, request: str) -> str:
    conversation = runtime.session(user, session)
    await conversation.append({"role": "user", "content": content}, key=f"{request}/user")
    context = await conversation.load(query=content, max_tokens=8_000)
    reply = await think(context.messages)
    await conversation.append({"role": "assistant", "content": reply}, key=f"{request}/assistant")
    return reply


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await receive()
        async with runtime:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    status, answer = 200, {}
    try:
        user, session = (unquote(part) for part in scope["path"].strip("/").split("/"))
        request = json.loads(body)
        answer = {"reply": await chat(user, session, request["content"], request["id"])}
    except (remora.errors.MailboxFull, remora.errors.OutcomeUnknown) as e:
        status, answer = 503, {"error": str(e)}  # retry with the same id
    except (ValueError, KeyError, TypeError) as e:
        status, answer = 400, {"error": str(e)}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/json")],
        }
    )
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
