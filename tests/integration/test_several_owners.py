"""A memory that two processes own: each has some of the shards, and one's end is no other's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

import remora
from remora import Runtime
from remora.cluster.control import OwnerGone
from remora.cluster.place import Place, find_owners
from remora.cluster.sharding import shard_of
from remora.errors import ConfigError, DirectoryLocked, DirectoryUnusable, InvalidInput
from remora.storage.lock import DirectoryLock
from tests.harness import user
from tests.patience import until
from tests.processes import bound
from tests.programs import run_command_aside
from tests.workers import OWNERS, owner_process, write_config

pytestmark = [pytest.mark.anyio, *OWNERS]
in_thread = anyio.to_thread.run_sync
TWO = ", owners: 2"
FIRST, SECOND = "bo", "ada"  # in the shards 0 and 1 of two


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A memory's directory, whose owners are ended after the test."""
    yield tmp_path / "memory"
    end_all(tmp_path / "memory")


def end_all(memory: Path, number: int = signal.SIGKILL) -> None:
    for info in find_owners(memory):
        with suppress(OwnerGone):
            end(info, number)


def end(info: Any, number: int = signal.SIGKILL) -> None:
    with owner_process(info) as control:
        os.kill(control.pid, number)
        assert control.wait(600)


def owner(memory: Path, number: int) -> Any:
    """The owner of a seat."""
    return Place(memory, number).read_owner()


async def contents(session: Any) -> list[str]:
    return [message.content for message in await session.history()]


async def fill(worker: Any) -> None:
    for name in (FIRST, SECOND):
        await worker.session(name, "s").append(user(f"from {name}"))


def test_the_names_are_in_different_shards() -> None:
    assert [shard_of(name, 2) for name in (FIRST, SECOND)] == [0, 1]


async def test_each_has_some_of_the_shards(tmp_path: Path, memory: Path) -> None:
    """What concerns the whole memory is asked of both, by workers and from outside."""
    file = write_config(tmp_path, TWO)
    async with remora.connect(file) as one, remora.connect(file) as other:
        await fill(one)
        assert len({info.pid for info in find_owners(memory)}) == 2
        for name in (FIRST, SECOND):
            assert await contents(other.session(name, "s")) == [f"from {name}"]
        assert [row.user for row in await other.users(order="name")] == sorted([FIRST, SECOND])
        assert (await other.counts()).messages == 2
        status = await in_thread(remora.observe.ask, memory)
        assert status is not None
        assert (status.shards, status.served, status.share) == (2, 2, (0, 1))
        assert status.statistics is not None
        assert status.statistics.registry.live == 2
        question = partial(remora.observe.ask, memory, sessions=[(FIRST, "s"), (SECOND, "s")])
        asked = await in_thread(question)
        assert asked is not None
        assert set(asked.live) == {(FIRST, "s"), (SECOND, "s")}
        with pytest.raises(DirectoryUnusable, match=r"remora\.connect"):
            await Runtime(memory, config=remora.Config(lock_wait_s=0)).start()
        with pytest.raises(DirectoryLocked):
            await in_thread(DirectoryLock(memory).acquire)


async def test_one_is_killed_and_the_other_goes_on(tmp_path: Path, memory: Path) -> None:
    file = write_config(tmp_path, TWO)
    async with remora.connect(file) as worker:
        await fill(worker)
        for number in (0, 1, 0):
            before = [owner(memory, seat).pid for seat in (0, 1)]
            await in_thread(end, owner(memory, number))
            for name in (FIRST, SECOND):
                await worker.session(name, "s").append(user(f"after {number}"), key=f"{before}")
            after = [owner(memory, seat).pid for seat in (0, 1)]
            assert after[1 - number] == before[1 - number]
            assert after[number] != before[number]
        for name in (FIRST, SECOND):
            assert await contents(worker.session(name, "s")) == [
                f"from {name}",
                "after 0",
                "after 1",
                "after 0",
            ]


async def test_kills_under_load(tmp_path: Path, memory: Path) -> None:
    """Nothing is lost, doubled or out of order, whichever is killed, or both."""
    file = write_config(tmp_path, TWO)
    sent = Counter[str]()
    ended = False

    async def append(worker: Any, name: str) -> None:
        while not ended:
            try:
                message = user(f"{sent[name]}")
                await worker.session(name, "s").append(message, key=f"k{sent[name]}")
            except remora.errors.RemoraError as e:
                assert e.retryable, e  # noqa: PT017
            else:
                sent[name] += 1

    async def all_went_on() -> None:
        goal = {name: sent[name] + 5 for name in names}
        await until(lambda: all(sent[name] >= goal[name] for name in names), "all have sent more")

    names = [f"user {number}" for number in range(8)]
    async with remora.connect(file) as worker, anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(append, worker, name)
        for killed in ((0,), (1,), (0, 1), (1,)):
            await all_went_on()
            for number in killed:
                await in_thread(end, owner(memory, number))
        await all_went_on()
        ended = True
    async with remora.connect(file) as worker:
        for name in names:
            found = await contents(worker.session(name, "s"))
            assert found == [f"{n}" for n in range(sent[name])]


async def test_the_number_of_owners_changes(tmp_path: Path, memory: Path) -> None:
    """The worker that started last decides; one with another number is told so, and stores nothing
    where the user is not.
    """
    file = write_config(tmp_path)
    async with remora.connect(file) as older:
        await fill(older)
        for owners in (2, 1):
            write_config(tmp_path, f", owners: {owners}")
            async with remora.connect(file) as newer:
                for name in (FIRST, SECOND):
                    await newer.session(name, "s").append(user(f"{owners} owners"))
                assert [info.owners for info in find_owners(memory)] == [owners] * owners
                if owners == 2:
                    with pytest.raises(ConfigError, match=r"cluster\.owners says 1 here"):
                        await older.session(SECOND, "s").append(user("astray"))
        for name in (FIRST, SECOND):
            expected = [f"from {name}", "2 owners", "1 owners"]
            async with remora.connect(file) as last:
                assert await contents(last.session(name, "s")) == expected


async def test_serve_starts_the_others_and_ends_with_them(tmp_path: Path, memory: Path) -> None:
    """One that dies is started again; none outlives the command, however that ends."""
    file = write_config(tmp_path, f"{TWO}, start_owner: false")
    command = bound(sys.executable, "-m", "remora", "serve", file)
    for how in (signal.SIGTERM, signal.SIGKILL):
        with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log) as server:
            async with remora.connect(file) as worker:
                await fill(worker)
                assert owner(memory, 0).pid == server.pid
                killed = owner(memory, 1)
                if how == signal.SIGTERM:
                    await in_thread(end, killed)
                    await worker.session(SECOND, "s").append(user("again"))
                    assert owner(memory, 1).pid != killed.pid
                with owner_process(owner(memory, 1)) as other:
                    server.send_signal(how)
                    assert await in_thread(other.wait, 600)
                assert await in_thread(server.wait) == (0 if how == signal.SIGTERM else -how)
    assert find_owners(memory) == [] or owner(memory, 1) is None


async def test_what_is_done_to_the_whole_memory(
    tmp_path: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exports and backups have all of it; commands ask the owner whose user or job it is."""

    async def command(*words: str) -> str:
        assert await run_command_aside(*words) == 0
        return " ".join(capsys.readouterr().out.split())

    file = write_config(tmp_path, TWO)
    async with remora.connect(file) as worker:
        await fill(worker)
        report = await worker.export(tmp_path / "export.jsonl")
        assert (report.sessions, report.messages) == (2, 2)
        copy = await worker.backup(tmp_path / "copy")
        assert copy.counts == await worker.counts()
        with pytest.raises(InvalidInput, match="remora import"):
            await worker.import_(tmp_path / "export.jsonl")
        told = await command("owners", str(file))
        assert all(f"process {info.pid} serves {memory}" in told for info in find_owners(memory))
        shards = (await command("owners", str(file), "--json")).replace("} {", "}\n{")
        assert [json.loads(line)["shard"] for line in shards.splitlines()] == [0, 1]
        first, second = Place(memory).info, owner(memory, 1)
        kept = first.read_bytes()
        first.unlink()
        only = json.loads(await command("owners", str(file), "--json"))
        first.write_bytes(kept)
        assert (only["shard"], only["pid"]) == (1, second.pid)
        assert "ready" in await command("health", str(memory))
        for name in (FIRST, SECOND):
            where = ("--dir", str(memory), "--yes")
            assert f"everything of {name} is erased" in await command("forget", name, *where)
        assert await worker.users() == []
    async with remora.connect(tmp_path / "copy") as copied:
        assert await contents(copied.session(SECOND, "s")) == [f"from {SECOND}"]
    end_all(tmp_path / "copy")


async def test_a_worker_of_another_division_is_refused(tmp_path: Path, memory: Path) -> None:
    """Of eight shards and of seven the first owner has four: the worker would not notice, and store
    users where nobody looks for them.
    """
    names = [f"user {number}" for number in range(16)]
    file = write_config(tmp_path, f"{TWO}, start_owner: false")
    text = file.read_text().replace("shards: 2", "shards: 8")
    file.write_text(text)
    command = bound(sys.executable, "-m", "remora", "serve", file)
    with subprocess.Popen(command) as first:
        worker = remora.connect(file)
        await worker.start()
        for name in names:
            await worker.session(name, "s").append(user("before"))
        first.terminate()
    file.write_text(text.replace("shards: 8", "shards: 7"))
    assert await run_command_aside("reshard", memory, "--shards", "7") == 0
    with subprocess.Popen(command) as second:
        async with remora.connect(file) as newer:
            for name in names:
                with pytest.raises(ConfigError, match="has 7 shards"):
                    await worker.session(name, "s").append(user("astray"))
                assert await contents(newer.session(name, "s")) == ["before"]
        await worker.aclose()
        second.terminate()
    assert await run_command_aside("verify", "--dir", memory) == 0


async def test_serve_with_another_number_beside_busy_workers(tmp_path: Path, memory: Path) -> None:
    """They do not start the owners again that it tells to leave; files of killed ones mislead no
    command.
    """
    file = write_config(tmp_path, TWO)
    async with remora.connect(file) as worker:
        await fill(worker)
        write_config(tmp_path, ", owners: 1, start_owner: false")
        ended = False

        async def ask() -> None:
            while not ended:
                with suppress(ConfigError):
                    await worker.session(SECOND, "s").load()
                await anyio.sleep(0)

        command = bound(sys.executable, "-m", "remora", "serve", file)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with subprocess.Popen(command) as server:
                async with remora.connect(file) as newer:
                    assert await contents(newer.session(SECOND, "s")) == [f"from {SECOND}"]
                    assert owner(memory, 0).pid == server.pid
                    gone = Place(memory, 1)
                    gone.write_owner(
                        msgspec.structs.replace(owner(memory, 0), owners=2, socket="/none")
                    )
                    where = ("--dir", str(memory), "--yes")
                    assert await run_command_aside("forget", SECOND, *where) == 0
                    gone.info.unlink()
                ended = True
                server.terminate()
                assert await in_thread(server.wait) == 0


async def test_links_in_place_of_their_files_are_refused(tmp_path: Path, memory: Path) -> None:
    file = write_config(tmp_path, TWO)
    memory.mkdir(mode=0o700)
    (tmp_path / "precious").write_text("kept")
    (memory / "owner-1.log").symlink_to(tmp_path / "precious")
    with pytest.raises(DirectoryUnusable, match=r"owner-1\.log is a symbolic link"):
        async with remora.connect(file):
            pass
    assert (tmp_path / "precious").read_text() == "kept"
