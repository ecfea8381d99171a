"""Of what was said about one matter, the newest comes first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from remora import Message, Runtime

pytestmark = pytest.mark.anyio

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("question", "older", "newer"),
    [
        (
            "What is my phone number?",
            "My phone number is 912 345 678 in case the courier asks.",
            "I have a new number: 933 222 111, the old one is dead.",
        ),
        (
            "What page size does the API use?",
            "For the API we decided on cursor pagination with a page size of 50.",
            "Correction: page size is 100, the mobile team asked for it.",
        ),
        (
            "When is my dentist appointment?",
            "My dentist appointment is on 3 March at 10.",
            "My dentist appointment is on 9 March at 8.",
        ),
        (
            "Which gym am I a member of?",
            "My gym is FitHouse on Mill Street.",
            "I cancelled FitHouse and signed up at the climbing gym by the river instead.",
        ),
        (
            "Who chairs the chess club?",
            "The chess club is chaired by Oriol Vidal.",
            "The chess club is chaired by Lena Marsh.",
        ),
    ],
)
async def test_the_newest_statement_is_first(
    tmp_path: Path, question: str, older: str, newer: str
) -> None:
    async with Runtime(tmp_path) as runtime:
        user = runtime.user("ada")
        others = ("The kitchen is blue now.", "Is there a train to Ghent?", "It rained again.")
        for day, text in enumerate((older, *others, newer, *others)):
            said = Message(role="user", content=text, created_at=BEGIN + timedelta(days=day))
            await user.session(f"day-{day}").append(said)
        (first,) = await user.recall(question, limit=1)
        assert first.text == newer
        found = [one.text for one in await user.recall(question, limit=3)]
        assert older in found, "what was true before is still found"


@pytest.mark.parametrize(
    ("question", "answer", "later"),
    [
        (
            "When is the dentist appointment?",
            "The dentist appointment is on Tuesday at nine.",
            "We cancelled the dinner appointment with Bob.",
        ),
        (
            "What is the name of my dog?",
            "My dog is called Biscuit.",
            "I switched dog food to Brit.",
        ),
        (
            "When is Anna's birthday party?",
            "Anna's birthday party is on Saturday.",
            "I quit smoking on Anna's birthday.",
        ),
        (
            "What is my wifi password?",
            "My wifi password is tulip-97.",
            "I need a new password for Netflix.",
        ),
        ("What does my sister study?", "My sister studies law.", "My sister no longer eats meat."),
    ],
)
async def test_a_change_of_something_else_is_not_first(
    tmp_path: Path, question: str, answer: str, later: str
) -> None:
    async with Runtime(tmp_path) as runtime:
        user = runtime.user("ada")
        for day, text in enumerate((answer, "It rained again.", later)):
            said = Message(role="user", content=text, created_at=BEGIN + timedelta(days=day))
            await user.session(f"day-{day}").append(said)
        (first,) = await user.recall(question, limit=1)
        assert first.text == answer


@pytest.mark.parametrize(
    ("question", "older", "newer"),
    [
        ("Where do I live?", "I live in Lisbon at the moment.", "I moved to Porto!"),
        ("Wo wohne ich?", "Ich wohne in Kiel.", "Wir sind nach Bremen gezogen."),
        ("What's my name?", "My name is Augustin.", "Everyone calls me Gus."),
    ],
)
async def test_of_what_a_user_states_of_themselves_the_newest_is_first(
    tmp_path: Path, question: str, older: str, newer: str
) -> None:
    async with Runtime(tmp_path) as runtime:
        user = runtime.user("ada")
        for day, text in enumerate((older, "It rained again.", newer)):
            said = Message(role="user", content=text, created_at=BEGIN + timedelta(days=day))
            await user.session(f"day-{day}").append(said)
        assert [one.text for one in await user.recall(question, limit=2)] == [newer, older]


async def test_a_question_about_the_past_changes_nothing(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        user = runtime.user("ada")
        for day, name in enumerate(("Oriol Vidal", "Lena Marsh")):
            text = f"The chess club is chaired by {name}."
            said = Message(role="user", content=text, created_at=BEGIN + timedelta(days=day))
            await user.session(f"day-{day}").append(said)
        (first,) = await user.recall("Who chaired the chess club first?", limit=1)
        assert "Oriol" in first.text
