"""Cuts and contexts: no tool call is ever separated from its result."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remora.actors.policies.units import (
    Presentable,
    cut_to_keep,
    length_before_open_call,
    newest_units,
    presentable_units,
    units,
)
from remora.messages import Entry, decode_chat, split_tool_calls
from tests.harness import WINDOWS, entry


def user(text: str = "hello there") -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str = "well, hello") -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(*ids: str) -> dict[str, Any]:
    calls = [
        {"id": id_, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for id_ in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id_: str, text: str = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": text}


def entries(*messages: dict[str, Any]) -> list[Entry]:
    return [entry(message, seq) for seq, message in enumerate(messages, start=1)]


def shown(found: list[Entry]) -> list[int]:
    return [e.seq for unit in presented(found).units for e in unit]


def by_tokens(one: Entry) -> int:
    return one.tokens


def presented(found: list[Entry]) -> Presentable:
    return presentable_units(found, WINDOWS.no_result)


def test_units_keep_calls_with_results() -> None:
    """G8: a unit holds an assistant's calls and all their results, in any order. Providers reuse
    ids within one conversation; an id says nothing beyond its own unit.
    """
    found = entries(user(), call("a", "b"), result("b"), result("a"), assistant())
    assert [(u.start, u.end) for u in units(found)] == [(0, 1), (1, 4), (4, 5)]
    found = entries(call("x"), result("x"), call("x"), result("x"), user())
    assert [(u.start, u.end) for u in units(found)] == [(0, 2), (2, 4), (4, 5)]
    twins = entries(call("x", "x"), result("x"), result("x"), user())
    assert [(u.start, u.end) for u in units(twins)] == [(0, 3), (3, 4)]
    assert shown(twins) == [1, 2, 3, 4]


@given(
    st.lists(
        st.one_of(
            st.sampled_from([user(), assistant(), call("a"), call("a", "b"), call("x", "x")]),
            st.sampled_from([result("a"), result("b"), result("x")]),
        ),
        max_size=12,
    )
)
def test_units_from_the_back(messages: list[dict[str, Any]]) -> None:
    """They are those from the front, whichever message a reader stops at."""
    found = entries(*messages)
    backwards = [(u.start, u.tokens) for u in reversed(units(found))]
    assert list(newest_units(found)) == backwards


def test_what_reaches_a_chat_api() -> None:
    """G2, G8: a user who speaks between call and result is kept, and shown after the pair. A call
    whose result has not come is not shown; `awaiting` names it. Neither is a call that a crash left
    unanswered, nor a result without a call.
    """
    found = entries(user(), call("a"), user("wait"), result("a"), assistant())
    assert shown(found) == [1, 2, 4, 3, 5]
    found = entries(user(), call("a", "b"), result("a"))
    assert shown(found) == [1]
    waiting = presented(found)
    assert (waiting.awaiting, waiting.orphans, len(waiting.withheld)) == (("b",), 0, 2)
    assert length_before_open_call(found) == 1
    found = entries(
        result("z"), user(), call("a"), user("are you there?"), assistant(), result("a")
    )
    assert (shown(found), presented(found).orphans) == ([2, 3, 6, 4, 5], 1)
    found = entries(user(), call("a", "b"), result("a"), user("are you there?"))
    assert (shown(found), presented(found).awaiting) == ([1, 2, 3, 0, 4], ("b",))
    closed = presented(found).units[1][2]
    assert (closed.answers, b"no result" in closed.chat) == ("b", True)


def test_orphan_never_blocks_folding() -> None:
    """G8: a dead agent's open call holds the cut only until others have said more than is kept;
    results that answer nothing open do not keep it alive.
    """

    def cut(found: list[Entry]) -> int:
        return cut_to_keep(found, 25, sum(one.tokens for one in found), by_tokens)

    others = (user("x" * 40) for _ in range(10))
    assert cut(entries(user(), user(), call("a"), *others)) > 3
    stray = (result("a", "x" * 40) for _ in range(10))
    assert cut(entries(user(), user(), call("a", "b"), *stray)) > 3
    patient = entries(user(), user(), call("a", "b"), result("a", "y" * 400))
    assert cut(patient) == 2, "a call that still waits for its second result is kept whole"


def test_cut_keeps_at_most_half_or_the_last_unit() -> None:
    """S1.09: the kept tail fits, or is exactly the newest unit."""
    found = entries(user("a" * 40), user("b" * 40), user("c" * 40), user("d" * 400))
    assert cut_to_keep(found, 25, sum(e.tokens for e in found), by_tokens) == 3
    assert cut_to_keep(found[:3], 25, sum(e.tokens for e in found[:3]), by_tokens) == 1
    assert cut_to_keep(found[3:], 25, sum(e.tokens for e in found[3:]), by_tokens) == 0


message = st.one_of(
    st.builds(user, st.text(max_size=60)),
    st.builds(assistant, st.text(max_size=60)),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda ids: call(*ids)),
    st.builds(result, st.sampled_from("abc"), st.text(max_size=60)),
)


@given(st.lists(message, max_size=25), st.integers(0, 60))
def test_no_cut_and_no_context_splits_a_pair(messages: list[dict[str, Any]], keep: int) -> None:
    """G8: whatever was appended, in whatever order, what is shown pairs up, and a cut leaves pairs
    whole.
    """
    found = entries(*messages)
    assert (
        split_tool_calls([decode_chat(e.chat) for unit in presented(found).units for e in unit])
        == 0
    )
    if found:
        cut = cut_to_keep(found, keep, sum(e.tokens for e in found), by_tokens)
        kept = sum(e.tokens for e in found[cut:])
        assert kept <= keep or cut == 0 or len(units(found[cut:])) == 1
        everything = shown(found)
        assert (
            not cut
            or [s for s in everything if s > cut] == shown(found[cut:])
            or any(u.awaiting for u in units(found))
        ), "what is kept looks as it looked before the cut"
