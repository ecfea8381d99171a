"""Attachments are taken out of any message, and put back as they were."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.messages.attachments import (
    decode_attached,
    find_blobs,
    has_attachments,
    put_back,
    take_attachments,
)
from remora.messages.media import Measure, media_tokens

LEAST = 40

encoded = st.binary(max_size=120).map(lambda data: b64encode(data).decode())
pieces = st.one_of(
    encoded,
    encoded.map(lambda text: f"data:image/png;base64,{text}"),
    encoded.map(lambda text: text[:-1]),
    st.text(max_size=20),
    st.sampled_from(["x" * 100, "=", "==", "====", '{"data":"', '"}', "\n", " ", "/+" * 60]),
)
texts = st.lists(pieces, max_size=6).map("".join)
keys = st.sampled_from(["content", "text", "url", "data", "input", "other", "type"])
data = st.recursive(
    st.one_of(texts, st.none(), st.booleans(), st.integers(-9, 9)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(keys, data, max_size=5))
def test_what_is_taken_out_comes_back(value: dict[str, Any]) -> None:
    """G13: character by character, whatever the texts are; and long runs are not stored twice."""
    found: dict[bytes, bytes] = {}
    taken = msgspec.msgpack.encode(take_attachments(value, LEAST, found))
    assert put_back(decode_attached(taken), found) == value
    assert {one.digest for one in find_blobs(taken)} == found.keys()
    assert has_attachments(taken) == bool(found)
    if not found:
        assert msgspec.msgpack.decode(taken) == value


@given(st.binary(min_size=LEAST, max_size=2_000), texts, texts)
def test_a_run_is_found_wherever_it_stands(raw: bytes, before: str, after: str) -> None:
    """If nothing of base64 touches it, whatever its length."""
    text = b64encode(raw).decode()
    found: dict[bytes, bytes] = {}
    value = {"url": f"{before} {text} {after}", "data": text}
    taken = msgspec.msgpack.encode(take_attachments(value, LEAST, found))
    assert raw in found.values()
    assert put_back(decode_attached(taken), found) == value


@pytest.mark.parametrize(
    ("size", "family", "tokens"),
    [
        (Measure(1024, 1024), "openai", 765),  # examples of OpenAI's page
        (Measure(2048, 4096), "openai", 1105),
        (Measure(200, 200), "anthropic", 54),  # of Anthropic's
        (Measure(1000, 1000), "anthropic", 1334),
        (Measure(8000, 8000), "anthropic", 1600),
        (Measure(384, 384), "gemini", 258),  # of Google's
        (Measure(960, 540), "gemini", 6 * 258),
        (Measure(milliseconds=60_000), "gemini", 1920),
        (Measure(milliseconds=60_000), "openai", 600),
        (Measure(pages=10), "gemini", 2580),
        (Measure(), "openai", None),
    ],
)
def test_tokens_are_those_of_the_providers(size: Measure, family: Any, tokens: int | None) -> None:
    assert media_tokens(size, family) == tokens
