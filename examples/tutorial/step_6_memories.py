"""Step 6: memories that the application writes, corrects and deletes."""

from __future__ import annotations

import asyncio

import remora


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        alice = runtime.user("alice")
        await alice.remember("Alice eats fish.", key="diet")
        await alice.remember("Alice is a vegetarian.", key="diet", replace=True)
        (shoes,) = await alice.remember("Alice has size 38 shoes.")
        await alice.update_memory(shoes, "Alice has size 39 shoes.")
        for memory in await alice.remembered():
            print(f"{memory.key}: {memory.text}")
        await alice.delete(shoes)
        print(f"{len(await alice.remembered())} memory")


if __name__ == "__main__":
    asyncio.run(main())
