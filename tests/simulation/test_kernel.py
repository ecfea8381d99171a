"""The kernel under virtual time, on both event loops: bounds, deadlines, supervision, passivation,
cancellation.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from remora.actors.policies.buffer import BufferPolicy
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.messages import Clear, Inspect, Load, SummaryReady
from remora.errors import (
    CommitFailed,
    MailboxFull,
    ModelUnavailable,
    OutcomeUnknown,
    SessionQuarantined,
)
from remora.ids import SessionKey
from remora.messages import Receipt
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.jobs import Job, RetryPolicy
from remora.runtime.limits import RegistryLimits
from remora.runtime.probes import count_probes
from remora.runtime.schedule import Schedule
from remora.storage.memory import MemoryJournal
from remora.storage.records import SummarizeSpec
from remora.testing import FaultyJournal, VirtualClock
from tests.harness import FirstWordsSummarizer, Kernel, append, kernel, said, user

KEY = SessionKey("alice", "chat")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def breathe(times: int = 12) -> None:
    for _ in range(times):
        await anyio.lowlevel.checkpoint()


class Gated(MemoryJournal):
    """Commits only while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = anyio.Event()

    async def commit(self) -> None:
        await self.open.wait()
        await super().commit()


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_cancelled_caller_takes_nothing_along() -> None:
    """G11: the append of a caller that left is whole, and the session goes on."""
    journal = Gated()
    async with kernel(journal, clock=VirtualClock()) as core:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(core.ask, KEY, append(user("one"), user("two")))
            await breathe()
            tasks.cancel_scope.cancel()
        journal.open.set()
        receipt: Receipt = await core.ask(KEY, append(user("three")))
        assert receipt.seqs == (3,)
        assert said((await core.ask(KEY, Load(100))).entries) == ["one", "two", "three"]


@pytest.mark.anyio
async def test_caller_that_left_before_its_turn_has_no_effect() -> None:
    """G11: a queued message whose sender is gone is not run."""
    journal = Gated()
    limits = RegistryLimits(held_replies=1)
    async with kernel(journal, clock=VirtualClock(), limits=limits) as core:
        await core.ask(KEY, Load(100))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(core.ask, KEY, append(user("held")))
            await breathe()
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(core.ask, KEY, append(user("queued")))
                await breathe()
                leaving.cancel_scope.cancel()
            journal.open.set()
        assert said((await core.ask(KEY, Load(100))).entries) == ["held"]


@pytest.mark.anyio
async def test_full_mailbox_refuses_the_newest() -> None:
    """G10: by count and by bytes; what was taken runs, what was refused did not."""
    journal = Gated()
    for limits, bound in (
        (RegistryLimits(held_replies=1, mailbox_messages=2), "messages"),
        (RegistryLimits(held_replies=1, mailbox_bytes=100), "bytes"),
    ):
        key = SessionKey("alice", bound)
        journal.open = anyio.Event()
        async with kernel(journal, clock=VirtualClock(), limits=limits) as core:
            await core.ask(key, Load(100))
            async with anyio.create_task_group() as tasks:
                for text in ("held", "a", "b"):
                    tasks.start_soon(partial(core.ask, key, append(user(text)), size=50))
                    await breathe()
                with pytest.raises(MailboxFull) as caught:
                    await core.ask(key, append(user("refused")), size=50)
                assert caught.value.limit == bound
                journal.open.set()
            assert said((await core.ask(key, Load(100))).entries) == ["held", "a", "b"]


@pytest.mark.anyio
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
        assert said((await core.ask(KEY, Load(100))).entries) == ["ran"]


@pytest.mark.anyio
async def test_waiting_for_room() -> None:
    """G10: with `wait_when_full` senders wait for room, in order, and nothing is lost."""
    journal = Gated()
    limits = RegistryLimits(held_replies=1, mailbox_messages=1, wait_when_full=True)
    async with kernel(journal, clock=VirtualClock(), limits=limits, fold_above=10_000) as core:
        await core.ask(KEY, Load(100))
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(core.ask, KEY, append(user(f"{number}")))
                await breathe()
            journal.open.set()
        assert said((await core.ask(KEY, Load(1000))).entries) == [f"{n}" for n in range(20)]


@pytest.mark.anyio
async def test_small_message_does_not_overtake_a_large_one() -> None:
    """G2, G10: a message that would fit waits behind one that does not, for that one came first."""
    journal = Gated()
    limits = RegistryLimits(held_replies=1, mailbox_bytes=1_000, wait_when_full=True)
    said_by = ["held", "q" * 600, "p" * 800, "late"]
    async with kernel(journal, clock=VirtualClock(), limits=limits, fold_above=10_000) as core:
        await core.ask(KEY, Load(100))
        async with anyio.create_task_group() as tasks:
            for text in said_by:
                message = append(user(text))
                tasks.start_soon(partial(core.ask, KEY, message, size=message.size))
                await breathe()
            journal.open.set()
        assert said((await core.ask(KEY, Load(10_000))).entries) == said_by


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_failed_commit_is_forgotten_everywhere() -> None:
    """G3, G4: who saw the lost state is told; the next request sees the journal's truth."""
    faults: list[Any] = [None, "refused", None, "kept"]
    journal = FaultyJournal(lambda: faults.pop(0) if faults else None)
    async with kernel(journal, clock=VirtualClock()) as core:
        await core.ask(KEY, append(user("one")))
        with pytest.raises(CommitFailed):
            await core.ask(KEY, append(user("lost")))
        assert (await core.ask(KEY, append(user("two"), key="k"))).seqs == (2,)
        with pytest.raises(OutcomeUnknown):
            await core.ask(KEY, append(user("three"), key="k3"))
        again = await core.ask(KEY, append(user("three"), key="k3"))
        assert (again.seqs, again.duplicate) == ((3,), True)
        assert said((await core.ask(KEY, Load(100))).entries) == ["one", "two", "three"]
        assert core.directory.statistics().restarts == 2


class Touchy(SessionBehavior):
    """Fails in its decision, or in its state, when told to."""

    def handle(self, state: Any, message: Any) -> Decision | NeedsLookup:
        if message == "handle":
            raise ZeroDivisionError("handle")
        if message == "apply":
            return Decision(None, ["nonsense"])
        return super().handle(state, message)


@pytest.mark.anyio
async def test_exceptions_stay_with_their_request() -> None:
    """G11: a turn that raises fails one request; a broken state is restored; repeated failure is
    quarantined; others go on.
    """
    clock = VirtualClock()
    policy = BufferPolicy(above_tokens=100, keep_tokens=50, overdraft_tokens=400)
    touchy = Touchy(lambda _: policy, instance="0", flushes=False)
    limits = RegistryLimits(restart_intensity=3, restart_period_s=30, rest_s=60)
    async with kernel(MemoryJournal(), clock=clock, behavior=touchy, limits=limits) as core:
        await core.ask(KEY, append(user("one")))
        with pytest.raises(ZeroDivisionError):
            await core.ask(KEY, "handle")
        assert core.directory.statistics().restarts == 0
        for _ in range(3):
            assert said((await core.ask(KEY, Load(100))).entries) == ["one"]
            with pytest.raises(TypeError):
                await core.ask(KEY, "apply")
        with pytest.raises(SessionQuarantined) as caught:
            await core.ask(KEY, Load(100))
        assert 0 < caught.value.retry_after_s <= 60
        other = SessionKey("bob", "chat")
        assert (await core.ask(other, append(user("hi")))).seqs == (1,)
        await clock.advance(61)
        assert said((await core.ask(KEY, Load(100))).entries) == ["one"]


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_live_sessions_are_bounded() -> None:
    """G10, G12: more sessions than may live at once all work; the longest idle leave."""
    async with kernel(MemoryJournal(), limits=RegistryLimits(max_live=10)) as core:
        async with anyio.create_task_group() as tasks:
            for number in range(60):
                tasks.start_soon(core.ask, SessionKey("u", f"{number}"), append(user(f"{number}")))
        assert core.directory.statistics().live <= 10
        for number in range(60):
            snapshot = await core.ask(SessionKey("u", f"{number}"), Load(100))
            assert said(snapshot.entries) == [f"{number}"]


class Failing:
    """A summarizer that is down."""

    name = "down"

    def __init__(self) -> None:
        self.calls = 0

    async def summarize(self, previous: str | None, lines: Any, *, max_tokens: int) -> str:
        self.calls += 1
        raise ModelUnavailable("down")


@pytest.mark.anyio
async def test_failing_model_degrades_visibly() -> None:
    """G6, S1.07: pending messages load all along; after the last attempt an extract stands in,
    marked.
    """
    clock, model = VirtualClock(), Failing()
    retry = RetryPolicy(max_attempts=3, backoff_s=10, jitter=0)
    async with kernel(
        MemoryJournal(),
        clock=clock,
        summarizer=model,
        fallback=FirstWordsSummarizer(),
        retry=retry,
        fold_above=30,
    ) as core:
        texts = [f"m{number} {'x' * 20}" for number in range(8)]
        for text in texts:
            await core.ask(KEY, append(user(text)))
        await breathe()
        snapshot = await core.ask(KEY, Load(1000))
        assert said(snapshot.entries) == texts
        assert snapshot.pending > 0
        assert model.calls == 1
        await clock.advance(40)
        assert model.calls >= 3
        snapshot = await core.ask(KEY, Load(1000))
        assert snapshot.summary.degraded
        assert [
            *snapshot.summary.text.split(),
            *(t.split()[0] for t in said(snapshot.entries)),
        ] == [t.split()[0] for t in texts]


class Hanging:
    """A summarizer that never answers."""

    name = "hanging"

    async def summarize(self, previous: str | None, lines: Any, *, max_tokens: int) -> str:
        await anyio.sleep_forever()
        raise AssertionError


@pytest.mark.anyio
async def test_overdraft_hastens_the_fold() -> None:
    """G5, G6: a summarizer that hangs holds up nothing; past the overdraft an extract takes its
    place.
    """
    async with kernel(
        MemoryJournal(),
        clock=VirtualClock(),
        summarizer=Hanging(),
        fallback=FirstWordsSummarizer(),
        fold_above=30,
    ) as core:
        for number in range(40):
            await core.ask(KEY, append(user(f"m{number} {'x' * 20}")))
        await breathe(60)
        snapshot = await core.ask(KEY, Load(10_000))
        assert snapshot.summary.degraded
        assert snapshot.summary.text.split()[0] == "m0"
        assert said(snapshot.entries)[-1].startswith("m39 ")


@pytest.mark.anyio
async def test_clear_drops_a_late_summary() -> None:
    """G5: the result of a fold that `clear` made stale changes nothing, and leaves no job behind."""  # noqa: E501
    journal = MemoryJournal()
    async with kernel(journal, clock=VirtualClock(), summarizer=Hanging(), fold_above=30) as core:
        for number in range(8):
            await core.ask(KEY, append(user(f"m{number} {'x' * 20}")))
        view = await core.ask(KEY, Inspect())
        assert view.pending
        assert len(await journal.jobs()) == 1
        await core.ask(KEY, Clear())
        with anyio.fail_after(5):
            await core.supervisor.drain(KEY)
        for number in range(8, 16):
            await core.ask(KEY, append(user(f"m{number} {'x' * 20}")))
        spec = SummarizeSpec(view.sid, 0, 1, view.watermarks.summarizing_through)
        late = SummaryReady(
            spec,
            f"summarize-{view.sid}-0-{view.watermarks.summarizing_through}",
            "",
            "late",
            1,
            False,
            "m",
        )
        assert await core.directory.ask_control(KEY, late) is False
        snapshot = await core.ask(KEY, Load(1000))
        assert snapshot.summary is None
        assert [t.split()[0] for t in said(snapshot.entries)] == [f"m{n}" for n in range(8, 16)]
        assert len(await journal.jobs()) == 1, "the new fold's job, not the old one's"


@pytest.mark.anyio
async def test_a_summary_is_taken_once() -> None:
    """G6: the result of a compaction that comes again, while the next one runs, is not that one's:
    what it summarizes is still shown.
    """
    answered: list[str] = []

    class AnswersOnce(Hanging):
        async def summarize(self, previous: str | None, lines: Any, *, max_tokens: int) -> str:
            if answered:
                await anyio.sleep_forever()
            answered.append("first")
            return "first"

    journal = MemoryJournal()
    async with kernel(
        journal, clock=VirtualClock(), summarizer=AnswersOnce(), fold_above=30
    ) as core:
        numbers = iter(range(40))

        async def append_until_a_job_is_there() -> Job:
            while not (jobs := await journal.jobs()):
                await core.ask(KEY, append(user(f"m{next(numbers)} {'x' * 20}")))
            (job,) = jobs
            return job

        job = await append_until_a_job_is_there()
        with anyio.fail_after(5):
            await core.supervisor.drain(KEY)
        await append_until_a_job_is_there()
        before = await core.ask(KEY, Load(1000))
        assert before.summary.text == "first"

        again = SummaryReady(job.payload, job.id, "", "again", 1, False, "m")
        assert await core.directory.ask_control(KEY, again) is False

        after = await core.ask(KEY, Load(1000))
        assert after.summary.text == "first"
        assert said(after.entries) == said(before.entries)
        assert (await core.ask(KEY, Inspect())).pending


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_one_busy_session_does_not_starve_others() -> None:
    """G10: with thousands queued on one session, another's message still has its turn after a
    bounded number of theirs.
    """
    journal = Gated()
    limits = RegistryLimits(held_replies=4, mailbox_messages=5_000)
    busy, quiet = SessionKey("noisy", "1"), SessionKey("quiet", "1")
    async with kernel(journal, clock=VirtualClock(), limits=limits, fold_above=10**9) as core:
        await core.ask(busy, Load(1))
        await core.ask(quiet, Load(1))
        async with anyio.create_task_group() as tasks:
            for _ in range(2_000):
                tasks.start_soon(core.ask, busy, append(user("x")))
            await breathe()
            journal.open.set()
            await core.ask(quiet, append(user("hello")))
            assert core.directory.statistics().queued > 1_000, (
                "most of the flood still waits when the quiet session was served"
            )


@pytest.mark.anyio
async def test_keys_beyond_those_in_memory() -> None:
    """G4: with more keys than a session holds in memory, a new one, an old one, and a retried new
    one each do as they should.
    """
    journal, clock = MemoryJournal(hot_keys=2), VirtualClock()
    async with kernel(
        journal, clock=clock, limits=RegistryLimits(idle_s=10), fold_above=10_000
    ) as core:
        for number in range(5):
            await core.ask(KEY, append(user(f"{number}"), key=f"k{number}"))
        await clock.advance(20)
        assert core.directory.statistics().live == 0
        assert (await core.ask(KEY, append(user("0"), key="k0"))).seqs == (1,)
        first = await core.ask(KEY, append(user("new"), key="new"))
        again = await core.ask(KEY, append(user("new"), key="new"))
        assert (first.seqs, first.duplicate, again.seqs, again.duplicate) == (
            (6,),
            False,
            (6,),
            True,
        )
        assert len((await core.ask(KEY, Load(1000))).entries) == 6


@pytest.mark.anyio
async def test_session_does_not_leave_before_its_farewell_is_durable() -> None:
    """G12: what an idle session writes on leaving is durable before it is forgotten, so its return
    finds it.
    """
    journal, clock = Gated(), VirtualClock()
    journal.open.set()
    policy = BufferPolicy(above_tokens=10_000, keep_tokens=50, overdraft_tokens=40_000)
    flushing = SessionBehavior(lambda _: policy, instance="0", flushes=True)
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
