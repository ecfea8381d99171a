"""mem0: `AsyncMemory.add(…, infer=False)`, which calls no model.

Its vector store is the default, Qdrant, in the directory. Messages are rows of long-term memory
from the start; a session is a `run_id`. The embedder is the benchmark's instead of OpenAI's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab.correctness.protocol import DIMENSION, Embedding, Setting, user_of

os.environ["MEM0_TELEMETRY"] = "False"  # read when it is imported
from mem0 import AsyncMemory

_NO_SUMMARIZER = "no summarizer without inference"
LACKS: Mapping[str, str] = {
    "summarizer_raises": _NO_SUMMARIZER,
    "overflow": _NO_SUMMARIZER,
    "loads_meanwhile": _NO_SUMMARIZER,
    "append_behind_summary": _NO_SUMMARIZER,
}
_ROLES = ("user", "assistant")
_MANY = 10_000


class _Embedder:
    def __init__(self, setting: Setting) -> None:
        self._embed = setting.embed or Embedding.of

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        return Embedding.of(text) if memory_action == "search" else self._embed(text)


class Mem0:
    def __init__(self, directory: Path, setting: Setting) -> None:
        store = {
            "path": str(directory / "qdrant"),
            "on_disk": True,
            "embedding_model_dims": DIMENSION,
            "collection_name": "mem0",
        }
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
        self._memory.embedding_model = _Embedder(setting)

    async def append(self, session: str, texts: Sequence[str], *, key: str = "") -> None:  # noqa: ARG002 -- it has none
        messages = [{"role": _ROLES[n % 2], "content": text} for n, text in enumerate(texts)]
        await self._memory.add(messages, user_id=user_of(session), run_id=session, infer=False)

    async def load(self, session: str, query: str = "") -> list[str]:
        if query:
            found = await self._memory.search(
                query, filters={"user_id": user_of(session)}, top_k=10
            )
        else:
            found = await self._memory.get_all(
                filters={"user_id": user_of(session), "run_id": session}, top_k=_MANY
            )
        rows: list[Any] = found["results"]
        return [row["memory"] for row in sorted(rows, key=lambda row: row["created_at"])]

    async def buffered(self, session: str) -> list[str]:  # noqa: ARG002 -- every message is in long-term memory at once
        return []

    async def kept(self, session: str) -> list[str]:
        return await self.load(session)

    async def delivered(self) -> list[str]:
        found = await self._memory.get_all(filters={"user_id": "ann"}, top_k=_MANY)
        return [row["memory"] for row in found["results"]]

    async def delete(self, user: str, sessions: Sequence[str]) -> None:  # noqa: ARG002 -- a user's sessions are the user's
        await self._memory.delete_all(user_id=user)

    async def settle(self) -> None:
        pass

    async def close(self) -> None:
        self._memory.vector_store.client.close()
        self._memory.db.close()


async def opened(directory: Path, setting: Setting) -> Mem0:
    """Open it."""
    return Mem0(directory, setting)
