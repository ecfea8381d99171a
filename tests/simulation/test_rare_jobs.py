"""Rare branches of jobs and of the journal."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from remora import Receipt
from remora.actors.session.messages import Append, Clear, Load, SummaryReady
from remora.errors import CommitFailed, ModelUnavailable, OutcomeUnknown
from remora.results import Job
from remora.runtime.jobs import JobAttempt, JobQueue, JobResult, RetryPolicy
from remora.runtime.log import commit_records
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.storage.records import BlocksSpec, JobsStarted
from remora.storage.sqlite.journal import SqliteJournal
from remora.testing import FaultyJournal, VirtualClock
from tests.harness import append, kernel, said, user
from tests.simulation.rare import (
    KEY,
    OTHER,
    Model,
    Unreadable,
    breathe,
    covered,
    down,
    folding,
    long,
    on_asyncio,
    over_sqlite,
    reaching,
    say,
    shown,
    touchy,
)
from tests.sqlite import Connections

pytestmark = pytest.mark.anyio
AFTER_A_MINUTE = RetryPolicy(backoff_s=60, max_backoff_s=60, jitter=0)

# -- jobs ------------------------------------------------------------------------------------------


async def test_failing_model_degrades_visibly() -> None:
    """G6, S1.07: pending messages load all along; after the last attempt an extract stands in,
    marked.
    """
    clock, model = VirtualClock(), down()
    retry = RetryPolicy(max_attempts=3, backoff_s=10, jitter=0)
    async with folding(MemoryJournal(), clock, model, retry=retry) as core:
        await say(core, 0, 8)
        await breathe()
        snapshot = await core.ask(KEY, Load(1000))
        assert len(snapshot.entries) == 8
        assert snapshot.pending > 0
        assert model.calls == 1
        await clock.advance(40)
        assert model.calls >= 3
        snapshot = await core.ask(KEY, Load(1000))
        assert snapshot.summary.degraded
        assert covered(snapshot) == [*range(8)]


async def test_a_job_that_waits_to_be_tried_again_waits_after_a_restart_too() -> None:
    """G6, G12: a crash does not make a model that is down be asked at once; when its pause is over,
    the fold ends.
    """
    journal, clock, model = MemoryJournal(), VirtualClock(), Model()
    async with folding(journal, clock, down()) as core:
        await say(core, 0, 8)
        await breathe()
    with reaching("job_resumed_in_backoff", "activated_amid_jobs"):
        journal = journal.restart()
        async with folding(journal, clock, model) as core:
            assert (await core.ask(KEY, Load(10_000))).pending
            await clock.advance(50)
            assert model.calls == 0
            assert covered(await core.ask(KEY, Load(10_000))) == [*range(8)]
            await clock.advance(20)
            snapshot = await core.ask(KEY, Load(10_000))
            assert model.calls > 0
            assert (snapshot.pending, snapshot.summary.degraded) == (0, False)
            assert covered(snapshot) == [*range(8)]
            assert await journal.jobs() == []


@pytest.mark.parametrize("hangs", [True, False])
async def test_clear_drops_a_late_summary(*, hangs: bool) -> None:
    """G5: the fold of what was cleared is gone at once, from the log as well, whether its model
    hangs or rests; its result changes nothing, and the next fold has its place.
    """
    journal, model = MemoryJournal(), Model(ModelUnavailable("down"), hangs=hangs)
    probe = "job_cancelled_running" if hangs else "job_pulled_from_backoff"
    with reaching(probe, "session_changed_during_compaction"):
        async with folding(journal, VirtualClock(), model) as core:
            await say(core, 0, 8)
            await breathe()
            (job,) = await journal.jobs()
            await core.ask(KEY, Clear())
            await core.supervisor.drain(KEY)
            assert await journal.jobs() == []
            await say(core, 8, 16)
            late = SummaryReady(job.payload, job.id, "", "late", 1, False, "m")
            assert await core.directory.ask_control(KEY, late) is False
            assert (await core.ask(KEY, Load(10_000))).summary is None
            assert len(await journal.jobs()) == 1, "the new fold's job, not the old one's"
            await core.ask(KEY, Clear())
            model.error, model.hangs = None, False
            await say(core, 16, 24)
            await core.supervisor.drain(KEY)
            assert covered(await core.ask(KEY, Load(10_000))) == [*range(16, 24)]


@pytest.mark.parametrize(
    ("hangs", "probe"), [(True, "job_expedited_running"), (False, "job_pulled_from_backoff")]
)
async def test_past_the_overdraft_an_extract_stands_in_at_once(*, hangs: bool, probe: str) -> None:
    """G5, G6: whether the model hangs or rests; the buffer shrinks without a second going by, and
    nothing is left out.
    """
    model = Model(ModelUnavailable("down"), hangs=hangs)
    with reaching("overdraft_reached", probe, "summary_degraded"):
        async with folding(MemoryJournal(), VirtualClock(), model) as core:
            longest = 0
            for number in range(40):
                await say(core, number, number + 1)
                await breathe(40)
                snapshot = await core.ask(KEY, Load(100_000))
                assert covered(snapshot) == [*range(number + 1)]
                longest = max(longest, len(snapshot.entries))
            assert longest < 40
            assert snapshot.summary.degraded


class Wordless(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise KeyError("message")


class Inexpressible(MemoryJournal):
    """Some of its errors cannot be written down."""

    wordless: tuple[SessionKey, ...] = ()

    async def read(self, key: SessionKey, first: int, last: int, *, at: int | None = None) -> Any:
        if key in self.wordless:
            raise Wordless
        return await super().read(key, first, last, at=at)


async def test_an_error_without_words_costs_one_attempt() -> None:
    """G11: where even writing a failure down fails, the job is tried again later, and others have
    its lane meanwhile.
    """
    clock, journal = VirtualClock(), Inexpressible()
    journal.wordless = (KEY,)
    with reaching("attempt_ended_by_defect"):
        async with folding(journal, clock) as core:
            await say(core, 0, 8)
            await say(core, 0, 8, OTHER)
            await core.supervisor.drain(OTHER)
            assert (await core.ask(OTHER, Load(10_000))).summary is not None
            assert covered(await core.ask(KEY, Load(10_000))) == [*range(8)]
            journal.wordless = ()
            await clock.advance(61)
            snapshot = await core.ask(KEY, Load(10_000))
            assert snapshot.pending == 0
            assert covered(snapshot) == [*range(8)]


async def test_an_error_without_words_in_a_hastened_job() -> None:
    """G11: a hastened attempt runs beside its lane; what breaks it off breaks nothing else."""
    clock, journal = VirtualClock(), Inexpressible()
    with reaching("job_pulled_from_backoff", "attempt_ended_by_defect"):
        async with folding(journal, clock, down(), retry=AFTER_A_MINUTE) as core:
            await say(core, 0, 8)
            await breathe()
            journal.wordless = (KEY,)
            await say(core, 8, 40)
            await breathe(40)
            journal.wordless = ()
            assert covered(await core.ask(KEY, Load(100_000))) == [*range(40)]
            await clock.advance(200)
            snapshot = await core.ask(KEY, Load(100_000))
            assert covered(snapshot) == [*range(40)]
            assert snapshot.summary.degraded


@pytest.mark.parametrize("alone", [False, True], ids=["in a model's stead", "on its own"])
async def test_an_extract_that_fails_is_replaced_by_what_was_known(*, alone: bool) -> None:
    """G6: the summary before stays, marked as no model's work; the messages are in the journal, and
    the session goes on.
    """
    clock, fallback = VirtualClock(), Model()
    model = fallback if alone else Model()
    retry = RetryPolicy(max_attempts=2)
    async with folding(MemoryJournal(), clock, model, fallback=fallback, retry=retry) as core:
        await say(core, 0, 8)
        await core.supervisor.drain(KEY)
        before = (await core.ask(KEY, Load(10_000))).summary
        assert before is not None
        model.error = fallback.error = RuntimeError("no sentence was found")
        with reaching("extract_failed"):
            await say(core, 8, 16)
            await clock.advance(60)
            await core.supervisor.drain(KEY)
        snapshot = await core.ask(KEY, Load(10_000))
        assert (snapshot.summary.text, snapshot.summary.degraded) == (before.text, True)
        assert snapshot.pending == 0
        assert said(await core.journal.read(KEY, 1, 99)) == [long(n)["content"] for n in range(16)]
        model.error = fallback.error = None
        await say(core, 16, 24)
        await core.supervisor.drain(KEY)
        snapshot = await core.ask(KEY, Load(10_000))
        assert snapshot.summary.text.startswith(before.text)
        assert covered(snapshot)[-8:] == [*range(16, 24)]


async def test_a_fold_whose_messages_cannot_be_read_ends() -> None:
    """G6, G11: it says so and how many they were; the session folds on when the journal can be read
    again.
    """
    clock, journal = VirtualClock(), Unreadable()
    with reaching("compaction_without_summary"):
        retry = RetryPolicy(max_attempts=2, backoff_s=1, jitter=0)
        async with folding(journal, clock, retry=retry) as core:
            journal.damaged = True
            await say(core, 0, 8)
            assert covered(await core.ask(KEY, Load(10_000))) == [*range(8)]
            await clock.advance(10)
            snapshot = await core.ask(KEY, Load(10_000))
            gone = 8 - len(snapshot.entries)
            assert "could not be read" in snapshot.summary.text
            assert (snapshot.summary.degraded, snapshot.summary.through) == (True, gone)
            journal.damaged = False
            stored = said(await journal.read(KEY, 1, gone))
            assert stored == [long(n)["content"] for n in range(gone)]
            await say(core, 8, 16)
            await core.supervisor.drain(KEY)
            snapshot = await core.ask(KEY, Load(10_000))
            assert not snapshot.summary.degraded
            assert covered(snapshot)[-8:] == [*range(8, 16)]


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
        await core.ask(KEY, append(user("one")))
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


# -- the journal -----------------------------------------------------------------------------------


def entries_of(text: str, key: str) -> Append:
    return append(user(text), key=key)


@on_asyncio
async def test_not_even_the_rollback_succeeds(tmp_path: Path, connections: Connections) -> None:
    """G3, G4: the outcome is unknown and is said to be; what is acknowledged afterwards was
    committed, and stays.
    """
    denied: list[str] = []

    def authorizer(action: int, operation: str | None, *_: Any) -> int:
        if action == sqlite3.SQLITE_TRANSACTION and operation in denied:
            denied.remove(operation)
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    path = tmp_path / "journal.db"
    journal: Any = await SqliteJournal.open(path, durability="power")
    with reaching("rollback_failed", "commit_unknown"):
        async with kernel(journal, behavior=touchy()) as core:
            await core.ask(KEY, entries_of("one", "k1"))
            denied += ["COMMIT", "ROLLBACK"]
            # statements that were prepared are looked at anew
            await connections[0].set_authorizer(authorizer)
            with pytest.raises(OutcomeUnknown):
                await core.ask(OTHER, entries_of("hello", "k"))
            assert not denied
            two: Receipt = await core.ask(
                KEY, entries_of("two", "k2")
            )  # messages alone: one statement, without a transaction
            assert (two.seqs, two.duplicate) == ((2,), False)
            assert (await core.ask(OTHER, entries_of("hello", "k"))).seqs == (1,)
            assert await shown(core) == ["one", "two"]
    await journal.aclose()
    async with over_sqlite(path) as core:
        assert await shown(core) == ["one", "two"]
        assert await shown(core, OTHER) == ["hello"]


@on_asyncio
async def test_a_write_that_cannot_be_stored_fails_alone(tmp_path: Path) -> None:
    """G4, G11: of many sessions' writes in one commit, those of all others are acknowledged and
    stay.
    """
    path = tmp_path / "journal.db"
    names = [
        *(f"good {number}" for number in range(12)),
        "bad",
        *(f"late {number}" for number in range(12)),
    ]
    outcomes: dict[str, Any] = {}
    (entry,) = append(user("hello")).entries
    unstorable = Append((msgspec.structs.replace(entry, tokens=2**70),), None, 1)
    with reaching("batch_halved", "commit_refused"):
        async with over_sqlite(path) as core:

            async def ask(name: str) -> None:
                try:
                    outcomes[name] = await core.ask(
                        SessionKey("alice", name),
                        unstorable if name == "bad" else append(user("hello")),
                    )
                except CommitFailed as e:
                    outcomes[name] = e

            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(ask, name)
    assert [name for name in names if isinstance(outcomes[name], CommitFailed)] == ["bad"]
    async with over_sqlite(path) as core:
        for name in names:
            assert await shown(core, SessionKey("alice", name)) == (
                [] if name == "bad" else ["hello"]
            )
