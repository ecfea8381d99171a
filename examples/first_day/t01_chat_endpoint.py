"""A chat endpoint that streams: FastAPI, an OpenAI-compatible model, history, retries, disconnects.

``OPENAI_API_KEY=… uvicorn examples.first_day.t01_chat_endpoint:app``
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from openai import AsyncOpenAI
from pydantic import BaseModel

import remora

runtime = remora.Runtime("memory")
model = AsyncOpenAI()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with runtime:
        yield


app = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    id: str
    content: str


async def begin(user: str, session: str, question: Question) -> AsyncIterator[remora.Turn]:
    async with runtime.session(user, session).turn(question.content, key=question.id) as turn:
        yield turn


async def answer(turn: remora.Turn) -> AsyncGenerator[str]:
    chunks = await model.chat.completions.create(
        model="gpt-4.1-mini", messages=turn.context.messages, stream=True
    )
    async for chunk in turn.stream(chunks):
        yield chunk.choices[0].delta.content or "" if chunk.choices else ""


@app.post("/{user}/{session}")
async def chat(turn: Annotated[remora.Turn, Depends(begin)]) -> Response:
    if turn.replayed:  # the request came before: the stored reply, without the model
        return PlainTextResponse(str(turn.replies[-1].content))
    return StreamingResponse(answer(turn), media_type="text/plain")
