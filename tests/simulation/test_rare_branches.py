"""Branches that only a race, a fault or a crash takes: each is reached here, and what a user
notices there is asserted.

The kernel runs with session actors on both event loops; the journal that is really under way runs
on a seeded one.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import msgspec
import pytest

from remora.actors.policies.buffer import BufferPolicy
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.messages import Append, Clear, Inspect, Load, Snapshot
from remora.errors import (
    CommitFailed,
    JournalDamaged,
    MailboxFull,
    ModelUnavailable,
    OutcomeUnknown,
    SessionQuarantined,
    StorageError,
)
from remora.ids import SessionKey
from remora.messages import Receipt
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.jobs import RetryPolicy
from remora.runtime.limits import RegistryLimits
from remora.runtime.probes import count_probes
from remora.storage.memory import MemoryJournal
from remora.storage.sqlite.journal import SqliteJournal
from remora.testing import FaultyJournal, VirtualClock
from remora.testing.simulation import SeededLoop, seams
from tests.harness import FirstWordsSummarizer, Kernel, append, kernel, said, user
from tests.sqlite import Connections

KEY = SessionKey("alice", "chat")
OTHER = SessionKey("bob", "chat")
SEEDS = 30

Result = TypeVar("Result")
on_both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "asyncio"))


@contextmanager
def reaching(*names: str) -> Iterator[None]:
    with count_probes() as counts:
        yield
    assert all(counts[name] for name in names), (
        f"never reached: {[name for name in names if not counts[name]]}"
    )


def long(number: int) -> dict[str, str]:
    return user(f"m{number} {'x' * 20}")


async def breathe(times: int = 12) -> None:
    for _ in range(times):
        await anyio.lowlevel.checkpoint()


async def shown(core: Kernel, key: SessionKey = KEY) -> list[str]:
    snapshot: Snapshot = await core.ask(key, Load(10_000))
    return said(snapshot.entries)


class Touchy(SessionBehavior):
    """Breaks its state when told to."""

    def handle(self, state: Any, message: Any) -> Decision | NeedsLookup:
        if message == "break":
            return Decision(None, ["nonsense"])
        return super().handle(state, message)


def touchy(**policy: Any) -> Touchy:
    chosen = BufferPolicy(
        **{"above_tokens": 10_000, "keep_tokens": 50, "overdraft_tokens": 40_000, **policy}
    )
    return Touchy(lambda _: chosen, instance="0", flushes=False)


# -- a turn that breaks its state while a commit is under way --------------------------------------


def on_a_disk(seed: int, tmp_path: Path, main: Callable[[Path], Awaitable[Result]]) -> Result:
    """Run it on a seeded loop, with the real SQLite on lanes."""
    loop = SeededLoop(random.Random(seed))  # type: ignore[abstract]
    path = tmp_path / f"{seed}.db"
    try:
        with seams(loop):
            result: Result = loop.run_until_complete(main(path))
            return result
    finally:
        loop.close()


@asynccontextmanager
async def over_sqlite(path: Path, **options: Any) -> AsyncIterator[Kernel]:
    journal: Any = await SqliteJournal.open(path, durability="power")
    try:
        async with kernel(journal, **{"behavior": touchy(), **options}) as core:
            yield core
    finally:
        await journal.aclose()


async def broken_amid(core: Kernel, message: Any) -> Any:
    """Ask, and break the session while the commit is under way; the answer, or the error."""
    answers: list[Any] = []

    async def ask() -> None:
        try:
            answers.append(await core.ask(KEY, message))
        except OutcomeUnknown as e:
            answers.append(e)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.sleep(0.002)
        with pytest.raises(TypeError):
            await core.ask(KEY, "break")
    return answers[0]


@pytest.mark.blocking  # SQLite's calls are steps of the loop
def test_a_fenced_append_that_lands_is_there_from_then_on(tmp_path: Path) -> None:
    """G2, G3, G4, G11: whether it landed is decided before anybody is answered: a load, a retry and
    a restart agree.
    """
    landed = set()

    async def main(path: Path) -> None:
        async with over_sqlite(path) as core:
            await core.ask(KEY, append(user("one")))
            told = await broken_amid(core, append(user("two"), key="k"))
            before = await shown(core)
            again: Receipt = await core.ask(KEY, append(user("two"), key="k"))
            assert (again.seqs, again.duplicate) == ((2,), "two" in before)
            landed.add(isinstance(told, Receipt) or again.duplicate)
            assert isinstance(told, OutcomeUnknown) or again.duplicate
            assert (await core.ask(KEY, append(user("three")))).seqs == (3,)
            assert await shown(core) == ["one", "two", "three"]
        async with over_sqlite(path) as core:
            assert await shown(core) == ["one", "two", "three"]

    with reaching("turn_broke_state", "fenced_write_acknowledged", "gate_broken", "cell_reloaded"):
        for seed in range(SEEDS):
            on_a_disk(seed, tmp_path, main)
    assert True in landed


@pytest.mark.blocking
def test_a_fenced_clear_that_lands_has_cleared(tmp_path: Path) -> None:
    """G2, G4, G11: what was cleared does not come back, and what is said after it is not cleared
    with it at the next start.
    """

    async def main(path: Path) -> None:
        async with over_sqlite(path) as core:
            await core.ask(KEY, append(user("one"), user("two")))
            await broken_amid(core, Clear())
            before = await shown(core)
            assert before in ([], ["one", "two"])
            await core.ask(KEY, append(user("three")))
            assert await shown(core) == [*before, "three"]
        async with over_sqlite(path) as core:
            assert await shown(core) == [*before, "three"]

    with reaching("fenced_write_acknowledged"):
        for seed in range(SEEDS):
            on_a_disk(seed, tmp_path, main)


@pytest.mark.blocking
def test_a_fenced_fold_that_lands_goes_on(tmp_path: Path) -> None:
    """G6, G7, G11: its job is found with the state that is read again: no message is summarized
    twice, and none is left out.
    """
    words = [f"m{number}" for number in range(8)]

    async def main(path: Path) -> None:
        async with over_sqlite(path, behavior=touchy(above_tokens=60, keep_tokens=30)) as core:
            for number in range(7):
                await core.ask(KEY, append(long(number)))
            await core.supervisor.drain(KEY)
            await broken_amid(core, append(long(7), key="k"))
            await core.ask(KEY, append(long(7), key="k"))
            with anyio.fail_after(60):
                await core.supervisor.drain(KEY)
            snapshot = await core.ask(KEY, Load(10_000))
            summary = snapshot.summary.text.split() if snapshot.summary else []
            assert [*summary, *(text.split()[0] for text in said(snapshot.entries))] == words
            assert await core.journal.jobs() == []

    with reaching("fenced_write_acknowledged"):
        for seed in range(SEEDS):
            on_a_disk(seed, tmp_path, main)


class Reluctant(MemoryJournal):
    """Takes what is queued, and stores it when it may, fenced meanwhile or not: as a disk that is
    at it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.may = anyio.Event()
        self.may.set()

    async def commit(self) -> None:
        taken, self._queue = self._queue, []
        await self.may.wait()
        for write in taken:
            if write.fenced:
                for record in write.records:
                    self.apply(record)
        self._queue = [*taken, *self._queue]
        await super().commit()


@pytest.mark.anyio
@on_both_loops
async def test_a_session_that_rests_does_not_hold_up_the_end() -> None:
    """G11, G12: with writes of a broken session still under way, closing waits for no rest;
    afterwards what landed is there.
    """
    journal, clock = Reluctant(), VirtualClock()
    limits = RegistryLimits(restart_intensity=1, rest_s=10_000)
    with reaching("quarantine_entered", "quarantine_refused", "write_fenced"):
        async with (
            kernel(journal, clock=clock, behavior=touchy(), limits=limits) as core,
            anyio.create_task_group() as tasks,
        ):
            await core.ask(KEY, append(user("one")))
            journal.may = anyio.Event()

            async def two() -> None:
                with pytest.raises(OutcomeUnknown):
                    await core.ask(KEY, append(user("two"), key="k"))

            tasks.start_soon(two)
            await breathe()
            with pytest.raises(TypeError):
                await core.ask(KEY, "break")
            with pytest.raises(SessionQuarantined):
                await core.ask(KEY, Load(100))
            journal.may.set()
            await breathe()
            with anyio.fail_after(5):
                await core.directory.drain()
    async with kernel(journal.restart(), clock=clock, behavior=touchy()) as core:
        assert await shown(core) == ["one", "two"]
        assert (await core.ask(KEY, append(user("two"), key="k"))).duplicate


@pytest.mark.anyio
@on_both_loops
async def test_a_session_that_has_rested_is_read_when_its_writes_have_landed() -> None:
    """G2, G11: a rest that is over before the disk is done does not show what the disk then
    changes; others go on.
    """
    journal, clock = Reluctant(), VirtualClock()
    limits = RegistryLimits(restart_intensity=1, rest_s=5, idle_s=10_000)
    with reaching("quarantine_left"):
        async with (
            kernel(journal, clock=clock, behavior=touchy(), limits=limits) as core,
            anyio.create_task_group() as tasks,
        ):
            await core.ask(KEY, append(user("one")))
            journal.may = anyio.Event()

            async def clear() -> None:
                with pytest.raises(OutcomeUnknown):
                    await core.ask(KEY, Clear())

            tasks.start_soon(clear)
            await breathe()
            with pytest.raises(TypeError):
                await core.ask(KEY, "break")
            await clock.advance(6)
            with pytest.raises(SessionQuarantined):
                await core.ask(KEY, Load(100))
            journal.may.set()
            await clock.advance(1)
            assert await shown(core) == []
            assert (await core.ask(KEY, append(user("two")))).seqs == (2,)
    async with kernel(journal.restart(), clock=clock, behavior=touchy()) as core:
        assert await shown(core) == ["two"]


# -- a log that cannot answer ----------------------------------------------------------------------


class Unreadable(MemoryJournal):
    """Cannot answer some questions, for a while."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fetch_errors: list[Exception] = []
        self.unreadable: dict[Hashable, Exception] = {}
        self.damaged = False

    async def fetch(self, key: Hashable, query: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        if self.fetch_errors:
            raise self.fetch_errors.pop()
        return await super().fetch(key, query)

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[Any]:
        found = await super().hydrate(keys)
        return [self.unreadable.get(key, image) for key, image in zip(keys, found, strict=True)]

    async def read(self, key: SessionKey, first: int, last: int, *, at: int | None = None) -> Any:
        if self.damaged:
            raise JournalDamaged("a row is not as it was written")
        return await super().read(key, first, last, at=at)


@pytest.mark.anyio
@on_both_loops
async def test_a_cold_key_that_cannot_be_looked_up() -> None:
    """G4, G11: its caller is told, nobody who waits behind it is, and once the log answers again
    the key has its one effect.
    """
    journal = Unreadable(hot_keys=1)
    clock = VirtualClock()
    outcomes: dict[str, Any] = {}
    with reaching("lookup_failed", "duplicate_key_cold"):
        async with kernel(journal, clock=clock, limits=RegistryLimits(idle_s=10)) as core:
            for number in range(3):
                await core.ask(KEY, append(user(f"{number}"), key=f"k{number}"))
            await clock.advance(30)
            journal.fetch_errors.append(StorageError("the disk did not answer"))

            async def ask(name: str, message: Any) -> None:
                try:
                    outcomes[name] = await core.ask(KEY, message)
                except StorageError as e:
                    outcomes[name] = e

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, "again", append(user("0"), key="k0"))
                await breathe(3)
                tasks.start_soon(ask, "behind", append(user("3"), key="k3"))
            assert isinstance(outcomes["again"], StorageError)
            assert outcomes["behind"].seqs == (4,)
            again: Receipt = await core.ask(KEY, append(user("0"), key="k0"))
            assert (again.seqs, again.duplicate) == ((1,), True)
            assert await shown(core) == ["0", "1", "2", "3"]


@pytest.mark.anyio
@on_both_loops
async def test_a_session_that_cannot_be_read() -> None:
    """G11: its callers are told why, no other session notices, and the next message finds it when
    it can be read again.
    """
    journal = Unreadable()
    async with kernel(journal, clock=VirtualClock()) as core:
        await core.ask(KEY, append(user("one")))
    journal = journal.restart()
    journal.unreadable = {KEY: JournalDamaged("a row is not as it was written")}
    with reaching("image_unreadable"):
        async with kernel(journal, clock=VirtualClock()) as core:
            outcomes: list[Any] = []

            async def ask(key: SessionKey, message: Any) -> None:
                try:
                    outcomes.append(await core.ask(key, message))
                except JournalDamaged as e:
                    outcomes.append(e)

            async with anyio.create_task_group() as tasks:
                for message in (Load(100), append(user("two"))):
                    tasks.start_soon(ask, KEY, message)
                tasks.start_soon(ask, OTHER, append(user("hello")))
            assert sum(isinstance(outcome, JournalDamaged) for outcome in outcomes) == 2
            assert sum(isinstance(outcome, Receipt) for outcome in outcomes) == 1
            journal.unreadable = {}
            assert (await core.ask(KEY, append(user("two")))).seqs == (2,)
            assert await shown(core) == ["one", "two"]


class KeptAndUnreadable(FaultyJournal):
    """Cannot be read, for a while, after a commit whose outcome nobody learned."""

    readable = True

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[Any]:
        if not self.readable:
            raise StorageError("the disk did not answer")
        return await super().hydrate(keys)


@pytest.mark.anyio
@on_both_loops
async def test_a_lost_session_that_cannot_be_read_keeps_its_job() -> None:
    """G6, G7: the job of a commit that was kept is done, though nobody learned of the commit, the
    session could not be read at first, and no message reaches it again.
    """
    faults: list[Any] = []
    journal = KeptAndUnreadable(lambda: faults.pop() if faults else None)
    clock = VirtualClock()
    with reaching("image_unreadable", "lost_actor_reread"):
        async with kernel(journal, clock=clock, fold_above=60) as core:
            await core.ask(KEY, append(user("one")))
            faults.append("kept")
            journal.readable = False
            with pytest.raises(OutcomeUnknown):
                await core.ask(KEY, append(*(long(number) for number in range(14))))
            await clock.advance(0.5)
            assert await journal.jobs()
            journal.readable = True
            await clock.advance(5)
            assert await journal.jobs() == []
            view = await core.ask(KEY, Inspect())
            assert view.summary is not None


# -- room ------------------------------------------------------------------------------------------


@pytest.mark.anyio
@on_both_loops
async def test_sessions_leave_memory_when_they_take_too_many_bytes() -> None:
    """G10, G12: the bound holds, those idle longest leave, and all come back as they were."""
    clock = VirtualClock()
    limits = RegistryLimits(max_bytes=60_000, idle_s=100_000)
    keys = [SessionKey("alice", f"{number}") for number in range(20)]
    with reaching("shed_by_bytes"):
        async with kernel(MemoryJournal(), clock=clock, limits=limits, fold_above=100_000) as core:
            for number, key in enumerate(keys):
                await core.ask(key, append(user(f"{number} {'x' * 10_000}")))
                await clock.advance(1)
                assert core.directory.statistics().bytes <= limits.max_bytes
            assert not core.directory.is_live(keys[0])
            assert core.directory.is_live(keys[-1])
            for number, key in enumerate(keys):
                (text,) = await shown(core, key)
                assert text.split()[0] == f"{number}"


@pytest.mark.anyio
@on_both_loops
async def test_a_mailbox_takes_no_more_bytes_than_it_may() -> None:
    """G10: what was refused did not run and can be sent again; small messages still find room
    beside a large one.
    """
    journal = Reluctant()
    limits = RegistryLimits(held_replies=1, mailbox_bytes=100)
    with reaching("mailbox_full_of_bytes"):
        async with kernel(journal, clock=VirtualClock(), limits=limits) as core:
            await core.ask(KEY, Load(100))
            journal.may = anyio.Event()
            async with anyio.create_task_group() as tasks:
                for text, size in (("held", 10), ("large", 90)):
                    tasks.start_soon(partial(core.ask, KEY, append(user(text)), size=size))
                    await breathe()
                with pytest.raises(MailboxFull) as caught:
                    await core.ask(KEY, append(user("refused")), size=20)
                assert caught.value.limit == "bytes"
                tasks.start_soon(partial(core.ask, KEY, append(user("small")), size=10))
                await breathe()
                journal.may.set()
            assert await shown(core) == ["held", "large", "small"]


# -- jobs ------------------------------------------------------------------------------------------


class Model:
    """A summarizer that is down while it is told to be, or never answers."""

    name = "model"

    def __init__(self, error: Exception | None = None, *, hangs: bool = False) -> None:
        self.error = error
        self.hangs = hangs
        self.calls = 0

    async def summarize(self, previous: str | None, lines: Any, *, max_tokens: int) -> str:
        self.calls += 1
        if self.hangs:
            await anyio.sleep_forever()
        if self.error is not None:
            raise self.error
        return await FirstWordsSummarizer().summarize(previous, lines, max_tokens=max_tokens)


def down() -> Model:
    return Model(ModelUnavailable("down"))


def covered(snapshot: Snapshot) -> list[str]:
    """First words of all that a context tells of."""
    summary = snapshot.summary.text.split() if snapshot.summary else []
    return [*summary, *(text.split()[0] for text in said(snapshot.entries))]


PATIENT = RetryPolicy(max_attempts=50, backoff_s=60, max_backoff_s=60, jitter=0)


@pytest.mark.anyio
@on_both_loops
async def test_a_job_that_waits_to_be_tried_again_waits_after_a_restart_too() -> None:
    """G6, G12: a crash does not make a model that is down be asked at once; when its pause is over,
    the fold ends.
    """
    journal, clock = MemoryJournal(), VirtualClock()
    async with kernel(
        journal,
        clock=clock,
        summarizer=down(),
        fallback=FirstWordsSummarizer(),
        retry=PATIENT,
        fold_above=30,
    ) as core:
        for number in range(8):
            await core.ask(KEY, append(long(number)))
        await breathe()
    model = Model()
    with reaching("job_resumed_in_backoff", "activated_amid_jobs"):
        journal = journal.restart()
        async with kernel(
            journal, clock=clock, summarizer=model, retry=PATIENT, fold_above=30
        ) as core:
            assert (await core.ask(KEY, Load(10_000))).pending
            await clock.advance(50)
            assert model.calls == 0
            assert covered(await core.ask(KEY, Load(10_000))) == [f"m{n}" for n in range(8)]
            await clock.advance(20)
            snapshot = await core.ask(KEY, Load(10_000))
            assert (model.calls > 0, snapshot.pending, snapshot.summary.degraded) == (
                True,
                0,
                False,
            )
            assert covered(snapshot) == [f"m{n}" for n in range(8)]
            assert await journal.jobs() == []


@pytest.mark.anyio
@on_both_loops
async def test_a_clear_does_not_wait_for_a_job_in_its_pause() -> None:
    """G5: the fold of what was cleared is gone at once, from the log as well, and the next fold has
    its place.
    """
    journal, clock, model = MemoryJournal(), VirtualClock(), down()
    with reaching("job_pulled_from_backoff", "restated_during_fold"):
        async with kernel(
            journal,
            clock=clock,
            summarizer=model,
            fallback=FirstWordsSummarizer(),
            retry=PATIENT,
            fold_above=30,
        ) as core:
            for number in range(8):
                await core.ask(KEY, append(long(number)))
            await breathe()
            assert model.calls == 1
            await core.ask(KEY, Clear())
            with anyio.fail_after(5):
                await core.supervisor.drain(KEY)
            assert await journal.jobs() == []
            model.error = None
            for number in range(8, 16):
                await core.ask(KEY, append(long(number)))
            with anyio.fail_after(5):
                await core.supervisor.drain(KEY)
            assert covered(await core.ask(KEY, Load(10_000))) == [f"m{n}" for n in range(8, 16)]


@pytest.mark.anyio
@on_both_loops
@pytest.mark.parametrize(
    ("hangs", "probe"), [(True, "job_expedited_running"), (False, "job_pulled_from_backoff")]
)
async def test_past_the_overdraft_an_extract_stands_in_at_once(*, hangs: bool, probe: str) -> None:
    """G5, G6: whether the model hangs or rests; the buffer shrinks without a second going by, and
    nothing is left out.
    """
    model = Model(ModelUnavailable("down"), hangs=hangs)
    with reaching("overdraft_reached", probe, "summary_degraded"):
        async with kernel(
            MemoryJournal(),
            clock=VirtualClock(),
            summarizer=model,
            fallback=FirstWordsSummarizer(),
            retry=PATIENT,
            fold_above=30,
        ) as core:
            longest = 0
            for number in range(40):
                await core.ask(KEY, append(long(number)))
                await breathe(40)
                snapshot = await core.ask(KEY, Load(100_000))
                assert covered(snapshot) == [f"m{n}" for n in range(number + 1)]
                longest = max(longest, len(snapshot.entries))
            assert longest < 40
            assert snapshot.summary.degraded


class Wordless(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise KeyError("message")


@pytest.mark.anyio
@on_both_loops
async def test_an_error_without_words_costs_one_attempt() -> None:
    """G11: where even writing a failure down fails, the job is tried again later, and others have
    its lane meanwhile.
    """
    clock, retry = VirtualClock(), RetryPolicy(backoff_s=1, max_backoff_s=60, jitter=0)

    class Journal(Unreadable):
        wordless = True

        async def read(
            self, key: SessionKey, first: int, last: int, *, at: int | None = None
        ) -> Any:
            if self.wordless and key == KEY:
                raise Wordless
            return await super().read(key, first, last, at=at)

    journal = Journal()
    with reaching("attempt_broke_off"):
        async with kernel(journal, clock=clock, retry=retry, fold_above=30) as core:
            for number in range(8):
                await core.ask(KEY, append(long(number)))
            for number in range(8):
                await core.ask(OTHER, append(long(number)))
            await core.supervisor.drain(OTHER)
            assert (await core.ask(OTHER, Load(10_000))).summary is not None
            assert covered(await core.ask(KEY, Load(10_000))) == [f"m{n}" for n in range(8)]
            journal.wordless = False
            await clock.advance(61)
            snapshot = await core.ask(KEY, Load(10_000))
            assert snapshot.pending == 0
            assert covered(snapshot) == [f"m{n}" for n in range(8)]


@pytest.mark.anyio
@on_both_loops
async def test_an_error_without_words_in_a_hastened_job() -> None:
    """G11: a hastened attempt runs beside its lane; what breaks it off breaks nothing else."""
    clock, retry = VirtualClock(), RetryPolicy(backoff_s=60, max_backoff_s=60, jitter=0)

    class Journal(Unreadable):
        wordless = False

        async def read(
            self, key: SessionKey, first: int, last: int, *, at: int | None = None
        ) -> Any:
            if self.wordless:
                raise Wordless
            return await super().read(key, first, last, at=at)

    journal, model = Journal(), down()
    with reaching("job_pulled_from_backoff", "attempt_broke_off"):
        async with kernel(
            journal,
            clock=clock,
            summarizer=model,
            fallback=FirstWordsSummarizer(),
            retry=retry,
            fold_above=30,
        ) as core:
            for number in range(8):
                await core.ask(KEY, append(long(number)))
            await breathe()
            journal.wordless = True
            for number in range(8, 40):
                await core.ask(KEY, append(long(number)))
            await breathe(40)
            journal.wordless = False
            assert covered(await core.ask(KEY, Load(100_000))) == [f"m{n}" for n in range(40)]
            await clock.advance(200)
            snapshot = await core.ask(KEY, Load(100_000))
            assert covered(snapshot) == [f"m{n}" for n in range(40)]
            assert snapshot.summary.degraded


@pytest.mark.anyio
@on_both_loops
@pytest.mark.parametrize("alone", [False, True], ids=["in a model's stead", "on its own"])
async def test_an_extract_that_fails_is_replaced_by_what_was_known(*, alone: bool) -> None:
    """G6: the summary before stays, marked as no model's work; the messages are in the journal, and
    the session goes on.
    """
    clock, fallback = VirtualClock(), Model()
    model = fallback if alone else Model()
    async with kernel(
        MemoryJournal(),
        clock=clock,
        summarizer=model,
        fallback=fallback,
        retry=RetryPolicy(max_attempts=2),
        fold_above=30,
    ) as core:
        for number in range(8):
            await core.ask(KEY, append(long(number)))
        await core.supervisor.drain(KEY)
        before = (await core.ask(KEY, Load(10_000))).summary
        assert before is not None
        model.error = fallback.error = RuntimeError("no sentence was found")
        with reaching("extract_failed"):
            for number in range(8, 16):
                await core.ask(KEY, append(long(number)))
            await clock.advance(60)
            await core.supervisor.drain(KEY)
        snapshot = await core.ask(KEY, Load(10_000))
        assert (snapshot.summary.text, snapshot.summary.degraded, snapshot.pending) == (
            before.text,
            True,
            0,
        )
        assert said(await core.journal.read(KEY, 1, 99)) == [long(n)["content"] for n in range(16)]
        model.error = fallback.error = None
        for number in range(16, 24):
            await core.ask(KEY, append(long(number)))
        await core.supervisor.drain(KEY)
        snapshot = await core.ask(KEY, Load(10_000))
        assert snapshot.summary.text.startswith(before.text)
        assert covered(snapshot)[-8:] == [f"m{n}" for n in range(16, 24)]


@pytest.mark.anyio
@on_both_loops
async def test_a_fold_whose_messages_cannot_be_read_ends() -> None:
    """G6, G11: it says so and how many they were; the session folds on when the journal can be read
    again.
    """
    clock, journal = VirtualClock(), Unreadable()
    with reaching("fold_without_summary"):
        async with kernel(
            journal,
            clock=clock,
            retry=RetryPolicy(max_attempts=2, backoff_s=1, jitter=0),
            fold_above=30,
        ) as core:
            journal.damaged = True
            for number in range(8):
                await core.ask(KEY, append(long(number)))
            assert covered(await core.ask(KEY, Load(10_000))) == [f"m{n}" for n in range(8)]
            await clock.advance(10)
            snapshot = await core.ask(KEY, Load(10_000))
            gone = 8 - len(snapshot.entries)
            assert "could not be read" in snapshot.summary.text
            assert (snapshot.summary.degraded, snapshot.summary.through) == (True, gone)
            journal.damaged = False
            assert said(await journal.read(KEY, 1, gone)) == [
                long(n)["content"] for n in range(gone)
            ]
            for number in range(8, 16):
                await core.ask(KEY, append(long(number)))
            await core.supervisor.drain(KEY)
            snapshot = await core.ask(KEY, Load(10_000))
            assert not snapshot.summary.degraded
            assert covered(snapshot)[-8:] == [f"m{n}" for n in range(8, 16)]


# -- the journal -----------------------------------------------------------------------------------


def entries_of(text: str, key: str) -> Append:
    return append(user(text), key=key)


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
@on_both_loops
async def test_a_commit_that_fails_takes_what_is_behind_it() -> None:
    """G3, G4: what was written behind it is void as well; nobody is told of it, and everything can
    be sent again.
    """
    faults: list[Any] = [None, "refused"]
    journal = FaultyJournal(lambda: faults.pop(0) if faults else None)
    with reaching("write_fenced", "gate_broken"):
        async with kernel(journal, clock=VirtualClock()) as core:
            await core.ask(KEY, append(user("one")))
            failed: list[Exception] = []

            async def ask(text: str) -> None:
                try:
                    await core.ask(KEY, append(user(text), key=text))
                except CommitFailed as e:
                    failed.append(e)

            async with anyio.create_task_group() as tasks:
                for text in ("two", "three"):
                    tasks.start_soon(ask, text)
            assert len(failed) == 2
            assert await shown(core) == ["one"]
            assert (await core.ask(KEY, append(user("two"), key="two"))).seqs == (2,)
            assert (await core.ask(KEY, Inspect())).last_seq == 2
