"""What tools found is recalled, and what customers said besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remora import Runtime

pytestmark = pytest.mark.anyio

ORDERS = ("W2702727", "W7895761", "W1588712", "W4923227", "W5481803")
CITIES = ("Phoenix", "Denver", "Austin", "Boston", "Miami")


def look_up(number: int, order: str) -> list[dict[str, Any]]:
    """A tool's call and its result, as agents store them."""
    arguments = json.dumps({"order_id": order})
    function = {"name": "get_order", "arguments": arguments}
    result = {
        "order_id": order,
        "user_id": f"user_{number}_64{number}0",
        "address": {"street": f"71{number} Sunset Drive", "city": CITIES[number]},
        "items": [{"name": "speaker", "item_id": f"775190525{number}", "price": 321.18}] * 3,
        "payments": [{"amount": 321.18 + number, "method": f"credit_card_855468{number}"}],
        "status": "pending",
    }
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)},
    ]


async def test_the_result_about_an_order_is_found_by_its_number(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        user = runtime.user("shop")
        for number, order in enumerate(ORDERS):
            await user.session(f"order-{number}").append(
                [
                    {"role": "user", "content": f"Can you check the shipping address of {order}?"},
                    *look_up(number, order),
                    {"role": "assistant", "content": f"The shipping address of {order} is there."},
                ]
            )
        for number, order in enumerate(ORDERS):
            found = await user.recall(f"What is the shipping address of order #{order}?", limit=2)
            assert any(CITIES[number] in one.text for one in found), found


async def test_results_of_parallel_calls_are_each_found(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        user = runtime.user("shop")
        calls, results = [], []
        for number, order in enumerate(ORDERS):
            asked, told = look_up(number, order)
            calls.append({**asked["tool_calls"][0], "id": f"call_{number}"})
            results.append({**told, "tool_call_id": f"call_{number}"})
        await user.session("all").append(
            [
                {"role": "user", "content": "What about my orders?"},
                {"role": "assistant", "content": None, "tool_calls": calls},
                *results,
                {"role": "assistant", "content": "All of them are pending."},
            ]
        )
        for number, order in enumerate(ORDERS):
            (first,) = await user.recall(f"Which city does {order} go to?", limit=1)
            assert CITIES[number] in first.text
