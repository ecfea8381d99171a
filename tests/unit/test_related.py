"""Words that are related to those of a question."""

from __future__ import annotations

import pytest

from remora.actors.policies.bm25 import words
from remora.recall.question import Question, weigh_words
from remora.recall.related import find_related, load_related


def related(question: str) -> set[str]:
    asked = Question(question)
    return find_related(asked.stems, asked.language)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("Who repaired our heating?", "The plumber fixed the boiler."),
        ("Do I have a pet?", "Biscuit is such a good dog."),
        ("Which instrument do I play?", "My guitar needs new strings."),
        ("Where does my brother live?", "Mein Bruder wohnt in Bremen."),
        ("Wie heißt meine Tochter?", "My daughter Mia is six."),
        ("¿Dónde vive mi hermano?", "My brother lives in Leeds."),
        ("Quel est le métier de ma sœur ?", "Meine Schwester hat einen neuen Beruf."),
        ("弟はどこに住んでいますか", "My brother lives in Leeds."),
        ("我女儿叫什么", "Unsere Tochter heißt Mia."),
    ],
)
def test_other_words_and_other_languages(question: str, said: str) -> None:
    assert related(question) & {*words(said), *Question(said).stems}


def test_what_is_written_alike_in_another_language_is_no_answer() -> None:
    """French "pain" is bread, and "chat" a cat."""
    assert not related("Where can I buy bread?") & {"pain"}
    assert not related("How old is my cat?") & {"chat"}
    assert related("Où acheter du pain ?") & {"bread"}


def test_no_word_is_related_to_itself_and_none_is_left_out_of_searches() -> None:
    for table in load_related().values():
        for stem, others in table.items():
            assert stem not in others
            assert all(words(other) for other in others if other.isascii() and len(other) > 2)


def test_identifiers_and_names_have_no_other_words() -> None:
    plain = weigh_words(Question("Which car is booked?"), (), None, 0.4)  # type: ignore[arg-type]
    assert plain["vehicl"] == 0.4
    booked = Question("Which car has booking AX2WA7?")
    assert "vehicl" not in weigh_words(booked, (), None, 0.4)  # type: ignore[arg-type]
    rose = weigh_words(Question("Who saw Rose?"), {"rose"}, None, 0.4)  # type: ignore[arg-type]
    assert set(rose) == {"saw", "rose"}
