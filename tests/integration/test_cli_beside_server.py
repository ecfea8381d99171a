"""Commands that read, while a runtime owns the directory and writes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from remora import Config, Runtime
from remora.cli.main import main
from remora.cluster.reading import MemoryReader
from remora.errors import CommitFailed, DirectoryUnusable, InvalidInput
from remora.storage.sqlite.read_only import ReadOnlyJournal

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "models": {"embedder": "none"},
        "long_term": {"shards": 2, "batch_ms": 1},
    }
)
Run = Any
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command on the directory in another thread; its exit code, and the JSON it prints."""
    monkeypatch.setenv("REMORA_MODELS__EMBEDDER", "none")
    monkeypatch.setenv("REMORA_TOKENS__COUNTER", "heuristic")

    async def run(*arguments: str) -> tuple[int, list[Any]]:
        capsys.readouterr()
        line = [*arguments, "--json", "--dir", str(tmp_path / "memory")]
        code = await anyio.to_thread.run_sync(main, line)
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
    config = CONFIG.from_dict({"models": {"embedder": "none"}, "supervisor": {"drain_s": 0.001}})
    async with Runtime(tmp_path / "memory", config=config) as runtime:
        await runtime.user("alice").remember("My birthday is on March 15.")
    code, (found,) = await run("recall", "alice", "birthday", "--limit", "1")
    assert (code, found["text"]) == (0, "My birthday is on March 15.")
    assert await run("recall", "bob", "birthday") == (1, [])


async def test_every_reading_command(run: Run, tmp_path: Path) -> None:
    """Each sees what was acknowledged before, and changes no file."""
    directory = tmp_path / "memory"
    async with Runtime(directory, config=CONFIG) as runtime:
        runtime.reschedule("checkpoint", 3_600)  # the owner itself changes no file meanwhile
        chat = runtime.session("alice", "chat")
        await chat.append(
            [
                {"role": "user", "content": "My cat Figaro hates thunder."},
                {"role": "assistant", "content": "Poor Figaro."},
            ]
        )
        await chat.flush()
        await runtime.settle()
        await runtime.session("bob", "new").append({"role": "user", "content": "Just now."})
        before = digests(directory)

        code, (shown,) = await run("show", "alice", "chat")
        assert code == 0
        assert [one["content"] for one in shown["messages"]] == [
            "My cat Figaro hates thunder.",
            "Poor Figaro.",
        ]
        code, (shown,) = await run("show", "bob", "new", "-n", "1")
        assert (code, shown["messages"][0]["content"]) == (0, "Just now.")
        code, (figures,) = await run("stats")
        assert (code, figures["messages"], figures["sessions"]) == (0, 3, 2)
        code, (figures,) = await run("stats", "alice")
        assert (code, figures["messages"]) == (0, 2)
        code, (figures,) = await run("stats", "alice", "chat")
        assert (code, figures["indexed"]) == (0, 2)
        code, memories = await run("recall", "alice", "thunder")
        assert (code, memories[0]["text"]) == (0, "My cat Figaro hates thunder.")
        code, (report,) = await run("export", str(tmp_path / "all.jsonl"))
        assert (code, report["messages"]) == (0, 3)
        code, (found,) = await run("verify", "--deep")
        assert (code, found["clean"], found["rows"]) == (0, True, 2)

        assert digests(directory) == before
    async with Runtime(tmp_path / "copy", config=CONFIG) as runtime:
        assert (await runtime.import_(tmp_path / "all.jsonl")).messages == 3


async def test_a_reader_writes_nothing(tmp_path: Path) -> None:
    """G12: what only reads refuses every write, and the owner goes on."""
    directory = tmp_path / "memory"
    async with Runtime(directory, config=CONFIG) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append({"role": "user", "content": "First."})
        config = Config.from_dict(
            {
                "tokens": {"counter": "heuristic"},
                "models": {"embedder": "none"},
                "long_term": {"enabled": False},
            }
        )
        journal = await ReadOnlyJournal.open(directory / "journal.db")
        async with Runtime.in_memory(config=config, journal=journal) as reader:
            seen = reader.session("alice", "chat")
            with pytest.raises(CommitFailed, match="read-only"):
                await seen.append({"role": "user", "content": "Not stored."})
            with pytest.raises(CommitFailed, match="read-only"):
                await seen.clear()
            with pytest.raises(CommitFailed, match="read-only"):
                await reader.user("alice").forget()
            await chat.append({"role": "user", "content": "Second."})
            assert [one.content for one in await seen.history()] == ["First."]
        assert [one.content for one in await chat.history()] == ["First.", "Second."]


async def test_an_earlier_format(tmp_path: Path) -> None:
    """Reading does not bring a journal up to date: that is for its owner."""
    path = tmp_path / "memory" / "journal.db"
    async with Runtime(path.parent, config=CONFIG):
        pass
    import sqlite3  # noqa: PLC0415

    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 1")
    database.close()
    with pytest.raises(DirectoryUnusable, match="start the application once"):
        await ReadOnlyJournal.open(path)


async def fill(runtime: Runtime, count: int) -> None:
    for number in range(count):
        await runtime.session("alice", "chat").append(
            {"role": "user", "content": f"Message {number} of a long conversation."}
        )


@pytest.mark.parametrize("long_term", [False, True])
async def test_a_long_reader_leaves_the_log_alone(tmp_path: Path, *, long_term: bool) -> None:
    """A copy is read, so what the owner writes meanwhile is moved into its file, to the last."""
    directory = tmp_path / "memory"
    log = directory / "journal.db-wal"
    async with Runtime(directory, config=CONFIG) as runtime:
        await fill(runtime, 20)
        reader = MemoryReader(directory, CONFIG)
        async with reader.open(long_term=long_term, copied=True) as memory:
            await fill(runtime, 20)
            await runtime.internals.journal.scrub()
            assert log.stat().st_size == 0
            assert len(await memory.session("alice", "chat").history()) == 20
            await fill(runtime, 20)
        assert len(await runtime.session("alice", "chat").history()) == 60
    assert not [path for path in directory.iterdir() if "read" in path.name]


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


async def test_the_copy_of_a_reader_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a conversation stays in the directory for temporary files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    async with Runtime(tmp_path / "memory", config=CONFIG) as runtime:
        await fill(runtime, 3)
        async with MemoryReader(tmp_path / "memory", CONFIG).open(copied=True) as memory:
            assert not list(temporary.iterdir())
            assert (await memory.counts()).messages == 3
        with pytest.raises(InvalidInput, match="there is no memory"):
            async with MemoryReader(temporary, CONFIG).open():
                pytest.fail("it was opened")
