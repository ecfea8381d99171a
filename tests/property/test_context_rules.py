"""What a context begins with, what it says of what did not fit, and that it repeats nothing."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from remora import Context, Synopsis
from remora.actors.policies.units import presentable_units
from remora.blocks import StaticMemoryBlock
from remora.errors import BudgetTooSmall
from remora.messages import Entry, split_tool_calls
from remora.recall.fit import SaidTexts, same_words
from remora.tokens import count_message
from tests.harness import COUNTER, WINDOWS
from tests.property.test_planner import call, found, memory, planned, shown, tiers
from tests.unit.test_block_view import view

turns = st.one_of(
    st.builds(lambda n: [{"role": "user", "content": "word " * n}], st.integers(1, 30)),
    st.builds(lambda n: [{"role": "assistant", "content": "reply " * n}], st.integers(1, 30)),
    st.builds(
        lambda n: [call(f"c{n}"), {"role": "tool", "tool_call_id": f"c{n}", "content": "x " * n}],
        st.integers(0, 20),
    ),
    st.builds(  # a user who speaks while a tool runs
        lambda n: [
            call(f"d{n}"),
            {"role": "user", "content": "and? " * n},
            {"role": "tool", "tool_call_id": f"d{n}", "content": "x " * n},
        ],
        st.integers(1, 9),
    ),
    st.just([{"role": "system", "content": "Answer in one sentence."}]),
)
conversations = st.lists(turns, max_size=25).map(
    lambda some: [one for turn in some for one in turn]
)


def own(context: Context, entries: tuple[Entry, ...]) -> list[Entry]:
    """The stored messages that a context shows."""
    return [entries[one.seq - 1] for one in context.entries if one is not None]


def presented(entries: tuple[Entry, ...]) -> list[Entry]:
    """What a chat API accepts of these messages."""
    found = presentable_units(entries, WINDOWS.no_result)
    return [one for unit in found.units for one in unit]


@given(conversations, st.integers(0, 400))
def test_what_is_shown_where_not_everything_fits(batch: list[dict[str, Any]], budget: int) -> None:
    """Everything, as it is, where it fits. Otherwise the newest messages, the newest of the user
    and the instructions at the beginning, in order and within the budget; and the context says what
    is missing. Only a budget without room for a few words of them is refused.
    """
    show, entries = shown(batch)
    wanted = presented(entries)
    sizes = [one.tokens for one in wanted]
    instructions = list(takewhile(lambda one: one.role == "system", wanted))
    try:
        context = planned(show, budget, tiers(), query=None)
    except BudgetTooSmall:
        event("refused")
        assert budget < min(sum(one.tokens for one in instructions) + 24 * 3, sum(sizes))
        return
    mine = own(context, entries)
    assert context.tokens == sum(count_message(COUNTER, one) for one in context.messages) <= budget
    assert split_tool_calls(context.messages) == 0
    rest = iter(wanted)
    assert all(one in rest for one in mine), "in their order"
    source = context.sources.recent
    assert (source.omitted, source.count) == (context.omitted, len(mine))
    if sum(sizes) <= budget:
        assert mine == wanted
        assert source.shortened == 0
        return
    event("cut" if context.omitted else "shortened")
    assert mine[: len(instructions)] == instructions
    assert mine[-1] is wanted[-1] or wanted[-1] in instructions
    users = [one for one in wanted if one.role == "user"]
    assert not users or users[-1] in mine or budget < 24 * 3
    gone = sum(one.tokens for one in wanted) - context.tokens
    assert source.omitted_tokens == gone + sum(
        entries[place].tokens for place in range(len(batch)) if entries[place] not in wanted
    )
    assert source.status == ("omitted" if context.omitted else "degraded")


@given(conversations, st.integers(0, 600), st.sampled_from(["", "word " * 40]), st.booleans())
def test_a_context_begins_with_a_users_message(
    batch: list[dict[str, Any]], budget: int, summary: str, memories: bool
) -> None:
    """Where messages are left out, or a summary stands for them, the first message that is not a
    system message is a user's if one is shown or a model is to answer.
    """
    show, entries = shown(batch, summary=summary)
    recalled = [memory(f"memory number {n}", score=1 / (n + 1)) for n in range(4 * memories)]
    try:
        context = planned(show, budget, tiers(recalled), query="?" if memories else None)
    except BudgetTooSmall:
        return
    assert context.tokens == sum(count_message(COUNTER, one) for one in context.messages) <= budget
    assert split_tool_calls(context.messages) == 0
    mine = own(context, entries)
    roles = [one["role"] for one in context.messages if one["role"] != "system"]
    answers = bool(mine) and mine[-1].role not in {"assistant", "system"}
    if roles and (context.omitted or context.summary) and not context.memories:
        if context.omitted and any(one.role == "user" for one in mine):
            event("a user's message is there")
            assert roles[0] == "user"
        elif context.summary and answers:
            event("a summary stands before it")
            assert roles[0] == "user"


def test_a_conversation_that_begins_with_a_greeting_is_shown_whole() -> None:
    """Nothing before it is left out, so nothing is left out for its beginning either."""
    batch = [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Hi."}]
    show, _ = shown(batch)
    assert planned(show, 100, tiers(), query=None).messages == batch


# -- what does not fit -----------------------------------------------------------------------------

TEXT = "\n".join(f"Fact number {n}: the garden has {n} trees." for n in range(40))


@pytest.mark.parametrize("query", [None, "trees?"])
def test_a_summary_that_does_not_fit_is_shortened_and_says_so(query: str | None) -> None:
    """To half of the budget, at the end of a line or word; the source gives the figures."""
    show, _ = shown([{"role": "user", "content": "hello"}] * 30, summary=TEXT)
    context = planned(show, 200, tiers(), query=query)
    assert context.summary is not None
    assert TEXT.startswith(context.summary.removesuffix(" …"))
    assert context.summary.endswith(" …")
    source = context.sources.summary
    size = count_message(COUNTER, context.messages[0])
    whole = COUNTER.count(f"S: {TEXT}")
    assert 60 < size <= 100
    assert (source.status, source.count, source.omitted) == ("degraded", 1, 0)
    assert source.omitted_tokens == whole - size
    assert f"from {whole} to {size} tokens" in source.detail
    assert context.tokens <= 200
    again = planned(show, 200, tiers(), query=query)
    assert again.messages == context.messages, "the front is stable"


@pytest.mark.parametrize("query", [None, "trees?"])
def test_a_summary_without_any_room_is_reported(query: str | None) -> None:
    """Never silently off: its tokens, and how many messages it stands for."""
    batch = [{"role": "user", "content": "hello"}]
    show, _ = shown(batch, summary=TEXT)
    context = planned(show, 40, tiers(), query=query)
    assert context.summary is None
    source = context.sources.summary
    assert (source.status, source.count) == ("omitted", 0)
    assert source.omitted_tokens == COUNTER.count(f"S: {TEXT}")
    assert "do not fit" in source.detail
    assert context.messages == batch


def test_memories_that_do_not_fit_are_counted() -> None:
    """Both tiers say how many, with how many tokens."""
    show, _ = shown([{"role": "user", "content": "hello"}])
    many = [memory(f"memory number {n} " + "word " * 10, score=1 / (n + 1)) for n in range(16)]
    notes = [found(f"note number {n} " + "word " * 10, 0.01) for n in range(5)]
    context = planned(show, 400, tiers(many, notes))
    for source, given_, kept in (
        (context.sources.long_term, many, context.memories),
        (context.sources.working, notes, context.working),
    ):
        assert source.status == "omitted"
        assert source.count == len(kept)
        assert source.omitted == len(given_) - len(kept) > 0
        assert source.omitted_tokens > 0
        assert str(source.omitted) in source.detail


def test_a_synopsis_and_a_block_that_do_not_fit_are_counted() -> None:
    """S2.26, S2.30: with their tokens; a synopsis takes a quarter of a budget at most."""
    show, _ = shown([{"role": "user", "content": "hello"}])
    blocks = view(
        StaticMemoryBlock(name="long", static_content="word " * 300, priority=1), counter=COUNTER
    )
    asked = tiers(synopsis=Synopsis("word " * 100, "", "ok"))
    every = msgspec.structs.replace(asked, blocks=blocks)
    sources = planned(show, 100, every).sources
    assert (sources.synopsis.status, sources.synopsis.omitted) == ("omitted", 1)
    assert sources.synopsis.omitted_tokens > 100
    assert planned(show, 100, every).synopsis is None
    block = sources.blocks["long"]
    assert (block.status, block.count, block.omitted) == ("omitted", 0, 1)
    assert block.omitted_tokens > 300


# -- what is said once -----------------------------------------------------------------------------

SENTENCE = "I keep bees in Lisbon."


@pytest.mark.parametrize("summarized", [False, True])
@pytest.mark.parametrize("said_now", [False, True])
@pytest.mark.parametrize("in_block", [False, True])
def test_no_sentence_from_every_tier(*, summarized: bool, said_now: bool, in_block: bool) -> None:
    """S2.29: the same sentence in all tiers: what remora adds of its own repeats nothing that the
    summary, the conversation or a memory block of the application says.
    """
    latest = f"As I said: {SENTENCE} What now?" if said_now else "What now?"
    batch = [{"role": "user", "content": "Hello."}, {"role": "user", "content": latest}]
    text = f"The user wrote: i keep bees in lisbon. {'They talked. ' * 3}" if summarized else ""
    show, _ = shown(batch, summary=text)
    line = f"- 22 Nov 2026, User: {SENTENCE}"
    asked = tiers(
        [
            memory(SENTENCE),
            memory(SENTENCE, session="another", seq=7, score=0.9),
            memory("I KEEP bees in  Lisbon", score=0.8),
            memory("I like tea.", score=0.7),
        ],
        [found(SENTENCE), found("only here")],
        Synopsis(f"{line}\n- 1 May 2026, User: I like the sea.", line, "ok"),
    )
    content = f"Known: {SENTENCE}" if in_block else "Be brief."
    block = view(StaticMemoryBlock(name="rules", static_content=content), counter=COUNTER)
    every = msgspec.structs.replace(asked, blocks=block)
    context = planned(show, 2000, every)
    everything = "\n".join(str(one["content"]) for one in context.messages).casefold()
    profile = not summarized  # it may be in the profile if no summary has it
    assert everything.count("i keep bees in lisbon") == summarized + said_now + in_block + profile
    for text in ("i like tea", "only here", "i like the sea"):
        assert everything.count(text) == 1
    assert context.sources.long_term.status == context.sources.working.status == "ok"


def test_words_are_compared_whole() -> None:
    """A short text is not taken for a part of another word; marks at its ends do not count."""
    said = SaidTexts(["Annabelle likes art.", "My  password\nis Hunter2"])
    assert said.has("annabelle likes ART!")
    assert said.has("likes art")
    assert said.has("my password is hunter2")
    assert not said.has("Anna")
    assert not said.has("belle")
    assert not said.has("...")
    assert not said.has("password is hunter")


@given(st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_what_was_said_is_found(texts: list[str]) -> None:
    """Whatever its letters, case and blanks, and whether or not others were asked for before."""
    said = SaidTexts(texts[:1])
    said.add(texts[1:])
    for text in texts:
        asked = text.casefold().replace(" ", " \n\u2028 ")
        assert said.has(asked) == bool(same_words(text))


def test_a_profile_between_lines() -> None:
    """A profile whose lines the summary has is not shown at all."""
    show, _ = shown([{"role": "user", "content": "Hello."}], summary="I keep bees. I like tea.")
    about = Synopsis("- 22 Nov 2026, User: I keep bees.", "- 22 Nov 2026, User: I like tea.", "ok")
    context = planned(show, 2000, tiers(synopsis=about))
    assert context.synopsis is None
    assert [one["role"] for one in context.messages] == ["system", "user"]
