"""Export, import and backup of a memory in shards: one file or directory for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio

from remora.api.runtime import Runtime
from remora.api.status import add_figures
from remora.cluster.sharding import shard_of
from remora.errors import InvalidInput, StorageError
from remora.runtime.concurrency import Progress, run_to_end
from remora.runtime.threads import run_in_thread
from remora.services.parts import TransferParts
from remora.storage.export.targets import check_target
from remora.storage.export.transfer import TransferReport
from remora.storage.files import copy_target, make_private_directory
from remora.storage.layout import ShardLayout, write_layout

if TYPE_CHECKING:
    from remora.maintenance.backup import BackupReport


class WholeTransfers(Protocol):
    """Exports, imports and copies all shards; where they are in another process, that does it."""

    async def export(
        self, path: Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """See `remora.Runtime.export`."""
        ...

    async def import_(
        self, path: Path, *, skip_existing: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """See `remora.Runtime.import_`."""
        ...

    async def backup(self, dest: Path, *, progress: Progress | None = None) -> BackupReport:
        """See `remora.Runtime.backup`."""
        ...


class LocalTransfers:
    """The same of shards that are open in this process.

    Args:
        shards: by number.
        path: the directory of the memory; None in memory.
        layout: how it is divided; None if its only shard is `path` itself.
    """

    def __init__(
        self, shards: Sequence[Runtime], path: Path | None = None, layout: ShardLayout | None = None
    ) -> None:
        self._shards = shards
        self._path = path
        self._layout = layout

    # The modules that are imported below were preloaded when the first shard was opened.

    def _parts(self) -> list[TransferParts]:
        return [shard.internals.transfers.parts for shard in self._shards]

    async def export(
        self, path: Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """See `remora.Runtime.export`."""
        from remora.maintenance.export import export_to  # noqa: PLC0415

        target = check_target(path)
        parts = self._parts()
        return await run_to_end(export_to, parts, target, overwrite=overwrite, progress=progress)

    async def import_(
        self, path: Path, *, skip_existing: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """See `remora.Runtime.import_`."""
        from remora.maintenance.import_ import import_from  # noqa: PLC0415

        parts = self._parts()
        return await run_to_end(
            import_from,
            parts,
            path,
            find_target=lambda user: parts[shard_of(user, len(parts))],
            skip_existing=skip_existing,
            progress=progress,
        )

    async def backup(self, dest: Path, *, progress: Progress | None = None) -> BackupReport:
        """See `remora.Runtime.backup`."""
        if self._layout is None or self._path is None:
            if len(self._shards) > 1:
                raise InvalidInput(
                    "there is nothing to copy: these shards are in no directory of one memory"
                )
            return await self._shards[0].backup(dest, progress=progress)

        async def copy(number: int, there: Path, tell: Progress | None) -> BackupReport:
            return await self._shards[number].backup(there, progress=tell)

        return await run_to_end(backup_shards, self._path, self._layout, dest, copy, progress)


async def backup_shards(
    path: Path,
    layout: ShardLayout,
    dest: Path,
    copy: Callable[[int, Path, Progress | None], Awaitable[BackupReport]],
    progress: Progress | None,
) -> BackupReport:
    """Copy a memory in shards, each as of one moment.

    Args:
        path: of the memory.
        layout: of the memory.
        dest: a directory that does not exist, or is empty.
        copy: copies the shard of a number.
        progress: called with the part that is done, and the whole.

    Raises:
        InvalidInput: something is at `dest`, or it is in the memory itself.
        StorageError: a shard cannot be read, or the disk refused; nothing is at `dest` then.
    """
    target = await run_in_thread(copy_target, path, dest)
    reports = []
    try:
        await run_in_thread(make_private_directory, target.staging)
        for number in range(layout.shards):
            tell = None if progress is None else _scale(progress, number, layout.shards)
            there = target.staging / layout.name(number)
            reports.append(await copy(number, there, tell))
            if tell is not None:
                tell(1, 1)
        await run_in_thread(write_layout, target.staging, layout)
        await run_in_thread(target.commit)
    except OSError as e:
        raise StorageError(f"{dest} cannot be written: {e.strerror or e}") from e
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(target.abandon)
    return add_figures(reports)


def _scale(progress: Progress, number: int, shards: int) -> Progress:
    """Progress of one shard as progress of all: each is an equal part, in thousandths."""

    def tell(done: int, total: int) -> None:
        progress(1_000 * number + 1_000 * done // max(total, 1), 1_000 * shards)

    return tell
