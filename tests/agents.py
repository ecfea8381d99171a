"""Configurations of tests in which an agent's framework uses remora."""

from __future__ import annotations

from typing import Any

from remora import Config

__all__ = ["PLAIN", "PLAIN_TREE", "RECALLING"]

PLAIN_TREE: dict[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "long_term": {"enabled": False},
    "models": {"embedder": "none"},
}
PLAIN = Config.from_dict(PLAIN_TREE)
"""Conversations alone."""

RECALLING = Config.from_dict({"tokens": {"counter": "heuristic"}, "recall": {"deadline_s": 600}})
"""With long-term memory; no answer comes without it, however slow the machine is."""
