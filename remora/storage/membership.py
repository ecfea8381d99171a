"""The members of a memory on several machines at one moment: nodes, shards, loads."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

NodeState: TypeAlias = Literal["serving", "resting", "leaving"]
"""``resting``: it could not open a shard, so it keeps those that it has and takes no others for a
while; ``leaving``: it gives all of them back.
"""


class ShardLoad(msgspec.Struct, frozen=True, array_like=True):
    """The load of a shard.

    Attributes:
        number: of the shard.
        sessions: that are in memory.
        queue: requests that wait.
    """

    number: int
    sessions: int
    queue: int


class NodeInfo(msgspec.Struct, frozen=True, array_like=True):
    """A process that shares the memory's shards with others.

    Attributes:
        address: where it takes connections; no two nodes have the same.
        node: a name that is drawn when the process starts.
        owner: host and process.
        release: of remora.
        format: the newest format of journals that it reads.
        fingerprint: of the secret that it knows.
        state: see `NodeState`.
        since: when it joined, by the database's clock.
        loads: of its shards.
        until: when the others stop waiting for it, by the database's clock; later each time that
            it says that it lives.
    """

    address: str
    node: str
    owner: str
    release: str
    format: int
    fingerprint: str
    state: NodeState
    since: datetime
    loads: tuple[ShardLoad, ...] = ()
    until: datetime | None = None


class ShardLease(msgspec.Struct, frozen=True, array_like=True):
    """Who owns a shard, or did last.

    Attributes:
        number: of the shard.
        epoch: the number of its owners so far.
        owner: host and process.
        address: where it takes connections; empty if it takes none.
        since: when it became the owner, by the database's clock.
        left_s: how much of its lease is left; 0 for one that ran out, None for an owner that has
            left, or has no lease.
    """

    number: int
    epoch: int
    owner: str
    address: str
    since: datetime
    left_s: float | None

    @property
    def runs(self) -> bool:
        """Return whether nobody else can own the shard now."""
        return bool(self.left_s)


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """All nodes that live, and all shards.

    Attributes:
        shards: how many there are.
        instance: what the ids of the memory's messages begin with; empty for a single shard.
        nodes: by address.
        leases: by number of the shard.
    """

    shards: int
    instance: str
    nodes: tuple[NodeInfo, ...]
    leases: tuple[ShardLease, ...]
