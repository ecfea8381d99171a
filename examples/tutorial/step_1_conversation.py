"""Step 1: a conversation that is stored."""

from __future__ import annotations

import asyncio

import remora


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        chat = runtime.session("alice", "monday")
        await chat.append({"role": "user", "content": "I am Alice, and I moved to Lisbon."})
        await chat.append({"role": "assistant", "content": "Welcome, Alice!"})
        context = await chat.load()
        for message in context.messages:
            print(f"{message['role']}: {message['content']}")
        print(f"{context.tokens} tokens")


if __name__ == "__main__":
    asyncio.run(main())
