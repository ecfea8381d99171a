"""Modules that `import remora` leaves out, loaded when a runtime opens.

They would more than double the import's time. A function that needs one imports it, and finds it
loaded: reading modules during a request would block the event loop.
"""

from __future__ import annotations

from remora.languages.instructions import load_signs
from remora.languages.search_words import load_heads
from remora.recall.question import load_related
from remora.runtime.threads import load_module

__all__ = ["preload"]

_LEFT_OUT = (
    "structlog",  # see remora.logging
    "remora.maintenance.backup",  # with both stores: sqlite3, aiosqlite and asyncio
    "remora.maintenance.export",  # with both forms of an export
    "remora.maintenance.import_",
    "remora.storage.memory",
)


def preload() -> None:
    """Import them. The first call reads files for a tenth of a second, so call it in a thread."""
    for name in _LEFT_OUT:
        load_module(name)
    load_heads()
    load_signs()
    load_related()
