"""Quotas: one owner cannot fill the memory or delay the others (G10).

Many actors may belong to one owner: all sessions of a user. Owners share two things:

* *Room.* All that waits, in a mailbox or for its commit in the log, is counted in bytes and
  bounded. Above half of the bound no owner may have more than an equal part of that half. However
  fast one sends, and through however many sessions, the other half stays free for others. So a
  disk that takes nothing for minutes costs a known amount of memory, also if the senders gave up.
* *The commit.* All writes share the commits, and the busiest owner makes them long: 16 000 writes
  of one user's hundred sessions took 800 ms, one write 1 ms. While several owners are active, each
  has a few writes on the way at a time; the rest waits in its mailboxes, and the writes of the
  others are in the next commit. An owner that is alone may have as many as make a commit
  efficient, so that the next owner does not wait long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakValueDictionary

OVERHEAD_BYTES = 1_024
"""Memory of a request in addition to its content: objects, a place in a queue, a promise."""

_UNIT_BYTES = 1_024
_CONTENDED_S = 1.0  # an owner counts as not alone for so long after another's request


class Quota:
    """The work of one owner in progress. Get one from `QuotaPool.quota`.

    Attributes:
        bytes: of requests that wait in a mailbox or for the log.
        units: writes on their way to the log; a large one counts as several.
        blocked: the owner's actors that have messages and must wait for some of these writes, in
            order.
        changed: keys of the owner's actors with a write that ended since somebody looked; None
            while nobody wants to know.
    """

    __slots__ = ("__weakref__", "_pool", "blocked", "bytes", "changed", "units")

    def __init__(self, pool: QuotaPool) -> None:
        self._pool = pool
        self.bytes = 0
        self.units = 0
        self.blocked: dict[Any, None] = {}
        self.changed: set[Hashable] | None = None

    def allows(self, size: int) -> bool:
        """Return whether a request of so many bytes may wait; always if nothing else waits."""
        pool = self._pool
        room = pool.max_bytes - pool.bytes
        if size + OVERHEAD_BYTES > room:
            return not pool.bytes
        half = pool.max_bytes // 2
        if pool.bytes + size + OVERHEAD_BYTES <= half or not self.bytes:
            return True
        return self.bytes + size + OVERHEAD_BYTES <= half // pool.owners

    def reserve(self, size: int) -> None:
        """Count a request of so many bytes that begins to wait."""
        if not self.bytes:
            self._pool.owners += 1
        self.bytes += size + OVERHEAD_BYTES
        self._pool.bytes += size + OVERHEAD_BYTES

    def release(self, size: int) -> None:
        """Stop counting it."""
        self.bytes -= size + OVERHEAD_BYTES
        self._pool.bytes -= size + OVERHEAD_BYTES
        if not self.bytes:
            self._pool.owners -= 1

    def start_write(self, size: int) -> None:
        """Count a write of so many bytes that goes to the log."""
        self.units += 1 + size // _UNIT_BYTES
        self.reserve(size)

    def end_write(self, size: int) -> None:
        """Stop counting it: it is durable, or has failed."""
        self.units -= 1 + size // _UNIT_BYTES
        self.release(size)

    def note_change(self, key: Hashable) -> None:
        """The log may hold other rows of this actor than before."""
        if self.changed is not None:
            self.changed.add(key)


class QuotaPool:
    """The quotas of all owners; its length is the number of owners that have a quota now.

    Args:
        max_bytes: of all that waits.
        max_units: writes, of a kilobyte, that one owner of several may have on their way to the
            log; the last one may be larger.
        max_units_alone: the same for an owner that is alone.
        owner: gives the owner of an actor, by its key.

    Attributes:
        bytes: waiting now.
        owners: number of owners with something waiting.
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
        self._last_requester: Quota | None = None
        self._contended_until = 0.0

    def __len__(self) -> int:
        return len(self._quotas)

    def quota(self, key: Hashable) -> Quota:
        """The quota of the actor's owner; it lives while one of the owner's actors holds it."""
        owner = self._owner(key)
        quota = self._quotas.get(owner)
        if quota is None:
            quota = self._quotas[owner] = Quota(self)
        return quota

    def note_request(self, quota: Quota, now: float) -> None:
        """Note that an actor of this owner got a request."""
        if quota is not self._last_requester:
            if self._last_requester is not None:
                self._contended_until = now + _CONTENDED_S
            self._last_requester = quota

    def may_write(self, quota: Quota, now: float) -> bool:
        """Return whether the owner may send more to the log."""
        return quota.units < self._max_units or (
            quota.units < self._max_units_alone and now >= self._contended_until
        )
