"""Durable appends through shards in PostgreSQL, next to what pgbench inserts of the same rows.

    python -m benchmarks.postgres [--shards 2] [--callers 64 256] [--seconds 3] [--rounds 5]

A cluster of its own (fsync on) in a temporary directory, on a Unix socket. Each shard is a process
with one runtime over a schema of its own; so many callers in each append texts of 300 characters,
each to a session of its own. Neither long-term memory nor compaction runs. In turn, in the same
run:

- ``fenced``: the shards as they are (``benchmarks.lab.machines cost`` has what the lease costs);
- ``unfenced``: other shards, whose function `fence` does nothing: what the fence costs;
- ``pgbench, one row``: as many clients as there are callers, one inserted row a transaction;
- ``pgbench, many rows``: one client for each shard, as many rows a statement as the shards'
  commits have. The server makes the rows itself, so nothing is sent, checked or acknowledged.

pgbench writes rows of the same sizes into a table with the same columns and indices.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import msgspec

from remora import Config, Runtime
from remora.storage.postgres import PostgresJournal
from tests.postgres import Cluster, find_programs, running_cluster

_TEXT = "word " * 60
_CONFIG = {"long_term": {"enabled": False}, "buffer": {"policy": "keep_all"}}
_CHAT = "decode(repeat('78', 340), 'hex')"  # what the text is when it is encoded
_VALUES = f"1700000000000000, 60, 2, 1, {_CHAT}, 0.5, 123456789"
_INSERT = "INSERT INTO bare (pos, at_us, tokens, role, epoch, chat, importance, crc)"
_ONE_ROW = f"""\
\\set n :n + 1
{_INSERT} VALUES ((:client_id::bigint << 32) + :n, {_VALUES});
"""
_MANY_ROWS = f"""\
\\set n :n + 1
{_INSERT} SELECT (u << 32) + (:client_id::bigint << 31) + :n, {_VALUES}
FROM generate_series(1::bigint, {{rows}}) AS u;
"""
_NO_FENCE = """
CREATE OR REPLACE FUNCTION {}.fence(e bigint, n bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN END $$
"""


class Figures(msgspec.Struct, frozen=True):
    """What shards did in one round.

    Attributes:
        rate: appends a second.
        rows: in one commit.
        p50_ms: of an append.
        cpu_us: of the shard's process, for one append.
    """

    rate: float
    rows: float
    p50_ms: float
    cpu_us: float


class _Uncounted(PostgresJournal):
    """Does not look whether the server lost commits: without the fence it counts none."""

    async def checkpoint(self) -> None:
        pass


# -- one shard -------------------------------------------------------------------------------------


async def _serve(dsn: str, schema: str, callers: int) -> None:
    """Do a round for each line of the standard input that has seconds."""
    journal = await _Uncounted.open(dsn, schema=schema, lease_s=0)
    async with Runtime.in_memory(journal=journal, config=Config.from_dict(_CONFIG)) as runtime:
        await runtime.ready()  # what loads in other threads holds the interpreter
        chats = [runtime.session(f"user {n}", "chat") for n in range(callers)]
        for chat in chats:
            await chat.append({"role": "user", "content": _TEXT})
        print("ready", flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps(await _append(journal, chats, float(line))), flush=True)


async def _append(journal: PostgresJournal, chats: Sequence[Any], seconds: float) -> list[float]:
    times: list[float] = []
    before, cpu = journal.statistics(), time.process_time()
    began = time.perf_counter()
    end = began + seconds

    async def talk(chat: Any) -> None:
        while (sent := time.perf_counter()) < end:
            await chat.append({"role": "user", "content": _TEXT})
            times.append(time.perf_counter() - sent)

    async with anyio.create_task_group() as tasks:
        for chat in chats:
            tasks.start_soon(talk, chat)
    took = time.perf_counter() - began
    after = journal.statistics()
    return [
        len(times) / took,
        (after.records - before.records) / max(after.commits - before.commits, 1),
        statistics.median(times) * 1e3,
        (time.process_time() - cpu) / len(times) * 1e6,
    ]


class _Shards:
    """Processes that append at the same time."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    async def run(self, seconds: float) -> Figures:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n".encode())
        found = [json.loads(await _line(process)) for process in self._processes]
        rates, rows, p50, cpu = zip(*found, strict=True)
        return Figures(sum(rates), *(statistics.mean(one) for one in (rows, p50, cpu)))


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


@asynccontextmanager
async def _shards(dsn: str, name: str, count: int, callers: int) -> AsyncIterator[_Shards]:
    processes: list[asyncio.subprocess.Process] = []
    try:
        for number in range(count):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.postgres", "--serve"),
                *(dsn, f"{name}_{callers}_{number}", str(callers)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            processes.append(process)
            assert await _line(process) == b"ready\n"
        yield _Shards(processes)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


# -- pgbench ---------------------------------------------------------------------------------------


def _pgbench(dsn: str, script: str, clients: int, seconds: float) -> float:
    """Transactions a second."""
    programs = find_programs()
    assert programs is not None
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "script.sql"
        path.write_text(script)
        done = subprocess.run(
            [
                *(str(programs / "pgbench"), "-n", "-M", "prepared", "-f", str(path)),
                *("-c", str(clients), "-j", str(min(clients, os.cpu_count() or 1)), "-D", "n=0"),
                *("-T", str(max(round(seconds), 1)), dsn),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


async def _bench(cluster: Cluster, script: str, clients: int, seconds: float) -> float:
    await _execute(cluster, "TRUNCATE bare; CHECKPOINT")
    return await asyncio.to_thread(_pgbench, cluster.dsn(), script, clients, seconds)


async def _execute(cluster: Cluster, sql: str) -> None:
    connection = await asyncpg.connect(cluster.dsn())
    for one in sql.split("; "):
        await connection.execute(one)
    await connection.close()


# -- all of it -------------------------------------------------------------------------------------


async def _compare(
    cluster: Cluster, shards: int, callers: int, seconds: float, rounds: int
) -> None:
    rates: dict[str, list[float]] = {}
    figures: list[Figures] = []
    async with AsyncExitStack() as stack:
        fenced, unfenced = [
            await stack.enter_async_context(_shards(cluster.dsn(), name, shards, callers))
            for name in ("fenced", "unfenced")
        ]
        for number in range(shards):
            await _execute(cluster, _NO_FENCE.format(f"unfenced_{callers}_{number}"))
        await _execute(cluster, "DROP TABLE IF EXISTS bare")
        like = f"CREATE TABLE bare (LIKE fenced_{callers}_0.messages INCLUDING ALL)"
        await _execute(cluster, like)
        for _ in range(rounds):
            figures.append(await fenced.run(seconds))
            rows = max(round(figures[-1].rows), 1)
            found = {
                "fenced": figures[-1].rate,
                "unfenced": (await unfenced.run(seconds)).rate,
                "pgbench, one row": await _bench(cluster, _ONE_ROW, shards * callers, seconds),
                "pgbench, many rows": rows
                * await _bench(cluster, _MANY_ROWS.format(rows=rows), shards, seconds),
            }
            for name, rate in found.items():
                rates.setdefault(name, []).append(rate)
    rate, rows_, p50, cpu = (
        statistics.median(one) for one in zip(*map(msgspec.structs.astuple, figures), strict=True)
    )
    print(
        f"{shards} shards, {callers} callers each: {rate:,.0f} appends/s, p50 {p50:.1f} ms, "
        f"{rows_:.0f} rows a commit, {cpu:.0f} us of the shard's CPU an append"
    )
    for name, others in rates.items():
        if name != "fenced":
            ratios = sorted(one / other for one, other in zip(rates["fenced"], others, strict=True))
            print(
                f"  {name}: {statistics.median(others):,.0f}/s; fenced is "
                f"{statistics.median(ratios):.2f} of it ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
    print(f"  load average {os.getloadavg()[0]:.1f}", flush=True)


async def _main(shards: int, callers: Sequence[int], seconds: float, rounds: int) -> None:
    connections = str(shards * max(callers) + 20 * shards + 20)
    with running_cluster(fsync="on", max_connections=connections) as cluster:
        for count in callers:
            await _compare(cluster, shards, count, seconds, rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--callers", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(options.serve[0], options.serve[1], int(options.serve[2])))
    else:
        asyncio.run(_main(options.shards, options.callers, options.seconds, options.rounds))
