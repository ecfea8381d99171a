"""Several workers share a memory: each connects to the process that owns it.

Start ``python -m examples.first_day.t10_several_workers NUMBER`` in several terminals: the first
starts the owner. A server connects in its lifespan, as examples/gallery/chat_page.py does; then
``uvicorn --workers 4`` needs nothing else.
"""

from __future__ import annotations

import asyncio
import sys

import remora


async def work(number: str) -> None:
    async with remora.connect("memory") as memory:
        chat = memory.session("alice", "chat")
        greeting = remora.Message.human(f"Hello, worker {number}!")
        await chat.append(greeting, key=f"request-{number}")
        print([one.content for one in await chat.history()], flush=True)
        await asyncio.to_thread(sys.stdin.read)  # a server serves here


asyncio.run(work(sys.argv[1]))
