"""Whether the journal, and every commit that was acknowledged, are still this process's."""

from __future__ import annotations

from remora.errors import OwnershipLost
from remora.storage.owning import OwnershipWatch

__all__ = ["CommitsOwnershipWatch"]


class CommitsOwnershipWatch(OwnershipWatch):
    """An `OwnershipWatch` of a schema, whose server may be replaced by one with fewer commits.

    Args:
        schema: where the journal is.
        epoch: of its owner, this process.
    """

    def __init__(self, schema: str, epoch: int) -> None:
        super().__init__(f"the journal in the schema {schema}", epoch, schema=schema)

    def commits_lost(self, known: int) -> OwnershipLost:
        """The database has fewer commits than it acknowledged, or some that nobody sent."""
        return self._lose(
            "journal_lost_commits",
            f"{self._name} does not go on from commit {known}, which PostgreSQL had acknowledged: "
            "it failed over to a server without it, or was restored. Nothing more can be stored "
            "here, and the runtime ends: start again to go on with what PostgreSQL has",
            epoch=self._epoch,
        )
