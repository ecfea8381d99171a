"""Embeddings of OpenAI, or of any endpoint like it: two lines of configuration.

``pip install "./remora[openai]"``, then
``OPENAI_API_KEY=… python -m examples.first_day.t05_openai_embeddings``
"""

from __future__ import annotations

import asyncio

import remora

config = remora.Config.from_dict(
    {"models": {"embedder": "openai", "embedding_model": "text-embedding-3-small"}}
)


async def main() -> None:
    async with remora.Runtime("memory", config=config) as runtime:
        await runtime.user("alice").remember("Alice's cat is called Figaro.")
        for memory in await runtime.user("alice").recall("pets"):
            print(memory.text)


asyncio.run(main())
