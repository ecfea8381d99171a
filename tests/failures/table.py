"""What may happen to the machines that share a memory, each injected under load and judged.

Two owners (`remora serve`, started again whenever they end) and a worker whose sessions talk
(`tests.failures.talk`). `FAILURES` has all of them by name; `benchmarks.failures` runs them as a
table.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import pytest

from tests.failures.netns import NETWORK, OtherMachine, other_machine
from tests.failures.owner import STUCK_S
from tests.failures.pair import FAULTY, LEASE_S, Found, Pair, add_found, running_pair
from tests.failures.talk import Notes, add_verdicts
from tests.machines import Machine, ServingOwner, owner_after
from tests.object_store import ObjectServer, serve_objects
from tests.postgres import running_cluster, running_standby
from tests.processes import stop

__all__ = ["FAILURES", "NO_FAULTS", "NO_TMPFS", "Found"]

NO_FAULTS = "faults of this object store cannot be switched on"
NO_TMPFS = "a small file system needs root, and the program mount"
_LONG_LEASE_S = 600.0  # where the owner must stay, even on a machine that is busy
_CUT_LEASE_S, _CUT_S = 10.0, 11.0
_OBJECTS = """\
{{uri: "{uri}", shards: 1, object_store: {{endpoint: "{endpoint}", region: us-east-1, \
access_key_id: test, secret_access_key: test}}}}
models: {{embedder: none}}"""


# -- processes -------------------------------------------------------------------------------------


async def _signal_owner(
    path: Path, tries: int, seed: int, how: signal.Signals, skews_s: tuple[float, float] = (0, 0)
) -> Found:
    with running_cluster() as cluster:
        async with running_pair(cluster, path, seed, skews_s=skews_s) as (pair, end):
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


# -- PostgreSQL ------------------------------------------------------------------------------------


async def _server_crashes(path: Path, tries: int, seed: int) -> Found:
    with running_cluster(fsync="on") as cluster:
        async with running_pair(cluster, path, seed, lease_s=_LONG_LEASE_S) as (pair, end):
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
            async with running_pair(primary, where, seed + number, dsn=dsn) as (pair, end):
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
    return add_found(found)


@contextmanager
def _small_disk(size: str) -> Iterator[Path]:
    """A file system of its own; skips the test where there can be none."""
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
        async with running_pair(cluster, path, seed, lease_s=_LONG_LEASE_S) as (pair, end):
            for _ in range(tries):
                await pair.a_moment()
                epoch, owner = await pair.epoch(), await pair.serving()
                failures = await _count(owner, "commit_failed")
                await asyncio.to_thread(_fill, disk)
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
async def _apart(path: Path, seed: int, lease_s: float) -> AsyncIterator[tuple[Pair, OtherMachine, Callable[[], Awaitable[Found]]]]:  # fmt: skip  # noqa: E501
    """The first owner is on another machine."""
    with other_machine() as other, running_cluster(listen_addresses=other.database.here) as cluster:
        await asyncio.to_thread(cluster.admit, NETWORK)
        dsn = f"postgresql://postgres@{other.database.here}:5432/postgres"
        async with running_pair(cluster, path, seed, dsn=dsn, other=other, lease_s=lease_s) as (
            pair,
            end,
        ):
            yield pair, other, end


async def _cut_from_database(path: Path, tries: int, seed: int) -> Found:
    async with _apart(path, seed, LEASE_S) as (pair, other, end):
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
    async with _apart(path, seed, _CUT_LEASE_S) as (pair, other, end):
        for _ in range(tries):
            await pair.a_moment()
            epoch = await pair.epoch()
            other.workers.cut()
            await asyncio.sleep(_CUT_S)  # longer than a lease
            moment = time.monotonic()
            other.workers.mend()
            await pair.note(epoch, moment)
        return await end()


# -- the object store ------------------------------------------------------------------------------


@contextmanager
def _away(objects: ObjectServer, how: str) -> Iterator[None]:
    """An object store that refuses, is not there, or does not answer; in the end it is back."""
    back = threading.Event()

    def wait(_method: str, _path: str) -> None:
        back.wait()

    if how == "stopped":
        objects.stop()
    if how == "silent":
        objects.gate = wait
    objects.away = how != "silent"
    try:
        yield
    finally:
        objects.away, objects.gate = False, None
        back.set()
        if how == "stopped":
            objects.start()


async def _objects_away(
    path: Path, tries: int, seed: int, how: signal.Signals | None = None
) -> Found:
    with serve_objects() as objects, running_cluster() as cluster:
        if not objects.faulty:
            pytest.skip(NO_FAULTS)
        section = _OBJECTS.format(uri=objects.address(), endpoint=objects.endpoint)
        lease_s = LEASE_S if how else _LONG_LEASE_S
        async with running_pair(cluster, path, seed, lease_s=lease_s, long_term=section) as (
            pair,
            end,
        ):
            notes = Notes(pair.memory)
            writing = asyncio.ensure_future(notes.run())
            for number in range(tries):
                await pair.a_moment()
                epoch, owner = await pair.epoch(), await pair.serving()
                moment, asked = time.monotonic(), objects.requests.total()
                with _away(objects, ("refusing", "stopped", "silent")[number % 3]):
                    if how is not None:
                        os.kill(owner.pid, how)
                        await owner_after(cluster, pair.schema, epoch)
                    await pair.note(epoch, moment)
                    owner = await pair.serving()
                    while objects.requests.total() == asked:  # it has asked, or failed to
                        if await _count(owner, "job_failed"):
                            break
                        await asyncio.sleep(0.05)
                    await pair.a_moment()
            notes.ended.set()
            await writing
            verdict = await notes.judge()
            found = await end()
            return found._replace(verdict=add_verdicts([found.verdict, verdict]))


# -- releases --------------------------------------------------------------------------------------


async def _releases_differ(path: Path, tries: int, seed: int) -> Found:
    """Nodes are upgraded one by one, and killed while they differ. What a newer one cannot serve,
    or an older one cannot read, is refused.
    """
    with running_cluster() as cluster:
        async with running_pair(cluster, path, seed) as (pair, end):
            stranger = Machine(path / "stranger", cluster.dsn(), pair.schema)
            for release in range(tries):
                await pair.a_moment()
                first = await pair.keeper()
                (second,) = [one for one in pair.owners if one is not first]
                second.release = release + 1
                second.owner.process.kill()
                await second.joins_again()
                await pair.a_moment()
                epoch, moment = await pair.epoch(), time.monotonic()
                first.owner.process.kill()
                killed = await owner_after(cluster, pair.schema, epoch)
                again = await pair.keeper() is first  # before its lease had ended
                first.release = release + 1
                if again:
                    await pair.a_moment()
                    moment = time.monotonic()
                    first.owner.process.terminate()
                    await owner_after(cluster, pair.schema, killed.epoch)
                await pair.note(epoch, moment)
                await pair.a_moment()
                await _refused(stranger, "serve", release, "upgrade remora on this machine")
                await _refused(stranger, "users", release + 2, "upgrade the owner's remora")
            return await end()


async def _refused(machine: Machine, command: str, release: int, advice: str) -> None:
    """A process of another release is told so, and ends."""
    where = [str(machine.file)] if command == "serve" else ["--config", str(machine.file)]
    done = await anyio.run_process(
        [*FAULTY, command, *where],
        check=False,
        stderr=subprocess.STDOUT,
        env={**os.environ, "RELEASE": str(release)},
    )
    said = " ".join(done.stdout.decode().split())  # lines are as long as a terminal's
    assert done.returncode, said
    assert advice in said


FAILURES: dict[str, Callable[[Path, int, int], Awaitable[Found]]] = {
    "owner killed": partial(_signal_owner, how=signal.SIGKILL),
    "owner stopped, and continued": partial(_signal_owner, how=signal.SIGSTOP),
    "owner's event loop stuck": partial(_signal_owner, how=signal.SIGUSR1),
    "owner told to leave": partial(_signal_owner, how=signal.SIGTERM),
    "clocks of owners an hour off": partial(
        _signal_owner, how=signal.SIGKILL, skews_s=(3_600, -3_600)
    ),
    "PostgreSQL crashes": _server_crashes,
    "failover, synchronous standby": partial(_fail_over, synchronous=True),
    "failover, asynchronous standby": partial(_fail_over, synchronous=False),
    "disk of PostgreSQL full": _disk_full,
    "owner cut from PostgreSQL": _cut_from_database,
    "owner cut from workers": _cut_from_workers,
    "object store away": _objects_away,
    "object store away, owner told to leave": partial(_objects_away, how=signal.SIGTERM),
    "object store away, owner killed": partial(_objects_away, how=signal.SIGKILL),
    "releases of owners differ": _releases_differ,
}
"""What is done so many times, with this seed, in this directory."""
