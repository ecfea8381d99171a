"""Both stores in memory: `MemoryJournal` and `MemoryStore`."""

from __future__ import annotations

from remora.faces import publish
from remora.storage.memory.journal import MemoryJournal
from remora.storage.memory.store import MemoryStore

__all__ = ["MemoryJournal", "MemoryStore"]

publish(__name__, __all__, globals())
