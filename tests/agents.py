"""Configurations of tests in which an agent's framework uses remora."""

from __future__ import annotations

from remora import Config

__all__ = ["PLAIN", "RECALLING"]

PLAIN = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
    }
)
"""Conversations alone."""

RECALLING = Config.from_dict({"tokens": {"counter": "heuristic"}, "recall": {"deadline_s": 60}})
"""With long-term memory; no answer comes without it, however slow the machine is."""
