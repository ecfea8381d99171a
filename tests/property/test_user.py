"""The user's own actor as pure functions: what the journals restore is what the turns left."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from remora.actors.user.messages import (
    CleanUp,
    Grant,
    Learn,
    PruneNow,
    ReadSynopsis,
    Remember,
    SynopsisReady,
    Touch,
)
from remora.actors.user.state import UserState
from remora.errors import NotGranted
from remora.runtime.jobs import JobDone
from remora.storage.memory import MemoryJournal
from remora.storage.records import MemoryItem, SavedUser, SynopsisSpec
from remora.storage.sqlite.journal import SqliteJournal
from tests.harness import commit_each
from tests.users import KEY, NOW, UserModel, item

MAX_BYTES = 2_500  # about eight items

ids = st.integers(0, 14).map(lambda n: f"i{n:02}")
items = st.builds(
    lambda id_, axis, scope: item(id_, axis=axis, scope=scope),
    ids,
    st.integers(0, 3),
    st.sampled_from(["", "s"]),
)
memories = st.integers(0, 9).map(
    lambda n: MemoryItem(f"m{n}", "", "", f"content {n}", "fact", 0.5, 1, 2)
)
names = st.sampled_from(["planner", "critic", "writer"])
rows = st.integers(0, 400)
steps = st.one_of(
    st.builds(lambda some: Learn(tuple(some)), st.lists(items, min_size=1, max_size=6)),
    st.builds(CleanUp, st.integers(0, MAX_BYTES)),
    st.builds(
        lambda first, n: Touch(tuple(f"r{row}" for row in range(first, first + n)), first * 1_000),
        rows,
        st.integers(1, 300),
    ),
    st.builds(lambda some: Remember(tuple(some)), st.lists(memories, max_size=3)),
    st.builds(PruneNow, st.integers(0, 9), st.just("fifo")),
    st.builds(Grant, names, names, st.sampled_from(["read", "write", "own", None])),
    st.sampled_from(["read", "refresh", "written", "degraded", "late", "jobs done"]),
    st.integers(1, 8_000),
)
programs = st.lists(steps, max_size=40)


class Clocked(UserModel):
    """Time goes by where the program says so."""

    def __init__(self) -> None:
        super().__init__(max_bytes=MAX_BYTES, embedder="hash/4")
        self.now = NOW
        self.ended: list[str] = []

    def step(self, step: Any) -> None:
        match step:
            case int():
                self.now += step
            case "read" | "refresh":
                self.ask(ReadSynopsis(self.now, refresh=step == "refresh"))
            case "written" | "degraded":
                for job in [
                    job for job in self.jobs.values() if isinstance(job.payload, SynopsisSpec)
                ]:
                    result = SynopsisReady(
                        job.id, "Ada.", "Bees.", self.now, step == "degraded", "m", (1, 1)
                    )
                    assert self.ask(result) is True
                    self.ended.append(job.id)
            case "late":
                for id_ in self.ended:
                    assert (
                        self.ask(SynopsisReady(id_, "Eve.", "Lies.", self.now, False, "m", (1, 1)))
                        is False
                    )
            case "jobs done":  # the other lanes write the end of their jobs themselves
                for id_, job in list(self.jobs.items()):
                    if not isinstance(job.payload, SynopsisSpec):
                        del self.jobs[id_]
                        self.records.append(JobDone(id_))
            case Grant():
                try:
                    self.ask(step)
                except NotGranted:
                    owners = [name for name, right in self.state.grants.items() if right == "own"]
                    assert step.by not in owners or owners == [step.to]
            case Remember(items=items):
                allowed = {
                    name for name, right in self.state.grants.items() if right in {"write", "own"}
                }
                try:
                    self.ask(step)
                except NotGranted:
                    assert any(item.agent not in allowed for item in items)
                else:
                    assert not self.state.grants or all(item.agent in allowed for item in items)
            case _:
                self.ask(step)


def facts(state: UserState) -> tuple[Any, ...]:
    assert state.working is not None
    return (
        state.sid,
        state.opened,
        state.learned_with,
        list(state.working.items),
        state.stale,
        state.accesses,
        state.pending,
        state.parts,
        state.terms,
        state.grants,
        state.number,
        state.job,
    )


@given(programs)
def test_bounds_and_single_flight(program: list[Any]) -> None:
    """S2.13, S2.24, S2.25, S4.33, G10: never over twice the limit, one synopsis job at most, an
    owner for every scope.
    """
    model = Clocked()
    for step in program:
        before = model.held
        model.step(step)
        state = model.state
        assert state.working is not None
        assert state.working.content_bytes <= 2 * MAX_BYTES
        stayed = [id_ for id_ in before if id_ in set(model.held)]
        assert isinstance(step, Learn) or stayed == before[len(before) - len(stayed) :], (
            "what leaves is the oldest"
        )
        if isinstance(step, CleanUp):
            assert state.working.size_bytes <= step.max_bytes
            assert not state.pending
        writing = [job.id for job in model.jobs.values() if isinstance(job.payload, SynopsisSpec)]
        assert writing == ([state.job] if state.job else [])
        assert len(state.pending) <= 256
        assert not state.grants or "own" in state.grants.values()
        for name, part in state.parts.items():
            assert (
                0
                <= part.expires_at - state.terms[name]
                <= 0.1 * {"identity": 604_800.0, "context": 3_600.0}[name]
            )


@example(
    [Learn((item("i00"),)), CleanUp(0), Learn((item("i01"), item("i00")))], 1
)  # gone and back within one commit
@given(programs, st.integers(1, 8))
def test_replay_equals_live(program: list[Any], commits: int) -> None:
    """S1.02, G12, S2.11, S2.22, S2.21: once it rested, what both journals restore is the state that
    the turns left.

    The items' age among it, however turns share commits.
    """
    model = Clocked()
    for step in program:
        model.step(step)
    model.rest()

    async def restored(directory: str) -> list[tuple[Any, ...]]:
        found = []
        sqlite = await SqliteJournal.open(Path(directory) / "journal.db", durability="none")
        try:
            for journal in (sqlite, MemoryJournal()):
                await commit_each(journal, model.records, commits=commits)
                (image,) = await journal.hydrate([KEY])
                assert isinstance(image, SavedUser)
                assert {job.id for job in image.jobs} == set(model.jobs)
                image = msgspec.structs.replace(image, sid=1)
                found.append(facts(model.actor.restore(KEY, image)))
            return found
        finally:
            await sqlite.aclose()

    with TemporaryDirectory() as directory:
        for state in anyio.run(restored, directory):
            assert state == facts(model.state)
