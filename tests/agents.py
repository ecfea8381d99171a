"""Configurations of tests in which an agent's framework uses remora."""

from __future__ import annotations

from remora import Config
from tests.configs import PLAIN, PLAIN_TREE

__all__ = ["PLAIN", "PLAIN_TREE", "RECALLING"]

RECALLING = Config.from_dict({"tokens": {"counter": "heuristic"}, "recall": {"deadline_s": 600}})
"""With long-term memory; no answer comes without it, however slow the machine is."""
