"""G2, G3, G4: whatever the schedule, and whichever commits fail, a session's history has one order
that explains it all.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import anyio
import msgspec
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from remora.actors.session.messages import Clear, Load, Snapshot
from remora.errors import CommitFailed, KeyConflict, OutcomeUnknown
from remora.ids import SessionKey
from remora.messages import Receipt
from remora.runtime.limits import RegistryLimits
from remora.testing import FaultyJournal, Operation, linearizable
from remora.testing.faults import CommitFault
from tests.harness import FirstWordsSummarizer, Kernel, append, kernel, said

KEY = SessionKey("alice", "chat")


class Model(NamedTuple):
    """A session as a sequential program: everything ever said, how much of it was cleared, which
    keys it came under.
    """

    said: tuple[str, ...] = ()
    cleared: int = 0
    keys: frozenset[tuple[str, int, tuple[str, ...]]] = frozenset()


def step(model: Model, operation: Operation) -> Model | None:
    argument, result = operation.argument, operation.result
    if operation.kind == "append":
        texts, key = argument
        known = next((k for k in model.keys if k[0] == key), None)
        first, count, duplicate = (
            (known[1], len(known[2]), True) if known else (len(model.said) + 1, len(texts), False)
        )
        if known and known[2] != texts:
            count = 0  # refused
        if result is not None and (result.seqs, result.duplicate) != (
            tuple(range(first, first + count)),
            duplicate,
        ):
            return None
        if known:
            return model
        keys = model.keys | {(key, first, texts)} if key else model.keys
        return Model(model.said + texts, model.cleared, keys)
    if operation.kind == "clear":
        return Model(model.said, len(model.said), model.keys)
    if operation.kind == "history":
        return model if result == model.said else None
    assert isinstance(result, Snapshot)
    start = result.summary.through if result.summary else model.cleared
    shown = tuple(said(result.entries))
    covered = tuple(result.summary.text.split()) if result.summary else ()
    # what is shown is everything after the summary, and the summary covers everything between the
    # clear and that
    whole = shown == model.said[start:] and start >= model.cleared
    return (
        model
        if whole and covered == tuple(t.split()[0] for t in model.said[model.cleared : start])
        else None
    )


operations = st.one_of(
    st.tuples(
        st.just("append"), st.integers(1, 3), st.sampled_from([None, None, "k1", "k2", "k3"])
    ),
    st.tuples(st.just("append"), st.integers(1, 3), st.none()),
    st.tuples(st.just("load")),
    st.tuples(st.just("clear")),
)
programs = st.lists(st.lists(operations, min_size=1, max_size=4), min_size=1, max_size=4)
# A generator of its own, not hypothesis's: that one ends an example by an exception wherever a
# number is drawn from it, and a job would take that for its model's failure.
seeds = st.integers(0, 2**32).map(random.Random)
faults = st.lists(st.sampled_from([None, None, None, "refused", "lost", "kept"]), max_size=12)


async def run(
    program: list[list[tuple[Any, ...]]],
    plan: list[CommitFault | None],
    rng: random.Random,
    limits: RegistryLimits,
) -> list[Operation]:
    history: list[Operation] = []
    ticks = iter(range(1_000_000))
    plan = list(plan)
    journal = FaultyJournal(
        lambda: plan.pop(0) if plan else None, latency_s=lambda: rng.choice([0.0, 0.0, 0.01, 0.5])
    )

    async def sender(number: int, calls: list[tuple[Any, ...]], core: Kernel) -> None:
        for position, call in enumerate(calls):
            await anyio.sleep(rng.choice([0.0, 0.0, 0.0, 0.02, 0.3]))
            kind, argument, message, called = call[0], None, None, next(ticks)
            if kind == "append":
                texts = tuple(
                    f"m{number}.{position}.{n} {'x' * rng.randrange(80)}" for n in range(call[1])
                )
                argument = (texts, call[2])
                message = append(
                    *({"role": "user", "content": text} for text in texts), key=call[2]
                )
            try:
                result = await core.ask(
                    KEY, message or (Clear() if kind == "clear" else Load(10**9))
                )
            except CommitFailed:
                continue  # provably nothing happened
            except KeyConflict:
                result = Receipt((), (), duplicate=True)
            except OutcomeUnknown:
                if kind != "load":
                    history.append(Operation(called, float("inf"), kind, argument, None))
                continue
            history.append(Operation(called, next(ticks), kind, argument, result))

    async with kernel(journal, limits=limits, summarizer=FirstWordsSummarizer(rng)) as core:
        async with anyio.create_task_group() as tasks:
            for number, calls in enumerate(program):
                tasks.start_soon(sender, number, calls, core)
        plan.clear()
        await core.supervisor.drain(KEY)
        final = await core.ask(KEY, Load(10**9))
        history.append(Operation(next(ticks), next(ticks), "load", None, final))
        stored = tuple(said(await journal.read(KEY, 1, 10**6)))
        history.append(Operation(next(ticks), next(ticks), "history", None, stored))
    return history


@given(programs, faults, seeds, st.random_module(), st.booleans())
def test_history_is_linearizable(
    program: Any, plan: Any, rng: random.Random, schedule: Any, crowded: bool
) -> None:
    """G1, G2, G3, G4, G5, G6, G10, S1.06, S1.11: appends, loads and clears at once, commits
    failing, folds coming back late; some through a gate that fills at once, so that every message
    goes through the mailbox and waits for room.
    """
    limits = RegistryLimits(idle_s=0.05, restart_intensity=1_000)
    if crowded:
        limits = msgspec.structs.replace(
            limits, held_replies=1, mailbox_messages=1, wait_when_full=True
        )
    clock = trio.testing.MockClock(autojump_threshold=0)
    history = anyio.run(
        run, program, plan, rng, limits, backend="trio", backend_options={"clock": clock}
    )
    assert linearizable(history, Model(), step) is not None, "no order explains:\n" + "\n".join(
        map(repr, history)
    )
    stored = history[-1].result
    acknowledged = [
        (seq, text)
        for op in history
        if op.kind == "append" and isinstance(op.result, Receipt) and not op.result.duplicate
        for seq, text in zip(op.result.seqs, op.argument[0], strict=True)
    ]
    assert all(stored[seq - 1] == text for seq, text in acknowledged)
