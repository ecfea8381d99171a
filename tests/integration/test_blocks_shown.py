"""Memory blocks in a context: the blocks that ship, their configuration, and what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Runtime
from remora.blocks import (
    BlockContent,
    FactExtractionMemoryBlock,
    MemoryBlock,
    StaticMemoryBlock,
    VectorMemoryBlock,
)
from remora.errors import ConfigError, InvalidInput
from remora.storage.ports import SessionKey
from remora.testing import HashEmbedder
from remora.tokens import CallableCounter, count_message
from tests.harness import user
from tests.integration.blocks import (
    WORDS,
    MentionCounter,
    Recording,
    Watch,
    config,
    fill,
    gathered,
    opened,
    seen,
    text_of,
)

pytestmark = pytest.mark.anyio
IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
EMBEDDED: dict[str, Any] = {
    "config": config(models={"embedder": "wordllama"}),
    "embedder": HashEmbedder(256),
}


# -- the blocks that ship --------------------------------------------------------------------------


async def test_facts_by_the_runtimes_model(tmp_path: Path) -> None:
    """S3.14: the fact block extracts by the runtime's chat model, once for each batch that leaves."""  # noqa: E501
    calls: list[str] = []

    async def model(prompt: str) -> str:
        if "keep the memory" not in prompt:
            return "A summary."
        calls.append(prompt)
        return f"<fact>Fact {len(calls)}</fact>"

    watch = Watch()
    blocks = [FactExtractionMemoryBlock(), Recording(name="rec", watch=watch)]
    async with opened(tmp_path, *blocks, chat_model=model) as runtime:
        chat = runtime.session("alice", "one")
        await fill(runtime, chat, 14)
        assert len(calls) == len(watch.puts) > 1
        found = await text_of(runtime, chat, "fact_extraction_memory")
        assert found == "\n".join(f"<fact>Fact {n + 1}</fact>" for n in range(len(calls)))


async def test_batches_in_long_term_memory(tmp_path: Path) -> None:
    """S3.15, S4.17, S4.27: without a store of its own a vector block uses long-term memory: a row a
    batch, each its session's own. It is in no recall and no listing, and no pruning takes it.
    """
    watch, name = Watch(), "retrieval_based_memory"
    blocks = [VectorMemoryBlock(similarity_top_k=9), Recording(name="rec", watch=watch)]
    async with opened(tmp_path, *blocks, **EMBEDDED) as runtime:
        places = [("alice", "one"), ("alice", "two"), ("bob", "one")]
        for owner, session in places:
            chat = runtime.session(owner, session)
            await chat.append(
                [user(f"honey of {owner} in {session}, jar {n} " + "x " * 15) for n in range(20)]
            )
            await chat.flush()
        await runtime.settle()
        rows = await (await runtime.internals.long_term()).rows("alice")
        assert sum(row.memory_type == "block" for row in rows if row.session == "one") == len(
            [batch for _, batch in watch.puts if "alice in one" in batch[0].content]
        )
        texts: dict[tuple[str, str], str] = {}
        for owner, session in places:
            chat = runtime.session(owner, session)
            found = texts[owner, session] = await text_of(runtime, chat, name, user("honey"))
            assert found.startswith("<message role='user'>honey of")
            assert all(f"honey of {owner} in {session}," in line for line in found.splitlines())
        bob = runtime.user("bob")
        assert len(await bob.memories()) == 20
        assert all("<message" not in one.text for one in await bob.recall("honey jar", limit=50))
        await bob.prune(keep=3, strategy="fifo")
        await runtime.settle()
        assert sorted(found.seq for found in await bob.memories()) == [18, 19, 20]
    async with opened(tmp_path, *blocks, **EMBEDDED) as runtime:
        found = await text_of(runtime, runtime.session("bob", "one"), name, user("honey"))
        assert found == texts["bob", "one"]


# -- configuration ---------------------------------------------------------------------------------


async def test_blocks_for_each_session(tmp_path: Path) -> None:
    """S3.22: a function gives each session its own blocks; the same names in two sessions are two
    blocks.
    """

    def blocks(key: SessionKey) -> Sequence[MemoryBlock]:
        if key.session == "bare":
            return []
        return [
            Recording(name="rec"),
            StaticMemoryBlock(static_content=f"You talk to {key.user}."),
        ]

    async with opened(tmp_path, blocks=blocks) as runtime:
        for owner in ("alice", "bob"):
            chat = runtime.session(owner, "one")
            left = await fill(runtime, chat)
            assert await text_of(runtime, chat, "static_memory") == f"You talk to {owner}."
            assert await seen(chat, "rec") == left
        bare = runtime.session("alice", "bare")
        await fill(runtime, bare)
        assert (await gathered(runtime, bare)).contents == ()
        assert (await runtime.counts()).pending_jobs == 0


async def test_wrong_blocks(tmp_path: Path) -> None:
    """S3.15, S3.22: blocks that cannot be are refused when the runtime is made, and what they lack
    when it is opened.
    """
    with pytest.raises(ConfigError, match="two memory blocks"):
        Runtime(tmp_path, blocks=[MentionCounter(), MentionCounter()])
    with pytest.raises(ConfigError, match="no embedder"):
        async with opened(tmp_path, VectorMemoryBlock()):
            pass


async def test_media_cost_what_is_configured(tmp_path: Path) -> None:
    """S3.13, S3.32: what an image costs is configured, and an image in a message is stored and
    counted with it. One in static content is in the context, costs its estimate, and makes the
    message one of parts.
    """
    parts: BlockContent = [{"type": "text", "text": "look here"}, IMAGE]
    message: dict[str, Any] = {"role": "user", "content": parts}
    cheap = CallableCounter(str.split, media_tokens={"image_url": 10})
    async with opened(tmp_path, counter=cheap) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(message)
        assert (await chat.load()).tokens == 12
        assert (await chat.history())[0].content == message["content"]
    async with opened(tmp_path) as runtime:
        assert (await runtime.session("alice", "one").load()).tokens == 258  # counted anew
        assert runtime.message_tokens(message) == 258
    async with opened(tmp_path, StaticMemoryBlock(static_content=parts), counter=cheap) as runtime:
        chat = runtime.session("alice", "two")
        await chat.append(user("hello"))
        context = await chat.load()
        assert context.messages[0]["content"] == [
            {"type": "text", "text": "<memory>\n<static_memory>\nlook here"},
            IMAGE,
            {"type": "text", "text": "</static_memory>\n</memory>"},
        ]
        assert context.tokens == 1 + 10 + 6


# -- in a context ----------------------------------------------------------------------------------


async def test_load_shows_blocks(tmp_path: Path) -> None:
    """S3.12, S3.20, S3.22, S3.24: short-term and long-term memory in one context, within the limit;
    Logan is counted.
    """
    blocks = [
        StaticMemoryBlock(name="core", static_content="I am Logan."),
        MentionCounter(name="mentions", priority=1),
    ]
    async with opened(tmp_path, *blocks) as runtime:
        chat = runtime.session("alice", "one")
        for number in range(60):
            await chat.append(
                user(("Logan " if number % 3 == 0 else "") + f"talks {number} " + "and so on " * 3)
            )
            context = await chat.load()
            assert context.tokens <= 300
            assert context.tokens == sum(count_message(WORDS, one) for one in context.messages)
        await chat.settle()
        context = await chat.load()
        front = (await chat.inspect()).watermarks.archived_through
        mentioned = sum("Logan" in str(one.content) for one in (await chat.history())[:front])
        assert mentioned > 5
        memory = f"<memory>\n<core>\nI am Logan.\n</core>\n<mentions>\nLogan was mentioned {mentioned} times.\n</mentions>\n</memory>"  # noqa: E501
        assert sum(memory in str(one["content"]) for one in context.messages) == 1
        assert context.messages[0]["role"] == "system"
        assert memory in context.messages[0]["content"]
        assert (
            context.sources["block:core"].status == context.sources["block:mentions"].status == "ok"
        )
        assert (
            context.messages[-1]["content"].startswith("talks 59 ")
            or "Logan" in context.messages[-1]["content"]
        )


async def test_load_inserts_where_it_is_told(tmp_path: Path) -> None:
    """S3.19: blocks go where `context.insert_method` says, and what is stored stays as it is."""
    memory = "<memory>\n<static_memory>\ncore\n</static_memory>\n</memory>"
    for method, expected in (
        ("system", [memory, "first", "yes", "second"]),
        ("user", ["first", "yes", f"{memory}\n\nsecond"]),
        ("tail", ["first", "yes", memory, "second"]),
    ):
        settings = config(context={"insert_method": method})
        block = StaticMemoryBlock(static_content="core")
        async with opened(tmp_path, block, config=settings) as runtime:
            chat = runtime.session("alice", method)
            await chat.append(
                [user("first"), {"role": "assistant", "content": "yes"}, user("second")]
            )
            context = await chat.load()
            assert [one["content"] for one in context.messages] == expected, method
            assert context.tokens == sum(count_message(WORDS, one) for one in context.messages)
            assert [one.content for one in await chat.history()] == ["first", "yes", "second"]


async def test_load_truncates_by_priority(tmp_path: Path) -> None:
    """S3.16, S3.24: when blocks are too long, 1 goes before 2; what is always kept and does not fit
    is an error that says so.
    """
    blocks = [
        StaticMemoryBlock(name="zero", static_content="z " * 20),
        StaticMemoryBlock(name="two", static_content="t " * 20, priority=2),
        StaticMemoryBlock(name="one", static_content="o " * 20, priority=1),
    ]
    async with opened(tmp_path, *blocks) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("hello"))
        for room, names in (
            (69, {"zero", "one", "two"}),
            (68, {"zero", "two"}),
            (46, {"zero"}),
            (25, {"zero"}),
        ):
            context = await chat.load(max_tokens=room)
            shown = context.messages[0]["content"]
            assert {name for name in ("zero", "one", "two") if f"<{name}>" in shown} == names
            assert context.tokens <= room
        with pytest.raises(InvalidInput, match="24"):
            await chat.load(max_tokens=10)


async def test_load_without_a_block_that_fails(tmp_path: Path) -> None:
    """S3.12, G5, S4.30: a block that hangs or raises is left out of the context and named; the rest
    is there.
    """

    class Hanging(MentionCounter):
        async def _aget(self, messages: Any = None, **block_kwargs: Any) -> str:
            await anyio.sleep_forever()
            return ""

    class Raising(MentionCounter):
        async def _aget(self, messages: Any = None, **block_kwargs: Any) -> str:
            raise ValueError("broken")

    blocks = [
        Hanging(name="hanging"),
        Raising(name="raising"),
        StaticMemoryBlock(static_content="core"),
    ]
    settings = config(context={"block_timeout_s": 0.5})
    async with opened(tmp_path, *blocks, config=settings) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("hello"))
        context = await chat.load()
        assert "core" in context.messages[0]["content"]
        assert context.messages[-1] == user("hello")
        assert context.sources["block:hanging"].status == "late"
        assert context.sources["block:raising"].status == "failed"


async def test_load_shows_facts_and_batches(tmp_path: Path) -> None:
    """S3.14, S3.15, S3.20, S3.21: all three blocks that ship, over their default parts, in one
    context.
    """

    async def model(prompt: str) -> str:
        return "<fact>Keeps bees</fact>" if "keep the memory" in prompt else "They talked."

    blocks = [
        StaticMemoryBlock(static_content="I am Logan."),
        FactExtractionMemoryBlock(priority=1),
        VectorMemoryBlock(priority=2, similarity_top_k=1, retrieval_context_window=1),
    ]
    async with opened(tmp_path, *blocks, chat_model=model, **EMBEDDED) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user("my bees make lavender honey near Coimbra")])
        for number in range(30):
            await chat.append(user(f"talks {number} " + "about something else " * 3))
        await chat.settle()
        await chat.append(user("bees lavender honey?"))
        context = await chat.load()
        text = context.messages[0]["content"]
        for shown in (
            "<fact_extraction_memory>\n<fact>Keeps bees</fact>\n</fact_extraction_memory>",
            "<retrieval_based_memory>\n<message role='user'>my bees make lavender honey",
        ):
            assert shown in text
        assert context.tokens <= 300
