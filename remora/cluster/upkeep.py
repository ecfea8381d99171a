"""Verify, back up and repair a memory directory, in shards or not, without opening it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from remora.api.status import add_figures
from remora.cluster.reading import MemoryReader
from remora.cluster.sharding import find_shards, shard_of
from remora.cluster.transfers import backup_shards
from remora.config import Config
from remora.errors import InvalidInput, StorageError
from remora.maintenance.backup import BackupReport, backup
from remora.maintenance.offline import JOURNAL
from remora.maintenance.repair import RepairReport, repair
from remora.maintenance.verify import Verification, verify
from remora.runtime.concurrency import Progress
from remora.runtime.threads import run_in_thread
from remora.storage.export.transfer import TransferReport
from remora.storage.layout import end_division, read_layout
from remora.storage.listing import ListingPage
from remora.storage.lock import own_directories
from remora.storage.ports import Finding
from remora.storage.sqlite.peek import peek_users


async def verify_memory(
    directory: Path, config: Config, *, deep: bool = False, progress: Progress | None = None
) -> Verification:
    """Verify each shard (`remora.maintenance.verify.verify`), and whether users are in theirs.

    Raises:
        InvalidInput, StorageError: see there; `DirectoryUnusable` if ``shards.json`` is damaged.
    """
    shards = await run_in_thread(find_shards, directory)
    if shards == [directory]:
        return await verify(directory, config, deep=deep, progress=progress)
    parts = []
    for number, shard in enumerate(shards):
        found = await verify(shard, config, deep=deep, progress=progress)
        strays = await run_in_thread(_find_strays, shard, number, len(shards))
        found = msgspec.structs.replace(found, findings=(*found.findings, *strays))
        parts.append(_name_shard(found, shard.name))
    counts = [one.counts for one in parts if one.counts is not None]
    return Verification(
        tuple(finding for one in parts for finding in one.findings),
        _join_notes(shards, parts),
        add_figures(counts) if len(counts) == len(parts) else None,
        sum(one.rows for one in parts),
    )


def _find_strays(shard: Path, number: int, shards: int) -> list[Finding]:
    """Users that nobody looks for in this shard."""
    try:
        users = [one.user for one in peek_users(shard / JOURNAL, ListingPage("name"))]
    except StorageError:  # the journal's own findings say so
        return []
    strays = [user for user in users if shard_of(user, shards) != number]
    if not strays:
        return []
    some = ", ".join(repr(user) for user in strays[:3])
    detail = (
        f"{len(strays):,} users are in the wrong shard, {some} for instance: nobody finds them "
        "there. It was opened by itself; export it, and import it into the whole"
    )
    return [Finding("foreign", "journal.db", detail, repairable=False)]


def _name_shard(found: Verification, name: str) -> Verification:
    findings = [msgspec.structs.replace(one, where=f"{name}/{one.where}") for one in found.findings]
    return msgspec.structs.replace(found, findings=tuple(findings))


def _join_notes(shards: Sequence[Path], parts: Sequence[Verification]) -> tuple[str, ...]:
    """Each note once: alone if it is of all shards, otherwise with their names."""
    holders: dict[str, list[str]] = {}
    for shard, found in zip(shards, parts, strict=True):
        for note in found.notes:
            holders.setdefault(note, []).append(shard.name)
    return tuple(
        note if len(names) == len(shards) else f"{', '.join(names)}: {note}"
        for note, names in holders.items()
    )


async def backup_memory(
    directory: Path, dest: Path, config: Config, *, progress: Progress | None = None
) -> BackupReport:
    """Copy a memory that is in use or not (`remora.maintenance.backup.backup`).

    Raises:
        InvalidInput, StorageError: see there.
    """
    shards = await run_in_thread(find_shards, directory)
    layout = await run_in_thread(read_layout, directory)
    if layout is None or shards == [directory]:
        return await backup(directory, dest, config, progress=progress)

    async def copy(number: int, there: Path, tell: Progress | None) -> BackupReport:
        return await backup(shards[number], there, config, progress=tell)

    return await backup_shards(directory, layout, dest, copy, progress)


class SeparateTransfers:
    """`remora.cluster.transfers.WholeTransfers` of a memory that several processes own.

    This process reads their files: no owner has all of them.

    Args:
        directory: of the memory.
        config: of the memory.
    """

    def __init__(self, directory: Path, config: Config) -> None:
        self._directory = directory
        self._config = config

    async def export(
        self, path: Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """See `remora.Runtime.export`."""
        async with MemoryReader(self._directory, self._config).open(copied=True) as memory:
            return await memory.export(path, overwrite=overwrite, progress=progress)

    async def import_(
        self,
        path: Path,  # noqa: ARG002  # of the protocol, as the others
        *,
        skip_existing: bool = False,  # noqa: ARG002
        progress: Progress | None = None,  # noqa: ARG002
    ) -> TransferReport:
        """See `remora.Runtime.import_`.

        Raises:
            InvalidInput: always; no owner has all shards that the users belong to.
        """
        raise InvalidInput(
            "several processes own this memory, and an import needs one that has all of it: stop "
            "them and run `remora import`, or import session by session with user.import_session"
        )

    async def backup(self, dest: Path, *, progress: Progress | None = None) -> BackupReport:
        """See `remora.Runtime.backup`."""
        return await backup_memory(self._directory, dest, self._config, progress=progress)


async def repair_memory(
    directory: Path,
    config: Config,
    *,
    accept_loss: bool = False,
    drop_damaged: bool = False,
    progress: Progress | None = None,
) -> RepairReport:
    """Repair each shard (`remora.maintenance.repair.repair`); requires exclusive access.

    Raises:
        InvalidInput, DirectoryLocked, StorageError: see there; shards before it are repaired.
    """
    mend = partial(
        repair, config=config, accept_loss=accept_loss, drop_damaged=drop_damaged, progress=progress
    )
    if await run_in_thread(find_shards, directory) == [directory]:
        return await mend(directory)
    async with own_directories(directory):
        await run_in_thread(end_division, directory)
        shards = await run_in_thread(find_shards, directory)
        reports = [await mend(shard) for shard in shards]
    return _join_repairs(shards, reports)


def _join_repairs(shards: Sequence[Path], reports: Sequence[RepairReport]) -> RepairReport:
    named = list(zip([shard.name for shard in shards], reports, strict=True))
    return RepairReport(
        tuple(f"{name}: {line}" for name, report in named for line in report.done),
        tuple(
            msgspec.structs.replace(one, where=f"{name}/{one.where}")
            for name, report in named
            for one in report.left
        ),
        sum(report.waiting for report in reports),
    )
