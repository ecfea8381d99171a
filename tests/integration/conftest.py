"""Runtimes over the real stores, small enough to fold within a few messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remora import Config, Runtime

if TYPE_CHECKING:
    from tests.filled import Templates
    from tests.postgres import Cluster

PLAIN_TREE: dict[str, Any] = {"long_term": {"enabled": False}, "models": {"embedder": "none"}}
PLAIN = Config.from_dict(PLAIN_TREE)
"""Sessions alone."""

Open = Callable[[], AbstractAsyncContextManager[Runtime]]
"""Opens the same memory at each call, if that outlives its runtime."""


@pytest.fixture
def small() -> Config:
    """Folds above 210 tokens."""
    return Config.from_dict(
        {"buffer": {"token_limit": 300, "summary_tokens": 80}, "long_term": {"batch_ms": 5}}
    )


@pytest.fixture(params=["sqlite", "memory"])
def open_runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """A runtime without long-term memory, in SQLite and in memory."""
    if request.param == "sqlite":
        return lambda: Runtime(tmp_path / "memory", config=PLAIN)
    return lambda: Runtime.in_memory(config=PLAIN)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Cluster]:
    """PostgreSQL for all tests of this process; nobody stops it or changes its settings."""
    from tests.postgres import running_cluster  # noqa: PLC0415  # adapters' environments lack it

    with running_cluster() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(postgres_server: Cluster) -> Iterator[Cluster]:
    """A database of PostgreSQL for the tests of one module."""
    from tests.postgres import own_database  # noqa: PLC0415

    with own_database(postgres_server) as found:
        yield found


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """Memories to be copied."""
    from tests.filled import Templates  # noqa: PLC0415  # adapters' environments lack LanceDB

    return Templates(tmp_path_factory.mktemp("templates"))


@pytest.fixture
def own_loop() -> Iterator[None]:
    """An event loop of the thread: frameworks that find none make one, and nobody closes it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
