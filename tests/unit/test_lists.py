"""Questions that ask for several things, and the sessions that their answers are spread over."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from remora.config import RecallConfig
from remora.errors import ConfigError
from remora.recall.memory import FoundMemories
from remora.recall.question import Question
from remora.recall.ranking import Ranking, asks_for_several, better_in_group, fuse
from remora.recall.user_index import UserIndex
from remora.storage.ports import EVERYTHING, Candidate, MemoryRow
from remora.testing import long_term_row

pytestmark = pytest.mark.anyio


SEVERAL = """
Which books have I read?
what old films did we watch last summer
How many instruments have I tried?
List all the places that I travelled to.
What did I give people as gifts, all of them?
What are Melanie's hobbies?
Where has Melanie camped?
What do Ann and Bob both like?
Wie viele Bücher habe ich gelesen?
Welche Städte habe ich besucht?
Nenne mir alle Instrumente.
Combien de livres ai-je lus ?
Quelles villes ai-je visitées ?
Dis-moi tous mes cadeaux.
¿Cuántos libros he leído?
¿Qué ciudades he visitado?
¿Cuáles son mis plantas?
楽器はいくつ試しましたか
どんな本を読みましたか
我去过哪些城市
我一共读了几本书
"""
ONE = """
Where do I live?
When did Caroline's class begin?
What does Melanie do to destress?
What inspired James to create his game?
Which series did we watch?
What is my sister's name?
How long has the report been late?
Wo wohne ich?
Welche Stadt hat mir gefallen?
Où est-ce que j'habite ?
Combien de temps ai-je attendu ?
¿Dónde vivo?
¿Qué es esto?
どこに住んでいますか
我住在哪里
"""


def test_questions_that_ask_for_several_things() -> None:
    """In their first 500 characters; in a language that is known only its words count."""
    assert [one for one in SEVERAL.strip().split("\n") if not asks_for_several(one)] == []
    assert [one for one in ("", *ONE.strip().split("\n")) if asks_for_several(one)] == []
    assert asks_for_several("Quels livres ?", "fr")
    assert not asks_for_several("Quels livres ?", "de")
    assert asks_for_several("Quels livres ?", "nl"), "its words are not known: any language's count"
    assert asks_for_several("tea " * 110 + "how many?")
    assert not asks_for_several("tea " * 130 + "how many?")
    for piece in ("what ", "what old ", "who ", "list ", "welche ", "qué ", "何"):
        asks_for_several((piece * 100_000)[:100_000])


def row(seq: int, session: str, text: str, kind: str = "message") -> MemoryRow:
    said: dict[str, Any] = {"memory_type": kind, "role": "user", "created_us": seq * 1_000_000}
    return long_term_row(f"{session}{seq}", text, session=session, seq=seq, **said)


def rows() -> list[MemoryRow]:
    """A day on which much was said about cities, and others on which little was."""
    other = "Other cities may be cold, wet, loud, flat, dear, full, grey, small or far away."
    return [
        *(row(2 * n, "a", f"Cities seen: {n}.") for n in range(1, 6)),
        row(1, "b", "I had seen cities like Lucca before, with walls."),
        row(1, "c", "Lyon is one of the cities that we had seen at night."),
        row(1, "d", other),
    ]


async def both_orders(question: str, rows: list[MemoryRow], spread: float) -> list[list[str]]:
    """By the index in memory, and of what a store found."""
    config = RecallConfig(list_spread=spread, session_weight=0.0, neighbour_bonus=0.0)
    ranking = await UserIndex(rows, None).rank(Question(question), EVERYTHING, config)
    scores = {one.row.id: one.score for one in ranking}
    found = [Candidate(one, {"turn": scores.get(one.id, 0.0)}) for one in rows]
    stored = fuse(found, config, Question(question))
    assert [one.score for one in stored] == sorted((one.score for one in stored), reverse=True)
    return [[one.row.session for one in ranking], [one.row.session for one in stored]]


async def test_each_session_is_among_the_first() -> None:
    """Where several things are asked for; what is of no session is not held back."""
    for order in await both_orders("Which cities have I seen?", rows(), 0.0):
        assert order[:5] == ["a"] * 5
    for order in await both_orders("Which cities have I seen?", rows(), 0.6):
        assert set(order[:3]) == {"a", "b", "c"}
        assert sorted(order) == ["a"] * 5 + ["b", "c", "d"]
    plain = await both_orders("Were there cities?", rows(), 0.0)
    assert await both_orders("Were there cities?", rows(), 0.6) == plain
    facts = [row(0, "", f"Cities, fact {n}.", "fact") for n in range(5)]
    facts = [msgspec.structs.replace(one, id=f"f{n}", created_us=n) for n, one in enumerate(facts)]
    for spread in (0.0, 0.6):
        ranking = await UserIndex(facts, None).rank(
            Question("Which cities have I seen?"), EVERYTHING, RecallConfig(list_spread=spread)
        )
        scores = [one.score for one in ranking]
        assert scores == [scores[0]] * 5


def test_how_many_of_the_same_group_come_before() -> None:
    groups = np.array([4, 4, -1, 2, 4, -1, 2, *[4] * 8], np.int32)
    assert better_in_group(groups).tolist() == [0, 1, 0, 0, 2, 0, 1, 3, 4, 5, 6, 7, 7, 7, 7]
    assert better_in_group(groups.astype(np.int64) * 100_000).tolist() == [
        *[0, 1, 0, 0, 2, 0, 1, 3, 4, 5, 6, 7, 7, 7, 7]
    ]
    assert better_in_group(np.zeros(0, np.int32)).tolist() == []


def test_a_question_for_several_things_finds_less_relevant_ones() -> None:
    many = [row(n, f"s{n}", f"Text {n}.") for n in range(1, 41)]
    ranking = Ranking(many, np.arange(40), np.linspace(1.0, 0.025, 40), {})
    one = FoundMemories(ranking).best(40, relevance=0.4)
    several = FoundMemories(msgspec.structs.replace(ranking, several=True)).best(40, relevance=0.4)
    assert [len(one), len(several)] == [25, 33]
    assert several[:25] == one


def test_a_share_is_at_most_all() -> None:
    with pytest.raises(ConfigError, match="list_spread must be at most 1"):
        RecallConfig(list_spread=1.5)
