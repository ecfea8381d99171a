"""Runtimes over the real stores, small enough to fold within a few messages."""

from __future__ import annotations

import pytest

from remora import Config


@pytest.fixture
def small() -> Config:
    """Folds above 210 tokens."""
    return Config.from_dict(
        {"buffer": {"token_limit": 300, "summary_tokens": 80}, "long_term": {"batch_ms": 5}}
    )
