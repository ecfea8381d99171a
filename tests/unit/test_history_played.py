"""The checker over programs that are played: histories of a runtime, and of one that is wrong."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora import BufferPolicy, Receipt, Runtime
from remora.errors import OutcomeUnknown
from remora.storage.memory import MemoryStore
from remora.storage.records import Appended
from remora.testing import (
    CommitFault,
    FaultyJournal,
    HashEmbedder,
    UnionSummarizer,
)
from tests.checker.history import History, Violation, table
from tests.checker.judging import check, check_arrival, check_sound
from tests.checker.players import Player
from tests.checker.programs import KINDS, Call, Caller, Kind, Program, draw_program, messages_of
from tests.checker.rest import check_at_rest, check_watermark
from tests.checker.scripted import CONFIG, Script
from tests.checker.shrinking import Case, counterexample, shrink
from tests.checker.strategies import programs
from tests.handover import WatchedJournal, WatchedStore, Witness

pytestmark = pytest.mark.anyio
POLICIES = [
    BufferPolicy(above_tokens=60, keep_tokens=30, overdraft_tokens=400),
    BufferPolicy(above_messages=6, keep_messages=3),
    BufferPolicy(above_messages=6, batch=4, fold="entry", entries=1),
    BufferPolicy.window(5),
]
QUICK = tuple(kind for kind in KINDS if kind != "pause")


async def play(
    program: Program,
    rng: random.Random,
    *,
    faults: Sequence[CommitFault | None] = (),
    policy: BufferPolicy | None = None,
) -> tuple[History, list[Violation]]:
    plan, policy = list(faults), policy or POLICIES[0]
    journal = FaultyJournal(
        lambda: plan.pop(0) if plan else None, latency_s=lambda: rng.choice([0.0, 0.0, 0.001])
    )
    history = History()
    player = Player(program, history, rng, think_s=(0.0, 0.0, 0.001), again_s=(0.001, 0.005))
    models: Any = {
        "summarizer": UnionSummarizer(rng, latency_s=(0.0, 0.001)),
        "embedder": HashEmbedder(),
    }
    async with Runtime.in_memory(
        config=CONFIG, journal=journal, store=MemoryStore(64), policy=policy, **models
    ) as runtime:
        await player.play(runtime)
        assert player.finished
        plan.clear()
        violations = await check_at_rest(runtime, history)
        violations += await check_watermark(
            runtime.internals.journal, await runtime.internals.long_term()
        )
    return history, violations + check(history, policy=policy, sound_models=True)


@pytest.mark.parametrize("seed", range(24))
async def test_random_programs(seed: int) -> None:
    """G1 to G11, G13: whatever callers do while commits fail, one order explains what they saw; in
    the end nothing is owed.
    """
    rng = random.Random(seed)
    program = draw_program(rng, size=30, kinds=QUICK)
    faults: list[CommitFault | None] = [
        rng.choice([None, None, None, "refused", "lost", "kept"]) for _ in range(15)
    ]
    history, violations = await play(
        program, rng, faults=faults, policy=POLICIES[seed % len(POLICIES)]
    )
    assert violations == [], counterexample(Case(program, seed, tuple(faults)), history, violations)


_FAULTS = st.lists(st.sampled_from([None, None, "refused", "lost", "kept"]), max_size=10)


@settings(max_examples=25)
@given(programs(kinds=QUICK, calls=6), _FAULTS, st.integers(0, 2**32), st.sampled_from(POLICIES))
def test_drawn_programs(
    program: Program, faults: list[CommitFault | None], seed: int, policy: BufferPolicy
) -> None:
    """G1 to G11, G13: the same with programs that hypothesis draws, and makes small."""

    async def main() -> tuple[History, list[Violation]]:
        return await play(program, random.Random(seed), faults=faults, policy=policy)

    history, violations = anyio.run(main)
    assert violations == [], counterexample(Case(program, seed, tuple(faults)), history, violations)


async def test_play_goes_on_after_a_restart() -> None:
    """G4, G12: what was under way when a runtime died is tried again on the next, under its key,
    and has one effect.
    """
    calls = tuple(
        Call(n, "append", "alice", "s0", shapes=("user",), key=f"k{n}", retries=5) for n in range(6)
    )
    program, history = Program((Caller(0, calls), Caller(1, calls))), History()
    player = Player(program, history, random.Random(1), think_s=(0.0,), again_s=(0.0,))
    life, commits = anyio.CancelScope(), itertools.count(1)

    def dies() -> None:
        if next(commits) == 4:
            life.cancel()

    journal = FaultyJournal(dies)
    options: Any = {
        "config": CONFIG,
        "journal": journal,
        "store": MemoryStore(64),
        "embedder": HashEmbedder(),
    }
    async with Runtime.in_memory(**options) as runtime:
        with life:
            await player.play(runtime)
    assert life.cancelled_caught
    async with Runtime.in_memory(**options) as runtime:
        await player.play(runtime)
        assert player.finished
        violations = await check_at_rest(runtime, history)
        told = await runtime.session("alice", "s0").history()
    assert violations + check(history) == []
    assert len(told) == 6, "each key has one effect, whoever came first"
    assert history.crashes, table(history)


class Doom(Witness):
    """At one step of many, the process dies: what is durable then is what the next one finds."""

    def __init__(self, history: History, life: anyio.CancelScope, step: int) -> None:
        super().__init__(None)
        self._history = history
        self._life = life
        self._left = step

    def watch(self, journal: WatchedJournal, store: WatchedStore) -> None:
        """These are what is durable."""
        self.capture = lambda: (journal.copied(), store.state())

    def at(self, step: str) -> None:
        self._left -= 1
        if self._left == 0:
            super().at(step)
            self._history.crashed()
            self._life.cancel()


async def play_with_crashes(
    program: Program, rng: random.Random, crashes: Sequence[int], policy: BufferPolicy
) -> tuple[History, list[Violation]]:
    history, kept = History(), (None, None)
    player = Player(program, history, rng, think_s=(0.0, 0.0, 0.001), again_s=(0.0, 0.001))
    for steps in (*crashes, 0):
        life = anyio.CancelScope()
        witness = Doom(history, life, steps)
        journal, store = WatchedJournal(witness, kept[0]), WatchedStore(witness, kept[1])
        witness.watch(journal, store)
        violations = await check_watermark(journal, store)
        options: Any = {
            "config": CONFIG,
            "journal": journal,
            "store": store,
            "policy": policy,
            "embedder": HashEmbedder(),
        }
        summarizer = UnionSummarizer(rng, latency_s=(0.0, 0.001))
        async with Runtime.in_memory(summarizer=summarizer, **options) as runtime:
            with life:
                await player.play(runtime)
            if not witness.images:
                assert player.finished
                violations += await check_at_rest(runtime, history)
                violations += check(history, policy=policy, sound_models=True)
                assert store.doubled == []
                return history, violations
        kept = witness.images[0].kept
        if violations:
            break
    return history, violations


@pytest.mark.parametrize("seed", range(40))
async def test_random_programs_with_crashes(seed: int) -> None:
    """G3, G4, G7, G8: the process dies between any two steps, again and again; each life goes on
    with what was durable.
    """
    rng = random.Random(seed)
    program = draw_program(rng, size=30, kinds=QUICK)
    crashes = tuple(
        rng.choice([1, 3, 8, 20, 60]) + rng.randrange(5) for _ in range(rng.randrange(1, 5))
    )
    policy = POLICIES[seed % len(POLICIES)]
    history, violations = await play_with_crashes(program, rng, crashes, policy)
    assert violations == [], counterexample(Case(program, seed, (), crashes), history, violations)


def test_draws_repeat() -> None:
    """S5.05: one seed gives one program, and seeds give different ones, which meet in few sessions."""  # noqa: E501
    drawn = [draw_program(random.Random(seed)) for seed in range(50)]
    assert drawn == [draw_program(random.Random(seed)) for seed in range(50)]
    assert len(set(drawn)) == 50
    calls = [call for program in drawn for caller in program.callers for call in caller.calls]
    assert {call.kind for call in calls} >= {*QUICK, "pause"}
    assert sum(call.key in {"k0", "k1"} for call in calls) > 50


def test_results_answer_their_callers_calls() -> None:
    """G8: a result answers the newest call that its caller made in the session and that has none."""  # noqa: E501
    calls = (
        Call(0, "append", "alice", "s", shapes=("call",)),
        Call(1, "append", "alice", "s", shapes=("call2", "result")),
        Call(2, "append", "alice", "t", shapes=("result",)),
        Call(3, "append", "alice", "s", shapes=("result", "result", "result")),
    )
    caller = Caller(7, calls)
    answered = [
        message["tool_call_id"]
        for call in calls
        for message in messages_of(caller, call)
        if message["role"] == "tool"
    ]
    assert answered == [
        "call-m7.1.0-0",
        "none-m7.2.0",
        "call-m7.1.0-1",
        "call-m7.0.0-0",
        "none-m7.3.2",
    ]


# -- what finds a bug says what it is --------------------------------------------------------------


class Stuttering(FaultyJournal):
    """Keeps the first message of every batch of three twice, and the second not at all."""

    def _store(self, records: Sequence[Any]) -> None:
        super()._store([self._stuttered(record) for record in records])

    def _stuttered(self, record: Any) -> Any:
        if not isinstance(record, Appended) or len(record.entries) != 3:
            return record
        first, second, third = record.entries
        return msgspec.structs.replace(record, entries=(first, first.with_seq(second.seq), third))


def lossy(case: Case) -> tuple[History, list[Violation]]:
    async def main() -> tuple[History, list[Violation]]:
        history = History()
        player = Player(
            case.program, history, random.Random(case.seed), think_s=(0.0,), again_s=(0.0,)
        )
        journal = Stuttering(lambda: None)
        options: Any = {"journal": journal, "store": MemoryStore(64), "embedder": HashEmbedder()}
        async with Runtime.in_memory(
            config=CONFIG, policy=BufferPolicy.keep_all(), **options
        ) as runtime:
            await player.play(runtime)
            return history, await check_at_rest(runtime, history) + check(history)

    return anyio.run(main)


def test_shrinks_to_what_matters() -> None:
    """S5.05: a planted bug in a large program comes down to one call, and the report says what it
    was.
    """
    kinds: tuple[Kind, ...] = ("append", "load", "history", "flush", "clear")
    cases = (
        Case(draw_program(random.Random(n), kinds=kinds), n, ("a fault", "another"), (9, 99))
        for n in range(50)
    )
    case = next(case for case in cases if lossy(case)[1])
    small = shrink(case, lambda tried: lossy(tried)[1])
    assert small.minimal
    assert (small.case.faults, small.case.crashes) == ((), ())
    ((call,),) = [caller.calls for caller in small.case.program.callers]
    assert (call.kind, call.shapes, call.words) == ("append", ("user", "user", "user"), 0)
    assert call.key is None
    history, violations = lossy(small.case)
    text = counterexample(small.case, history, violations)
    assert f"seed {case.seed}" in text
    assert f"{call.user}/{call.session}.append(user user user)" in text
    assert "no order explains" in text


def test_shrinking_is_bounded() -> None:
    """S5.05: after so many tries it gives what it has."""
    case = Case(draw_program(random.Random(3)), 3, tuple(range(20)))
    small = shrink(case, lambda tried: 7 in tried.faults, tries=20)
    assert (small.tries, small.minimal) == (20, False)
    assert 7 in small.case.faults
    small = shrink(case, lambda tried: 7 in tried.faults)
    assert (small.case.faults, small.minimal, small.case.program.size) == ((7,), True, 1)


def test_overtaken_append() -> None:
    """G2: of two appends that were under way at once the one that came first stands behind the
    other; a sequential order would explain it, a mailbox does not.
    """
    script = Script()
    one, other = script.begin("append", "user"), script.begin("append", "user")
    script.end(other, Receipt((1,), ("1",)))
    script.end(one, Receipt((2,), ("2",)))
    assert check(script.history) == []
    assert {violation.guarantee for violation in check_arrival(script.history)} == {"G2"}
    fair = Script()
    fair.append(1)
    fair.append(2)
    assert check_arrival(fair.history) == []


def test_soundness() -> None:
    """G5, G11: a load that took as long as a model does; somebody is told of a failed commit, and
    the journal was sound. Whoever set a deadline may be told that it passed.
    """
    script = Script()
    script.append(1)
    script.load("m0.0.0")
    assert check_sound(script.history, 0.5) == []
    script.history.records[-1].took_s = 2.0
    assert {violation.guarantee for violation in check_sound(script.history, 0.5)} == {"G5"}
    script = Script()
    script.history.unknown(script.begin("append", "user"), OutcomeUnknown("its neighbour gave up"))
    assert check(script.history) == []
    assert {violation.guarantee for violation in check_sound(script.history, 0.5)} == {"G11"}
