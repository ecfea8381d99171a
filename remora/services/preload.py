"""What `import remora` leaves out, for a runtime that opens to load.

More than half of what it would cost.

Whoever uses one of these imports it where it is used, and finds it loaded: reading modules in the
middle of a request would stop the event loop.
"""

from __future__ import annotations

import importlib

__all__ = ["preload"]

_LEFT_OUT = (
    "structlog",  # see remora.logging
    "remora.maintenance.backup",  # with both stores: sqlite3, aiosqlite and asyncio
    "remora.maintenance.import_",  # with remora.maintenance.export and both forms of an export
)


def preload() -> None:
    """Import what was left out.

    Blocks on the file system for a tenth of a second, the first time: to be called in a thread.
    """
    for name in _LEFT_OUT:
        importlib.import_module(name)
