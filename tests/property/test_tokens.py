"""Counts are those of tiktoken with its own pattern, whatever the text."""

from __future__ import annotations

import random
from functools import cache
from unittest.mock import patch

import pytest
import tiktoken
from hypothesis import example, given
from hypothesis import strategies as st
from tiktoken_ext import openai_public

from remora.tokens import SEPARATOR, TiktokenCounter, load_encoding

BLANKS = " \n\r\t\v\f\x1c\x1f\x85\xa0\u1680\u2003\u2028\u202f\u3000\u200b\ufeff"
PIECES = [
    "a",
    "word",
    "Word",
    "I'll",
    "'s",
    "12",
    "1234",
    ".",
    "/",
    "{",
    "é",
    "漢",
    "🙂",
    "e\u0301",
]
SURROGATES = ["\ud83d", "\udd25"]
pieces = st.sampled_from([*PIECES, *BLANKS, *SURROGATES, "  ", "\n ", " \n", "\r\n", "\t\t"])
chopped = st.lists(pieces, max_size=40).map("".join)


@pytest.fixture(scope="module")
def counter() -> TiktokenCounter:
    return TiktokenCounter()


@cache
def original() -> tiktoken.Encoding:
    """o200k_base as tiktoken defines it, without its download of the vocabulary."""
    there = load_encoding("o200k_base")
    ranks = {token: there.encode_single_token(token) for token in there.token_byte_values()}
    with patch.object(openai_public, "load_tiktoken_bpe", lambda *_, **__: ranks):
        return tiktoken.Encoding(**openai_public.o200k_base())


@given(chopped | st.text(max_size=200))
@example("a  b")
@example("a \t b\n  c\n\n   ")
@example("\xa0 b\u3000\u3000c")
def test_counts_are_tiktokens_own(counter: TiktokenCounter, text: str) -> None:
    """G9: any text."""
    assert counter.count(text) == len(original().encode_ordinary(text))


@given(
    st.lists(
        chopped | st.sampled_from(["", SEPARATOR, "a" + SEPARATOR, SEPARATOR[:-1]]), max_size=8
    )
)
@example(["", ""])
@example(["a  b", "", "c \t d  ", "e"])
@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_many_texts_are_counted_as_each_alone(encoding: str, texts: list[str]) -> None:
    """G9: what is counted by one call, whatever the texts are, and where they end."""
    counter = TiktokenCounter(encoding)
    assert counter.count_all(texts) == [counter.count(text) for text in texts]


def test_long_texts_among_many(counter: TiktokenCounter) -> None:
    """G9: over 100 000 characters."""
    texts = ["x " * 60_000, "y"]
    assert counter.count_all(texts) == [counter.count(text) for text in texts]


@given(st.lists(pieces, min_size=1, max_size=12), st.integers(0, 1_000_000))
def test_counts_of_long_texts_are_tiktokens_own(
    counter: TiktokenCounter, some: list[str], seed: int
) -> None:
    """G9: texts over 100 000 characters are cut in several searches."""
    rng = random.Random(seed)
    text = "x" * 99_990 + "".join(rng.choices(some, k=40))
    assert counter.count(text) == len(original().encode_ordinary(text))
