"""Copy a memory directory that is in use, as of one moment of its journal.

1. The journal is copied by SQLite's backup while it is written to. The copy holds everything that
   was acknowledged before.
2. The newest version of each table of long-term memory is copied. It may have newer rows than the
   journal's copy, and may lack rows that were removed since.
3. The two copies are aligned (`align`). Rows of messages that the journal's copy does not have are
   removed: new messages would get their numbers. A runtime that opens the copy writes missing rows.
4. Everything is synced and then renamed. Until then the journal has another name, so the copy is
   not mistaken for a memory directory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec

from remora.config import Config, Secret
from remora.errors import StorageError
from remora.maintenance.compare import align_index
from remora.maintenance.offline import JOURNAL, Offline, offline, require_memory
from remora.runtime.concurrency import Progress
from remora.runtime.threads import run_in_thread
from remora.storage.attachments import copy_files, list_names
from remora.storage.files import copy_target, make_private_directory
from remora.storage.lance.copy import copy_tables
from remora.storage.ports import Finding, JournalCounts
from remora.storage.sqlite.attachments import remove_unreferred
from remora.storage.sqlite.backup import snapshot

_UNFINISHED = "journal.unfinished"


class BackupReport(msgspec.Struct, frozen=True):
    """The content of a backup.

    Attributes:
        counts: how much its journal holds.
        rows: rows of long-term memory.
        refilled: missing rows, which are written from the journal when the copy is opened.
        long_term: it has long-term memory; False if that is elsewhere (`long_term.uri`) or does not
            exist.
        bytes: its size.
        findings: damage in the journal, and so in its copy.
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

    It has all messages that were acknowledged before it began. To restore it, open it, or move it
    to the directory's place.

    Args:
        directory: the source; no byte of it changes.
        dest: a directory that does not exist or is empty.
        config: of the application that uses the directory.
        take: writes a snapshot of the journal to a file, if this process has it open; otherwise
            the journal is read from `directory`.
        progress: see `compare_index`.

    Raises:
        InvalidInput: there is no memory in `directory`, or `dest` is not empty.
        StorageError: it cannot be read, or the disk failed. Then nothing is left at `dest`.
    """
    # Long-term memory at an address is in use, and is not part of the copy.
    config = msgspec.structs.replace(
        config, long_term=msgspec.structs.replace(config.long_term, uri=Secret())
    )
    await run_in_thread(require_memory, directory)
    target = await run_in_thread(copy_target, directory, dest)
    staging = target.staging
    try:
        await run_in_thread(make_private_directory, staging)
        # before and after: what the journal refers to is among what there was, or what there is
        await run_in_thread(_copy_attachments, directory, staging)
        journal = staging / _UNFINISHED
        if take is None:
            await run_in_thread(snapshot, directory / JOURNAL, journal)
        else:
            await take(journal)
        await run_in_thread(_copy_attachments, directory, staging)
        await run_in_thread(remove_unreferred, journal, staging)
        async with offline(staging, config, journal=journal) as memory:
            await _copy_long_term(directory, staging, memory)
            findings = tuple(await memory.journal.verify())
        # opened again: the records now describe the copied tables
        async with offline(staging, config, journal=journal) as memory:
            rows, missing = await _align(memory, progress)
            counts = await memory.journal.counts()
        await run_in_thread(_rename_journal, staging)
        size = await run_in_thread(_size_bytes, staging)
        await run_in_thread(target.commit)
    except OSError as e:
        raise StorageError(f"{dest} cannot be written, or {directory} not read: {e}") from e
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(target.abandon)
    return BackupReport(counts, rows, missing, memory.place is not None, size, findings)


def _copy_attachments(directory: Path, staging: Path) -> None:
    copy_files(directory, staging, {name: name for name in list_names(directory)})


async def _copy_long_term(directory: Path, staging: Path, memory: Offline) -> None:
    """The directory in use, and those of before that rows are still to be taken from."""
    for name in memory.directories:
        if await run_in_thread((directory / name).is_dir):
            await run_in_thread(copy_tables, directory / name, staging / name)


async def _align(memory: Offline, progress: Progress | None) -> tuple[int, int]:
    """Make the copy agree with itself; returns its rows of long-term memory, and those missing."""
    if memory.place is None:
        return 0, 0
    async with memory.store(sync=False) as store:
        done = await align_index(memory, store, progress=progress)
        return done.rows, done.missing


def _rename_journal(staging: Path) -> None:
    """The journal gets its name; whatever belongs to it goes with it."""
    for path in sorted(staging.glob(f"{_UNFINISHED}*")):
        path.rename(staging / path.name.replace(_UNFINISHED, JOURNAL))


def _size_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
