"""What a memory is worth: golden values of both formulas, and the traps of the one that was given."""  # noqa: E501

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.actors.policies.importance import (
    bounded_importance,
    importance_formula,
    seed_importance,
)
from remora.errors import ConfigError, InvalidInput

DAY = 86_400.0

ages = st.floats(-1e12, 1e12)
counts = st.integers(0, 10**30)
explicits = st.none() | st.floats(-10, 10)
half_lives = st.floats(1e-3, 1e12)


def test_golden() -> None:
    """S2.19: the given formula to the letter, an explicit 0.0 respected, its logarithm without a
    bound; the bounded one with half-life decay and a logarithm that is full at a thousand.
    """
    seed: tuple[tuple[float, int, float | None, float], ...] = (
        (0, 0, None, 0.5),
        (0, 0, 0.0, 0.3),
        (0, 10, 0.5, 1.2194),
        (0, 100, 0.5, 1.8845),
        (0, 1000, 0.5, 2.5726),
        (DAY, 0, 1.0, 0.55),
        (-DAY, 0, None, 0.5),
    )
    for age, count, explicit, score in seed:
        found = seed_importance(age, count, explicit, half_life_s=DAY)
        assert found == pytest.approx(score, abs=1e-4), (age, count, explicit)
    bounded: tuple[tuple[float, int, float | None, float], ...] = (
        (0, 0, None, 0.5),
        (0, 0, 0.0, 0.3),
        (0, 1000, 1.0, 1.0),
        (0, 10**40, 1.0, 1.0),
        (DAY, 0, 0.0, 0.15),
        (2 * DAY, 0, 0.0, 0.075),
        (0, 10, 0.5, 0.3 + 0.3 * math.log(11) / math.log(1001) + 0.2),
        (-DAY, 0, 7.0, 0.7),
        (1e18, 0, -7.0, 0.0),
    )
    for age, count, explicit, score in bounded:
        found = bounded_importance(age, count, explicit, half_life_s=DAY)
        assert found == pytest.approx(score), (age, count, explicit)


def test_formulas_by_name() -> None:
    """S2.19: both formulas are to be had by name, and no other; what would make a score that
    compares with nothing is an error.
    """
    nonsense: tuple[tuple[float, int, float | None, float], ...] = (
        (0, 0, None, 0),
        (0, 0, None, -1),
        (0, 0, None, math.nan),
        (math.nan, 0, None, 1),
        (0, -1, None, 1),
        (0, 0, math.nan, 1),
    )
    assert importance_formula("bounded") is bounded_importance
    assert importance_formula("seed") is seed_importance
    with pytest.raises(ConfigError, match="'log'"):
        importance_formula("log")  # type: ignore[arg-type]
    for score in (bounded_importance, seed_importance):
        for age, count, explicit, half_life in nonsense:
            with pytest.raises(InvalidInput):
                score(age, count, explicit, half_life_s=half_life)


@given(ages, counts, explicits, half_lives)
def test_bounded_stays_within_bounds(
    age: float, count: int, explicit: float | None, half_life: float
) -> None:
    """S2.19: whatever it is asked, the bounded score is in 0…1."""
    assert 0 <= bounded_importance(age, count, explicit, half_life_s=half_life) <= 1


@given(
    st.sampled_from(["bounded", "seed"]),
    st.tuples(ages, ages).map(sorted),
    st.tuples(counts, counts).map(sorted),
    st.tuples(st.floats(-10, 10), st.floats(-10, 10)).map(sorted),
    half_lives,
)
def test_monotone_in_each_argument(
    formula: Any, age: Any, count: Any, explicit: Any, half_life: float
) -> None:
    """S2.20: younger, more often asked for, called more important: none of them lowers the score,
    other things equal.
    """
    score = importance_formula(formula)
    base = score(age[1], count[0], explicit[0], half_life_s=half_life)
    assert score(age[0], count[0], explicit[0], half_life_s=half_life) >= base
    assert score(age[1], count[1], explicit[0], half_life_s=half_life) >= base
    assert score(age[1], count[0], explicit[1], half_life_s=half_life) >= base
