"""Commands that read, while a runtime owns the directory and writes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import remora
from remora import Config, Runtime
from remora.cluster.connected import connect_there
from remora.cluster.reading import MemoryReader
from remora.cluster.sharded import ShardedRuntime
from remora.cluster.wire import WIRE, Hello, frame
from remora.errors import CommitFailed, DirectoryUnusable, InvalidInput, OwnerFailed
from remora.services.answering import SOCKET_NAME, WORK
from remora.storage.sqlite.read_only import ReadOnlyJournal
from remora.storage.sqlite.schema import FORMAT
from tests.configs import LEAN as CONFIG
from tests.configs import LEAN_ENVIRONMENT, LEAN_TREE, PLAIN, poison
from tests.harness import user
from tests.programs import run_command_aside
from tests.workers import end_owner, owner_of, write_config

Run = Any
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command on the directory in another thread; its exit code, and the JSON it prints."""
    for name, value in LEAN_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    async def run(*arguments: str) -> tuple[int, list[Any]]:
        capsys.readouterr()
        line = [*arguments, "--json", "--dir", str(tmp_path / "memory")]
        code = await run_command_aside(*line)
        return code, [json.loads(one) for one in capsys.readouterr().out.splitlines()]

    return run


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")  # has the locks of readers
    }


async def test_memories_that_are_not_indexed_are_recalled(run: Run, tmp_path: Path) -> None:
    """Also if nothing was ever indexed, and the user has no session."""
    config = Config.from_dict({"models": {"embedder": "none"}, "supervisor": {"drain_s": 0.001}})
    async with Runtime(tmp_path / "memory", config=config) as runtime:
        await runtime.user("alice").remember("My birthday is on March 15.")
    code, (found,) = await run("recall", "alice", "birthday", "--limit", "1")
    assert (code, found["text"]) == (0, "My birthday is on March 15.")
    assert await run("recall", "bob", "birthday") == (1, [])


async def test_every_reading_command(run: Run, tmp_path: Path) -> None:
    """Each sees what was acknowledged before, and changes no file."""
    directory = tmp_path / "memory"
    texts = ["My cat Figaro hates thunder.", "Poor Figaro."]
    async with Runtime(directory, config=CONFIG) as runtime:
        runtime.reschedule("checkpoint", 3_600)  # the owner itself changes no file meanwhile
        chat = runtime.session("alice", "chat")
        await chat.append([user(texts[0]), {"role": "assistant", "content": texts[1]}])
        await chat.flush()
        await runtime.settle()
        await runtime.session("bob", "new").append(user("Just now."))
        before = digests(directory)

        async def first(*command: str) -> Any:
            code, lines = await run(*command)
            assert code == 0, command
            return lines[0]

        shown = await first("show", "alice", "chat")
        assert [one["content"] for one in shown["messages"]] == texts
        shown = await first("show", "bob", "new", "-n", "1")
        assert shown["messages"][0]["content"] == "Just now."
        figures = await first("stats")
        assert (figures["messages"], figures["sessions"]) == (3, 2)
        assert (await first("stats", "alice"))["messages"] == 2
        assert (await first("stats", "alice", "chat"))["indexed"] == 2
        assert (await first("recall", "alice", "thunder"))["text"] == texts[0]
        assert (await first("export", str(tmp_path / "all.jsonl")))["messages"] == 3
        found = await first("verify", "--deep")
        assert (found["clean"], found["rows"]) == (True, 2)

        assert digests(directory) == before
    async with Runtime(tmp_path / "copy", config=CONFIG) as runtime:
        assert (await runtime.import_(tmp_path / "all.jsonl")).messages == 3


async def test_a_reader_writes_nothing(tmp_path: Path) -> None:
    """G12: what only reads refuses every write, and the owner goes on; a journal of an earlier
    format is not brought up to date: that is for its owner.
    """
    path = tmp_path / "memory" / "journal.db"
    async with Runtime(path.parent, config=CONFIG) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(user("First."))
        journal = await ReadOnlyJournal.open(path)
        async with Runtime.in_memory(config=PLAIN, journal=journal) as reader:
            seen = reader.session("alice", "chat")
            with pytest.raises(CommitFailed, match="read-only"):
                await seen.append(user("Not stored."))
            with pytest.raises(CommitFailed, match="read-only"):
                await seen.clear()
            with pytest.raises(CommitFailed, match="read-only"):
                await reader.user("alice").forget()
            await chat.append(user("Second."))
            assert [one.content for one in await seen.history()] == ["First."]
        assert [one.content for one in await chat.history()] == ["First.", "Second."]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA user_version = {FORMAT - 1}")
    with pytest.raises(DirectoryUnusable, match="start the application once"):
        await ReadOnlyJournal.open(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA user_version = 1")
    with pytest.raises(DirectoryUnusable, match="no release reads"):
        await ReadOnlyJournal.open(path)


async def fill(runtime: Runtime, count: int) -> None:
    for number in range(count):
        text = f"Message {number} of a long conversation."
        await runtime.session("alice", "chat").append(user(text))


async def test_a_long_reader_leaves_the_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is read, so what the owner writes meanwhile is moved into its file, to the last; the
    copy has no name: nothing of a conversation stays in the directory for temporary files.
    """
    directory, temporary = tmp_path / "memory", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    async with Runtime(directory, config=CONFIG) as runtime:
        await fill(runtime, 5)
        for count, long_term in ((5, False), (15, True)):
            reader = MemoryReader(directory, CONFIG)
            async with reader.open(long_term=long_term, copied=True) as memory:
                assert long_term or not list(temporary.iterdir())
                await fill(runtime, 5)
                await runtime.internals.journal.scrub()
                assert (directory / "journal.db-wal").stat().st_size == 0
                assert len(await memory.session("alice", "chat").history()) == count
                await fill(runtime, 5)
        assert len(await runtime.session("alice", "chat").history()) == 25
    assert not [path for path in directory.iterdir() if "read" in path.name]
    with pytest.raises(InvalidInput, match="there is no memory"):
        async with MemoryReader(temporary, CONFIG).open():
            pytest.fail("it was opened")


async def test_short_readers_let_the_log_be_emptied(tmp_path: Path) -> None:
    """One after the other, as a page reads, while the owner appends and empties its log."""
    directory = tmp_path / "memory"
    seen: list[int] = []
    async with Runtime(directory, config=CONFIG) as runtime:
        await fill(runtime, 5)
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                reader = MemoryReader(directory, CONFIG)
                async with reader.keep_models():
                    while True:
                        async with reader.open(user="alice") as memory:
                            view = await memory.session("alice", "chat").inspect()
                        seen.append(view.last_seq)

            tasks.start_soon(read)
            while len(seen) < 3 or seen[-1] == seen[0]:
                await fill(runtime, 5)
                await runtime.internals.journal.finish_erasure(0)  # it empties the log
            tasks.cancel_scope.cancel()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


async def test_a_reader_holds_the_log_while_it_reads_and_no_longer(tmp_path: Path) -> None:
    """Neither while it opens nor while it closes: both take longer than what it reads."""
    directory = tmp_path / "memory"
    async with Runtime(directory, config=CONFIG) as runtime:
        await fill(runtime, 5)
        journal = runtime.internals.journal
        async with MemoryReader(directory, CONFIG).open(user="alice") as memory:
            await journal.finish_erasure(0)  # it empties the log, which fails if somebody reads
            await fill(runtime, 5)
            seen = await memory.session("alice", "chat").inspect()
            assert seen.last_seq == 10
            assert isinstance(memory, Runtime)
            reading = memory.internals.journal
            assert isinstance(reading, ReadOnlyJournal)
            await reading.end_moment()
            await journal.finish_erasure(0)
            await reading.end_moment()  # there is nothing to end


@pytest.mark.parametrize("shards", [1, 3])
async def test_commands_that_change_something_ask_the_server(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], shards: int
) -> None:
    """It retries and drops dead letters, and erases, while it goes on."""
    directory = tmp_path / "memory"
    at_once = {"max_attempts": 1, "backoff_s": 0.01}
    later = {"forgotten_s": 3_600}
    config = Config.from_dict({**LEAN_TREE, "supervisor": at_once, "retention": later})
    runtime = Runtime(directory, config=config, redact_long_term=poison)
    async with ShardedRuntime.of(runtime, shards=shards) as server:
        for name, session in (("alice", "chat"), ("bob", "chat"), ("bob", "more")):
            await server.session(name, session).append(user("Hi."))
        bad = server.session("eve", "bad")
        await bad.append(user("poison"))
        await bad.flush()
        await server.settle()
        _, (dead,) = await run("jobs", "--dead")

        async def command(*words: str) -> tuple[int, str]:
            line = [*words, "--dir", str(directory)]
            code = await run_command_aside(*line)
            return code, "".join(capsys.readouterr())

        for chosen in ("--all", dead["id"]):
            code, said = await command("jobs", "retry", chosen)
            assert (code, said) == (0, "1 dead letter will run again now\n")
            await server.settle()  # it ran, and failed again
            assert [one.id for one in await server.dead_letters()] == [dead["id"]]
        code, said = await command("jobs", "drop", dead["id"], "none", "--yes")
        assert (code, "no dead letter 'none'" in said) == (1, True)
        code, said = await command("jobs", "drop", dead["id"], "--yes")
        assert (code, "1 dead letter dropped" in said) == (0, True)
        assert await server.dead_letters() == []

        code, said = await command("forget", "bob", "more", "--yes")
        assert (code, "the session more of bob is erased: 1 actor, 1 message" in said) == (0, True)
        code, (receipt,) = await run("forget", "alice", "--yes")
        assert (code, receipt["journal"]["messages"]) == (0, 1)
        assert sorted(one.user for one in await server.users()) == ["bob", "eve"]
        await server.session("bob", "chat").append(user("Still here."))
        assert len(await server.session("bob", "chat").history()) == 2

        await server.user("zoe").remember("My birthday is on March 15.")
        await server.settle()
        assert (await command("forget", "zoe", "--yes"))[0] == 0
        # they wait for a pause, which may have passed
        assert (await command("jobs", "retry", "--all"))[0] == 0
        assert server.erasures() == []

        exported = tmp_path / "bob.jsonl"
        assert (await command("export", str(exported)))[0] == 0
        await server.user("bob").forget()
        code, said = await command("import", str(exported), "--skip-existing")
        assert (code, "1 session with 2 messages" in said) == (0, True)
        assert len(await server.session("bob", "chat").history()) == 2

        code, said = await command("reembed")
        assert (code, "is in use by process" in said) == (1, True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="owners need Linux")
async def test_the_owner_of_a_shared_memory_is_asked(run: Run, tmp_path: Path) -> None:
    """A process of its own, which workers started; they stay connected."""
    file = write_config(tmp_path)
    async with remora.connect(file) as worker:
        for name in ("alice", "bob"):
            await worker.session(name, "chat").append(user("Hi."))
        owner = owner_of(tmp_path / "memory")
        code, (receipt,) = await run("forget", "alice", "--yes")
        assert (code, receipt["journal"]["messages"]) == (0, 1)
        assert [one.user for one in await worker.users()] == ["bob"]
        assert await run("jobs", "--dead") == (0, [])
        await worker.session("bob", "chat").append(user("Still here."))
        assert owner_of(tmp_path / "memory") == owner
    end_owner(tmp_path / "memory")


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_worker_that_answers_nothing_keeps_nobody_open(tmp_path: Path, shards: int) -> None:
    """It said hello and is stopped: closing ends its connection, and its process sees the end."""
    runtime = Runtime(tmp_path / "memory", config=PLAIN)
    async with ShardedRuntime.of(runtime, shards=shards):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "memory" / SOCKET_NAME))
        writer.write(WORK + bytes(frame([Hello(WIRE, worker="stopped")])))
        assert await reader.readexactly(10)
    await reader.read()  # until the end
    assert reader.at_eof()
    writer.close()


async def test_a_command_whose_server_has_gone_is_told(tmp_path: Path) -> None:
    """What it asks next fails at once: nobody will open the directory for it."""
    server = Runtime(tmp_path / "memory", config=PLAIN)
    async with server:
        await server.session("ann", "one").append(user("Hi."))
        memory = await connect_there(tmp_path / "memory", PLAIN)
        assert memory is not None
        await memory.start()
        assert (await memory.counts()).messages == 1
    with pytest.raises(OwnerFailed, match="run the command again"):
        await memory.counts()
    await memory.aclose()
    assert await connect_there(tmp_path / "memory", PLAIN) is None


async def test_each_receipt_counts_its_own(tmp_path: Path) -> None:
    """Also if erasures come at once, whose messages are deleted together."""
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        for number in range(10):
            said = [user(f"{place}") for place in range(number + 1)]
            await runtime.session(f"user {number}", "one").append(said)
        receipts: dict[int, int] = {}

        async def forget(number: int) -> None:
            receipt = await runtime.user(f"user {number}").forget()
            receipts[number] = receipt.journal["messages"]

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(forget, number)
    assert receipts == {number: number + 1 for number in range(10)}
