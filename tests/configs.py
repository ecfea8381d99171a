"""Configurations of tests."""

from __future__ import annotations

from typing import Any

from remora import Config

__all__ = [
    "LEAN",
    "LEAN_ENVIRONMENT",
    "LEAN_TREE",
    "PLAIN",
    "PLAIN_TREE",
    "RECALLING",
    "poison",
]

LEAN_TREE: dict[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "models": {"embedder": "none"},
    "long_term": {"shards": 2, "batch_ms": 1},
    "recall": {"deadline_s": 600.0},  # nothing is left out because the machine is busy
}
LEAN = Config.from_dict(LEAN_TREE)
"""Long-term memory searched by words."""

LEAN_ENVIRONMENT = {
    "REMORA_TOKENS__COUNTER": "heuristic",
    "REMORA_MODELS__EMBEDDER": "none",
    "REMORA_RECALL__DEADLINE_S": "600",
}
"""The same for commands, but for the number of shards."""

PLAIN_TREE: dict[str, Any] = {**LEAN_TREE, "long_term": {"enabled": False}}
PLAIN = Config.from_dict(PLAIN_TREE)
"""Sessions alone."""

RECALLING = Config.from_dict({"tokens": {"counter": "heuristic"}, "recall": {"deadline_s": 600}})
"""The installed defaults, with long-term memory: what an agent of a framework uses."""


def poison(text: str) -> str:
    """A redaction hook that fails for some texts: their jobs become dead letters."""
    if "poison" in text:
        raise ValueError("this text is poison")
    return text
