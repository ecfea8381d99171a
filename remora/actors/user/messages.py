"""What users' own actors are told, and what they answer: plain data.

Times are handed in: a turn reads no clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from remora.actors.user.working import WorkingItem
from remora.storage.ports import Vector
from remora.storage.records import MemoryItem, StateItem

__all__ = [
    "AdoptUser",
    "CleanUp",
    "ExpireSynopsis",
    "Grant",
    "InspectUser",
    "Learn",
    "PruneNow",
    "ReadGrants",
    "ReadSynopsis",
    "Remember",
    "RememberReceipt",
    "ScoredItem",
    "SearchWorking",
    "Synopsis",
    "SynopsisReady",
    "SynopsisState",
    "Touch",
    "UserView",
]


# -- working memory --------------------------------------------------------------------------------


class Learn(msgspec.Struct, frozen=True):
    """Take items into working memory. Replies how many were new.

    Beyond twice the limit the oldest leave at once (G10).
    """

    items: tuple[WorkingItem, ...]


class SearchWorking(msgspec.Struct, frozen=True):
    """The `k` nearest items. Replies a tuple of `ScoredItem`, best first.

    Attributes:
        vector: the query, a unit vector.
        k: how many at most.
        scope: a session's id: its items and those of no session; None for all.
    """

    vector: Vector
    k: int
    scope: str | None = None


class CleanUp(msgspec.Struct, frozen=True):
    """The supervisor's round: evict the oldest until the limit holds, write access figures.

    Replies how many went.

    Attributes:
        max_bytes: the limit.
    """

    max_bytes: int


class ScoredItem(msgspec.Struct, frozen=True):
    """An item of working memory, and its score: the inner product of unit vectors."""

    item: WorkingItem
    score: float


# -- long-term memory ------------------------------------------------------------------------------


class Remember(msgspec.Struct, frozen=True):
    """Record memories durably, and have them brought into long-term memory.

    Replies a `RememberReceipt`.
    """

    items: tuple[MemoryItem, ...]


class RememberReceipt(msgspec.Struct, frozen=True):
    """What became of a `Remember`.

    Attributes:
        ids: of the memories, in the order given; those that were there already keep their id.
        job: the job that makes them searchable.
    """

    ids: tuple[str, ...]
    job: str


class AdoptUser(msgspec.Struct, frozen=True):
    """Take over what a user had elsewhere. What is there already stays as it is. Replies nothing.

    Attributes:
        memories: what was recorded on purpose; a job makes it searchable.
        items: working memory, with vectors of this runtime's embedder.
        state_items: figures of access, halves of a synopsis, grants.
    """

    memories: tuple[MemoryItem, ...]
    items: tuple[WorkingItem, ...]
    state_items: tuple[StateItem, ...]


class Touch(msgspec.Struct, frozen=True):
    """These rows were retrieved at `at_us`: count it. Kept in memory, and journalled in batches.

    Replies nothing.
    """

    rows: tuple[str, ...]
    at_us: int


class PruneNow(msgspec.Struct, frozen=True):
    """Bring long-term memory down to `keep` rows; see `remora.storage.records.PruneSpec`.

    Replies the job's id.
    """

    keep: int
    strategy: Literal["fifo", "age", "importance", "lru"]
    max_age_s: float = 0.0
    types: tuple[str, ...] = ()


# -- synopsis --------------------------------------------------------------------------------------

SynopsisState = Literal["ok", "degraded", "pending", "empty"]


class ReadSynopsis(msgspec.Struct, frozen=True):
    """Show the synopsis.

    Have it written anew where a part of it has expired, once, however many ask.

    Replies a `Synopsis`, with what is still valid; `job` names the job under way, which the asker
    may wait for.

    Attributes:
        now: seconds since the epoch.
        refresh: write it anew although it is valid.
    """

    now: float
    refresh: bool = False


class ExpireSynopsis(msgspec.Struct, frozen=True):
    """Something was deleted, rewound or pruned.

    The synopsis may tell of it, so it holds no longer. Replies nothing.
    """


class SynopsisReady(msgspec.Struct, frozen=True):
    """The result of a synopsis job: two parts, two terms, one call. Replies whether it was taken.

    Attributes:
        job: the job.
        identity: name, preferences, traits; may be empty.
        context: recent topics, current goals; may be empty.
        now: seconds since the epoch.
        degraded: the configured model failed, and an extract stands in for its answer.
        model: what wrote it.
        tokens: of the identity, and of the context.
    """

    job: str
    identity: str
    context: str
    now: float
    degraded: bool
    model: str
    tokens: tuple[int, int]


class Synopsis(msgspec.Struct, frozen=True):
    """Who a user is, and what they are about.

    Attributes:
        identity: name, preferences, traits; empty if unknown or expired.
        context: recent topics, current goals; empty if unknown or expired.
        state: ``ok``; ``degraded``: an extract stands in for the model's; ``pending``: it is being
            written; ``empty``: there is nothing to be known yet.
        job: the job that writes it; empty for none.
        tokens: of both parts.
    """

    identity: str
    context: str
    state: SynopsisState
    job: str = ""
    tokens: int = 0


# -- shared scopes ---------------------------------------------------------------------------------

Right = Literal["read", "write", "own"]


class Grant(msgspec.Struct, frozen=True):
    """Change who may do what in a shared scope. The first grant makes its `by` the owner.

    Replies nothing.

    Raises NotGranted if `by` is not an owner.

    Attributes:
        by: who asks.
        to: whose right it is.
        right: ``read``, ``write`` (and read), ``own`` (and grant); None takes it away.
    """

    by: str
    to: str
    right: Right | None


class ReadGrants(msgspec.Struct, frozen=True):
    """Who may do what. Replies a dict from name to right."""


# -- looking ---------------------------------------------------------------------------------------


class InspectUser(msgspec.Struct, frozen=True):
    """Say how things stand. Replies a `UserView`."""


class UserView(msgspec.Struct, frozen=True):
    """A user's own actor from outside.

    Attributes:
        sid: its number in the journal.
        working_items: items of working memory.
        working_bytes: their size.
        evicted: items that left since the actor came to life.
        accesses: rows with access figures, and their count and last time: row id -> (count,
            microseconds).
        synopsis: what is held of the synopsis, valid or not.
        synopsis_hits: reads that were answered from what was held, since the actor came to life.
        synopsis_misses: the others.
        grants: of a shared scope.
    """

    sid: int
    working_items: int
    working_bytes: int
    evicted: int
    accesses: dict[str, tuple[int, int]]
    synopsis: Synopsis
    synopsis_hits: int
    synopsis_misses: int
    grants: dict[str, str]
