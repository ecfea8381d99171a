"""Runtimes in threads of their own, by the path that a suite gives a framework's own class."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from remora import BufferPolicy, Config, blocking

__all__ = ["runtime_at"]

_CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
    }
)
_open: dict[str, blocking.Runtime] = {}


def runtime_at(path: Any) -> blocking.Runtime:
    """An open runtime: in memory for ``:memory:``, else the one of a directory beside the path."""
    name = str(path)
    if name != ":memory:" and name in _open:
        return _open[name]
    policy = BufferPolicy.keep_all()
    if name == ":memory:":
        runtime = blocking.Runtime.in_memory(config=_CONFIG, policy=policy)
    else:
        runtime = blocking.Runtime(Path(f"{name}.remora"), config=_CONFIG, policy=policy)
        _open[name] = runtime
    runtime.start()
    atexit.register(runtime.close)
    return runtime
