"""Of a long memory, a context shows the part that answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from remora import Memory
from remora.recall.gather import show_parts
from remora.recall.memory import LONG_TOKENS


def memory(text: str, tokens: int) -> Memory:
    return Memory(text, "tool", "", "desk-1", 13, datetime(2026, 1, 1, tzinfo=UTC), 1.0, {}, tokens)


def test_the_field_that_answers_is_shown() -> None:
    items = [{"name": f"thing {n}", "price": n * 3.5, "colour": "red"} for n in range(90)]
    result = {"order_id": "W4711", "items": items, "ship_to": {"city": "Ghent", "zip": "9000"}}
    whole = memory(json.dumps(result), 1_800)
    (shown,) = show_parts([whole], "To which city is order W4711 shipped?")
    assert '"city":"Ghent"' in shown.text
    assert "W4711" in shown.text
    assert len(shown.text) < 800
    assert shown.tokens < 300
    assert "message 13 of desk-1" in shown.text
    (other,) = show_parts([whole], "How much was thing 77?")
    assert '"price":269.5' in other.text


def test_the_lines_that_answer_are_shown() -> None:
    lines = [f"Line {n} is about nothing at all, and goes on for a while." for n in range(80)]
    lines[60] = "The spare key hangs in the boat house."
    (shown,) = show_parts([memory("\n".join(lines), 1_200)], "Where is the spare key?")
    assert "The spare key hangs in the boat house." in shown.text
    assert lines[0] in shown.text
    assert "…" in shown.text


def test_a_short_one_is_shown_as_it_is() -> None:
    short = memory("x" * 5_000, LONG_TOKENS)
    assert show_parts([short], "x") == [short]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=60),
    lambda some: (
        st.lists(some, max_size=8) | st.dictionaries(st.text(max_size=9), some, max_size=8)
    ),
    max_leaves=60,
)


@given(values, st.text(max_size=40), st.integers(1, 9))
def test_any_text_gets_no_longer(value: object, query: str, times: int) -> None:
    text = json.dumps(value) * times
    (shown,) = show_parts([memory(text, 2_000)], query)
    assert len(shown.text) <= max(len(text), 1_400)
    assert shown.tokens <= 2_000


def test_numbers_are_shown_as_they_are_written_and_depth_does_no_harm() -> None:
    text = '{"price": 1.10, "id": 12345678901234567.89, "log": "' + "y" * 5_000 + '"}'
    (shown,) = show_parts([memory(text, 1_500)], "What is the price?")
    assert "price: 1.10" in shown.text
    assert "id: 12345678901234567.89" in shown.text
    deep = '{"a":' * 990 + '"word ' + "y z " * 500 + '"' + "}" * 990
    (shown,) = show_parts([memory(deep, 2_000)], "word")
    assert len(shown.text) < 1_500
