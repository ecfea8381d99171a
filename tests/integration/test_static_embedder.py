"""The embedded embedder and texts of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wordllama
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remora.models.static import WordLlamaEmbedder

pytestmark = pytest.mark.anyio


async def test_a_text_has_one_vector_however_it_is_given() -> None:
    """Alone it is embedded on the event loop; in a batch, in a thread."""
    embedder = WordLlamaEmbedder()
    given = ["where do I live?", "", "Lissabon 漢字"]
    together = await embedder.embed([*given, "much more " * 50])
    assert np.array_equal(await embedder.embed(given), together[:3])
    assert not together[1].any()


async def test_a_long_text_has_the_vector_of_all_its_tokens() -> None:
    """It is embedded in pieces; the texts around it have their own."""
    embedder = WordLlamaEmbedder()
    sentence = "The harbour of Lisbon was full of ships, "
    given = ["before", sentence * 3_000, "a" * 40_000, "after"]
    vectors = await embedder.embed(given)
    assert np.array_equal(vectors[[0, 3]], await embedder.embed(["before", "after"]))
    (one,) = await embedder.embed([sentence * 50])
    assert vectors[1] @ one / np.linalg.norm(vectors[1]) / np.linalg.norm(one) > 0.999
    assert vectors[2].any()


@pytest.fixture(scope="module")
def model() -> Any:
    """wordllama itself."""
    directory = Path(str(wordllama.__file__)).parent
    return wordllama.WordLlama.load(cache_dir=directory, disable_download=True)


@given(text=st.text(st.sampled_from("ab ,.\n\té中😀\u0301\u00a0<s>/nk0"), max_size=60))
@example(text="  two  words   and blanks at the end   ")
@example(text="<s> is a token of its own, </s>, <unk> and  < s> are not")
@example(text="\u2581a mark of the model itself \u2581")
@example(text="a" * 60)
@settings(max_examples=300)
async def test_a_text_has_the_vector_of_the_tokens_that_the_model_reads(
    model: Any, text: str
) -> None:
    """remora looks words up one by one; the model's tokenizer reads the text as a whole."""
    (vector,) = await WordLlamaEmbedder().embed([text])
    ids = model.tokenizer.encode(text, add_special_tokens=False).ids
    expected = model.embedding.take(ids, axis=0).mean(axis=0) if ids else np.zeros(256)
    assert np.allclose(vector, expected, atol=1e-6)
