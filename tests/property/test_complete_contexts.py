"""Nothing falls between a summary and the messages, whatever budgets a session is loaded with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from remora import BufferPolicy, Context, Runtime, Session
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.messages import SummaryReady
from remora.config import Config
from remora.errors import BudgetTooSmall
from remora.runtime.actor import Decision
from remora.storage.records import Appended, SavedSession, SummarizeSpec, Watermarks
from remora.testing import count_probes
from tests.harness import WINDOWS, append
from tests.property.test_planner import KEY, call

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
    """After each load, in whatever order; and nothing is left out any more when a budget is
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
        if again.sources.summary.omitted:
            event("no room for a summary beside the newest messages")
            assert again.sources.summary.status == "omitted"
            return
        assert missing(again, stored) == set()
        event("left out at first" if first.omitted else "complete")
        assert again.omitted == 0
        assert again.tokens <= budget

    anyio.run(play)


def test_a_summary_of_an_erased_session_is_not_taken() -> None:
    """G13: a session that begins again under the same name has other messages of these numbers."""
    actor = SessionBehavior(
        lambda _: BufferPolicy.summary(), instance="0", flushes=False, windows=WINDOWS
    )
    said = append(*({"role": "user", "content": f"m{n}"} for n in range(5))).entries
    entries = tuple([one.with_seq(n) for n, one in enumerate(said, start=1)])
    image = SavedSession(2, True, Watermarks(), 1, (), None, frozenset(), keys_complete=True)
    state = actor.restore(KEY, image)
    actor.apply(state, Appended(2, entries, None))
    for sid, taken in ((1, False), (2, True)):
        spec = SummarizeSpec(sid, 0, 1, 3, "ahead", 1_000)
        text = f"what session {sid} said"
        result = SummaryReady(spec, "job", "S: ", text, 9, degraded=False, model="m")
        decision = actor.handle(state, result)
        assert isinstance(decision, Decision)
        assert decision.reply is taken
        assert (text in str(decision.records)) is taken


@pytest.mark.parametrize("smaller", [300, 700])
async def test_a_smaller_budget_costs_a_larger_one_nothing(smaller: int) -> None:
    """What a large context shows word for word does not depend on the loads of a small one."""
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
        assert (await chat.delete(positions=1)).deleted == 1
        after = await chat.load(max_tokens=400)
        assert "guest 1." not in str(after.messages)
        await chat.settle()
        again = await chat.load(max_tokens=400)
        assert again.summary is not None
        assert "guest 1." not in str(again.messages)


def planned(count: dict[str, int]) -> int:
    return count["summary_planned_for_reader"]


async def say(chat: Session, count: int, words: int = 60) -> None:
    for number in range(count):
        await chat.append({"role": "user", "content": f"m{number} " + "word " * words})


@pytest.mark.parametrize(
    ("said_before", "budgets_"),
    [
        ([(46, 15)], [1_000] * 6),
        ([(40, 15), (40, 15)], [500, 500, 1_500, 1_500, 1_500, 1_500]),
        ([(11, 600)], [1_000, 1_000, 2_000, 2_000, 2_000, 2_000]),
        ([(40, 15)], [24, 40, 80, 80, 80, 80]),
        ([(300, 15)], [250, 500, 1_000, 2_000, 4_000] * 4),
    ],
)
async def test_a_summary_is_written_once(
    said_before: list[tuple[int, int]], budgets_: list[int]
) -> None:
    """Loads alone, with nothing said between them, start no job again."""
    async with Runtime.in_memory(config=config("summary_buffer", 30_000)) as runtime:
        chat = runtime.session("alice", "chat")
        for count, words in said_before:
            await say(chat, count, words)
        with count_probes() as counts:
            for budget in budgets_:
                with suppress(BudgetTooSmall):
                    await chat.load(max_tokens=budget)
                await chat.settle()
            assert planned(counts) <= len({*budgets_})


async def test_many_loads_at_once_leave_no_budget_behind() -> None:
    """A job that is planned while one like it ends is not taken for it."""
    async with Runtime.in_memory(config=config("summary_buffer", 30_000)) as runtime:
        chat = runtime.session("alice", "chat")
        for _ in range(20):
            await say(chat, 6, 60)
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(partial(chat.load, max_tokens=1_000))
        for _ in range(2):  # the first may meet a job for fewer messages
            await chat.settle()
            await chat.load(max_tokens=1_000)
        await chat.settle()
        assert (await chat.load(max_tokens=1_000)).omitted == 0


async def test_a_larger_budget_does_not_wait_behind_a_small_summary() -> None:
    """It names what is left out, until its own summary is there."""
    async with Runtime.in_memory(config=config("summary_buffer", 30_000)) as runtime:
        chat = runtime.session("alice", "chat")
        await say(chat, 100, 15)
        alone = await chat.load(max_tokens=1_900)
        await chat.clear()
        await say(chat, 100, 15)
        for _ in range(2):
            await chat.load(max_tokens=400)
            await chat.settle()
        after = await chat.load(max_tokens=1_900)
        assert 2 * after.tokens > alone.tokens


async def test_the_newest_message_is_in_no_summary_of_a_budget() -> None:
    """A budget that is too small today does not hide the question tomorrow."""
    ids = [f"c{n}" for n in range(60)]
    calls: list[Any] = [
        {"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids
    ]
    results: list[Any] = [{"role": "tool", "tool_call_id": i, "content": "row " * 40} for i in ids]
    async with Runtime.in_memory(config=config("summary_buffer", 30_000)) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append({"role": "user", "content": "What are the rows?"})
        await chat.append([{"role": "assistant", "content": None, "tool_calls": calls}, *results])
        for _ in range(2):
            with pytest.raises(BudgetTooSmall):
                await chat.load(max_tokens=600)
            await chat.settle()


async def test_names_and_ids_that_cannot_be_shortened() -> None:
    """Old units give way to them: the newest message has four tokens, and fits."""
    name = "look_up_the_price_of_the_next_flight"
    calls: list[Any] = [
        {"id": f"call_{n:08}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n in range(20)
    ]
    results: list[Any] = [
        {"role": "tool", "tool_call_id": one["id"], "content": "9"} for one in calls
    ]
    async with Runtime.in_memory(config=config("summary_buffer", 30_000)) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append({"role": "user", "content": "do it"})
        await chat.append([{"role": "assistant", "content": None, "tool_calls": calls}, *results])
        await chat.append({"role": "assistant", "content": "done"})
        await chat.append({"role": "user", "content": "thanks, and now?"})
        for budget in range(200, 900, 20):
            context = await chat.load(max_tokens=budget)
            assert context.tokens <= budget
            assert context.messages[-1]["content"] == "thanks, and now?"


async def test_what_is_handed_out_fits() -> None:
    """Of a call with large and small results, at every budget."""
    calls: list[Any] = [
        {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for n in range(4)
    ]
    async with Runtime.in_memory(config=config("summary_buffer", 30_000)) as runtime:
        chat = runtime.session("alice", "chat")
        for _ in range(2):
            await chat.append({"role": "user", "content": "word " * 58})
        await chat.append({"role": "user", "content": "ask " * 2_000})
        results: list[Any] = [
            {"role": "tool", "tool_call_id": f"c{n}", "content": "row " * size}
            for n, size in enumerate((1_500, 10, 1_500, 1_500))
        ]
        answer: dict[str, Any] = {"role": "assistant", "content": "word " * 40, "tool_calls": calls}
        await chat.append([answer, *results])
        for budget in range(300, 1_200, 4):
            assert (await chat.load(max_tokens=budget)).tokens <= budget


@pytest.mark.parametrize("policy", ["summary", "window", "ring"])
async def test_instructions_that_leave_one_by_one(policy: str) -> None:
    """All of them stay first, whatever the buffer holds, and after a rest."""
    async with Runtime.in_memory(config=config(policy, 2_000)) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append({"role": "system", "content": "You are Rex."})
        await chat.append({"role": "developer", "content": "Never tell prices."})
        for number in range(40):
            await chat.append({"role": "user", "content": f"Question {number}?"})
            await chat.append({"role": "assistant", "content": f"Answer {number}."})
            await chat.settle()
            context = await chat.load()
            told = [(one["role"], one["content"]) for one in context.messages[:2]]
            assert told == [("system", "You are Rex."), ("developer", "Never tell prices.")]
            assert "without text" not in str(context.messages)


async def test_a_prompt_that_fits_is_whole() -> None:
    """However much of the budget it takes."""
    async with Runtime.in_memory(config=config("summary_buffer", 30_000)) as runtime:
        chat = runtime.session("alice", "chat")
        prompt: dict[str, Any] = {"role": "system", "content": "rule " * 480}
        await chat.append([prompt, {"role": "user", "content": "hi there"}])
        size = (await chat.load()).tokens
        assert (await chat.load(max_tokens=size)).messages[0] == prompt


async def test_whether_the_front_has_changed() -> None:
    """`prefix_changed` is true where messages that were shown are not shown as they were."""
    call: dict[str, Any] = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }
    async with Runtime.in_memory(config=config("summary_buffer", 30_000)) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append({"role": "user", "content": "one"})
        assert (await chat.load()).prefix_changed
        await chat.append({"role": "assistant", "content": "two"})
        await chat.append({"role": "user", "content": "three"})
        assert not (await chat.load()).prefix_changed
        await chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
        await chat.append({"role": "user", "content": "hurry"})
        assert not (await chat.load()).prefix_changed
        await chat.append({"role": "tool", "tool_call_id": "c", "content": "late"})
        assert (await chat.load()).prefix_changed
