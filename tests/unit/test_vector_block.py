"""Batches in a vector store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from remora.blocks import (
    BlockServices,
    ChatMessage,
    InMemoryVectorStore,
    VectorHit,
    VectorMemoryBlock,
)
from remora.errors import ConfigError
from remora.testing import HashEmbedder
from tests.embedders import NotingEmbedder
from tests.harness import COUNTER

pytestmark = pytest.mark.anyio


class Leaky(InMemoryVectorStore):
    """A store that ignores what it is asked to filter by."""

    async def query(self, vector: Any, k: int, where: Mapping[str, str]) -> list[VectorHit]:
        return await super().query(vector, k, {})


def services(user: str = "alice", session: str = "one") -> BlockServices:
    return BlockServices(user, session, COUNTER, embedder=HashEmbedder(256))


def bound(block: VectorMemoryBlock, user: str = "alice", session: str = "one") -> VectorMemoryBlock:
    block.bind(services(user, session))
    return block


def batch(first: int, *texts: str) -> list[ChatMessage]:
    roles = ("user", "assistant")
    return [ChatMessage(roles[n % 2], text, seq=first + n) for n, text in enumerate(texts)]


async def test_one_row_for_a_batch_and_two_come_back() -> None:
    """S3.12, S3.15, S3.20: a batch is one row and one vector; the two nearest come back by default,
    nearest first, as messages, whose text cannot leave them. Handed over again after a crash, even
    with more behind it, a batch replaces itself.
    """
    store, embedder = InMemoryVectorStore(), NotingEmbedder(256)
    block = bound(VectorMemoryBlock(vector_store=store, embed_model=embedder))
    await block.aput(batch(1, "lavender honey bees"))
    await block.aput(batch(1, "lavender honey bees", "bees </message>are fine"))
    await block.aput(batch(3, "trains to Porto", "they run hourly"))
    await block.aput(batch(5, "honey and trains", "both"))
    assert len(store) == 3
    assert len(embedder.texts) == 4
    found = await block.aget([ChatMessage("user", "lavender honey bees?")])
    assert found.split("\n") == [
        "<message role='user'>lavender honey bees</message>",
        "<message role='assistant'>bees &lt;/message>are fine</message>",
        "<message role='user'>honey and trains</message>",
        "<message role='assistant'>both</message>",
    ]
    block.similarity_top_k = 1
    assert "trains" not in await block.aget([ChatMessage("user", "lavender honey bees?")])


async def test_the_query_is_the_last_five_messages() -> None:
    """S3.15: the query text is the newest five messages, and no others."""
    embedder = NotingEmbedder(256)
    block = bound(VectorMemoryBlock(vector_store=InMemoryVectorStore(), embed_model=embedder))
    await block.aget([ChatMessage("user", f"word{n}") for n in range(8)])
    assert embedder.texts == ["word3\nword4\nword5\nword6\nword7"]
    block.retrieval_context_window = 2
    await block.aget([ChatMessage("user", f"word{n}") for n in range(8)])
    assert embedder.texts[-1] == "word6\nword7"
    assert await block.aget() == ""
    assert await block.aget([ChatMessage("user", " ")]) == ""
    assert len(embedder.texts) == 2


async def test_post_processors_in_order() -> None:
    """S3.15: post-processors, sync and async, are applied in the order given."""
    seen: list[tuple[str, int]] = []

    def near(hits: list[VectorHit]) -> list[VectorHit]:
        seen.append(("near", len(hits)))
        return [hit for hit in hits if hit.score > 0.4]

    async def newest(hits: list[VectorHit]) -> list[VectorHit]:
        seen.append(("newest", len(hits)))
        return sorted(hits, key=lambda hit: -hit.metadata["first"])[:1]

    block = VectorMemoryBlock(
        vector_store=InMemoryVectorStore(), similarity_top_k=3, node_postprocessors=[near, newest]
    )
    bound(block)
    for first, text in ((1, "honey bees"), (2, "honey bees hive"), (3, "trains")):
        await block.aput(batch(first, text))
    assert (
        await block.aget([ChatMessage("user", "honey bees")])
        == "<message role='user'>honey bees hive</message>"
    )
    assert seen == [("near", 3), ("newest", 2)]


async def test_one_store_many_sessions() -> None:
    """S3.15: a shared store gives no session, user or block what is another's, even if it does not
    filter itself.
    """
    places = [("alice", "one"), ("alice", "two"), ("bob", "one"), ("al", "iceone")]
    for store in (InMemoryVectorStore(), Leaky()):
        for user, session in places:
            block = bound(VectorMemoryBlock(vector_store=store), user, session)
            await block.aput(batch(1, f"honey of {user} in {session}"))
        other = VectorMemoryBlock(vector_store=store, name="other")
        await bound(other).aput(batch(1, "honey of another block"))
        assert len(store) == 5
        for user, session in places:
            block = bound(VectorMemoryBlock(vector_store=store, similarity_top_k=9), user, session)
            found = await block.aget([ChatMessage("user", "honey")])
            assert found == f"<message role='user'>honey of {user} in {session}</message>"


def test_wrong_settings() -> None:
    """S3.15: what a block lacks is said when it is made or bound, not when messages come."""
    for options in ({"similarity_top_k": 0}, {"retrieval_context_window": 0}, {"embed_model": 3}):
        with pytest.raises(ConfigError):
            VectorMemoryBlock(**options)  # type: ignore[arg-type]
    bare = BlockServices("u", "s", COUNTER)
    with pytest.raises(ConfigError, match="no embedder"):
        VectorMemoryBlock(vector_store=InMemoryVectorStore()).bind(bare)
    with pytest.raises(ConfigError, match="switched off"):
        VectorMemoryBlock().bind(services())

    async def store() -> Any:
        raise AssertionError

    with pytest.raises(ConfigError, match="vector_store of its own"):
        VectorMemoryBlock(embed_model=HashEmbedder(8)).bind(
            BlockServices("u", "s", COUNTER, embedder=HashEmbedder(8), long_term=store)
        )
