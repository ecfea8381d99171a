"""The days that texts name, and the messages that are of them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from remora import Config, Message, Runtime
from remora.config import RecallConfig
from remora.jobs.rows import searchable_rows
from remora.languages.dates import Period, find_periods, name_days
from remora.messages import dated_line
from remora.recall.days import day_of, of_days_named, time_stems
from remora.recall.question import Question
from remora.recall.ranking import fuse
from remora.recall.user_index import UserIndex
from remora.runtime.clock import SystemClock
from remora.storage.ports import EVERYTHING, Candidate, MemoryRow
from remora.testing import long_term_row

pytestmark = pytest.mark.anyio
EPOCH = date(1970, 1, 1)
TODAY = (date(2023, 6, 15) - EPOCH).days  # a Thursday


def days(first: str, last: str = "") -> tuple[int, int]:
    return (
        (date.fromisoformat(first) - EPOCH).days,
        (date.fromisoformat(last or first) - EPOCH).days,
    )


def row(seq: int, day: str, text: str) -> MemoryRow:
    at = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1_000_000
    said: dict[str, Any] = {"memory_type": "message", "role": "user", "created_us": at}
    return long_term_row(f"r{seq}", text, session=f"s{seq}", seq=seq, **said)


PERIODS = {
    "What did Ann do on 7 May 2023?": days("2023-05-07"),
    "on May 7th, 2023": days("2023-05-07"),
    "on 8th December, 2022": days("2022-12-08"),
    "on December 1,2022": days("2022-12-01"),
    "since 2023-05-07": days("2023-05-07"),
    "on 7 May": days("2023-05-07"),
    "on 7 July": days("2022-07-07"),
    "in March": days("2023-03-01", "2023-03-31"),
    "in December": days("2022-12-01", "2022-12-31"),
    "in February 2024": days("2024-02-01", "2024-02-29"),
    "last March": days("2023-03-01", "2023-03-31"),
    "in 2021": days("2021-01-01", "2021-12-31"),
    "yesterday": days("2023-06-14"),
    "the day before yesterday": days("2023-06-13"),
    "two weeks ago": days("2023-05-29", "2023-06-04"),
    "a month ago": days("2023-04-30", "2023-05-30"),
    "last week": days("2023-06-05", "2023-06-11"),
    "last weekend": days("2023-06-09", "2023-06-11"),
    "last Friday": days("2023-06-09"),
    "on Sunday": days("2023-06-11"),
    "last summer": days("2022-06-01", "2022-08-31"),
    "last winter": days("2022-12-01", "2023-02-28"),
    "in the summer of 2021": days("2021-06-01", "2021-08-31"),
    "last year": days("2022-01-01", "2022-12-31"),
    "next month": days("2023-07-01", "2023-07-31"),
    "the week before August 3, 2022": days("2022-07-27", "2022-08-03"),
    "two weeks after 3 August 2022": days("2022-08-14", "2022-08-20"),
    "Was war am 3. Mai 2022?": days("2022-05-03"),
    "am 7.5.2023": days("2023-05-07"),
    "im März": days("2023-03-01", "2023-03-31"),
    "im letzten Sommer": days("2022-06-01", "2022-08-31"),
    "vor zwei Wochen": days("2023-05-29", "2023-06-04"),
    "gestern": days("2023-06-14"),
    "le 7 mai 2023": days("2023-05-07"),
    "en août": days("2022-08-01", "2022-08-31"),
    "il y a deux semaines": days("2023-05-29", "2023-06-04"),
    "l'été dernier": days("2022-06-01", "2022-08-31"),
    "la semaine dernière": days("2023-06-05", "2023-06-11"),
    "el 3 de mayo de 2022": days("2022-05-03"),
    "hace dos semanas": days("2023-05-29", "2023-06-04"),
    "el año pasado": days("2022-01-01", "2022-12-31"),
    "ayer": days("2023-06-14"),
    "2023年5月7日に": days("2023-05-07"),
    "昨日何をしましたか": days("2023-06-14"),
    "三日前": days("2023-06-12"),
    "上个月": days("2023-05-01", "2023-05-31"),
    "两周前": days("2023-05-29", "2023-06-04"),
}
NO_PERIODS = [
    "31 February 2023", "30 February", "on 0 May 2023", "99 May", "2023-13-40", "31.4.2023",
    "99999 years ago", "9999年99月99日", "0000年", "May I ask?", "Who may come?", "on Mars",
    "the sun and the moon; march on", "Cyberpunk 2077", "April told me", "fall in love",
    "What did Sam do?", "", "room 12, at 11:30", "a 20 minute walk",
]  # fmt: skip


def test_find_periods() -> None:
    """Dates that do not exist, and words that may be something else, name no day. A ligature may
    stand for 18 letters; accents leave a question as long as it was.
    """
    for text, expected in PERIODS.items():
        found = [(period.first, period.last) for period in find_periods(text, TODAY)]
        assert found == [expected], text
    for text in NO_PERIODS:
        assert find_periods(text, TODAY) == [], text
    assert find_periods("é" * 900 + " on 7 May 2023", TODAY) != []
    assert find_periods("ﷺ" * 500 + " on 7 May 2023", TODAY) == []


def test_name_days() -> None:
    """A date is written out once, and not where a message writes it itself."""
    (said_on,) = days("2023-05-08")[:1]
    cases = {
        "Yesterday we moved.": "7 May 2023",
        "Gestern sind wir umgezogen, vorgestern nicht.": "6 May 2023, 7 May 2023",
        "We went last week, and last year too.": "2022, May 2023",
        "See you on 12 May": "",
        "On May 7, 2023 we moved, that is yesterday.": "",
        "I was there last summer.": "2022",
        "昨天我们搬家了": "7 May 2023",
        "Last winter was cold.": "",
        "Today we moved.": "",
        "We were there on 2023-05-06.": "",
        "Nothing of note.": "",
        "The day after tomorrow we fly.": "10 May 2023",
        "Ich wohne hier.": "",
        "Hier nous avons déménagé.": "7 May 2023",
        "On Friday we fly.": "",
        "We will marry this summer, or next summer.": "",
        "On the last day of the trip it rained, on the next day not.": "",
        "That was in the last year of school.": "",
        "二十日前に来ました": "",
        "大前天下雨了": "5 May 2023",
    }
    for message, expected in cases.items():
        named = name_days(message, said_on)
        assert sorted(named.split(", ")) == sorted(expected.split(", ")), (message, named)


def test_a_message_is_searched_by_the_days_that_it_names() -> None:
    """What is recalled stays as it was said."""
    said = [row(1, "2023-05-08", "Yesterday we moved."), row(2, "2023-05-08", "Congratulations!")]
    said = [replace(one, turn=dated_line(one.created_us, f"Ann: {one.content}")) for one in said]
    first, second = searchable_rows(said, "en")
    assert first.turn == "(8 May 2023; 7 May 2023) Ann: Yesterday we moved."
    assert first.content == said[0].content
    assert second == said[1]
    redacted = [replace(said[0], turn="(a day) Ann: Yesterday we moved.")]
    assert searchable_rows(redacted, "en") == redacted, "a hook took the date away"


def test_without_a_year() -> None:
    (march,) = find_periods("in March", TODAY)
    assert march.yearly
    assert march.in_year_before() == Period(*days("2022-03-01", "2022-03-31"), yearly=True)
    leap = Period(*days("2024-02-29"), yearly=True)
    assert leap.in_year_before() == Period(*days("2023-02-28"), yearly=True)


TEXT = (
    "may march 31 30 february 2023 0 999 the week before last next ago vor il y a hace in on of "
    "summer année dernière 年 月 日 前 上周 a two 7. / - , 1月 2024-02-30"
)
words = st.sampled_from(TEXT.split(" "))


@given(
    st.one_of(st.text(max_size=200), st.lists(words, max_size=30).map(" ".join)),
    st.integers(-700_000, 2_900_000),
)
def test_any_text(text: str, today: int) -> None:
    """Nothing raises, near the ends of the calendar neither, and a period has a day."""
    for period in find_periods(text, today):
        assert period.first <= period.last
        if period.first > -600_000:
            assert period.in_year_before().first < period.first


def test_long_texts() -> None:
    for piece in ("may ", "1 ", "last ", "last may the week before ", "年", "1月", "in the "):
        find_periods((piece * 100_000)[:100_000], TODAY)
        time_stems((piece * 100_000)[:100_000])


def test_questions_that_ask_for_a_time() -> None:
    """In their first 2,000 characters."""
    for question, stem in (
        ("When did Ann move?", "yesterday"),
        ("Wann zog Anna um?", "gest"),
        ("Quand est-elle partie ?", "hier"),
        ("¿Cuándo se mudó?", "ayer"),
        ("いつ引っ越しましたか", "昨日"),
        ("她什么时候搬家的", "昨天"),
    ):
        assert stem in time_stems(question), question
        assert time_stems(question[len(question) // 2 + 4 :]) == (), question
    assert time_stems("tea " * 490 + "at what date?") != ()
    assert time_stems("tea " * 500 + "at what date?") == ()


ROWS = [
    row(1, "2021-03-10", "The garden was white with frost."),
    row(2, "2022-03-10", "We planted roses in the garden."),
    row(3, "2022-07-02", "The garden is full of bees."),
    row(4, "2022-07-03", "Yesterday we had a party in the garden."),
    row(5, "2023-01-05", "Last summer the garden was dry."),
    row(6, "2023-06-13", "I sat in the garden."),
]


async def both_orders(question: str, *, date_bonus: float) -> tuple[list[int], list[int]]:
    """By the index in memory, and of what a store found."""
    asked = Question(question, periods=find_periods(question, TODAY))
    config = RecallConfig(date_bonus=date_bonus)
    ranking = await UserIndex(ROWS, None).rank(asked, EVERYTHING, config)
    candidates = [Candidate(one, {"turn": 1.0, "window": 1.0}) for one in ROWS]
    stored = fuse(candidates, config, asked)
    return [one.row.seq for one in ranking], [one.row.seq for one in stored]


async def test_messages_of_the_days_named_come_first() -> None:
    cases: dict[str, set[int]] = {
        "the garden two days ago": {6},
        "the garden on 2 July 2022": {3, 4},  # on that day, or a day later of the day before
        "the garden in March": {2},  # the latest March in which something was said
        "the garden in March 2021": {1},
        "the garden in the summer of 2022": {3, 4, 5},
        "the garden in November": set(),
        "the garden on 31 February 2022": set(),
    }
    for question, expected in cases.items():
        plain = await both_orders(question, date_bonus=1.0)
        found = await both_orders(question, date_bonus=10.0)
        for order in found:
            assert set(order[: len(expected)]) == expected, question
            assert len(order) == len(ROWS), question
        assert expected or found == plain, question


def test_days_at_the_edges() -> None:
    nothing = np.zeros(0, np.int32)
    everything = np.zeros(0, np.bool_)
    march = find_periods("in March", TODAY)
    none = of_days_named(march, [], nothing, everything, np.zeros(0, np.intp), lambda _: ())
    assert none is None
    assert [day_of(at_us) for at_us in (0, 86_400_000_000 - 1, -1)] == [0, 0, -1]


class OnDay:
    """The machine's clock, but for the day."""

    def __init__(self) -> None:
        self.at = datetime(2023, 6, 15, 12, tzinfo=UTC)
        self.monotonic, self.sleep = SystemClock.monotonic, SystemClock().sleep

    def time(self) -> float:
        return self.at.timestamp()


async def test_now_is_the_runtimes_clock() -> None:
    """The same question is about another day tomorrow, also where its answer is held."""
    clock = OnDay()
    config = Config.from_dict({"recall": {"date_bonus": 10.0}, "models": {"embedder": "none"}})
    async with Runtime.in_memory(config=config, clock=clock) as runtime:
        user = runtime.user("u")
        for back in (2, 1):
            at = clock.at - timedelta(back)
            await user.session(f"s{back}").append(
                Message(role="user", content=f"Tea, {back}.", created_at=at)
            )
        assert (await user.recall("Which tea yesterday?"))[0].text == "Tea, 1."
        assert (await user.recall("Which tea two days ago?"))[0].text == "Tea, 2."
        clock.at += timedelta(1)
        assert (await user.recall("Which tea two days ago?"))[0].text == "Tea, 1."
