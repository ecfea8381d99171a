"""Which memories go when there are too many: four strategies over plain rows.

A strategy orders the rows, and the first ones go until `keep` stay. Of equals the older one goes,
then the first in the list, so that a second run removes the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from remora.actors.policies.importance import Formula, Importance, importance_formula
from remora.errors import ConfigError, InvalidInput

PruningStrategy: TypeAlias = Literal["fifo", "age", "importance", "lru"]


class PruneRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of a memory that pruning needs.

    Attributes:
        id: the memory's id.
        created_us: when it was made, in microseconds since the epoch.
        accessed_us: when it was last retrieved; None for never.
        access_count: how often it was retrieved.
        importance: as given by its sender; None if not given.
    """

    id: str
    created_us: int
    accessed_us: int | None = None
    access_count: int = 0
    importance: float | None = None


def victims(
    rows: Sequence[PruneRow],
    keep: int,
    strategy: PruningStrategy,
    *,
    now_us: int,
    half_life_s: float,
    formula: Formula = "bounded",
    max_age_s: float | None = None,
) -> list[str]:
    """The ids to remove so that at most `keep` rows stay, in order.

    Args:
        rows: all of a user's memories of one kind; of equals, the first one goes first.
        keep: how many may stay.
        strategy: ``fifo``: the oldest first; ``age``: everything older than `max_age_s`, and the
            oldest beyond `keep`; ``importance``: the lowest score first; ``lru``: the least
            recently retrieved first, counting from creation for rows that were never retrieved.
        now_us: the present, in microseconds since the epoch.
        half_life_s: for ``importance``: seconds after which recency has halved.
        formula: for ``importance``: see `remora.actors.policies.importance`.
        max_age_s: for ``age``: seconds; a row of exactly this age stays.

    Raises:
        InvalidInput: `keep` is negative, ``age`` without `max_age_s`, or a number out of range in a
            row.
        ConfigError: no such strategy or formula.
    """
    if keep < 0:
        raise InvalidInput(f"pruning cannot keep {keep} memories")
    surplus = max(len(rows) - keep, 0)
    order = sorted(rows, key=lambda row: row.created_us)
    match strategy:
        case "fifo":
            pass
        case "age":
            if max_age_s is None:
                raise InvalidInput("pruning by age needs max_age_s")
            expired = sum(now_us - row.created_us > max_age_s * 1_000_000 for row in rows)
            surplus = max(surplus, expired)
        case "importance":
            score = importance_formula(formula)
            order.sort(key=lambda row: _score(row, score, now_us, half_life_s))
        case "lru":
            order.sort(key=_last_use_us)
        case _:
            raise ConfigError(
                f"pruning must be 'fifo', 'age', 'importance' or 'lru', not {strategy!r}",
                key="pruning",
            )
    return [row.id for row in order[:surplus]]


def _score(row: PruneRow, score: Importance, now_us: int, half_life_s: float) -> float:
    age_s = (now_us - row.created_us) / 1_000_000
    return score(age_s, row.access_count, row.importance, half_life_s=half_life_s)


def _last_use_us(row: PruneRow) -> int:
    return row.created_us if row.accessed_us is None else row.accessed_us
