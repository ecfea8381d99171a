"""Copy a memory directory that is in use: whole, and as of one moment of its journal.

1. The journal is copied first: a snapshot by SQLite's own backup, while it is written to. It holds
   all that was acknowledged before.
2. Long-term memory is copied next: the newest version of each table. So it holds at least what the
   snapshot says, except for what was removed since, and newer rows besides.
3. The copy is made to agree with itself (`align`). Rows of messages that the snapshot does not have
   are removed: they would collide with messages that get their numbers. A runtime that opens the
   copy writes what is missing.
4. Everything is synced, and then gets its name. Until then the journal has another name, and
   nothing takes the copy for a memory directory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from remora.config import Config, Secret
from remora.errors import InvalidInput, StorageError
from remora.maintenance.align import align_index
from remora.maintenance.compare import Progress
from remora.maintenance.offline import JOURNAL, Offline, offline, require_memory
from remora.storage.atomic import AtomicTarget
from remora.storage.lance.copy import copy_tables
from remora.storage.ports import Finding, JournalCounts
from remora.storage.sqlite.backup import snapshot

__all__ = ["BackupReport", "backup"]

_UNFINISHED = "journal.unfinished"


class BackupReport(msgspec.Struct, frozen=True):
    """What a backup holds.

    Attributes:
        counts: how much its journal holds.
        rows: rows of long-term memory.
        refilled: rows that are missing, and are written from the journal when it is opened.
        long_term: it holds long-term memory; False where that is elsewhere (`long_term.uri`), or
            there is none.
        bytes: its size.
        findings: what is damaged in the journal that was copied, and so in the copy.
    """

    counts: JournalCounts
    rows: int
    refilled: int
    long_term: bool
    bytes: int
    findings: tuple[Finding, ...]


async def backup(
    directory: Path,
    dest: Path,
    config: Config,
    *,
    take: Callable[[Path], Awaitable[None]] | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Copy a memory directory, in use or not, by this process or another, to `dest` (G3, G7).

    All messages that were acknowledged before it began are in it. To restore it, open it, or put it
    in the directory's place.

    Args:
        directory: what is copied; no byte of what it holds changes.
        dest: a directory that is not there yet, or is empty.
        config: of the application that uses the directory.
        take: writes a snapshot of the journal to a file, where this process has it open; else it is
            read from `directory`.
        progress: told how many rows of long-term memory were compared with the journal, of how
            many.

    Raises:
        InvalidInput: there is no memory in `directory`; or something is at `dest`.
        StorageError: it cannot be read; or the disk refused. Nothing stands at `dest` then.
    """
    # Long-term memory that is elsewhere is in use there; nothing of it may be taken for the copy's
    # own.
    config = msgspec.structs.replace(
        config, long_term=msgspec.structs.replace(config.long_term, uri=Secret())
    )
    target = await anyio.to_thread.run_sync(_target, directory, dest)
    beside = target.staging
    try:
        await anyio.to_thread.run_sync(beside.mkdir)
        journal = beside / _UNFINISHED
        if take is None:
            await anyio.to_thread.run_sync(snapshot, directory / JOURNAL, journal)
        else:
            await take(journal)
        async with offline(beside, config, journal=journal) as memory:
            await _copy_long_term(directory, beside, memory)
            findings = tuple(await memory.journal.verify())
        # Opened again, because the records describe what is there now.
        async with offline(beside, config, journal=journal) as memory:
            rows, lacking = await _align(memory, progress)
            counts = await memory.journal.counts()
        await anyio.to_thread.run_sync(_rename_journal, beside)
        size = await anyio.to_thread.run_sync(_size_bytes, beside)
        await anyio.to_thread.run_sync(target.commit)
    except OSError as e:
        raise StorageError(f"{dest} cannot be written, or {directory} not read: {e}") from e
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(target.abandon)
    return BackupReport(counts, rows, lacking, memory.place is not None, size, findings)


def _target(directory: Path, dest: Path) -> AtomicTarget:
    require_memory(directory)
    if dest.resolve().is_relative_to(directory.resolve()):
        raise InvalidInput(f"{dest} is in {directory} itself; a backup must stand elsewhere")
    if dest.is_dir() and not any(dest.iterdir()):
        dest.rmdir()  # an empty directory was made for it
    return AtomicTarget(dest, overwrite=False)


async def _copy_long_term(directory: Path, beside: Path, memory: Offline) -> None:
    """The directory in use, and those of before that rows are still to be taken from."""
    for name in memory.directories:
        if await anyio.to_thread.run_sync((directory / name).is_dir):
            await anyio.to_thread.run_sync(copy_tables, directory / name, beside / name)


async def _align(memory: Offline, progress: Progress | None) -> tuple[int, int]:
    """Make the copy agree with itself; returns its rows of long-term memory, and those missing."""
    if memory.place is None:
        return 0, 0
    async with memory.store(sync=False) as store:
        done = await align_index(memory, store, progress=progress)
        return done.rows, done.missing


def _rename_journal(beside: Path) -> None:
    """The journal gets its name; whatever belongs to it goes with it."""
    for path in sorted(beside.glob(f"{_UNFINISHED}*")):
        path.rename(beside / path.name.replace(_UNFINISHED, JOURNAL))


def _size_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
