"""A memory in shards, used as one runtime."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import remora
from remora.cluster.sharded import ShardedRuntime
from remora.cluster.sharding import shard_of
from remora.errors import (
    ConfigError,
    DirectoryLocked,
    DirectoryUnusable,
    InvalidInput,
    NoDeadLetter,
    RuntimeClosed,
)
from remora.ids import SHARED_PREFIX
from remora.testing import HashEmbedder
from tests.verbs import said

pytestmark = pytest.mark.anyio
USERS = [f"user {number}" for number in range(6)]
CONFIG = remora.Config.from_dict(
    {"supervisor": {"max_attempts": 1}, "tokens": {"counter": "heuristic"}}
)

PLAIN = remora.Config.from_dict(
    {"long_term": {"enabled": False}, "tokens": {"counter": "heuristic"}}
)


async def sharded(path: Path | None, shards: int | None = 3, **options: Any) -> ShardedRuntime:
    """The shards of the memory in a directory; without one, in memory."""
    given = {"embedder": HashEmbedder(16), "config": CONFIG, **options}
    runtime = remora.Runtime.in_memory(**given) if path is None else remora.Runtime(path, **given)
    return await anyio.to_thread.run_sync(partial(ShardedRuntime.of, runtime, shards=shards))


async def fill(memory: ShardedRuntime) -> None:
    for number, user in enumerate(USERS):
        await memory.session(user, "chat").append([said(f"fact {number}"), said("and more")])
        await memory.user(user).remember(f"{user} likes tea")
    member = memory.shared("team").as_("ada")
    await member.claim()
    await member.remember("the team meets on Mondays")


async def test_each_user_and_scope_is_whole_in_one_shard(tmp_path: Path) -> None:
    async with await sharded(tmp_path / "memory") as memory:
        await fill(memory)
        found = [{one.user for one in await shard.users(limit=None)} for shard in memory.shards]
    assert [set(USERS) & names for names in found] == [
        {user for user in USERS if shard_of(user, 3) == number} for number in range(3)
    ]
    async with await sharded(tmp_path / "memory", None) as memory:
        for number, user in enumerate(USERS):
            history = await memory.session(user, "chat").history()
            assert [one.content for one in history] == [f"fact {number}", "and more"]
        assert (await memory.user("user 1").recall("likes tea"))[0].text == "user 1 likes tea"
        member = memory.shared("team").as_("ada")
        assert (await member.recall("Mondays"))[0].text == "the team meets on Mondays"
        assert await member.members() == {"ada": "own"}
        home = memory.shards[shard_of(SHARED_PREFIX + "team", 3)]
        assert await home.shared("team").as_("ada").members() == {"ada": "own"}


async def test_pages_of_users_are_those_of_one_list() -> None:
    async with await sharded(None) as memory:
        await fill(memory)
        orders: tuple[Any, ...] = ("name", "newest", "oldest")
        for order in orders:
            whole = await memory.users(order=order, limit=None)
            pages: list[Any] = []
            while page := await memory.users(
                order=order, limit=2, after=pages[-1].cursor if pages else None
            ):
                pages += page
            assert pages == list(whole)
            assert {one.user for one in pages} >= set(USERS)
            if order == "name":
                assert [one.user for one in whole] == sorted(one.user for one in whole)
            else:
                times = [one.last_at for one in whole if one.last_at is not None]
                assert times == sorted(times, reverse=order == "newest")
            named = await memory.users(prefix="user 1", order=order)
            assert {one.user for one in named} == {"user 1"}
        with pytest.raises(InvalidInput):
            await memory.users(limit=-1)


async def test_figures_are_those_of_all_shards(tmp_path: Path) -> None:
    """Also where they are in memory; messages have ids of their own, and a user is forgotten in
    their shard.
    """
    async with await sharded(None) as memory:
        assert memory.path is None
        with pytest.raises(InvalidInput, match="nothing to copy"):
            await memory.backup(tmp_path / "copy")
        await fill(memory)
        await memory.ready()
        await memory.settle()
        counts = await memory.counts()
        assert (counts.sessions, counts.messages, counts.memories) == (6, 12, 7)
        assert (await memory.counts("user 3")).messages == 2
        statistics = memory.statistics()
        each = [shard.statistics() for shard in memory.shards]
        assert statistics.log.writes == sum(one.log.writes for one in each) > 0
        assert statistics.supervisor.queues.keys() == each[0].supervisor.queues.keys()
        assert (await memory.long_term_statistics()).rows == 7
        assert memory.reembedding is None
        await memory.reembedded()
        memory.reschedule("fifo_cleanup", 60.0)
        receipts = await memory.append_many(
            [(memory.session(user, "chat"), said("again"), None) for user in USERS]
        )
        assert [one.seqs for one in receipts if isinstance(one, remora.Receipt)] == [(3,)] * 6
        histories = [await memory.session(user, "chat").history() for user in USERS]
        assert len({message.id for history in histories for message in history}) == 18
        await memory.user("user 4").forget()
        assert memory.erasures() == await memory.retry_erasures() == []
        assert (await memory.counts()).sessions == 5
        assert "user 4" not in {one.user for one in await memory.users(limit=None)}


async def test_an_export_of_shards_is_one_of_the_whole_and_back(tmp_path: Path) -> None:
    def path(name: str) -> Path:
        return tmp_path / name

    async with await sharded(path("three")) as memory:
        await fill(memory)
        report = await memory.export(path("three.jsonl"))
        assert (report.sessions, report.messages, report.users) == (6, 12, 7)
        await memory.export(path("three.tables"))
    async with remora.Runtime(path("one"), embedder=HashEmbedder(16)) as whole:
        assert await whole.import_(path("three.tables")) == report
        await whole.export(path("one.jsonl"))
    async with await sharded(path("two"), 2) as memory:
        assert await memory.import_(path("one.jsonl")) == report
        before = await memory.counts()
        with pytest.raises(InvalidInput, match="6 of the 6 sessions exist"):
            await memory.import_(path("three.jsonl"))
        assert await memory.counts() == before
        skipped = await memory.import_(path("three.jsonl"), skip_existing=True)
        assert (skipped.sessions, skipped.skipped) == (0, 6)
        await memory.settle()
        assert (await memory.user("user 5").recall("likes tea"))[0].text == "user 5 likes tea"


async def test_a_backup_is_a_memory_in_shards(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    async with await sharded(tmp_path / "memory") as memory:
        await fill(memory)
        await memory.settle()
        report = await memory.backup(
            tmp_path / "copy", progress=lambda done, total: told.append((done, total))
        )
        with pytest.raises(InvalidInput, match="exists already"):
            await memory.backup(tmp_path / "copy")
        with pytest.raises(InvalidInput, match="must stand elsewhere"):
            await memory.backup(tmp_path / "memory" / "copy")
        counts = await memory.counts()
    assert report.counts == counts
    assert told[-1] == (3_000, 3_000)
    async with await sharded(tmp_path / "copy", None) as copy:
        assert await copy.counts() == counts
        assert (await copy.user("user 2").recall("likes tea"))[0].text == "user 2 likes tea"


async def test_dead_letters_say_which_shard_they_are_of() -> None:
    def poison(text: str) -> str:
        if "poison" in text:
            raise ValueError("no")
        return text

    async with await sharded(None, redact_long_term=poison) as memory:
        for user in USERS[:4]:
            chat = memory.session(user, "chat")
            await chat.append(said("poison"))
            await chat.flush()
        await memory.settle()
        dead = await memory.dead_letters()
        assert len(dead) == 4
        for job in dead:
            number, _, own = job.id.partition("/")
            assert int(number) == shard_of(job.key.user, 3)  # type: ignore[attr-defined]
            assert own in {one.id for one in await memory.shards[int(number)].dead_letters()}
        assert len({job.id for job in dead}) == 4
        for wrong in (["9/x"], ["x"], ["0/x", dead[0].id], [dead[0].id.partition("/")[2]]):
            with pytest.raises(NoDeadLetter):
                await memory.drop_dead_letters(wrong)
        assert len(await memory.dead_letters()) == 4
        assert await memory.drop_dead_letters([dead[0].id, dead[1].id]) == 2
        assert await memory.retry_dead_letters([dead[2].id]) == 1
        await memory.settle()
        assert {one.id for one in await memory.dead_letters()} == {dead[2].id, dead[3].id}
        assert await memory.retry_dead_letters() == 2


async def test_a_memory_in_shards_is_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    async with await sharded(path, config=PLAIN):
        with pytest.raises(DirectoryUnusable, match=r"remora\.connect.*remora reshard"):
            await remora.Runtime(path).start()
        with pytest.raises(DirectoryLocked):
            await (await sharded(path, config=PLAIN)).start()
    with pytest.raises(DirectoryUnusable, match=r"remora\.connect.*remora reshard"):
        await remora.Runtime(path).start()
    with pytest.raises(DirectoryUnusable, match="one shard of the memory"):
        await remora.Runtime(path / "shard-01").start()
    with pytest.raises(InvalidInput, match="has 3 shards, not 2"):
        await sharded(path, 2, config=PLAIN)
    one, other = (remora.Runtime(tmp_path / name, config=PLAIN) for name in "ab")
    async with ShardedRuntime([one, other]) as memory:  # no memory on disk: no copy were all of it
        with pytest.raises(InvalidInput, match="no directory of one memory"):
            await memory.backup(tmp_path / "copy")
    assert not await anyio.Path(tmp_path / "copy").exists()


async def test_a_memory_that_was_made_before_is_its_own_only_shard(tmp_path: Path) -> None:
    async with remora.Runtime(tmp_path, config=PLAIN) as runtime:
        await runtime.session("ada", "chat").append(said("hello"))
    async with await sharded(tmp_path, None, config=PLAIN) as memory:
        assert len(memory.shards) == 1
        assert memory.path == tmp_path
        assert (await memory.session("ada", "chat").history())[0].content == "hello"
    async with remora.Runtime(tmp_path, config=PLAIN) as runtime:
        assert (await runtime.counts()).messages == 1


async def test_it_opens_whole_or_not_at_all_and_again(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    memory = await sharded(path, config=PLAIN)
    chat = memory.session("ada", "chat")
    with pytest.raises(RuntimeClosed):
        await chat.append(said("too early"))
    await memory.start()
    await chat.append(said("hello"))
    with pytest.raises(InvalidInput, match="open already"):
        await memory.start()
    await memory.aclose()
    await memory.aclose()
    async with await sharded(path, config=PLAIN) as again:
        assert (await again.session("ada", "chat").history())[0].content == "hello"
    journal = path / "shard-02" / "journal.db"
    whole = await anyio.Path(journal).read_bytes()
    await anyio.Path(journal).write_bytes(b"this is no journal" * 100)
    with pytest.raises(remora.errors.StorageError):
        await memory.start()
    await anyio.Path(journal).write_bytes(whole)
    async with memory:  # nothing stayed open
        assert (await chat.history())[0].content == "hello"
        await memory.shards[1].aclose()  # in any order


async def test_shards_share_models_and_bounds(tmp_path: Path) -> None:
    async with await sharded(None, embedder=None) as memory:
        parts = [shard.internals for shard in memory.shards if isinstance(shard, remora.Runtime)]
        assert (
            len({id(one.counter) for one in parts}) == len({id(one.embedder) for one in parts}) == 1
        )
        assert memory.shards[0].config.activation.max_live == CONFIG.activation.max_live // 3
    with pytest.raises(ConfigError, match="store="):
        await sharded(tmp_path / "other", store=object())
