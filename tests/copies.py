"""Copies of memory directories, also of those that a process uses or was killed over."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["copy_memory"]


def copy_memory(source: Path, target: Path, *without: str) -> Path:
    """Copy all but sockets and what these patterns match; returns the copy. Blocks."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sock", *without))
    return target
