"""The embedded embedder and texts of any length."""

from __future__ import annotations

import numpy as np
import pytest

from remora.models.static import WordLlamaEmbedder

pytestmark = pytest.mark.anyio


async def test_a_text_has_one_vector_however_it_is_given() -> None:
    """Alone it is embedded on the event loop; in a batch, by the tokenizer's threads."""
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
