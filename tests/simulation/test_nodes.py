"""Nodes that share shards while they die, stand still, join and leave, at moments of a seed.

The loop is the one of `remora serve` (`remora.cluster.sharing`); the database and the shards are
simulated: a lease is a row with an epoch, and is claimed if nobody's runs.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from remora.cluster.sharing import Node
from remora.errors import ConfigError, StorageError
from remora.storage.membership import NodeInfo, NodeState, Placement, ShardLease, ShardLoad
from remora.testing.simulation import SeededLoop

pytestmark = pytest.mark.blocking

SEEDS = int(os.environ.get("REMORA_SEEDS", "20"))
SHARDS, LEASE_S, FRESH = 12, 6.0, 2 / 3
SINCE = datetime(2026, 1, 1, tzinfo=UTC)


class Row:
    """A shard's lease."""

    def __init__(self) -> None:
        self.epoch, self.address, self.until = 0, "", 0.0


class Database:
    """The rows of nodes and leases, by its clock."""

    def __init__(self, loop: SeededLoop) -> None:
        self.loop = loop
        self.nodes: dict[str, tuple[NodeInfo, float]] = {}
        self.leases = [Row() for _ in range(SHARDS)]
        self.claims: list[tuple[int, int]] = []
        self.away = False

    def read(self) -> Placement:
        now = self.loop.time()
        return Placement(
            SHARDS,
            "abcdef",
            tuple(
                msgspec.structs.replace(one, until=SINCE + timedelta(seconds=until))
                for one, until in self.nodes.values()
                if until > now
            ),
            tuple(
                ShardLease(number, row.epoch, "", row.address, SINCE, max(row.until - now, 0))
                for number, row in enumerate(self.leases)
            ),
        )


class Machine:
    """A process, and its view of the database."""

    def __init__(
        self, database: Database, name: str, *, address: str = "", broken: bool = False
    ) -> None:
        self.database = database
        self.info = NodeInfo(
            address or f"{name}:1", name, name, "0.1", 2, "secret", "serving", SINCE
        )
        self.dead = False
        self.broken = broken
        self.runs = asyncio.Event()
        self.runs.set()
        self.serves: dict[int, float] = {}
        """Until when it answers for a shard."""
        self.node = Node(self, self.info, LEASE_S, lambda number: SimulatedTerm(self, number))
        self.task = asyncio.ensure_future(self.node.run())

    async def reach(self) -> None:
        """The way to the database, and back to a process that may stand still."""
        await asyncio.sleep(self.database.loop.rng.uniform(0.001, 0.05))
        await self.runs.wait()
        if self.dead or self.database.away:
            raise StorageError("the database is away")

    async def join(self) -> None:
        await self.reach()
        self.database.nodes[self.info.address] = (self.info, self.until())

    async def beat(self, state: NodeState, loads: Sequence[ShardLoad]) -> tuple[bool, Placement]:
        await self.reach()
        row = self.database.nodes.get(self.info.address)
        joined = row is not None and row[0].node == self.info.node
        if joined:
            now = msgspec.structs.replace(self.info, state=state, loads=tuple(loads))
            self.database.nodes[self.info.address] = (now, self.until())
        return joined, self.database.read()

    async def leave(self) -> None:
        await self.reach()
        row = self.database.nodes.get(self.info.address)
        if row is not None and row[0].node == self.info.node:
            del self.database.nodes[self.info.address]

    def until(self) -> float:
        return self.database.loop.time() + LEASE_S

    def kill(self) -> None:
        self.dead = True
        self.serves.clear()
        self.task.cancel()

    async def stand_still(self, seconds: float) -> None:
        self.runs.clear()
        await asyncio.sleep(seconds)
        self.runs.set()


class SimulatedTerm:
    """Owns a shard by its lease."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.number = machine, number
        self.given = asyncio.Event()

    @property
    def load(self) -> ShardLoad | None:
        return ShardLoad(self.number, 0, 0) if self.number in self.machine.serves else None

    def give(self) -> None:
        self.given.set()

    async def run(self) -> None:
        machine, database = self.machine, self.machine.database
        row, time = database.leases[self.number], database.loop.time
        if machine.broken:
            raise ConfigError("the bucket cannot be reached from here")
        sent = time()
        await machine.reach()
        if row.until > time():
            raise StorageError("another process owns it")
        row.epoch, row.address, row.until = row.epoch + 1, machine.info.address, machine.until()
        epoch = row.epoch
        database.claims.append((self.number, epoch))
        try:
            while True:
                machine.serves[self.number] = sent + LEASE_S * FRESH
                try:
                    async with asyncio.timeout(LEASE_S / 6):
                        await self.given.wait()
                        break
                except TimeoutError:
                    pass
                sent = time()
                try:
                    await machine.reach()
                except StorageError:
                    sent = machine.serves[self.number] - LEASE_S * FRESH
                    if machine.dead:
                        return
                    continue
                if row.epoch != epoch:
                    return
                row.until = machine.until()
            await asyncio.sleep(database.loop.rng.uniform(0, 0.3))  # accepted requests
        finally:
            machine.serves.pop(self.number, None)
        await machine.reach()
        if row.epoch == epoch:
            row.until = 0.0


class Play:
    """One run of some nodes."""

    def __init__(self, loop: SeededLoop) -> None:
        self.database = Database(loop)
        self.rng = loop.rng
        self.machines: list[Machine] = []
        self.names = 0
        self.shared_at: list[str] = []

    def start(self, *, address: str = "", broken: bool = False) -> Machine:
        self.names += 1
        machine = Machine(self.database, f"n{self.names}", address=address, broken=broken)
        self.machines.append(machine)
        return machine

    @property
    def living(self) -> list[Machine]:
        return [one for one in self.machines if not one.dead and not one.task.done()]

    async def watch(self) -> None:
        """G12: at no moment do two nodes answer for a shard."""
        while True:
            now = self.database.loop.time()
            answer = Counter(
                number
                for machine in self.living
                if machine.runs.is_set()
                for number, until in machine.serves.items()
                if until > now
            )
            self.shared_at += [f"{number} at {now}" for number, n in answer.items() if n > 1]
            await asyncio.sleep(0.05)

    async def happen(self) -> None:
        """Something, at a moment that the seed chooses."""
        await asyncio.sleep(self.rng.uniform(0, 2 * LEASE_S))
        living = self.living
        able = [one for one in living if not one.broken]
        match self.rng.choice(["kill", "still", "join", "leave", "away", "broken"]):
            case "kill" if len(able) > 1:
                self.rng.choice(able).kill()
            case "still" if living:
                one = self.rng.choice(living)
                await one.stand_still(self.rng.uniform(0, 3 * LEASE_S))
            case "leave" if len(able) > 1:
                self.rng.choice(able).node.leave()
            case "away":
                self.database.away = True
                await asyncio.sleep(self.rng.uniform(0, 2 * LEASE_S))
                self.database.away = False
            case "broken":
                self.start(broken=True)
            case _:
                self.start()

    async def settle(self) -> Counter[str]:
        """How many shards each node has when nothing happens any more."""
        await asyncio.sleep(3 * LEASE_S)
        owners: list[str] = []
        for _ in range(20):  # a node that can open nothing tries again now and then
            now = self.database.loop.time()
            owners = [row.address for row in self.database.leases if row.until > now]
            if len(owners) == SHARDS:
                break
            await asyncio.sleep(0.1)
        assert len(owners) == SHARDS, "a shard has no owner"
        return Counter(owners)

    async def end(self) -> None:
        for machine in self.machines:
            machine.runs.set()
            machine.node.leave()
        await asyncio.gather(*(one.task for one in self.machines), return_exceptions=True)


def play(seed: int) -> tuple[Play, list[Counter[str]]]:
    loop = SeededLoop(random.Random(seed), max_steps=2_000_000)  # type: ignore[abstract]

    async def main() -> tuple[Play, list[Counter[str]]]:
        play = Play(loop)
        watching = asyncio.ensure_future(play.watch())
        for _ in range(play.rng.randint(1, 4)):
            play.start()
        found = [await play.settle()]
        for _ in range(4):
            await play.happen()
        found.append(await play.settle())
        claims = len(play.database.claims)
        await asyncio.sleep(2 * LEASE_S)
        if not any(one.broken for one in play.living):
            assert len(play.database.claims) == claims, "shards move, though nothing happens"
        watching.cancel()
        await play.end()
        return play, found

    try:
        found: tuple[Play, list[Counter[str]]] = loop.run_until_complete(main())
        return found
    finally:
        loop.close()


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_whatever_happens_to_nodes(first: int) -> None:
    """G12: no epoch of a shard is given twice, never do two nodes answer for it, and in the end the
    nodes that work have all shards, in equal parts.
    """
    for seed in range(first, first + 10):
        played, (before, after) = play(seed)
        claims = played.database.claims
        assert len(set(claims)) == len(claims), seed
        assert not played.shared_at, (seed, played.shared_at[:3])
        for counts in (before, after):
            assert max(counts.values()) - min(counts.values()) <= 1, (seed, counts)
        assert not any(row.until > played.database.loop.time() for row in played.database.leases)


def run(work: Callable[[Play], Awaitable[None]]) -> None:
    loop = SeededLoop(random.Random(5), max_steps=2_000_000)  # type: ignore[abstract]

    async def main() -> None:
        play = Play(loop)
        await work(play)
        await play.end()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_node_that_can_open_nothing_takes_nothing_from_the_others() -> None:
    """It rests, for longer each time; what it was to have goes back within a moment."""

    async def work(play: Play) -> None:
        play.start()
        await play.settle()
        play.start(broken=True)
        for _ in range(4):
            assert (await play.settle())["n1:1"] == SHARDS
        assert len(play.database.claims) <= SHARDS + 5 * SHARDS // 2

    run(work)


def test_one_cause_that_fails_all_shards_is_one_failure() -> None:
    """Shards that were claimed together fail of one cause: the first rest is not longer for it."""

    async def work(play: Play) -> None:
        machine = play.start(broken=True)
        while not machine.node.rests_s:
            await asyncio.sleep(0.1)
        machine.broken = False
        assert machine.node.rests_s <= 5
        await asyncio.sleep(7)
        assert len(machine.serves) == SHARDS

    run(work)


def test_who_knows_another_secret_cannot_join() -> None:
    """Two memories under one name: the node that comes later ends, and says what to do."""

    async def work(play: Play) -> None:
        play.start()
        await play.settle()
        stranger = play.start()
        stranger.task.cancel()
        other = msgspec.structs.replace(stranger.info, fingerprint="another", address="x:1")
        node = Node(stranger, other, LEASE_S, lambda number: SimulatedTerm(stranger, number))
        with pytest.raises(ConfigError, match=r"copy it from there"):
            await node.run()

    run(work)


def test_two_machines_with_one_address() -> None:
    """The one that comes later ends, and says what to configure; the other serves on."""

    async def work(play: Play) -> None:
        first = play.start()
        await play.settle()
        second = play.start(address=first.info.address)
        with pytest.raises(ConfigError, match=r"cluster\.address of its own"):
            await second.task
        assert await play.settle() == {first.info.address: SHARDS}
        assert not first.task.done()

    run(work)


def test_a_node_that_is_started_again_where_it_died() -> None:
    """It joins under its address when the others wait no longer for the one that died."""

    async def work(play: Play) -> None:
        first, other = play.start(), play.start()
        await play.settle()
        first.kill()
        again = play.start(address=first.info.address)
        half = SHARDS // 2
        assert await play.settle() == {other.info.address: half, again.info.address: half}

    run(work)


def test_a_defect_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback, and with how long the node rests."""

    class Defect(SimulatedTerm):
        async def run(self) -> None:
            raise AssertionError("a defect")

    async def work(play: Play) -> None:
        machine = play.start()
        machine.task.cancel()
        node = Node(machine, machine.info, LEASE_S, lambda number: Defect(machine, number))
        running = asyncio.ensure_future(node.run())
        while not node.rests_s:
            await asyncio.sleep(0.1)
        node.leave()
        await running

    run(work)
    told = [one for one in caplog.records if "AssertionError" in caplog.handler.format(one)]
    assert len(told) == SHARDS
    assert all(
        "shard_crashed" in one.getMessage() and "rests_s" in one.getMessage() for one in told
    )
    assert "shard_failed" not in caplog.text
