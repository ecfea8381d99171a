"""One answer from the answers of all shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from remora.api.dead_letters import no_dead_letter
from remora.api.statistics import add_figures
from remora.cluster.sharding import WHOLE, Share
from remora.ids import validate_id
from remora.runtime.jobs import Job
from remora.services.arguments import MAX_IDS, collect
from remora.services.rebuild import ReembedProgress
from remora.storage.erasure_notes import WaitingErasure

Named = TypeVar("Named", Job, WaitingErasure)


def add_progress(rebuilds: Sequence[ReembedProgress | None]) -> ReembedProgress | None:
    """The progress of all rebuilds; None if nothing is left to do anywhere."""
    running = [one for one in rebuilds if one is not None]
    return add_figures(running) if running else None


class ShardIds:
    """Ids of jobs and erasures that say which shard they are of: its number, a slash, and the id.

    Args:
        shards: how many there are; ids of a single one stay as they are.
        share: whose they are that listings come of, and that ids may be of.
    """

    def __init__(self, shards: int, share: Share = WHOLE) -> None:
        self._shards = shards
        self._own = share.of(shards)

    def name(self, listings: Sequence[Sequence[Named]]) -> list[Named]:
        """Return those of each shard, in one list, with the ids of the whole memory."""
        if self._shards == 1:
            return list(listings[0])
        replace = msgspec.structs.replace
        return [
            replace(one, id=self.name_one(number, one.id))
            for number, listing in zip(self._own, listings, strict=True)
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
            if slash and number.isdecimal() and number.isascii() and int(number) in self._own:
                found.setdefault(int(number), []).append(own)
            else:
                unknown.append(id_)
        if unknown:
            raise no_dead_letter(unknown)
        return found
