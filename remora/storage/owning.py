"""The ownership of a journal."""

from __future__ import annotations

from typing import Any

import anyio

from remora.errors import OwnershipLost
from remora.logging import get_logger
from remora.runtime.probes import probe

_logger = get_logger(__name__)


class OwnershipWatch:
    """Notes that the journal is lost, once, and refuses everything from then on.

    Args:
        name: of the journal, in errors.
        epoch: of its owner, this process.
        where: the fields of log lines that say which journal it is.

    Attributes:
        lost: why nothing can be stored any more.
    """

    def __init__(self, name: str, epoch: int, **where: str) -> None:
        self.lost: OwnershipLost | None = None
        self._name = name
        self._epoch = epoch
        self._where = where
        self._event = anyio.Event()

    def check(self) -> None:
        """Raise `OwnershipLost` where that is known."""
        if self.lost is not None:
            raise self.lost

    async def wait_until_lost(self) -> None:
        """See `remora.storage.ports.Journal.wait_until_lost`."""
        await self._event.wait()

    def check_epoch(self, epoch: int) -> None:
        """Notice that another process has the journal, though nothing is written."""
        if epoch != self._epoch:
            self.taken_over()

    def taken_over(self) -> OwnershipLost:
        """Another process has the journal."""
        if self.lost is None:
            probe("ownership_lost")
        return self._lose(
            "ownership_lost",
            f"another process has taken {self._name} over; nothing more can be stored here, and "
            "the runtime ends: open it again when that process has gone",
            epoch=self._epoch,
        )

    def _lose(self, event: str, text: str, **fields: Any) -> OwnershipLost:
        if self.lost is None:
            self.lost = OwnershipLost(text)
            self._event.set()
            _logger.critical(event, **self._where, **fields)
        return self.lost
