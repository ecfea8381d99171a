"""Background jobs that failed for good: seen, retried, dropped, and never taken for done."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from remora import Client, Config, Runtime, Session
from remora.cli.main import main
from remora.cluster.acting import Actions
from remora.cluster.operating import list_jobs
from remora.errors import DirectoryLocked, InvalidInput, NoDeadLetter
from remora.ids import row_id
from remora.rest.app import build_app
from remora.rest.keys import KeyFile, add_key
from remora.rest.limits import RateLimit
from remora.results import Job
from remora.runtime.clock import SystemClock
from remora.runtime.jobs import JobDeadLettered
from remora.runtime.log import commit_records
from remora.storage.lock import DirectoryLock
from remora.storage.memory import MemoryStore
from remora.storage.pending import pending_flushes
from remora.storage.ports import SessionKey
from remora.storage.records import JobsStarted, SummarizeSpec, UnflushSpec
from remora.testing import HashEmbedder
from tests.harness import user

pytestmark = pytest.mark.anyio

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "supervisor": {"backoff_s": 0.001, "max_attempts": 2, "jitter": 0.0},
        "long_term": {"batch_ms": 1},
        # each message a batch of its own: what is not near a poisoned one is written
        "buffer": {"token_flush_size": 1},
    }
)


class Poison:
    """A redaction hook that cannot do some texts, until it is mended."""

    def __init__(self) -> None:
        self.words: tuple[str, ...] = ("zebra",)

    def __call__(self, text: str) -> str:
        if any(word in text for word in self.words):
            raise ValueError("no")
        return text


@pytest.fixture
def poison() -> Poison:
    return Poison()


@asynccontextmanager
async def opened(directory: Path, poison: Poison, **options: Any) -> AsyncIterator[Runtime]:
    embedder = options.pop("embedder", HashEmbedder())
    async with Runtime(
        directory, config=CONFIG, embedder=embedder, redact_long_term=poison, **options
    ) as runtime:
        yield runtime


async def rows(runtime: Runtime) -> list[str]:
    return sorted(await (await runtime.internals.long_term()).row_ids())


def ids(chat: Session, *seqs: int) -> list[str]:
    return sorted(row_id(chat.key, seq) for seq in seqs)


async def poisoned(runtime: Runtime) -> Session:
    """Messages 1 to 7 are a dead letter's, which wrote all but the 4th: that is poison."""
    chat = runtime.session("alice", "chat")
    for first, last in ((1, 7), (8, 12)):
        await chat.append(
            [user("zebra" if n == 4 else f"sentence {n}") for n in range(first, last + 1)]
        )
        await chat.flush()
        await chat.settle()
    return chat


async def test_a_dead_letter_is_retried(tmp_path: Path, poison: Poison) -> None:
    """G7, G6, G11: what failed for good loads all along; a wrong id is named, and nothing is
    changed, not even what was named beside it; retried after the cause was mended, each message is
    there once.
    """
    async with opened(tmp_path, poison) as runtime:
        chat = await poisoned(runtime)
        (dead,) = await runtime.dead_letters()
        assert "RedactionFailed" in dead.error
        assert await rows(runtime) == ids(chat, 1, 2, 3, *range(5, 13))
        assert [m["content"] for m in (await chat.load()).messages][3] == "zebra"
        assert len(await chat.history()) == 12
        for verb in (runtime.retry_dead_letters, runtime.drop_dead_letters):
            with pytest.raises(NoDeadLetter) as caught:
                await verb([dead.id, "flush-1-999", "nonsense"])
            assert caught.value.ids == ("flush-1-999", "nonsense")
            with pytest.raises(InvalidInput, match="ids must be a list"):
                await verb(dead.id)
        await runtime.settle()
        assert await runtime.dead_letters() == [dead]
        assert await runtime.retry_dead_letters() == 1
        await runtime.settle()
        # not mended yet: dead again
        assert [job.id for job in await runtime.dead_letters()] == [dead.id]
        poison.words = ()
        assert await runtime.retry_dead_letters([dead.id]) == 1
        await runtime.settle()
        assert await runtime.dead_letters() == []
        assert list(await runtime.internals.journal.jobs()) == []
        assert await rows(runtime) == ids(chat, *range(1, 13))
        assert await runtime.retry_dead_letters() == 0


async def test_health_has_them_until_they_are_gone(tmp_path: Path, poison: Poison) -> None:
    """Also those of an earlier start; an erasure takes those of its user away."""

    def problem() -> str:
        (found,) = runtime.health().problems
        assert (runtime.health().ready, found.code) == (True, "dead_letters")
        return found.text

    async with opened(tmp_path, poison) as runtime:
        for name in ("ann", "bo"):
            await runtime.session(name, "one").append(user("a zebra"))
            await runtime.session(name, "one").flush()
        await runtime.settle()
        assert runtime.statistics().supervisor.queues["flush"].dead == 2
    async with opened(tmp_path, poison) as runtime:
        await runtime.ready()
        assert "2 background jobs" in problem()
        await runtime.user("bo").forget()
        assert "1 background job failed" in problem()
        assert await runtime.retry_dead_letters() == 1
        await runtime.settle()
        assert runtime.statistics().supervisor.queues["flush"].dead == 1
        await runtime.drop_dead_letters([one.id for one in await runtime.dead_letters()])
        assert runtime.health().problems == ()


async def test_the_watermark_claims_nothing_for_a_dead_letter(
    tmp_path: Path, poison: Poison
) -> None:
    """G7: later messages move the mark past those of a dead letter; what is owed says so, and a
    rebuild goes round them.
    """
    async with opened(tmp_path, poison) as runtime:
        chat = await poisoned(runtime)
        assert (chat.key, 12) in list(await runtime.internals.journal.indexed_through())
        assert pending_flushes(await runtime.dead_letters()) == {chat.key: [range(1, 8)]}
    # another embedder: everything is made anew from the journal, and the dead letter must neither
    # be claimed nor bar the way
    async with opened(tmp_path, poison, embedder=HashEmbedder(48), reembed=True) as runtime:
        await runtime.reembedded()
        chat = runtime.session("alice", "chat")
        assert await rows(runtime) == ids(chat, *range(8, 13))
        poison.words = ()
        await runtime.retry_dead_letters()
        await runtime.settle()
        assert await rows(runtime) == ids(chat, *range(1, 13))


async def test_a_dropped_flush(tmp_path: Path, poison: Poison) -> None:
    """G6, G7: a dropped job's messages load, and are not in long-term memory, not in part, not
    later, not after a rebuild.
    """
    async with opened(tmp_path, poison) as runtime:
        chat = await poisoned(runtime)
        (dead,) = await runtime.dead_letters()
        assert row_id(chat.key, 1) in await rows(runtime), (
            "the job was to have written something before it failed"
        )
        assert await runtime.drop_dead_letters([dead.id]) == 1
        await runtime.settle()
        assert await rows(runtime) == ids(chat, *range(8, 13))
        assert await runtime.dead_letters() == []
        assert len((await chat.load()).messages) == 12
        poison.words = ()
        await chat.append(user("sentence 13"))
        await chat.flush()
        await chat.settle()
    async with opened(tmp_path, poison, embedder=HashEmbedder(48), reembed=True) as runtime:
        await runtime.reembedded()
        await runtime.settle()
        assert await rows(runtime) == ids(chat, *range(8, 14))
        assert len(await runtime.session("alice", "chat").history()) == 13


async def test_what_cannot_be_dropped() -> None:
    """G6, G11: a fold that messages wait for and a deletion are refused, and stay to be retried."""
    async with Runtime.in_memory(
        config=CONFIG, embedder=HashEmbedder(), store=MemoryStore(64)
    ) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(user("hello"))
        sid = (await chat.inspect()).sid
        specs = {"fold": SummarizeSpec(sid, 0, 1, 1), "unflush": UnflushSpec(sid, (1,), 1)}
        jobs = tuple(Job(name, "elsewhere", chat.key, spec) for name, spec in specs.items())
        await commit_records(runtime.internals.journal, [JobsStarted(sid, jobs)])
        await commit_records(
            runtime.internals.journal, [JobDeadLettered(job.id, 6, "broken") for job in jobs]
        )
        for name in specs:
            with pytest.raises(InvalidInput, match="retry it"):
                await runtime.drop_dead_letters([name])
        assert [job.id for job in await runtime.dead_letters()] == list(specs)


async def test_the_command_line(
    tmp_path: Path, poison: Poison, capsys: pytest.CaptureFixture[str]
) -> None:
    """G7, G12: jobs are listed beside a running server, and nothing changes; retry and drop want
    the directory to themselves.
    """

    def command(*words: str) -> tuple[int, str, str]:
        try:
            code = main(["jobs", *words, "--dir", str(tmp_path)])
        except SystemExit as e:
            code = int(str(e.code))
        return (code, *capsys.readouterr())

    async def run(*words: str) -> tuple[int, str, str]:
        return await anyio.to_thread.run_sync(partial(command, *words))

    async with opened(tmp_path, poison) as runtime:
        for name in ("one", "two"):
            chat = runtime.session("alice", name)
            await chat.append(user(f"zebra {name}"))
            await chat.flush()
        await runtime.settle()
        code, out, _ = await run()
        assert code == 0
        failed = [line for line in out.splitlines() if "RedactionFailed" in line]
        assert ["alice / " in line for line in failed] == [True, True]
        code, out, _ = await run("retry", "--all")
        assert (code, out) == (0, "2 dead letters will run again now\n")
        await runtime.settle()  # they fail again
    assert (await run("retry", "nonsense"))[0] == 1
    assert (await run("drop", "flush-1-1"))[0] == 1  # nobody there to be asked
    assert (await run("retry"))[0] == 2
    code, out, _ = await run("--json", "--dead")
    found = [json.loads(line) for line in out.splitlines()]
    names = ("user", "session", "state", "lane", "attempts")
    assert [[one[name] for name in names] for one in found] == [
        ["alice", session, "dead", "flush", 2] for session in ("one", "two")
    ]
    assert (await run("retry", found[0]["id"]))[0] == 0
    assert (await run("drop", found[1]["id"], "--yes"))[0] == 0
    assert (await run("--dead", "--json"))[1] == ""
    poison.words = ()
    async with opened(tmp_path, poison) as runtime:
        await runtime.settle()
        assert await rows(runtime) == ids(runtime.session("alice", "one"), 1)
        assert [m.content for m in await runtime.session("alice", "two").history()] == ["zebra two"]


@pytest.mark.blocking
async def test_a_command_waits_for_another(tmp_path: Path, poison: Poison) -> None:
    """G12: which has the directory for a moment; one that stays is named, and nothing changes."""
    async with opened(tmp_path, poison) as runtime:
        await poisoned(runtime)
        (dead,) = await runtime.dead_letters()
    actions = Actions(tmp_path, CONFIG)
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    with pytest.raises(DirectoryLocked, match=f"in use by process {os.getpid()} since"):
        await actions.drop([dead.id])
    assert [one.id for one in await list_jobs(tmp_path) if one.dead] == [dead.id]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(actions.retry, [dead.id])
        for _ in range(20):
            await anyio.wait_all_tasks_blocked()
        lock.release()
    assert not any(one.dead for one in await list_jobs(tmp_path))


@pytest.mark.blocking
async def test_a_tenant_sees_its_own_over_http(tmp_path: Path, poison: Poison) -> None:
    """Other tenants' are neither shown, nor retried or dropped, not even all at once."""
    keys = tmp_path / "keys.txt"
    tenants = {name: add_key(keys, name) for name in ("shop", "other")}
    async with opened(tmp_path / "memory", poison) as runtime, AsyncExitStack() as stack:
        app = build_app(runtime, KeyFile(keys), RateLimit(0, SystemClock()))
        http = await stack.enter_async_context(
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app))
        )
        shop, other = [
            await stack.enter_async_context(Client("http://memory", api_key=key, http=http))
            for key in tenants.values()
        ]
        for client in (shop, other):
            chat = client.session("alice", "chat")
            await chat.append(user("zebra"))
            await chat.flush()
            await runtime.settle()
        ((own,), (others,)) = await shop.dead_letters(), await other.dead_letters()
        assert (own.key, own.dead, own.attempts) == (SessionKey("alice", "chat"), True, 2)
        assert own.id != others.id
        assert own.error.startswith("RedactionFailed: ")
        assert "Poison" not in own.error, "the text is for who runs the memory"
        assert all("Poison" in one.error for one in await runtime.dead_letters())
        for change in (shop.retry_dead_letters, shop.drop_dead_letters):
            with pytest.raises(NoDeadLetter) as refused:
                await change([own.id, others.id])
            assert refused.value.ids == (others.id,)
        poison.words = ()
        assert await shop.retry_dead_letters() == 1
        await runtime.settle()
        assert (await shop.dead_letters(), await other.dead_letters()) == ([], [others])
        assert await other.drop_dead_letters([others.id]) == 1
        assert await runtime.dead_letters() == []
