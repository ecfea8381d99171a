"""G2, G3, G4 on trio, whose scheduler is no queue: whatever the order of steps, and whichever
commits fail, a session's history has one order that explains it all.
"""

from __future__ import annotations

import random
from typing import Any

import anyio
import msgspec
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from remora import BufferPolicy, Config, Runtime
from remora.storage.memory import MemoryStore
from remora.testing import CommitFault, FaultyJournal, HashEmbedder, UnionSummarizer
from tests.checker.history import History, Violation
from tests.checker.judging import check
from tests.checker.players import Player
from tests.checker.programs import Kind, Program
from tests.checker.rest import check_at_rest
from tests.checker.shrinking import Case, counterexample
from tests.checker.strategies import programs
from tests.harness import LoopClock

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "buffer": {"summary_tokens": 100_000},
        "activation": {"idle_s": 0.05},
        "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.1, "jitter": 0},
    }
)
CROWDED = Config.from_dict({"mailbox": {"max_messages": 1, "when_full": "wait"}}).mailbox
POLICY = BufferPolicy(above_tokens=60, keep_tokens=30, overdraft_tokens=240)
KINDS: tuple[Kind, ...] = ("append", "load", "messages", "clear", "history", "delete", "rewind")

# A generator of its own, not hypothesis's: that one ends an example by an exception wherever a
# number is drawn from it, and a job would take that for its model's failure.
seeds = st.integers(0, 2**32).map(random.Random)
faults = st.lists(st.sampled_from([None, None, None, "refused", "lost", "kept"]), max_size=12)


async def play(
    program: Program, plan: list[CommitFault | None], rng: random.Random, config: Config
) -> tuple[History, list[Violation]]:
    history, left = History(), list(plan)
    player = Player(program, history, rng)
    journal = FaultyJournal(
        lambda: left.pop(0) if left else None, latency_s=lambda: rng.choice([0.0, 0.0, 0.01, 0.5])
    )
    models: Any = {"summarizer": UnionSummarizer(rng), "embedder": HashEmbedder()}
    async with Runtime.in_memory(
        config=config, clock=LoopClock(), journal=journal, store=MemoryStore(64), policy=POLICY,
        **models,
    ) as runtime:  # fmt: skip
        await player.play(runtime)
        left.clear()
        found = await check_at_rest(runtime, history)
    return history, found + check(history, policy=POLICY, sound_models=True)


@given(programs(kinds=KINDS), faults, seeds, st.random_module(), st.booleans())
def test_history_is_linearizable(
    program: Program,
    plan: list[CommitFault | None],
    rng: random.Random,
    schedule: object,
    crowded: bool,
) -> None:
    """G1, G2, G3, G4, G5, G6, G10, S1.06, S1.11: callers at once, commits failing, folds coming
    back late; some through a mailbox that is full at once, so that every message waits for room.
    """
    config = msgspec.structs.replace(CONFIG, mailbox=CROWDED) if crowded else CONFIG
    clock = trio.testing.MockClock(autojump_threshold=0)
    history, violations = anyio.run(
        play, program, plan, rng, config, backend="trio", backend_options={"clock": clock}
    )
    assert not violations, counterexample(Case(program, 0, tuple(plan)), history, violations)
