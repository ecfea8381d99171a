"""Counting: exact by default, offline, and pluggable."""

from __future__ import annotations

import copy
import pickle
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

EXACT = TiktokenCounter()


def test_counts() -> None:
    """S1.15, S1.16, S3.23: by default those that OpenAI documents; else a quarter of the bytes, at
    least 1, or of the characters, which matters for CJK; or by a function to a list or a number.
    """
    assert EXACT.count("tiktoken is great!") == 6
    encoded = load_encoding("cl100k_base").encode_ordinary("tiktoken is great!")
    assert encoded == [83, 1609, 5963, 374, 2294, 0]
    heuristic = HeuristicCounter().count
    assert [heuristic(text) for text in ("", "What is Rust?", "漢字漢字")] == [1, 3, 3]
    assert HeuristicCounter("characters").count("漢字漢字") == 1
    with pytest.raises(ConfigError):
        HeuristicCounter("words")
    assert CallableCounter(str.split).count("one two three") == 3
    assert CallableCounter(len).count("abc") == 3


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_an_encoding_can_be_pickled_and_copied(name: str) -> None:
    """Another process builds it again."""
    encoding = load_encoding(name)
    text = "tiktoken is great! <|endoftext|>"
    for other in (pickle.loads(pickle.dumps(encoding)), copy.deepcopy(encoding)):
        assert other.encode_ordinary(text) == encoding.encode_ordinary(text)


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
    subprocess.run([sys.executable, "-c", program], check=True)


@given(st.text(max_size=200))
def test_any_text_counts(text: str) -> None:
    """G9: no text makes the counter fail, special tokens in user text among them."""
    assert EXACT.count(text) >= 0
    assert EXACT.count("<|endoftext|>" + text) > 1


def test_pathological_texts_count() -> None:
    """G9: tiktoken itself panics on a million blanks."""
    for text in (" " * 1_000_000, "\n" * 300_000, "a" * 300_000, "^" * 300_000):
        assert 0 < EXACT.count(text) <= len(text)


def test_everything_in_a_message_counts() -> None:
    """G9, S3.24: tool calls, names, parts and ids cost tokens."""
    counter = CallableCounter(str.split)
    call = {"id": "c1", "function": {"name": "look up", "arguments": "one two three"}}
    assert count_message(counter, {"role": "assistant", "content": None, "tool_calls": [call]}) == 6
    assert count_message(counter, {"role": "tool", "content": "a b", "tool_call_id": "c1"}) == 3
    parts = [{"type": "text", "text": "a b"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert count_message(counter, {"role": "user", "name": "Ann", "content": parts}) == 2 + 256 + 1
    assert count_message(EXACT, {"role": "user", "content": ""}) == 3
