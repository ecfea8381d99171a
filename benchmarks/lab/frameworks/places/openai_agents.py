"""remora in the place of the SDK's sessions in SQLite."""

from __future__ import annotations

from typing import Any

import agents
import agents.extensions.memory as extensions
from agents import memory
from agents.extensions.memory import async_sqlite_session, encrypt_session
from agents.memory import sqlite_session

from benchmarks.lab.frameworks.places.runtimes import runtime_at
from remora.adapters.openai_agents import RemoraSession


class SQLiteSession(RemoraSession):
    """With the arguments of the SDK's own. Its encrypting wrapper stores items without a role."""

    def __init__(
        self,
        session_id: str,
        db_path: Any = ":memory:",
        *_tables: str,
        session_settings: Any = None,
    ) -> None:
        session = runtime_at(db_path).session("user", session_id)
        super().__init__(session, session_settings=session_settings, opaque=True)
        self.session_id = session_id

    def close(self) -> None:
        """The runtime is for all sessions of the path."""


class AsyncSQLiteSession(SQLiteSession):
    """Likewise."""

    async def close(self) -> None:  # type: ignore[override]
        """The runtime is for all sessions of the path."""


assert encrypt_session is not None  # imported before: it asks the SDK's own class for more
agents.SQLiteSession = memory.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]
sqlite_session.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]
async_sqlite_session.AsyncSQLiteSession = AsyncSQLiteSession  # type: ignore[misc, assignment]
extensions.AsyncSQLiteSession = AsyncSQLiteSession  # type: ignore[misc, assignment]
