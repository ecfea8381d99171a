"""Jobs of one line run one after the other, and lines take turns."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from remora.errors import CommitFailed
from remora.results import Job
from remora.runtime.jobs import JobAttempt, JobQueue, JobResult, RetryPolicy
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.storage.records import BlocksSpec
from remora.testing import CommitFault, FaultyJournal, VirtualClock, count_probes
from remora.testing.simulation import SeededLoop, seams
from tests.harness import Kernel, kernel

pytestmark = pytest.mark.anyio


class Gated:
    """Runs each job until it is let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.failing: set[str] = set()
        self._gates: dict[str, anyio.Event] = {}

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        self.begun.append(attempt.job.id)
        await self._gate(attempt.job.id).wait()
        if attempt.job.id in self.failing:
            self.failing.remove(attempt.job.id)
            raise CommitFailed("away")
        return JobResult()

    def _gate(self, id_: str) -> anyio.Event:
        return self._gates.setdefault(id_, anyio.Event())

    def let_go(self, *ids: str) -> None:
        for id_ in ids:
            self._gate(id_).set()


@asynccontextmanager
async def running(
    concurrency: int = 2, journal: MemoryJournal | None = None, *, lines: bool = True
) -> AsyncIterator[tuple[Kernel, Gated, VirtualClock]]:
    gated, clock = Gated(), VirtualClock()
    queue = JobQueue(
        "gated",
        gated,
        concurrency=concurrency,
        retry=RetryPolicy(backoff_s=1, jitter=0),
        line=attrgetter("user") if lines else None,
        owner=None if lines else attrgetter("user"),
    )
    async with kernel(journal or MemoryJournal(), clock=clock, queues=[queue]) as core:
        yield core, gated, clock


def job(user: str, number: int) -> Job:
    key = SessionKey(user, f"session {number}")
    return Job(f"{user}-{number}", "gated", key, BlocksSpec(1, 1))


def queue_of(core: Kernel) -> Any:
    return core.supervisor.statistics().queues["gated"]


async def test_who_has_many_jobs_does_not_hold_up_others() -> None:
    """One of a line runs at a time, in order, and the next line has the other place."""
    async with running() as (core, gated, _):
        core.supervisor.submit([*(job("ann", n) for n in range(5)), job("bob", 0)])
        await anyio.wait_all_tasks_blocked()
        assert gated.begun == ["ann-0", "bob-0"]
        assert (queue_of(core).waiting, queue_of(core).running) == (4, 2)
        gated.let_go("ann-0")
        await anyio.wait_all_tasks_blocked()
        assert gated.begun[2:] == ["ann-1"]
        core.supervisor.submit([job("eve", 0)])
        gated.let_go("ann-1")
        await anyio.wait_all_tasks_blocked()
        assert gated.begun[3:] == ["eve-0"]  # before ann's third, who was here first
        gated.let_go("bob-0", "eve-0", *(f"ann-{n}" for n in range(2, 5)))
        await core.supervisor.drain_all()
        assert gated.begun[4:] == ["ann-2", "ann-3", "ann-4"]


async def test_no_owner_has_more_than_half_of_the_places() -> None:
    """G10: calls that hang for one user leave places for others, and owners take turns."""
    async with running(4, lines=False) as (core, gated, _):
        core.supervisor.submit([job("ann", n) for n in range(9)])
        await anyio.wait_all_tasks_blocked()
        assert gated.begun == ["ann-0", "ann-1"]
        assert (queue_of(core).waiting, queue_of(core).running) == (7, 2)
        core.supervisor.submit([*(job("bob", n) for n in range(3)), job("eve", 0)])
        await anyio.wait_all_tasks_blocked()
        assert gated.begun[2:] == ["bob-0", "eve-0"]
        gated.let_go("bob-0", "eve-0")
        await anyio.wait_all_tasks_blocked()
        assert gated.begun[4:] == ["bob-1", "bob-2"]  # ann's two still hang
        core.supervisor.cancel(["ann-8"])
        gated.let_go("ann-0", "bob-1", "bob-2")
        await anyio.wait_all_tasks_blocked()
        assert gated.begun[6:] == ["ann-2"]
        gated.let_go(*(f"ann-{n}" for n in range(9)))
        await core.supervisor.drain_all()
        assert gated.begun[7:] == [f"ann-{n}" for n in range(3, 8)]


async def test_a_job_that_failed_lets_its_line_go_on() -> None:
    """It comes back at the end of its line, when its pause is over."""
    async with running() as (core, gated, clock):
        gated.failing.add("ann-0")
        core.supervisor.submit([job("ann", 0), job("ann", 1)])
        gated.let_go("ann-0")
        await anyio.wait_all_tasks_blocked()
        assert gated.begun == ["ann-0", "ann-1"]
        gated.let_go("ann-1")
        await clock.advance(10)
        await core.supervisor.drain_all()
        assert gated.begun == ["ann-0", "ann-1", "ann-0"]


@pytest.mark.parametrize(("fault", "works"), [("kept", 1), ("lost", 1), ("refused", 2)])
async def test_a_job_whose_end_may_be_recorded(fault: CommitFault, works: int) -> None:
    """G7: its work is not begun again: if it were cut off then, the log might have no job that
    finishes it.
    """
    faults: list[CommitFault] = [fault]
    journal = FaultyJournal(lambda: faults.pop() if faults else None)
    async with running(journal=journal) as (core, gated, clock):
        gated.let_go("ann-0")
        core.supervisor.submit([job("ann", 0)])
        await anyio.wait_all_tasks_blocked()
        assert not faults
        assert core.supervisor.has_jobs(job("ann", 0).key)
        await clock.advance(10)
        await core.supervisor.drain_all()
        assert gated.begun == ["ann-0"] * works
        assert queue_of(core).done == 1


async def test_jobs_of_a_line_that_are_cancelled() -> None:
    """The one that runs, the next, and one behind it: the line goes on with what is left."""
    async with running(concurrency=1) as (core, gated, _):
        core.supervisor.submit([*(job("ann", n) for n in range(4)), job("bob", 0), job("bob", 1)])
        await anyio.wait_all_tasks_blocked()
        with count_probes() as reached:
            core.supervisor.cancel(["ann-0", "ann-2", "bob-0"])
        assert reached["job_cancelled_running"] == 1
        assert reached["job_pulled_from_line"] == 1
        assert reached["job_pulled_from_queue"] == 1
        gated.let_go("ann-1", "ann-3", "bob-1")
        await core.supervisor.drain_all()
        assert sorted(gated.begun) == ["ann-0", "ann-1", "ann-3", "bob-1"]
        assert (queue_of(core).waiting, queue_of(core).running) == (0, 0)


@pytest.mark.parametrize("lines", [False, True], ids=["without lines", "by lines"])
def test_a_job_wakes_one_worker(lines: bool) -> None:
    """However many wait, the event loop has the same work with each job."""

    def steps(workers: int) -> int:
        line = attrgetter("user") if lines else None
        queue = JobQueue("gated", Gated(), concurrency=workers, retry=RetryPolicy(), line=line)
        loop = SeededLoop(random.Random(1), idle=0)  # type: ignore[abstract]  # it refuses the rest

        async def work() -> None:
            while True:
                queue.end(await queue.take())

        async def main() -> int:
            async with anyio.create_task_group() as tasks:
                for _ in range(workers):
                    tasks.start_soon(work)
                await anyio.sleep(1)
                before = loop.steps
                for number in range(9):
                    queue.push(job(f"ann-{number % 3}", number))
                    await anyio.sleep(1 if number % 2 else 0)
                await anyio.sleep(1)
                found = loop.steps - before
                tasks.cancel_scope.cancel()
            assert queue.statistics(0.0, 0).waiting == 0
            return found

        with seams(loop):
            return int(loop.run_until_complete(main()))

    assert steps(10) == steps(100)
