"""Memory blocks by themselves: what an author writes, and the copies that the runtime makes of it."""  # noqa: E501

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from remora.actors.blocks.state import BlockProgress as Progress
from remora.actors.blocks.state import (
    BlockSet,
    block_progress,
    copy_block_items,
    exclusions,
    join_ranges,
    missing_ranges,
    progress_item,
)
from remora.blocks import (
    BaseMemoryBlock,
    BlockServices,
    ChatMessage,
    MemoryBlock,
    StaticMemoryBlock,
    VectorMemoryBlock,
)
from remora.errors import ConfigError
from remora.messages import encode_message
from remora.storage.ports import SessionKey
from tests.harness import COUNTER
from tests.integration.blocks import MentionCounter

pytestmark = pytest.mark.anyio
ONE, TWO = SessionKey("alice", "one"), SessionKey("alice", "two")


class Stateful(BaseMemoryBlock[str]):
    words: list[str] = []  # noqa: RUF012
    seen: set[int] = set()  # noqa: RUF012
    at: datetime | None = None
    client: Any = None

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        return " ".join(self.words)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        for one in messages:
            self.words.append(one.content)
            self.seen.add(one.seq or 0)
            self.at = one.created_at


class Plain:
    """No base class, no state_dict: a block by its shape alone."""

    def __init__(self) -> None:
        self.name = "plain"
        self.priority = 1
        self.words: list[str] = []
        self.seen: set[int] = set()
        self.lock = threading.Lock()

    async def aget(self, messages: Sequence[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        return " ".join(self.words)

    async def aput(self, messages: Sequence[ChatMessage], **block_kwargs: Any) -> None:
        self.words.extend(one.content for one in messages)
        self.seen.update(one.seq or 0 for one in messages)

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> Any:
        return None


class Own(Plain):
    """It says itself what its state is."""

    def state_dict(self) -> dict[str, Any]:
        return {"joined": "|".join(self.words)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.words = [word for word in state["joined"].split("|") if word]


def services(key: SessionKey) -> BlockServices:
    return BlockServices(key.user, key.session, COUNTER)


async def put(blocks: BlockSet, key: SessionKey, state: bytes, *words: str) -> bytes:
    (prototype,) = blocks.prototypes(key).values()
    block = blocks.copy(key, prototype, state)
    at = datetime(2026, 5, 8, tzinfo=UTC)
    await block.aput(
        [ChatMessage("user", word, created_at=at, seq=n + 1) for n, word in enumerate(words)]
    )
    return blocks.state(prototype, block)


async def test_the_documents_mention_counter() -> None:
    """S3.22: the document's block runs as it is written, and its count is its session's."""
    blocks = BlockSet([MentionCounter(name="mentions", priority=1)], services)
    state = await put(blocks, ONE, b"", "Logan is here", "nobody", "hello Logan, Logan")
    state = await put(blocks, ONE, state, "bye Logan")
    (prototype,) = blocks.prototypes(ONE).values()
    assert await blocks.copy(ONE, prototype, state).aget() == "Logan was mentioned 3 times."
    assert await blocks.copy(TWO, prototype, b"").aget() == "Logan was mentioned 0 times."
    assert (
        await prototype.aget(messages=[ChatMessage("user", "Logan")])
        == "Logan was mentioned 0 times."
    )
    assert await prototype.atruncate("Logan", 3) == ""


def test_names() -> None:
    """S3.16, S3.20, S3.22: a block without a name is called after its class; two of one name, one
    that is no tag, a negative priority, and what is no block, are refused by name.
    """
    assert MentionCounter().name == "mention_counter"
    assert StaticMemoryBlock(static_content="x").name == "static_memory"
    assert VectorMemoryBlock().name == "retrieval_based_memory"
    assert MentionCounter(name="mine").name == "mine"
    bad: list[Any] = [
        *([MentionCounter(name=name)] for name in ("a b", "memory", "Fact", "a>b")),
        [MentionCounter(), MentionCounter()],
        [MentionCounter(priority=-1)],
        ["no block"],
        [MentionCounter],
    ]
    for blocks in bad:
        with pytest.raises(ConfigError):
            BlockSet(blocks, services)

        def made(_: SessionKey, blocks: Any = blocks) -> Any:
            return blocks

        with pytest.raises(ConfigError):
            BlockSet(made, services).prototypes(ONE)


async def test_sessions_share_nothing() -> None:
    """S3.15, S3.22: mutable defaults and attributes are each session's own, and come back as what
    they were.
    """
    prototypes: tuple[MemoryBlock, ...] = (Stateful(), Plain(), Own())
    for prototype in prototypes:
        blocks = BlockSet([prototype], services)
        first = await put(blocks, ONE, b"", "a", "b")
        second = await put(blocks, TWO, b"", "c")
        first = await put(blocks, ONE, first, "d")
        assert await blocks.copy(ONE, prototype, first).aget() == "a b d"
        assert await blocks.copy(TWO, prototype, second).aget() == "c"
        assert await blocks.copy(SessionKey("bob", "one"), prototype, b"").aget() == ""
        assert await prototype.aget() == ""
        copy: Any = blocks.copy(ONE, prototype, first)
        assert isinstance(prototype, Own) or copy.seen == {1, 2}


async def test_configuration_is_not_state() -> None:
    """S3.22: what cannot be encoded is shared configuration; what a put did not change follows the
    prototype. A state that its block cannot read says so; a field that is no longer declared is
    passed over.
    """
    client = object()
    before = MentionCounter(name="m")
    state = await put(BlockSet([before], services), ONE, b"", "Logan")
    after = MentionCounter(name="m", mention_name="Mia")
    blocks = BlockSet([after], services)
    state = await put(blocks, ONE, state, "Logan", "Mia")
    copy: Any = blocks.copy(ONE, after, state)
    assert (copy.mention_count, copy.mention_name) == (2, "Mia")
    copy = blocks.copy(ONE, after, msgspec.msgpack.encode({"mention_count": 3, "gone": 1}))
    assert copy.mention_count == 3
    with pytest.raises(msgspec.ValidationError):
        blocks.copy(ONE, after, msgspec.msgpack.encode({"mention_count": "many"}))
    shared = Stateful(client=client)
    blocks = BlockSet([shared], services)
    twin: Any = blocks.copy(ONE, shared, await put(blocks, ONE, b"", "x"))
    assert twin.client is client
    assert twin.at == datetime(2026, 5, 8, tzinfo=UTC)
    assert twin.services.session_id == "one"


def test_a_message_is_text_to_a_block() -> None:
    """S3.22, S3.32: content is always text, of parts and tool calls, too; the chat dict is there,
    fresh each time.
    """
    parts = [
        {"type": "text", "text": "Look at Logan"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
    ]
    entry, chat = encode_message(
        {"role": "user", "name": "Ann", "content": parts, "created_at": 1_700_000_000}
    )
    message = ChatMessage.of_entry(entry.with_seq(7))
    assert "Logan" in message.content
    assert (message.role, message.name, message.seq) == ("user", "Ann", 7)
    assert message.created_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert message.chat == chat
    message.chat["content"].clear()
    assert message.chat == chat
    shown = ChatMessage.of_chat(chat)
    assert (shown.content, shown.chat, shown.seq) == (message.content, chat, None)
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "look", "arguments": '{"who": "Logan"}'},
    }
    assert (
        "Logan"
        in ChatMessage.of_chat({"role": "assistant", "content": None, "tool_calls": [call]}).content
    )


def test_ranges() -> None:
    """S3.12: what a block has seen is a set of message numbers, kept as ranges."""
    assert join_ranges([(5, 6), (1, 2), (3, 3), (9, 8)]) == ((1, 3), (5, 6))
    assert missing_ranges(10, [(2, 3), (7, 12)]) == ((1, 1), (4, 6))
    assert missing_ranges(3, [(1, 5)]) == ()
    assert missing_ranges(3, []) == ((1, 3),)
    state_item = progress_item("m", Progress(((1, 4), (8, 9)), b"x"))
    assert block_progress([state_item])["m"].seen == ((1, 4), (8, 9))
    assert exclusions([state_item], 0) == ()
    assert exclusions([state_item], 4) == ((1, 4),)
    (copy,) = copy_block_items([state_item], 5)
    assert block_progress([copy])["m"] == Progress(((1, 5),), b"x")
