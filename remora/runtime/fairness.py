"""What each owner may have under way, so that one of them neither fills the memory nor keeps the
others waiting (G10).

Many actors may belong to one owner: all sessions of a user. Two things are shared among owners:

* *Room.* Everything that waits, for its turn in a mailbox or for its commit in the log, is counted
  in bytes, and bounded in all. From half of the bound on, no owner may have more than an equal
  share of that half: however fast one sends, and through however many sessions, the other half is
  there for others. So a disk that takes nothing for minutes costs a known amount of memory, whether
  those who sent still wait or have given up.
* *The commit.* Everybody's writes share the commits, and whoever sends the most makes them long: 16
  000 writes of one user's hundred sessions took 800 ms where one took 1. While several owners are
  at work, each has a few on the way at a time; what is beyond waits in its mailbox, and the writes
  of the others land with the next commit. One that is alone may have as many as make a commit
  efficient, so that whoever comes along does not wait for long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakValueDictionary

__all__ = ["OVERHEAD_BYTES", "Quota", "QuotaPool"]

OVERHEAD_BYTES = 1_024
"""What a request takes beside its content: objects, a place in a queue, a promise."""

_UNIT_BYTES = 1_024
_CONTENDED_S = 1.0  # how long an owner is not alone after another's request


class Quota:
    """What one owner has under way. Get one from `QuotaPool.quota`.

    Attributes:
        bytes: of requests that wait for their turn or for the log.
        units: writes on their way to the log, a large one counted as several.
        blocked: the owner's actors that have messages and may not run them before some of these
            writes have landed, in order.
    """

    __slots__ = ("__weakref__", "_pool", "blocked", "bytes", "units")

    def __init__(self, pool: QuotaPool) -> None:
        self._pool = pool
        self.bytes = 0
        self.units = 0
        self.blocked: dict[Any, None] = {}

    def allows(self, size: int) -> bool:
        """Whether a request of so many bytes may wait; one may always, where nothing else does."""
        pool = self._pool
        room = pool.max_bytes - pool.bytes
        if size + OVERHEAD_BYTES > room:
            return not pool.bytes
        half = pool.max_bytes // 2
        if pool.bytes + size + OVERHEAD_BYTES <= half or not self.bytes:
            return True
        return self.bytes + size + OVERHEAD_BYTES <= half // pool.owners

    def take(self, size: int) -> None:
        """A request of so many bytes waits from now on."""
        if not self.bytes:
            self._pool.owners += 1
        self.bytes += size + OVERHEAD_BYTES
        self._pool.bytes += size + OVERHEAD_BYTES

    def give(self, size: int) -> None:
        """It waits no longer."""
        self.bytes -= size + OVERHEAD_BYTES
        self._pool.bytes -= size + OVERHEAD_BYTES
        if not self.bytes:
            self._pool.owners -= 1

    def wrote(self, size: int) -> None:
        """A write of so many bytes is on its way to the log."""
        self.units += 1 + size // _UNIT_BYTES
        self.take(size)

    def landed(self, size: int) -> None:
        """It is there, or has failed."""
        self.units -= 1 + size // _UNIT_BYTES
        self.give(size)


class QuotaPool:
    """All owners' shares.

    Args:
        max_bytes: of everything that waits.
        max_units: writes, of a kilobyte, that one owner of several may have on their way to the
            log; the last may be larger.
        max_units_alone: the same of an owner that is alone.
        owner: whose an actor is, by its key.

    Attributes:
        bytes: what waits now.
        owners: how many have something waiting.
    """

    def __init__(
        self,
        max_bytes: int,
        max_units: int,
        max_units_alone: int,
        owner: Callable[[Hashable], Hashable],
    ) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.owners = 0
        self._max_units = max_units
        self._max_units_alone = max_units_alone
        self._owner = owner
        self._quotas: WeakValueDictionary[Hashable, Quota] = WeakValueDictionary()
        self._asked: Quota | None = None
        self._contended_until = 0.0

    def quota(self, key: Hashable) -> Quota:
        """The share of the owner of this actor.

        It lasts as long as one of the owner's actors holds it.
        """
        owner = self._owner(key)
        quota = self._quotas.get(owner)
        if quota is None:
            quota = self._quotas[owner] = Quota(self)
        return quota

    def asked(self, quota: Quota, now: float) -> None:
        """Somebody asks one of this owner's actors for something."""
        if quota is not self._asked:
            if self._asked is not None:
                self._contended_until = now + _CONTENDED_S
            self._asked = quota

    def open(self, quota: Quota, now: float) -> bool:
        """Whether the owner may send more to the log."""
        return quota.units < self._max_units or (
            quota.units < self._max_units_alone and now >= self._contended_until
        )
