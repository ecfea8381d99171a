"""A job's failure that the journal cannot take down."""

from __future__ import annotations

from typing import Any

import pytest

from remora.runtime.jobs import Job, JobAttempt, JobQueue, JobResult, RetryPolicy
from remora.runtime.log import commit_records
from remora.storage.records import BlocksSpec, JobsStarted
from remora.testing import FaultyJournal, VirtualClock
from tests.harness import append, kernel
from tests.simulation.rare import KEY

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("fault", ["refused", "lost", "kept"])
async def test_a_burial_that_is_not_recorded(fault: Any) -> None:
    """G7, G11: a job whose end cannot be written is not forgotten: it is tried until it is a
    visible dead letter.
    """
    faults: list[Any] = []
    journal, clock = FaultyJournal(lambda: faults.pop(0) if faults else None), VirtualClock()
    attempts = 0

    async def broken(_: JobAttempt) -> JobResult:
        nonlocal attempts
        attempts += 1
        raise ValueError("broken")

    job = Job("job-1", "broken", KEY, BlocksSpec(1, 1))
    queue = JobQueue(
        "broken", broken, concurrency=1, retry=RetryPolicy(max_attempts=1, backoff_s=1, jitter=0)
    )
    async with kernel(journal, clock=clock, queues=[queue]) as core:
        await core.ask(KEY, append({"role": "user", "content": "one"}))
        await commit_records(journal, [JobsStarted(1, (job,))])
        faults.append(fault)
        core.supervisor.submit([job])
        await clock.advance(0.5)
        assert core.supervisor.statistics().queues["broken"].delayed == 1
        await clock.advance(10)
        await core.supervisor.drain(KEY)
        assert [(one.id, one.error) for one in await journal.jobs(dead=True)] == [
            ("job-1", "ValueError: broken")
        ]
        assert attempts == 2
        assert core.supervisor.statistics().queues["broken"].dead_lettered == 1
