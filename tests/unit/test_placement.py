"""Which node should own which shard."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from remora.cluster.sharing import assign, plan
from remora.storage.membership import NodeInfo, NodeState, Placement, ShardLease

NAMES = st.sets(st.sampled_from([f"10.0.0.{number}:7731" for number in range(1, 9)]), min_size=1)
SINCE = datetime(2026, 1, 1, tzinfo=UTC)


def node(address: str, state: NodeState = "serving", format_: int = 2) -> NodeInfo:
    return NodeInfo(address, f"n{address}", "host:1", "0.1", format_, "f", state, SINCE)


def placement(nodes: list[NodeInfo], owners: dict[int, str], count: int) -> Placement:
    leases = tuple(
        ShardLease(number, 1, "host:1", owners.get(number, ""), SINCE,
                   5.0 if number in owners else None)
        for number in range(count)
    )  # fmt: skip
    return Placement(count, "abcdef", tuple(nodes), leases)


@given(st.integers(1, 40), NAMES, NAMES, st.data())
def test_shards_are_divided_evenly_and_few_move(
    count: int, before: set[str], after: set[str], data: st.DataObject
) -> None:
    """No node has two more than another; a shard moves only if its node is gone or has too many."""
    shards = range(count)
    owners = {
        shard: data.draw(st.sampled_from(sorted(before)), label=str(shard)) for shard in shards
    }
    found = assign(shards, after, owners)
    assert found.keys() == set(shards)
    counts = Counter(dict.fromkeys(after, 0))
    counts.update(found.values())
    assert max(counts.values()) - min(counts.values()) <= 1
    assert found == assign(shards, sorted(after, reverse=True), owners)
    # what has to move, whatever is chosen: the fullest nodes keep one more
    kept = sorted((sum(owner == name for owner in owners.values()) for name in after), reverse=True)
    least, more = divmod(count, len(after))
    stay = sum(min(have, least + (place < more)) for place, have in enumerate(kept))
    assert sum(found[shard] == owners[shard] for shard in shards) == stay
    assert assign(shards, after, found) == found


@given(st.integers(1, 40), NAMES)
def test_a_node_that_comes_or_goes_moves_only_its_share(count: int, names: set[str]) -> None:
    first = assign(range(count), names, {})
    more = {*names, "10.0.1.1:7731"}
    second = assign(range(count), more, first)
    moved = {shard for shard in range(count) if first[shard] != second[shard]}
    assert {second[shard] for shard in moved} <= {"10.0.1.1:7731"}
    assert len(moved) == count // len(more)
    third = assign(range(count), names, second)
    assert {shard for shard in range(count) if second[shard] != third[shard]} == {
        shard for shard in range(count) if second[shard] == "10.0.1.1:7731"
    }


@given(st.integers(1, 12), NAMES, st.data())
def test_plans_of_all_nodes_come_to_one_end(
    count: int, names: set[str], data: st.DataObject
) -> None:
    """Nodes that follow their plans one at a time, in any order, own all shards after two rounds,
    and then do nothing more.
    """
    states: list[NodeState] = ["serving", "serving", "leaving", "resting"]
    nodes = {name: node(name, data.draw(st.sampled_from(states))) for name in sorted(names)}
    owners = {
        shard: name
        for shard in range(count)
        if (name := data.draw(st.sampled_from([*sorted(names), ""]), label=str(shard)))
    }
    before = dict(owners)
    for _ in range(3):
        for name in data.draw(st.permutations(sorted(names))):
            held = {shard for shard, owner in owners.items() if owner == name}
            todo = plan(nodes[name], held, placement(list(nodes.values()), owners, count))
            assert not set(todo.claim) & owners.keys(), "nobody claims what another one owns"
            assert set(todo.give) <= held
            for shard in todo.give:
                del owners[shard]
            owners |= dict.fromkeys(todo.claim, name)
    for name in names:
        held = {shard for shard, owner in owners.items() if owner == name}
        todo = plan(nodes[name], held, placement(list(nodes.values()), owners, count))
        assert not todo.claim
        assert not todo.give
    serving = {name for name, one in nodes.items() if one.state == "serving"}
    resting = {name for name, one in nodes.items() if one.state == "resting"}
    assert set(owners.values()) <= serving | resting
    if serving:
        assert owners.keys() == set(range(count))
    for name in resting:  # it keeps what it has, and takes no others
        kept = {shard for shard, owner in before.items() if owner == name}
        assert {shard for shard, owner in owners.items() if owner == name} == kept


def test_a_node_of_a_newer_format_waits_for_the_others_to_leave() -> None:
    old, new = node("old:1"), node("new:1", format_=3)
    seen = placement([old, new], {0: "old:1"}, 2)
    assert plan(new, (), seen).claim == ()
    assert plan(old, {0}, seen).claim == (1,)
    leaving = placement([node("old:1", "leaving"), new], {0: "old:1"}, 2)
    assert plan(new, (), leaving).claim == (1,)
    assert plan(node("old:1", "leaving"), {0}, leaving).give == (0,)


def test_when_a_node_looks_again() -> None:
    """At once if another one is about to give a shard back; when its lease ends if that is dead."""
    one, two = node("one:1"), node("two:1")
    alive = placement([one, two], {0: "one:1", 1: "one:1"}, 2)
    assert plan(two, (), alive).look_s < 1
    dead = placement([two], {0: "one:1"}, 1)
    assert 5 < plan(two, (), dead).look_s < 6
    done = placement([one, two], {0: "one:1", 1: "two:1"}, 2)
    assert plan(two, {1}, done).look_s == float("inf")
