"""Memory blocks in the whole runtime, on real SQLite and LanceDB."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, List, Optional  # noqa: UP035

import anyio
import msgspec
import pytest

from remora import Config, Runtime, Session
from remora.actors.blocks.fit import GatheredBlocks
from remora.actors.blocks.state import block_progress
from remora.blocks import (
    BaseMemoryBlock,
    BlockContent,
    ChatMessage,
    FactExtractionMemoryBlock,
    MemoryBlock,
    StaticMemoryBlock,
    VectorMemoryBlock,
)
from remora.errors import ConfigError, InvalidInput, ModelUnavailable
from remora.ids import SessionKey
from remora.runtime.jobs import JobDone
from remora.runtime.log import Write
from remora.storage.memory import MemoryJournal
from remora.testing import HashEmbedder, ScriptedChatModel
from remora.tokens import CallableCounter, count_message
from tests.harness import user

pytestmark = pytest.mark.anyio
WORDS = CallableCounter(str.split)
IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}


# The document's example, its import line changed and nothing else.
class MentionCounter(BaseMemoryBlock[str]):
    """
    A memory block that counts the number of times a user mentions a specific name.
    """

    mention_name: str = "Logan"
    mention_count: int = 0

    async def _aget(self, messages: Optional[List[ChatMessage]] = None, **block_kwargs: Any) -> str:  # noqa: UP006, UP045
        return f"Logan was mentioned {self.mention_count} times."

    async def _aput(self, messages: List[ChatMessage]) -> None:  # noqa: UP006
        for message in messages:
            if self.mention_name in message.content:
                self.mention_count += 1

    async def atruncate(self, content: str, tokens_to_truncate: int) -> Optional[str]:  # noqa: UP045
        return ""


class Watch:
    """What blocks of all sessions were given, seen from outside: no msgpack, so it is configuration
    and shared.
    """

    def __init__(self) -> None:
        self.puts: list[tuple[str, list[ChatMessage]]] = []
        self.broken: set[str] = set()
        self.error: type[Exception] = ValueError
        self.asked = anyio.Event()
        self.failures = 0
        self.failed_often = anyio.Event()
        self.gate = anyio.Event()
        self.gate.set()


class Recording(BaseMemoryBlock[str]):
    watch: Any = None
    seqs: list[int] = []  # noqa: RUF012

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        return f"{self.name} saw {len(self.seqs)}"

    async def _aput(self, messages: list[ChatMessage]) -> None:
        self.seqs.extend(one.seq or 0 for one in messages)
        if self.watch is not None:
            self.watch.asked.set()
            await self.watch.gate.wait()
            await anyio.lowlevel.checkpoint()
            if self.name in self.watch.broken:
                self.watch.failures += 1
                if self.watch.failures == 5:
                    self.watch.failed_often.set()
                raise self.watch.error("broken")
            self.watch.puts.append((self.name, messages))


def config(**sections: Any) -> Config:
    """Folds above 210 words, counted by a function; jobs are retried at once, twice."""
    tree: dict[str, Any] = {
        "buffer": {"token_limit": 300, "token_flush_size": 40, "summary_tokens": 80},
        "long_term": {"batch_ms": 5},
        "supervisor": {"backoff_s": 0.01, "max_attempts": 2},
        "models": {"embedder": "none"},
    }
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values}
    return Config.from_dict(tree)


async def seen(chat: Session, name: str) -> list[int]:
    """Numbers that a `Recording` block has taken in, by its journalled state."""
    progress = block_progress((await chat.inspect()).blocks).get(name)
    if progress is None or not progress.state:
        return []
    found: list[int] = msgspec.msgpack.decode(progress.state)["seqs"]
    return found


async def gathered(runtime: Runtime, chat: Session, *messages: dict[str, Any]) -> GatheredBlocks:
    assert runtime.internals.planner.tiers.blocks is not None
    return await runtime.internals.planner.tiers.blocks.gather(
        chat.key, (await chat.inspect()).blocks, messages
    )


async def text_of(runtime: Runtime, chat: Session, name: str, *messages: dict[str, Any]) -> str:
    return next(
        (
            str(one.content)
            for one in (await gathered(runtime, chat, *messages)).contents
            if one.name == name
        ),
        "",
    )


# -- delivery --------------------------------------------------------------------------------------


async def test_each_flushed_message_once_under_concurrent_appends(tmp_path: Path) -> None:
    """S3.12, G7: 32 appends at a time, on four sessions: each message that left the buffer was
    shown once, in order.
    """
    watch = Watch()
    async with Runtime(
        tmp_path, config=config(), counter=WORDS, blocks=[Recording(name="rec", watch=watch)]
    ) as runtime:
        chats = [runtime.session("alice", f"s{n}") for n in range(4)]

        async def talk(worker: int) -> None:
            for number in range(12):
                chat = chats[(worker + number) % 4]
                await chat.append(
                    [user(f"worker {worker} says {number} " + "and more " * 3), user("and on")]
                )

        async with anyio.create_task_group() as group:
            for worker in range(32):
                group.start_soon(talk, worker)
        await runtime.settle()
        for chat in chats:
            view = await chat.inspect()
            assert view.watermarks.archived_through > 100
            assert await seen(chat, "rec") == list(range(1, view.watermarks.archived_through + 1))
            history = await chat.history()
            mine = [
                one for _, batch in watch.puts for one in batch if one.content == history[0].content
            ]
            assert len(mine) == 1
        shown = [one.content for _, batch in watch.puts for one in batch if one.content != "and on"]
        assert len(shown) == len(set(shown))
        assert all(sum(len(one.content.split()) for one in batch) <= 40 for _, batch in watch.puts)


async def test_a_job_that_is_left_over_does_not_double(tmp_path: Path) -> None:
    """S3.12, G7: closed in the middle of a put, the next runtime shows it again, to the state from
    before it.
    """
    watch = Watch()
    watch.gate = anyio.Event()
    blocks = [Recording(name="slow", watch=watch), Recording(name="quick")]
    settings = config(supervisor={"drain_s": 0.1})
    async with Runtime(tmp_path, config=settings, counter=WORDS, blocks=blocks) as runtime:
        chat = runtime.session("alice", "one")
        for number in range(60):
            await chat.append(user(f"number {number} " + "and so on " * 3))
        with anyio.fail_after(10):
            await watch.asked.wait()
    assert watch.puts == []
    watch.gate.set()
    async with Runtime(tmp_path, config=settings, counter=WORDS, blocks=blocks) as runtime:
        chat = runtime.session("alice", "one")
        await runtime.settle()
        left = list(range(1, (await chat.inspect()).watermarks.archived_through + 1))
        assert len(left) > 20
        assert await seen(chat, "slow") == left
        assert await seen(chat, "quick") == left
        assert [one.seq for name, batch in watch.puts if name == "slow" for one in batch] == left


async def test_state_survives(tmp_path: Path) -> None:
    """S3.12, S3.22, S3.28: a block's state is journalled: after a restart it is what it was, and
    goes on from there.
    """
    async with Runtime(
        tmp_path, config=config(), counter=WORDS, blocks=[MentionCounter(name="m")]
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user("Logan was here " + "x " * 20) for _ in range(20)])
        await runtime.settle()
        before = await text_of(runtime, chat, "m")
        assert before not in {"", "Logan was mentioned 0 times."}
    async with Runtime(
        tmp_path, config=config(), counter=WORDS, blocks=[MentionCounter(name="m")]
    ) as runtime:
        chat = runtime.session("alice", "one")
        assert await text_of(runtime, chat, "m") == before
        await chat.append([user("Logan was here " + "x " * 20) for _ in range(20)])
        await runtime.settle()
        front = (await chat.inspect()).watermarks.archived_through
        assert await text_of(runtime, chat, "m") == f"Logan was mentioned {front} times."


async def test_one_block_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """S3.12, S4.30: what one block cannot take in stays to be shown to it alone, is a dead letter,
    and is said in its source.
    """
    watch = Watch()
    watch.broken = {"bad"}
    blocks = [Recording(name="good", watch=watch), Recording(name="bad", watch=watch)]
    async with Runtime(tmp_path, config=config(), counter=WORDS, blocks=blocks) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        await runtime.settle()
        front = (await chat.inspect()).watermarks.archived_through
        assert await seen(chat, "good") == list(range(1, front + 1))
        assert await seen(chat, "bad") == []
        (dead,) = await runtime.dead_letters()
        assert "bad" in dead.error
        assert "good" not in dead.error
        assert [one.seq for name, batch in watch.puts if name == "good" for one in batch] == list(
            range(1, front + 1)
        )
        sources = (await gathered(runtime, chat)).sources
        assert sources["block:good"].status == "ok"
        assert (sources["block:bad"].status, sources["block:bad"].detail) == (
            "failed",
            "ValueError: broken",
        )
        watch.broken = set()
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        await runtime.settle()
        front = (await chat.inspect()).watermarks.archived_through
        assert await seen(chat, "bad") == await seen(chat, "good") == list(range(1, front + 1))
        assert (await gathered(runtime, chat)).sources["block:bad"].status == "ok"


async def test_a_model_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """S3.12, G6: a failure that may pass is no dead letter: the block is shown its messages when
    the model is back.
    """
    watch = Watch()
    watch.broken, watch.error = {"rec"}, ModelUnavailable
    async with Runtime(
        tmp_path,
        config=config(supervisor={"max_backoff_s": 0.01}),
        counter=WORDS,
        blocks=[Recording(name="rec", watch=watch)],
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        with anyio.fail_after(20):
            await watch.failed_often.wait()
        watch.broken = set()
        await runtime.settle()
        assert await runtime.dead_letters() == []
        assert await seen(chat, "rec") == list(
            range(1, (await chat.inspect()).watermarks.archived_through + 1)
        )


async def test_cleared_and_deleted_messages_are_not_shown(tmp_path: Path) -> None:
    """S3.12, S1.14: what was cleared before it left the buffer reaches no block, not even one that
    is added later.
    """
    async with Runtime(
        tmp_path, config=config(), counter=WORDS, blocks=[Recording(name="early")]
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        await runtime.settle()
        first = (await chat.inspect()).watermarks.archived_through
        await chat.clear()
        cleared = (await chat.inspect()).last_seq
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        await runtime.settle()
        front = (await chat.inspect()).watermarks.archived_through
        expected = [*range(1, first + 1), *range(cleared + 1, front + 1)]
        assert 0 < first < cleared < front
        assert await seen(chat, "early") == expected
    blocks = [Recording(name="early"), Recording(name="late")]
    async with Runtime(tmp_path, config=config(), counter=WORDS, blocks=blocks) as runtime:
        chat = runtime.session("alice", "one")
        assert await seen(chat, "late") == []
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        await runtime.settle()
        expected = [
            *expected,
            *range(front + 1, (await chat.inspect()).watermarks.archived_through + 1),
        ]
        assert await seen(chat, "early") == await seen(chat, "late") == expected


async def test_without_blocks(tmp_path: Path) -> None:
    """S3.11, S3.12: without blocks there is no queue, no job and no state; what was cleared
    meanwhile is never shown later.
    """
    async with Runtime(tmp_path, config=config(), counter=WORDS) as runtime:
        assert runtime.internals.planner.tiers.blocks is None
        assert "blocks" not in runtime.statistics().supervisor.queues
        chat = runtime.session("alice", "one")
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        await chat.clear()
        await runtime.settle()
        assert (await chat.inspect()).blocks == ()
    async with Runtime(
        tmp_path, config=config(), counter=WORDS, blocks=[Recording(name="rec")]
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        await runtime.settle()
        assert await seen(chat, "rec") == list(
            range(13, (await chat.inspect()).watermarks.archived_through + 1)
        )


async def test_the_end_of_a_block_job_is_journalled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """G7: the actor journals the blocks' states and the job's end together, and nobody writes the
    end again.
    """
    ended: list[str] = []
    write = MemoryJournal.write

    def note(journal: MemoryJournal, one: Write) -> None:
        ended.extend(record.id for record in one.records if isinstance(record, JobDone))
        write(journal, one)

    monkeypatch.setattr(MemoryJournal, "write", note)
    async with Runtime.in_memory(
        config=config(), counter=WORDS, blocks=[Recording(name="rec")]
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        await runtime.settle()
    of_blocks = [id_ for id_ in ended if id_.startswith("blocks-")]
    assert of_blocks
    assert len(of_blocks) == len(set(of_blocks))


# -- the blocks that ship --------------------------------------------------------------------------


async def test_facts_by_the_runtimes_model(tmp_path: Path) -> None:
    """S3.14: the fact block extracts by the runtime's chat model, once for each batch that leaves."""  # noqa: E501
    calls: list[str] = []

    async def model(prompt: str) -> str:
        if "keep the memory" not in prompt:
            return "A summary."
        calls.append(prompt)
        return f"<fact>Fact {len(calls)}</fact>"

    blocks = [FactExtractionMemoryBlock(), Recording(name="rec", watch=(watch := Watch()))]
    async with Runtime(
        tmp_path, config=config(), counter=WORDS, chat_model=model, blocks=blocks
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(14)])
        await runtime.settle()
        assert len(calls) == len(watch.puts) > 1
        found = await text_of(runtime, chat, "fact_extraction_memory")
        assert found == "\n".join(f"<fact>Fact {n + 1}</fact>" for n in range(len(calls)))


async def test_batches_in_long_term_memory(tmp_path: Path) -> None:
    """S3.15, S4.17: without a store of its own a vector block uses long-term memory: a row a batch,
    each its session's own.
    """
    settings = config(models={"embedder": "wordllama"})
    watch = Watch()
    blocks = [VectorMemoryBlock(similarity_top_k=9), Recording(name="rec", watch=watch)]
    async with Runtime(
        tmp_path, config=settings, counter=WORDS, embedder=HashEmbedder(256), blocks=blocks
    ) as runtime:
        places = [("alice", "one"), ("alice", "two"), ("bob", "one")]
        for owner, name in places:
            chat = runtime.session(owner, name)
            await chat.append(
                [user(f"honey of {owner} in {name}, jar {n} " + "x " * 15) for n in range(20)]
            )
        await runtime.settle()
        rows = await (await runtime.internals.long_term()).rows("alice")
        assert sum(row.memory_type == "block" for row in rows if row.session == "one") == len(
            [batch for _, batch in watch.puts if "alice in one" in batch[0].content]
        )
        for owner, name in places:
            found = await text_of(
                runtime, runtime.session(owner, name), "retrieval_based_memory", user("honey")
            )
            assert found.startswith("<message role='user'>honey of")
            assert all(f"honey of {owner} in {name}," in line for line in found.splitlines())
    async with Runtime(
        tmp_path, config=settings, counter=WORDS, embedder=HashEmbedder(256), blocks=blocks
    ) as runtime:
        assert "honey of bob in one" in await text_of(
            runtime, runtime.session("bob", "one"), "retrieval_based_memory", user("honey")
        )


async def test_batches_are_their_blocks_alone(tmp_path: Path) -> None:
    """S3.15, S4.17, S4.27: what a vector block keeps is in no recall and no listing, and no pruning
    takes it.
    """
    blocks = [VectorMemoryBlock(similarity_top_k=9)]
    settings = config(models={"embedder": "wordllama"})
    async with Runtime(
        tmp_path, config=settings, counter=WORDS, embedder=HashEmbedder(256), blocks=blocks
    ) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("one")
        await chat.append([user(f"honey jar {n} " + "x " * 15) for n in range(20)])
        await chat.flush()
        await runtime.settle()
        before = await text_of(runtime, chat, "retrieval_based_memory", user("honey"))
        assert before.count("honey jar") == (await chat.inspect()).watermarks.archived_through
        assert len(await alice.memories()) == 20
        assert all("<message" not in found.text for found in await alice.recall("honey jar", k=50))
        await alice.prune(keep=3, strategy="fifo")
        await runtime.settle()
        assert sorted(found.seq for found in await alice.memories()) == [18, 19, 20]
        assert await text_of(runtime, chat, "retrieval_based_memory", user("honey")) == before


# -- configuration ---------------------------------------------------------------------------------


async def test_blocks_for_each_session(tmp_path: Path) -> None:
    """S3.22: a function gives each session its own blocks; the same names in two sessions are two
    blocks.
    """

    def blocks(key: SessionKey) -> Sequence[MemoryBlock]:
        return (
            []
            if key.session == "bare"
            else [
                Recording(name="rec"),
                StaticMemoryBlock(static_content=f"You talk to {key.user}."),
            ]
        )

    async with Runtime(tmp_path, config=config(), counter=WORDS, blocks=blocks) as runtime:
        for owner, name in (("alice", "one"), ("bob", "one"), ("alice", "bare")):
            await runtime.session(owner, name).append(
                [user(f"message {n} " + "x " * 20) for n in range(12)]
            )
        await runtime.settle()
        for owner in ("alice", "bob"):
            chat = runtime.session(owner, "one")
            assert await text_of(runtime, chat, "static_memory") == f"You talk to {owner}."
            assert await seen(chat, "rec") == list(
                range(1, (await chat.inspect()).watermarks.archived_through + 1)
            )
        bare = runtime.session("alice", "bare")
        assert (await gathered(runtime, bare)).contents == ()
        assert (await runtime.counts()).pending_jobs == 0


async def test_wrong_blocks(tmp_path: Path) -> None:
    """S3.15, S3.22: blocks that cannot be are refused when the runtime is made, and what they lack
    when it is opened.
    """
    with pytest.raises(ConfigError, match="two memory blocks"):
        Runtime(tmp_path, blocks=[MentionCounter(), MentionCounter()])
    with pytest.raises(ConfigError, match="no embedder"):
        async with Runtime(tmp_path, config=config(), blocks=[VectorMemoryBlock()]):
            pass


async def test_media_cost_what_is_configured(tmp_path: Path) -> None:
    """S3.32: what an image costs is configured, and an image in a message is stored and counted
    with it.
    """
    message = {"role": "user", "content": [{"type": "text", "text": "look here"}, IMAGE]}
    cheap = CallableCounter(str.split, media_tokens={"image_url": 10})
    async with Runtime(tmp_path / "a", config=config(), counter=cheap) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(message)
        assert (await chat.load()).tokens == 12
        assert (await chat.history())[0].content == message["content"]
    async with Runtime(tmp_path / "a", config=config(), counter=WORDS) as runtime:
        assert (await runtime.session("alice", "one").load()).tokens == 258  # counted anew
    async with Runtime(tmp_path / "b", config=config(), counter=WORDS) as runtime:
        assert runtime.message_tokens(message) == 258


# -- in a context ----------------------------------------------------------------------------------


async def test_load_shows_blocks(tmp_path: Path) -> None:
    """S3.12, S3.20, S3.22, S3.24: short-term and long-term memory in one context, within the limit;
    Logan is counted.
    """
    blocks = [
        StaticMemoryBlock(name="core", static_content="I am Logan."),
        MentionCounter(name="mentions", priority=1),
    ]
    async with Runtime(tmp_path, config=config(), counter=WORDS, blocks=blocks) as runtime:
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


@pytest.mark.parametrize("method", ["system", "user", "tail"])
async def test_load_inserts_where_it_is_told(tmp_path: Path, method: str) -> None:
    """S3.19: blocks go where `context.insert_method` says, and what is stored stays as it is."""
    settings = config(context={"insert_method": method})
    async with Runtime(
        tmp_path, config=settings, counter=WORDS, blocks=[StaticMemoryBlock(static_content="core")]
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user("first"), {"role": "assistant", "content": "yes"}, user("second")])
        context = await chat.load()
        memory = "<memory>\n<static_memory>\ncore\n</static_memory>\n</memory>"
        assert [one["content"] for one in context.messages] == {
            "system": [memory, "first", "yes", "second"],
            "user": ["first", "yes", f"{memory}\n\nsecond"],
            "tail": ["first", "yes", memory, "second"],
        }[method]
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
    async with Runtime(tmp_path, config=config(), counter=WORDS, blocks=blocks) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("hello"))
        for room, names in (
            (69, {"zero", "one", "two"}),
            (68, {"zero", "two"}),
            (46, {"zero"}),
            (25, {"zero"}),
        ):
            context = await chat.load(max_tokens=room)
            assert {
                name
                for name in ("zero", "one", "two")
                if f"<{name}>" in context.messages[0]["content"]
            } == names
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
    settings = config(context={"block_timeout_s": 0.05})
    async with Runtime(tmp_path, config=settings, counter=WORDS, blocks=blocks) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("hello"))
        context = await chat.load()
        assert "core" in context.messages[0]["content"]
        assert context.messages[-1] == user("hello")
        assert context.sources["block:hanging"].status == "late"
        assert context.sources["block:raising"].status == "failed"


async def test_load_with_an_image(tmp_path: Path) -> None:
    """S3.13, S3.32: an image in static content is in the context, costs its estimate, and makes the
    message one of parts.
    """
    content: BlockContent = [{"type": "text", "text": "The plan:"}, IMAGE]
    counter = CallableCounter(str.split, media_tokens={"image_url": 50})
    async with Runtime(
        tmp_path,
        config=config(),
        counter=counter,
        blocks=[StaticMemoryBlock(static_content=content)],
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("hello"))
        context = await chat.load()
        assert context.messages[0]["content"] == [
            {"type": "text", "text": "<memory>\n<static_memory>\nThe plan:"},
            IMAGE,
            {"type": "text", "text": "</static_memory>\n</memory>"},
        ]
        assert context.tokens == 1 + 50 + 6


async def test_load_shows_facts_and_batches(tmp_path: Path) -> None:
    """S3.14, S3.15, S3.20, S3.21: all three blocks that ship, over their default parts, in one
    context.
    """
    model = ScriptedChatModel([*["<fact>Keeps bees</fact>"] * 50])

    class Quiet(ScriptedChatModel):
        async def complete(self, messages: Any) -> str:
            return (
                "They talked."
                if "keep the memory" not in messages[-1]["content"]
                else await model.complete(messages)
            )

    blocks = [
        StaticMemoryBlock(static_content="I am Logan."),
        FactExtractionMemoryBlock(priority=1),
        VectorMemoryBlock(priority=2, similarity_top_k=1, retrieval_context_window=1),
    ]
    settings = config(models={"embedder": "wordllama"})
    async with Runtime(
        tmp_path,
        config=settings,
        counter=WORDS,
        embedder=HashEmbedder(256),
        chat_model=Quiet([]),
        blocks=blocks,
    ) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user("my bees make lavender honey near Coimbra")])
        for number in range(30):
            await chat.append(user(f"talks {number} " + "about something else " * 3))
        await chat.settle()
        await chat.append(user("bees lavender honey?"))
        context = await chat.load()
        text = context.messages[0]["content"]
        assert (
            "<fact_extraction_memory>\n<fact>Keeps bees</fact>\n</fact_extraction_memory>" in text
        )
        assert (
            "<retrieval_based_memory>\n<message role='user'>my bees make lavender honey near "
            "Coimbra</message>" in text
        )
        assert context.tokens <= 300
