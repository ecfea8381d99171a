"""Both ways at once: the application records messages, the model saves what it finds important.

A fact is stored once. Runs without a key, with the scripted model of `examples.agent_controlled`:
``python3 -m examples.hybrid``.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import remora
from examples.agent_controlled import ToolModel, calls, chat


async def main(directory: str) -> None:
    model = ToolModel(
        [
            calls(
                "save_to_memory",
                thinking="Worth keeping.",
                content=["My birthday is on March 15.", "Prefers short answers"],
            ),
            "Noted!",
        ]
    )
    async with remora.Runtime(directory) as runtime:
        alice = runtime.user("alice")
        said = "My birthday is on March 15."
        answer = await chat(alice, "monday", model, said)
        await alice.record(
            [{"role": "user", "content": said}, {"role": "assistant", "content": answer}],
            session="monday",
        )
        await alice.settle()
        for memory in await alice.memories():
            print(f"{memory.type}: {memory.text}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            asyncio.run(main(temporary))
