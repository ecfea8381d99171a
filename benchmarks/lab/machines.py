"""What a change of owner costs where the journal is in PostgreSQL, and what the lease costs.

    python -m benchmarks.lab.machines takeover [--rounds 3] [--lease 10]
    python -m benchmarks.lab.machines stops [--rounds 50]
    python -m benchmarks.lab.machines cost [--rounds 5] [--seconds 3]

``takeover``: two `remora serve` on loopback, one worker with 8 sessions that append with keys. The
owner is killed, stopped (SIGSTOP, and continued when the other serves) or told to leave; seconds
until the next append is acknowledged, and then what is lost, doubled or stale.
``stops``: an owner is stopped at random moments under appends, overtaken, asked while it stands
still, and continued: answers and rows from before, next to a control without a lease.
``cost``: durable appends of one runtime with a lease and without, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import remora
from remora import Runtime
from remora.storage.postgres import PostgresJournal
from tests.lease_owner import owner_process
from tests.machines import Machine, ServingOwner, owner_after, running_owner
from tests.postgres import Cluster, running_cluster
from tests.processes import stop

_SESSIONS = 8
_CALLERS = 64
_TEXT = "word " * 60


# -- a change of owner -----------------------------------------------------------------------------


class _Load:
    """Sessions that append without end; when each append was acknowledged."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.acknowledged = [0] * _SESSIONS
        self.times: list[float] = []
        self.ended = False

    async def talk(self, session: int) -> None:
        chat = self.memory.session("alice", f"s{session}")
        while not self.ended:
            number = self.acknowledged[session]
            await chat.append({"role": "user", "content": str(number)}, key=f"k{number}")
            self.acknowledged[session] += 1
            self.times.append(time.monotonic())

    async def first_after(self, moment: float) -> float:
        """Seconds from a moment to the next acknowledgement that was sent after it."""
        count = len(self.times)
        while len(self.times) <= count + _SESSIONS:  # noqa: ASYNC110  # others' work
            await asyncio.sleep(0.005)
        gaps = [
            after - before
            for before, after in zip(self.times, self.times[1:], strict=False)
            if after > moment
        ]
        longest = gaps.index(max(gaps))
        return [one for one in self.times if one > moment][longest] - moment

    async def compare(self) -> tuple[int, int]:
        """How many messages are lost, and how many are doubled or out of order."""
        lost = wrong = 0
        for session, count in enumerate(self.acknowledged):
            history = await self.memory.session("alice", f"s{session}").history()
            found = [str(one.content) for one in history]
            lost += len({str(number) for number in range(count)} - set(found))
            wrong += found != [str(number) for number in range(len(found))]
        return lost, wrong


async def _take_over(
    cluster: Cluster, path: Path, schema: str, how: signal.Signals, lease_s: float
) -> tuple[float, int, int, int]:
    """Seconds until service, messages, lost, sessions that are doubled or out of order."""
    await asyncio.to_thread(path.mkdir)
    one, two = (
        Machine(path / name, cluster.dsn(), schema, lease_s=lease_s) for name in ("one", "two")
    )
    async with AsyncExitStack() as stack:
        first: ServingOwner = await stack.enter_async_context(running_owner(one))
        await first.said("shard_served")
        second = await stack.enter_async_context(running_owner(two))
        await second.said("node_joined")
        memory = await stack.enter_async_context(remora.connect(two.file))
        load = _Load(memory)
        tasks = [asyncio.create_task(load.talk(number)) for number in range(_SESSIONS)]
        await asyncio.sleep(1 + random.random() * lease_s / 6)  # a moment
        moment = time.monotonic()
        if how is signal.SIGSTOP:
            await asyncio.to_thread(stop, first.pid)
        else:
            os.kill(first.pid, how)
        await owner_after(cluster, schema, 1)
        took = await load.first_after(moment)
        if how is signal.SIGSTOP:
            os.kill(first.pid, signal.SIGCONT)
            await first.said("shard_left")
        else:
            await first.ended()
        load.ended = True
        await asyncio.gather(*tasks)
        lost, wrong = await load.compare()
        return took, sum(load.acknowledged), lost, wrong


async def _takeover(rounds: int, lease_s: float) -> None:
    with running_cluster(fsync="on") as cluster, tempfile.TemporaryDirectory() as directory:
        for how in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
            found = [
                await _take_over(
                    cluster,
                    Path(directory) / f"{how.name}{number}",
                    f"{how.name.lower()}_{number}",
                    how,
                    lease_s,
                )
                for number in range(rounds)
            ]
            times = sorted(one[0] for one in found)
            messages, lost, wrong = (sum(one[index] for one in found) for index in (1, 2, 3))
            print(
                f"{how.name}, lease {lease_s:g} s, {rounds} rounds: service after "
                f"{', '.join(f'{one:.1f}' for one in times)} s; {messages:,} acknowledged, {lost} "
                f"lost, {wrong} sessions with a message doubled or out of order"
            )


# -- an owner that stood still ---------------------------------------------------------------------


async def _stop_once(cluster: Cluster, schema: str, lease_s: float) -> tuple[int, int, int]:
    """Answers from before, of how many, and rows from before."""
    async with owner_process(cluster.dsn(), schema, lease_s) as former:
        for number in range(random.randrange(1, 20)):
            await former.ask(f"append {number}")
        former.say("append last")
        await asyncio.sleep(random.random() * 0.02)  # before, in, or after it
        await asyncio.to_thread(stop, former.pid)
        journal = await PostgresJournal.open(
            cluster.dsn(),
            schema=schema,
            lease_s=lease_s,
            command_timeout_s=lease_s or 10.0,
        )
        async with Runtime.in_memory(journal=journal) as runtime:
            chat = runtime.session("alice", "chat")
            await chat.append({"role": "user", "content": "new"})
            before = len(await chat.history())
            former.say(*["load"] * 20)
            os.kill(former.pid, signal.SIGCONT)
            loads = (await former.hear(21))[1:]
            stale = sum(isinstance(one, list) and "new" not in one for one in loads)
            rows = len(await chat.history()) - before
        return stale, len(loads), rows


async def _stops(rounds: int) -> None:
    with running_cluster(fsync="on") as cluster:
        for name, lease_s, count in (("lease of 1 s", 1.0, rounds), ("control, none", 0.0, 5)):
            found = [
                await _stop_once(cluster, f"stop_{lease_s:g}_{number}", lease_s)
                for number in range(count)
            ]
            stale, loads, rows = (sum(one[index] for one in found) for index in range(3))
            print(
                f"{name}: stopped and continued {count} times: {stale} of {loads} loads and {rows} "
                "rows from before"
            )


# -- what the lease costs --------------------------------------------------------------------------


async def _appends(dsn: str, schema: str, lease_s: float, seconds: float) -> float:
    """Appends a second."""
    journal = await PostgresJournal.open(
        dsn, schema=schema, lease_s=lease_s, command_timeout_s=lease_s or 10.0
    )
    count = 0
    async with Runtime.in_memory(journal=journal) as runtime:
        name = f"{time.time_ns()}"
        chats = [runtime.session(f"user {number}", name) for number in range(_CALLERS)]
        end = time.perf_counter() + seconds

        async def talk(chat: Any) -> None:
            nonlocal count
            while time.perf_counter() < end:
                await chat.append({"role": "user", "content": _TEXT})
                count += 1

        began = time.perf_counter()
        await asyncio.gather(*map(talk, chats))
        return count / (time.perf_counter() - began)


async def _cost(rounds: int, seconds: float) -> None:
    leases = (0.0, 10.0, 1.0)
    rates: dict[float, list[float]] = {lease_s: [] for lease_s in leases}
    with running_cluster(fsync="on") as cluster:
        for _ in range(rounds):
            for lease_s in leases:
                rates[lease_s].append(await _appends(cluster.dsn(), "cost", lease_s, seconds))
    for lease_s in leases:
        ratios = sorted(one / other for one, other in zip(rates[lease_s], rates[0.0], strict=True))
        print(
            f"lease {lease_s:g} s: {statistics.median(rates[lease_s]):,.0f} appends/s, "
            f"{statistics.median(ratios):.2f} of those without ({ratios[0]:.2f} to "
            f"{ratios[-1]:.2f}); load average {os.getloadavg()[0]:.1f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("takeover", "stops", "cost"))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--lease", type=float, default=10)
    options = parser.parse_args()
    if options.what == "takeover":
        asyncio.run(_takeover(options.rounds or 3, options.lease))
    elif options.what == "stops":
        asyncio.run(_stops(options.rounds or 50))
    else:
        asyncio.run(_cost(options.rounds or 5, options.seconds))
