"""Durable appends of one runtime over PostgreSQL, next to bare inserts of the same rows.

    python -m benchmarks.postgres [--seconds 3] [--rounds 3]

A cluster of its own (fsync on) in a temporary directory, on a Unix socket. Rounds alternate: 64 and
256 sessions append texts of 300 characters, one caller each; then one connection inserts rows of
the same sizes into a table with the same columns and indices, as many rows a statement as the
runtime's commits had on average, without any fence.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from contextlib import suppress
from typing import Any

import anyio
import asyncpg

from remora import Runtime
from remora.storage.postgres import PostgresJournal
from tests.postgres import running_cluster

_TEXT = "word " * 60
_CALLERS = (64, 256)
_INSERT = (
    "INSERT INTO bare (pos, at_us, tokens, role, chat, meta, id, key, batch, importance, crc, "
    "epoch) SELECT u.*, 1 FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], "
    "$5::bytea[], $6::bytea[], $7::text[], $8::bytea[], $9::bigint[], $10::float8[], "
    "$11::bigint[]) AS u"
)


async def _appends(dsn: str, callers: int, seconds: float) -> tuple[float, float, float]:
    """Appends a second, rows a commit, median milliseconds of an append."""
    journal = await PostgresJournal.open(dsn, schema="bench")
    times: list[float] = []
    async with Runtime.in_memory(journal=journal) as runtime:
        chats = [runtime.session(f"user {n}", f"s {time.time_ns()}") for n in range(callers)]
        for chat in chats:
            await chat.append({"role": "user", "content": _TEXT})
        before = journal.statistics()
        end = time.perf_counter() + seconds

        async def talk(number: int) -> None:
            while time.perf_counter() < end:
                began = time.perf_counter()
                await chats[number].append({"role": "user", "content": _TEXT})
                times.append(time.perf_counter() - began)

        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(callers):
                tasks.start_soon(talk, number)
        took = time.perf_counter() - began
        after = journal.statistics()
    rows = (after.records - before.records) / max(after.commits - before.commits, 1)
    return len(times) / took, rows, statistics.median(times) * 1e3


async def _inserts(dsn: str, rows: int, seconds: float) -> float:
    """Rows a second."""
    connection = await asyncpg.connect(dsn)
    with suppress(asyncpg.DuplicateTableError):
        await connection.execute("CREATE TABLE bare (LIKE bench.messages INCLUDING ALL)")
    await connection.execute("TRUNCATE bare")
    chat, count, began = b"x" * 340, 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        places = [((n % rows + 1) << 32) + count + n for n in range(rows)]
        same: list[list[Any]] = [
            [1_700_000_000_000_000],
            [60],
            [2],
            [chat],
            [None],
            [None],
            [None],
            [None],
            [0.5],
        ]
        await connection.execute(
            _INSERT,
            places,
            *(one * rows for one in same),
            [123_456_789] * rows,
        )
        count += rows
    rate = count / (time.perf_counter() - began)
    await connection.close()
    return rate


async def _main(seconds: float, rounds: int) -> None:
    with running_cluster(fsync="on") as cluster:
        for callers in _CALLERS:
            found = []
            for _ in range(rounds):
                rate, rows, median = await _appends(cluster.dsn(), callers, seconds)
                bare = await _inserts(cluster.dsn(), max(round(rows), 1), seconds)
                found.append((rate, bare, rate / bare, rows, median))
            rate, bare, ratio, rows, median = map(statistics.median, zip(*found, strict=True))
            ratios = sorted(one[2] for one in found)
            print(
                f"{callers} callers: {rate:,.0f} appends/s, p50 {median:.1f} ms, {rows:.0f} rows a "
                f"commit; bare inserts {bare:,.0f} rows/s; ratio {ratio:.2f} ({ratios[0]:.2f} to "
                f"{ratios[-1]:.2f}); load average {os.getloadavg()[0]:.1f}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    asyncio.run(_main(options.seconds, options.rounds))
