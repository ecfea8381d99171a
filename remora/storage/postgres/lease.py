"""The lease of a journal: who may own it until when, by PostgreSQL's clock.

Invariants
----------
1. The lease ends for others `lease_s` after PostgreSQL renewed it. This process counts from before
   it sent the renewal, and answers for two thirds of that time: it stops before the others begin,
   unless the two clocks differ by a third. Its clock runs on while the process or the machine
   stands still.
2. Whether rows are stored is not decided here, but by the epoch in the statement that stores them.
   The lease is for answers from memory, which ask no database, and so that others wait.
3. One connection of its own, and one statement: a renewal waits for no commit.
4. Each renewal compares the number of commits with what was acknowledged. So a failover that lost
   some is noticed within a sixth of a lease, though nothing is written.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec

from remora.config.sections import LONGEST_LEASE_S, SHORTEST_LEASE_S
from remora.errors import ConfigError, InvalidInput, OwnershipLost, OwnerUnreachable, StorageError
from remora.logging import get_logger
from remora.runtime.meters import OutageLog
from remora.storage.postgres.connection import BROKEN, Address, connect, describe
from remora.storage.postgres.schema import in_schema
from remora.storage.queueing import OwnershipWatch
from remora.system.clock import boot_time

# -- the ownership of a PostgreSQL journal, and of every commit that was acknowledged --------------


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


_logger = get_logger(__name__)
_FRESH = 2 / 3  # of a lease, in which its owner answers
RENEWALS = 6  # in one lease, while all goes well
_PATIENCE = 1 / 4  # of a lease, for one renewal
MOST_ROUND_TRIP = 1 / 20  # of a lease
_AGAIN_S = 0.1
_RENEW = "SELECT remora.renew($1), epoch, commits FROM remora.journal"


class Tenure(msgspec.Struct, frozen=True):
    """How a journal is to be owned.

    Attributes:
        lease_s: how long others wait for an owner that renews nothing; 0: they do not.
        wait_s: how long to wait for the owner's lease to end; None for as long as a dead one's
            lasts, infinity for ever.
        address: where this owner takes connections, for those who look for it.
    """

    lease_s: float
    wait_s: float | None = None
    address: str = ""


def check_tenure(tenure: Tenure, command_timeout_s: float) -> None:
    """Check what can be checked without a connection.

    Raises:
        InvalidInput: the lease is too short or too long, or the time to wait is none.
    """
    if tenure.lease_s != 0 and not SHORTEST_LEASE_S <= tenure.lease_s <= LONGEST_LEASE_S:
        raise InvalidInput(
            f"lease_s must be {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:,.0f}, or 0 for no lease, "
            f"not {tenure.lease_s:g}"
        )
    if tenure.wait_s is not None and not tenure.wait_s >= 0:
        raise InvalidInput(f"wait_s must be at least 0, not {tenure.wait_s:g}")
    if 0 < tenure.lease_s < command_timeout_s:
        raise InvalidInput(
            f"lease_s ({tenure.lease_s:g}) must not be shorter than command_timeout_s "
            f"({command_timeout_s:g}): an owner must learn that a connection broke before its "
            "lease ends. Lower command_timeout_s, or choose a longer lease"
        )


async def check_network(connection: asyncpg.Connection[Any], lease_s: float) -> None:
    """Check that statements are much faster than the lease.

    Raises:
        ConfigError: they are not.
    """
    took = math.inf
    for _ in range(3):
        began = time.perf_counter()
        await connection.execute("SELECT 1")
        took = min(took, time.perf_counter() - began)
    if took > lease_s * MOST_ROUND_TRIP:
        raise ConfigError(
            f"a statement takes {took:.2f} s on the way to PostgreSQL and back, so a lease of "
            f"{lease_s:g} s would be lost in any pause of the network: set lease_s to "
            f"{math.ceil(took / MOST_ROUND_TRIP)} or more"
        )


class Lease:
    """Of an owner. `start` renews it until `release`.

    Args:
        address: of the database.
        connection: that renews.
        epoch: of the owner.
        lease_s: how long it lasts.
        granted: when the claim was sent, by `now`.
        owned: told when another owner has the journal, or the server lost commits.
        known: the last commit that this process was told of.
        now: in seconds; runs on while the process stands still.
    """

    def __init__(
        self,
        address: Address,
        connection: asyncpg.Connection[Any],
        epoch: int,
        lease_s: float,
        *,
        granted: float,
        owned: CommitsOwnershipWatch,
        known: Callable[[], int],
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._patience_s = lease_s * _PATIENCE
        self._address = msgspec.structs.replace(address, command_timeout_s=self._patience_s)
        self._connection: asyncpg.Connection[Any] | None = connection
        self._epoch = epoch
        self._lease_s = lease_s
        self._owned = owned
        self._known = known
        self._now = now
        self._fresh_until = granted + lease_s * _FRESH
        self._task: asyncio.Task[None] | None = None
        self._outage = OutageLog(
            _logger, "lease_not_renewed", ended="lease_renewed", monotonic=time.monotonic
        )

    def check(self) -> None:
        """Raise `OwnerUnreachable` while another process may own the journal."""
        if self._now() > self._fresh_until:
            raise OwnerUnreachable(
                f"PostgreSQL has not renewed the lease of this journal ({self._lease_s:g} s) in "
                "time, so another process may own it: nothing ran, retry later"
            )

    def start(self) -> None:
        """Renew it from now on."""
        self._task = asyncio.get_running_loop().create_task(
            self._keep(), name="remora.journal.lease"
        )

    async def release(self) -> None:
        """Give it back, so that the next owner need not wait; what fails is left to time."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._fresh_until = -math.inf
        if self._owned.holds_lease:
            with suppress(*BROKEN):
                await self._call("SELECT remora.release($1)")
        self._disconnect()

    async def _keep(self) -> None:
        pause_s = self._lease_s / RENEWALS
        while True:
            await asyncio.sleep(pause_s)
            sent, known = self._now(), self._known()
            try:
                renewed, epoch, commits = await self._call(_RENEW)
            except BROKEN as e:
                self._disconnect()
                self._outage.fail(StorageError(describe(e)))
                pause_s = _AGAIN_S
                continue
            if self._owned.check_row(epoch, commits, known) is not None:
                return
            if not renewed:
                self._owned.taken_over()
                return
            self._outage.succeed()
            self._fresh_until = sent + self._lease_s * _FRESH
            pause_s = self._lease_s / RENEWALS

    async def _call(self, sql: str) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._address)
        return await self._connection.fetchrow(
            in_schema(sql, self._address.schema), self._epoch, timeout=self._patience_s
        )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None
