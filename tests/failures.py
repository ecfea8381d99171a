"""What may happen to the machines that share a memory, each injected under load and judged.

Two owners (`remora serve`, started again whenever they end) and a worker whose sessions talk
(`tests.talk`). `FAILURES` has all of them by name; `benchmarks.failures` runs them as a table.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio

import remora
from remora.storage.postgres.owners import read_owner
from tests.faulty_owner import STUCK_S
from tests.machines import Machine, ServingOwner, owner_after, running_owner, write_certificate
from tests.netns import NETWORK, OtherMachine, other_machine
from tests.postgres import Cluster, running_cluster, running_standby
from tests.processes import stop
from tests.talk import Talk, Verdict

__all__ = ["FAILURES", "NO_TMPFS", "Found"]

NO_TMPFS = "a small file system needs root, and the program mount"
_LEASE_S = 2.0
_LONG_LEASE_S = 6.0  # where the owner must stay, even on a machine that is busy
_CUT_S = 7.0
_SECONDS = 120
_OWNER = (sys.executable, "-m", "tests.faulty_owner")
_schemas = itertools.count(1)


class Found(NamedTuple):
    """What a failure did.

    Attributes:
        verdict: of all that sessions saw.
        seconds: until an append was acknowledged again, in each try.
        moved: how often another process owned the memory afterwards.
        told: how many commits an owner said that it had lost.
    """

    verdict: Verdict
    seconds: list[float]
    moved: int = 0
    told: int = 0


class _KeptOwner:
    """An owner that is started again whenever it ends, as a service manager does."""

    owner: ServingOwner

    def __init__(self, machine: Machine, prefix: Sequence[str], skew_s: float) -> None:
        self.machine = machine
        self._prefix, self._skew_s = prefix, skew_s
        self._started = asyncio.Event()
        self._begins = 0
        """Where the log of the process that runs now begins."""

    async def keep(self) -> None:
        log = self.machine.log
        while True:
            self._begins = log.stat().st_size if log.exists() else 0
            async with running_owner(
                self.machine, (*self._prefix, *_OWNER), SKEW_S=str(self._skew_s)
            ) as self.owner:
                self._started.set()
                await self.owner.process.wait()

    async def serves(self) -> None:
        """Return when its log says that it serves."""
        await self._started.wait()
        await self.owner.said("shard_served")

    def waits(self) -> bool:
        """Whether the process that runs now said that it is a node, and has not the shard."""
        said = self.machine.log.read_bytes()[self._begins :]
        return b"node_joined" in said and said.count(b"shard_served") == said.count(b"shard_left")


class _Pair:
    """Two owners and a worker that talks.

    Args:
        cluster: with the journal.
        schema: of it.
        owners: the one that serves first, and the one that waits.
        talk: what the sessions of the worker say.
    """

    def __init__(
        self, cluster: Cluster, schema: str, owners: Sequence[_KeptOwner], talk: Talk
    ) -> None:
        self.cluster, self.schema, self.owners, self.talk = cluster, schema, owners, talk
        self.seconds: list[float] = []
        self.moved = 0

    async def epoch(self) -> int:
        found = await read_owner(self.cluster.dsn(), self.schema)
        assert found is not None
        return found.epoch

    async def serving(self) -> ServingOwner:
        """The process that owns the memory now."""
        found = await read_owner(self.cluster.dsn(), self.schema)
        assert found is not None
        pid = int(found.owner.rpartition(":")[2])
        (owner,) = [one.owner for one in self.owners if one.owner.pid == pid]
        return owner

    async def a_moment(self) -> None:
        """Talk for a time that differs, until one owner serves and the other waits."""
        with anyio.fail_after(_SECONDS):
            while not any(one.waits() for one in self.owners):
                await asyncio.sleep(0.05)
        await self.talk.first_after(time.monotonic())
        await asyncio.sleep(random.random() * _LEASE_S / 3)

    async def note(self, epoch: int, moment: float) -> None:
        """Note how long it took until the sessions could go on."""
        with anyio.fail_after(_SECONDS):
            self.seconds.append(await self.talk.first_after(moment))
        self.moved += await self.epoch() > epoch

    async def found(self, memory: Any) -> Found:
        verdict = await self.talk.judge(memory)
        logs = "".join(one.machine.log.read_text() for one in self.owners)
        told = [
            int(one.partition("lost=")[2].split()[0].strip("\"',"))
            for one in logs.splitlines()
            if "journal_lost_commits" in one
        ]
        return Found(verdict, self.seconds, self.moved, sum(told))


@asynccontextmanager
async def _pair(
    cluster: Cluster,
    path: Path,
    seed: int,
    *,
    dsn: str = "",
    other: OtherMachine | None = None,
    skews_s: tuple[float, float] = (0, 0),
    lease_s: float = _LEASE_S,
) -> AsyncIterator[tuple[_Pair, Callable[[], Awaitable[Found]]]]:
    """The owners and the worker, and what ends them with a judgement."""
    schema = f"failure_{next(_schemas)}"
    more = await write_certificate(path) if other is not None else ""
    listens = ["127.0.0.1:0", "127.0.0.1:0"]
    if other is not None:
        listens = [f"{other.workers.there}:0", f"{other.workers.here}:0"]
    kept = [
        _KeptOwner(
            Machine(
                path / name,
                dsn or cluster.dsn(),
                schema,
                lease_s=lease_s,
                listen=listen,
                more=more,
            ),
            other.prefix if other is not None and name == "one" else (),
            skew_s,
        )
        for name, listen, skew_s in zip(("one", "two"), listens, skews_s, strict=True)
    ]
    tasks = []
    try:
        async with AsyncExitStack() as stack:
            for one in kept:
                tasks.append(asyncio.ensure_future(one.keep()))
                if one is kept[0]:
                    await one.serves()
            memory = await stack.enter_async_context(remora.connect(kept[1].machine.file))
            talk = Talk(memory, seed)
            pair = _Pair(cluster, schema, kept, talk)
            talking = asyncio.ensure_future(talk.run())
            tasks.append(talking)

            async def end() -> Found:
                talk.ended.set()
                with anyio.fail_after(_SECONDS):
                    await talking
                    return await pair.found(memory)

            yield pair, end
    finally:
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# -- processes -------------------------------------------------------------------------------------


async def _signal_owner(
    path: Path, tries: int, seed: int, how: signal.Signals, skews_s: tuple[float, float] = (0, 0)
) -> Found:
    with running_cluster() as cluster:
        async with _pair(cluster, path, seed, skews_s=skews_s) as (pair, end):
            for _ in range(tries):
                await pair.a_moment()
                epoch, owner = await pair.epoch(), await pair.serving()
                moment = time.monotonic()
                if how is signal.SIGSTOP:
                    await asyncio.to_thread(stop, owner.pid)
                else:
                    os.kill(owner.pid, how)
                await owner_after(cluster, pair.schema, epoch)
                await pair.note(epoch, moment)
                if how is signal.SIGSTOP:
                    left = owner.log.read_text().count("shard_left")
                    os.kill(owner.pid, signal.SIGCONT)
                    await owner.said("shard_left", left + 1)
                if how is signal.SIGUSR1:
                    await asyncio.sleep(max(0.0, moment + STUCK_S - time.monotonic()))
            return await end()


async def _owner_killed(path: Path, tries: int, seed: int) -> Found:
    return await _signal_owner(path, tries, seed, signal.SIGKILL)


async def _owner_stopped(path: Path, tries: int, seed: int) -> Found:
    return await _signal_owner(path, tries, seed, signal.SIGSTOP)


async def _loop_stuck(path: Path, tries: int, seed: int) -> Found:
    return await _signal_owner(path, tries, seed, signal.SIGUSR1)


async def _owner_leaves(path: Path, tries: int, seed: int) -> Found:
    return await _signal_owner(path, tries, seed, signal.SIGTERM)


async def _clocks_differ(path: Path, tries: int, seed: int) -> Found:
    return await _signal_owner(path, tries, seed, signal.SIGKILL, (3_600, -3_600))


# -- PostgreSQL ------------------------------------------------------------------------------------


async def _server_crashes(path: Path, tries: int, seed: int) -> Found:
    with running_cluster(fsync="on") as cluster:
        async with _pair(cluster, path, seed, lease_s=_LONG_LEASE_S) as (pair, end):
            for _ in range(tries):
                await pair.a_moment()
                epoch, moment = await pair.epoch(), time.monotonic()
                await asyncio.to_thread(cluster.stop, signal.SIGQUIT)
                await asyncio.to_thread(cluster.start)
                await pair.note(epoch, moment)
            return await end()


async def _fail_over(path: Path, tries: int, seed: int, *, synchronous: bool) -> Found:
    found = []
    for number in range(tries):
        with ExitStack() as stack:
            primary = stack.enter_context(running_cluster(fsync="on"))
            standby = stack.enter_context(running_standby(primary, fsync="on"))
            if synchronous:
                await asyncio.to_thread(standby.follow_synchronously, primary)
            dsn = primary.dsn(other=standby)
            where = path / f"{number}"
            await anyio.Path(where).mkdir()
            async with _pair(primary, where, seed + number, dsn=dsn) as (pair, end):
                await pair.a_moment()
                epoch = await pair.epoch()
                if not synchronous:
                    await asyncio.to_thread(standby.fall_behind, primary)
                    await pair.a_moment()
                moment = time.monotonic()
                await asyncio.to_thread(primary.stop, signal.SIGQUIT)
                await asyncio.to_thread(standby.promote)
                pair.cluster = standby
                await pair.note(epoch, moment)
                found.append(await end())
    return _sum(found)


def _sum(found: Sequence[Found]) -> Found:
    return Found(
        Verdict(*map(sum, zip(*(one.verdict for one in found), strict=True))),
        [one for each in found for one in each.seconds],
        sum(one.moved for one in found),
        sum(one.told for one in found),
    )


async def _synchronous_failover(path: Path, tries: int, seed: int) -> Found:
    return await _fail_over(path, tries, seed, synchronous=True)


async def _asynchronous_failover(path: Path, tries: int, seed: int) -> Found:
    return await _fail_over(path, tries, seed, synchronous=False)


@contextmanager
def _small_disk(size: str) -> Iterator[Path]:
    """A file system of its own; skips the test where there can be none."""
    import pytest  # noqa: PLC0415

    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip(NO_TMPFS)
    path = Path(tempfile.mkdtemp(prefix="remora-disk-", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0777", "none", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        path.rmdir()
        pytest.skip(NO_TMPFS)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
        path.rmdir()


def _fill(path: Path) -> None:
    with suppress(OSError), (path / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


async def _disk_full(path: Path, tries: int, seed: int) -> Found:
    with _small_disk("64M") as disk, running_cluster() as cluster:
        cluster.own(disk)
        await asyncio.to_thread(cluster.execute, f"CREATE TABLESPACE small LOCATION '{disk}/data'")
        setting = "ALTER DATABASE postgres SET default_tablespace = small"
        await asyncio.to_thread(cluster.execute, setting)
        async with _pair(cluster, path, seed, lease_s=_LONG_LEASE_S) as (pair, end):
            for _ in range(tries):
                await pair.a_moment()
                epoch, owner = await pair.epoch(), await pair.serving()
                failures = await _count(owner, "commit_failed")
                await asyncio.to_thread(_fill, disk)
                with anyio.fail_after(_SECONDS):
                    while await _count(owner, "commit_failed") == failures:
                        await asyncio.sleep(0.05)
                moment = time.monotonic()
                await anyio.Path(disk / "ballast").unlink()
                await pair.note(epoch, moment)
            return await end()


async def _count(owner: ServingOwner, event: str) -> int:
    return (await anyio.Path(owner.log).read_text()).count(event)


# -- cables ----------------------------------------------------------------------------------------


@asynccontextmanager
async def _apart(path: Path, seed: int, lease_s: float) -> AsyncIterator[tuple[_Pair, OtherMachine, Callable[[], Awaitable[Found]]]]:  # fmt: skip  # noqa: E501
    """The first owner is on another machine."""
    with other_machine() as other, running_cluster(listen_addresses=other.database.here) as cluster:
        await asyncio.to_thread(cluster.admit, NETWORK)
        dsn = f"postgresql://postgres@{other.database.here}:5432/postgres"
        async with _pair(cluster, path, seed, dsn=dsn, other=other, lease_s=lease_s) as (pair, end):
            yield pair, other, end


async def _cut_from_database(path: Path, tries: int, seed: int) -> Found:
    async with _apart(path, seed, _LEASE_S) as (pair, other, end):
        for _ in range(tries):
            await pair.a_moment()
            epoch, moment = await pair.epoch(), time.monotonic()
            other.database.cut()
            await owner_after(pair.cluster, pair.schema, epoch)
            await pair.note(epoch, moment)
            other.database.mend()
            await pair.a_moment()
            epoch = await pair.epoch()
            os.kill((await pair.serving()).pid, signal.SIGTERM)  # the other one again
            await owner_after(pair.cluster, pair.schema, epoch)
        return await end()


async def _cut_from_workers(path: Path, tries: int, seed: int) -> Found:
    async with _apart(path, seed, _LONG_LEASE_S) as (pair, other, end):
        for _ in range(tries):
            await pair.a_moment()
            epoch = await pair.epoch()
            other.workers.cut()
            await asyncio.sleep(_CUT_S)  # longer than a lease
            moment = time.monotonic()
            other.workers.mend()
            await pair.note(epoch, moment)
        return await end()


FAILURES: dict[str, Callable[[Path, int, int], Awaitable[Found]]] = {
    "owner killed": _owner_killed,
    "owner stopped, and continued": _owner_stopped,
    "owner's event loop stuck": _loop_stuck,
    "owner told to leave": _owner_leaves,
    "clocks of owners an hour off": _clocks_differ,
    "PostgreSQL crashes": _server_crashes,
    "failover, synchronous standby": _synchronous_failover,
    "failover, asynchronous standby": _asynchronous_failover,
    "disk of PostgreSQL full": _disk_full,
    "owner cut from PostgreSQL": _cut_from_database,
    "owner cut from workers": _cut_from_workers,
}
"""What is done so many times, with this seed, in this directory."""
