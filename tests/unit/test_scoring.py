"""What looks important without a model."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.actors.policies.scoring import heuristic_score, validate_score
from remora.errors import InvalidInput


def score(text: Any, role: str = "user", **more: Any) -> float:
    return heuristic_score({"role": role, "content": text, **more})


CALL = [
    {
        "id": "a",
        "type": "function",
        "function": {"name": "f", "arguments": '{"q": "my name is Ann, remember 7 May"}'},
    }
]

RAISED = [
    "I work nights.",
    "my daughter is called Ada",
    "My name is Ann.",
    "Please remember that the spare key hangs behind the door.",
    "I prefer tea to coffee",
    "never call before noon",
    "don\N{RIGHT SINGLE QUOTATION MARK}t forget the milk",
    "the flight leaves at 07:45",
    "the dentist, on tuesday",
    "we drove through Lisbon on the way",
    [
        {"type": "text", "text": "my sister is moving"},
        {"type": "image_url", "image_url": {"url": "x"}},
    ],
]
NEUTRAL = [
    "the train was late and the coffee cold",
    "",
    None,
    [{"type": "image_url", "image_url": {"url": "x"}}],
]
LOWERED = [
    "hi",
    "Hello there!",
    "Thanks a lot!",
    "ok",
    "okay, great, thanks",
    "👋 hey",
    "because",
    "what is the weather like?",
]


@pytest.mark.parametrize("text", RAISED, ids=str)
def test_what_raises(text: Any) -> None:
    """S4.35: statements in the first person, facts, preferences, numbers, dates, names and
    "remember" are above neutral.
    """
    assert score(text) > 0.5


@pytest.mark.parametrize("text", NEUTRAL, ids=str)
def test_what_is_neutral(text: Any) -> None:
    """S4.35: what shows no sign is neutral, a picture too."""
    assert score(text) == 0.5


@pytest.mark.parametrize("text", LOWERED, ids=str)
def test_what_lowers(text: str) -> None:
    """S4.35: greetings, thanks, one-word answers and bare questions are below neutral."""
    assert score(text) < 0.5


def test_order_of_a_conversation() -> None:
    """S4.35: what should outlive the rest does: explicit facts, then statements, then talk, then
    noise.
    """
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "Remember: my daughter's birthday is on 7 May."},
        {"role": "user", "content": "I moved to Lisbon last week"},
        {"role": "assistant", "content": "That sounds like a good change"},
        {"role": "assistant", "content": None, "tool_calls": CALL},
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": '{"I remember": "my name is Ann", "at": "7 May 2023"}',
        },
        {"role": "user", "content": "thanks!"},
    ]
    scores = [heuristic_score(chat) for chat in said]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)


def test_an_assistant_says_nothing_of_the_user() -> None:
    """S4.35: "I" and "my" count when the user says them; facts count whoever does."""
    assert score("I would say so, my guess is yes indeed", role="assistant") == 0.5
    assert score("your flight leaves at 07:45", role="assistant") > 0.5


words = st.sampled_from(
    [
        "my",
        "name",
        "is",
        "Ann",
        "remember",
        "I",
        "prefer",
        "7 May",
        "hi",
        "thanks",
        "?",
        "never",
        "on",
        "Monday",
        "\n",
        "don't forget",
    ]
)
texts = st.text() | st.lists(words).map(" ".join)
contents = (
    st.none() | texts | st.lists(texts.map(lambda text: {"type": "text", "text": text}), max_size=3)
)


@given(
    st.sampled_from(["user", "assistant", "system", "developer", "tool"]), contents, st.booleans()
)
def test_always_within_bounds(role: str, content: Any, calls: bool) -> None:
    """S4.35: any message scores from 0 to 1, by what a scorer's answer must be."""
    found = score(content, role, **({"tool_calls": CALL} if calls else {}))
    assert validate_score(found, "heuristic") == found


@pytest.mark.parametrize(
    "text",
    ["ok " * 100_000, "my " * 100_000, "Thanks" * 100_000, "a" * 1_000_000, "ok, " * 990 + "x"],
)
def test_long_texts_end(text: str) -> None:
    """S4.35: no text makes the patterns run wild."""
    assert 0 <= score(text) <= 1


@pytest.mark.parametrize(
    "value", [0, 1, 0.0, 1.0, 0.3, Fraction(1, 3), np.float32(0.5), np.int64(1)]
)
def test_good_scores(value: Any) -> None:
    """S4.35: any number from 0 to 1 is taken, numpy's too, and comes out as a float."""
    assert type(validate_score(value)) is float
    assert validate_score(value) == pytest.approx(float(value))


@pytest.mark.parametrize(
    "value",
    [-0.01, 1.01, math.nan, math.inf, 10**400, True, None, "0.5", [0.5], 1j],
    ids=lambda value: f"{value!r:.20}",
)
def test_bad_scores(value: Any) -> None:
    """S4.35: anything else is an error that names the scorer."""
    with pytest.raises(InvalidInput, match="the scorer mine must"):
        validate_score(value, "mine")
