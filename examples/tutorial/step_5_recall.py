"""Step 5: another conversation knows what was said in the first."""

from __future__ import annotations

import asyncio

import remora


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        await runtime.ready()  # LanceDB and the embedder are loaded
        question = "Which city did I move to?"
        context = await runtime.session("alice", "friday").load(query=question, max_tokens=300)
        for message in context.messages:
            print(f"{message['role']}: {message['content']}")
        print(f"long-term memory: {context.sources.long_term.status}")
        print(f"Bob: {await runtime.user('bob').recall(question)}")


if __name__ == "__main__":
    asyncio.run(main())
