"""What hypothesis draws: programs of calls, whole cases, small histories."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Self

import msgspec
from hypothesis import strategies as st

from remora.testing import Operation
from remora.testing.simulation import Fault
from tests.checker.programs import KINDS, SHAPES, Call, Caller, Kind, Program
from tests.checker.shrinking import Case

__all__ = ["cases", "faults", "programs", "schedules", "small_histories"]

_OF_USER = frozenset({"remember", "recall", "synopsis", "forget_user"})


@st.composite
def _calls(
    draw: st.DrawFn, kinds: Sequence[Kind], users: Sequence[str], sessions: Sequence[str]
) -> Call:
    kind = draw(st.sampled_from(kinds))
    if kind == "pause":
        return Call(0, kind, pause_s=draw(st.sampled_from([0.02, 0.3, 2.0, 40.0])))
    user = draw(st.sampled_from(users))
    session = "" if kind in _OF_USER else draw(st.sampled_from(sessions))
    cancelled = st.sampled_from([None, None, None, None, 0.0, 0.001, 0.02, 0.3])
    timeouts = st.sampled_from([None, None, None, None, 0.0, 0.01, 0.5])
    options: dict[str, Any] = {"cancel_after_s": draw(cancelled)}
    if kind in {"append", "load", "clear", "flush"}:
        options["timeout_s"] = draw(timeouts)
    match kind:
        case "append":
            options["shapes"] = tuple(
                draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
            )
            options["words"] = draw(st.integers(0, 40))
            options["key"] = draw(st.sampled_from([None, None, "k0", "k1", "k2"]))
            if options["key"] is not None:  # what is tried again without a key is said twice
                options["retries"] = draw(st.sampled_from([0, 20]))
        case "load":
            options["max_tokens"] = draw(st.sampled_from([None, None, 0, 15, 60, 200]))
            options["asks"] = draw(st.booleans())
        case "delete" | "rewind":
            options["back"], options["place"] = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    return Call(0, kind, user, session, **options)


@st.composite
def programs(
    draw: st.DrawFn,
    *,
    kinds: Sequence[Kind] = KINDS,
    callers: int = 4,
    calls: int = 8,
    users: Sequence[str] = ("alice", "bob"),
    sessions: Sequence[str] = ("s0", "s1"),
) -> Program:
    """Programs of up to so many callers with so many calls each; shrinks towards fewer and simpler
    ones.
    """
    drawn = draw(
        st.lists(
            st.lists(_calls(kinds, users, sessions), min_size=1, max_size=calls),
            min_size=1,
            max_size=callers,
        )
    )
    return Program(
        tuple(Caller(number, tuple(_numbered(some))) for number, some in enumerate(drawn))
    )


def _numbered(calls: Sequence[Call]) -> list[Call]:
    return [msgspec.structs.replace(call, number=number) for number, call in enumerate(calls)]


@st.composite
def small_histories(draw: st.DrawFn, *, size: int = 6) -> list[Operation]:
    """Histories of a register that counts: ``add`` tells the sum, ``get`` as well; some with an
    outcome that nobody knows.
    """
    count = draw(st.integers(1, size))
    ticks = draw(st.permutations(range(2 * count)))
    operations = []
    for n in range(count):
        called, returned = sorted((ticks[2 * n], ticks[2 * n + 1]))
        kind = draw(st.sampled_from(["add", "add", "get"]))
        ending = draw(st.sampled_from(["told", "told", "told", "never", "died"]))
        result = draw(st.integers(0, count)) if ending == "told" else None
        until = float("inf") if ending == "never" else returned
        operations.append(Operation(called, until, kind, None, result, ending == "died"))
    return operations


_PORTS: dict[str, Sequence[str]] = {
    "commit": ("refused", "lost", "kept", "hang"),
    "store": ("refused", "kept", "conflict", "timeout", "hang"),
    "summarizer": ("fail", "hang", "late", "garbage"),
    "embedder": ("fail", "hang", "late", "garbage"),
}


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    """One thing that goes wrong."""
    port = draw(st.sampled_from(tuple(_PORTS)))
    return Fault(
        port, draw(st.integers(0, 20)), draw(st.sampled_from(_PORTS[port])), draw(st.integers(1, 3))
    )


def cases() -> st.SearchStrategy[Case]:
    """A program, with what goes wrong and when the power is cut; the seed decides the settings, and
    whatever callers draw.
    """
    crashes = st.lists(st.integers(20, 1_500), max_size=2).map(tuple)
    return st.builds(
        Case, programs(), st.integers(0, 2**32), st.lists(faults(), max_size=3).map(tuple), crashes
    )


class _Rationed(random.Random):
    """Hypothesis's chance as far as an example's share of it goes, and an ordinary one from there
    on.
    """

    def __new__(cls, *_: Any) -> Self:
        return super().__new__(cls)

    def __init__(self, drawn: random.Random, share: int) -> None:
        super().__init__(0)
        self._drawn = drawn
        self._left = share

    def random(self) -> float:
        if self._left <= 0:
            return super().random()
        self._left -= 1
        return self._drawn.random()


def schedules(*, share: int = 400) -> st.SearchStrategy[random.Random]:
    """What decides the order of steps, and how long things take: shrinks towards first come, first
    served, at once.
    """
    return st.randoms(use_true_random=False).map(lambda drawn: _Rationed(drawn, share))
