"""Statements that answer a question about its asker which has none of their words.

See `remora.languages.personal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remora.languages.personal import states
from remora.storage.ports import MemoryRow

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

__all__ = ["find_statements"]

_MOST_READ = 5_000  # messages, the newest, in 15 ms
_OLDEST = 0.8  # what the oldest statement counts: the newest is true


def find_statements(
    matter: str, rows: Sequence[MemoryRow], eligible: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64] | None:
    """Return what each row counts as a statement of a matter, 0.8 to 1, newer ones more.

    Shape (rows,).

    None if there is none. Only what users themselves said counts.

    Args:
        matter: see `remora.languages.personal.find_matter`.
        rows: in any order.
        eligible: which rows are searched, shape (rows,).
    """
    import numpy as np  # noqa: PLC0415

    is_statement = states(matter)
    mine = [place for place in eligible.nonzero()[0].tolist() if rows[place].role == "user"]
    mine.sort(key=lambda place: rows[place].created_us)
    found = [place for place in mine[-_MOST_READ:] if is_statement(rows[place].content)]
    if not found:
        return None
    counts = np.zeros(len(rows))
    counts[found] = np.linspace(_OLDEST, 1.0, len(found)) if len(found) > 1 else 1.0
    return counts
