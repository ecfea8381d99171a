"""Branches that only a race, a fault or a crash takes: each is reached here, and what a user
notices there is asserted.

The kernel runs with session actors on both event loops; the journal that is really under way runs
on a seeded one.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from remora import Receipt
from remora.actors.session.messages import Clear, Inspect, Load
from remora.errors import JournalDamaged, OutcomeUnknown, SessionQuarantined, StorageError
from remora.runtime.passivation import RegistryLimits
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.testing import FaultyJournal, VirtualClock
from remora.testing.simulation import SeededLoop, seams
from tests.harness import Kernel, append, kernel, user
from tests.simulation.rare import (
    KEY,
    OTHER,
    Unreadable,
    breathe,
    covered,
    long,
    over_sqlite,
    reaching,
    say,
    shown,
    touchy,
)

SEEDS = 30

Result = TypeVar("Result")

pytestmark = pytest.mark.anyio


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

    with reaching(
        "records_not_applied", "fenced_write_acknowledged", "gate_broken", "cell_reloaded"
    ):
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

    async def main(path: Path) -> None:
        async with over_sqlite(path, behavior=touchy(above_tokens=60, keep_tokens=30)) as core:
            await say(core, 0, 7)
            await core.supervisor.drain(KEY)
            await broken_amid(core, append(long(7), key="k"))
            await core.ask(KEY, append(long(7), key="k"))
            await core.supervisor.drain(KEY)
            assert covered(await core.ask(KEY, Load(10_000))) == [*range(8)]
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
            await core.directory.drain()
    async with kernel(journal.restart(), clock=clock, behavior=touchy()) as core:
        assert await shown(core) == ["one", "two"]
        assert (await core.ask(KEY, append(user("two"), key="k"))).duplicate


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


async def test_a_cold_key_that_cannot_be_looked_up() -> None:
    """G4, G11: its caller is told, nobody who waits behind it is, and once the log answers again
    the key has its one effect, and so has a new one.
    """
    journal = Unreadable(hot_keys=1)
    clock = VirtualClock()
    outcomes: dict[str, Any] = {}
    with reaching("lookup_failed", "duplicate_key_in_journal"):
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
            for duplicate in (False, True):
                new: Receipt = await core.ask(KEY, append(user("new"), key="new"))
                assert (new.seqs, new.duplicate) == ((5,), duplicate)
            assert await shown(core) == ["0", "1", "2", "3", "new"]


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
