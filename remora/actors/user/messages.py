"""The messages and replies of users' own actors: plain data.

Times are given: a decision reads no clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from remora.actors.user.working import WorkingItem
from remora.runtime.actor import Asked
from remora.storage.records import JobAdvanced, MemoryItem, StateItem

__all__ = [
    "AdoptUser",
    "ChangeMemory",
    "ChangedMemory",
    "CleanUp",
    "DeleteMemories",
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
    "ScoredItems",
    "SearchWorking",
    "Synopsis",
    "SynopsisReady",
    "SynopsisState",
    "TakeFacts",
    "TakeInstructions",
    "Touch",
    "UserView",
]


# -- working memory --------------------------------------------------------------------------------


class Learn(msgspec.Struct, Asked[int], frozen=True, array_like=True, tag=21):
    """Add items to working memory. Replies how many were new.

    Beyond twice the limit, the oldest are evicted at once (G10).
    """

    items: tuple[WorkingItem, ...]


class SearchWorking(msgspec.Struct, Asked["ScoredItems"], frozen=True, array_like=True, tag=22):
    """Find the `k` nearest items. Replies `ScoredItems`.

    Attributes:
        vector: the query, a unit vector: float32, little endian.
        k: how many at most.
        scope: a session: its items and those of no session; None for all.
    """

    vector: bytes
    k: int
    scope: str | None = None


class CleanUp(msgspec.Struct, Asked[int], frozen=True):
    """Evict the oldest items that are over the limit, and journal access counts.

    Replies how many items were evicted: of very many, only some (`behavior.MOST_EVICTED`).

    Attributes:
        max_bytes: the limit.
    """

    max_bytes: int


class ScoredItem(msgspec.Struct, frozen=True):
    """An item of working memory with its score, the inner product of unit vectors."""

    item: WorkingItem
    score: float


class ScoredItems(msgspec.Struct, frozen=True, array_like=True, tag=123):
    """The reply to `SearchWorking`: the best first."""

    items: tuple[ScoredItem, ...]


# -- long-term memory ------------------------------------------------------------------------------


class Remember(msgspec.Struct, Asked["RememberReceipt"], frozen=True, array_like=True, tag=23):
    """Record memories durably, and index them. Replies a `RememberReceipt`.

    Raises KeyConflict, and writes nothing, if a key names another memory.

    Attributes:
        items: the memories.
        replace: a memory whose key exists is changed instead.
    """

    items: tuple[MemoryItem, ...]
    replace: bool = False


class ChangeMemory(msgspec.Struct, Asked["ChangedMemory"], frozen=True, array_like=True, tag=24):
    """Change a memory. Replies a `ChangedMemory`; raises NoSuchMemory.

    Attributes:
        id: which one.
        agent: it must be this agent's, or nobody's if empty; None for anybody's. In a shared scope,
            the member who asks: an owner may change everybody's.
        at_us: the time.
        content: its text from now on; None for no change, as for the others.
        tokens: size of the text in a context.
    """

    id: str
    agent: str | None
    at_us: int
    content: str | None = None
    importance: float | None = None
    metadata: str | None = None
    tokens: int = 0


class ChangedMemory(msgspec.Struct, frozen=True, array_like=True, tag=122):
    """The reply to `ChangeMemory`: the memory as it is then."""

    memory: MemoryItem


class DeleteMemories(msgspec.Struct, Asked[int], frozen=True, array_like=True, tag=25):
    """Delete those of these memories that there are. Replies how many.

    Attributes:
        ids: which ones.
        agent: see `ChangeMemory`.
    """

    ids: tuple[str, ...]
    agent: str | None


class RememberReceipt(msgspec.Struct, frozen=True, array_like=True, tag=121):
    """The reply to `Remember`.

    Attributes:
        ids: of the memories, in the order given; one that existed keeps its id.
        job: the job that makes them searchable.
    """

    ids: tuple[str, ...]
    job: str


class TakeInstructions(msgspec.Struct, Asked[None], frozen=True):
    """Record instructions that were noticed in a message; they are not indexed. Replies None.

    Attributes:
        items: at least one; existing ones stay as they are.
    """

    items: tuple[MemoryItem, ...]


class TakeFacts(msgspec.Struct, Asked[None], frozen=True):
    """Record extracted facts, and index them; those that exist stay. Replies nothing.

    Attributes:
        items: the facts.
        progress: what is left of the job that extracts them, journalled together with them.
    """

    items: tuple[MemoryItem, ...]
    progress: JobAdvanced


class AdoptUser(msgspec.Struct, Asked[None], frozen=True):
    """Import what a user has elsewhere; what exists already stays. Replies nothing.

    Attributes:
        memories: recorded on purpose; a job makes them searchable.
        items: working memory, with vectors of this runtime's embedder.
        state_items: access counts, parts of a synopsis, grants, keyed state.
    """

    memories: tuple[MemoryItem, ...]
    items: tuple[WorkingItem, ...]
    state_items: tuple[StateItem, ...]


class Touch(msgspec.Struct, Asked[None], frozen=True):
    """Count a retrieval of these rows at `at_us`; journalled in batches. Replies nothing."""

    rows: tuple[str, ...]
    at_us: int


class PruneNow(msgspec.Struct, Asked[str], frozen=True):
    """Prune long-term memory; see `remora.storage.records.PruneSpec`. Replies the job's id."""

    keep: int
    strategy: Literal["fifo", "age", "importance", "lru"]
    max_age_s: float = 0.0
    types: tuple[str, ...] = ()


# -- synopsis --------------------------------------------------------------------------------------

SynopsisState = Literal["ok", "degraded", "pending", "empty", "off"]


class ReadSynopsis(msgspec.Struct, Asked["Synopsis"], frozen=True):
    """Show the synopsis; a part that has expired starts one job that writes it again.

    Replies a `Synopsis` with the valid parts; a reader may wait for its `job`.

    Attributes:
        now: seconds since the epoch.
        refresh: write it again even if it is valid.
        is_user: the user has something in the journal. Without it, and without anything of the
            actor's own there, the reply is None, and nothing is written.
    """

    now: float
    refresh: bool = False
    is_user: bool = True


class ExpireSynopsis(msgspec.Struct, Asked[None], frozen=True, array_like=True, tag=26):
    """Memories were deleted, rewound or pruned: drop the synopsis. Replies nothing."""


class SynopsisReady(msgspec.Struct, Asked[bool], frozen=True):
    """The result of a synopsis job. Replies whether it was taken.

    Attributes:
        job: the job.
        identity: name, preferences, traits; may be empty.
        context: recent topics, current goals; may be empty.
        now: seconds since the epoch.
        degraded: the configured model failed, and this is a fallback.
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
    """Who a user is, and what they are about: the user profile.

    Attributes:
        identity: name, preferences, traits; empty if unknown or expired.
        context: recent topics, current goals; empty if unknown or expired.
        state: ``ok``; ``degraded``: a fallback for the model's answer; ``pending``: it is being
            written; ``empty``: nothing is known yet; ``off``: it is not written.
        job: the job that writes it; empty for none.
        tokens: of both parts.
        detail: why it is off, and what turns it on; empty otherwise.
    """

    identity: str
    context: str
    state: SynopsisState
    job: str = ""
    tokens: int = 0
    detail: str = ""


# -- shared scopes ---------------------------------------------------------------------------------

Right = Literal["read", "write", "own"]


class Grant(msgspec.Struct, Asked[None], frozen=True, array_like=True, tag=27):
    """Change a right in a shared scope. The first grant makes its `by` the owner. Replies nothing.

    Raises NotGranted if `by` is not an owner.

    Attributes:
        by: who asks.
        to: who gets the right.
        right: ``read``, ``write`` (and read), ``own`` (and grant); None removes it.
    """

    by: str
    to: str
    right: Right | None


class ReadGrants(msgspec.Struct, Asked[dict[str, str]], frozen=True, array_like=True, tag=28):
    """Show all rights. Replies a dict from name to right."""


# -- looking ---------------------------------------------------------------------------------------


class InspectUser(msgspec.Struct, Asked["UserView"], frozen=True, array_like=True, tag=29):
    """Show the actor's state. Replies a `UserView`."""


class UserView(msgspec.Struct, frozen=True):
    """The state of a user's own actor.

    Attributes:
        sid: its number in the journal.
        working_items: items of working memory.
        working_bytes: their size.
        evicted: items evicted since the actor was activated.
        accesses: row id -> (number of retrievals, time of the last one in microseconds).
        synopsis: what is held of the synopsis, valid or not.
        synopsis_hits: reads of a valid synopsis since the actor was activated.
        synopsis_misses: the other reads.
        grants: of a shared scope.
        state_keys: keys of keyed state.
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
    state_keys: int = 0
