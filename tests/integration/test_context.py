"""What a context says of itself: which stored messages it shows, and what each tier gave."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remora import Config, Context, Message, Runtime, Session, Source, Sources
from remora.adapters.muxi import BufferMemory, format_messages
from remora.blocks import StaticMemoryBlock
from remora.messages import ChatDict
from remora.testing import HashEmbedder
from tests.harness import user

pytestmark = pytest.mark.anyio
OFF = {"enabled": False}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def config(**sections: Any) -> Config:
    tree: dict[str, Any] = {
        "tokens": {"counter": "heuristic"},
        "long_term": {"batch_ms": 5},
        "recall": {"deadline_s": 600},
    }
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values}
    return Config.from_dict(tree)


class Obedient:
    """A model that writes as much as it may."""

    name = "obedient"

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        asked = " ".join(str(one["content"]) for one in messages)
        found = re.search(r"at most (\d+) tokens", asked)
        assert found is not None
        most = int(found[1])
        if "both parts" in asked:
            return msgspec.json.encode({"identity": "word " * (most - 2), "context": "x"}).decode()
        return "word " * (most - 1)


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
    names = ["summary", "recent", "synopsis", "working", "long_term", "instructions"]
    names.append("block:rules")
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


async def test_record_skips_only_summaries_that_remora_wrote(tmp_path: Path) -> None:
    """An agent may record a whole context: the summary in it is none of the user's words. What a
    user writes with the same beginning is theirs.
    """
    options = config(buffer={"token_limit": 300})
    async with Runtime(tmp_path, config=options, embedder=HashEmbedder()) as runtime:
        person = runtime.user("alice")
        chat = person.session("one")
        for number in range(40):
            await chat.append(user(f"On day {number} I walked {number} kilometres."))
        await chat.settle()
        context = await chat.load()
        assert context.summary is not None
        prefix = runtime.config.buffer.summary_prefix
        assert context.messages[0]["role"] == "user"
        assert context.messages[0]["content"].startswith(prefix)
        for messages in (context.messages, await BufferMemory(chat).get_context()):
            count = sum(one["role"] == "user" for one in messages)
            assert len(await person.record(messages)) == count - 1
        formatted = format_messages(*await chat.contents(summary_prefix="So far: "))
        assert len(await person.record(formatted)) == len(formatted) - 1
        mine = user(f"{prefix}I moved to Porto.")
        assert len(await person.record([mine])) == 1
        assert len(await runtime.user("bob").record(context.messages[:1])) == 1, "not shown to him"


@pytest.mark.parametrize("limit", [300, 500, 1_000, 4_000])
@pytest.mark.parametrize("model", [False, True])
async def test_one_limit_lowers_what_depends_on_it(*, limit: int, model: bool) -> None:
    """With `buffer.token_limit` alone, contexts fit, and summaries and profiles fit into them."""
    chat_model = Obedient() if model else None
    options = Config.from_dict(
        {
            "buffer": {"token_limit": limit},
            "models": {"embedder": "none"},
            "long_term": OFF,
            "synopsis": {"deadline_s": 600},
        }
    )
    async with Runtime.in_memory(config=options, chat_model=chat_model) as runtime:
        chat = runtime.session("alice", "one")
        summarized = 0
        far = "far, " * (limit // 60)
        for number in range(40):
            text = f"On day {number} I walked {far}to mile {number} of the coast, with Ana."
            await chat.append([user(text), assistant(f"Day {number}: noted, well done.")])
            if number % 4 == 0:
                await chat.settle()
                context = await chat.load(query="how far?")
                assert context.tokens <= limit
                assert context.omitted == context.sources.recent.omitted
                assert context.omitted == 0 or context.synopsis is not None
                assert context.sources.summary.omitted_tokens == 0
                assert context.sources.synopsis.status in {"off", "pending", "ok"}
                summarized += context.summary is not None
                if model and context.summary is not None:
                    assert context.sources.summary.status == "ok"
        assert summarized > 3
        if model:
            await runtime.user("alice").synopsis()
            context = await chat.load(query="how far?")
            assert context.sources.synopsis.status == "ok"
            assert context.synopsis is not None
            assert context.tokens <= limit


async def test_no_profile_without_a_model_unless_asked_for() -> None:
    """Without a chat model there is no profile, neither in a context nor from `synopsis`, and both
    say what turns it on; the configuration may ask for an extract.
    """
    for shown, status in (("with_model", "off"), ("never", "off"), ("always", "ok")):
        synopsis = {"shown": shown, "deadline_s": 600}
        tree = {"synopsis": synopsis, "models": {"embedder": "none"}, "long_term": OFF}
        async with Runtime.in_memory(config=Config.from_dict(tree)) as runtime:
            person = runtime.user("alice")
            await person.session("one").append(user("I moved to Lisbon, and my name is Alice."))
            found = await person.synopsis(refresh=True)
            assert found.state == status
            assert ("Lisbon" in found.identity) is (shown == "always")
            assert ("chat_model=" in found.detail) is (shown != "always")
            assert status == "ok" or found.identity + found.context == ""
            context = await person.session("two").load(query="where do I live?")
            assert context.sources.synopsis.status == status
            assert bool(context.sources.synopsis.detail) is (status == "off")
            assert ("Lisbon" in str(context.messages)) is (shown == "always")
            if shown == "always":
                assert str(context.messages).count("moved to Lisbon") == 1


async def test_recall_can_find_nothing(tmp_path: Path) -> None:
    """With a floor, a question that has nothing to do with a memory finds none; one of its words
    does.
    """
    options = config(recall={"floor": 0.9})
    facts = ["Alice keeps bees in Lisbon.", "The wifi password is on the fridge."]
    said_at = "2024-05-08T12:00:00Z"  # a line has its date, and the day of it may be a 1
    async with Runtime(tmp_path, config=options, embedder=HashEmbedder()) as runtime:
        person = runtime.user("alice")
        await person.remember([{"content": fact, "created_at": said_at} for fact in facts])
        for nothing in ("Zxqv blorpt QQQQ", "hello", "1+1=?", "Write a quicksort in Rust"):
            assert await person.recall(nothing) == []
            context = await person.session("one").load(query=nothing)
            assert context.memories == ()
        assert [one.text for one in await person.recall("the bees?")] == facts[:1]


async def test_one_is_no_plural() -> None:
    """What a context says about one message, people and models read."""
    async with Runtime.in_memory() as runtime:
        session = runtime.session("ada", "chat")
        await session.append({"role": "user", "content": "a long tale " * 2_000})
        recent = (await session.load(max_tokens=400)).sources.recent
        assert recent.detail.startswith("1 message is shortened by ")
        assert recent.detail.endswith(" tokens")
