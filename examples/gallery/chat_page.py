"""A chat page that streams replies and calls tools, on several worker processes.

``pip install fastapi uvicorn "./remora"``, then, in the clone,
``uvicorn --workers 4 examples.gallery.chat_page:app``, and open http://127.0.0.1:8000

Each browser is a user: a random cookie says which. All workers share one memory, whose process the
first of them starts. A request that comes twice, to any worker, is answered once: the page sends it
again, with the same id, if a reply breaks off.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Cookie, Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse

import remora
from examples.fastapi_server import Question, answer, probe, refuse
from examples.gallery.model import think

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_thermometer",
            "description": "The temperature in a city, now.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
PAGE = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
POLICY = "default-src 'none'; connect-src 'self'; script-src 'nonce-{0}'; style-src 'nonce-{0}'"


def memory() -> remora.Runtime:
    """The memory of all workers: each calls this, and so does the process that owns it."""
    return remora.Runtime(os.environ.get("MEMORY_DIR", "chat-memory"))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with remora.connect("examples.gallery.chat_page:memory") as app.state.runtime:
        yield


def find_user(http: Request, browser: Annotated[str | None, Cookie()] = None) -> remora.User:
    if browser is None:
        raise HTTPException(401, "open the page first: it gives the browser its cookie")
    # the cookie is a secret and is stored nowhere; its digest is the user's id
    user_id = hashlib.sha256(browser.encode()).hexdigest()
    user: remora.User = http.app.state.runtime.user(user_id)
    return user


User = Annotated[remora.User, Depends(find_user)]


async def begin(session: str, question: Question, user: User) -> AsyncIterator[remora.Turn]:
    conversation = user.session(session)
    async with conversation.turn(question.content, key=question.id, max_tokens=8_000) as turn:
        yield turn


async def ask(turn: Annotated[remora.Turn, Depends(begin)]) -> Response:
    if turn.replayed:
        return PlainTextResponse(str(turn.replies[-1].content))
    return StreamingResponse(answer(turn, partial(think, tools=TOOLS)), media_type="text/plain")


async def read(session: str, user: User) -> list[dict[str, Any]]:
    """The conversation, for a page that is opened again; calls without text are left out."""
    history = await user.session(session).history()
    return [{"role": one.role, "content": str(one.content)} for one in history if one.content]


def show(browser: Annotated[str | None, Cookie()] = None) -> Response:
    nonce = secrets.token_urlsafe(16)
    headers = {"Content-Security-Policy": POLICY.format(nonce), "Cache-Control": "no-store"}
    page = HTMLResponse(PAGE.replace("NONCE", nonce), headers=headers)
    if browser is None:  # behind TLS, add secure=True
        page.set_cookie("browser", secrets.token_urlsafe(32), httponly=True, samesite="strict")
    return page


app = FastAPI(lifespan=lifespan)
app.get("/")(show)
app.get("/livez")(probe)
app.get("/readyz")(probe)
app.get("/chats/{session}")(read)
app.post("/chats/{session}", response_model=None)(ask)
app.exception_handler(remora.errors.RemoraError)(refuse)
