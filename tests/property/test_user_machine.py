"""A user's own actor as a state machine: turns, failed commits, crashes, results in any order, and
rests.

Beside it stands a model of what the user has, and after each step both must agree. Two things are
in memory alone until they are written, and a crash may take them: figures of access, and how much
longer a synopsis holds for having been read.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from remora import Synopsis
from remora.actors.user.behavior import UserBehavior
from remora.actors.user.messages import (
    CleanUp,
    ExpireSynopsis,
    Grant,
    InspectUser,
    Learn,
    PruneNow,
    ReadSynopsis,
    Remember,
    RememberReceipt,
    SearchWorking,
    SynopsisReady,
    Touch,
)
from remora.actors.user.state import UserState
from remora.actors.user.working import WorkingMemory
from remora.errors import NotGranted
from remora.results import UserView
from remora.runtime.actor import Decision
from remora.storage.records import MemoryItem, StateChanged, SynopsisSpec
from tests.example_runs import LONG, play_machine
from tests.property.machines import ActorMachine
from tests.users import DIMENSION, KEY, NOW, axis, item

MAX_BYTES = 2_500  # about eight items
TERMS = {"identity": 1_000.0, "context": 100.0}
COST = WorkingMemory(DIMENSION).cost(item("i00"))

IDS = [f"i{n:02}" for n in range(21)]
ids = st.sampled_from(IDS)
names = st.sampled_from(["planner", "critic", "writer"])
some = st.integers(0, 5)


class Has(msgspec.Struct):
    """The model: what the user has.

    Attributes:
        held: ids in working memory, the oldest first.
        memories: what was recorded, by id: the first to come.
        grants: who may do what.
        figures: how often each row was retrieved, as far as that was written.
        parts: text and term of each half of the synopsis, as written.
        degraded: an extract stands in for the model's.
        job: the synopsis job under way.
    """

    held: tuple[str, ...] = ()
    memories: dict[str, str] = {}
    grants: dict[str, str] = {}
    figures: dict[str, int] = {}
    parts: dict[str, tuple[str, float]] = {}
    degraded: bool = False
    job: str = ""


def facts(state: UserState) -> tuple[Any, ...]:
    assert state.working is not None
    return (
        state.sid,
        state.opened,
        state.learned_with,
        [one.id for one in state.working.items],
        state.stale,
        state.accesses,
        state.pending,
        state.parts,
        state.terms,
        state.grants,
        state.number,
        state.job,
    )


def written(state: UserState) -> tuple[Any, ...]:
    """The same, without what may be in memory alone."""
    parts = {
        name: msgspec.structs.replace(part, expires_at=state.terms[name])
        for name, part in state.parts.items()
    }
    return (*facts(state)[:5], parts, state.terms, *facts(state)[9:])


def figures_written(state: UserState) -> dict[str, tuple[int, int]]:
    return {row: figure for row, figure in state.accesses.items() if row not in state.pending}


class UserMachine(ActorMachine):
    """The rules of a user's actor."""

    key = KEY
    actor: UserBehavior
    state: UserState
    model: Has

    @initialize(refresh=st.booleans())
    def begin(self, *, refresh: bool) -> None:
        self.refresh = refresh
        self.counts: dict[str, int] = {}
        """How often each row was retrieved, written or not."""
        self.now = NOW
        self.answers = 0
        actor = UserBehavior(
            DIMENSION,
            max_bytes=MAX_BYTES,
            identity_ttl=TERMS["identity"],
            context_ttl=TERMS["context"],
            refresh_on_access=refresh,
        )
        self.start(actor, Has())

    def facts(self, state: UserState) -> tuple[Any, ...]:
        return facts(state)

    def restore(self) -> None:
        super().restore()
        self.counts = dict(self.model.figures)

    def ask(self, message: Any, **changes: Any) -> Any:
        """One turn; what it changes in the model goes with its write."""
        turn = self.decide(message)
        put = [
            one for record in turn.records if isinstance(record, StateChanged) for one in record.put
        ]
        figures = {one.name: self.counts[one.name] for one in put if one.kind == "access"}
        terms = {one.name: self.state.terms[one.name] for one in put if one.kind == "synopsis"}
        if figures:
            changes["figures"] = {**self.model.figures, **figures}
        if terms and "parts" not in changes:
            changes["parts"] = {
                name: (text, terms.get(name, term))
                for name, (text, term) in self.model.parts.items()
            }
        self.model = msgspec.structs.replace(self.model, **changes)
        self.hand_over(turn)
        return turn.reply

    def leave(self, farewell: CleanUp) -> None:
        self.clean_up(farewell.max_bytes)

    # -- working memory ----------------------------------------------------------------------------

    @rule(
        wanted=st.lists(ids, min_size=1, max_size=7) | st.permutations(IDS),
        scope=st.sampled_from(["", "s"]),
    )
    def learn(self, wanted: list[str], scope: str) -> None:
        """What is held keeps its age; far beyond the limit the oldest leave at once."""
        fresh = tuple(dict.fromkeys(id_ for id_ in wanted if id_ not in self.model.held))
        held = self.model.held + fresh
        if fresh and len(held) * COST > 2 * MAX_BYTES:
            held = held[-(MAX_BYTES // COST) :]
        items = tuple(item(id_, axis=int(id_[1:]) % DIMENSION, scope=scope) for id_ in wanted)
        assert self.ask(Learn(items), held=held) == len(fresh)

    @rule(limit=st.sampled_from([0, MAX_BYTES // 2, MAX_BYTES]) | st.integers(0, MAX_BYTES))
    def clean_up(self, limit: int) -> None:
        """The oldest leave, and no more of them than must; figures of access are written."""
        assert self.state.working is not None
        held = self.model.held[-(limit // COST) :] if limit // COST else ()
        if self.state.working.size_bytes <= limit:
            held = self.model.held
        leaving = len(self.model.held) - len(held)
        assert self.ask(CleanUp(limit), held=held) == leaving
        assert self.state.working.size_bytes <= limit
        assert not self.state.pending
        assert self.model.figures == self.counts

    @rule(
        number=st.integers(0, DIMENSION - 1),
        scope=st.sampled_from([None, "", "s"]),
        k=st.integers(1, 5),
    )
    def search(self, number: int, scope: str | None, k: int) -> None:
        found = self.ask(SearchWorking(axis(number), k, scope)).items
        scores = [one.score for one in found]
        assert scores == sorted(scores, reverse=True)
        assert len(found) <= k
        for one in found:
            assert one.item.id in self.model.held
            assert scope is None or one.item.scope in {"", scope}
            assert (one.score > 0.5) == (int(one.item.id[1:]) % DIMENSION == number)

    # -- long-term memory --------------------------------------------------------------------------

    @rule(first=st.integers(0, 300), count=st.sampled_from([1, 3, 200]))
    def touch(self, first: int, count: int) -> None:
        rows = tuple(f"r{row}" for row in range(first, first + count))
        for row in rows:
            self.counts[row] = self.counts.get(row, 0) + 1
        self.ask(Touch(rows, int(self.now * 1_000_000)))

    @rule(
        numbers=st.lists(st.integers(0, 9), max_size=3),
        agent=st.sampled_from(["", "planner", "critic"]),
    )
    def remember(self, numbers: list[int], agent: str) -> None:
        """The same words are one memory; in a shared scope, who may not write records nothing."""
        items = tuple(
            MemoryItem(f"m{n}", "", agent, f"content {n}", "fact", 0.5, 1, 2) for n in numbers
        )
        allowed = not self.model.grants or self.model.grants.get(agent) in {"write", "own"}
        memories = {**{one.id: one.agent for one in items}, **self.model.memories}
        try:
            reply: RememberReceipt = self.ask(Remember(items), memories=memories)
        except NotGranted:
            assert items
            assert not allowed
            return
        assert allowed or not items
        assert reply.ids == tuple(one.id for one in items)
        assert bool(reply.job) == bool(items)

    @rule(keep=st.integers(0, 9))
    def prune(self, keep: int) -> None:
        job = self.ask(PruneNow(keep, "fifo"))
        assert job not in self.ever

    @rule(by=names, to=names, right=st.sampled_from(["read", "write", "own", None]))
    def grant(self, by: str, to: str, right: Any) -> None:
        """Only an owner grants, the first to grant owns, and the last owner stays."""
        grants = self.model.grants or ({by: "own"} if right is not None else {})
        after = {name: held for name, held in {**grants, to: right}.items() if held is not None}
        allowed = grants.get(by) == "own" and "own" in after.values()
        try:
            self.ask(Grant(by, to, right), grants=after)
        except NotGranted:
            assert not allowed
        else:
            assert allowed

    # -- synopsis ----------------------------------------------------------------------------------

    @rule(after_s=st.sampled_from([0.0, 1.0, 9.0, 60.0, 200.0, 2_000.0]), refresh=st.booleans())
    def read_synopsis(self, after_s: float, *, refresh: bool) -> None:
        """What holds is shown; what does not is written anew, by one job for all who ask."""
        self.now += after_s
        valid = {name for name, part in self.state.parts.items() if self.now < part.expires_at}
        texts = {name: self.model.parts[name][0] for name in valid}
        before, running = self.state.number, self.model.job
        if len(valid) == len(TERMS) and not refresh:
            shown: Synopsis = self.ask(ReadSynopsis(self.now))
            assert (shown.job, self.state.number) == ("", before)
            assert shown.state == (
                "empty" if not any(texts.values()) else "degraded" if self.model.degraded else "ok"
            )
        else:
            started = running or f"synopsis-{self.state.sid}-{before + 1}"
            shown = self.ask(ReadSynopsis(self.now, refresh=refresh), job=started)
            assert (shown.state, shown.job) == ("pending", started)
            assert self.state.number == before + (not running)
        assert (shown.identity, shown.context) == (
            texts.get("identity", ""),
            texts.get("context", ""),
        )

    @rule(after_s=st.sampled_from([3.0, 9.0, 60.0]))
    def read_on(self, after_s: float) -> None:
        """It is written where it must be, and read again and again."""
        for _ in range(4):
            self.read_synopsis(after_s, refresh=False)
            self.commit(len(self.queue))
            if self.model.job in self.jobs:
                self.write_synopsis("whole", late=False)

    @precondition(lambda self: self.of(SynopsisSpec))
    @rule(kind=st.sampled_from(["whole", "degraded", "empty"]), late=st.booleans())
    def write_synopsis(self, kind: str, *, late: bool) -> None:
        job = self.of(SynopsisSpec)[0]
        self.answers += 1
        texts = ("", "") if kind == "empty" else (f"Ada {self.answers}.", f"Bees {self.answers}.")
        self.results.append(
            SynopsisReady(
                job.id, *texts, self.now, kind == "degraded", "m", (2, 2) if texts[0] else (0, 0)
            )
        )
        if not late:
            self.take(self.results[-1])

    @precondition(lambda self: self.results)
    @rule(which=some, again=st.booleans())
    def a_synopsis_comes_in(self, which: int, *, again: bool) -> None:
        """Late, once more, or after it was outdated."""
        place = which % len(self.results)
        self.take(self.results[place] if again else self.results.pop(place))

    def take(self, result: SynopsisReady) -> None:
        wanted = bool(self.model.job) and result.job == self.model.job
        changes: dict[str, Any] = {}
        if wanted:
            texts = {"identity": result.identity, "context": result.context}
            terms = {
                name: term if texts[name] and not result.degraded else min(TERMS.values())
                for name, term in TERMS.items()
            }
            parts = {name: (text, result.now + terms[name]) for name, text in texts.items()}
            changes = {"parts": parts, "degraded": result.degraded, "job": ""}
        assert self.ask(result, **changes) == wanted, (
            "it is taken if it is waited for, and dropped otherwise"
        )

    @rule()
    def outdate(self) -> None:
        """Something was taken out of the user's memory: nothing is shown that may tell of it."""
        self.ask(ExpireSynopsis(), parts={}, job="")
        assert not self.state.parts

    # -- other jobs --------------------------------------------------------------------------------

    @precondition(
        lambda self: any(not isinstance(job.payload, SynopsisSpec) for job in self.jobs.values())
    )
    @rule(which=some)
    def a_job_is_done(self, which: int) -> None:
        jobs = [job for job in self.jobs.values() if not isinstance(job.payload, SynopsisSpec)]
        job = jobs[which % len(jobs)]
        self.end_job(job)

    def shown(self) -> UserView:
        turn = self.actor.handle(self.state, InspectUser())
        assert isinstance(turn, Decision)
        sid = 0 if not self.state.opened else turn.reply.sid
        view: UserView = msgspec.structs.replace(
            turn.reply, sid=sid, evicted=0, synopsis_hits=0, synopsis_misses=0
        )
        return msgspec.structs.replace(view, working_bytes=0)  # free rows are not restored

    # -- what holds --------------------------------------------------------------------------------

    @invariant()
    def replay_equals_live(self) -> None:
        """G12, S1.02: what the log would give back is what the turns left, but for what they had
        put off.
        """
        if self.state.opened:
            image = self.saved(self.shadow)
            restored = self.actor.restore(KEY, image)
            assert written(restored) == written(self.state)
            assert restored.accesses.items() >= figures_written(self.state).items()

    @invariant()
    def the_user_has_what_they_were_told(self) -> None:
        state = self.state
        assert state.working is not None
        assert [one.id for one in state.working.items] == list(self.model.held)
        assert state.working.content_bytes == COST * len(self.model.held) <= 2 * MAX_BYTES
        assert state.grants == self.model.grants
        assert not state.grants or "own" in state.grants.values()
        assert {row: count for row, (count, _) in state.accesses.items()} == self.counts
        assert {
            name: (part.text, state.terms[name]) for name, part in state.parts.items()
        } == self.model.parts

    @invariant()
    def what_is_put_off_is_bounded(self) -> None:
        """G10, S2.21, S2.25: a crash takes the figures of so many rows at most, and a tenth of a
        term.
        """
        assert len(self.state.pending) <= 256
        assert {
            row for row, count in self.counts.items() if self.model.figures.get(row) != count
        } <= set(self.state.pending)
        for name, part in self.state.parts.items():
            assert 0 <= part.expires_at - self.state.terms[name] <= 0.1 * TERMS[name]
            assert self.refresh or part.expires_at == self.state.terms[name]

    @invariant()
    def one_synopsis_is_written_at_a_time(self) -> None:
        """S2.24."""
        assert self.state.job == self.model.job
        jobs = self.saved(self.journal).jobs
        assert sum(isinstance(job.payload, SynopsisSpec) for job in jobs) <= 1
        memories = self.runner.run(self.shadow.memories(KEY.user))
        assert {one.id: one.agent for one in memories} == self.model.memories


@pytest.mark.limit(1_000_000 if LONG else 900)  # to make a failure small takes minutes
def test_no_sequence_breaks_a_user() -> None:
    """G4, G10, G12, S1.02, S2.11, S2.13, S2.21, S2.22, S2.24, S2.25, S4.33: no sequence of calls,
    results, crashes and rests breaks an invariant, and SQLite restores what the journal in memory
    does.
    """
    play_machine(UserMachine)


def test_gone_and_back_within_one_commit() -> None:
    """S2.11: an item's age is that of its return."""
    user = UserMachine()
    user.begin(refresh=False)
    user.learn(["i00"], "")
    user.clean_up(0)
    user.learn(["i01", "i00"], "")
    user.commit(len(user.queue))
    user.compare_journals(commits=1)
    user.teardown()
