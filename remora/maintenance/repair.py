"""Repair a memory directory (G7).

The journal is the source of truth: its damaged parts are removed only if the caller accepts the
loss. Long-term memory is an index over it: surplus rows are removed, and the next start writes
missing ones. Rows of memory blocks, and of messages that retention removed, have no other copy:
they are lost with a table that cannot be read.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from remora.config import Config
from remora.errors import JournalDamaged
from remora.maintenance.compare import align_index
from remora.maintenance.offline import JOURNAL, Offline, find_lost_commits, offline, require_memory
from remora.maintenance.verify import verify_owned
from remora.runtime.concurrency import Progress
from remora.runtime.threads import run_in_thread
from remora.services.index_directory import expects_rows, request_rebuild
from remora.storage.lance.directory import shard_names
from remora.storage.lock import own_directories
from remora.storage.ports import Finding
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.mark import accept_loss as forget_loss
from remora.storage.sqlite.salvage import drop_damaged as drop_damaged_rows

_WHY = {
    "orphan": "that the journal does not have",
    "doubled": "that existed more than once",
    "foreign": "that were under another user's key, or in another user's table",
}


class RepairReport(msgspec.Struct, frozen=True):
    """The result of a repair.

    Attributes:
        done: the repairs, a line each; empty if nothing was damaged.
        left: what is still damaged.
        waiting: jobs and rebuilds that the next start runs.
    """

    done: tuple[str, ...]
    left: tuple[Finding, ...]
    waiting: int


async def repair(
    directory: Path,
    config: Config,
    *,
    accept_loss: bool = False,
    drop_damaged: bool = False,
    progress: Progress | None = None,
) -> RepairReport:
    """Repair a directory; requires exclusive access. Idempotent.

    Args:
        directory: a memory directory.
        config: its `long_term.uri` is used if long-term memory is not in the directory.
        accept_loss: accept the loss of acknowledged commits at the end of the write-ahead log.
        drop_damaged: remove damaged messages, summaries and memories from the journal.
        progress: see `compare_index`.

    Raises:
        InvalidInput: there is no memory in it.
        DirectoryLocked: it is in use.
        JournalDamaged: the journal cannot be opened; the text says which option would repair it.
        StorageError: it cannot be read or written.
    """
    await run_in_thread(require_memory, directory)
    async with own_directories(directory):
        done = await _repair_journal(directory, accept_loss=accept_loss, drop_damaged=drop_damaged)
        async with offline(directory, config) as memory:
            journal_intact = not await memory.journal.verify()
            done += await _repair_long_term(memory, progress, journal_intact=journal_intact)
            waiting = len(await memory.journal.jobs()) + bool(
                await memory.journal.setting("reembed")
            )
        found = await verify_owned(directory, config, deep=True)
    return RepairReport(tuple(done), found.findings, waiting)


async def _repair_journal(directory: Path, *, accept_loss: bool, drop_damaged: bool) -> list[str]:
    """Repair the journal as far as the options allow; returns what was done."""
    journal = directory / JOURNAL
    done: list[str] = []
    lost = await run_in_thread(find_lost_commits, journal)
    if lost is not None:
        if lost.promised and not accept_loss:
            raise JournalDamaged(
                f"{journal} lacks {lost.what}: {lost.where} {lost.why}. Restore "
                f"a backup, or {JOURNAL}-wal if it was left behind; or accept the loss with "
                "--accept-loss"
            )
        await run_in_thread(forget_loss, journal)
        done.append(f"given up: {lost.what}")
    if drop_damaged:
        # opening it migrates it to the newest format
        await (await SqliteJournal.open(journal, durability="power")).aclose()
        done += await run_in_thread(drop_damaged_rows, journal)
    return done


async def _repair_long_term(
    memory: Offline, progress: Progress | None, *, journal_intact: bool
) -> list[str]:
    """Make long-term memory agree with the journal; returns what was done."""
    if memory.place is None:
        if not memory.whole or not await expects_rows(memory.journal):
            return []
        await request_rebuild(memory.journal)
        gone = (
            "long-term memory is gone: the next start rebuilds it from the journal; what memory "
            "blocks had stored in it is lost"
        )
        return [gone]
    done: list[str] = []
    before = (
        await run_in_thread(shard_names, memory.place) if isinstance(memory.place, Path) else []
    )
    async with memory.store() as store:
        done += await store.repair_tables()
        if isinstance(memory.place, Path):
            there = set(await run_in_thread(shard_names, memory.place))
            done += [
                f"the table {name} is in {memory.place / 'quarantine'}: its messages and memories "
                "are written again; what memory blocks had stored in it, and rows of messages that "
                "retention removed, are lost"
                for name in before
                if name not in there
            ]
        aligned = await align_index(memory, store, journal_intact=journal_intact, progress=progress)
        done += [f"to be written again, of {detail}" for detail in aligned.details]
        done += [f"{count:,} rows removed {_WHY[kind]}" for kind, count in aligned.removed.items()]
        if store.refill_needed:
            await store.clear_refill()  # what is missing was compared just now
    return done
