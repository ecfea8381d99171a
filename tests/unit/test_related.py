"""Words that are related to those of a question."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remora.actors.policies.bm25 import words
from remora.config import RecallConfig
from remora.recall.question import Question, find_related, load_related, related_words
from remora.recall.user_index import SearchedRows, Sessions, UserIndex, search_rows
from remora.storage.ports import EVERYTHING
from remora.testing import long_term_row


def related(question: str) -> set[str]:
    asked = Question(question)
    return {other for stem in asked.stems for other in find_related(stem, asked.language)}


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
    assert related_words(Question("Which car is booked?"), ())["vehicl"] == "car"
    assert not related_words(Question("Which car has booking AX2WA7?"), ())
    assert not related_words(Question("Who saw Rose?"), ())
    assert not related_words(Question("who saw rose?"), {"rose"})


@pytest.mark.parametrize(
    ("question", "word", "other"),
    [
        ("Was hat Frau Koch über den Termin gesagt?", "koch", "cook"),
        ("Was hat Frau Koch über den Termin gesagt?", "frau", "wife"),
        ("Wo wohnt Herr Dr. Arzt mit dem Auto?", "arzt", "doctor"),
        ("Où travaille Pain avec sa voiture ?", "pain", "bread"),
    ],
)
def test_names_in_other_languages_are_no_words(question: str, word: str, other: str) -> None:
    assert word in Question(question).stems
    assert {*words(other)} <= related(question)
    assert related_words(Question(question), ())
    assert not {*words(other)} & related_words(Question(question), ()).keys()


def test_a_wife_with_a_name_is_a_wife() -> None:
    for question in ("Wo arbeitet meine Frau Anna?", "Wo hat mein Koch das Brot gekauft?"):
        asked = Question(question)
        assert {"wife", "cook"} & related_words(asked, ()).keys()


def ranked(question: str, *said: str) -> list[str]:
    """The texts that an index finds, best first."""
    rows = [long_term_row(f"r{seq}", text, seq=seq) for seq, text in enumerate(said, start=1)]
    index = UserIndex([replace(row, memory_type="message", role="user") for row in rows], None)
    searched = SearchedRows([index], index.rows, index.traits, Sessions([index]))
    found = search_rows(searched, Question(question), EVERYTHING, RecallConfig(), 1.0)
    return [one.row.content for one in found]


@pytest.mark.parametrize(
    ("question", "answer", "other"),
    [
        (
            "What is my favorite color?",
            "My favorite color is teal.",
            "I love blue, I like red, I enjoy green and I adore purple and orange.",
        ),
        (
            "Which pet does Ann have?",
            "Ann has a pet gecko.",
            "I have a dog, a cat, a rabbit, a hamster and a parrot.",
        ),
    ],
)
def test_many_related_words_count_as_one(question: str, answer: str, other: str) -> None:
    said = ["The kettle is new.", other, answer, "It rained all day.", "Trams are late."]
    assert ranked(question, *said)[0] == answer
