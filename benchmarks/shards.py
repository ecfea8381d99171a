"""What shards of a memory in PostgreSQL cost: connections, processor time, memory and disk.

    python -m benchmarks.shards [--shards 1 8 32] [--messages 10000] [--seconds 10]

One node (`remora serve`) owns all shards, and one worker appends messages of 300 characters for 64
users. Then nobody asks anything for some seconds. Nothing is compared: these are the constants of
docs/explanation/capacity.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

import remora
from tests.machines import Machine, owned_by, placed, running_owner
from tests.postgres import Cluster, running_cluster

_USERS = 64
_TEXT = "word " * 60
_BYTES = """
SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c
JOIN pg_namespace AS s ON s.oid = c.relnamespace WHERE s.nspname LIKE $1 AND c.relkind = 'r'
"""
_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def _cpu_s(pid: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _server_cpu_s(cluster: Cluster) -> float:
    """What all processes of PostgreSQL have used that still run."""
    leader = int((cluster.directory / "data" / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
    return sum(_cpu_s(int(pid)) for pid in children)


def _resident_mb(pid: int) -> float:
    (line,) = (
        one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in one
    )
    return int(line.split()[1]) / 1024


async def _fill(memory: Any, messages: int) -> None:
    async def talk(user: str) -> None:
        chat = memory.session(user, "chat")
        for _ in range(messages // _USERS):
            await chat.append({"role": "user", "content": _TEXT})

    await asyncio.gather(*(talk(f"user {number}") for number in range(_USERS)))


async def _measure(cluster: Cluster, path: Path, given: argparse.Namespace, shards: int) -> None:
    schema = f"shards{shards}"
    machine = Machine(path / schema, cluster.dsn(), schema, lease_s=10, more=f"shards: {shards}")
    database = await asyncpg.connect(cluster.dsn())
    async with running_owner(machine) as owner:
        began = time.monotonic()
        await placed(cluster, schema, owned_by(shards))
        served_s = time.monotonic() - began
        look = partial(database.fetchval, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        async with remora.connect(machine.file) as memory:
            wal = await look()
            await _fill(memory, given.messages)
            wal = await look() - wal
            stored = (await memory.counts()).messages
        size = await database.fetchval(_BYTES, f"{schema}%")
        before = _cpu_s(owner.pid), _server_cpu_s(cluster)
        await asyncio.sleep(given.seconds)
        node_s = _cpu_s(owner.pid) - before[0]
        server_s = _server_cpu_s(cluster) - before[1]
        connections = await database.fetchval(_CONNECTIONS)
        print(
            f"{shards} shards: all served after {served_s:.1f} s; {connections} connections; node "
            f"{_resident_mb(owner.pid):.0f} MB; idle: node {node_s / given.seconds:.1%} of a core, "
            f"PostgreSQL {server_s / given.seconds:.1%}; {stored} messages: {size / stored:.0f} "
            f"bytes each in tables and indices, {int(wal) / stored:.0f} of write-ahead log; load "
            f"average {os.getloadavg()[0]:.1f}"
        )
    await database.close()


async def _main(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for shards in given.shards:
            with running_cluster(fsync="on", max_connections="500") as cluster:
                await _measure(cluster, Path(directory), given, shards)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10)
    asyncio.run(_main(parser.parse_args()))
