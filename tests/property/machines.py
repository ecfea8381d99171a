"""An actor as a state machine without a loop: what a cell, a log and a supervisor do around it is
done here by hand, one step a rule.

Beside it stands a model of what it must hold, which goes with each write: what is lost with the
write is lost for the model as well.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from remora.results import Job
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.jobs import JobDone
from remora.storage.memory import MemoryJournal
from remora.storage.sqlite.journal import SqliteJournal
from tests.harness import CopiedJournal, commit_each

__all__ = ["ActorMachine", "Write"]


class Write(msgspec.Struct):
    """What is on its way to the log.

    Attributes:
        records: to be stored.
        turn: whose they are; None for a job's end, which the supervisor writes.
        ended: jobs that end with it.
        model: the model after it.
    """

    records: Sequence[Any]
    turn: Decision | None
    ended: tuple[str, ...]
    model: Any


class ActorMachine(RuleBasedStateMachine):
    """Rules are what may happen next; invariants are what a user relies on."""

    key: Any
    actor: Any
    state: Any

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()

    def start(self, actor: Any, model: Any, *, hot_keys: int = 1_000) -> None:
        self.actor = actor
        self.journal = CopiedJournal(hot_keys=hot_keys)
        self.shadow = CopiedJournal(hot_keys=hot_keys)
        """What the log would hold if all that is on its way were stored."""
        self.stored: list[Any] = []
        self.queue: deque[Write] = deque()
        self.model = self.durable = model
        self.rows: set[str] = set()
        """Jobs that the log should hold."""
        self.jobs: dict[str, Job] = {}
        """Jobs that the supervisor has."""
        self.passing: dict[str, Job] = {}
        """Those that are in no record: they end with the process."""
        self.ever: set[str] = set()
        self.results: list[Any] = []
        self.restore()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.commit(len(self.queue))
                self.compare_journals(len(self.stored) % 8 + 1)
        finally:
            self.runner.close()

    def compare_journals(self, commits: int) -> None:
        """A file restores what a journal in memory does, however turns share commits."""
        with TemporaryDirectory() as directory:
            stored = self.runner.run(self._restored_by_sqlite(Path(directory), commits))
        image = self.saved(self.journal.copied())  # whose next actor is its first
        in_memory = self.actor.restore(self.key, image)
        assert self.facts(stored) == self.facts(in_memory)
        assert getattr(stored, "keys", None) == getattr(in_memory, "keys", None)

    async def _restored_by_sqlite(self, directory: Path, commits: int) -> Any:
        journal = await SqliteJournal.open(directory / "journal.db", durability="none")
        try:
            await commit_each(journal, self.stored, commits=commits)
            image: Any = (await journal.hydrate([self.key]))[0]
        finally:
            await journal.aclose()
        assert {job.id for job in image.jobs} == self.rows
        return self.actor.restore(self.key, image)

    def facts(self, state: Any) -> tuple[Any, ...]:
        """All that a state says of the actor."""
        raise NotImplementedError

    def shown(self) -> Any:
        """What callers are shown."""
        raise NotImplementedError

    def saved(self, journal: MemoryJournal) -> Any:
        """What the actor is restored from."""
        return self.runner.run(journal.hydrate([self.key]))[0]

    # -- what cell, log and supervisor do ----------------------------------------------------------

    def restore(self) -> None:
        """The state is what the log holds, and the supervisor hears of the jobs there."""
        image = self.saved(self.journal)
        self.state = self.actor.restore(self.key, image)
        self.model = self.durable
        self.queue.clear()
        self.shadow.take_rows(self.journal)
        for job in image.jobs:
            self.jobs.setdefault(job.id, job)

    def decide(self, message: Any) -> Decision:
        """One turn, applied to the state."""
        outcome = self.actor.handle(self.state, message)
        while isinstance(outcome, NeedsLookup):  # only what is stored can be looked up
            self.commit(len(self.queue))
            answer = self.runner.run(self.journal.fetch(self.key, outcome.query))
            outcome.store(answer)
            outcome = self.actor.handle(self.state, message)
        assert isinstance(outcome, Decision)
        for record in (*outcome.volatile, *outcome.records):
            self.actor.apply(self.state, record)
        return outcome

    def hand_over(self, turn: Decision, *ended: str) -> None:
        """A turn's records are on their way to the log."""
        if turn.records:
            done = [record.id for record in turn.records if isinstance(record, JobDone)]
            self._write(Write(turn.records, turn, (*done, *ended), self.model))
        else:
            self.passing.update((job.id, job) for job in turn.jobs)
            assert not turn.cancel

    def end_job(self, job: Job, *records: Any) -> None:
        """The supervisor writes the end of a job, and what it came to."""
        self._write(Write([*records, JobDone(job.id)], None, (job.id,), self.model))
        del self.jobs[job.id]

    def _write(self, write: Write) -> None:
        for record in write.records:
            self.shadow.apply(record)
        self.queue.append(write)

    def store(self) -> Write:
        """The log stores the oldest write, all of it."""
        write = self.queue.popleft()
        for record in write.records:
            self.journal.apply(record)
            self.stored.append(record)
        if write.turn is not None:
            new = {job.id for job in write.turn.jobs}
            assert new.isdisjoint(self.ever), "an id of a job is never used again"
            self.ever |= new
            self.rows |= new
            self.rows.difference_update(write.turn.cancel)
        self.rows.difference_update(write.ended)
        self.durable = write.model
        return write

    def commit(self, count: int) -> None:
        """The log stores so many writes, and says so: jobs begin and end."""
        for _ in range(min(count, len(self.queue))):
            write = self.store()
            if write.turn is not None:
                for id_ in write.turn.cancel:
                    self.jobs.pop(id_, None)
                self.jobs.update((job.id, job) for job in write.turn.jobs)
            for id_ in write.ended:
                self.jobs.pop(id_, None)

    def of(self, *kinds: type) -> list[Job]:
        """The supervisor's jobs of these kinds."""
        return [job for job in self.jobs.values() if isinstance(job.payload, kinds)]

    def leave(self, farewell: Any) -> None:
        """The actor writes before it rests."""
        self.hand_over(self.decide(farewell))

    def compare_with(self, former: Any) -> None:
        """The actor is back from its rest, from which `former` went."""

    # -- the log, and the power --------------------------------------------------------------------

    @precondition(lambda self: self.queue)
    @rule(count=st.integers(1, 4))
    def commits(self, count: int) -> None:
        self.commit(count)

    @precondition(lambda self: self.queue)
    @rule(count=st.integers(0, 3), kept=st.booleans())
    def commit_fails(self, count: int, *, kept: bool) -> None:
        """What is behind it is void, and the state is read again; `kept`: the one that failed was
        stored in truth.
        """
        self.commit(count)
        if kept and self.queue:
            self.store()
        self.restore()

    @rule(count=st.integers(0, 4))
    def power_cut(self, count: int) -> None:
        """So much had come to the disk; jobs are found there, and what they had come to is lost."""
        for _ in range(min(count, len(self.queue))):
            self.store()
        self.jobs.clear()
        self.results.clear()
        self.restore()
        assert set(self.jobs) == self.rows
        assert all(job.resumed for job in self.jobs.values())

    @rule()
    def passivate(self) -> None:
        """It writes what it had put off, rests, and comes back the same."""
        self.commit(len(self.queue))
        while (farewell := self.actor.on_idle(self.state)) is not None:
            self.leave(farewell)
            self.commit(len(self.queue))
        former, before, shown = self.state, self.facts(self.state), self.shown()
        self.restore()
        if self.state.opened:
            assert self.facts(self.state) == before
        assert self.shown() == shown
        self.compare_with(former)
        assert self.actor.on_idle(self.state) is None

    @invariant()
    def jobs_are_those_outstanding(self) -> None:
        """G7: the log holds the jobs that began and did not end, and the supervisor knows each of
        them.
        """
        assert {job.id for job in self.saved(self.journal).jobs} == self.rows
        assert self.rows <= set(self.jobs) | {id_ for write in self.queue for id_ in write.ended}
