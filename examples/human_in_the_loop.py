"""A conversation that waits for a human, while its process may end.

python examples/human_in_the_loop.py memory ask         # the agent has to ask
python examples/human_in_the_loop.py memory answer yes  # later, in another process
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import remora

BOOKING = {"name": "book_train", "arguments": '{"to": "Porto", "price_eur": 32}'}


async def ask(chat: remora.Session) -> None:
    await chat.append(
        {"role": "user", "content": "Take me to Porto on Friday, cheaply."}, key="request-1"
    )
    # a model's answer: it calls a tool that must not run before a human has agreed
    call: dict[str, Any] = {"id": "call-1", "type": "function", "function": BOOKING}
    await chat.append(
        {"role": "assistant", "content": None, "tool_calls": [call]}, key="request-1/calls"
    )
    context = await chat.load()
    print(f"waiting for a human: {context.awaiting[0]}")


async def answer(chat: remora.Session, words: str) -> None:
    context = await chat.load()
    if not context.awaiting:
        print("nothing to decide")
        return
    calls = {
        call.id: call.function
        for message in await chat.get_messages("assistant")
        for call in message.tool_calls or []
    }
    for call_id in context.awaiting:
        booking = json.loads(calls[call_id].arguments)
        result = (
            f"booked to {booking['to']} for {booking['price_eur']} EUR"
            if words == "yes"
            else "the user declined"
        )
        await chat.append(
            {"role": "tool", "tool_call_id": call_id, "content": result}, key=f"{call_id}/result"
        )
    context = await chat.load()  # now with the call and its result, for the model
    for message in context.messages:
        print(
            f"{message['role']}: "
            f"{message['content'] or message['tool_calls'][0]['function']['name']}"
        )


async def main(directory: str, step: str, words: str = "") -> None:
    async with remora.Runtime(directory) as runtime:
        chat = runtime.session("ana", "trip")
        await (ask(chat) if step == "ask" else answer(chat, words))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
