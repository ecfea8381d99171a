"""The directory of a store: what it holds besides the tables' own files. Everything here blocks."""

from __future__ import annotations

import shutil
from pathlib import Path

from remora.storage.lance.record import write_synced

# -- which table a user is in, and what tables are called ------------------------------------------

TABLE_PREFIX = "mem_"
"""Every table's name begins with it."""


def table_of(user_key: str, shards: int) -> str:
    """The name of the table that holds a user's rows.

    Args:
        user_key: `remora.ids.user_key` of the user.
        shards: how many tables the users are spread over.

    Raises:
        ValueError: `user_key` is not a hexadecimal digest.
    """
    return f"{TABLE_PREFIX}{int(user_key[:8], 16) % shards:03d}"


TABLE_SUFFIX, RECORD_SUFFIX, QUARANTINE = ".lance", ".synced.json", "quarantine"
_REFILL = "refill-needed"


def shard_names(base: Path) -> list[str]:
    """The tables that are in a store's directory, or should be."""
    found = set()
    for one in base.iterdir() if base.is_dir() else ():
        for suffix in (TABLE_SUFFIX, RECORD_SUFFIX):
            if one.name.startswith(TABLE_PREFIX) and one.name.endswith(suffix):
                found.add(one.name.removesuffix(suffix))
    return sorted(found)


def remove_store(base: Path) -> None:
    """Remove all that a store has in a directory, and nothing else."""
    for one in (*base.glob(f"{TABLE_PREFIX}*"), base / QUARANTINE, base / _REFILL):
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink(missing_ok=True)


def refill_needed(base: Path) -> bool:
    """A part of the store was quarantined, and its rows are to be written again."""
    return (base / _REFILL).exists()


def mark_refill(base: Path, name: str, *, sync: bool) -> None:
    """Note that a table's rows are to be written again."""
    write_synced(base / _REFILL, name.encode(), sync=sync)


def clear_refill(base: Path) -> None:
    """Forget that note: the caller has another one that is durable."""
    (base / _REFILL).unlink(missing_ok=True)
