"""The kernel under virtual time, on both event loops: bounds, deadlines, supervision, passivation,
cancellation.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import anyio
import pytest

from remora import BufferPolicy
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.messages import Inspect, Load, SummaryReady
from remora.errors import CommitFailed, MailboxFull, OutcomeUnknown, SessionQuarantined
from remora.results import Job
from remora.runtime.jobs import RetryPolicy
from remora.runtime.passivation import RegistryLimits
from remora.runtime.schedule import Schedule
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.testing import FaultyJournal, VirtualClock, count_probes
from tests.harness import WINDOWS, Kernel, append, kernel, said, user
from tests.simulation.rare import (
    KEY,
    OTHER,
    Gated,
    Model,
    breathe,
    folding,
    long,
    reaching,
    shown,
    touchy,
)

pytestmark = pytest.mark.anyio


async def test_replies_wait_for_the_commit_and_the_actor_does_not() -> None:
    """G3: neither an append nor a read that saw it answers before it is durable; the turns
    themselves go on.
    """
    journal = Gated()
    answers: list[str] = []

    async def ask(core: Kernel, name: str, message: Any) -> None:
        await core.ask(KEY, message)
        answers.append(name)

    async with kernel(journal, clock=VirtualClock()) as core, anyio.create_task_group() as tasks:
        await core.ask(KEY, Load(100))
        tasks.start_soon(ask, core, "append 1", append(user("one")))
        await breathe()
        tasks.start_soon(ask, core, "load", Load(100))
        tasks.start_soon(ask, core, "append 2", append(user("two")))
        await breathe()
        assert answers == []
        assert len(await journal.read(KEY, 1, 9)) == 0
        journal.open.set()
        await breathe()
        assert sorted(answers) == ["append 1", "append 2", "load"]


@pytest.mark.parametrize("busy_with", ["a commit", "a mailbox"])
async def test_an_activation_takes_the_room_of_the_next_idle_actor(busy_with: str) -> None:
    """While all that may live are busy, it waits for a commit, and not for a clock."""
    journal = Gated()
    others = [SessionKey("alice", str(number)) for number in range(3)]
    limits = RegistryLimits(max_live=1)
    async with kernel(journal, clock=VirtualClock(), limits=limits) as core:
        async with anyio.create_task_group() as tasks:
            await core.ask(KEY, Load(100))
            for number in range(1 if busy_with == "a commit" else 5):
                tasks.start_soon(core.ask, KEY, append(user(f"message {number}")))
                await breathe()
            for key in others:
                tasks.start_soon(core.ask, key, append(user("one")))
            with count_probes() as probes:
                await breathe()
            assert probes["activation_waited_for_room"] == 1
            assert set(core.directory.live_keys()) == {KEY, *others}
            assert core.directory.statistics().live == 1
            journal.open.set()
            await breathe(200)
            assert [len(await journal.read(key, 1, 9)) for key in others] == [1, 1, 1]
            tasks.cancel_scope.cancel()


async def test_callers_that_leave() -> None:
    """G11: what was handled is whole, what still waited is not run, and the session goes on."""
    journal = Gated()
    limits = RegistryLimits(held_replies=1)
    async with kernel(journal, clock=VirtualClock(), limits=limits) as core:
        await core.ask(KEY, Load(100))
        async with anyio.create_task_group() as leaving:
            for texts in (["one", "two"], ["queued"]):
                leaving.start_soon(core.ask, KEY, append(*map(user, texts)))
                await breathe()
            leaving.cancel_scope.cancel()
        journal.open.set()
        assert (await core.ask(KEY, append(user("three")))).seqs == (3,)
        assert await shown(core) == ["one", "two", "three"]


async def test_full_mailbox_refuses_the_newest() -> None:
    """G10: by count and by bytes; what was taken runs, what was refused did not and can be sent
    again; small messages still find room beside a large one.
    """
    for bound, limit, sizes, refused, fits in (
        ("messages", {"mailbox_messages": 2}, [50, 50, 50], 1, None),
        ("bytes", {"mailbox_bytes": 100}, [50, 50, 50], 50, None),
        ("bytes", {"mailbox_bytes": 100}, [10, 90], 20, 10),
    ):
        journal, limits = Gated(), RegistryLimits(held_replies=1, **dict[str, Any](limit))
        with reaching(f"mailbox_full_of_{bound}"):
            async with kernel(journal, clock=VirtualClock(), limits=limits) as core:
                await core.ask(KEY, Load(100))
                async with anyio.create_task_group() as tasks:
                    for size in sizes:
                        tasks.start_soon(partial(core.ask, KEY, append(user("taken")), size=size))
                        await breathe()
                    with pytest.raises(MailboxFull) as caught:
                        await core.ask(KEY, append(user("refused")), size=refused)
                    assert caught.value.limit == bound
                    if fits is not None:
                        sizes.append(fits)
                        tasks.start_soon(partial(core.ask, KEY, append(user("taken")), size=fits))
                        await breathe()
                    journal.open.set()
                assert await shown(core) == ["taken"] * len(sizes)


async def test_deadlines_say_whether_it_ran() -> None:
    """G10, G3: past its deadline, a message that never ran is MailboxFull; one that ran and is not
    durable, OutcomeUnknown.
    """
    journal, clock = Gated(), VirtualClock()
    errors: dict[str, Exception] = {}

    async def ask(core: Kernel, name: str) -> None:
        try:
            await core.ask(KEY, append(user(name)), timeout_s=5)
        except (MailboxFull, OutcomeUnknown) as e:
            errors[name] = e

    async with kernel(journal, clock=clock, limits=RegistryLimits(held_replies=1)) as core:
        await core.ask(KEY, Load(100))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, core, "ran")
            await breathe()
            tasks.start_soon(ask, core, "queued")
            await breathe()
            await clock.advance(6)
        assert isinstance(errors["ran"], OutcomeUnknown)
        assert isinstance(errors["queued"], MailboxFull)
        assert errors["queued"].limit == "age"
        journal.open.set()
        assert await shown(core) == ["ran"]


async def test_small_message_does_not_overtake_a_large_one() -> None:
    """G2, G10: with `wait_when_full` senders wait for room, by count and by bytes, in order, and
    nothing is lost: a message that would fit waits behind one that does not.
    """
    for limits, texts in (
        ({"mailbox_messages": 1}, [f"{number}" for number in range(20)]),
        ({"mailbox_bytes": 1_000}, ["held", "q" * 600, "p" * 800, "late"]),
    ):
        journal, bounds = Gated(), RegistryLimits(held_replies=1, wait_when_full=True, **limits)
        async with kernel(journal, clock=VirtualClock(), limits=bounds, fold_above=10_000) as core:
            await core.ask(KEY, Load(100))
            async with anyio.create_task_group() as tasks:
                for text in texts:
                    message = append(user(text))
                    tasks.start_soon(partial(core.ask, KEY, message, size=message.size))
                    await breathe()
                journal.open.set()
            assert await shown(core) == texts


async def test_waiting_for_room_ends_at_the_deadline() -> None:
    """G10: a sender that waits for room is refused at its deadline; one that comes later does not
    overtake those that wait.
    """
    journal, clock = Gated(), VirtualClock()
    limits = RegistryLimits(held_replies=1, mailbox_messages=1, wait_when_full=True)
    outcomes: dict[str, Any] = {}

    async def ask(core: Kernel, name: str, timeout_s: float) -> None:
        try:
            outcomes[name] = (await core.ask(KEY, append(user(name)), timeout_s=timeout_s)).seqs
        except (MailboxFull, OutcomeUnknown) as e:
            outcomes[name] = e

    async with kernel(journal, clock=clock, limits=limits) as core:
        await core.ask(KEY, Load(100))
        async with anyio.create_task_group() as tasks:
            for name, timeout_s in (
                ("held", 60),
                ("queued", 2),
                ("parked briefly", 2),
                ("parked", 60),
            ):
                tasks.start_soon(ask, core, name, timeout_s)
                await breathe()
            await clock.advance(3)
            assert isinstance(outcomes["queued"], MailboxFull)
            assert isinstance(outcomes["parked briefly"], MailboxFull)
            tasks.start_soon(ask, core, "late", 60)
            await breathe()
            journal.open.set()
        assert (outcomes["held"], outcomes["parked"], outcomes["late"]) == ((1,), (2,), (3,))


async def test_failed_commit_is_forgotten_everywhere() -> None:
    """G3, G4: who saw the lost state is told, and so is whoever wrote behind it; the next request
    sees the journal's truth, and everything can be sent again.
    """
    faults: list[Any] = [None, "refused"]
    journal = FaultyJournal(lambda: faults.pop(0) if faults else None)
    failed: list[Exception] = []
    with reaching("write_fenced", "gate_broken"):
        async with kernel(journal, clock=VirtualClock()) as core:
            await core.ask(KEY, append(user("one")))

            async def ask(text: str) -> None:
                try:
                    await core.ask(KEY, append(user(text), key=text))
                except CommitFailed as e:
                    failed.append(e)

            async with anyio.create_task_group() as tasks:
                for text in ("two", "behind"):
                    tasks.start_soon(ask, text)
            assert len(failed) == 2
            assert await shown(core) == ["one"]
            assert (await core.ask(KEY, append(user("two"), key="two"))).seqs == (2,)
            faults.append("kept")
            with pytest.raises(OutcomeUnknown):
                await core.ask(KEY, append(user("three"), key="k3"))
            again = await core.ask(KEY, append(user("three"), key="k3"))
            assert (again.seqs, again.duplicate) == ((3,), True)
            assert await shown(core) == ["one", "two", "three"]
            assert (await core.ask(KEY, Inspect())).last_seq == 3
            assert core.directory.statistics().restarts == 2


async def test_exceptions_stay_with_their_request() -> None:
    """G11: a turn that raises fails one request; a broken state is restored; repeated failure is
    quarantined; others go on.
    """
    clock = VirtualClock()
    limits = RegistryLimits(restart_intensity=3, restart_period_s=30, rest_s=60)
    async with kernel(MemoryJournal(), clock=clock, behavior=touchy(), limits=limits) as core:
        await core.ask(KEY, append(user("one")))
        with pytest.raises(ZeroDivisionError):
            await core.ask(KEY, "fail")
        assert core.directory.statistics().restarts == 0
        for _ in range(3):
            assert await shown(core) == ["one"]
            with pytest.raises(TypeError):
                await core.ask(KEY, "break")
        with pytest.raises(SessionQuarantined) as caught:
            await core.ask(KEY, Load(100))
        assert 0 < caught.value.retry_after_s <= 60
        assert (await core.ask(OTHER, append(user("hi")))).seqs == (1,)
        await clock.advance(61)
        assert await shown(core) == ["one"]


async def test_passivation_and_return() -> None:
    """G12: idle sessions leave memory and come back the same; idle counts from the last turn."""
    clock = VirtualClock()
    async with kernel(
        MemoryJournal(), clock=clock, limits=RegistryLimits(idle_s=100), fold_above=30
    ) as core:
        for number in range(12):
            await core.ask(KEY, append(user(f"message number {number}"), key=f"k{number}"))
        await core.supervisor.drain(KEY)
        before = await core.ask(KEY, Load(1000))
        view = await core.ask(KEY, Inspect())
        await clock.advance(90)
        await core.ask(KEY, Inspect())
        await clock.advance(90)
        assert core.directory.statistics().live == 1
        await clock.advance(40)
        assert core.directory.statistics().live == 0
        after = await core.ask(KEY, Load(1000))
        assert (after.entries, after.summary, after.tokens) == (
            before.entries,
            before.summary,
            before.tokens,
        )
        assert await core.ask(KEY, Inspect()) == view
        assert (await core.ask(KEY, append(user("message number 3"), key="k3"))).duplicate


@pytest.mark.parametrize("bound", ["sessions", "bytes"])
async def test_live_sessions_are_bounded(bound: str) -> None:
    """G10, G12: more sessions than may live at once, or than there is room for, all work; those
    idle longest leave, and all come back as they were.
    """
    clock = VirtualClock()
    limits = RegistryLimits(max_live=10, idle_s=100_000)
    if bound == "bytes":
        limits = RegistryLimits(max_bytes=60_000, idle_s=100_000)
    keys = [SessionKey("alice", f"{number}") for number in range(20)]
    with count_probes() as probes:
        async with kernel(MemoryJournal(), clock=clock, limits=limits, fold_above=100_000) as core:
            for number, key in enumerate(keys):
                await core.ask(key, append(user(f"{number} {'x' * 10_000}")))
                await clock.advance(1)
                assert core.directory.statistics().bytes <= limits.max_bytes
                assert core.directory.statistics().live <= limits.max_live
            assert not core.directory.is_live(keys[0])
            assert core.directory.is_live(keys[-1])
            async with anyio.create_task_group() as tasks:
                for key in keys:
                    tasks.start_soon(core.ask, key, Load(10))
            for number, key in enumerate(keys):
                (text,) = await shown(core, key)
                assert text.split()[0] == f"{number}"
    assert (probes["shed_by_bytes"] > 0) == (bound == "bytes")


async def test_a_summary_is_taken_once() -> None:
    """G6: the result of a compaction that comes again, while the next one runs, is not that one's:
    what it summarizes is still shown.
    """
    journal, model = MemoryJournal(), Model()
    async with folding(journal, VirtualClock(), model) as core:
        numbers = iter(range(40))

        async def append_until_a_job_is_there() -> Job:
            while not (jobs := await journal.jobs()):
                await core.ask(KEY, append(long(next(numbers))))
            (job,) = jobs
            return job

        job = await append_until_a_job_is_there()
        await core.supervisor.drain(KEY)
        model.hangs = True
        await append_until_a_job_is_there()
        before = await core.ask(KEY, Load(1000))

        again = SummaryReady(job.payload, job.id, "", "again", 1, False, "m")
        assert await core.directory.ask_control(KEY, again) is False

        after = await core.ask(KEY, Load(1000))
        assert after.summary.text == before.summary.text
        assert said(after.entries) == said(before.entries)
        assert (await core.ask(KEY, Inspect())).pending


async def test_schedule_outlives_failures() -> None:
    """S2.15, G11: periodic work runs on time, and goes on after it raised."""
    clock, runs = VirtualClock(), []

    async def work() -> None:
        runs.append(clock.monotonic())
        if len(runs) == 2:
            raise ValueError("once")

    schedule = Schedule(clock)
    schedule.every(300, "fifo", work)
    async with anyio.create_task_group() as tasks:
        schedule.start(tasks)
        await clock.advance(1000)
        tasks.cancel_scope.cancel()
    assert runs == [300, 600, 900]
    assert (schedule.statistics()["fifo"].runs, schedule.statistics()["fifo"].failures) == (3, 1)


async def test_session_does_not_leave_before_its_farewell_is_durable() -> None:
    """G12: what an idle session writes on leaving is durable before it is forgotten, so its return
    finds it.
    """
    journal, clock = Gated(), VirtualClock()
    journal.open.set()
    policy = BufferPolicy(above_tokens=10_000, keep_tokens=50, overdraft_tokens=40_000)
    flushing = SessionBehavior(lambda _: policy, instance="0", flushes=True, windows=WINDOWS)
    async with kernel(
        journal, clock=clock, limits=RegistryLimits(idle_s=10), behavior=flushing
    ) as core:
        await core.ask(KEY, append(user("hello")))
        journal.open = anyio.Event()
        await clock.advance(40)
        assert core.directory.statistics().live == 1
        journal.open.set()
        await clock.advance(40)
        assert core.directory.statistics().live == 0
        assert (await core.ask(KEY, Inspect())).watermarks.indexing_through == 1
        assert len(await journal.jobs()) == 1


def test_back_off_has_no_end() -> None:
    """G6, G11: a job that waits for days for what is away has more attempts than doublings; the
    pause stays the longest one.
    """
    policy = RetryPolicy(max_backoff_s=60.0, jitter=0.5)
    assert all(
        60.0 <= policy.delay_s(attempts, random.Random(0)) <= 90.0
        for attempts in (10, 1_025, 10**6)
    )
