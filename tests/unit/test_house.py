"""The house stays small: these figures may fall, and do not rise unnoticed."""

from __future__ import annotations

import pytest

from tools.house import measure

pytestmark = [pytest.mark.blocking, pytest.mark.cold]

MOST = {
    "modules that an append enters": 21,
    "moves of an append": 40,
    "parameters whose type is Any": 137,
    "modules": 424,  # 13 import what other products export, each product in one; 8 are of systems
    "modules that `import remora` loads": 4,
}


PUBLIC = 97
"""How many test files import public modules alone, at least."""


def test_few_rooms() -> None:
    """Who adds a room says here why; `python -m tools.house` prints the figures."""
    figures = measure()
    for name, most in MOST.items():
        assert figures[name] <= most, name
    assert figures["test files that import public modules alone"] >= PUBLIC
