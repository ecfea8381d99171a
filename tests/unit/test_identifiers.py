"""Which words of a question are identifiers."""

from __future__ import annotations

import pytest

from remora.recall.question import find_identifiers


@pytest.mark.parametrize(
    ("text", "identifiers"),
    [
        ("Where is order #W4923227?", [("w4923227",)]),
        ("What is mia_li_3668's e-mail?", [("mia", "li", "3668")]),
        ("Did we cancel IFOYYZ?", [("ifoyyz",)]),
        ("Look at TCK-123-45 and 912345678.", [("tck", "123", "45"), ("912345678",)]),
        ("Write to bob.x@mail.net.", [("bob", "x", "mail", "net")]),
        ("Open src/app/main.py, please", [("src", "app", "main", "py")]),
        ("订单号W4923227是什么", [("w4923227",)]),
    ],
)
def test_what_stands_for_one_thing(text: str, identifiers: list[tuple[str, ...]]) -> None:
    assert list(find_identifiers(text)) == identifiers


@pytest.mark.parametrize(
    "text",
    [
        "Where do I live?",
        "WHERE IS EVERYBODY",
        "At 10:30 or 10am on 2023-05-08, 8/5/2023, the 20th",
        "500ml for 3 minutes in a 3-bedroom flat, and/or he/she",
        "in 2023, for 1,000.00",
    ],
)
def test_dates_times_and_quantities_are_none(text: str) -> None:
    assert not find_identifiers(text)


def test_a_text_of_identifiers_has_eight() -> None:
    assert len(find_identifiers(" ".join(f"X{n}Y{n}" for n in range(100)))) == 8
