"""The comparison of two kinds of runtime sees what a caller could see."""

from __future__ import annotations

from typing import Any

import pytest

from remora import Message, Receipt
from remora.actors.session.messages import TurnReceipt
from remora.errors import IndexOutOfRange, InvalidInput
from tests.outcomes import find_differences, outcome_of

pytestmark = pytest.mark.anyio

RECEIPT = Receipt((1,), ("msg_1a2b3c1_1",))


def _raises(error: Exception) -> Any:
    async def call() -> None:
        raise error

    return call


def _returns(value: object) -> Any:
    async def call() -> object:
        return value

    return call


async def test_results_differ_in_values_and_types() -> None:
    one_message, other_message = (Message(role="user", content=text) for text in "ab")
    cases: tuple[tuple[Any, Any, str], ...] = (
        ([1, (2, 3)], [1, [2, 3]], ".result[2][0]"),
        ({"a": [1]}, {"a": [True]}, ".result.a[1]"),
        (RECEIPT, TurnReceipt((1,), ("msg_1a2b3c1_1",)), ".result[0]"),
        (RECEIPT, Receipt((2,), ("msg_1a2b3c1_1",)), ".result[1].seqs[1]"),
        (one_message, other_message, ".result[1].content"),
        ([1], [1, 2], ".result"),
        (None, [], ".result"),
    )
    for one, other, where in cases:
        found = [await outcome_of(_returns(value)) for value in (one, other, one)]
        assert find_differences(found[0], found[1])[0].partition(":")[0] == where
        assert find_differences(found[0], found[2]) == [], where


async def test_errors_differ_in_class_text_and_attributes() -> None:
    outcomes = [
        await outcome_of(_raises(error))
        for error in (
            InvalidInput("no"),
            InvalidInput("not"),
            IndexOutOfRange("no", places=(1,)),
            IndexOutOfRange("no", places=(2,)),
        )
    ]
    for number, one in enumerate(outcomes):
        for other in outcomes[:number]:
            assert find_differences(one, other)
        assert not find_differences(one, one)


async def test_what_names_a_memory_is_replaced() -> None:
    names = {"1a2b3c": "INSTANCE", "/tmp/one": "PATH"}
    kept = await outcome_of(_returns([RECEIPT, {"/tmp/one/x": 1}]), names)
    other = Receipt((1,), ("msg_INSTANCE1_1",))
    assert not find_differences(kept, await outcome_of(_returns([other, {"PATH/x": 1}])))
    raised = await outcome_of(_raises(InvalidInput("/tmp/one is no export")), names)
    assert raised.text == "PATH is no export"
