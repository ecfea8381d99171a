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
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import remora
from remora import errors

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
runtime = remora.Runtime(os.environ.get("MEMORY_DIR", "remora-memory"))


REFUSALS: dict[type[errors.RemoraError], tuple[int, int | None]] = {
    errors.NoDeadLetter: (404, None),
    errors.NoSuchMemory: (404, None),
    errors.ConfigError: (500, None),
    errors.InvalidInput: (400, None),
    errors.InvalidMessage: (400, None),
    errors.IdConflict: (409, None),
    errors.KeyConflict: (409, None),
    errors.NotGranted: (403, None),
    errors.KeyRefused: (401, None),
    errors.RedactionFailed: (500, None),
    errors.ReentrantAsk: (500, None),
    errors.StateConflict: (409, None),
    errors.TurnClosed: (409, None),
    errors.MailboxFull: (429, 1),
    errors.RateLimited: (429, 1),
    errors.OverdraftReached: (429, 5),
    errors.SessionBusy: (429, 5),
    errors.OwnershipLost: (503, 30),  # another process has the journal, and answers
    errors.CommitFailed: (503, 5),
    errors.ErasureDelayed: (503, 30),
    errors.ErasureInProgress: (409, 5),
    errors.OutcomeUnknown: (503, 1),
    errors.RecordingFailed: (503, 5),
    errors.RuntimeClosed: (503, 5),  # the server restarts
    errors.OwnerUnreachable: (503, 1),  # another owner of the memory is about to start
    errors.OwnerFailed: (503, 10),
    errors.ProtocolMismatch: (500, None),
    errors.DirectoryUnusable: (500, None),
    errors.JournalTooNew: (500, None),
    errors.JournalDamaged: (500, None),
    errors.EmbedderChanged: (500, None),
    errors.ModelUnavailable: (503, 5),
    errors.ModelTimeout: (504, 5),
    errors.ModelAnswerInvalid: (502, None),
}
"""HTTP status, and seconds until a retry makes sense (None: never), of each kind of error and of
those that are made from it. Each of remora's errors that may be retried has written nothing, or
is recognized by the request's id: a retry with the same id stores nothing twice.
"""


def refusal(error: errors.RemoraError) -> tuple[int, int | None]:
    if isinstance(error, errors.SessionQuarantined):
        return 503, max(math.ceil(error.retry_after_s), 1)
    for kind in type(error).__mro__:
        if kind in REFUSALS:
            return REFUSALS[kind]
    return (503, 5) if getattr(error, "retryable", False) else (500, None)


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
        status, wait_s = refusal(e)
        answer = {"error": str(e), "retry": "no" if wait_s is None else "with the same id"}
        if wait_s is not None:
            headers.append((b"retry-after", str(wait_s).encode()))
    except (ValueError, KeyError, TypeError) as e:
        status, answer = 400, {"error": str(e)}
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
