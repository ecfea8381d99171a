"""mem0: `AsyncMemory.add(…, infer=False)`, so that no model is asked; Qdrant in a directory, its
default.

Words are hashed in place of an embedder. One lock is held around every call: mem0 makes them in
threads, which its embedded Qdrant does not survive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mem0 import AsyncMemory

from benchmarks.lab.correctness.protocol import DIMENSION, Embedding
from benchmarks.speed.stores.store import RECENT, Store, counted
from benchmarks.speed.text import counter

_COLLECTION = "mem0"


class _Embedder:
    def embed(self, text: str, memory_action: str | None = None) -> list[float]:  # noqa: ARG002
        return Embedding.of(text)


class Mem0(Store):
    def __init__(self, directory: Path) -> None:
        store = {
            "path": str(directory / "qdrant"),
            "on_disk": True,
            "embedding_model_dims": DIMENSION,
            "collection_name": _COLLECTION,
        }
        self._count = counter()
        self._lock = asyncio.Lock()
        self._memory = AsyncMemory.from_config(
            {
                "vector_store": {"provider": "qdrant", "config": store},
                "embedder": {
                    "provider": "openai",
                    "config": {"api_key": "none", "embedding_dims": DIMENSION},
                },
                "llm": {"provider": "openai", "config": {"api_key": "none"}},
                "history_db_path": str(directory / "history.db"),
            }
        )
        self._memory.embedding_model = _Embedder()

    async def append(self, session: str, role: str, text: str) -> None:
        async with self._lock:
            await self._memory.add([{"role": role, "content": text}], user_id=session, infer=False)

    async def load(self, session: str) -> Sequence[Any]:
        async with self._lock:
            found = await self._memory.get_all(filters={"user_id": session}, top_k=RECENT)
        rows: list[Any] = sorted(found["results"], key=lambda row: row["created_at"])
        return counted(rows, lambda row: str(row["memory"]), self._count)

    async def close(self) -> int:
        client = self._memory.vector_store.client
        stored: int = (await asyncio.to_thread(client.count, _COLLECTION)).count
        client.close()
        return stored


async def opened(contestant: str, directory: Path) -> Store:  # noqa: ARG001
    return Mem0(directory)
