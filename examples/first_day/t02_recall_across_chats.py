"""What a user said in one chat is known in another at once; no key, no network.

``python -m examples.first_day.t02_recall_across_chats``
"""

from __future__ import annotations

import asyncio

import remora


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        alice = runtime.user("alice")
        await alice.session("monday").append({"role": "user", "content": "I moved to Lisbon."})
        for memory in await alice.recall("Where do I live?", limit=3):
            print(memory.line)


asyncio.run(main())
