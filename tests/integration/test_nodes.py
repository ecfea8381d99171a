"""Several shards on several machines: nodes divide them, and workers find each."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

import remora
from remora.blocks import StaticMemoryBlock
from remora.cluster.sharded import ShardedRuntime
from remora.cluster.sharding import shard_of
from remora.config import Secret
from remora.errors import ConfigError
from remora.observe import ask
from remora.storage.membership import Placement
from remora.storage.postgres import PostgresJournal
from remora.storage.postgres.cluster import ClusterReader, open_cluster
from tests.integration.test_cluster_verbs import (
    Opened,
    StoppedClock,
    differences_of,
    mask,
    world_of,
)
from tests.machines import SECRET, Machine, owned_by, placed, running_owner
from tests.nodes import connected, node, serve, two_nodes
from tests.object_store import serve_objects
from tests.patience import until
from tests.postgres import Cluster
from tests.programs import run_command_aside
from tests.workers import OWNERS

pytestmark = [pytest.mark.anyio, *OWNERS]
SHARDS = 4


def users() -> list[str]:
    """Some of each shard."""
    found: dict[int, list[str]] = {}
    for number in range(100):
        found.setdefault(shard_of(f"user{number}", SHARDS), []).append(f"user{number}")
    return [name for names in found.values() for name in names[:2]]


def is_idle(found: Placement) -> bool:
    """No request waits, as the nodes' last beats say."""
    return not any(load.queue for one in found.nodes for load in one.loads)


async def say(memory: Any, number: int) -> None:
    async with anyio.create_task_group() as tasks:
        for user in users():
            chat = memory.session(user, "chat")
            message = {"role": "user", "content": str(number)}
            tasks.start_soon(partial(chat.append, message, key=f"k{number}"))


async def opened(directory: Path, shards: int) -> None:
    """Return when the node says that it has so many shards open, and is ready."""
    while True:
        status = await anyio.to_thread.run_sync(ask, directory)
        if status is not None and status.served == shards and status.health.ready:
            return
        await anyio.sleep(0.02)


async def heard(memory: Any) -> list[list[str]]:
    return [
        [str(one.content) for one in await memory.session(user, "chat").history()]
        for user in users()
    ]


# -- moves -----------------------------------------------------------------------------------------


async def test_nodes_come_and_go_under_a_worker(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G3, G12: shards move to a node that joins, and from one that is killed or told to leave,
    while a worker appends: no append fails, nothing is lost, doubled or out of order. `remora
    owners` shows who has what.
    """
    one, two = (
        # a lease that a busy machine renews in time: epochs are counted
        Machine(tmp_path / name, cluster.dsn(), "moves", more=f"shards: {SHARDS}", lease_s=10)
        for name in ("one", "two")
    )
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_owner(one))
        await placed(cluster, "moves", owned_by(SHARDS))
        memory = await stack.enter_async_context(remora.connect(two.file))
        await say(memory, 0)
        second = await stack.enter_async_context(running_owner(two))
        found = await placed(cluster, "moves", owned_by(SHARDS // 2, SHARDS // 2))
        assert sum(one.epoch for one in found.leases) >= SHARDS + SHARDS // 2
        await opened(tmp_path / "two" / "memory", SHARDS // 2)
        assert await run_command_aside("health", tmp_path / "two" / "memory") == 0
        assert f"{SHARDS // 2} of {SHARDS} shards" in capsys.readouterr().out
        await say(memory, 1)
        # the last beat may be of while they were said
        await placed(cluster, "moves", is_idle)
        assert await run_command_aside("owners", one.file, "--json") == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {row["owner"].rpartition(":")[2] for row in rows} == {
            str(first.pid),
            str(second.pid),
        }
        assert [row["shard"] for row in rows] == list(range(SHARDS))
        assert {row["queue"] for row in rows} <= {0, None}
        assert await run_command_aside("owners", one.file) == 0
        shown = capsys.readouterr().out
        assert "serving" in shown
        assert all(row["address"] in shown for row in rows), "cut off at 80 columns"
        os.kill(first.pid, signal.SIGKILL)
        await say(memory, 2)
        found = await placed(cluster, "moves", owned_by(SHARDS))
        assert sum(one.epoch for one in found.leases) >= 2 * SHARDS
        third = await stack.enter_async_context(running_owner(one))
        await placed(cluster, "moves", owned_by(SHARDS // 2, SHARDS // 2))
        os.kill(second.pid, signal.SIGTERM)
        await say(memory, 3)
        assert await second.ended() == 0
        await placed(cluster, "moves", owned_by(SHARDS))
        assert await heard(memory) == [["0", "1", "2", "3"]] * len(users())
        assert (await memory.counts()).messages == 4 * len(users())
        assert memory.health().ready
        os.kill(third.pid, signal.SIGTERM)
        assert await third.ended() == 0
    capsys.readouterr()
    assert await run_command_aside("owners", one.file) == 1
    assert "none" in capsys.readouterr().out


# -- the same results ------------------------------------------------------------------------------

FILES = (
    "Runtime.backup",
    "Runtime.export",
    "Runtime.import_",
    "nothing to import",
    "no export at all",
    "sessions that exist",
    "something is there",
    "a backup over something",
)
"""Refused: the owner's files may be another machine's."""


def make_config(cluster: Cluster, schema: str, **more: object) -> remora.Config:
    return remora.Config.from_dict(
        {
            "journal": {
                "dsn": cluster.dsn(),
                "schema": schema,
                "memory": "shop",
                "durability": "process",
            },
            "long_term": {"enabled": False},
            "models": {"embedder": "none"},
            "retention": {"forgotten_s": 0},
            "cluster": {"secret": SECRET, "listen": "127.0.0.1:0", "shards": 2, **more},
        }
    )


def make(path: Path, config: remora.Config) -> remora.Runtime:
    return remora.Runtime(
        path / "memory",
        config=config,
        redact=mask,
        blocks=[StaticMemoryBlock(name="rules", static_content="Be kind.")],
        clock=StoppedClock(),
    )


def make_local(path: Path) -> ShardedRuntime:
    config = {
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
        "retention": {"forgotten_s": 0},
    }
    return ShardedRuntime.of(make(path, remora.Config.from_dict(config)), shards=2)


async def test_every_verb_on_two_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """The same calls of a memory in shards in this process, and of one that two nodes share."""
    config = make_config(cluster, "verbs")

    @asynccontextmanager
    async def shared(path: Path) -> AsyncIterator[Opened]:
        async with (
            two_nodes(lambda place: make(place, config), path, 2) as nodes,
            connected(make(path, config)) as memory,
        ):
            served = dict(item for one in nodes for item in one.served.items())
            yield Opened(world_of(memory, path), [served[number] for number in range(2)])

    _, found, differences = await differences_of(tmp_path, make_local, shared)
    assert {one for one in differences if not one.startswith(FILES)} == set()
    assert all("on another machine" in found[name].text for name in FILES)


async def test_nodes_that_make_a_memory_at_once(cluster: Cluster) -> None:
    """Each finds the one that one of them made, at whatever moment it looks."""
    for number in range(8):
        open_one = partial(open_cluster, cluster.dsn(), f"new_{number}", 2, lease_s=10.0)
        found = await asyncio.gather(*(open_one(durability="process") for _ in range(6)))
        assert len({one.instance for one in found}) == 1


# -- what is refused -------------------------------------------------------------------------------


async def test_what_a_machine_lacks_is_said_before_there_is_a_memory(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.26: a certificate that is not there, the extra for S3: the node does not start, instead of
    failing shard by shard.
    """
    config = make_config(cluster, "lacking")
    missing = tmp_path / "cert.pem"
    keys = make_config(cluster, "lacking", certificate=str(missing), key="k")
    with pytest.raises(ConfigError, match=r"cert\.pem.* openssl"):
        await serve(make(tmp_path, keys))
    monkeypatch.setitem(sys.modules, "obstore", None)
    at = msgspec.structs.replace(config.long_term, enabled=True, uri=Secret("s3://bucket/memory"))
    with pytest.raises(ConfigError, match=r"remora\[s3\]"):
        await serve(make(tmp_path, msgspec.structs.replace(config, long_term=at)))
    reader = ClusterReader(cluster.dsn(), "lacking")
    assert await reader.read() is None
    reader.close()


async def test_a_bucket_that_is_not_there(cluster: Cluster, tmp_path: Path) -> None:
    """S3.26: the node says so, and does not start; one that is away is waited for."""
    config = make_config(cluster, "bucketless")
    with serve_objects() as server:
        long_term = msgspec.structs.replace(
            config.long_term,
            enabled=True,
            uri=Secret(f"{server.address()}/x".replace(server.bucket, "nobodys-bucket")),
            object_store=server.config,
        )
        config = msgspec.structs.replace(config, long_term=long_term)
        with pytest.raises(ConfigError, match="no such bucket"):
            await serve(make(tmp_path, config))
        reader = ClusterReader(cluster.dsn(), "bucketless")
        assert await reader.read() is None
        server.away = True
        async with node(make(tmp_path, config)):
            while await reader.read() is None:
                await anyio.sleep(0.02)
        reader.close()


async def test_what_cannot_share_a_memory(cluster: Cluster, tmp_path: Path) -> None:
    """S3.26: another number of shards, another secret, a Runtime on the whole or on one shard,
    a memory in one piece, a schema that another memory has: each says what to do.
    """
    config = make_config(cluster, "refused")
    with pytest.raises(ConfigError, match=r"cluster\.shards says 2.* leave cluster\.shards out"):
        async with make(tmp_path / "alone", config):  # it would make a memory in one piece
            pass
    async with node(make(tmp_path / "one", config)) as first:
        await until(lambda: len(first.served) == 2, "it serves its shards")
        other = make_config(cluster, "refused", shards=4)
        with pytest.raises(ConfigError, match=r"has 2 shards.* cluster\.shards says 4"):
            await serve(make(tmp_path / "two", other))
        with pytest.raises(ConfigError, match=r"has 2 shards.* cluster\.shards says 4"):
            async with connected(make(tmp_path / "worker", other)):
                pass
        named = make_config(cluster, "refused")
        named = msgspec.structs.replace(
            named, journal=msgspec.structs.replace(named.journal, memory="blog")
        )
        with pytest.raises(ConfigError, match="of the memory 'shop', not of 'blog'"):
            await serve(make(tmp_path / "two", named))
        stranger = make_config(cluster, "refused", secret="x" * 40)
        with pytest.raises(ConfigError, match="copy it from there"):
            await serve(make(tmp_path / "two", stranger))
        with pytest.raises(ConfigError, match=r"cluster\.shards says 2.*remora serve"):
            async with make(tmp_path / "three", config):
                pass
        with pytest.raises(ConfigError, match=r"memory in 2 shards.*remora serve"):
            async with make(tmp_path / "three", make_config(cluster, "refused", shards=None)):
                pass
        with pytest.raises(ConfigError, match="shard 0 of 2 of the memory"):
            await PostgresJournal.open(
                cluster.dsn(), schema="refused_00", durability="process", wait_s=0
            )
        assert len(first.served) == 2
    for schema in ("whole", "mixed_01"):
        journal = await PostgresJournal.open(cluster.dsn(), schema=schema, durability="process")
        await journal.aclose()
    with pytest.raises(ConfigError, match="in one piece, not in 2 shards"):
        await serve(make(tmp_path / "four", make_config(cluster, "whole")))
    with pytest.raises(ConfigError, match="has the journal of another memory"):
        await serve(make(tmp_path / "five", make_config(cluster, "mixed")))
