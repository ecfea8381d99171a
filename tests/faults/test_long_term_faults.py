"""Long-term memory that cannot be written for a while, on a file system that really refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.long_term_faults import LONG_TERM_FAULTS, possible, talk_through
from remora import Config

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # moves and mounts directories

FAST = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"batch_ms": 1, "shards": 2},
        "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.1, "max_attempts": 2},
    }
)


@pytest.mark.parametrize("fault", LONG_TERM_FAULTS)
async def test_long_term_memory_is_away(tmp_path: Path, fault: str) -> None:
    """G5, G7: appends go on, flush jobs wait past their last attempt, and when it is back all
    arrives by itself, each once.
    """
    if why := possible(fault):
        pytest.skip(f"{fault}: {why}")
    report = await talk_through(tmp_path, fault, FAST)
    assert report.injected == 1
    assert report.failed > 0
    assert len(report.append_ms) == 72
    assert report.verdict.wrong == {}
