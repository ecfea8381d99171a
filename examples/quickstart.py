"""The smallest use of remora: a conversation, and a later one that remembers it.

Needs no API key and no network. Each message has an idempotency key, so a second run on the same
directory adds nothing.
"""

from __future__ import annotations

import asyncio
import sys

import remora


async def main(directory: str) -> None:
    async with remora.Runtime(directory) as runtime:
        alice = runtime.user("alice")
        monday = alice.session("monday")
        await monday.append(
            {"role": "user", "content": "I moved to Lisbon, and my cat is called Figaro."},
            key="req-1",
        )
        await monday.append(
            {"role": "assistant", "content": "Lovely! How does Figaro like it?"}, key="req-1/reply"
        )

        friday = alice.session("friday")
        await friday.append(
            {"role": "user", "content": "Where do I live, and with whom?"}, key="req-2"
        )
        context = await friday.load(query="Where do I live, and with whom?", max_tokens=4000)
        for message in context.messages:
            print(f"{message['role']}: {message['content']}")
        print(f"({context.tokens} tokens)")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "remora-memory"))
