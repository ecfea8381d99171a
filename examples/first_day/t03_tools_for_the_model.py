"""The model saves and recalls by itself: remora's tools in an ordinary tool-call loop.

``OPENAI_API_KEY=… python -m examples.first_day.t03_tools_for_the_model "My birthday is …"``
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from openai import AsyncOpenAI

import remora


async def answer(user: remora.User, question: str) -> str:
    model, tools = AsyncOpenAI(), user.tools()
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        response = await model.chat.completions.create(
            model="gpt-4.1-mini", messages=messages, tools=tools.openai()
        )
        messages.append(message := response.choices[0].message)
        for call in message.tool_calls or ():
            if call.type == "function":
                result = await tools.call(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not message.tool_calls:
            return message.content or ""


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        print(await answer(runtime.user("alice"), sys.argv[1]))


asyncio.run(main())
