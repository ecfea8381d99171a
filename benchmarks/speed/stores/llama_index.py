"""LlamaIndex: `Memory.from_defaults`, one object per session, over one `SQLAlchemyChatStore`.

The store is on a file. An append is `aput`, a load `aget`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tiktoken
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

from benchmarks.speed.stores.store import BUDGET, Store, rows_in
from benchmarks.speed.text import role_of

_TABLE = "llama_index_memory"


class LlamaIndex(Store):
    def __init__(self, file: Path) -> None:
        self._file = file
        self._store = SQLAlchemyChatStore(
            table_name=_TABLE, async_database_uri=f"sqlite+aiosqlite:///{file}"
        )
        self._encode = tiktoken.get_encoding("o200k_base").encode_ordinary
        self._sessions: dict[str, Memory] = {}

    async def open(self) -> None:
        # Made before sessions race for it.
        await self._store.get_messages("nobody")

    def _session(self, session: str) -> Memory:
        found = self._sessions.get(session)
        if found is None:
            # The share of the conversation is 0.7 by default.
            found = self._sessions[session] = Memory.from_defaults(
                session_id=session,
                token_limit=int(BUDGET / 0.7),
                token_flush_size=400,
                chat_store=self._store,
                tokenizer_fn=self._encode,
            )
        return found

    async def append(self, session: str, role: str, text: str) -> None:
        await self._session(session).aput(ChatMessage(text, role=role))

    async def load(self, session: str) -> Sequence[Any]:
        found: Sequence[Any] = await self._session(session).aget()
        return found

    async def fill(self, session: str, texts: Sequence[str]) -> None:
        await self._session(session).aput_messages(
            [ChatMessage(text, role=role_of(n)) for n, text in enumerate(texts)]
        )

    async def close(self) -> int:
        engine = self._store._async_engine  # noqa: SLF001 -- there is no public way to close it
        if engine is not None:
            await engine.dispose()
        return rows_in(self._file, _TABLE)


async def opened(contestant: str, directory: Path) -> Store:  # noqa: ARG001
    store = LlamaIndex(directory / "memory.db")
    await store.open()
    return store
