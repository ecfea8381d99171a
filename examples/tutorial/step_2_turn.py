"""Step 2: a turn is one request of a user, with the model's reply."""

from __future__ import annotations

import asyncio

import remora
from examples.tutorial.assistant import Assistant

assistant = Assistant("You live in Lisbon.")


async def ask(chat: remora.Session, question: str, request: str) -> str:
    async with chat.turn(question, key=request, max_tokens=4_000) as turn:
        if turn.replayed:  # this request was answered before
            return f"{turn.replies[-1].content} (stored)"
        reply = await assistant.complete(turn.context.messages)
        await turn.reply({"role": "assistant", "content": reply})
        return reply


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        chat = runtime.session("alice", "monday")
        print(await ask(chat, "Where do I live?", request="request-1"))
        print(await ask(chat, "Where do I live?", request="request-1"))  # a retry
        print(f"{len(await chat.history())} messages")


if __name__ == "__main__":
    asyncio.run(main())
