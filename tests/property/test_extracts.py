"""An extract that continues one whose sentences are held is the one that reads them again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import Line
from remora.models.extractive import ExtractiveSummarizer, recent_extracts
from remora.tokens import TiktokenCounter

COUNTER = TiktokenCounter()
SENTENCES = st.sampled_from(
    [
        "I moved to Lisbon on 3 May.",
        "Do you like the tram?",
        "Der Zug nach Berlin war leider wieder zu spät.",
        "Ja.",
        "La voiture est dans le garage de ma sœur.",
        "明天我们去北京。",
        "He said: yes\u2028 and left.",
        "[asked] What is it?",
        "asked: one | two",
        "version 1.2.3 costs 40 €",
        "word.der und das",
        "- 8 May 2023, Ann: quoted",
        "A" * 700 + ".",
        "",
    ]
)
NAMES = st.sampled_from(["Ann", "User", "Dr: Who", "line\u2028end", "Zoë", "a\tb"])
LINES = st.builds(
    lambda speaker, said, day: Line("user", speaker, " ".join(said), day * 86_400_000_000),
    NAMES,
    st.lists(SENTENCES, min_size=1, max_size=4),
    st.integers(0, 20_000),
)


@pytest.fixture(autouse=True)
def holds_none() -> Iterator[None]:
    yield
    recent_extracts.hold(0)


def extracts(rounds: list[list[Line]], most: int) -> list[str]:
    summarizer, previous, found = ExtractiveSummarizer(COUNTER.count), None, []
    for lines in rounds:
        previous = summarizer.extract(previous, lines, most).strip()
        found.append(previous)
    return found


@given(st.lists(st.lists(LINES, min_size=1, max_size=12), min_size=2, max_size=5))
def test_what_is_held_is_what_would_be_read(rounds: list[list[Line]]) -> None:
    for most in (30, 120, 2_000):
        recent_extracts.hold(0)
        read = extracts(rounds, most)
        recent_extracts.hold(4)
        assert extracts(rounds, most) == read
