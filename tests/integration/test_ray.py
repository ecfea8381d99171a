"""Nodes on a Ray cluster: placed, started again, scaled, and told to leave.

Ray is not among the development requirements: ``python -m benchmarks.lab.frameworks own ray`` runs
these in an environment of their own.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

os.environ |= {  # read when Ray is imported
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all of it listens on loopback
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # other tests need memory, too
    "RAY_AUTH_TOKEN": secrets.token_hex(),  # it would keep one in the home directory
}
pytest.importorskip("ray", reason="`python -m benchmarks.lab.frameworks own ray`")
import ray
from ray.cluster_utils import Cluster as RayCluster

import remora
from remora.adapters.ray import NodeStatus, read_nodes, scale_nodes
from remora.errors import InvalidInput, OwnerFailed, OwnerUnreachable
from remora.storage.membership import Placement
from tests.integration.test_nodes import SHARDS, heard, say, users
from tests.machines import Machine, owned_by, placed
from tests.patience import until
from tests.postgres import Cluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.blocking,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="owners need Linux"),
]
HALF = SHARDS // 2


@pytest.fixture(scope="module")
def connected() -> Iterator[RayCluster]:
    """This program, connected to a Ray cluster of two machines, each with room for one node."""
    found = RayCluster()
    try:
        for _ in range(2):
            add_machine(found)
        ray.init(found.address, log_to_driver=False)
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def add_machine(found: RayCluster) -> None:
    """What Ray takes for another machine; the first one is the head."""
    found.add_node(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000)


async def scale(*given: Any, **more: Any) -> tuple[NodeStatus, ...]:
    return await anyio.to_thread.run_sync(partial(scale_nodes, *given, **more))


def without(pid: int, *counts: int) -> Callable[[Placement], bool]:
    """Whether every shard is owned, so many by each of the nodes, and none by a process."""
    right = owned_by(*counts)
    return lambda found: right(found) and pid not in pids(found)


def pids(found: Placement) -> set[int]:
    return {int(one.owner.rpartition(":")[2]) for one in found.nodes}


def stat_of(pid: int) -> list[str]:
    """State, parent and more of a process; it is dead while it is a zombie, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return ["Z"]


def raylet_of(node: NodeStatus) -> int:
    """Ray's own process on the machine of a node."""
    actor = int(stat_of(node.pid)[1])
    return int(stat_of(actor)[1])


async def ended(pid: int) -> None:
    await until(lambda: stat_of(pid)[0] == "Z", f"process {pid} ends")


async def test_ray_places_nodes_and_starts_them_again(
    connected: RayCluster, cluster: Cluster, tmp_path: Path
) -> None:
    """Two nodes are placed. The process of one is killed, then the actor of the other: Ray starts
    both again. One is told to leave, then the last. No append fails, and nothing is lost.
    """
    machine = Machine(tmp_path / "one", cluster.dsn(), "ray", lease_s=2, more=f"shards: {SHARDS}")
    one, two = await scale(machine.file, 2)
    assert (one.name, two.name) == ("memory-0", "memory-1")
    assert {one.target, two.target} == {str(machine.file)}
    found = await placed(cluster, "ray", owned_by(HALF, HALF))
    assert pids(found) == {one.pid, two.pid}
    assert all(node.address.startswith("127.0.0.1:") for node in found.nodes)
    async with remora.connect(machine.file) as memory:
        await say(memory, 0)
        os.kill(one.pid, signal.SIGKILL)
        await say(memory, 1)
        await placed(cluster, "ray", without(one.pid, HALF, HALF))

        os.kill(int(stat_of(two.pid)[1]), signal.SIGKILL)
        await say(memory, 2)
        found = await placed(cluster, "ray", without(two.pid, HALF, HALF))
        await ended(two.pid)  # it was not left behind
        assert {node.pid for node in await scale(machine.file, 2)} == pids(found)

        (last,) = await scale(machine.file, 1)
        found = await placed(cluster, "ray", owned_by(SHARDS))
        assert pids(found) == {last.pid}
        await say(memory, 3)
        assert await heard(memory) == [["0", "1", "2", "3"]] * len(users())
        assert (await memory.counts()).messages == 4 * len(users())
    with pytest.raises(InvalidInput, match=r"memory-0 serves .*give these nodes another name"):
        await scale("elsewhere.yaml", 1)
    assert await scale(machine.file, 0) == ()
    assert read_nodes() == ()
    found = await placed(cluster, "ray", lambda found: not found.nodes)
    assert {lease.left_s for lease in found.leases} == {None}, "they gave their shards back"


async def test_a_machine_that_is_lost(
    connected: RayCluster, cluster: Cluster, tmp_path: Path
) -> None:
    """Ray itself dies on the machine of a node: no process is left behind, the other node takes all
    shards, and a machine that comes back has a node again. Nothing is lost.
    """
    machine = Machine(tmp_path / "one", cluster.dsn(), "lost", lease_s=2, more=f"shards: {SHARDS}")
    nodes = await scale(machine.file, 2)
    await placed(cluster, "lost", owned_by(HALF, HALF))
    host, one = connected.head_node, nodes[0]
    if raylet_of(one) == host.all_processes["raylet"][0].process.pid:
        one = nodes[1]
    (lost,) = [each for each in connected.list_all_nodes() if each is not host]
    async with remora.connect(machine.file) as memory:
        await say(memory, 0)
        await anyio.to_thread.run_sync(partial(connected.remove_node, lost, allow_graceful=False))
        await say(memory, 1)
        await placed(cluster, "lost", without(one.pid, SHARDS))
        await ended(one.pid)
        add_machine(connected)  # Ray wants the main thread
        await say(memory, 2)
        await placed(cluster, "lost", without(one.pid, HALF, HALF))
        assert await heard(memory) == [["0", "1", "2"]] * len(users())
    assert await scale(machine.file, 0) == ()


SCALES = """
import sys, ray
from remora.adapters.ray import scale_nodes
ray.init(sys.argv[1], log_to_driver=False)
scale_nodes(sys.argv[2], 1)
"""


async def test_several_programs(connected: RayCluster, cluster: Cluster, tmp_path: Path) -> None:
    """A node outlives the program that had it started. Of two programs that start different
    memories under a name, one is told so; so is one whose nodes another one ends.
    """
    one, two = (
        Machine(tmp_path / name, cluster.dsn(), f"several_{name}").file for name in ("one", "two")
    )
    program = [sys.executable, "-c", SCALES, connected.address, str(one)]
    await anyio.run_process(program, stderr=None)
    (left,) = read_nodes()
    assert left.target == str(one)
    assert (await scale(one, 1))[0].pid == left.pid
    await scale(one, 0)

    outcomes = await asyncio.gather(scale(one, 1), scale(two, 1), return_exceptions=True)
    (refused,) = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert isinstance(refused, InvalidInput)
    assert "give these nodes another name" in str(refused)
    (served,) = read_nodes()
    await scale(served.target, 0)

    waiting = asyncio.ensure_future(scale(one, 1, resources={"nowhere": 1}))
    await until(lambda: anyio.to_thread.run_sync(read_nodes), "the node has a name")
    await scale(one, 0)
    with pytest.raises(OwnerUnreachable, match="memory-0: another program has told this node to"):
        await waiting


async def test_a_name_that_is_taken(connected: RayCluster) -> None:
    """S3.26: by an actor of another program, which nothing is done to."""

    class Other:
        def hello(self) -> str:
            return "hello"

    options = {"name": "memory-0", "namespace": "remora", "num_cpus": 0}
    other = ray.remote(Other).options(**options).remote()
    assert ray.get(other.hello.remote()) == "hello"
    for count in (1, 0):
        with pytest.raises(InvalidInput, match=r"memory-0 .* give these nodes another name"):
            await scale("remora.yaml", count)
    with pytest.raises(InvalidInput, match="is none of a node"):
        read_nodes()
    assert ray.get(other.hello.remote()) == "hello"
    ray.kill(other)
    await until(lambda: not ray.util.list_named_actors(all_namespaces=True), "it is gone")


async def test_what_cannot_serve_is_told(
    connected: RayCluster, cluster: Cluster, tmp_path: Path
) -> None:
    """A target that no machine can use leaves no node; one without a place goes on waiting."""
    machine = Machine(tmp_path / "one", cluster.dsn(), "told")
    text = machine.file.read_text()
    machine.file.write_text("long_term: {enabled: false}\n")
    with pytest.raises(OwnerFailed, match=r"memory-0 cannot serve: .*set journal\.dsn") as told:
        await scale(machine.file, 1)
    assert "read_machines" in told.value.log
    with pytest.raises(OwnerFailed, match=r"no/such\.yaml"):
        await scale("no/such.yaml", 1)
    with pytest.raises(OwnerFailed, match="does not take REMORA_DIRECTORY from the environment"):
        await scale("tests.integration.ray_targets:stubborn", 1)
    assert read_nodes() == ()
    machine.file.write_text(text)
    with pytest.raises(OwnerUnreachable, match=r"memory-0 .no answer: Ray has not started it"):
        await scale(machine.file, 1, resources={"nowhere": 1}, timeout_s=0.1)
    assert await scale(machine.file, 0) == ()
    assert read_nodes() == ()


WRONG: tuple[tuple[Any, Any], ...] = (
    (("remora.yaml", -1), {}),
    (("remora.yaml", 1.5), {}),
    (("remora.yaml", 1_001), {}),
    (("", 1), {}),
    ((None, 1), {}),
    (("postgresql://agent:secret@db/agents", 1), {}),
    (("remora.yaml", 1), {"name": ""}),
    (("remora.yaml", 1), {"name": "a\nb"}),
    (("remora.yaml", 1), {"num_cpus": -1}),
    (("remora.yaml", 1), {"num_cpus": float("nan")}),
    (("remora.yaml", 1), {"resources": {"node": "1"}}),
    (("remora.yaml", 1), {"timeout_s": -1}),
)


def test_wrong_arguments(connected: RayCluster) -> None:
    for given, more in WRONG:
        with pytest.raises(InvalidInput) as told:
            scale_nodes(*given, **more)
        assert "secret" not in str(told.value)


def test_no_cluster_is_started() -> None:
    """A program that has not connected to Ray is told so; Ray would start a cluster of its own."""
    program = "from remora.adapters.ray import read_nodes\nread_nodes()"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stderr.strip().endswith('connect to the Ray cluster first: ray.init("auto")')
