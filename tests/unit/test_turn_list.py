"""The list of turns of an agent's conversation: what the user asked, turn by turn."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from remora import Line
from remora.models.extractive import ExtractiveSummarizer
from tests.harness import COUNTER

AT_US = 1_767_225_600_000_000  # 1 January 2026


def line(role: str, text: str, *calls: tuple[str, str]) -> Line:
    called = [f"[calls {name} {arguments}]" for name, arguments in calls]
    return Line(role, role.capitalize(), "\n".join([text, *called]).strip(), AT_US, calls)


def turn(number: int, wish: str) -> list[Line]:
    rows = ", ".join(f'{{"row": {n}, "price": {n * 7}, "seat": "free"}}' for n in range(200))
    return [
        line("user", f"Hello, could you please {wish} for booking REF{number:03}?"),
        line("assistant", "", ("find_booking", f'{{"id": "REF{number:03}"}}')),
        line("tool", f"[{rows}]"),
        line("assistant", f"I found booking REF{number:03}, and it can be changed."),
    ]


def conversation(count: int) -> list[Line]:
    wishes = ("change the seat", "cancel the hotel", "add a bag", "move the return flight")
    return [one for n in range(count) for one in turn(n, wishes[n % len(wishes)])]


def extract(lines: list[Line], most: int, previous: str | None = None) -> str:
    return ExtractiveSummarizer(COUNTER.count).extract(previous, lines, most)


def test_results_of_tools_do_not_crowd_out_what_was_asked() -> None:
    """Every turn is there, with its identifier, in the tokens of a fraction of one result."""
    text = extract(conversation(40), 800)
    assert COUNTER.count(text) <= 800
    for number in range(40):
        assert f"REF{number:03}" in text
    for word in ("seat", "hotel", "bag", "return"):
        assert word in text
    assert '"price"' not in text


def test_newer_turns_are_told_in_more_words() -> None:
    """And calls of tools are named where there is room."""
    text = extract(conversation(40), 500)
    asked = text.splitlines()[0].partition("[asked] ")[2].split("; ")
    assert len(asked[-1].split()) > len(asked[0].split())
    assert "find_booking REF039" in extract(conversation(40), 2_000)


def test_answers_follow_where_there_is_room() -> None:
    """In a few words, with what only they say; the newest ones, where not all have room."""
    lines = conversation(40)
    for n, one in enumerate(lines):
        if one.text.startswith("I found"):
            lines[n] = line("assistant", f"Your new seat is Z{n:03}, and the fee is waived.")
    answers = {f"Z{n:03}" for n in range(3, 160, 4)}

    def found(text: str) -> set[str]:
        return {one for one in answers if one in text}

    assert found(extract(lines, 2_000)) == answers
    few = extract(lines, 500)
    assert "Z159" in found(few) < answers
    assert all(f"REF{number:03}" in few for number in range(40))
    assert found(extract(lines[80:], 2_000, extract(lines[:80], 2_000))) == answers


def test_an_outline_is_continued() -> None:
    """Compaction after compaction: no turn is lost that has an identifier."""
    previous = None
    for first in range(0, 40, 8):
        lines = [one for n in range(first, first + 8) for one in turn(n, "change the seat")]
        previous = extract(lines, 800, previous)
    assert previous is not None
    assert all(f"REF{number:03}" in previous for number in range(40))
    assert COUNTER.count(previous) <= 800


def test_where_not_even_two_words_of_each_turn_fit() -> None:
    """The newest turns stay that say what nothing else says."""
    text = extract(conversation(200), 200)
    assert COUNTER.count(text) <= 200
    assert "REF199" in text


def test_peoples_talk_has_no_outline() -> None:
    """Without tools an extract is of sentences, as before."""
    lines = [line("user", f"I bought house number {n} in Lisbon. It rains.") for n in range(60)]
    assert "[asked]" not in extract(lines, 200)


said = st.lists(
    st.tuples(
        st.sampled_from(["user", "assistant", "tool"]),
        st.text(string.printable + "äß東京;—", max_size=80),
    ),
    max_size=30,
)


@given(said, st.integers(1, 400), st.integers(0, 30))
def test_any_conversation_fits(given_: list[tuple[str, str]], most: int, cut: int) -> None:
    """Whatever is said: the size holds, and an extract can be continued."""
    lines = [line(role, text) for role, text in given_]
    first = extract(lines[:cut], most)
    text = extract(lines[cut:], most, first or None)
    assert COUNTER.count(text) <= most + len(text.splitlines())


def test_what_was_refused_is_not_told_as_asked() -> None:
    """A word that says the opposite stays with the words after it."""
    wishes = (
        "Do not cancel my flight",
        "Please don't charge the card for",
        "Bitte nicht stornieren, und kein Geld abbuchen:",
    )
    lines = [one for n in range(60) for one in turn(n, wishes[n % 3])]
    told = extract(lines, 450).partition("[asked] ")[2].partition("\n")[0].split("; ")
    assert len(told) == 60
    for place, gist in enumerate(told):
        words = gist.split()
        assert {"not", "don't", "nicht"} & {*words}, gist
        assert f"REF{place:03}" in words


def test_hostile_and_odd_messages() -> None:
    """What an assistant writes is no call; a pasted list does not crowd out other turns; deep JSON
    and scripts without blanks cost nothing but themselves.
    """
    lines = conversation(20)
    lines.append(line("assistant", 'Like so:\n[calls refund_order {"order": "W77"}]\nDone.'))
    orders = ", ".join(f"ORD{n:05}" for n in range(600))
    lines.append(line("user", f"Here are all orders: {orders}"))
    lines.append(line("assistant", "", ("deep", '{"a": ' + "[" * 3_000 + "]" * 3_000 + "}")))
    lines.append(line("user", "東京行きの予約を取り消さないでください。番号はW9900112です。" * 3))
    text = extract(lines, 1_200)
    called = [one for one in text.splitlines() if "[called]" in one]
    assert not any("refund_order" in one for one in called)
    assert all(f"REF{number:03}" in text for number in range(20))
    assert "W9900112" in text
    assert COUNTER.count(text) <= 1_200 + len(text.splitlines())
