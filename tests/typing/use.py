"""What type checkers accept of a program that uses remora, and what they refuse.

It is checked and not run. A line that must be refused carries the error that each checker reports:
a checker reports an ignored error that does not occur, so a line that is accepted fails as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import anthropic
import numpy as np
import numpy.typing as npt
import openai
from openai.types.chat import ChatCompletionMessageParam

import remora


async def openai_loop(
    client: openai.AsyncOpenAI, chat: remora.Session, user: remora.User, text: str
) -> None:
    """The flow that matters: nothing is cast and nothing ignored."""
    tools = user.tools()
    await chat.append({"role": "user", "content": text})
    context = await chat.load(query=text)
    response = await client.chat.completions.create(
        model="m", messages=context.messages, tools=tools.openai()
    )
    message = response.choices[0].message
    await chat.append(message)
    results: list[remora.MessageDict] = []
    for call in message.tool_calls or []:
        if call.type == "function":
            result = await tools.call(call.function.name, call.function.arguments)
            results.append({"role": "tool", "tool_call_id": call.id, "content": result})
    await chat.append(results)
    stream = await client.chat.completions.create(
        model="m",
        messages=[{"role": "system", "content": "Be brief."}, *context.messages],
        stream=True,
    )
    async for chunk in stream:
        print(chunk.choices[0].delta.content)
    messages: list[ChatCompletionMessageParam] = [
        *context.messages,
        {"role": "user", "content": text},
    ]
    await client.chat.completions.create(model="m", messages=messages)
    await client.responses.create(model="m", input=text, tools=tools.responses())


async def anthropic_tools(client: anthropic.AsyncAnthropic, user: remora.User) -> None:
    await client.messages.create(
        model="m",
        max_tokens=9,
        messages=[{"role": "user", "content": "hello"}],
        tools=user.tools().anthropic(),
    )


async def appended(
    chat: remora.Session, text: str, plain: dict[str, Any], many: list[dict[str, Any]]
) -> None:
    """What is taken."""
    await chat.append({"role": "system", "content": text, "name": "app"})
    await chat.append({"role": "user", "content": text, "id": "m1", "metadata": {"lang": "pt"}})
    await chat.append({"role": "user", "content": [{"type": "text", "text": text}]})
    await chat.append({"role": "tool", "tool_call_id": "c1", "content": text}, key="k")
    await chat.append([{"role": "user", "content": text}, {"role": "assistant", "content": text}])
    await chat.append(
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}],
        }
    )
    await chat.append(remora.Message.user(text))
    await chat.append([remora.Message.user(text), plain, {"role": "user", "content": text}])
    await chat.append(plain)
    await chat.append(many)
    await chat.append(json.loads(text))
    context = await chat.load()
    await chat.append(context.messages)
    context.messages.append({"role": "user", "content": text})


async def refused(chat: remora.Session, text: str) -> None:
    """What is not taken."""
    await chat.append({"rol": "user", "content": text})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await chat.append({"role": "usr", "content": text})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await chat.append({"role": "user", "contents": text})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await chat.append({"role": "user", "content": text, "nme": "x"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await chat.append({"role": "user", "content": 7})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await chat.append({"role": "tool", "content": text})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await chat.append([{"role": "usr", "content": text}])  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    await chat.append([{"rol": "user", "content": text}])  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    await chat.append(text)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    context = await chat.load()
    context.messages[0]["rol"]  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    context.messages.append({"rol": "user", "content": text})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]


class PlainModel:
    async def complete(self, messages: list[dict[str, object]]) -> str:
        return str(messages[-1]["content"])


class ReadingModel:
    async def complete(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return str(messages[-1]["content"])


class OpenAIModel:
    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self.client = client

    async def complete(self, messages: list[ChatCompletionMessageParam]) -> str:
        response = await self.client.chat.completions.create(model="m", messages=messages)
        return response.choices[0].message.content or ""


class BlockingModel:
    def complete(self, messages: list[dict[str, str]]) -> str:
        return messages[-1]["content"]


class ListEmbedder:
    name = "lists"
    dimension = 3

    async def embed(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0, 0.0] for _ in texts]


class ArrayEmbedder:
    def __init__(self) -> None:
        self.name = "arrays"
        self.dimension = 3

    async def embed(self, texts: Iterable[str]) -> npt.NDArray[np.float32]:
        return np.ones((len(list(texts)), 3), dtype=np.float32)


class Shortener:
    name = "shortener"

    async def summarize(
        self, previous: str | None, lines: list[remora.Line], max_tokens: int
    ) -> str:
        return "\n".join([previous or "", *(line.text for line in lines)])[:max_tokens]


async def answer(prompt: str) -> str:
    return prompt


def models(client: openai.AsyncOpenAI) -> list[remora.Runtime]:
    return [
        remora.Runtime(
            "memory", chat_model=PlainModel(), embedder=ListEmbedder(), summarizer=Shortener()
        ),
        remora.Runtime("memory", chat_model=ReadingModel(), embedder=ArrayEmbedder()),
        remora.Runtime("memory", chat_model=OpenAIModel(client)),
        remora.Runtime("memory", chat_model=answer),
        remora.Runtime("memory", chat_model=BlockingModel()),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ]


def annotated(model: PlainModel, embedder: ListEmbedder, summarizer: Shortener) -> None:
    chat_model: remora.ChatModel = model
    one: remora.Embedder = embedder
    two: remora.Summarizer = summarizer
    print(chat_model, one, two)
