"""One answer from the answers of all shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from remora.api.dead_letters import no_dead_letter
from remora.ids import validate_id
from remora.runtime.histogram import Histogram, add_histograms
from remora.runtime.jobs import Job
from remora.services.arguments import MAX_IDS, collect
from remora.services.rebuild import ReembedProgress
from remora.storage.erasure_notes import WaitingErasure
from remora.storage.listing import ListingPage, UserListing, first_page

__all__ = ["ShardIds", "add_figures", "add_progress", "merge_users"]

Figures = TypeVar("Figures", bound=msgspec.Struct)
Named = TypeVar("Named", Job, WaitingErasure)

_LARGEST = frozenset({"last_s", "oldest_s", "wal_held_s"})
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def add_figures(figures: Sequence[Figures]) -> Figures:
    """Figures of the same kind, added: numbers are, texts stand one after another."""
    names = figures[0].__struct_fields__
    values = [_add(name, [getattr(one, name) for one in figures]) for name in names]
    return type(figures[0])(*values)


def _add(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Histogram):
        return add_histograms(values)
    if isinstance(first, msgspec.Struct):
        return add_figures(values)
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for one in values for key in one)
        return {key: _add(key, [one[key] for one in values if key in one]) for key in keys}
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, str):
        return "; ".join(dict.fromkeys(one for one in values if one))
    if isinstance(first, tuple):
        return tuple(item for one in values for item in one)
    return max(values) if name in _LARGEST else sum(values)


def add_progress(rebuilds: Sequence[ReembedProgress | None]) -> ReembedProgress | None:
    """The progress of all rebuilds; None if nothing is left to do anywhere."""
    running = [one for one in rebuilds if one is not None]
    return add_figures(running) if running else None


def merge_users(listings: Sequence[Sequence[UserListing]], page: ListingPage) -> list[UserListing]:
    """The page of the whole memory's users.

    Args:
        listings: the same page of each shard. A cursor names a user, and not a place in a shard: so
            it is right for all of them.
        page: what was asked for.
    """

    def place(one: UserListing) -> tuple[int, str]:
        return (0 if one.last_at is None else (one.last_at - _BEGIN) // _US, one.user)

    rows = [row for listing in listings for row in listing]
    return first_page(rows, ListingPage(page.order, limit=page.limit), place)


class ShardIds:
    """Ids of jobs and erasures that say which shard they are of: its number, a slash, and the id.

    Args:
        shards: how many there are; ids of a single one stay as they are.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards

    def name(self, listings: Sequence[Sequence[Named]]) -> list[Named]:
        """Those of each shard, in one list, with the ids of the whole memory."""
        if self._shards == 1:
            return list(listings[0])
        replace = msgspec.structs.replace
        return [
            replace(one, id=self.name_one(number, one.id))
            for number, listing in enumerate(listings)
            for one in listing
        ]

    def name_one(self, number: int, id_: str) -> str:
        """The id of the whole memory for one of a shard's own."""
        return id_ if self._shards == 1 else f"{number}/{id_}"

    def split(self, ids: Sequence[str]) -> dict[int, list[str]]:
        """The shards' own ids, by shard.

        Raises:
            NoDeadLetter: an id names no shard.
            InvalidInput: an id is no text, or there are too many.
        """
        found: dict[int, list[str]] = {}
        unknown = []
        for id_ in dict.fromkeys(collect(ids, "ids", validate_id, most=MAX_IDS)):
            number, slash, own = id_.partition("/") if self._shards > 1 else ("0", "/", id_)
            if slash and number.isdecimal() and number.isascii() and int(number) < self._shards:
                found.setdefault(int(number), []).append(own)
            else:
                unknown.append(id_)
        if unknown:
            raise no_dead_letter(unknown)
        return found
