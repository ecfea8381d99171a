"""remora in the place of Strands' sessions in files and of the repository of its own tests."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from strands import session as sessions
from strands.session import RepositorySessionManager, file_session_manager

from benchmarks.lab.frameworks.places.runtimes import runtime_at
from remora.adapters.strands import RemoraSessionRepository


class MockedSessionRepository(RemoraSessionRepository):
    """With the arguments of the tests' own."""

    def __init__(self) -> None:
        super().__init__(runtime_at(":memory:").user("user"))


class FileSessionManager(RemoraSessionRepository, RepositorySessionManager):
    """With the arguments of Strands' own, and a repository as well, as that is."""

    def __init__(self, session_id: str, storage_dir: str | None = None, **_options: Any) -> None:
        RemoraSessionRepository.__init__(self, runtime_at(storage_dir or ":memory:").user("user"))
        RepositorySessionManager.__init__(self, session_id, self)


fixtures: Any = import_module("tests.fixtures.mock_session_repository")  # of Strands
fixtures.MockedSessionRepository = MockedSessionRepository
sessions.FileSessionManager = FileSessionManager
file_session_manager.FileSessionManager = FileSessionManager
