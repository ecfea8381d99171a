"""Shared fixtures: hypothesis profiles, and the guard that fails a test which blocks the event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.register_profile(
    "soak",
    max_examples=int(os.environ.get("REMORA_EXAMPLES", "20000")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("REMORA_HYPOTHESIS", "ci"))


@pytest.fixture
def anyio_backend() -> str:
    """Tests with the real stores need asyncio; the kernel's own name their backends."""
    return "asyncio"


@pytest.fixture(autouse=True)
def blocking_guard(request: pytest.FixtureRequest) -> Iterator[BlockBuster | None]:
    """Fail a test whose event loop is blocked by file, socket or sleep calls (S4.02)."""
    if request.node.get_closest_marker("blocking"):
        yield None
        return
    with blockbuster_ctx() as guard:
        # the import system reads files, and pytest's own reporting writes them
        guard.functions["os.stat"].can_block_in("importlib/_bootstrap_external.py", {"_path_stat"})
        yield guard
