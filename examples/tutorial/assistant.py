"""The model of the tutorial: a script, or a real one if OPENAI_API_KEY is set."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Any

from remora.testing import ScriptedChatModel

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")


class Assistant:
    """Answers with the texts of the script, in order."""

    def __init__(self, *script: str) -> None:
        self._script = ScriptedChatModel(script)

    async def complete(self, messages: list[Any]) -> str:
        if "OPENAI_API_KEY" not in os.environ:
            return await self._script.complete(messages)
        from openai import AsyncOpenAI  # noqa: PLC0415  # pip install openai

        async with AsyncOpenAI() as client:
            answer = await client.chat.completions.create(model=MODEL, messages=messages)
            return answer.choices[0].message.content or ""

    async def stream(self, messages: list[Any]) -> AsyncGenerator[str]:
        if "OPENAI_API_KEY" not in os.environ:
            for word in (await self._script.complete(messages)).split(" "):
                yield f"{word} "
            return
        from openai import AsyncOpenAI  # noqa: PLC0415

        async with AsyncOpenAI() as client:
            async for chunk in await client.chat.completions.create(
                model=MODEL, messages=messages, stream=True
            ):
                yield chunk.choices[0].delta.content or "" if chunk.choices else ""
