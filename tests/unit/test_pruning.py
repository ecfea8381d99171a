"""Who goes when there are too many memories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.actors.policies.pruning import PruneRow, victims
from remora.errors import ConfigError, InvalidInput

DAY_US = 86_400_000_000
NOW = 1_700_000_000_000_000
OPTIONS: dict[str, Any] = {"now_us": NOW, "half_life_s": 30 * 86_400}

STRATEGIES = ["fifo", "age", "importance", "lru"]


def row(
    id_: str,
    days: float,
    *,
    accessed: float | None = None,
    count: int = 0,
    importance: float | None = None,
) -> PruneRow:
    accessed_us = None if accessed is None else NOW - int(accessed * DAY_US)
    return PruneRow(id_, NOW - int(days * DAY_US), accessed_us, count, importance)


ROWS = [
    row("new", 1, importance=0.0),
    row("old-but-dear", 300, importance=1.0),
    row("old-but-read-today", 200, accessed=0, count=500, importance=0.5),
    row("middling", 100, importance=0.4),
]


def test_each_strategy_has_its_own_victims() -> None:
    """S4.41: of the same four memories, each strategy gives up others, in its order. Beyond the
    greatest age a memory goes though there is room; one of exactly that age stays. Of equals the
    older goes, then what stands first: of messages that came at once, the first.
    """
    dear, read = "old-but-dear", "old-but-read-today"
    cases: tuple[tuple[int, Any, float, list[str]], ...] = (
        (2, "fifo", 1e9, [dear, read]),
        (2, "age", 1e9, [dear, read]),
        (2, "importance", 1e9, ["middling", "new"]),
        (2, "lru", 1e9, [dear, "middling"]),
        (10, "age", 150 * 86_400, [dear, read]),
        (10, "age", 200 * 86_400, [dear]),
        (1, "age", 150 * 86_400, [dear, read, "middling"]),
    )
    for keep, strategy, max_age_s, gone in cases:
        for rows in (ROWS, ROWS[::-1]):
            found = victims(rows, keep, strategy, max_age_s=max_age_s, **OPTIONS)
            assert found == gone, (keep, strategy, max_age_s)
    equals = [row(name, 5, accessed=5) for name in "cab"]
    every: tuple[Any, ...] = tuple(STRATEGIES)
    for strategy in every:
        assert victims(equals, 1, strategy, max_age_s=1e9, **OPTIONS) == ["c", "a"], strategy
    accessed = [row("a", 5, accessed=1), row("b", 6, accessed=1)]
    assert victims(accessed, 1, "lru", **OPTIONS) == ["b"]


def test_nonsense_is_refused() -> None:
    """S4.41: an unknown strategy, a negative number to keep and no age are errors."""
    with pytest.raises(ConfigError, match="'random'"):
        victims(ROWS, 1, "random", **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        victims(ROWS, -1, "fifo", **OPTIONS)
    with pytest.raises(InvalidInput, match="max_age_s"):
        victims(ROWS, 10, "age", **OPTIONS)


def test_formulas_differ() -> None:
    """S2.19, S4.41: the given formula lets a much-read trifle outlive what was called
    all-important; the bounded one does not.
    """
    rows = [row("trifle", 1, count=10, importance=0.0), row("vow", 1, importance=1.0)]
    assert victims(rows, 1, "importance", formula="seed", **OPTIONS) == ["vow"]
    assert victims(rows, 1, "importance", formula="bounded", **OPTIONS) == ["trifle"]


rows_strategy = st.lists(
    st.builds(
        PruneRow,
        st.text("abc", min_size=1, max_size=3),
        st.integers(NOW - 400 * DAY_US, NOW + DAY_US),
        st.none() | st.integers(NOW - 400 * DAY_US, NOW),
        st.integers(0, 5000),
        st.none() | st.floats(0, 1),
    ),
    max_size=12,
    unique_by=(lambda row: row.id, lambda row: row.created_us),  # of equals the first goes
)
strategies = st.sampled_from(STRATEGIES)


@given(
    rows_strategy,
    st.integers(0, 14),
    strategies,
    st.sampled_from(["bounded", "seed"]),
    st.randoms(),
)
def test_at_most_keep_stay(
    rows: list[PruneRow], keep: int, strategy: Any, formula: Any, random: Any
) -> None:
    """S4.41, S4.27: at most `keep` stay and none goes without need; the outcome does not depend on
    the order of the rows.
    """
    gone = victims(rows, keep, strategy, formula=formula, max_age_s=1e9, **OPTIONS)
    assert len(set(gone)) == len(gone) == max(len(rows) - keep, 0)
    assert set(gone) <= {one.id for one in rows}
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert victims(shuffled, keep, strategy, formula=formula, max_age_s=1e9, **OPTIONS) == gone


@given(
    rows_strategy,
    st.integers(0, 14),
    st.sampled_from(["bounded", "seed"]),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_monotone_in_importance(
    rows: list[PruneRow], keep: int, formula: Any, one: float, other: float
) -> None:
    """S2.20: of two memories that differ in importance alone, the more important never goes before
    the other.
    """
    if abs(one - other) < 1e-9:
        return
    twins = [
        PruneRow("twin-low", NOW - DAY_US, None, 3, min(one, other)),
        PruneRow("twin-high", NOW - DAY_US, None, 3, max(one, other)),
    ]
    gone = victims([*rows, *twins], keep, "importance", formula=formula, **OPTIONS)
    if "twin-high" in gone:
        assert gone.index("twin-low") < gone.index("twin-high")
