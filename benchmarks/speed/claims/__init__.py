"""The claims, in the order of the table: each name is a module here.

Needs the standard library only.
"""

from __future__ import annotations

import importlib
from typing import cast

from benchmarks.speed.claim import Claim

__all__ = ["CLAIMS", "claim"]

CLAIMS = (
    "append",
    "sustained",
    "turn",
    "load",
    "tokens",
    "ask",
    "activation",
    "recall",
    "memory",
    "model",
    "overload",
    "million",
    "growth",
    "start",
)


def claim(name: str) -> Claim:
    """The claim of that name."""
    return cast("Claim", importlib.import_module(f"benchmarks.speed.claims.{name}"))
