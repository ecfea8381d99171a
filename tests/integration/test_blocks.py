"""Memory blocks in the whole runtime, on real SQLite and LanceDB."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from remora import Runtime
from remora.errors import ModelUnavailable
from remora.runtime.jobs import JobDone
from remora.storage.memory import MemoryJournal
from remora.storage.ports import Write
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


# -- delivery --------------------------------------------------------------------------------------


async def test_each_flushed_message_once_under_concurrent_appends(tmp_path: Path) -> None:
    """S3.12, G7: 16 appends at a time, on four sessions: each message that left the buffer was
    shown once, in order.
    """
    watch = Watch()
    async with opened(tmp_path, Recording(name="rec", watch=watch)) as runtime:
        chats = [runtime.session("alice", f"s{n}") for n in range(4)]

        async def talk(worker: int) -> None:
            for number in range(12):
                chat = chats[(worker + number) % 4]
                await chat.append(
                    [user(f"worker {worker} says {number} " + "and more " * 3), user("and on")]
                )

        async with anyio.create_task_group() as group:
            for worker in range(16):
                group.start_soon(talk, worker)
        await runtime.settle()
        for chat in chats:
            view = await chat.inspect()
            assert view.watermarks.archived_through > 40
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
    async with opened(tmp_path, *blocks, config=settings) as runtime:
        chat = runtime.session("alice", "one")
        for number in range(60):
            await chat.append(user(f"number {number} " + "and so on " * 3))
        await watch.asked.wait()
    assert watch.puts == []
    watch.gate.set()
    async with opened(tmp_path, *blocks, config=settings) as runtime:
        chat = runtime.session("alice", "one")
        left = await fill(runtime, chat, 0)
        assert len(left) > 20
        assert await seen(chat, "slow") == left
        assert await seen(chat, "quick") == left
        assert [one.seq for name, batch in watch.puts if name == "slow" for one in batch] == left


async def test_state_survives(tmp_path: Path) -> None:
    """S3.12, S3.22, S3.28: a block's state is journalled: after a restart it is what it was, and
    goes on from there.
    """
    said = [user("Logan was here " + "x " * 20) for _ in range(20)]
    async with opened(tmp_path, MentionCounter(name="m")) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(said)
        await runtime.settle()
        before = await text_of(runtime, chat, "m")
        assert before not in {"", "Logan was mentioned 0 times."}
    async with opened(tmp_path, MentionCounter(name="m")) as runtime:
        chat = runtime.session("alice", "one")
        assert await text_of(runtime, chat, "m") == before
        await chat.append(said)
        left = await fill(runtime, chat, 0)
        assert await text_of(runtime, chat, "m") == f"Logan was mentioned {len(left)} times."


async def test_one_block_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """S3.12, S4.30: what one block cannot take in stays to be shown to it alone, is a dead letter,
    and is said in its source.
    """
    watch = Watch()
    watch.broken = {"bad"}
    blocks = [Recording(name="good", watch=watch), Recording(name="bad", watch=watch)]
    async with opened(tmp_path, *blocks) as runtime:
        chat = runtime.session("alice", "one")
        left = await fill(runtime, chat)
        assert await seen(chat, "good") == left
        assert await seen(chat, "bad") == []
        (dead,) = await runtime.dead_letters()
        assert "bad" in dead.error
        assert "good" not in dead.error
        assert [one.seq for name, batch in watch.puts if name == "good" for one in batch] == left
        sources = (await gathered(runtime, chat)).sources
        assert sources["good"].status == "ok"
        assert (sources["bad"].status, sources["bad"].detail) == ("failed", "ValueError: broken")
        watch.broken = set()
        left = await fill(runtime, chat)
        assert await seen(chat, "bad") == await seen(chat, "good") == left
        assert (await gathered(runtime, chat)).sources["bad"].status == "ok"


async def test_a_model_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """S3.12, G6: a failure that may pass is no dead letter: the block is shown its messages when
    the model is back.
    """
    watch = Watch()
    watch.broken, watch.error = {"rec"}, ModelUnavailable
    settings = config(supervisor={"max_backoff_s": 0.01})
    block = Recording(name="rec", watch=watch)
    async with opened(tmp_path, block, config=settings) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        await watch.failed_often.wait()
        watch.broken = set()
        left = await fill(runtime, chat, 0)
        assert await runtime.dead_letters() == []
        assert await seen(chat, "rec") == left


async def test_cleared_and_deleted_messages_are_not_shown(tmp_path: Path) -> None:
    """S3.11, S3.12, S1.14: without blocks there is no queue, no job and no state. What was cleared
    before it left the buffer reaches no block, not even one that is added later.
    """
    async with opened(tmp_path) as runtime:
        assert runtime.internals.planner.tiers.blocks is None
        assert "blocks" not in runtime.statistics().supervisor.queues
        chat = runtime.session("alice", "two")
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(12)])
        await chat.clear()
        await runtime.settle()
        assert (await chat.inspect()).blocks == ()
    async with opened(tmp_path, Recording(name="early")) as runtime:
        chat = runtime.session("alice", "two")
        left = await fill(runtime, chat)
        assert await seen(chat, "early") == left[12:] != []
        chat = runtime.session("alice", "one")
        first = await fill(runtime, chat)
        await chat.clear()
        cleared = (await chat.inspect()).last_seq
        front = await fill(runtime, chat)
        expected = [*first, *front[cleared:]]
        assert 0 < len(first) < cleared < len(front)
        assert await seen(chat, "early") == expected
    async with opened(tmp_path, Recording(name="early"), Recording(name="late")) as runtime:
        chat = runtime.session("alice", "one")
        assert await seen(chat, "late") == []
        expected += (await fill(runtime, chat))[len(front) :]
        assert await seen(chat, "early") == await seen(chat, "late") == expected


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
    blocks = [Recording(name="rec")]
    async with Runtime.in_memory(config=config(), counter=WORDS, blocks=blocks) as runtime:
        await fill(runtime, runtime.session("alice", "one"))
    of_blocks = [id_ for id_ in ended if id_.startswith("blocks-")]
    assert of_blocks
    assert len(of_blocks) == len(set(of_blocks))
