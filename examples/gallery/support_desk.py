"""A support desk whose memory is a server of several tenants: each shop has keys of its own.

``pip install "./remora[serve,client]"``, then, in the clone::

    remora keys keys.txt --add shop          # prints a key; one more for each other tenant
    remora http desk-memory --keys keys.txt       # in a terminal of its own
    REMORA_API_KEY=… python -m examples.gallery.support_desk alice

Each line on standard input is a message of the user, and is answered. ``/said`` lists what the user
said in all conversations, and ``/forget`` erases the user. A key reaches no user of another tenant,
not even one of the same name. While the server is away, the client sends a request again, with the
same idempotency key, so that nothing is stored twice.
"""

from __future__ import annotations

import os
import sys
import uuid

import anyio
import anyio.to_thread

import remora
from examples.gallery.model import text_of, think


async def main(name: str) -> None:
    address = os.environ.get("REMORA_URL", "http://127.0.0.1:8765")
    async with remora.Client(address) as memory:  # with the key in REMORA_API_KEY
        user = memory.user(name)
        chat = user.session(str(uuid.uuid4()))
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            text = line.strip()
            if text == "/said":
                for found in await user.sessions(order="newest"):
                    history = await user.session(found.session).history()
                    print(
                        *(one.content for one in history if one.role == "user"),
                        sep="\n",
                        flush=True,
                    )
            elif text == "/forget":
                receipt = await user.forget()
                print(f"erased from every file by {receipt.erased_by or 'now'}", flush=True)
            elif text:
                async with chat.turn(text, max_tokens=4_000) as turn:
                    async for chunk in turn.stream(think(turn.context.messages)):
                        print(text_of(chunk), end="")
                print(flush=True)


if __name__ == "__main__":
    try:
        anyio.run(main, sys.argv[1])
    except remora.errors.RemoraError as problem:
        sys.exit(f"{type(problem).__name__}: {problem}")
