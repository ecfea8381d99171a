"""The session as pure functions: replay equals live, marks add up, budgets hold. No loop is needed
to drive it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from remora.actors.policies.buffer import BufferPolicy
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.messages import (
    Append,
    Clear,
    Flush,
    Load,
    Remove,
    Replace,
    Rewind,
    Snapshot,
    SummaryReady,
    Truncate,
)
from remora.actors.session.state import SessionState
from remora.config import Config
from remora.errors import InvalidInput, KeyConflict
from remora.ids import SessionKey
from remora.messages import Receipt, split_tool_calls
from remora.recall.gather import Tiers
from remora.recall.planner import Planner
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.jobs import Job
from remora.storage.lookups import IdLookup, OriginalAppend, PastLookup
from remora.storage.memory import MemoryJournal
from remora.storage.records import (
    Appended,
    BufferMoved,
    FlushSpec,
    SavedSession,
    SummarizeSpec,
    Watermarks,
)
from remora.storage.sqlite.journal import SqliteJournal
from remora.tokens import count_message
from tests.harness import COUNTER, append, commit_each

KEY = SessionKey("alice", "chat")
POLICY = BufferPolicy(above_tokens=40, keep_tokens=20, overdraft_tokens=200)


def behavior() -> SessionBehavior:
    return SessionBehavior(lambda _: POLICY, instance="0", flushes=True)


def call(ids: list[str]) -> dict[str, Any]:
    calls = [
        {"id": id_, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for id_ in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


ids = st.sampled_from("ab")
messages = st.one_of(
    st.builds(
        lambda n, text: {"role": "user", "content": text * n},
        st.integers(0, 20),
        st.sampled_from(["word ", "漢字", "x"]),
    ),
    st.builds(
        lambda n: {
            "role": "assistant",
            "content": "reply " * n,
            "metadata": {"n": n},
            "id": f"own-{n}",
        },
        st.integers(0, 20),
    ),
    st.lists(ids, min_size=1, max_size=2).map(call),
    st.builds(lambda i: {"role": "tool", "tool_call_id": i, "content": "result"}, ids),
)
steps = st.one_of(
    st.builds(
        lambda batch, key: append(*batch, key=key),
        st.lists(messages, min_size=1, max_size=4),
        st.none() | st.sampled_from("kl"),
    ),
    st.just(Clear()),
    st.just(Flush()),
    st.integers(0, 5).map(Truncate),
    st.lists(st.integers(0, 5), max_size=2).map(lambda places: Remove(tuple(places))),
    st.integers(0, 20).map(Rewind),
    st.lists(messages, max_size=2).map(lambda batch: Replace(append(*batch).entries, None, 10)),
    st.just("summarize"),
    st.just("late"),
)
programs = st.lists(steps, max_size=30)


class Model:
    """Drives the actor as a cell would, and keeps what it was told."""

    def __init__(self) -> None:
        self.actor = behavior()
        self.state: SessionState = self.actor.restore(
            KEY, SavedSession(1, False, Watermarks(), 1, (), None, frozenset(), True)
        )
        self.records: list[Any] = []
        self.jobs: dict[str, Job] = {}
        self.finished: list[Job] = []
        self.flushed: list[int] = []
        self.keys: dict[bytes, tuple[Receipt, tuple[Any, ...]]] = {}
        self.cleared_unflushed: set[int] = set()

    def look_up(self, query: Any) -> Any:
        if isinstance(query, PastLookup):
            journal = MemoryJournal()
            for record in self.records:
                journal.apply(record)
            return anyio.run(journal.fetch, KEY, query)
        if isinstance(query, IdLookup):
            entries = [
                entry
                for record in self.records
                if isinstance(record, Appended)
                for entry in record.entries
            ]
            gone = {
                seq
                for record in self.records
                if isinstance(record, BufferMoved)
                for seq in record.removed
            }
            kept = [entry for entry in entries if entry.seq > query.after and entry.seq not in gone]
            return {entry.id: entry.seq for entry in kept if entry.id in query.ids}
        found = [
            record
            for record in self.records
            if isinstance(record, Appended) and record.key == query.digest
        ]
        return (
            OriginalAppend(
                *zip(*((one.seq, one.id, one.chat) for one in found[0].entries), strict=True)
            )
            if found
            else None
        )

    def ask(self, message: Any) -> Any:
        outcome = self.actor.handle(self.state, message)
        while isinstance(outcome, NeedsLookup):
            outcome.store(self.look_up(outcome.query))
            outcome = self.actor.handle(self.state, message)
        assert isinstance(outcome, Decision)
        for record in (*outcome.volatile, *outcome.records):
            self.actor.apply(self.state, record)
        self.records.extend(outcome.records)
        for job in outcome.jobs:
            assert job.id not in self.jobs
            self.jobs[job.id] = job
            if isinstance(job.payload, FlushSpec):
                self.flushed.extend(range(job.payload.first, job.payload.through + 1))
        for id_ in outcome.cancel:
            self.finished.append(self.jobs.pop(id_))
        return outcome.reply

    def step(self, step: Any) -> None:
        if isinstance(step, Append):
            try:
                receipt = self.ask(step)
            except KeyConflict:
                assert step.key in self.keys
                return
            if step.key is not None and (step.key in self.keys or not receipt.duplicate):
                before, batch = self.keys.setdefault(step.key, (receipt, step.entries))
                assert receipt.duplicate == (before is not receipt)
                if batch == step.entries:
                    assert (
                        set(receipt.seqs) <= set(before.seqs)
                        if self.state.watermarks.cleared_through
                        else receipt.seqs == before.seqs
                    )
        elif step == "summarize":
            for job in [
                job for job in self.jobs.values() if isinstance(job.payload, SummarizeSpec)
            ]:
                del self.jobs[job.id]
                self.finished.append(job)
                assert (
                    self.ask(SummaryReady(job.payload, job.id, "S: ", "summary", 3, False, "m"))
                    is True
                )
        elif step == "late":
            for job in self.finished:
                if isinstance(job.payload, SummarizeSpec):
                    assert (
                        self.ask(SummaryReady(job.payload, job.id, "S: ", "late", 3, False, "m"))
                        is False
                    )
        else:
            handed = self.state.watermarks.indexing_through
            if isinstance(step, (Clear, Replace)):
                self.cleared_unflushed.update(range(handed + 1, self.state.next_seq))
            try:
                self.ask(step)
            except InvalidInput:
                assert isinstance(step, (Remove, Rewind)), "places and numbers that are not there"


def facts(state: SessionState) -> tuple[Any, ...]:
    return (
        state.sid,
        state.opened,
        state.watermarks,
        state.next_seq,
        state.entries,
        state.summary,
        state.keys,
        state.pending,
        state.pending_tokens,
        state.live_tokens,
        state.tools,
        state.size,
        state.ids,
        state.summaries,
    )


@given(programs)
def test_marks_and_jobs_add_up(program: list[Any]) -> None:
    """G5, G6, G7, G8: each message is in one flush job, or was cleared before it could be; stale
    summaries never count.
    """
    model = Model()
    for step in program:
        model.step(step)
        state = model.state
        assert len(model.flushed) == len(set(model.flushed))
        assert set(model.flushed) | model.cleared_unflushed >= set(
            range(1, state.watermarks.indexing_through + 1)
        )
        assert not set(model.flushed) & model.cleared_unflushed
        assert state.live_tokens + state.pending_tokens == sum(
            entry.tokens for entry in state.entries
        )
        gone = {
            seq
            for record in model.records
            if isinstance(record, BufferMoved)
            for seq in record.removed
        }
        left = [
            seq
            for seq in range(state.watermarks.archived_through + 1, state.next_seq)
            if seq not in gone
        ]
        assert [entry.seq for entry in state.entries] == left
        assert state.summary is None or state.summary.text == "summary"


@given(programs)
def test_replay_equals_live(program: list[Any]) -> None:
    """G12, S1.02: what both journals, the one in memory and the real one, restore is the state that
    the turns left.
    """
    model = Model()
    for step in program:
        model.step(step)

    async def restored(directory: str) -> list[tuple[Any, ...]]:
        found = []
        sqlite = await SqliteJournal.open(Path(directory) / "journal.db", durability="none")
        try:
            for journal in (sqlite, MemoryJournal()):
                await commit_each(journal, model.records)
                (image,) = await journal.hydrate([KEY])
                assert isinstance(image, SavedSession)
                image = SavedSession(
                    1, *(getattr(image, name) for name in image.__struct_fields__[1:])
                )
                state = behavior().restore(KEY, image)
                open_jobs = {job.id for job in image.jobs}
                assert open_jobs == set(model.jobs), (
                    "the journal's jobs are those that the turns started and nothing ended"
                )
                found.append(facts(state))
            return found
        finally:
            await sqlite.aclose()

    with TemporaryDirectory() as directory:
        for state in anyio.run(restored, directory):
            assert state == facts(model.state)


@given(programs, st.integers(0, 120))
def test_budget_holds(program: list[Any], budget: int) -> None:
    """G8, G9, S0.25: what is shown fits, its count is exact, no pair is split, and what is shown is
    the newest.
    """
    model = Model()
    for step in program:
        model.step(step)
    snapshot = model.ask(Load(budget))
    assert isinstance(snapshot, Snapshot)
    planner = Planner(Tiers(), COUNTER, Config())
    context = anyio.run(planner.assemble, KEY, snapshot, None, budget)
    shown = context.messages[1:] if context.summary else context.messages
    counted = sum(count_message(COUNTER, message) for message in shown)
    assert context.tokens == counted + (3 if context.summary else 0) <= budget
    assert split_tool_calls(context.messages) == 0
    assert model.ask(Load(budget)).prefix_changed is False
    everything = model.ask(Load(10**9))
    assert [e.seq for e in snapshot.entries] == [e.seq for e in everything.entries][
        len(everything.entries) - len(snapshot.entries) :
    ]
