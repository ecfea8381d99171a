"""Copying a LanceDB table that is written to meanwhile. Everything here blocks.

A table is a directory of files that never change once they are there: data, deletions, indices, and a manifest for each version,
which names the others. So a version is copied by copying its manifest first and then what that names; whatever is committed
meanwhile is of later versions. Compaction and cleanup may remove files of a version that is not the newest any more: then it is
begun anew from the newest.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from remora.errors import LongTermError

__all__ = ["copy_tables"]

_ATTEMPTS = 50
_NEWEST_FIRST = 20  # digits of a manifest's name that counts down


def copy_tables(source: Path, target: Path) -> int:
    """Copy the newest version of each table in the directory `source` into `target`, which is made; returns how many bytes.

    Raises:
        LongTermError: a table changes faster than it can be copied.
        OSError: the disk refused.
    """
    target.mkdir()
    size = 0
    for table in sorted(source.iterdir()):
        if table.is_dir() and table.name.endswith(".lance"):
            size += _copy_persistently(table, target / table.name)
    return size


def _copy_persistently(table: Path, target: Path) -> int:
    for _ in range(_ATTEMPTS):
        try:
            return _copy_table(table, target)
        except FileNotFoundError:  # of a version that is the newest no longer
            if target.exists():
                shutil.rmtree(target)
            if not table.is_dir():
                return 0  # dropped meanwhile: all its rows are gone
    raise LongTermError(f"the table {table.name} changes faster than it can be copied", retryable=True)


def _copy_table(table: Path, target: Path) -> int:
    versions = [path for path in (table / "_versions").iterdir() if path.suffix == ".manifest"]
    if not versions:
        raise LongTermError(f"the table {table.name} has no manifest: it is damaged, see remora verify", retryable=False)
    newest = max(versions, key=_version)
    manifest = newest.read_bytes()
    size = 0
    for one in sorted(table.rglob("*")):
        place = one.relative_to(table)
        if one.is_dir() or not _belongs(place, manifest):
            continue
        copy = target / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(one, copy)
        size += copy.stat().st_size
    manifests = target / "_versions"
    manifests.mkdir(parents=True, exist_ok=True)
    (manifests / newest.name).write_bytes(manifest)
    return size + len(manifest)


def _belongs(place: Path, manifest: bytes) -> bool:
    """Whether a file is of the version of this manifest. What a manifest does not name byte for byte is taken along."""
    match place.parts:
        case ("_versions", *_):  # other versions, and the hint which is the newest: Lance does without
            return False
        case ("data" | "_transactions", name):
            return name.encode() in manifest
        case ("_indices", name, *_):
            try:
                return uuid.UUID(name).bytes in manifest
            except ValueError:
                return True
        case _:
            return True


def _version(manifest: Path) -> int:
    number = int(manifest.stem) if manifest.stem.isdecimal() else -1
    return (1 << 64) - 1 - number if len(manifest.stem) == _NEWEST_FIRST else number
