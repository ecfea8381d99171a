"""What was retrieved lately, until its user writes.

A search takes time, and a write may land meanwhile: what the search then brings back was true and
is no longer. So whoever searches notes the user's version first and hands it in with the result;
each write makes a new version and drops what was held, and a result of an older one is not taken.

Versions come from one count, so that the table of them may be bounded: when a user's entry gives
way, its version becomes the floor, the version of all who are not in the table. A floor that rose
may refuse a sound result, and never lets a stale one in. The users' rows in memory
(`remora.recall.user_index`) are kept by the same rule.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from remora.errors import InvalidInput
from remora.runtime.probes import probe

__all__ = ["RetrievalCache", "RetrievalCacheStatistics", "Versions"]

Value = TypeVar("Value")


class Versions:
    """A version for each user, which every write of the user's makes a new one.

    Args:
        size: how many users' to hold, at most.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._versions: OrderedDict[str, int] = OrderedDict()
        self._floor = 0
        self._writes = 0

    def __len__(self) -> int:
        return len(self._versions)

    def of(self, user: str) -> int:
        """Note it before a search or a read begins.

        What that brings is of use while it is still the same.
        """
        return self._versions.get(user, self._floor)

    def bump(self, user: str) -> None:
        """The user's memory changed."""
        self._writes += 1
        self._versions[user] = self._writes
        self._versions.move_to_end(user)
        if len(self._versions) > self._size:
            _, self._floor = self._versions.popitem(last=False)


class RetrievalCacheStatistics(msgspec.Struct, frozen=True):
    """What the cache saved.

    Attributes:
        hits: retrievals that were answered from it.
        misses: those that were not.
        size: results held.
    """

    hits: int
    misses: int
    size: int


class RetrievalCache(Generic[Value]):
    """The results last asked for, of all users; for one event loop.

    Values are handed out as they came in: let them be immutable.

    Args:
        size: how many results to hold, and how many users' versions, at most.

    Raises:
        InvalidInput: `size` is less than 1.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise InvalidInput(f"a retrieval cache holds at least 1 result, not {size}")
        self._size = size
        self._results: OrderedDict[tuple[str, Hashable], Value] = OrderedDict()
        self._keys: dict[str, set[Hashable]] = {}
        self._versions = Versions(size)
        self._hits = self._misses = 0

    def get(self, user: str, key: Hashable) -> Value | None:
        """What was found for `key` since the user's last write, or None."""
        found = self._results.get((user, key))
        if found is None:
            self._misses += 1
            return None
        self._hits += 1
        self._results.move_to_end((user, key))
        return found

    def put(self, user: str, key: Hashable, value: Value, version: int) -> bool:
        """Hold what a search found that began at `version`.

        False, and nothing is held, if the user has written since.

        Raises:
            InvalidInput: the value is None, which `get` could not tell from nothing.
        """
        if value is None:
            raise InvalidInput("a retrieval cache cannot hold None")
        if version < self.version(user):
            probe("recall_overtaken")
            return False
        self._results[user, key] = value
        self._results.move_to_end((user, key))
        self._keys.setdefault(user, set()).add(key)
        if len(self._results) > self._size:
            (other, old), _ = self._results.popitem(last=False)
            self._keys[other].discard(old)
            if not self._keys[other]:
                del self._keys[other]
        return True

    def version(self, user: str) -> int:
        """What to hand to `put`; note it before the search begins."""
        return self._versions.of(user)

    def invalidate(self, user: str) -> None:
        """The user's memory changed.

        Drop what was found in it, and what is being found now will not be taken.
        """
        for key in self._keys.pop(user, ()):
            probe("recall_cache_invalidated")
            del self._results[user, key]
        self._versions.bump(user)

    def statistics(self) -> RetrievalCacheStatistics:
        """The present counts."""
        return RetrievalCacheStatistics(self._hits, self._misses, len(self._results))
