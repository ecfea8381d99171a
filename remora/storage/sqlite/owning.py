"""The ownership of a SQLite journal and its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from remora.errors import OwnershipLost
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread
from remora.storage.identity import FilesGone
from remora.storage.owning import OwnershipWatch
from remora.storage.sqlite.place import JournalPlace

__all__ = ["FileOwnershipWatch"]


class FileOwnershipWatch(OwnershipWatch):
    """An `OwnershipWatch` of files, which somebody may remove or replace.

    Args:
        path: the journal's file.
        epoch: of its owner, this process.
        find_place: gives where its files must be; None while it is being opened.
    """

    def __init__(
        self, path: Path, epoch: int, find_place: Callable[[], JournalPlace | None]
    ) -> None:
        super().__init__(str(path), epoch, path=str(path))
        self._find_place = find_place

    async def check_place(self) -> None:
        """Notice that the files are gone, though nothing is written."""
        place = self._find_place()
        if place is None or self.lost is not None:
            return
        try:
            await run_in_thread(place.check)
        except FilesGone as e:
            self.files_gone(e)

    def files_gone(self, error: FilesGone) -> OwnershipLost:
        """Return what is written from now on would be in files that no start finds."""
        if self.lost is None:
            probe("journal_files_gone")
        return self._lose(
            "journal_files_gone",
            f"{error} while this runtime had it open; nothing more can be stored here, and the "
            "runtime ends: put the directory back as it was or restore a backup, and start again",
            error=str(error),
        )
