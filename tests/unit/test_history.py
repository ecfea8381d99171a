"""The checker: what it must refuse, what it must let pass, and how it tells."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora import Config, Runtime
from remora.actors.policies.buffer import BufferPolicy
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.state import SessionState
from remora.errors import CommitFailed, OutcomeUnknown
from remora.messages import ChatDict, Receipt
from remora.models.ports import Line
from remora.runtime.actor import Decision
from remora.storage.memory.store import MemoryStore
from remora.storage.ports import MemoryRow
from remora.storage.records import Appended
from remora.testing import (
    FaultyJournal,
    HashEmbedder,
    Operation,
    UnionSummarizer,
    covered_by,
    explain,
    linearizable,
)
from remora.testing.faults import CommitFault
from remora.testing.simulation import World
from remora.tokens import HeuristicCounter
from tests.checker.history import History, Record, Seen, Shown, Violation, table
from tests.checker.judging import check, check_arrival, check_sound
from tests.checker.players import Player
from tests.checker.programs import KINDS, Call, Caller, Kind, Program, draw_program, messages_of
from tests.checker.rest import check_at_rest, check_watermark
from tests.checker.shrinking import Case, counterexample, shrink
from tests.handover import WatchedJournal, WatchedStore, Witness
from tests.strategies import programs, small_histories

FOREVER = float("inf")


# -- the search ------------------------------------------------------------------------------------


def counts(total: int, operation: Operation) -> int | None:
    after = total + (operation.kind == "add")
    return after if operation.result in {None, after} else None


def explained_by_trying_all(operations: Sequence[Operation]) -> bool:
    """Every choice of what happened, in every order."""
    unknown = [one for one in operations if one.pending]
    known = [one for one in operations if not one.pending]
    for happened in itertools.product([False, True], repeat=len(unknown)):
        chosen = known + [one for one, did in zip(unknown, happened, strict=True) if did]
        for order in itertools.permutations(chosen):
            if any(
                later.returned < earlier.called
                for earlier, later in itertools.combinations(order, 2)
            ):
                continue
            total: int | None = 0
            for one in order:
                total = None if total is None else counts(total, one)
            if total is not None:
                return True
    return False


@settings(max_examples=300)
@given(small_histories(size=5))
def test_search_is_exhaustive(operations: list[Operation]) -> None:
    """G2: an order is found exactly where trying every order, and every fate of what nobody knows,
    finds one.
    """
    assert (linearizable(operations, 0, counts) is not None) == explained_by_trying_all(operations)


@given(small_histories(size=8))
def test_order_is_one(operations: list[Operation]) -> None:
    """G2: the order that is given is true to real time, has every operation that is known to have
    happened, and explains it.
    """
    found = explain(operations, 0, counts)
    total: int | None = 0
    for earlier, later in itertools.combinations(found.order, 2):
        assert not later.returned < earlier.called
    for one in found.order:
        assert total is not None
        total = counts(total, one)
    assert total is not None
    if found.complete:
        assert {id(one) for one in operations if not one.pending} <= {
            id(one) for one in found.order
        }
    else:
        assert found.stuck


def test_what_died_happened_before_or_never() -> None:
    """G4: an operation whose process died counts before its death or not at all; one that may still
    happen, at any time.
    """
    add, get = Operation(1, 3, "add", None, None, unknown=True), Operation(4, 5, "get", None, 0)
    seen = Operation(6, 7, "get", None, 1)
    assert linearizable([add, get], 0, counts) is not None
    assert linearizable([add, seen], 0, counts) is not None
    assert linearizable([add, get, seen], 0, counts) is None
    still = Operation(1, FOREVER, "add", None, None)
    assert linearizable([still, get, seen], 0, counts) is not None


def test_bounded_search_says_so() -> None:
    """G2: a search that was cut short claims nothing."""
    operations = [Operation(0, FOREVER, "add", None, None) for _ in range(12)] + [
        Operation(1, 2, "get", None, 99)
    ]
    found = explain(operations, 0, counts, most=5)
    assert (found.complete, found.decided) == (False, False)
    assert explain(operations, 0, counts).decided


# -- histories made by hand ------------------------------------------------------------------------


class Script:
    """Writes a history as it is told; session alice/s unless said otherwise."""

    def __init__(self) -> None:
        self.history = History()
        self._number = itertools.count()

    def begin(
        self, kind: Kind, *shapes: Any, key: str | None = None, session: str = "s", **options: Any
    ) -> Record:
        number = next(self._number)
        call = Call(
            number, kind, "alice", session, shapes=shapes, key=key, max_tokens=options.get("budget")
        )
        messages: list[ChatDict] = options.get("messages") or messages_of(Caller(0, (call,)), call)
        return self.history.call(0, call, messages=messages, argument=options.get("argument"))

    def append(
        self,
        *seqs: int,
        shapes: Sequence[Any] | None = None,
        duplicate: bool = False,
        **options: Any,
    ) -> Record:
        record = self.begin("append", *(shapes or ["user"] * len(seqs)), **options)
        self.end(record, Receipt(seqs, tuple(map(str, seqs)), duplicate))
        return record

    def end(self, record: Record, result: Any) -> None:
        self.history.returned(record, result)

    def load(self, *names: str, covered: Sequence[str] = (), **options: Any) -> Record:
        record = self.begin("load", **options)
        self.end(record, shown(*names, covered=covered, **options))
        return record

    def told(self, *pairs: tuple[int, str]) -> None:
        self.end(self.begin("history"), pairs)

    def clear(self, count: int) -> None:
        self.end(self.begin("clear"), count)


def shown(*names: str, covered: Sequence[str] = (), **options: Any) -> Shown:
    tokens = options.get("tokens", 10)
    return Shown(
        budget=options.get("budget"),
        summarized=bool(covered),
        covered=tuple(covered),
        names=names,
        tokens=tokens,
        counted=options.get("counted", tokens),
        pending=options.get("pending", 0),
        awaiting=tuple(options.get("awaiting", ())),
        split=options.get("split", 0),
        told=frozenset(options.get("told", ())),
    )


def found(script: Script) -> set[str]:
    return {violation.guarantee for violation in check(script.history)}


def test_good_history() -> None:
    """G2, G3, G6: appends beside each other, a fold, a clear, a retried key."""
    script = Script()
    script.append(1, 2)
    one, other = script.begin("append", "user"), script.begin("append", "user", key="k")
    script.end(other, Receipt((3,), ("3",)))
    script.end(one, Receipt((4,), ("4",)))
    script.load("m0.2.0", "m0.1.0", covered=["m0.0.0", "m0.0.1"])
    script.clear(2)
    script.append(3, key="k", duplicate=True)
    script.append(5)
    script.load("m0.6.0")
    script.told((1, "m0.0.0"), (2, "m0.0.1"), (3, "m0.2.0"), (4, "m0.1.0"), (5, "m0.6.0"))
    assert check(script.history) == []


def test_lost_append() -> None:
    """G2, G3: an acknowledged message that is gone."""
    script = Script()
    script.append(1)
    script.told()
    assert "G2 G3 G4" in found(script)


def test_doubled_append() -> None:
    """G2, G4: a message that is there twice, and a retried key that had a second effect."""
    script = Script()
    script.append(1)
    script.load("m0.0.0", "m0.0.0")
    assert "G2" in found(script)
    script = Script()
    script.append(1, key="k")
    script.append(2, key="k")
    assert "G2 G3 G4" in found(script)


def test_reordered_appends() -> None:
    """G2: a sender's messages in another order than they were sent."""
    script = Script()
    script.append(2)
    script.append(1)
    assert "G2 G3 G4" in found(script)
    script = Script()
    script.append(1)
    script.append(2)
    script.load("m0.1.0", "m0.0.0")
    assert "G2 G3 G4" in found(script)


def test_stale_read() -> None:
    """G2, G6: a load that misses what was acknowledged before it."""
    script = Script()
    script.append(1)
    script.append(2)
    script.load("m0.0.0")
    assert found(script) == {"G2 G3 G4", "G3 G6"}


def test_pending_left_out() -> None:
    """G6: a load that shows neither a folded message nor a summary that covers it."""
    script = Script()
    script.append(1, 2, 3)
    script.load("m0.0.2")
    assert found(script) == {"G2 G3 G4", "G3 G6"}
    script = Script()
    script.append(1, 2, 3)
    script.load("m0.0.2", covered=["m0.0.0"])
    assert found(script) == {"G2 G3 G4", "G3 G6"}


def test_read_that_a_crash_undid() -> None:
    """G3: a load showed an append that nobody acknowledged; after the crash it is gone, although
    the load was answered.
    """
    script = Script()
    script.begin("append", "user")
    script.load("m0.0.0")
    script.history.crashed()
    script.told()
    assert "G2 G3 G4" in found(script)


def test_late_comer_after_a_crash() -> None:
    """G4: what had not happened before the crash does not happen after it."""
    script = Script()
    script.begin("append", "user")
    script.history.crashed()
    script.load()
    script.load("m0.0.0")
    assert "G2 G3 G4" in found(script)


def test_half_a_batch() -> None:
    """G4: one of two messages of an append that nobody acknowledged."""
    script = Script()
    script.begin("append", "user", "user")
    script.history.crashed()
    script.told((1, "m0.0.0"))
    assert "G2 G3 G4" in found(script)


@pytest.mark.parametrize("there", [True, False])
def test_crash_decides(there: bool) -> None:
    """G4: what was under way is wholly there or wholly absent, and its retry under the same key
    knows.
    """
    script = Script()
    script.append(1)
    script.begin("append", "user", "user", key="k")
    script.history.crashed()
    script.load(*(["m0.0.0", "m0.1.0", "m0.1.1"] if there else ["m0.0.0"]))
    messages = [script.history.messages[name] for name in ("m0.1.0", "m0.1.1")]
    script.append(2, 3, shapes=["user", "user"], key="k", duplicate=there, messages=messages)
    script.told((1, "m0.0.0"), (2, "m0.1.0"), (3, "m0.1.1"))
    assert check(script.history) == []


def test_timed_out_append_may_still_happen() -> None:
    """G2: until its process dies, an append of unknown outcome may happen at any time."""
    script = Script()
    late = script.begin("append", "user")
    script.history.unknown(late, "it took too long")
    script.load()
    script.load("m0.0.0")
    assert check(script.history) == []


def test_refused_append_does_not_happen() -> None:
    """G10, G11: what was refused had no effect."""
    script = Script()
    script.history.nothing(script.begin("append", "user"), CommitFailed("no room"))
    script.load("m0.0.0")
    assert "G2 G3 G4" in found(script)


def test_key_lost_on_clear() -> None:
    """G4, S1.14: a key outlives a clear."""
    script = Script()
    script.append(1, key="k")
    script.clear(1)
    script.append(2, key="k")
    assert "G2 G3 G4" in found(script)


def test_cleared_comes_back() -> None:
    """G5: a fold that was asked for before the clear is applied after it."""
    script = Script()
    script.append(1, 2)
    script.clear(2)
    script.load(covered=["m0.0.0", "m0.0.1"])
    assert "G2 G3 G4" in found(script)


def test_clear_counts_what_was_there() -> None:
    """S1.14: a clear cannot take out more than there was."""
    script = Script()
    script.append(1)
    script.clear(2)
    assert "G2 G3 G4" in found(script)


def test_split_tool_call() -> None:
    """G8: a call without its result, and a result that does not follow its call."""
    script = Script()
    script.append(1, 2, shapes=["call", "result"])
    script.load("m0.0.0", split=1)
    assert found(script) == {"G8", "G2 G3 G4"}
    script = Script()
    script.append(1, 2, 3, shapes=["call", "user", "result"])
    script.load("m0.0.0", "m0.0.2", "m0.0.1")
    assert check(script.history) == []
    script.load("m0.0.0", "m0.0.1", "m0.0.2")
    assert found(script) == {"G2 G3 G4"}


def test_waiting_call_is_withheld() -> None:
    """G8: a call without a result yet is not shown, and is named."""
    script = Script()
    script.append(1, 2, shapes=["user", "call"])
    script.load("m0.0.0", awaiting=["call-m0.0.1-0"])
    assert check(script.history) == []
    script.load("m0.0.0")
    assert found(script) == {"G2 G3 G4"}


def test_over_budget() -> None:
    """G9: more tokens than were allowed, or than it says."""
    script = Script()
    script.append(1)
    script.load("m0.0.0", budget=5, tokens=6)
    assert found(script) == {"G9"}
    script = Script()
    script.append(1)
    script.load("m0.0.0", budget=5, tokens=5, counted=6)
    assert found(script) == {"G9"}


def test_budget_leaves_out_the_oldest() -> None:
    """G9: within a budget the newest are shown, and whatever of the summaries fits."""
    script = Script()
    script.append(1, 2, 3)
    script.load("m0.0.2", budget=5, tokens=5)
    script.load("m0.0.2", covered=["m0.0.0"], budget=5, tokens=5)
    assert check(script.history) == []
    script.load("m0.0.0", budget=5, tokens=5)
    assert found(script) == {"G2 G3 G4"}


def test_another_sessions_message() -> None:
    """G1: what was said in one session is shown in another."""
    script = Script()
    script.append(1, session="other")
    script.load("m0.0.0")
    assert "G1" in found(script)
    script = Script()
    script.append(1)
    script.load("m0.0.0", told=["m9.9.9"])
    assert found(script) == {"G1"}


def test_delete_and_rewind() -> None:
    """G2: what was deleted or rewound is gone from everything, and a rewind to before a clear
    undoes it.
    """
    script = Script()
    script.append(1, 2)
    script.clear(2)
    script.append(3)
    script.end(script.begin("delete", argument=(3, "m0.2.0")), 1)
    script.append(4)
    script.load("m0.4.0")
    script.end(script.begin("rewind", argument=3), "refused")
    script.end(script.begin("rewind", argument=1), 3)
    script.load("m0.0.0")
    script.told((1, "m0.0.0"))
    script.append(5)
    assert check(script.history) == []
    script.load("m0.4.0", "m0.9.0")
    assert "G2 G3 G4" in found(script)


def test_forgotten_begins_anew() -> None:
    """G13: after `forget` nothing is known, keys included, and numbers begin at one."""
    script = Script()
    script.append(1, key="k")
    script.end(script.begin("forget_session"), None)
    script.append(1, key="k")
    assert check(script.history) == []
    script.load("m0.0.0", "m0.2.0")
    assert "G2 G3 G4" in found(script)


def test_exception_of_no_kind() -> None:
    """G11: whatever a call raises is one of remora's own."""
    script = Script()
    script.history.wrong(script.begin("append", "user"), KeyError("seq"))
    (violation,) = check(script.history)
    assert violation.guarantee == "G11"
    assert "KeyError" in violation.text


def test_degraded_summary_is_judged_by_what_is_shown() -> None:
    """G6: where a summary is an extract, what is shown must still be the end of what was said."""
    script = Script()
    script.append(1, 2, 3)
    extract = Shown(None, True, None, ("m0.0.2",), 1, 1, 0, (), 0)
    script.end(script.begin("load"), extract)
    assert check(script.history) == []
    script.end(script.begin("load"), Shown(None, True, None, ("m0.0.1",), 1, 1, 0, (), 0))
    assert found(script) == {"G2 G3 G4"}


# -- summaries -------------------------------------------------------------------------------------


async def _summary(previous: str | None, *names: str) -> str:
    return await UnionSummarizer().summarize(
        previous, [Line("user", "User", f"{name} hello", 0) for name in names], max_tokens=99
    )


@pytest.mark.anyio
async def test_union_summarizer() -> None:
    """G6: a summary names what it covers; one that was cut short, or was built on another's, does
    not pass for whole.
    """
    first = await _summary(None, "m0.0.0", "m0.0.1")
    assert covered_by(first) == ("m0.0.0", "m0.0.1")
    assert covered_by(await _summary(first, "m0.1.0")) == ("m0.0.0", "m0.0.1", "m0.1.0")
    assert covered_by(f"{first}\n{first}") == ("m0.0.0", "m0.0.1") * 2
    assert covered_by(first[:-3]) is None
    assert covered_by(first.replace("m0.0.1 ", "")) is None
    partly = await _summary("m0.0.0 said hello", "m0.1.0")
    assert covered_by(partly) is None
    assert covered_by(await _summary(partly, "m0.2.0")) is None


# -- programs and players --------------------------------------------------------------------------

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "supervisor": {"backoff_s": 0.001, "max_backoff_s": 0.01},
        "long_term": {"batch_ms": 1},
        "buffer": {"summary_tokens": 100_000, "token_limit": 1_000_000},
        "activation": {"idle_s": 0.05},
    }
)
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
    with anyio.fail_after(30):
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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
        self.capture = lambda: (journal.state(), store.state())

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


@pytest.mark.anyio
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
    with anyio.fail_after(30):
        history, violations = await play_with_crashes(
            program, rng, crashes, POLICIES[seed % len(POLICIES)]
        )
    assert violations == [], counterexample(Case(program, seed, (), crashes), history, violations)


def test_draws_repeat() -> None:
    """S5.05: one seed gives one program, and seeds give different ones, which meet in few sessions."""  # noqa: E501
    drawn = [draw_program(random.Random(seed)) for seed in range(50)]
    assert drawn == [draw_program(random.Random(seed)) for seed in range(50)]
    assert len(set(drawn)) == 50
    assert {
        call.kind for program in drawn for caller in program.callers for call in caller.calls
    } >= {*QUICK, "pause"}
    keys = [
        call.key
        for program in drawn
        for caller in program.callers
        for call in caller.calls
        if call.key in {"k0", "k1"}
    ]
    assert len(keys) > 50


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

    def apply(self, record: Any) -> None:
        if isinstance(record, Appended) and len(record.entries) == 3:
            first, second, third = record.entries
            record = msgspec.structs.replace(
                record, entries=(first, first.with_seq(second.seq), third)
            )
        super().apply(record)


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
    seed = next(
        seed
        for seed in range(50)
        if lossy(
            Case(
                draw_program(random.Random(seed), kinds=kinds),
                seed,
                ("a fault", "another"),
                (9, 99),
            )
        )[1]
    )
    case = Case(
        draw_program(random.Random(seed), kinds=kinds), seed, ("a fault", "another"), (9, 99)
    )
    small = shrink(case, lambda tried: lossy(tried)[1])
    assert small.minimal
    assert (small.case.faults, small.case.crashes) == ((), ())
    ((call,),) = [caller.calls for caller in small.case.program.callers]
    assert (call.kind, call.shapes, call.words, call.key) == (
        "append",
        ("user", "user", "user"),
        0,
        None,
    )
    history, violations = lossy(small.case)
    text = counterexample(small.case, history, violations)
    assert f"seed {seed}" in text
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


def test_slow_answer() -> None:
    """G5: a load that took as long as a model does."""
    script = Script()
    script.append(1)
    script.load("m0.0.0")
    assert check_sound(script.history, 0.5) == []
    script.history.records[-1].took_s = 2.0
    assert {violation.guarantee for violation in check_sound(script.history, 0.5)} == {"G5"}


def test_failure_without_a_cause() -> None:
    """G11: somebody is told of a failed commit, and the journal was sound; whoever set a deadline
    may be told that it passed.
    """
    script = Script()
    script.history.unknown(script.begin("append", "user"), OutcomeUnknown("its neighbour gave up"))
    assert check(script.history) == []
    assert {violation.guarantee for violation in check_sound(script.history, 0.5)} == {"G11"}


def test_forgotten_and_found() -> None:
    """G13: what was said before a user was forgotten is found after it; what was said later may be."""  # noqa: E501
    script = Script()
    script.append(1)
    script.end(script.begin("forget_user", session=""), None)
    script.append(1)
    script.end(script.begin("recall", session=""), frozenset({"m0.2.0"}))
    assert check(script.history) == []
    script.end(script.begin("recall", session=""), frozenset({"m0.0.0"}))
    assert found(script) == {"G13"}


def test_turn_parted_from_its_result() -> None:
    """G8: a summary ends between a call and the result that came at once after it."""
    script = Script()
    script.end(script.begin("append", "call", "result"), Receipt((1, 2), ("1", "2")))
    script.append(3)
    script.load("m0.1.0", covered=["m0.0.0", "m0.0.1"])
    assert check(script.history) == []
    script.load("m0.1.0", covered=["m0.0.0"])
    assert "G2 G3 G4" in found(script)


# -- content ---------------------------------------------------------------------------------------


def whole(script: Script, name: str, seq: int | None = None, **changed: Any) -> Seen:
    """A message as it was said, but for what is changed."""
    said = script.history.messages[name]
    seen = Seen(name, {key: value for key, value in said.items() if key != "metadata"})
    if seq is not None:
        seen = seen._replace(
            seq=seq,
            id=str(seq),
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            metadata=said.get("metadata"),
        )
    return seen._replace(**changed)


def told_whole(script: Script, *seen: Seen) -> None:
    record = script.begin("history")
    record.seen = seen
    script.end(record, tuple((one.seq, one.name) for one in seen))


def test_garbled_words() -> None:
    """G3: a message whose name is right and whose words, role or tool calls are not, in a load."""
    script = Script()
    script.append(1, 2, shapes=["user", "call"])
    script.append(
        3,
        shapes=["result"],
        messages=[{"role": "tool", "tool_call_id": "call-m0.0.1-0", "content": "m0.1.0 found"}],
    )
    names = ("m0.0.0", "m0.0.1", "m0.1.0")
    script.load(*names).seen = tuple(whole(script, name) for name in names)
    assert check(script.history) == []
    for name, changed in (
        ("m0.0.0", {"content": "m0.0.0 mumbled"}),
        ("m0.0.0", {"role": "assistant"}),
        ("m0.0.1", {"tool_calls": []}),
        ("m0.1.0", {"tool_call_id": "another"}),
        ("m0.1.0", {"name": "nobody"}),
    ):
        chat = {**script.history.messages[name], **changed}
        script.history.records[-1].seen = (whole(script, name, chat=chat),)
        assert found(script) == {"G3"}


def test_lost_envelope() -> None:
    """G3, G4: metadata, time and id of a message are the same in every history, and in the receipt
    of a duplicate.
    """
    script = Script()
    said = {"role": "user", "content": "m0.0.0", "metadata": {"of": "m0.0.0"}}
    script.append(1, key="k", messages=[said])
    told_whole(script, whole(script, "m0.0.0", 1))
    script.append(1, key="k", messages=[said], duplicate=True)
    told_whole(script, whole(script, "m0.0.0", 1))
    assert check(script.history) == []
    last = script.history.records[-1]
    for changed in ({"metadata": None}, {"created_at": datetime(1970, 1, 1, tzinfo=UTC)}):
        last.seen = (whole(script, "m0.0.0", 1, **changed),)
        assert found(script) == {"G3"}
    last.seen = (whole(script, "m0.0.0", 1, id="another"),)
    assert found(script) == {"G4"}


def test_wrong_ids_of_a_duplicate() -> None:
    """G4: the receipt of a duplicate has the first one's ids."""
    script = Script()
    script.append(1, key="k")
    record = script.begin("append", key="k", messages=[script.history.messages["m0.0.0"]])
    script.end(record, Receipt((1,), ("another",), duplicate=True))
    assert found(script) == {"G4"}


class Mishearing(MemoryStore):
    """Keeps other words than it was given."""

    def __init__(self, **changed: Any) -> None:
        super().__init__(64)
        self._changed = changed

    async def add(self, rows: Sequence[MemoryRow], vectors: Any, *, may_exist: bool = True) -> None:
        rows = [
            msgspec.structs.replace(
                row, **{name: change(getattr(row, name)) for name, change in self._changed.items()}
            )
            for row in rows
        ]
        await super().add(rows, vectors, may_exist=may_exist)


@pytest.mark.anyio
@pytest.mark.parametrize("field", ["", "content", "turn", "window", "role"])
async def test_wrong_words_in_long_term_memory(field: str) -> None:
    """G7: a row that is there, once, under the right id, with the wrong words or speaker."""
    changed = (
        {field: lambda text: text.replace("lorem", "morel").replace("user", "tool")}
        if field
        else {}
    )
    program = Program((Caller(0, (Call(0, "append", "alice", "s0", shapes=("user",), words=3),)),))
    history = History()
    options: Any = {"config": CONFIG, "store": Mishearing(**changed), "embedder": HashEmbedder()}
    async with Runtime.in_memory(**options) as runtime:
        await Player(program, history, random.Random(1), think_s=(0.0,)).play(runtime)
        violations = await check_at_rest(runtime, history) + check(history)
    assert {violation.guarantee for violation in violations} == ({"G7"} if field else set())


# -- what a policy keeps ---------------------------------------------------------------------------

SIX = BufferPolicy(above_messages=6, keep_messages=3)
NAMES = tuple(f"m0.0.{place}" for place in range(9))


class Weighed(Script):
    """Every message of it weighs a token, and so does what else is short."""

    def __init__(self, count: int, policy: BufferPolicy = SIX) -> None:
        super().__init__()
        self.policy = policy
        self.history.counter = HeuristicCounter()
        self.append(*range(1, count + 1))

    def found(self, *, sound_models: bool = True) -> set[str]:
        return {
            violation.guarantee
            for violation in check(self.history, policy=self.policy, sound_models=sound_models)
        }


def test_delete_that_deletes_nothing() -> None:
    """S4.12: where no fold can have taken a message it is there to be deleted; the newest always
    is.
    """
    script = Weighed(6)
    script.end(script.begin("delete", argument=(1, NAMES[0])), 1)
    assert script.found() == set()
    script.end(script.begin("delete", argument=(2, NAMES[1])), 0)
    assert script.found() == {"G2 G3 G4"}
    script = Weighed(7)
    script.end(script.begin("delete", argument=(2, NAMES[1])), 0)
    script.load(*NAMES[4:7], covered=NAMES[:4])
    assert script.found() == set()
    script.load(*NAMES[1:7], covered=NAMES[:1])
    assert script.found(sound_models=False) == {"G2 G3 G4"}, (
        "what left the buffer does not come back"
    )
    script = Weighed(7)
    script.end(script.begin("delete", argument=(7, NAMES[6])), 0)
    assert script.found() == {"G2 G3 G4"}


def test_clear_counts_all_that_was_there() -> None:
    """S1.14: with nothing folded, a clear takes out all that was said; what was said last in any
    case.
    """
    script = Weighed(6)
    script.clear(6)
    assert script.found() == set()
    script = Weighed(6)
    script.clear(0)
    assert script.found() == {"G2 G3 G4"}
    script = Weighed(7)
    script.clear(3)
    assert script.found() == set()
    script = Weighed(7)
    script.clear(0)
    assert script.found() == {"G2 G3 G4"}


def test_messages_show_the_buffer() -> None:
    """S0.13: `get_messages` shows what was not folded, all of it."""
    script = Weighed(6)
    script.end(script.begin("messages"), NAMES[:6])
    assert script.found() == set()
    script.end(script.begin("messages"), NAMES[5:6])
    assert script.found() == {"G2 G3 G4"}
    script = Weighed(7)
    script.end(script.begin("messages"), NAMES[4:7])
    script.load(*NAMES[4:7], covered=NAMES[:4])
    assert script.found() == set()
    script = Weighed(7)
    script.end(script.begin("messages"), NAMES[6:7])
    script.load(*NAMES[4:7], covered=NAMES[:4])
    assert script.found() == {"G2 G3 G4"}
    script = Weighed(7)
    script.end(script.begin("messages"), ())
    assert script.found() == {"G2 G3 G4"}


def test_flush_counts_no_message_twice() -> None:
    """G7: what a flush handed over is not counted by the next one."""
    script = Weighed(2)
    script.end(script.begin("flush"), 2)
    script.append(3)
    script.end(script.begin("flush"), 1)
    assert script.found() == set()
    script.end(script.begin("flush"), 1)
    assert script.found() == {"G2 G3 G4"}


@pytest.mark.parametrize(
    ("count", "pending", "good"),
    [(6, 0, True), (6, 3, False), (7, 4, True), (7, 0, False), (7, 3, False)],
)
def test_pending_is_counted(count: int, pending: int, good: bool) -> None:
    """G6: what a fold took and no summary covers yet is pending, all of it and nothing else."""
    script = Weighed(count)
    script.load(*NAMES[:count], pending=pending)
    assert script.found() == (set() if good else {"G2 G3 G4"})


def test_budget_is_used() -> None:
    """G9: whatever else of the newest fits is shown."""
    script = Weighed(6)
    script.load(*NAMES[3:6], budget=3, tokens=3)
    assert script.found() == set()
    script.load(*NAMES[5:6], budget=3, tokens=1)
    assert script.found() == {"G2 G3 G4"}


def test_summary_that_fits_is_shown() -> None:
    """G9: a summary is left out only where it does not fit into what is its share."""
    script = Weighed(7)
    weight = script.history.weigh_summary(NAMES[:4])
    tight = weight + 2
    script.load(*NAMES[4:7], budget=tight, tokens=3)
    assert script.found() == set()
    script.load(*NAMES[4:7], covered=NAMES[:4], budget=tight + 1, tokens=weight + 3)
    assert script.found() == set()
    script.load(*NAMES[4:7], budget=tight + 1, tokens=3)
    assert script.found() == {"G2 G3 G4"}
    assert script.found(sound_models=False) == set(), "an extract may be longer"


def test_extract_without_need() -> None:
    """G6: an extract in the place of a summary, though the model never failed and the overdraft was
    never reached.
    """
    for overdraft, guarantees in ((100, {"G6"}), (5, set())):
        script = Weighed(7, msgspec.structs.replace(SIX, overdraft_tokens=overdraft))
        script.end(script.begin("load"), Shown(None, True, None, NAMES[4:7], 1, 1, 0, (), 0))
        assert script.found() == guarantees
        assert script.found(sound_models=False) == set()


class Stubborn(SessionBehavior):
    """Its sessions leave memory, and flush nothing before."""

    def on_idle(self, state: SessionState, *, closing: bool = False) -> None:
        """Nothing."""


class Modest(SessionBehavior):
    """Its sessions flush, and say that there was nothing."""

    def _flush(self, state: SessionState) -> Decision:
        turn = super()._flush(state)
        return Decision(0, turn.records, jobs=turn.jobs)


@pytest.mark.parametrize("patience_s", [0.0, 10.0])
@pytest.mark.parametrize("behavior", [SessionBehavior, Stubborn, Modest])
def test_what_is_flushed_at_rest(
    behavior: type[SessionBehavior], patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: an idle session hands over what it has by itself, and a flush says how much there was."""
    monkeypatch.setattr("remora.api.build.SessionBehavior", behavior)
    pause = Call(
        0, "pause", pause_s=5.0
    )  # longer than a runtime waits with what its earlier runs left
    program = Program((Caller(0, (pause, Call(1, "append", "alice", "s0", shapes=("user",)))),))
    history = History()

    async def life(world: World) -> list[Violation]:
        async with world.runtime() as runtime:
            await Player(program, history, random.Random(1)).play(runtime)
            return await check_at_rest(runtime, history, patience_s=patience_s)

    caught = behavior is (Stubborn if patience_s else Modest)
    assert {violation.guarantee for violation in World(1).run(life)} == (
        {"G7"} if caught else set()
    )
