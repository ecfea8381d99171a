"""A pytest plugin: coverage knows which test executes a line; `tools.mutants` asks it.

``tasks.py coverage`` loads it.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
from coverage import Coverage

__all__ = ["pytest_runtest_protocol"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Name the context after the test."""
    measuring = Coverage.current()
    if measuring is not None:
        measuring.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if measuring is not None:
            measuring.switch_context("")
