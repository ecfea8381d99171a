"""Copies of memory directories, also of those that a process uses or was killed over."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

__all__ = ["copy_memory"]


def copy_memory(source: Path, target: Path, *without: str) -> Path:
    """Copy all but sockets and what these patterns match; returns the copy. Blocks.

    A file that was renamed since its directory was listed is left out, as if the process had been
    killed before it was written.
    """
    ignore = shutil.ignore_patterns("*.sock", *without)
    shutil.copytree(source, target, ignore=ignore, copy_function=_copy)
    return target


def _copy(source: str, target: str) -> str:
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)
    return target
