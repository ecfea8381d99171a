"""LangGraph's conformance package over the checkpointer, a test for each of its checks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.report import ProgressCallbacks
from langgraph.checkpoint.memory import InMemorySaver

_found: dict[str, str | None] = {}


@checkpointer_test(name="saver")
async def _saver() -> AsyncIterator[Any]:
    yield InMemorySaver()


def _note(capability: str, name: str, passed: bool, error: str | None) -> None:
    _found[f"{capability}.{name}"] = None if passed else error or "failed"


asyncio.run(validate(_saver, progress=ProgressCallbacks(on_test_result=_note)))


@pytest.mark.parametrize("check", sorted(_found))
def test_conformance(check: str) -> None:
    assert _found[check] is None
