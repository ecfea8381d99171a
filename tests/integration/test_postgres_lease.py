"""Leases of a journal in PostgreSQL: who may own it until when, and what an owner may answer.

But for one, which has to stop a process, leases here last for minutes: they end in the database
when a test says so, and for the owner when its clock is put forward. So no test fails because it
stood still.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest

from remora import Runtime
from remora.errors import (
    ConfigError,
    InvalidInput,
    OwnershipLost,
    OwnerUnreachable,
    StorageError,
)
from remora.runtime.clock import SystemClock
from remora.storage.postgres import PostgresJournal
from remora.storage.postgres.cluster import JournalOwner, read_owner, read_owners
from remora.storage.postgres.lease import Lease
from remora.storage.postgres.schema import FORMAT
from remora.system.clock import boot_time
from tests.lease_owner import owner_process
from tests.patience import until
from tests.postgres import Cluster, open_journal
from tests.postgres.proxy import running_proxy
from tests.processes import stop
from tests.programs import run_command_aside

pytestmark = pytest.mark.anyio
_LONG_S = 1_000.0
_SHORT_S = 3.0  # it is waited for


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


opened = partial(open_journal, lease_s=_LONG_S)


class LeaseClock:
    """By which owners of this process see how old their lease is."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return boot_time() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> LeaseClock:
    """The clock of owners, which renew their leases again and again."""
    found = LeaseClock()
    monkeypatch.setattr("remora.storage.postgres.journal.Lease", partial(Lease, now=found))
    monkeypatch.setattr("remora.storage.postgres.lease.RENEWALS", 100 * _LONG_S)
    return found


@asynccontextmanager
async def serving(journal: PostgresJournal, **options: Any) -> AsyncIterator[Runtime]:
    async with Runtime.in_memory(journal=journal, **options) as runtime:
        yield runtime


@asynccontextmanager
async def waiting(cluster: Cluster, schema: str) -> AsyncIterator[list[PostgresJournal]]:
    """An owner that waits for its journal; it has it after the block."""
    found: list[PostgresJournal] = []

    async def wait() -> None:
        found.append(await opened(cluster.dsn(), schema, wait_s=math.inf))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert not found
        yield found


async def texts(runtime: Runtime) -> list[object]:
    chat = runtime.session("alice", "chat")
    return [one["content"] for one in (await chat.load()).messages]


async def say(runtime: Runtime, text: str) -> None:
    await runtime.session("alice", "chat").append({"role": "user", "content": text})


async def owner_of(cluster: Cluster, schema: str) -> JournalOwner:
    found = await read_owner(cluster.dsn(), schema)
    assert found is not None
    return found


async def execute(cluster: Cluster, sql: str) -> None:
    connection = await asyncpg.connect(cluster.dsn())
    await connection.execute(sql)
    await connection.close()


async def end_lease(cluster: Cluster, schema: str, seconds: float = 0.001) -> None:
    """Make a lease of so many seconds one that ran out."""
    ran_out = f"until = clock_timestamp() - interval '1 s', seconds = {seconds}"
    await execute(cluster, f"UPDATE {schema}.lease SET {ran_out}")


async def until_renewed(runtime: Runtime) -> None:
    """The lease is renewed, by a clock that was put forward."""

    def renewed() -> bool:
        return "lease_lapsed" not in [one.code for one in runtime.health().problems]

    await until(renewed, "the lease is renewed")


# -- who waits for whom ----------------------------------------------------------------------------


async def test_a_second_owner_is_refused_and_the_first_goes_on(cluster: Cluster) -> None:
    """G12: a working owner is not overtaken, whatever the second thinks the time is."""

    class Ahead(SystemClock):
        def time(self) -> float:
            return super().time() + 3_600

    async with serving(await opened(cluster.dsn(), "refused")) as runtime:
        await say(runtime, "one")
        with pytest.raises(StorageError, match=r"owned by .+:\d+ since .+ stop that process"):
            await opened(cluster.dsn(), "refused", wait_s=0)
        with pytest.raises(StorageError, match="owned by"):
            async with Runtime.in_memory(
                journal=lambda: opened(cluster.dsn(), "refused", wait_s=0), clock=Ahead()
            ):
                pass
        await say(runtime, "two")
        assert await texts(runtime) == ["one", "two"]


async def test_wall_clocks_of_owners_do_not_count(cluster: Cluster, clock: LeaseClock) -> None:
    """G12: an owner whose clock is an hour off answers, and keeps its lease."""
    for hours in (-1, 1):

        class Off(SystemClock):
            def time(self, hours: int = hours) -> float:
                return super().time() + hours * 3_600

        schema = f"off_{hours + 1}"
        async with serving(await opened(cluster.dsn(), schema), clock=Off()) as runtime:
            left = await renewals(cluster, schema, 3)
            await say(runtime, "one")
            assert await texts(runtime) == ["one"]
            assert 0 < left <= _LONG_S


@asynccontextmanager
async def set_back(
    cluster: Cluster, schema: str
) -> AsyncIterator[tuple[str, Callable[[int], Awaitable[None]]]]:
    """PostgreSQL with a clock of its own for an address, and what sets it by so many seconds.

    PostgreSQL finds functions in the order of `search_path`, in which pg_catalog is the second.
    """
    await execute(
        cluster,
        f"CREATE SCHEMA {schema}_clock; CREATE TABLE {schema}_clock.ahead AS SELECT 0 AS seconds; "
        f"CREATE FUNCTION {schema}_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
        "'SELECT pg_catalog.clock_timestamp() + seconds * interval ''1 second'' "
        f"FROM {schema}_clock.ahead'",
    )

    async def move(seconds: int) -> None:
        await execute(cluster, f"UPDATE {schema}_clock.ahead SET seconds = seconds + {seconds}")

    yield f"{cluster.dsn()}&search_path={schema}_clock,pg_catalog", move
    await execute(cluster, f"DROP SCHEMA {schema}_clock CASCADE")


async def test_the_clock_of_postgresql_is_set_back(cluster: Cluster, clock: LeaseClock) -> None:
    """G12: an owner that lives keeps its lease, and one that died keeps it no longer than else."""
    schema, hour = "set_back", 3_600
    async with set_back(cluster, schema) as (dsn, move):
        async with serving(await opened(dsn, schema)) as runtime:
            await say(runtime, "one")
            await move(-hour)
            await renewals(cluster, schema, 3)
            with pytest.raises(StorageError, match="owned by"):
                await opened(dsn, schema, wait_s=0)
            await say(runtime, "two")
            assert await texts(runtime) == ["one", "two"]
        dead = await asyncpg.connect(dsn)
        assert await dead.fetchval(
            f"SELECT epoch FROM {schema}.claim($1, 'dead', '', 1000)", FORMAT
        )
        await dead.close()
        await move(-hour)
        with pytest.raises(StorageError, match="owned by dead"):
            await opened(dsn, schema, wait_s=0)
        await move(int(_LONG_S) + 1)
        async with serving(await opened(dsn, schema, wait_s=0)) as runtime:
            assert await texts(runtime) == ["one", "two"]


async def renewals(cluster: Cluster, schema: str, count: int) -> float:
    """Return after so many renewals, with what is left of the lease."""
    connection = await asyncpg.connect(cluster.dsn())
    seen: set[datetime] = set()

    async def renewed() -> bool:
        seen.add(await connection.fetchval(f"SELECT until FROM {schema}.lease"))
        return len(seen) > count

    await until(renewed, "the owner renews its lease")
    await connection.close()
    return (await owner_of(cluster, schema)).left_s or 0.0


async def test_an_owner_that_leaves_frees_the_journal(cluster: Cluster) -> None:
    """G12: who waits gets it, though the lease would have lasted much longer."""
    async with serving(await opened(cluster.dsn(), "leaves")) as runtime:
        await say(runtime, "one")
        assert (await owner_of(cluster, "leaves")).left_s is not None
        async with waiting(cluster, "leaves") as found:
            await runtime.aclose()
    async with serving(found[0]) as runtime:
        assert await texts(runtime) == ["one"]
        assert found[0].epoch == 2
    assert (await owner_of(cluster, "leaves")).left_s is None


async def test_the_journal_of_a_killed_owner_is_free_when_its_lease_ends(cluster: Cluster) -> None:
    """G3, G12: the next owner waits by itself, and has all that was acknowledged."""
    async with owner_process(cluster.dsn(), "killed", _LONG_S) as owner:
        assert await owner.ask("append one") == ["one"]
        os.kill(owner.pid, signal.SIGKILL)
        async with waiting(cluster, "killed") as found:
            await end_lease(cluster, "killed")
        async with serving(found[0]) as runtime:
            assert await texts(runtime) == ["one"]


# -- an owner that stood still ---------------------------------------------------------------------


async def stop_and_go_on(cluster: Cluster, schema: str, lease_s: float) -> list[object]:
    """What an owner answers that was stopped, overtaken and continued; nothing of it is stored."""
    async with owner_process(cluster.dsn(), schema, lease_s) as former:

        async def answered() -> bool:
            return await former.ask("append one") == ["one"]

        await until(answered, "an owner answers, which may have been late to renew its lease")
        await anyio.to_thread.run_sync(stop, former.pid)
        async with serving(await opened(cluster.dsn(), schema)) as runtime:
            await say(runtime, "two")
            former.say(*["load"] * 20, "append stale", "load")  # before it goes on
            os.kill(former.pid, signal.SIGCONT)
            answers = await former.hear(22)
            assert await texts(runtime) == ["one", "two"]
            history = await runtime.session("alice", "chat").history()
            assert [one.content for one in history] == ["one", "two"]
    return answers


async def test_a_stopped_owner_answers_nothing_from_before(cluster: Cluster) -> None:
    """G2, G12: continued after it was overtaken, it neither loads nor stores."""
    answers = await stop_and_go_on(cluster, "stopped", _SHORT_S)
    assert set(map(str, answers)) <= {"OwnerUnreachable", "OwnershipLost"}, answers


async def test_without_a_lease_a_stopped_owner_does(cluster: Cluster) -> None:
    """G2: the control: the same without a lease shows what the lease is for. Nothing is stored."""
    answers = await stop_and_go_on(cluster, "control", 0.0)
    assert answers[:20] == [["one"]] * 20
    assert answers[20] == "OwnershipLost"


# -- an owner that does not reach PostgreSQL -------------------------------------------------------


async def test_connections_that_break_cost_no_lease(cluster: Cluster, clock: LeaseClock) -> None:
    """G12: all connections are ended again and again: the owner stays, and answers."""
    journal = await opened(cluster.dsn(), "broken")
    async with serving(journal) as runtime:
        await say(runtime, "one")
        for _ in range(3):
            await execute(
                cluster,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                "pid <> pg_backend_pid() AND datname = current_database()",
            )
            await renewals(cluster, "broken", 1)
            assert await texts(runtime) == ["one"]
        assert (await owner_of(cluster, "broken")).epoch == journal.epoch == 1


async def test_an_owner_that_is_cut_off_answers_nothing(
    cluster: Cluster, tmp_path: Path, clock: LeaseClock
) -> None:
    """G2, G12: it neither reads nor writes once two thirds of the lease are over, and goes on if
    nobody took over; if another did, it never answers again, and learns why.
    """
    async with running_proxy(cluster, tmp_path) as network:
        async with serving(await opened(network.dsn, "cut")) as former:
            await say(former, "one")
            network.freeze()
            clock.ahead_s += 0.6 * _LONG_S
            assert await texts(former) == ["one"]
            clock.ahead_s += 0.1 * _LONG_S
            with pytest.raises(OwnerUnreachable, match="renewed the lease"):
                await texts(former)
            with pytest.raises(OwnerUnreachable, match="retry later"):
                await say(former, "not sent")
            assert "lease_lapsed" in [one.code for one in former.health().problems]
            network.thaw()
            await until_renewed(former)
            await say(former, "two")
            assert await texts(former) == ["one", "two"]

            network.freeze()
            clock.ahead_s += 0.7 * _LONG_S
            async with serving(await overtaken(cluster, "cut")) as runtime:
                await until_renewed(runtime)
                await say(runtime, "three")
                with pytest.raises(OwnerUnreachable):
                    await texts(former)
                network.thaw()

                async def told() -> bool:
                    with pytest.raises((OwnerUnreachable, OwnershipLost)) as refused:
                        await texts(former)
                    return isinstance(refused.value, OwnershipLost)

                await until(told, "the former owner is told of the other")
                assert await texts(runtime) == ["one", "two", "three"]


async def overtaken(cluster: Cluster, schema: str) -> PostgresJournal:
    """The journal of another owner; a renewal of the former one may be on its way."""

    async def claimed() -> PostgresJournal | None:
        await end_lease(cluster, schema)
        try:
            return await opened(cluster.dsn(), schema, wait_s=0)
        except StorageError:
            return None

    return await until(claimed, "another owner has the journal")


async def test_a_server_that_has_just_started_lets_the_owner_renew(cluster: Cluster) -> None:
    """G12: a lease that ran out while there was no server is not taken at once."""
    await (await opened(cluster.dsn(), "restarted")).aclose()
    await end_lease(cluster, "restarted", 100_000)
    with pytest.raises(StorageError, match="owned by"):
        await opened(cluster.dsn(), "restarted", wait_s=0)
    await end_lease(cluster, "restarted")
    await (await opened(cluster.dsn(), "restarted", wait_s=0)).aclose()


# -- what is refused, and what people see ----------------------------------------------------------


async def test_leases_that_cannot_hold(cluster: Cluster) -> None:
    """S3.26: refused before anything is made."""
    for options, text in (
        ({"lease_s": 0.5}, "lease_s must be 1 to 86,400, or 0 for no lease"),
        ({"lease_s": -1.0}, "lease_s must be 1 to"),
        ({"lease_s": math.nan}, "lease_s must be 1 to"),
        ({"lease_s": 1e300}, "lease_s must be 1 to"),
        ({"lease_s": 3.0, "command_timeout_s": 5.0}, "Lower command_timeout_s"),
        ({"lease_s": 3.0, "command_timeout_s": 1.0, "wait_s": -1.0}, "wait_s must be"),
    ):
        with pytest.raises(InvalidInput, match=text):
            await opened(cluster.dsn(), "never_made", **options)
    assert await read_owner(cluster.dsn(), "never_made") is None


async def test_a_lease_too_short_for_the_network(cluster: Cluster, tmp_path: Path) -> None:
    """S3.26: the text says how long it must be."""
    async with running_proxy(cluster, tmp_path) as network:
        network.delay_s = 0.3
        with pytest.raises(ConfigError, match=r"set lease_s to \d+ or more"):
            await opened(network.dsn, "slow", lease_s=5.0, command_timeout_s=4.5)


async def test_a_server_that_is_too_old(cluster: Cluster, tmp_path: Path) -> None:
    """S3.26: PostgreSQL 13 is refused by its own word, and nothing is made there."""
    connection = await asyncpg.connect(cluster.dsn())
    version = connection.get_settings().server_version.encode()
    await connection.close()
    old = b"13.9".ljust(len(version), b"0")
    async with running_proxy(cluster, tmp_path) as network:
        network.change = lambda said: said.replace(
            b"server_version\0" + version + b"\0", b"server_version\0" + old + b"\0"
        )
        with pytest.raises(ConfigError, match="PostgreSQL 13 is too old for the journal: use 14"):
            await opened(network.dsn, "old")
    assert await read_owner(cluster.dsn(), "old") is None


async def test_owners_are_listed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """S3.26: `remora owners` of a database: each journal, its owner, and its lease."""
    journal = await opened(cluster.dsn(), "shown", address="db [one]:7731")
    try:
        dsn = cluster.dsn()
        assert await run_command_aside("owners", dsn, "--json") == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        (row,) = [one for one in rows if one["shard"] == "shown"]
        assert row["owner"].endswith(f":{os.getpid()}")
        assert (row["address"], row["epoch"]) == ("db [one]:7731", 1)
        assert 0 < row["lease_left_s"] <= _LONG_S
        assert {one.schema for one in await read_owners(dsn)} == {one["shard"] for one in rows}
        assert await run_command_aside("owners", dsn) == 0
        shown = capsys.readouterr().out
        assert "lease left" in shown
        assert "db [one]:7731" in shown
    finally:
        await journal.aclose()
    assert await run_command_aside("owners", f"{dsn}&port=1") == 1
    assert "PostgreSQL cannot be reached" in capsys.readouterr().err
