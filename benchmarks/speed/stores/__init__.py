"""The contestants of `append`, `turn` and `load`: one module for each library, imported in its own
environment.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast

from benchmarks.speed.stores.store import Store

__all__ = ["opened"]

_MODULES = {
    "remora": "remora",
    "remora-uvloop": "remora",
    "remora-heuristic": "remora",
    "remora-folds": "remora",
    "remora-bare": "remora",
    "prototype": "prototype",
    "limit-dict": "dicts",
    "dict-sqlite": "dicts",
    "dict-sqlite-normal": "dicts",
    "redis-everysec": "redis",
}
"""Where it is not the contestant's name."""


async def opened(contestant: str, directory: Path) -> Store:
    """Open it on a directory."""
    module = importlib.import_module(
        f"benchmarks.speed.stores.{_MODULES.get(contestant, contestant)}"
    )
    return cast("Store", await module.opened(contestant, directory))
