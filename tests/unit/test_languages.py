"""Which language a text shows, and the words by which it is searched."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import Line
from remora.actors.policies.bm25 import words
from remora.config import RecallConfig
from remora.languages.detection import language_of, may_be_foreign
from remora.languages.search_words import STEMMED, fold_accents, question_forms, search_texts
from remora.messages.text import plain_name
from remora.models.extractive import ExtractiveSummarizer, extracted_lines
from remora.recall.question import Question
from remora.recall.ranking import Matches, ScoreList, is_other_language, main_languages, rank
from remora.recall.traits import Traits
from remora.storage.ports import MemoryRow
from remora.testing import long_term_row

DATA = Path(__file__).resolve().parents[1] / "data" / "languages.jsonl"
LINES = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]


def row(seq: int, text: str) -> MemoryRow:
    said: dict[str, Any] = {"memory_type": "message", "role": "user", "created_us": seq}
    return long_term_row(f"r{seq}", text, session="s", seq=seq, **said)


def test_language_of() -> None:
    cases = {
        "What did Caroline do in May?": "en",
        "See ya! Take care!": "",
        "The La Brea tar pits are in Los Angeles, una cosa!": "en",
        "Wo wohnt Anna?": "de",
        "Und der Hund?": "de",
        "Comment s'appelle mon chien ?": "fr",
        "¿Cómo se llama mi perro?": "es",
        "Dove abita mia sorella, e quando arriva?": "it",
        "Onde mora a minha irmã?": "pt",
        "Waar woont mijn zus nu?": "nl",
        "Var bor min syster nu?": "sv",
        "Kız kardeşim nerede oturuyor, ve neden?": "tr",
        "Где живёт моя сестра?": "ru",
        "私の妹の名前は何ですか。": "ja",
        "レストラン": "ja",
        "我妹妹住在哪里？": "zh",
        "저는 고양이를 키워요.": "ko",
        "Πού μένει η αδελφή μου;": "el",
        "أين تسكن أختي؟": "ar",
        "I ate 寿司 with her today.": "en",
        "Lisbon": "",
        "12:30 :-)": "",
        "": "",
    }
    assert {text: language_of(text) for text in cases} == cases
    turns = [one for one in LINES if one["type"] == "turn"]
    missed = [one["text"] for one in turns if language_of(one["text"]) != one["conv"]]
    assert missed == ["Mi marido colecciona relojes antiguos."]


def test_english_is_searched_as_it_is() -> None:
    """So nothing changes for it: neither its rows, nor its questions."""
    text = "(8 May 2023) Ann: My café, naïve as it is, opened in São Paulo — 12 %.\nYes."
    assert search_texts([text]) == [text]
    question = Question("When did Ann open the café in São Paulo?")
    assert question.searched == question.text
    assert question.stems == tuple(dict.fromkeys(words(question.text)))
    assert question.alternatives == []


def test_a_question_finds_other_forms_of_its_words() -> None:
    for said, asked in (
        ("Wir haben zwei Katzen.", "Hat sie eine Katze?"),
        ("Nous avons deux chevaux et des chats.", "Est-ce qu'il a un chat ?"),
        ("Tenemos dos perros.", "¿Qué perro tienes?"),
        ("Abbiamo due gatti.", "Che gatto ha?"),
        ("Temos dois gatos.", "Qual gato ele tem?"),
        ("У нас две кошки.", "Какая у них кошка?"),
        ("猫を二匹飼っています。", "猫はいますか?"),
        ("我有两只猫。", "猫叫什么?"),
        ("고양이를 두 마리 키워요.", "고양이가 있어요?"),
        ("ผมมีแมวสองตัว", "แมวชื่ออะไร"),
        ("I ate 寿司 in Osaka.", "寿司は好きですか?"),
        ("Der Zug nach Köln.", "Zug koln"),
    ):
        (text,) = search_texts([f"(8 May 2023) User: {said}"])
        assert set(words(text)) & set(Question(asked).stems), said


def test_each_line_by_its_own_language() -> None:
    """A neighbourhood may mix languages; what shows none is in that of the others. A speaker's name
    and the date are no words of the language that was spoken.
    """
    said = ["Ich mag die Katzen.", "I like the trains.", "Katzen!"]
    (text,) = search_texts(["\n".join(f"(8 May 2023) Hannes: {one}" for one in said)])
    heads, lines = zip(*(line.split("Hannes: ") for line in text.split("\n")), strict=True)
    assert heads == ("(8 May 2023) ",) * 3
    assert lines[0].split() == ["mag", "katz"]
    assert lines[1] == "I like the trains."
    assert lines[2].split() == ["katz"]


def test_words_whose_language_is_set_or_unknown() -> None:
    """A question that shows none is asked in all; it is covered whichever of a word's forms was
    said.
    """
    (text,) = search_texts(["Katzen, Züge"], "de")
    assert text.split() == ["katz", "zug"]
    assert search_texts(["They are the cats."], "de") == ["They are the cats."]
    assert search_texts(["Katzen"]) == ["Katzen"]
    (forms,) = question_forms("Katzen")
    assert forms[0] == "katzen"
    assert "katz" in forms
    assert len(forms) == len(set(forms)) <= len(STEMMED)
    question = Question("Wohin fuhr der Zug mit den Katzen?")
    assert question.alternatives == [("katzen", "katz")]
    assert question.stems == ("fuhr", "zug", "katzen", "katz")


def test_other_language() -> None:
    german = [row(n, f"Ich habe {n} Katzen und einen Hund.") for n in range(1, 9)]
    english = [row(n, f"I have {n} cats.") for n in range(9, 90)]

    def main(rows: list[MemoryRow]) -> frozenset[str]:
        return main_languages(rows, lambda row: language_of(row.content))

    assert main(german) == {"de"}
    assert main([*german, *english[:8]]) == {"de", "en"}
    assert main([*german[:2], *english]) == {"en"}  # less than a tenth
    assert main([]) == main([row(1, "Lisbon")]) == frozenset()
    assert is_other_language("fr", {"de", "en"})
    assert not is_other_language("de", {"de", "en"})
    assert not is_other_language("", {"de"})
    assert not is_other_language("fr", frozenset())


def test_vectors_keep_their_weight_in_another_language() -> None:
    """Shared words are chance then; in the same language they tell whether vectors are of use."""
    rows = [row(3 * n + 1, f"row {n}") for n in range(60)]
    places = np.arange(60)
    lists = {
        "turn": ScoreList(places[:30], np.linspace(1, 2, 30)),
        "vector": ScoreList(places, np.linspace(1, 0, 60)),  # against the words
    }
    config = RecallConfig(neighbour_bonus=0.0, vector_agreement=0.9)

    def first(*, other_language: bool) -> float:
        matches = Matches(lists, other_language=other_language)
        ranking = rank(rows, Traits(rows), matches, config)
        return {one.row.id: one.score for one in ranking}["r1"]

    assert first(other_language=True) == pytest.approx(config.vector_weight * 1.5)  # a user's
    assert first(other_language=False) < first(other_language=True)


def test_a_summary_in_another_language() -> None:
    """Sentences end as their language ends them, and those that carry facts stay."""
    summarizer = ExtractiveSummarizer(len)
    for before, kept, after in (
        (
            "Das Wetter war gut. ",
            "Ich wohne seit Mai in Bremen, z. B. am Wochenende.",
            " Und sonst?",
        ),
        ("Il fait beau. ", "J'habite à Lyon depuis deux ans.", " Et toi ?"),
        ("Hace sol. ", "Vivo en Sevilla con mi hermana desde enero.", " ¿Y tú?"),
        ("天気がいいです。", "私は去年京都に引っ越しました。", "本当ですか？"),
        ("天气很好。", "我去年搬到了杭州。", "真的吗？"),
    ):
        line = Line("user", "Ann", before + kept + after, 1_700_000_000_000_000)
        summary = summarizer.extract(None, [line], len(f"- 14 Nov 2023, Ann: {kept}\n") + 5)
        assert summary == f"- 14 Nov 2023, Ann: {kept}"
        assert extracted_lines(summarizer.extract(None, [line], 1_000))(line), kept
        assert not extracted_lines(summary)(line), kept


@given(st.text(max_size=300), st.sampled_from(sorted(STEMMED)))
def test_any_text(text: str, language: str) -> None:
    (made,) = search_texts([text], language)
    assert made.count("\n") == text.count("\n")
    if not may_be_foreign(text):
        assert search_texts([text]) == [text]
    assert language_of(text) in {"", *STEMMED, "ja", "zh", "ko", "el", "he", "ar", "hi", "th"}
    assert Question(text).searched is not None
    question = Question(text)
    assert {one for forms in question.alternatives for one in forms} <= set(question.stems)


@given(
    st.text(st.characters(max_codepoint=127), max_size=300)
    | st.text("aehilnsu dl'_1.,?", max_size=300)
)
def test_ascii_is_read_as_any_other_text(text: str) -> None:
    """A word of one letter tells nothing of a language."""
    assert language_of(text) == language_of(f"{text} \u00e9")


@given(st.text("aé\u0301\u0323\u3099가あ", max_size=60))
def test_accents_are_folded_as_unicode_says(text: str) -> None:
    """Up to thirty marks on a character are seen as they are, as in UAX #15."""
    bare = re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFKD", text))
    few = max(map(len, re.findall(r"[^\w\s]+", text)), default=0) <= 30
    assert fold_accents(text) == unicodedata.normalize("NFC", bare) or not few


def test_marks_without_end() -> None:
    """Sorting them would take time with the square of their number: half an hour for these."""
    text = "a" + "\u0301\u0323" * 500_000 + " end"
    assert fold_accents(text) == "a end"
    assert fold_accents("\U0001f600" * 50 + "é") == "\U0001f600" * 50 + "e"
    assert plain_name("a" + "\u0301\u0323" * 500_000, "user") == ""


def test_long_texts() -> None:
    """A text of 100,000 characters is done in pieces, and nothing of it is lost between them; words
    at the border of a piece stay whole.
    """
    pieces = (
        "a",
        "あ",
        "漢",
        "(8 May 2023) ",
        "ñ ",
        "und ich ",
        "\n",
        "und\n",
        "가",
        "'",
        "e\u0301",
    )
    for piece in (*pieces, "(1 M", "ü", "\u0e49", "\ud83d", "\u0301\u0323"):
        text = piece * (100_000 // len(piece))
        (made,) = search_texts([text])
        assert made.count("\n") == text.count("\n"), piece
        question_forms(text)
    (made,) = search_texts(["ich " + "Katzen " * 10_000])
    assert {*made.split()} == {"katz"}


def test_a_long_text_has_the_words_that_its_parts_have() -> None:
    """Its words are found in pieces, so that other threads can run in between."""
    line = "Ångström süßt 2½ Tassen Tee, ﬁnde ich; ｶﾞ, 각나, नमस्ते. "
    assert words(line * 400) == words(line) * 400
    assert words("é" * 30_000) == []


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("Ich habe den Mietvertrag für die Wohnung unterschrieben.", "Was steht in dem Vertrag?"),
        ("Ich habe die Verträge für die Wohnung.", "Wo ist denn mein Mietvertrag?"),
        ("Der Schlüssel ist nicht mehr da.", "Wo ist der Kellerschlüssel?"),
        ("Ik heb het huurcontract voor de flat getekend.", "Wat staat er in het contract?"),
        ("Jag har en hyresbil och den är röd.", "Var är bilen som jag har?"),
    ],
)
def test_parts_of_compounds(said: str, asked: str) -> None:
    found = {*words(search_texts([said])[0])} & {*Question(asked).stems}
    assert found, (search_texts([said]), Question(asked).stems)


def test_no_part_of_an_ordinary_word_is_looked_for() -> None:
    for text in ("Ich habe das nicht gewusst und war überrascht.", "Wir haben uns kaum gesehen."):
        made = search_texts([text])[0].split()
        assert len(made) == len(dict.fromkeys(made)) <= len(text.split())
