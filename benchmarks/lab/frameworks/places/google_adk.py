"""remora in the place of ADK's session services in memory and in a database."""

from __future__ import annotations

from typing import Any

from google.adk import sessions
from google.adk.sessions import database_session_service, in_memory_session_service

from benchmarks.lab.frameworks.places.runtimes import runtime_at
from remora.adapters.google_adk import RemoraSessionService


class InMemorySessionService(RemoraSessionService):
    """With the arguments of ADK's own."""

    def __init__(self) -> None:
        super().__init__(runtime_at(":memory:"))


class DatabaseSessionService(RemoraSessionService):
    """Likewise."""

    def __init__(self, _url: str, **_options: Any) -> None:
        super().__init__(runtime_at(":memory:"))


sessions.InMemorySessionService = InMemorySessionService
sessions.DatabaseSessionService = DatabaseSessionService
in_memory_session_service.InMemorySessionService = InMemorySessionService
database_session_service.DatabaseSessionService = DatabaseSessionService
