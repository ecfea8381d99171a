"""Make long-term memory agree with the journal: for repairs, and for the copy that a backup makes.

Rows that the journal does not have are removed. For missing rows a rebuild is requested: the next
start writes them (`services/rebuild.py`).
"""

from __future__ import annotations

from collections import Counter

import msgspec

from remora.maintenance.compare import compare_index
from remora.maintenance.offline import Offline
from remora.runtime.concurrency import Progress
from remora.runtime.log import commit_records
from remora.services.index_directory import request_rebuild
from remora.storage.lance.store import LanceStore


class Alignment(msgspec.Struct, frozen=True):
    """The result of an alignment.

    Attributes:
        rows: rows that long-term memory holds.
        removed: rows that were removed, by the kind of their finding.
        missing: rows that the next start writes.
        details: the missing rows, a line each.
    """

    rows: int
    removed: Counter[str]
    missing: int
    details: tuple[str, ...]


async def align_index(
    memory: Offline,
    store: LanceStore,
    *,
    journal_intact: bool = True,
    progress: Progress | None = None,
) -> Alignment:
    """Remove surplus rows, and request a rebuild if rows are missing; idempotent.

    Args:
        memory: a directory with exclusive access.
        store: its long-term memory.
        journal_intact: see `compare_index`.
        progress: see `compare_index`.

    Raises:
        StorageError, LongTermError: some of it may be done; call again.
    """
    journal = memory.journal
    removed: Counter[str] = Counter()
    missing = 0
    details: list[str] = []
    async with memory.scan() as scan:
        async for difference in compare_index(
            journal, scan, whole=memory.whole, journal_intact=journal_intact, progress=progress
        ):
            finding = difference.finding
            if difference.surplus:
                places = [row.place for row in difference.surplus]
                removed[finding.kind] += await store.delete_row_ids(difference.table, places)
            if difference.missing:
                missing += difference.missing
                details.append(f"{finding.where}: {finding.detail}")
            if difference.indexed is not None:
                await commit_records(journal, [difference.indexed])
        rows = scan.rows - removed.total()
    if missing or not memory.whole:  # a rebuild in progress may have passed the rows that are lost
        await request_rebuild(journal)
    return Alignment(rows, removed, missing, tuple(details))
