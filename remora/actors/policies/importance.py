"""How much a memory matters: by its age, its retrievals, and the importance that it was given.

Two formulas weigh the same three terms 0.3, 0.3 and 0.4:

- ``"bounded"``, the default, keeps each term and the score in 0…1; the access count is on a
logarithmic scale that ends at a thousand.
- ``"seed"`` is the formula of the source document, ``0.3 * recency + 0.3 * log(access_count + 1) +
0.4 * explicit``. Its logarithm has no bound: a memory that was read a thousand times scores 2.57,
and neither age nor importance can outweigh that.

The document calls recency `time_decay(created_at)` without a definition; here it halves with every
half-life. It writes `explicit or 0.5`, which turns an explicit 0.0 into the default; here only None
is the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from remora.errors import ConfigError, InvalidInput

DEFAULT_IMPORTANCE = 0.5
"""Importance of a memory whose sender gave none."""

Formula: TypeAlias = Literal["bounded", "seed"]

_RECENCY, _ACCESS, _EXPLICIT = 0.3, 0.3, 0.4
_FULL_COUNT = 1000  # more accesses make no difference


class Importance(Protocol):
    """A formula: a younger, more often retrieved or more important memory scores no lower."""

    def __call__(
        self, age_s: float, access_count: int, explicit: float | None, *, half_life_s: float
    ) -> float:
        """The score; memories with a higher one are kept longer and shown more often."""
        ...


def seed_importance(
    age_s: float, access_count: int, explicit: float | None, *, half_life_s: float
) -> float:
    """The document's formula, unbounded in `access_count`.

    Args:
        age_s: seconds since the memory was made; one from the future counts as new.
        access_count: how often it was retrieved.
        explicit: its given importance; None counts as 0.5.
        half_life_s: seconds after which recency has halved.

    Raises:
        InvalidInput: a number that is not finite, a negative count, or a half-life that is not
            positive.
    """
    recency, explicit = _terms(age_s, access_count, explicit, half_life_s)
    return _RECENCY * recency + _ACCESS * math.log(access_count + 1) + _EXPLICIT * explicit


def bounded_importance(
    age_s: float, access_count: int, explicit: float | None, *, half_life_s: float
) -> float:
    """The same three terms, each in 0…1.

    Takes and raises what `seed_importance` does; the count is scaled to ``log(n + 1) / log(1001)``
    and clipped at 1, `explicit` is clipped to 0…1.
    """
    recency, explicit = _terms(age_s, access_count, explicit, half_life_s)
    access = math.log(min(access_count, _FULL_COUNT) + 1) / math.log(_FULL_COUNT + 1)
    return _RECENCY * recency + _ACCESS * access + _EXPLICIT * min(max(explicit, 0.0), 1.0)


def importance_formula(formula: Formula) -> Importance:
    """The formula of that name.

    Raises:
        ConfigError: there is none.
    """
    found: Callable[..., float] | None = {
        "bounded": bounded_importance,
        "seed": seed_importance,
    }.get(formula)
    if found is None:
        raise ConfigError(
            f"importance must be 'bounded' or 'seed', not {formula!r}", key="importance"
        )
    return found


def _terms(
    age_s: float, access_count: int, explicit: float | None, half_life_s: float
) -> tuple[float, float]:
    """Recency in 0…1, and the explicit importance."""
    if not (math.isfinite(half_life_s) and half_life_s > 0):
        raise InvalidInput(f"a half-life must be a positive number of seconds, not {half_life_s!r}")
    if not math.isfinite(age_s):
        raise InvalidInput(f"an age must be a finite number of seconds, not {age_s!r}")
    if access_count < 0:
        raise InvalidInput(f"an access count must not be negative: {access_count!r}")
    if explicit is None:
        explicit = DEFAULT_IMPORTANCE
    elif not math.isfinite(explicit):
        raise InvalidInput(f"an importance must be a finite number, not {explicit!r}")
    return 0.5 ** (max(float(age_s), 0.0) / half_life_s), float(explicit)
