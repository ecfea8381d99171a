"""Google ADK: `DatabaseSessionService` on a SQLite file.

An append is `append_event` to the session object that is held, a load `get_session` with its newest
150 events.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai.types import Content, Part

from benchmarks.speed.stores.store import RECENT, Store, counted, rows_in
from benchmarks.speed.text import counter

_APP = "bench"


class Adk(Store):
    def __init__(self, file: Path) -> None:
        self._file = file
        self._count = counter()
        self._service = DatabaseSessionService(db_url=f"sqlite+aiosqlite:///{file}")
        self._sessions: dict[str, Any] = {}

    async def _session(self, session: str) -> Any:
        if session not in self._sessions:
            self._sessions[session] = await self._service.create_session(
                app_name=_APP, user_id=session, session_id=session
            )
        return self._sessions[session]

    async def append(self, session: str, role: str, text: str) -> None:
        author, content = ("user", "user") if role == "user" else ("agent", "model")
        event = Event(author=author, content=Content(role=content, parts=[Part(text=text)]))
        await self._service.append_event(await self._session(session), event)

    async def load(self, session: str) -> Sequence[Any]:
        recent = GetSessionConfig(num_recent_events=RECENT)
        found: Any = await self._service.get_session(
            app_name=_APP, user_id=session, session_id=session, config=recent
        )
        self._sessions[session] = found
        return counted(found.events, lambda event: str(event.content.parts[0].text), self._count)

    async def close(self) -> int:
        await self._service.close()
        return rows_in(self._file, "events")


async def opened(contestant: str, directory: Path) -> Store:  # noqa: ARG001
    return Adk(directory / "sessions.db")
