"""Whether the journal is still this process's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio

from remora.errors import OwnershipLost
from remora.logging import get_logger
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread
from remora.storage.identity import FilesGone
from remora.storage.sqlite.place import JournalPlace

__all__ = ["OwnershipWatch"]

_logger = get_logger(__name__)


class OwnershipWatch:
    """Notes that the journal is lost, once, and refuses everything from then on.

    Args:
        path: the journal's file.
        epoch: of its owner, this process.
        find_place: gives where its files must be; None while it is being opened.

    Attributes:
        lost: why nothing can be stored any more.
    """

    def __init__(
        self, path: Path, epoch: int, find_place: Callable[[], JournalPlace | None]
    ) -> None:
        self.lost: OwnershipLost | None = None
        self._path = path
        self._epoch = epoch
        self._find_place = find_place
        self._event = anyio.Event()

    def check(self) -> None:
        """Raise `OwnershipLost` where that is known."""
        if self.lost is not None:
            raise self.lost

    async def wait_until_lost(self) -> None:
        """See `remora.storage.ports.Journal.wait_until_lost`."""
        await self._event.wait()

    async def check_place(self) -> None:
        """Notice that the files are gone, though nothing is written."""
        place = self._find_place()
        if place is None or self.lost is not None:
            return
        try:
            await run_in_thread(place.check)
        except FilesGone as e:
            self.files_gone(e)

    def check_epoch(self, epoch: int) -> None:
        """Notice that another process has the journal, though nothing is written."""
        if epoch != self._epoch:
            self.taken_over()

    def files_gone(self, error: FilesGone) -> OwnershipLost:
        """What is written from now on would be in files that no start finds."""
        if self.lost is None:
            probe("journal_files_gone")
            self.lost = OwnershipLost(
                f"{error} while this runtime had it open; nothing more can be stored here, and the "
                "runtime ends: put the directory back as it was or restore a backup, and start "
                "again"
            )
            self._event.set()
            _logger.critical("journal_files_gone", path=str(self._path), error=str(error))
        return self.lost

    def taken_over(self) -> OwnershipLost:
        """Another process has the journal."""
        if self.lost is None:
            probe("ownership_lost")
            self.lost = OwnershipLost(
                f"another process has taken {self._path} over; nothing more can be stored here, "
                "and the runtime ends: open it again when that process has gone"
            )
            self._event.set()
            _logger.critical("ownership_lost", path=str(self._path), epoch=self._epoch)
        return self.lost
