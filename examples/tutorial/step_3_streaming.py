"""Step 3: the reply is streamed; the client disconnects, and sends the request again."""

from __future__ import annotations

import asyncio

import remora
from examples.tutorial.assistant import Assistant

REPLY = "Take tram 28 early in the morning."
assistant = Assistant(REPLY, REPLY)


async def answer(chat: remora.Session, connected_for: int) -> None:
    """Send the reply, word by word, to a client that disconnects after some words."""
    async with chat.turn("What should I see first?", key="request-2") as turn:
        sent = 0
        async for word in turn.stream(assistant.stream(turn.context.messages)):
            if sent == connected_for:
                raise ConnectionError
            print(word, end="", flush=True)
            sent += 1
    print()


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        chat = runtime.session("alice", "monday")
        try:
            await answer(chat, connected_for=3)
        except ConnectionError:
            print("... the client has gone")
        last = (await chat.history())[-1]
        print(f"stored: {last.content!r}, {last.metadata}")
        await answer(chat, connected_for=100)
        last = (await chat.history())[-1]
        print(f"stored: {last.content!r}, {last.metadata}")


if __name__ == "__main__":
    asyncio.run(main())
