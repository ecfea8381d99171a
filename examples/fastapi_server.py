"""An agent server in FastAPI: streamed replies, tools, disconnects, repeated requests.

``pip install fastapi uvicorn; uvicorn --factory examples.fastapi_server:create_app``

POST /{user}/{session} with a JSON body {"content": "…", "id": "a unique request id"} streams the
agent's reply as text. A retry with the same id gets the stored reply, or a new one if the first was
cut short. The "model" here needs no key; put yours in `think`, which may yield text or the chunks
of OpenAI's package, tool calls included: `TOOLS` has what they call.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel

import remora
from remora import errors
from remora.results import ToolCall

Think = Callable[[list[dict[str, Any]]], AsyncGenerator[Any, None]]

PROMPT = {"role": "system", "content": "You are a friendly assistant. Answer in few words."}


async def read_thermometer(city: str) -> str:
    return f"18 degrees in {city}"


TOOLS: dict[str, Callable[..., Awaitable[str]]] = {"read_thermometer": read_thermometer}


async def think(messages: list[dict[str, Any]]) -> AsyncGenerator[str, None]:
    for word in f"I can see {len(messages)} messages, the last: {messages[-1]['content']}".split():
        yield f"{word} "


class Question(BaseModel):
    id: str
    content: str


async def begin(
    user: str, session: str, question: Question, http: Request
) -> AsyncIterator[remora.Turn]:
    conversation = http.app.state.runtime.session(user, session)
    async with conversation.turn(question.content, key=question.id, max_tokens=8_000) as turn:
        yield turn  # until the response was sent, or the client has gone


async def chat(turn: Annotated[remora.Turn, Depends(begin)], http: Request) -> Response:
    if turn.replayed:  # this request was answered before
        return PlainTextResponse(str(turn.replies[-1].content))
    return StreamingResponse(answer(turn, http.app.state.think), media_type="text/plain")


async def answer(turn: remora.Turn, think: Think) -> AsyncGenerator[str]:
    while True:
        if turn.open_calls:  # also those of an attempt that was cut short
            for call in turn.open_calls:
                result = await run_tool(call)
                await turn.reply({"role": "tool", "tool_call_id": call.id, "content": result})
            await turn.load()  # with the results
        async with aclosing(turn.stream(think([PROMPT, *turn.context.messages]))) as chunks:
            async for chunk in chunks:
                yield text_of(chunk)
        if not turn.open_calls:
            return


async def run_tool(call: ToolCall) -> str:
    try:
        tool = TOOLS[call.function.name]
        return await tool(**json.loads(call.function.arguments))
    except Exception as e:  # what a model asks for may be wrong: it reads why
        return f"failed: {type(e).__name__}: {e}"


def text_of(chunk: Any) -> str:
    if isinstance(chunk, str):
        return chunk
    return chunk.choices[0].delta.content or "" if chunk.choices else ""


async def refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, errors.RemoraError)
    status, wait_s = remora.http_status(error)
    headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
    return JSONResponse({"error": str(error)}, status, headers)


async def probe(http: Request) -> JSONResponse:
    """What Kubernetes asks: /livez, to start the process again; /readyz, to send requests."""
    health = http.app.state.runtime.health()
    good = health.live if http.url.path == "/livez" else health.ready
    problems = [problem.code for problem in health.problems]
    return JSONResponse({"problems": problems}, status_code=200 if good else 503)


def create_app(directory: str | None = None, model: Think = think) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        where = directory or os.environ.get("MEMORY_DIR", "remora-memory")
        async with remora.Runtime(where) as app.state.runtime:
            yield

    app = FastAPI(lifespan=lifespan)
    app.state.think = model
    app.get("/livez")(probe)
    app.get("/readyz")(probe)
    app.post("/{user}/{session}", response_model=None)(chat)
    app.exception_handler(errors.RemoraError)(refuse)
    return app
