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


ARGUMENTS = '{"q": "my name is Ann, remember 7 May"}'
CALL = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}]

IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
RAISED: list[Any] = [
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
    [{"type": "text", "text": "my sister is moving"}, IMAGE],
]
NEUTRAL: list[Any] = ["the train was late and the coffee cold", "", None, [IMAGE]]
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


def test_what_raises_and_lowers() -> None:
    """S4.35: statements in the first person, facts, preferences, numbers, dates, names and
    "remember" are above neutral; greetings, thanks, one-word answers and bare questions below. What
    shows no sign is neutral, a picture too.
    """
    assert [text for text in RAISED if score(text) <= 0.5] == []
    assert [text for text in NEUTRAL if score(text) != 0.5] == []
    assert [text for text in LOWERED if score(text) >= 0.5] == []


def test_order_of_a_conversation() -> None:
    """S4.35: what should outlive the rest does: explicit facts, then statements, then talk, then
    noise.
    """
    found = '{"I remember": "my name is Ann", "at": "7 May 2023"}'
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "Remember: my daughter's birthday is on 7 May."},
        {"role": "user", "content": "I moved to Lisbon last week"},
        {"role": "assistant", "content": "That sounds like a good change"},
        {"role": "assistant", "content": None, "tool_calls": CALL},
        {"role": "tool", "tool_call_id": "a", "content": found},
        {"role": "user", "content": "thanks!"},
    ]
    scores = [heuristic_score(chat) for chat in said]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)


def test_an_assistant_says_nothing_of_the_user() -> None:
    """S4.35: "I" and "my" count when the user says them; facts count whoever does."""
    assert score("I would say so, my guess is yes indeed", role="assistant") == 0.5
    assert score("your flight leaves at 07:45", role="assistant") > 0.5


TALK = "my,name,is,Ann,remember,I,prefer,7 May,hi,thanks,?,never,on,Monday,\n,don't forget"
words = st.sampled_from(TALK.split(","))
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


def test_long_texts_end() -> None:
    """S4.35: no text makes the patterns run wild."""
    for text in ("ok " * 100_000, "my " * 100_000, "Thanks" * 100_000, "a" * 1_000_000):
        assert 0 <= score(text) <= 1
    assert 0 <= score("ok, " * 990 + "x") <= 1


def test_what_a_scorer_may_answer() -> None:
    """S4.35: any number from 0 to 1 is taken, numpy's too, and comes out as a float; anything else
    is an error that names the scorer.
    """
    good: tuple[Any, ...] = (0, 1, 0.0, 1.0, 0.3, Fraction(1, 3), np.float32(0.5), np.int64(1))
    for value in good:
        assert type(validate_score(value)) is float
        assert validate_score(value) == pytest.approx(float(value))
    bad: tuple[Any, ...] = (-0.01, 1.01, math.nan, math.inf, 10**400, True, None, "0.5", [0.5], 1j)
    for value in bad:
        with pytest.raises(InvalidInput, match="the scorer mine must"):
            validate_score(value, "mine")
