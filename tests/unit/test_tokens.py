"""Counting: exact by default, offline, and pluggable."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.errors import ConfigError
from remora.tokens import (
    CallableCounter,
    HeuristicCounter,
    TiktokenCounter,
    count_message,
    load_encoding,
)


@pytest.fixture(scope="module")
def tiktoken_counter() -> TiktokenCounter:
    return TiktokenCounter()


def test_heuristic() -> None:
    """S1.15: a quarter of the bytes, at least 1; characters on request, which matters for CJK."""
    assert [HeuristicCounter().count(text) for text in ("", "What is Rust?", "漢字漢字")] == [
        1,
        3,
        3,
    ]
    assert HeuristicCounter("characters").count("漢字漢字") == 1
    with pytest.raises(ConfigError):
        HeuristicCounter("words")


def test_custom_tokenizer() -> None:
    """S3.23, S1.16: a function to a list, or to a number."""
    assert CallableCounter(str.split).count("one two three") == 3
    assert CallableCounter(len).count("abc") == 3


def test_known_counts(tiktoken_counter: TiktokenCounter) -> None:
    """S3.23: the counts that OpenAI documents for these texts and encodings."""
    assert tiktoken_counter.count("tiktoken is great!") == 6
    assert load_encoding("cl100k_base").encode_ordinary("tiktoken is great!") == [
        83,
        1609,
        5963,
        374,
        2294,
        0,
    ]


def test_definitions_match_tiktokens_own() -> None:
    """S3.23: split patterns and special tokens are those that tiktoken itself would use with the
    same vocabulary.
    """
    program = """
import tiktoken_ext.openai_public as public
public.load_tiktoken_bpe = lambda url, expected_hash: {"hash": expected_hash}
from remora.tokens import _ENCODINGS
for name, (digest, split, special) in _ENCODINGS.items():
    theirs = getattr(public, name)()
    assert theirs["mergeable_ranks"]["hash"] == digest
    assert theirs["pat_str"] == split
    assert theirs["special_tokens"] == special
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@given(st.text(max_size=200))
def test_any_text_counts(tiktoken_counter: TiktokenCounter, text: str) -> None:
    """G9: no text makes the counter fail, special tokens in user text among them."""
    assert tiktoken_counter.count(text) >= 0
    assert tiktoken_counter.count("<|endoftext|>" + text) > 1


@pytest.mark.parametrize(
    "text",
    [" " * 1_000_000, "\n" * 300_000, "a" * 300_000, "^" * 300_000],
    ids=["blanks", "lines", "a", "^"],
)
def test_pathological_texts_count(tiktoken_counter: TiktokenCounter, text: str) -> None:
    """G9: tiktoken itself panics on a million blanks."""
    assert 0 < tiktoken_counter.count(text) <= len(text)


def test_everything_in_a_message_counts() -> None:
    """G9, S3.24: tool calls, names, parts and ids cost tokens."""
    counter = CallableCounter(str.split)
    call = {"id": "c1", "function": {"name": "look up", "arguments": "one two three"}}
    assert count_message(counter, {"role": "assistant", "content": None, "tool_calls": [call]}) == 6
    assert count_message(counter, {"role": "tool", "content": "a b", "tool_call_id": "c1"}) == 3
    parts = [{"type": "text", "text": "a b"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert count_message(counter, {"role": "user", "name": "Ann", "content": parts}) == 2 + 256 + 1
    assert count_message(TiktokenCounter(), {"role": "user", "content": ""}) == 3
