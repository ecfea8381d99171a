"""How a text is cut into sentences, and which messages an extract has word for word."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remora import Line
from remora.languages.detection import language_of, may_be_foreign
from remora.languages.search_words import STEMMED
from remora.models.clipping import cut_sentences
from remora.models.extractive import ExtractiveSummarizer, extracted_lines

WORDS = (
    'Hello world I A. U.S. e.g. Dr. 1. 2) 3.14 www.x.com a,b (yes) "Hi." Really? No! « » “ ” ; '
    "É. ß. İ 日本 。 です । क्या Ж. … ..."
)
BLANKS = (" ", "  ", "\n", "\n\n", "\t", "\xa0", "\u2003", "\u2028", "\u202f", "\u3000", "\x1c")
PIECES = st.sampled_from([*WORDS.split(), *BLANKS])
TEXTS = st.lists(PIECES, max_size=12).flatmap(
    lambda parts: st.sampled_from(["", " "]).map(lambda between: between.join(parts))
)


def bare(text: str) -> str:
    return "".join(text.split())


@given(TEXTS, st.sampled_from([*STEMMED, "ja", "zh", "el", "hi", "th"]))
@example("I\xa0. ", "en")
@example("I\u3000. É....«", "no")
def test_sentences_have_all_of_a_text(text: str, language: str) -> None:
    """Whatever the blanks are: the library panics over some of them."""
    sentences = list(cut_sentences(text, language))
    assert bare("".join(sentences)) == bare(text)
    assert all(one == " ".join(one.split()) != "" for one in sentences)


def test_a_text_over_which_the_library_panics_is_cut_into_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G6: Rust's panics are no `Exception`, and a text has them each time."""

    def panic(*_: Any) -> Any:
        raise type("PanicException", (BaseException,), {})("byte index 3")

    monkeypatch.setattr(importlib.import_module("sentencex"), "segment", panic)
    assert list(cut_sentences("I came. I saw.\n\n I left. ", "en")) == ["I came. I saw.", "I left."]


@given(st.lists(TEXTS, min_size=1, max_size=8), st.sampled_from([5, 20, 60, 1_000]))
@example(["I came. I saw.", "I saw. I came.", "I saw."], 20)
@example(["\u201cYes.\u201d Then: more. Good.", "« No. Then: less."], 1_000)
def test_a_message_is_whole_if_each_of_its_sentences_is_in_the_extract(
    texts: list[str], tokens: int
) -> None:
    lines = [Line("user", f"speaker {at % 2}", text, at) for at, text in enumerate(texts)]
    extract = ExtractiveSummarizer(lambda text: len(text) // 4 + 1).extract(None, lines, tokens)
    extracted = {*extract.split("\n")}
    is_whole = extracted_lines(extract)
    for line in lines:
        language = (may_be_foreign(line.text) and language_of(line.text)) or "en"
        sentences = cut_sentences(line.text, language)
        said = {f"- 1 Jan 1970, {line.speaker}: {sentence}" for sentence in sentences}
        assert is_whole(line) is (said <= extracted)
