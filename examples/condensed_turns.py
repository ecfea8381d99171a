"""Limit multi-turn confusion: ask a model one question that contains the whole request.

Some models lose the thread over many turns. The conversation is kept as it was; the answering
model sees the system message and one condensed question.
"""

from __future__ import annotations

import asyncio

import remora
from remora.messages import plain_text
from remora.models.ports import ChatModel
from remora.testing import ScriptedChatModel

CONDENSE = (
    "Restate what the user wants now as one request "
    "that can be understood without the conversation:\n\n"
)


async def chat(memory: remora.Session, model: ChatModel, text: str) -> str:
    await memory.append({"role": "user", "content": text})
    context = await memory.load(max_tokens=8_000)
    if len(context.messages) > 1:
        conversation = "\n".join(
            f"{message['role']}: {plain_text(message)}" for message in context.messages
        )
        text = await model.complete([{"role": "user", "content": CONDENSE + conversation}])
    # the session itself is not changed
    one_turn = await memory.load(override=[{"role": "user", "content": text}])
    reply = await model.complete(
        [{"role": "system", "content": "You draw SVG."}, *one_turn.messages]
    )
    await memory.append({"role": "assistant", "content": reply})
    return reply


async def main() -> None:
    model = ScriptedChatModel(
        ["<circle/>", "Draw a red circle, twice as large.", "<circle fill='red' r='2'/>"]
    )
    async with remora.Runtime.in_memory() as runtime:
        memory = runtime.session("ana", "drawing")
        await chat(memory, model, "Draw a circle.")
        await chat(memory, model, "Red, and twice as large.")
        print("the model was asked:", model.requests[-1][-1]["content"])
        print("the session has:", [message.content for message in await memory.history()])


if __name__ == "__main__":
    asyncio.run(main())
