"""LlamaIndex: as in `llama_index_memory`, with one SQLite file (`async_database_uri`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.lab.correctness.protocol import Setting
from benchmarks.lab.correctness.subjects.llama_index_memory import LlamaIndexMemory

SHARES_BLOCKS = True
LACKS: Mapping[str, str] = {}


async def opened(directory: Path, setting: Setting) -> LlamaIndexMemory:
    """Open it."""
    return LlamaIndexMemory(directory, setting, on_file=True)
