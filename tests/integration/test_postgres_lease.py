"""Leases of a journal in PostgreSQL: who may own it until when, and what an owner may answer."""

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
from typing import Any, TypeVar

import anyio
import asyncpg
import pytest

from remora import Runtime
from remora.cli.main import main
from remora.errors import (
    ConfigError,
    InvalidInput,
    OwnershipLost,
    OwnerUnreachable,
    StorageError,
)
from remora.runtime.clock import SystemClock
from remora.storage.postgres import PostgresJournal
from remora.storage.postgres.owners import JournalOwner, read_owner, read_owners
from remora.storage.postgres.schema import FORMAT, MIGRATIONS, in_schema
from tests.lease_owner import owner_process
from tests.postgres import Cluster
from tests.postgres_proxy import running_proxy
from tests.processes import stop

pytestmark = pytest.mark.anyio
_LONG_S = 1_000.0
_SHORT_S = 3.0  # it is waited for; a machine may stand still for two thirds of it
_SECONDS = 60
Result = TypeVar("Result")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def opened(
    dsn: str, schema: str, *, lease_s: float = _SHORT_S, **options: Any
) -> PostgresJournal:
    return await PostgresJournal.open(
        dsn,
        schema=schema,
        durability="process",
        lease_s=lease_s,
        **{"command_timeout_s": lease_s or 10.0, **options},
    )


@asynccontextmanager
async def serving(journal: PostgresJournal, **options: Any) -> AsyncIterator[Runtime]:
    async with Runtime.in_memory(journal=journal, **options) as runtime:
        yield runtime


async def texts(runtime: Runtime) -> list[object]:
    chat = runtime.session("alice", "chat")
    return [one["content"] for one in (await chat.load()).messages]


async def say(runtime: Runtime, text: str) -> None:
    await runtime.session("alice", "chat").append({"role": "user", "content": text})


async def once_renewed(ask: Callable[[], Awaitable[Result]]) -> Result:
    """What the only owner answers: one that was late to renew its lease says so until it has."""
    with anyio.fail_after(_SECONDS):
        while True:
            try:
                return await ask()
            except OwnerUnreachable:
                await anyio.sleep(0.01)


async def owner_of(cluster: Cluster, schema: str) -> JournalOwner:
    found = await read_owner(cluster.dsn(), schema)
    assert found is not None
    return found


async def execute(cluster: Cluster, sql: str) -> None:
    connection = await asyncpg.connect(cluster.dsn())
    await connection.execute(sql)
    await connection.close()


# -- who waits for whom ----------------------------------------------------------------------------


async def test_a_second_owner_is_refused_and_the_first_goes_on(cluster: Cluster) -> None:
    """G12: a working owner is not overtaken, whatever the second thinks the time is."""

    class Ahead(SystemClock):
        def time(self) -> float:
            return super().time() + 3_600

    async with serving(await opened(cluster.dsn(), "refused", lease_s=_LONG_S)) as runtime:
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


@pytest.mark.parametrize("hours", [-1, 1])
async def test_wall_clocks_of_owners_do_not_count(cluster: Cluster, hours: int) -> None:
    """G12: an owner whose clock is an hour off answers, and keeps its lease."""

    class Off(SystemClock):
        def time(self) -> float:
            return super().time() + hours * 3_600

    schema = f"off_{hours + 1}"
    async with serving(await opened(cluster.dsn(), schema), clock=Off()) as runtime:
        left = await renewals(cluster, schema, 3)
        await once_renewed(partial(say, runtime, "one"))
        assert await once_renewed(partial(texts, runtime)) == ["one"]
        assert 0 < left <= _SHORT_S


async def renewals(cluster: Cluster, schema: str, count: int) -> float:
    """Return after so many renewals, with what is left of a lease that holds."""
    connection = await asyncpg.connect(cluster.dsn())
    seen: set[datetime] = set()
    with anyio.fail_after(_SECONDS):
        while len(seen) <= count:
            seen.add(await connection.fetchval(f"SELECT until FROM {schema}.lease"))
            await anyio.sleep(0.01)
        await connection.close()
        while not (left := (await owner_of(cluster, schema)).left_s or 0.0) > 0:
            await anyio.sleep(0.01)
    return left


async def test_an_owner_that_leaves_frees_the_journal(cluster: Cluster) -> None:
    """G12: who waits gets it, though the lease would have lasted much longer."""
    async with serving(await opened(cluster.dsn(), "leaves", lease_s=_LONG_S)) as runtime:
        await say(runtime, "one")
        assert (await owner_of(cluster, "leaves")).left_s is not None
        found: list[PostgresJournal] = []

        async def wait() -> None:
            found.append(await opened(cluster.dsn(), "leaves", lease_s=_LONG_S, wait_s=math.inf))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert not found
            with anyio.fail_after(_SECONDS):
                await runtime.aclose()
    async with serving(found[0]) as runtime:
        assert await texts(runtime) == ["one"]
        assert found[0].epoch == 2
    assert (await owner_of(cluster, "leaves")).left_s is None


async def test_the_journal_of_a_killed_owner_is_free_when_its_lease_ends(cluster: Cluster) -> None:
    """G3, G12: the next owner waits by itself, and has all that was acknowledged."""
    async with owner_process(cluster.dsn(), "killed", _SHORT_S) as owner:
        assert await owner.ask("append one") == ["one"]
        os.kill(owner.pid, signal.SIGKILL)
        with anyio.fail_after(_SECONDS):
            async with serving(await opened(cluster.dsn(), "killed")) as runtime:
                assert await texts(runtime) == ["one"]


# -- an owner that stood still ---------------------------------------------------------------------


async def stop_and_go_on(cluster: Cluster, schema: str, lease_s: float) -> list[object]:
    """What an owner answers that was stopped, overtaken and continued; nothing of it is stored."""
    async with owner_process(cluster.dsn(), schema, lease_s) as former:
        assert await former.ask("append one") == ["one"]
        await anyio.to_thread.run_sync(stop, former.pid)
        async with serving(await opened(cluster.dsn(), schema, lease_s=_LONG_S)) as runtime:
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


async def test_connections_that_break_cost_no_lease(cluster: Cluster) -> None:
    """G12: all connections are ended again and again: the owner stays, and answers."""
    journal = await opened(cluster.dsn(), "broken", lease_s=5.0)
    async with serving(journal) as runtime:
        await say(runtime, "one")
        for _ in range(3):
            await execute(
                cluster,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                "pid <> pg_backend_pid() AND datname = current_database()",
            )
            await renewals(cluster, "broken", 1)
            assert await once_renewed(partial(texts, runtime)) == ["one"]
        assert (await owner_of(cluster, "broken")).epoch == journal.epoch == 1


async def test_an_owner_that_is_cut_off_answers_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """G2, G12: neither reads nor writes once the lease is old; it goes on if nobody took over."""
    async with running_proxy(cluster, tmp_path) as network:
        async with serving(await opened(network.dsn, "cut")) as runtime:
            await once_renewed(partial(say, runtime, "one"))
            network.freeze()
            await until_refused(runtime)
            with pytest.raises(OwnerUnreachable, match="retry later"):
                await say(runtime, "not sent")
            assert [one.code for one in runtime.health().problems] == ["lease_lapsed"]
            network.thaw()
            with anyio.fail_after(_SECONDS):
                while runtime.health().problems:
                    await anyio.sleep(0.01)
            await once_renewed(partial(say, runtime, "two"))
            assert await once_renewed(partial(texts, runtime)) == ["one", "two"]


async def until_refused(runtime: Runtime) -> None:
    with anyio.fail_after(_SECONDS), pytest.raises(OwnerUnreachable, match="renewed the lease"):
        while True:
            await texts(runtime)
            await anyio.sleep(0.01)


async def test_an_owner_that_was_cut_off_and_overtaken_ends(
    cluster: Cluster, tmp_path: Path
) -> None:
    """G2, G12: another takes over; the first never answers again, and learns why."""
    async with running_proxy(cluster, tmp_path) as network:
        async with serving(await opened(network.dsn, "taken")) as former:
            await once_renewed(partial(say, former, "one"))
            network.freeze()
            second = await opened(cluster.dsn(), "taken", lease_s=_LONG_S)
            async with serving(second) as runtime:
                await say(runtime, "two")
                with pytest.raises(OwnerUnreachable):
                    await texts(former)
                network.thaw()
                with anyio.fail_after(_SECONDS), pytest.raises(OwnershipLost):
                    while True:
                        with pytest.raises((OwnerUnreachable, OwnershipLost)) as refused:
                            await texts(former)
                        if isinstance(refused.value, OwnershipLost):
                            raise refused.value
                        await anyio.sleep(0.01)
                assert await texts(runtime) == ["one", "two"]


async def test_a_server_that_has_just_started_lets_the_owner_renew(cluster: Cluster) -> None:
    """G12: a lease that ran out while there was no server is not taken at once."""
    await (await opened(cluster.dsn(), "restarted", lease_s=_LONG_S)).aclose()
    ran_out = "UPDATE restarted.lease SET until = clock_timestamp() - interval '1 s', seconds = "
    await execute(cluster, f"{ran_out} 100000")
    with pytest.raises(StorageError, match="owned by"):
        await opened(cluster.dsn(), "restarted", wait_s=0)
    await execute(cluster, f"{ran_out} 0.001")
    await (await opened(cluster.dsn(), "restarted", wait_s=0)).aclose()


# -- what is refused, and what people see ----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lease_s": 0.5}, "lease_s must be 1 to 86,400, or 0 for no lease"),
        ({"lease_s": -1.0}, "lease_s must be 1 to"),
        ({"lease_s": math.nan}, "lease_s must be 1 to"),
        ({"lease_s": 1e300}, "lease_s must be 1 to"),
        ({"lease_s": 3.0, "command_timeout_s": 5.0}, "Lower command_timeout_s"),
        ({"lease_s": 3.0, "command_timeout_s": 1.0, "wait_s": -1.0}, "wait_s must be"),
    ],
)
async def test_leases_that_cannot_hold(cluster: Cluster, options: Any, text: str) -> None:
    """S3.26: refused before anything is made."""
    with pytest.raises(InvalidInput, match=text):
        await PostgresJournal.open(
            cluster.dsn(), schema="never_made", durability="process", **options
        )
    assert await read_owner(cluster.dsn(), "never_made") is None


async def test_a_lease_too_short_for_the_network(cluster: Cluster, tmp_path: Path) -> None:
    """S3.26: the text says how long it must be."""
    async with running_proxy(cluster, tmp_path) as network:
        network.delay_s = 0.06
        with pytest.raises(ConfigError, match=r"set lease_s to \d+ or more"):
            await opened(network.dsn, "slow", lease_s=1.0)


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


async def test_a_journal_from_before_leases(cluster: Cluster) -> None:
    """S3.26: it is brought up to date, and goes on with its next owner."""
    await execute(cluster, "CREATE SCHEMA earlier; " + in_schema(MIGRATIONS[0], "earlier"))
    await execute(cluster, "UPDATE earlier.journal SET format = 1, epoch = 6")
    async with serving(await opened(cluster.dsn(), "earlier")) as runtime:
        await say(runtime, "one")
        assert (await owner_of(cluster, "earlier")).epoch == 7
    connection = await asyncpg.connect(cluster.dsn())
    assert await connection.fetchval("SELECT format FROM earlier.journal") == FORMAT
    await connection.close()


async def test_owners_are_listed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """S3.26: `remora owners` of a database: each journal, its owner, and its lease."""
    journal = await opened(cluster.dsn(), "shown", lease_s=_LONG_S, address="db [one]:7731")
    try:
        dsn = cluster.dsn()
        assert await anyio.to_thread.run_sync(main, ["owners", dsn, "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        (row,) = [one for one in rows if one["shard"] == "shown"]
        assert row["owner"].endswith(f":{os.getpid()}")
        assert (row["address"], row["epoch"]) == ("db [one]:7731", 1)
        assert 900 < row["lease_left_s"] <= _LONG_S
        assert {one.schema for one in await read_owners(dsn)} == {one["shard"] for one in rows}
        assert await anyio.to_thread.run_sync(main, ["owners", dsn]) == 0
        shown = capsys.readouterr().out
        assert "lease left" in shown
        assert "db [one]:7731" in shown
    finally:
        await journal.aclose()
    assert await anyio.to_thread.run_sync(main, ["owners", f"{dsn}&port=1"]) == 1
    assert "PostgreSQL cannot be reached" in capsys.readouterr().err
