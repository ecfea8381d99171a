"""LangGraph's `AsyncSqliteStore` on a file, which writes all calls of a tick in one transaction.

An append is one `aput` under a running key, a load `asearch(limit=150)`, a sort and a trim.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from langgraph.store.sqlite import AsyncSqliteStore

from benchmarks.speed.stores.store import RECENT, Store, counted, rows_in
from benchmarks.speed.text import counter, role_of


class LangGraphStore(Store):
    def __init__(self, file: Path) -> None:
        self._file = file
        self._count = counter()
        self._stack = AsyncExitStack()
        self._numbers: Counter[str] = Counter()
        self._store: Any = None

    async def open(self) -> None:
        self._store = await self._stack.enter_async_context(
            AsyncSqliteStore.from_conn_string(str(self._file))
        )
        await self._store.setup()

    async def append(self, session: str, role: str, text: str) -> None:
        self._numbers[session] += 1
        key = f"{self._numbers[session]:09}"
        await self._store.aput((session,), key, {"role": role, "content": text}, index=False)

    async def fill(self, session: str, texts: Sequence[str]) -> None:
        await asyncio.gather(
            *(self.append(session, role_of(n), text) for n, text in enumerate(texts))
        )

    async def load(self, session: str) -> Sequence[Any]:
        found = await self._store.asearch((session,), limit=RECENT)
        return counted(
            sorted(found, key=lambda item: item.key),
            lambda item: str(item.value["content"]),
            self._count,
        )

    async def close(self) -> int:
        await self._stack.aclose()
        return rows_in(self._file, "store")


async def opened(contestant: str, directory: Path) -> Store:  # noqa: ARG001
    store = LangGraphStore(directory / "store.db")
    await store.open()
    return store
