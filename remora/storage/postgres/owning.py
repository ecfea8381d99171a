"""Whether the journal is still this process's."""

from __future__ import annotations

import anyio

from remora.errors import OwnershipLost
from remora.logging import get_logger
from remora.runtime.probes import probe

__all__ = ["OwnershipWatch"]

_logger = get_logger(__name__)


class OwnershipWatch:
    """Notes that the journal is lost, once, and refuses everything from then on.

    Args:
        schema: where the journal is.
        epoch: of its owner, this process.

    Attributes:
        lost: why nothing can be stored any more.
    """

    def __init__(self, schema: str, epoch: int) -> None:
        self.lost: OwnershipLost | None = None
        self._schema = schema
        self._epoch = epoch
        self._event = anyio.Event()

    def check(self) -> None:
        """Raise `OwnershipLost` where that is known."""
        if self.lost is not None:
            raise self.lost

    async def wait_until_lost(self) -> None:
        """See `remora.storage.ports.Journal.wait_until_lost`."""
        await self._event.wait()

    def taken_over(self) -> OwnershipLost:
        """Another process has the journal."""
        if self.lost is None:
            probe("ownership_lost")
        return self._lose(
            "ownership_lost",
            f"another process has taken the journal in the schema {self._schema} over; nothing "
            "more can be stored here, and the runtime ends: open it again when that process has "
            "gone",
        )

    def commits_lost(self, known: int) -> OwnershipLost:
        """The database has fewer commits than it acknowledged, or some that nobody sent."""
        return self._lose(
            "journal_lost_commits",
            f"the journal in the schema {self._schema} does not go on from commit {known}, which "
            "PostgreSQL had acknowledged: it failed over to a server without it, or was restored. "
            "Nothing more can be stored here, and the runtime ends: start again to go on with "
            "what PostgreSQL has",
        )

    def _lose(self, event: str, text: str) -> OwnershipLost:
        if self.lost is None:
            self.lost = OwnershipLost(text)
            self._event.set()
            _logger.critical(event, schema=self._schema, epoch=self._epoch)
        return self.lost
