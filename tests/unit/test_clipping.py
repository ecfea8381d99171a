"""Long texts for a model: head and tail, and the size of what is between."""

from __future__ import annotations

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from remora.messages import plain_text
from remora.models.clipping import clip, clip_evenly, replace_data

PICTURE = base64.b64encode(bytes(range(256)) * 30).decode()


def test_encoded_bytes_are_their_size() -> None:
    """In a line, in the lines of mail, in JSON, behind a scheme; prose and short digests stay."""
    lines = "\n".join(PICTURE[n : n + 76] for n in range(0, len(PICTURE), 76))
    for text in (
        f"before {PICTURE} after",
        f"before data:image/png;base64,{PICTURE} after",
        f"before {json.dumps(lines)} after",
        f"before {lines} after",
    ):
        short = replace_data(text)
        assert short.startswith("before ")
        assert short.endswith(" after")
        assert "8 kB of data]" in short
        assert len(short) < 60
    prose = "sha256 " + "0f" * 32 + " " + "a longer word and another one " * 100
    assert replace_data(prose) == prose


@given(st.text(max_size=60), st.integers(1, 80))
def test_what_fits_is_whole(text: str, most: int) -> None:
    shown = clip(text, most)
    if len(text) <= most:
        assert shown == text
    else:
        assert f"[{len(text) - most} B are left out]" in shown


@given(st.lists(st.text(max_size=40), max_size=6), st.integers(0, 200))
def test_the_longest_are_clipped(texts: list[str], most: int) -> None:
    """To one length, and no more than is needed; no text is clipped that is shorter than another
    which is whole.
    """
    shown = clip_evenly(texts, most)
    whole = [len(text) for text, one in zip(texts, shown, strict=True) if one == text]
    cut = [len(text) for text, one in zip(texts, shown, strict=True) if one != text]
    assert bool(cut) is (sum(map(len, texts)) > most)
    assert not cut or max(whole, default=0) <= min(cut)


def test_attachments_have_their_names() -> None:
    """In summaries, in recall and for the model that summarizes; a name cannot look like more."""
    parts = [
        {"type": "file", "file": {"filename": "lease-2026.pdf", "file_data": PICTURE}},
        {"type": "image_url", "image_url": {"url": "https://e.org/a/kitchen%20plan.png?x=1#y"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}, "name": "a\nb]c"},
    ]
    assert plain_text({"role": "user", "content": parts}).splitlines() == [
        "[file lease-2026.pdf]", "[image kitchen plan.png]", "[image]", "[audio a b)c]",
    ]  # fmt: skip
