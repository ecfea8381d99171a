"""Which node should own which shard: a pure function of what all nodes see.

Each node computes it for all of them, and does its own part. Two that see different moments may
both want a shard; its lease goes to one of them.

* No node has two shards more than another.
* As few shards move as that allows: those of nodes that are gone, and what a node has too much.
* Which ones move, and where to, is decided by a digest of node and shard (rendezvous hashing).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

import msgspec

from remora.storage.membership import NodeInfo, Placement

__all__ = ["Plan", "assign", "plan"]

_SOON_S = 0.1
_LATER_S = 0.02  # than a lease ends


class Plan(msgspec.Struct, frozen=True):
    """The plan of a node.

    Attributes:
        claim: numbers of shards to own; nobody's lease runs.
        give: numbers of shards to give back.
        look_s: when to look again, at the latest; infinity if nothing is expected.
    """

    claim: tuple[int, ...]
    give: tuple[int, ...]
    look_s: float


def assign(
    shards: Sequence[int], nodes: Collection[str], owners: Mapping[int, str]
) -> dict[int, str]:
    """The node for each shard.

    Args:
        shards: their numbers.
        nodes: that take shards.
        owners: of shards; a shard whose owner is none of `nodes`, or that has none, needs one.

    Returns:
        Nothing if there are no nodes.
    """
    if not nodes:
        return {}
    kept: dict[str, list[int]] = {node: [] for node in nodes}
    homeless: list[int] = []
    for shard in shards:
        kept.get(owners.get(shard, ""), homeless).append(shard)
    least, more = divmod(len(shards), len(nodes))
    # the fullest nodes have one more: then fewest shards move
    fullest = sorted(nodes, key=lambda node: (-len(kept[node]), node))
    room = {node: least + (place < more) for place, node in enumerate(fullest)}
    for node, own in kept.items():
        own.sort(key=lambda shard: -_weight(node, shard))
        homeless += own[room[node] :]
        del own[room[node] :]
    found = {shard: node for node, own in kept.items() for shard in own}
    for shard in sorted(homeless):
        free = [node for node in nodes if len(kept[node]) < room[node]]
        best = max(free, key=lambda node: (_weight(node, shard), node))
        kept[best].append(shard)
        found[shard] = best
    return found


def _weight(node: str, shard: int) -> int:
    return int.from_bytes(blake2b(f"{node}/{shard}".encode(), digest_size=8).digest())


def plan(me: NodeInfo, held: Collection[int], placement: Placement) -> Plan:
    """Return what this node is to do now.

    Args:
        me: this node, as it is now.
        held: numbers of the shards that it owns, or is about to.
        placement: what there is; this node's own row in it may be older.
    """
    if me.state == "leaving":
        return Plan((), tuple(sorted(held)), _SOON_S)
    others = [one for one in placement.nodes if one.address != me.address]
    staying = [one for one in (*others, me) if one.state != "leaving"]
    # a node of a newer release brings journals up to date, which others then cannot read
    oldest = min(one.format for one in staying)
    taking = {one.address for one in staying if one.state == "serving" and one.format == oldest}
    keeping = {one.address for one in staying} - taking
    owners = {one.number: one.address for one in placement.leases if one.runs}
    divided = [one.number for one in placement.leases if owners.get(one.number) not in keeping]
    target = assign(divided, taking, owners)
    live = {one.address for one in others}
    claim, expected = [], []
    for lease in placement.leases:
        if target.get(lease.number) != me.address or lease.number in held:
            continue
        if not lease.runs:
            claim.append(lease.number)
        elif lease.address in live:  # that one is about to give it back
            expected.append(_SOON_S)
        else:
            assert lease.left_s is not None
            expected.append(lease.left_s + _LATER_S)
    give = sorted(one for one in held if target.get(one, me.address) != me.address)
    return Plan(tuple(claim), tuple(give), min(expected, default=float("inf")))
