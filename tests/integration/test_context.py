"""What a context says of itself: which stored messages it shows, and what each tier gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remora import Config, Context, Message, Runtime, Session, Source, Sources
from remora.blocks import StaticMemoryBlock
from remora.testing import HashEmbedder
from tests.harness import user

pytestmark = pytest.mark.anyio


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def config(**sections: Any) -> Config:
    tree: dict[str, Any] = {"tokens": {"counter": "heuristic"}, "long_term": {"batch_ms": 5}}
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values}
    return Config.from_dict(tree)


async def stored(chat: Session, context: Context) -> list[Message | None]:
    """The stored message of each message of a context, by number; the id must be the same one."""
    history = {one.seq: one for one in await chat.history()}
    assert len(context.entries) == len(context.messages)
    found = [None if one is None else history[one.seq] for one in context.entries]
    for entry, message in zip(context.entries, found, strict=True):
        assert entry is None or (message is not None and entry.id == message.id)
    return found


async def test_entries_lead_back_to_the_stored_messages(tmp_path: Path) -> None:
    """A context says which stored message each of its messages is; what remora wrote is none."""
    blocks = [StaticMemoryBlock(name="rules", static_content="Be brief.", priority=1)]
    options = config(
        buffer={"token_limit": 400, "summary_tokens": 60}, context={"insert_method": "tail"}
    )
    async with Runtime(tmp_path, config=options, embedder=HashEmbedder(), blocks=blocks) as runtime:
        person = runtime.user("alice")
        await person.remember("Alice keeps bees in Lisbon.")
        chat = person.session("one")
        for number in range(40):
            await chat.append({**user(f"message {number} of many words"), "id": f"given-{number}"})
            await chat.append(assistant(f"answer {number}"))
        await chat.settle()
        context = await chat.load(query="where are the bees in Lisbon?")
        found = await stored(chat, context)
        assert context.summary is not None
        assert context.memories
        own = [n for n, one in enumerate(found) if one is not None]
        assert [context.messages[n]["content"] for n in own] == [
            one.content for one in found if one is not None
        ]
        others = [str(context.messages[n]["content"]) for n in range(len(found)) if n not in own]
        assert len(others) == 3
        assert any("bees" in text for text in others)
        assert any("Be brief." in text for text in others)
        earlier = await chat.load(at=6)
        assert [one.seq for one in await stored(chat, earlier) if one is not None] == [*range(1, 7)]
        another = await chat.load(override=[user("only shown")])
        assert [one for one in another.entries if one is not None] == []
        assert len(another.entries) == len(another.messages)


@pytest.mark.parametrize("method", ["system", "user", "tail"])
async def test_entries_stay_aligned_wherever_blocks_and_memories_go(
    tmp_path: Path, method: str
) -> None:
    """Blocks and memories that are put into a message, or in one of their own, move no entry."""
    blocks = [StaticMemoryBlock(name="rules", static_content="Be brief.")]
    place = "tail" if method == "tail" else "user"
    options = config(context={"insert_method": method}, recall={"insert_method": place})
    async with Runtime(tmp_path, config=options, embedder=HashEmbedder(), blocks=blocks) as runtime:
        person = runtime.user("alice")
        await person.remember("Alice keeps bees.")
        await person.settle()
        chat = person.session("one")
        receipt = await chat.append([user("hello"), assistant("hi"), user("what about the bees?")])
        context = await chat.load(query="bees")
        assert context.memories
        found = [one for one in context.entries if one is not None]
        assert [(one.seq, one.id) for one in found] == list(
            zip(receipt.seqs, receipt.ids, strict=True)
        )
        for entry, message in zip(context.entries, context.messages, strict=True):
            if entry is not None:
                said = ("hello", "hi", "what about the bees?")[entry.seq - 1]
                assert str(message["content"]).endswith(said)


async def test_sources_have_fields_and_names(tmp_path: Path) -> None:
    """The status of a tier is an attribute; names, as logs have them, lead to the same."""
    blocks = [StaticMemoryBlock(name="rules", static_content="Be brief.")]
    async with Runtime(
        tmp_path, config=config(), embedder=HashEmbedder(), blocks=blocks
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("hello"))
        sources = (await chat.load()).sources
    assert isinstance(sources, Sources)
    assert sources.recent == sources["recent"] == Source("ok", 1)
    assert sources.long_term.status == sources["long_term"].status == "off"
    assert sources.blocks == {"rules": Source("ok", 1)}
    assert sources["block:rules"] is sources.blocks["rules"]
    names = ["summary", "recent", "synopsis", "working", "long_term", "block:rules"]
    assert list(sources) == [name for name, _ in sources.items()] == names
    assert dict(sources)["block:rules"] == Source("ok", 1)
    assert "rules" not in sources
    for unknown in ("long_tern", "blocks", "block:other", "rules"):
        with pytest.raises(KeyError, match="there are summary, recent"):
            sources[unknown]
    assert not hasattr(sources, "long_tern")


async def test_blocks_never_join_what_is_quoted(tmp_path: Path) -> None:
    """With `context.quoted_role` system, blocks of the application still get a system message of
    their own: what users said is in another one.
    """
    blocks = [StaticMemoryBlock(name="rules", static_content="Never give refunds.")]
    options = config(context={"quoted_role": "system"})
    async with Runtime(tmp_path, config=options, embedder=HashEmbedder(), blocks=blocks) as runtime:
        person = runtime.user("alice")
        await person.remember("Refunds are always approved for the bees.")
        await person.settle()
        chat = person.session("one")
        await chat.append(user("a refund for the bees?"))
        context = await chat.load(query="refund for the bees")
        assert context.memories
        assert [one["role"] for one in context.messages] == ["system", "system", "user"]
        first, second, _ = (str(one["content"]) for one in context.messages)
        assert "Never give refunds." in first
        assert "always approved" not in first
        assert "always approved" in second
        assert "Never give refunds." not in second
