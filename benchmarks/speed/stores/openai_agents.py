"""OpenAI Agents SDK: `SQLiteSession(id, file)`, one object for a session, kept. `add_items`,
`get_items(limit=150)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents import SQLiteSession

from benchmarks.speed.stores.store import RECENT, Store, counted, rows_in
from benchmarks.speed.text import counter, role_of


class OpenAIAgents(Store):
    def __init__(self, file: Path) -> None:
        self._file = file
        self._count = counter()
        self._sessions: dict[str, SQLiteSession] = {}

    def _session(self, session: str) -> SQLiteSession:
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = SQLiteSession(session, self._file)
        return found

    async def append(self, session: str, role: str, text: str) -> None:
        await self._session(session).add_items([{"role": role, "content": text}])  # type: ignore[list-item, misc]

    async def load(self, session: str) -> Sequence[Any]:
        items = await self._session(session).get_items(limit=RECENT)
        return counted(items, lambda item: str(item["content"]), self._count)

    async def fill(self, session: str, texts: Sequence[str]) -> None:
        items: list[Any] = [{"role": role_of(n), "content": text} for n, text in enumerate(texts)]
        await self._session(session).add_items(items)

    async def close(self) -> int:
        for session in self._sessions.values():
            session.close()
        return rows_in(self._file, "agent_messages")


async def opened(contestant: str, directory: Path) -> Store:  # noqa: ARG001
    return OpenAIAgents(directory / "sessions.db")
