"""What hypothesis draws: programs of calls, whole cases, small histories."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Self

from hypothesis import strategies as st

from remora.testing import Operation
from tests.checker.exploring import case_of
from tests.checker.programs import KINDS, Kind, Program, draw_program
from tests.checker.shrinking import Case

__all__ = ["cases", "programs", "schedules", "small_histories"]


def programs(
    *, kinds: Sequence[Kind] = KINDS, callers: int = 4, calls: int = 16
) -> st.SearchStrategy[Program]:
    """Programs of up to so many calls, as seeds draw them; shrinks towards fewer calls."""
    return st.builds(
        lambda rng, size: draw_program(rng, size=size, callers=callers, kinds=kinds),
        st.randoms(use_true_random=False),
        st.integers(1, calls),
    )


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


def cases() -> st.SearchStrategy[Case]:
    """Cases as seeds draw them; their seed decides the settings, and whatever callers draw."""
    return st.builds(
        case_of, st.randoms(use_true_random=False), st.integers(0, 2**32), st.integers(1, 24)
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
