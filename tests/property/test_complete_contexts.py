"""G14: nothing falls between a summary and the messages, whatever budgets a session is loaded with."""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from remora import Context, Runtime, Session
from remora.config import Config
from remora.errors import BudgetTooSmall
from tests.property.test_planner import call

pytestmark = pytest.mark.anyio
SIZES = st.integers(1, 60)
said = st.one_of(
    st.builds(lambda n: [{"role": "user", "content": "word " * n}], SIZES),
    st.builds(lambda n: [{"role": "assistant", "content": "reply " * n}], SIZES),
    st.builds(
        lambda n: [
            {"role": "user", "content": "look"},
            call(f"c{n}"),
            {"role": "tool", "tool_call_id": f"c{n}", "content": "row " * n * n},
        ],
        SIZES,
    ),
)
budgets = st.sampled_from([300, 500, 1_000, 3_000])
steps = st.lists(
    st.one_of(st.lists(said, min_size=1, max_size=8), budgets, st.just("restart")),
    min_size=1,
    max_size=12,
)


def config(policy: str, limit: int) -> Config:
    return Config.from_dict(
        {
            "buffer": {"policy": policy, "token_limit": limit, "size": 12, "batch": 4},
            "long_term": {"enabled": False},
            "tokens": {"counter": "heuristic"},
        }
    )


def missing(context: Context, stored: Sequence[int | None]) -> set[int | None]:
    """The stored messages that are neither shown, nor covered by a summary that is shown, nor named
    as left out.
    """
    there: set[int | None] = {one.seq for one in context.entries if one is not None}
    for part in (context.sources.summary.messages, context.sources.recent.messages):
        if part is not None:
            there.update(range(part.first, part.last + 1))
    return set(stored) - there


@given(steps, st.sampled_from(["summary_buffer", "summary", "ring"]), st.sampled_from([400, 2_000]))
def test_every_message_is_shown_or_summarized_or_named(
    plan: list[Any], policy: str, limit: int
) -> None:
    """G14: after each load, in whatever order; and nothing is left out any more when a budget is
    loaded again whose summary had time to be written.
    """

    async def play() -> None:
        async with Runtime.in_memory(config=config(policy, limit)) as runtime:
            chat = runtime.session("alice", "chat")
            for step in plan:
                if isinstance(step, list):
                    await chat.append([message for turn in step for message in turn])
                elif step == "restart":
                    await chat.rewind(len(await chat.history()))
                else:
                    await check(chat, step)

    async def check(chat: Session, budget: int) -> None:
        stored = [one.seq for one in await chat.history()]
        if not stored:
            return
        try:
            first = await chat.load(max_tokens=budget)
        except BudgetTooSmall:
            event("too small")
            return
        assert missing(first, stored) == set() or first.sources.summary.omitted
        await chat.settle()
        again = await chat.load(max_tokens=budget)
        assert missing(again, stored) == set()
        event("left out at first" if first.omitted else "complete")
        assert again.omitted == 0
        assert again.sources.summary.omitted == 0
        assert again.tokens <= budget

    anyio.run(play)


@pytest.mark.parametrize("smaller", [300, 700])
async def test_a_smaller_budget_costs_a_larger_one_nothing(smaller: int) -> None:
    """G14: what a large context shows word for word does not depend on the loads of a small one."""
    shown: list[list[int]] = []
    for others in (False, True):
        async with Runtime.in_memory(config=config("summary_buffer", 4_000)) as runtime:
            chat = runtime.session("alice", "chat")
            for number in range(60):
                await chat.append({"role": "user", "content": f"m{number} " + "word " * 30})
                if others:
                    await chat.load(max_tokens=smaller)
                await chat.settle()
            context = await chat.load(max_tokens=4_000)
            assert context.omitted == 0
            shown.append([one.seq for one in context.entries if one is not None])
    assert shown[0] == shown[1]
    assert len(shown[0]) > 20


async def test_the_summary_has_the_length_that_the_budget_needs() -> None:
    """No summary is cut in the middle of what it says: each budget gets one that fits."""
    async with Runtime.in_memory(config=config("summary_buffer", 8_000)) as runtime:
        chat = runtime.session("alice", "chat")
        for number in range(300):
            text = f"Locker {number} holds the coat of guest number {number * 7}."
            await chat.append({"role": "user", "content": text})
        for budget in (600, 1_500, 8_000):
            await chat.load(max_tokens=budget)
            await chat.settle()
            context = await chat.load(max_tokens=budget)
            assert "shortened" not in context.sources.summary.detail
            assert (context.omitted, context.sources.summary.omitted) == (0, 0)
            assert context.tokens <= budget


async def test_a_deleted_message_is_in_no_summary_of_a_smaller_budget() -> None:
    """G5: a summary that covers messages of the buffer goes when one of them does."""
    async with Runtime.in_memory(config=config("summary_buffer", 8_000)) as runtime:
        chat = runtime.session("alice", "chat")
        for number in range(60):
            text = f"The code of door {number} is {number * 1111}, said guest {number}."
            await chat.append({"role": "user", "content": text})
        for _ in range(2):
            context = await chat.load(max_tokens=400)
            await chat.settle()
        assert context.summary is not None
        assert "guest 1." in context.summary
        assert await chat.delete(1) == 1
        after = await chat.load(max_tokens=400)
        assert "guest 1." not in str(after.messages)
        await chat.settle()
        again = await chat.load(max_tokens=400)
        assert again.summary is not None
        assert "guest 1." not in str(again.messages)
