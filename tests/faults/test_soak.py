"""A few seconds of the soak, on both event loops: what hours of it look for is looked for here, but
for memory.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

import benchmarks.lab.soak
from benchmarks import memory_soak
from benchmarks.lab.soak import Cycle, Extent, Soak
from benchmarks.lab.soaking.witness import SessionWitness, Violations, unit
from benchmarks.memory_soak import MemorySoak, Minute, growth
from benchmarks.shared import run
from remora import Message, Receipt

SMALL = Extent(load_s=2.0, cycles=1, users=3, sessions=2, elders=1, mortals=1, calm_s=0.4)


@pytest.mark.nightly
@pytest.mark.blocking
def test_all_ends_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G2, G3, G4, G7, G8, G9, G10, G12: under faults nothing is lost, doubled, torn or shown to
    others, and when all is calm no mailbox, job, live session, task, thread or descriptor is left
    over, on asyncio and on uvloop. It ends when enough was done on each, twice.
    """
    monkeypatch.setattr(benchmarks.lab.soak, "SETTLE_S", 3_600.0)
    cycles: list[Cycle] = []
    soak = Soak(tmp_path / "memory", 7, SMALL, cycles.append)
    for loop in ("asyncio", "uvloop", "asyncio", "uvloop"):
        before = len(cycles)
        while sum(cycle.appends for cycle in cycles[before:]) <= 20:
            run(soak.stretch, loop, time.monotonic(), loop=loop)
    while sum(sum(cycle.faults.values()) for cycle in cycles) <= 10:
        run(soak.stretch, "asyncio", time.monotonic(), loop="asyncio")
    assert soak.violations.told == []
    # those of each cycle but the last, and who was forgotten while talking
    assert sum(cycle.forgotten for cycle in cycles) >= 9
    for cycle in cycles:
        held = cycle.holding
        assert (held.queued, held.waiting_kb, held.backlog, held.jobs, held.live) == (0, 0, 0, 0, 0)
    tasks = [cycle.holding.tasks for cycle in cycles]  # one that comes and goes may be among them
    assert min(tasks[len(tasks) // 2 :]) <= max(tasks[: len(tasks) // 2])


@pytest.mark.blocking
def test_constant_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some calls of the memory soak: every one is answered, while sessions are forgotten."""
    monkeypatch.setattr(memory_soak, "SAMPLE_S", 0.1)
    soak = MemorySoak(tmp_path / "memory", rate=200, seed=1)
    while soak.operations <= 50:
        run(soak.run, 0.01, loop="asyncio")
    assert not soak.refused


def test_growth_is_by_the_tenth_minute() -> None:
    """A process that is still warming up is no leak; what it gains later is."""

    def minutes(*rss_mb: float) -> list[Minute]:
        return [Minute(n, 0, one, 0, 0, 0, 0, 0) for n, one in enumerate(rss_mb, start=1)]

    assert growth(minutes(*range(100, 1_100, 100))) == 1.0
    assert growth(minutes(*range(100, 1_100, 100), 1_000, 1_200)) == 1.2


def _told() -> tuple[SessionWitness, Violations]:
    """A witness who heard of four appends: 1, 2-3, 4, 5."""
    violations = Violations()
    witness = SessionWitness("chat", "owner-a", 1, violations)
    for number, seqs in enumerate([(1,), (2, 3), (4,), (5,)]):
        witness.heard(0, number, Receipt(seqs, tuple(map(str, seqs))))
    return witness, violations


def _history(*, leave_out: int = 0, swap: bool = False, twice: bool = False) -> list[Message]:
    chats = [chat for number in range(4) for chat in unit("owner-a", 0, number)]
    if swap:
        chats[0], chats[3] = chats[3], chats[0]
    if twice:
        chats.append(chats[-1])
    messages = [
        msgspec.convert({**chat, "seq": seq}, Message) for seq, chat in enumerate(chats, start=1)
    ]
    return [message for message in messages if message.seq != leave_out]


def test_the_witness_sees_what_is_wrong() -> None:
    """G2, G3, G4, G8, G9: a soak finds nothing only where there is nothing: each kind of harm, done
    on purpose, is told.
    """
    for harm, name in (
        (_history(), ""),
        (_history(leave_out=4), "lost"),
        (_history(twice=True), "doubled"),
        (_history(swap=True), "disordered"),
        (_history()[::-1], "disordered"),
    ):
        witness, violations = _told()
        witness.history(harm)
        assert violations.counts[name] > 0 if name else violations.told == []
    witness, violations = _told()
    witness.deleted.add(4)
    witness.history(_history(leave_out=4))
    assert violations.told == []
    witness.heard(0, 1, Receipt((2, 3), ("2", "3"), duplicate=True))
    assert violations.told == []
    witness.heard(0, 1, Receipt((6, 7), ("6", "7")))
    witness.heard(0, 4, Receipt((4,), ("4",)))
    witness.heard(0, 5, Receipt((8,), ("8",)))
    assert violations.counts == {"doubled": 1, "disordered": 1, "torn": 1}
    chats = [chat for number in range(4) for chat in unit("owner-a", 0, number)]
    witness, violations = _told()
    witness.context(chats, 10, 10)
    assert violations.told == []
    witness.context(chats[:2], 11, 10)
    witness.words(["what does owner-b: say?"])
    assert violations.counts == {"split": 1, "over budget": 1, "leaked": 1}
