"""PostgreSQL fails over to a real standby: what is kept, and how a loss is noticed and told."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress

import anyio
import pytest
from anyio.to_thread import run_sync

from remora import Message, Runtime
from remora.errors import CommitFailed, ConfigError, OutcomeUnknown, OwnershipLost, OwnerUnreachable
from remora.storage.postgres import PostgresJournal
from tests.patience import until
from tests.postgres import Cluster, running_cluster, running_standby

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


class Pair:
    """A cluster and its standby."""

    def __init__(self, primary: Cluster, standby: Cluster) -> None:
        self.primary, self.standby = primary, standby
        self.dsn = primary.dsn(other=standby)

    async def open(self) -> Runtime:
        journal = await PostgresJournal.open(
            self.dsn, lease_s=20.0, command_timeout_s=15.0, reconnect_s=600, durability="process"
        )
        return Runtime.in_memory(journal=journal)

    async def fail_over(self) -> None:
        """The primary ends as by a crash; the standby takes over."""
        await run_sync(self.primary.stop, signal.SIGQUIT)
        await run_sync(self.standby.promote)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with running_cluster() as primary, running_standby(primary) as standby:
        yield Pair(primary, standby)


async def try_to_say(runtime: Runtime, number: int) -> None:
    message = Message(role="user", content=str(number))
    await runtime.session("alice", "chat").append(message, key=f"k{number}")


async def say(runtime: Runtime, number: int) -> None:
    """Again with the same key, while a busy machine renews a lease late, or PostgreSQL is away."""
    while True:
        try:
            return await try_to_say(runtime, number)
        except OwnershipLost:
            raise
        except (CommitFailed, OutcomeUnknown, OwnerUnreachable):
            await anyio.sleep(0.01)


async def heard(runtime: Runtime) -> list[str]:
    while True:
        try:
            history = await runtime.session("alice", "chat").history()
        except OwnerUnreachable:
            await anyio.sleep(0.01)
        else:
            return [str(one.content) for one in history]


async def test_a_synchronous_standby_takes_over(pair: Pair) -> None:
    """G3: under load: the same owner goes on, nothing acknowledged is lost, nothing is doubled."""
    await run_sync(pair.standby.follow_synchronously, pair.primary)
    async with await pair.open() as runtime:
        said = 0

        async def talk() -> None:
            nonlocal said
            while True:
                await say(runtime, said)
                said += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk)
            await until(lambda: said > 20)
            await pair.fail_over()
            after = said + 20
            await until(lambda: said > after)
            tasks.cancel_scope.cancel()
        found = await heard(runtime)
        assert found[:said] == [str(number) for number in range(said)]
        assert len(found) <= said + 1  # one may have been on its way


@pytest.mark.parametrize("writes", [True, False], ids=["a write", "nobody"])
async def test_an_asynchronous_standby_lost_commits(
    pair: Pair, writes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """G3: the owner is told by its next write, or by its lease; a start has what PostgreSQL has."""
    async with await pair.open() as runtime:
        for number in range(5):
            await say(runtime, number)
        await run_sync(pair.standby.fall_behind, pair.primary)
        for number in range(5, 8):
            await say(runtime, number)
        await pair.fail_over()
        with pytest.raises(OwnershipLost) as lost:
            while True:
                with suppress(OwnerUnreachable):  # its lease ran out while PostgreSQL failed over
                    if writes:
                        await try_to_say(runtime, 8)
                    await runtime.session("alice", "chat").size()
                await anyio.sleep(0.02)
    assert "3 of them are gone" in str(lost.value)
    (line,) = [one.getMessage() for one in caplog.records if "journal_lost" in one.getMessage()]
    assert "lost=3" in line
    async with await pair.open() as runtime:
        await say(runtime, 9)
        assert await heard(runtime) == ["0", "1", "2", "3", "4", "9"]


async def test_a_standby_takes_no_journal(pair: Pair) -> None:
    """S3.26: an address that names the standby alone is refused, and says what to name."""
    with pytest.raises(ConfigError, match="Name the primary, or all servers"):
        await PostgresJournal.open(pair.standby.dsn(), durability="process")
    async with await pair.open() as runtime:  # of both, it finds the one that takes writes
        await say(runtime, 0)
        assert await heard(runtime) == ["0"]


async def test_a_lost_claim_is_told(pair: Pair) -> None:
    """G12: the new server does not know of this owner, and says so."""
    async with await pair.open():
        pass
    await run_sync(pair.standby.fall_behind, pair.primary)
    async with await pair.open() as runtime:
        await say(runtime, 0)
        await pair.fail_over()
        with pytest.raises(OwnershipLost, match="failed over"):
            while True:
                await say(runtime, 1)
