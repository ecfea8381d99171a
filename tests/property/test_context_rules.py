"""What a context begins with, what it says of what did not fit, and that it repeats nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from remora import Context
from remora.actors.policies.units import presentable_units
from remora.actors.user.messages import Synopsis
from remora.blocks import StaticMemoryBlock
from remora.messages import Entry, split_tool_calls
from remora.recall.repeats import SaidTexts, same_words
from remora.tokens import count_message
from tests.harness import COUNTER
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


def fitting(entries: tuple[Entry, ...], budget: int) -> list[Entry]:
    """The newest whole units that fit, from a user's message on if some are left out."""
    units, _, _ = presentable_units(entries)
    left = list(units)
    while sum(one.tokens for unit in left for one in unit) > budget:
        left.pop(0)
    wanted = [one for unit in left for one in unit]
    if len(left) < len(units) and any(one.role == "user" for one in wanted):
        while next(one.role for one in wanted if one.role != "system") != "user":
            wanted.pop(0)
        while wanted[0].role == "system" and wanted[1].role not in {"user", "system"}:
            wanted.pop(0)
    return wanted


@given(conversations, st.integers(0, 400))
def test_cuts_fall_on_messages_of_the_user(batch: list[dict[str, Any]], budget: int) -> None:
    """Nothing but what does not fit, and what is before the first user's message, is left out."""
    snapshot, entries = shown(batch, budget)
    context = planned(snapshot, budget, tiers(), query=None)
    mine = own(context, entries)
    wanted = fitting(entries, budget)
    if context.omitted:
        event("cut")
    assert [one.seq for one in mine if one.role != "system"] == [
        one.seq for one in wanted if one.role != "system"
    ]
    assert context.sources.recent.omitted == context.omitted
    assert context.sources.recent.status == ("omitted" if context.omitted else "ok")
    gone = {one.seq for unit in presentable_units(entries)[0] for one in unit}
    gone -= {one.seq for one in mine}
    assert context.sources.recent.omitted_tokens == sum(entries[seq - 1].tokens for seq in gone)


@given(conversations, st.integers(0, 600), st.sampled_from(["", "word " * 40]), st.booleans())
def test_a_context_begins_with_a_users_message(
    batch: list[dict[str, Any]], budget: int, summary: str, memories: bool
) -> None:
    """Where messages are left out, or a summary stands for them, the first message that is not a
    system message is a user's if one is shown or a model is to answer; groups stay whole, the
    newest messages are there, and the budget holds.
    """
    snapshot, entries = shown(batch, budget, summary=summary)
    recalled = [memory(f"memory number {n}", score=1 / (n + 1)) for n in range(4 * memories)]
    context = planned(snapshot, budget, tiers(recalled), query="?" if memories else None)
    assert context.tokens == sum(count_message(COUNTER, one) for one in context.messages) <= budget
    assert split_tool_calls(context.messages) == 0
    mine = own(context, entries)
    roles = [one["role"] for one in context.messages if one["role"] != "system"]
    answers = bool(mine) and mine[-1].role != "assistant"
    if roles and (context.omitted or context.summary) and not context.memories:
        if context.omitted and any(one.role == "user" for one in mine):
            event("a user's message is there")
            assert roles[0] == "user"
        elif context.summary and answers:
            event("a summary stands before it")
            assert roles[0] == "user"
    units, _, _ = presentable_units(entries)
    if units and budget // 2 >= sum(one.tokens for one in units[-1]):
        assert mine, "the newest unit fits beside any summary"
        assert mine[-1] is units[-1][-1]


def test_a_conversation_that_begins_with_a_greeting_is_shown_whole() -> None:
    """Nothing before it is left out, so nothing is left out for its beginning either."""
    batch = [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Hi."}]
    snapshot, _ = shown(batch, 100)
    assert planned(snapshot, 100, tiers(), query=None).messages == batch


# -- what does not fit -----------------------------------------------------------------------------

TEXT = "\n".join(f"Fact number {n}: the garden has {n} trees." for n in range(40))


@pytest.mark.parametrize("query", [None, "trees?"])
def test_a_summary_that_does_not_fit_is_shortened_and_says_so(query: str | None) -> None:
    """To half of the budget, at the end of a line or word; the source gives the figures."""
    snapshot, _ = shown([{"role": "user", "content": "hello"}] * 30, 200, summary=TEXT)
    context = planned(snapshot, 200, tiers(), query=query)
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
    again = planned(snapshot, 200, tiers(), query=query)
    assert again.messages == context.messages, "the front is stable"


@pytest.mark.parametrize("query", [None, "trees?"])
def test_a_summary_without_any_room_is_reported(query: str | None) -> None:
    """Never silently off: its tokens, and how many messages it stands for."""
    batch = [{"role": "user", "content": "hello"}]
    snapshot, _ = shown(batch, 40, summary=TEXT)
    context = planned(snapshot, 40, tiers(), query=query)
    assert context.summary is None
    source = context.sources.summary
    assert (source.status, source.count) == ("omitted", 0)
    assert source.omitted_tokens == COUNTER.count(f"S: {TEXT}")
    assert "do not fit" in source.detail
    assert context.messages == batch


def test_memories_that_do_not_fit_are_counted() -> None:
    """Both tiers say how many, with how many tokens."""
    snapshot, _ = shown([{"role": "user", "content": "hello"}], 400)
    many = [memory(f"memory number {n} " + "word " * 10, score=1 / (n + 1)) for n in range(16)]
    notes = [found(f"note number {n} " + "word " * 10, 0.01) for n in range(5)]
    context = planned(snapshot, 400, tiers(many, notes))
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
    snapshot, _ = shown([{"role": "user", "content": "hello"}], 100)
    blocks = view(
        StaticMemoryBlock(name="long", static_content="word " * 300, priority=1), counter=COUNTER
    )
    asked = tiers(synopsis=Synopsis("word " * 100, "", "ok"))
    every = msgspec.structs.replace(asked, blocks=blocks)
    sources = planned(snapshot, 100, every).sources
    assert (sources.synopsis.status, sources.synopsis.omitted) == ("omitted", 1)
    assert sources.synopsis.omitted_tokens > 100
    assert planned(snapshot, 100, every).synopsis is None
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
    snapshot, _ = shown(batch, 2000, summary=text)
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
    context = planned(snapshot, 2000, every)
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
    snapshot, _ = shown(
        [{"role": "user", "content": "Hello."}], 2000, summary="I keep bees. I like tea."
    )
    about = Synopsis("- 22 Nov 2026, User: I keep bees.", "- 22 Nov 2026, User: I like tea.", "ok")
    context = planned(snapshot, 2000, tiers(synopsis=about))
    assert context.synopsis is None
    assert [one["role"] for one in context.messages] == ["system", "user"]
