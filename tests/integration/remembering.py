"""What tests of long-term memory's handles share."""

from __future__ import annotations

from remora import Config

CONFIG = Config.from_dict(
    {
        "long_term": {"batch_ms": 1},
        "journal": {"durability": "process"},
        "tokens": {"counter": "heuristic"},
        "recall": {"deadline_s": 600},
    }
)
