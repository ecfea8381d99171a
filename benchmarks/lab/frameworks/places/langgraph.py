"""remora in the place of LangGraph's stores and checkpointers in memory and in SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import langgraph.checkpoint.memory as memory_savers
import langgraph.checkpoint.sqlite as sqlite_savers
import langgraph.checkpoint.sqlite.aio as aio_savers
import langgraph.store.memory as in_memory
from langgraph.store import sqlite
from langgraph.store.sqlite import aio

from benchmarks.lab.frameworks.places.runtimes import runtime_at
from remora.adapters.langgraph import RemoraStore
from remora.adapters.langgraph_checkpoints import RemoraSaver


def _config(index: Any) -> Any:
    """SQLite's own name for the fields."""
    if index and index.get("text_fields"):
        return {**index, "fields": index["text_fields"]}
    return index


class InMemoryStore(RemoraStore):
    """With the arguments of LangGraph's own."""

    def __init__(self, *, index: Any = None) -> None:
        super().__init__(runtime_at(":memory:").user("store"), index=index)


class _Sqlite(RemoraStore):
    def __init__(self, path: Any, index: Any, ttl: Any) -> None:
        super().__init__(runtime_at(path).user("store"), index=_config(index), ttl=ttl)


class SqliteStore(_Sqlite):
    """With the methods of LangGraph's own that its tests call."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, path: str, *, index: Any = None, ttl: Any = None) -> Iterator[Any]:
        yield cls(path, index, ttl)

    def setup(self) -> None: ...

    def start_ttl_sweeper(self, _interval: Any = None) -> None: ...

    def stop_ttl_sweeper(self, _timeout: Any = None) -> bool:
        return True


class AsyncSqliteStore(_Sqlite):
    """Likewise."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls, path: str, *, index: Any = None, ttl: Any = None
    ) -> AsyncIterator[Any]:
        yield cls(path, index, ttl)

    async def setup(self) -> None: ...

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        return await self.asweep_ttl()

    async def start_ttl_sweeper(self, _interval: Any = None) -> None: ...

    async def stop_ttl_sweeper(self, _timeout: Any = None) -> bool:
        return True


class InMemorySaver(RemoraSaver):
    """With the arguments of LangGraph's own."""

    def __init__(self, *, serde: Any = None) -> None:
        super().__init__(runtime_at(":memory:").user("threads"), serde=serde)


class SqliteSaver(RemoraSaver):
    """Likewise."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, path: str) -> Iterator[Any]:
        yield cls(runtime_at(path).user("threads"))


class AsyncSqliteSaver(RemoraSaver):
    """Likewise."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, path: str) -> AsyncIterator[Any]:
        yield cls(runtime_at(path).user("threads"))


memory_savers.InMemorySaver = InMemorySaver  # type: ignore[misc, assignment]
memory_savers.MemorySaver = InMemorySaver  # type: ignore[assignment]
sqlite_savers.SqliteSaver = SqliteSaver
aio_savers.AsyncSqliteSaver = AsyncSqliteSaver
in_memory.InMemoryStore = InMemoryStore  # type: ignore[misc, assignment]
sqlite.SqliteStore = SqliteStore
sqlite.AsyncSqliteStore = AsyncSqliteStore
aio.AsyncSqliteStore = AsyncSqliteStore
