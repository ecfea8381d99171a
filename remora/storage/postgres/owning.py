"""The ownership of a PostgreSQL journal, and of every commit that was acknowledged."""

from __future__ import annotations

from remora.errors import OwnershipLost
from remora.storage.queueing import OwnershipWatch


class CommitsOwnershipWatch(OwnershipWatch):
    """An `OwnershipWatch` of a schema, whose server may be replaced by one with fewer commits.

    Args:
        schema: where the journal is.
        epoch: of its owner, this process.

    Attributes:
        holds_lease: no row with another epoch was seen, so nobody else can have the lease.
    """

    def __init__(self, schema: str, epoch: int) -> None:
        super().__init__(f"the journal in the schema {schema}", epoch, schema=schema)
        self.holds_lease = True

    def taken_over(self) -> OwnershipLost:
        self.holds_lease = False
        return super().taken_over()

    def check_row(self, epoch: int, commits: int, known: int) -> OwnershipLost | None:
        """Notice by the journal's row that it is another owner's, or lost commits.

        Args:
            epoch: that the row has.
            commits: that the row has.
            known: the last commit that this process was told of before the row was read.
        """
        if epoch > self._epoch:
            return self.taken_over()
        self.holds_lease &= epoch == self._epoch  # the next claim may give this epoch again
        if epoch < self._epoch or commits < known:
            return self.commits_lost(known, max(known - commits, 0) or None)
        return None

    def commits_lost(self, known: int, lost: int | None = None) -> OwnershipLost:
        """The database has fewer commits than it acknowledged, or some that nobody sent.

        Args:
            known: the last commit that it acknowledged.
            lost: how many of them are gone, where that is known.
        """
        count = "" if lost is None else f", {lost} of them are gone"
        return self._lose(
            "journal_lost_commits",
            f"{self._name} does not go on from commit {known}, which PostgreSQL had acknowledged"
            f"{count}: it failed over to a server without them, or was restored. Nothing more can "
            "be stored here, and the runtime ends: start again to go on with what PostgreSQL has",
            epoch=self._epoch,
            known=known,
            lost=lost,
        )
