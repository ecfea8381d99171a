"""Whatever a model answers: what is taken of it is sound, and all else is counted."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remora.errors import ModelAnswerInvalid
from remora.jobs.facts import (
    ExtractedFact,
    FactLimits,
    parse_facts,
    parse_relations,
)

MESSAGES = (3, 4, 9)
LIMITS = FactLimits(4, 40)

texts = st.text(max_size=60)
junk: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
days = st.sampled_from(["2023-02-31", "2023-05-07", "0000-00-00", "tomorrow", ""])
facts = st.fixed_dictionaries(
    {"text": texts | junk, "sources": st.lists(st.integers(0, 10), max_size=4) | junk},
    optional={"about": texts | junk, "date": days | junk, "more": junk},
)
replaces = st.fixed_dictionaries({"new": st.integers(-1, 9) | junk, "old": st.integers(-1, 9)})


def wrap(name: str, items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An answer: as it was asked for, within prose, or anything else."""
    whole = st.builds(lambda some: {name: some}, st.lists(items | junk, max_size=8))
    as_text = whole.map(json.dumps) | junk.map(json.dumps)
    prose = st.builds("Here it is:\n```json\n{}\n```".format, as_text)
    return as_text | prose | texts | junk | st.binary(max_size=20)


@given(wrap("facts", facts))
def test_facts_rest_on_messages_that_exist(answer: Any) -> None:
    """They are of one line, not too long, not too many, and no text is there twice."""
    dropped, repaired = Counter[str](), Counter[str]()
    try:
        found = parse_facts(answer, MESSAGES, LIMITS, dropped=dropped, repaired=repaired)
    except ModelAnswerInvalid:
        return
    assert len(found) <= LIMITS.count
    assert len({fact.text.casefold() for fact in found}) == len(found)
    for fact in found:
        assert fact.text == " ".join(fact.text.split())
        assert 0 < len(fact.text) <= LIMITS.characters
        assert fact.text.encode()
        assert fact.sources
        assert set(fact.sources) <= set(MESSAGES)
        assert list(fact.sources) == sorted(set(fact.sources))
        assert fact.about.casefold() in fact.text.casefold()
        assert not fact.date or date.fromisoformat(fact.date)
    assert repaired.keys() <= {"sources", "about", "date"}


@given(wrap("replaces", replaces), st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4))
def test_a_fact_takes_the_place_of_an_earlier_one(answer: Any, said: list[int]) -> None:
    """Of one that exists, and never in a circle."""
    known, new = 3, [ExtractedFact(f"fact {n}", (seq,)) for n, seq in enumerate(said)]
    try:
        found = parse_relations(answer, known, new, dropped=Counter())
    except ModelAnswerInvalid:
        return
    for number, place in found.items():
        assert known < number <= known + len(new)
        assert 1 <= place <= known + len(new)
        for _ in range(known + len(new)):
            place = found.get(place, 0)  # noqa: PLW2901
        assert not place
