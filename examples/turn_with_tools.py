"""A turn in which the model calls a tool; the server fails in the middle, and the request is sent
again.

``python -m examples.turn_with_tools DIRECTORY``
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import remora

CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "read_thermometer", "arguments": '{"city": "Lisbon"}'},
}


def read_thermometer() -> str:
    print("the thermometer was read")
    return "18 degrees"


async def ask(
    chat: remora.Session,
    question: str,
    request: str,
    model: Callable[[Any], Awaitable[dict[str, Any]]],
) -> str:
    async with chat.turn(question, key=request) as turn:
        while not turn.replayed:
            for call in turn.open_calls:
                result = read_thermometer()
                await turn.reply({"role": "tool", "tool_call_id": call.id, "content": result})
            context = await turn.load()
            message = await model(context.messages)
            await turn.reply(message)
            if not message.get("tool_calls"):
                break
        return str(turn.replies[-1].content)


async def think(messages: list[dict[str, Any]]) -> dict[str, Any]:
    newest = messages[-1]
    if newest["role"] == "tool":
        return {"role": "assistant", "content": f"It has {newest['content']} in Lisbon."}
    return {"role": "assistant", "content": None, "tool_calls": [CALL]}


async def fail_after_the_tool(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if messages[-1]["role"] == "tool":
        raise ConnectionError("the model is gone")
    return await think(messages)


async def main(directory: str) -> None:
    async with remora.Runtime(directory) as runtime:
        chat = runtime.session("alice", "chat-42")
        for model in (fail_after_the_tool, think, think):
            try:
                print(await ask(chat, "How warm is it?", "request-1", model))
            except ConnectionError as e:
                print(f"failed: {e}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
