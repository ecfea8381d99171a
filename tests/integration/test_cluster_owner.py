"""Real owners: workers share them, and go on when they leave, are killed, or stand still.

Nothing is lost, doubled, out of order or stale.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import remora
import remora.blocking
from remora import Runtime
from remora.cli.main import main
from remora.cluster.place import Place
from remora.cluster.spawn import lock_now
from remora.errors import (
    DirectoryLocked,
    DirectoryUnusable,
    InvalidInput,
    OwnerFailed,
    OwnershipLost,
    RuntimeClosed,
)
from remora.storage.lock import DirectoryLock
from tests.configs import PLAIN
from tests.harness import user
from tests.patience import until
from tests.processes import bound, stop
from tests.workers import OWNERS, end_owner, owner_of, owner_process, write_config

pytestmark = [pytest.mark.anyio, *OWNERS]
in_thread = anyio.to_thread.run_sync


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A memory's directory, whose owner is ended after the test."""
    yield tmp_path / "memory"
    end_owner(tmp_path / "memory")


async def contents(session: Any) -> list[str]:
    return [message.content for message in await session.history()]


async def test_two_workers_have_one_memory(tmp_path: Path, memory: Path) -> None:
    """What one appends, the other loads; both sessions and users are in their shards."""
    file = write_config(tmp_path)
    async with remora.connect(file) as one, remora.connect(file) as other:
        for name in ("ada", "bo", "cy"):
            await one.session(name, "s").append(user(f"from {name}"), key="k")
            assert await contents(other.session(name, "s")) == [f"from {name}"]
            assert (await other.session(name, "s").append(user(f"from {name}"), key="k")).duplicate
        assert one.path == memory
        with pytest.raises(DirectoryUnusable, match=r"remora\.connect"):
            await Runtime(memory, config=remora.Config(lock_wait_s=0)).start()
    assert {path.name for path in memory.glob("shard-*")} == {"shard-00", "shard-01"}


async def test_an_owner_that_nobody_needs_ends(tmp_path: Path, memory: Path) -> None:
    file = write_config(tmp_path)
    file.write_text(file.read_text().replace("linger_s: 60", "linger_s: 0.1"))
    async with remora.connect(file) as worker:
        await worker.session("ada", "s").append(user("kept"))
        with owner_process(owner_of(memory)) as process:
            await worker.aclose()
            assert await in_thread(process.wait, 600)
    async with remora.connect(file) as worker:
        assert await contents(worker.session("ada", "s")) == ["kept"]


async def test_an_owner_beside_a_runtime_is_refused(tmp_path: Path, memory: Path) -> None:
    """The error names the program that has the directory open, which stays its known owner."""
    file = write_config(tmp_path)
    text = file.read_text().replace("shards: 2, ", "")
    file.write_text(f"{text}\nlock_wait_s: 0\n")
    async with Runtime.from_file(file) as runtime:
        await runtime.session("ada", "s").append(user("before"))
        before = (memory / "owner.json").read_text()
        for _ in range(2):
            with pytest.raises(OwnerFailed, match=f"in use by process {os.getpid()} .*connect"):
                async with remora.connect(file):
                    pass
        assert (memory / "owner.json").read_text() == before


async def test_a_runtime_beside_an_owner_is_refused(tmp_path: Path, memory: Path) -> None:
    """A memory of one shard is a plain directory; the error names what to write."""
    file = write_config(tmp_path)
    async with Runtime.from_file(file) as runtime:
        await runtime.session("ada", "s").append(user("before"))
    file.write_text(file.read_text().replace("shards: 2, ", ""))
    async with remora.connect(file) as worker:
        assert await contents(worker.session("ada", "s")) == ["before"]
        config = remora.Config(lock_wait_s=0)
        with pytest.raises(DirectoryLocked, match=r"remora\.connect\('.*remora\.yaml'\)") as caught:
            await Runtime(memory, config=config).start()
        assert caught.value.pid == owner_of(memory).pid
    file.write_text(file.read_text().replace("linger_s", "shards: 3, linger_s"))
    with pytest.raises(InvalidInput, match="has 1 shard, not 3"):
        remora.connect(file)


async def test_a_standby_takes_over(tmp_path: Path, memory: Path) -> None:
    """It is the process that waited, and no worker is needed for it; it ends with its owner."""
    file = write_config(tmp_path, ", standby: true")
    async with remora.connect(file) as worker:
        await worker.session("ada", "s").append(user("before"), key="1")
    first = owner_of(memory)
    await until(lambda: standbys(memory, first.pid) and lock_is_awaited(memory), "one waits")
    waiting = standbys(memory, first.pid)
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: owner_of(memory).pid != first.pid, "another one owns the memory")
    assert [owner_of(memory).pid] == waiting
    async with remora.connect(file) as worker:
        assert await contents(worker.session("ada", "s")) == ["before"]
    await in_thread(end_owner, memory, signal.SIGTERM)
    await until(lambda: not standbys(memory, 0), "it ends with its owner")


def standbys(memory: Path, owner: int) -> list[int]:
    """The processes that were started for the memory, without its owner."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        pid = int(path.parent.name)
        if b"remora.cluster" in words and os.fsencode(memory) in words and pid != owner:
            found.append(pid)
    return found


def lock_is_awaited(memory: Path) -> bool:
    """Whether a process waits for the lock of owners."""
    inode = (memory / "owner.lock").stat().st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{inode} " in line for line in lines)


async def test_serve_takes_the_place_of_a_started_owner(
    tmp_path: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers go on, without an error; SIGTERM ends it with code 0, and they go on again."""
    file = write_config(tmp_path)
    async with remora.connect(file) as worker:
        chat = worker.session("ada", "s")
        await chat.append(user("one"))
        with owner_process(owner_of(memory)) as started:
            log = (tmp_path / "log").open("w")
            command = bound(sys.executable, "-m", "remora", "serve", file)
            with log, subprocess.Popen(command, stderr=log) as server:
                assert await in_thread(started.wait, 600)
                await chat.append(user("two"))
                assert owner_of(memory).pid == server.pid
                other = await in_thread(partial(main, ["serve", str(file)]))
                assert other == 1
                assert await in_thread(partial(main, ["serve", str(memory)])) == 1
                assert "is served for the target" in " ".join(capsys.readouterr().err.split())
                server.terminate()
                assert await in_thread(server.wait) == 0
        await chat.append(user("three"))
        assert await contents(chat) == ["one", "two", "three"]
    assert "owner_serves" in (tmp_path / "log").read_text()


async def test_owners_are_listed(
    tmp_path: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`remora owners` says who owns the memory, and what each shard does."""
    file = write_config(tmp_path)
    assert await in_thread(main, ["owners", str(file)]) == 1
    assert "there is no directory" in capsys.readouterr().err
    async with remora.connect(file) as worker:
        await worker.session("ada", "s").append(user("one"))
        pid = owner_of(memory).pid
        assert await in_thread(main, ["owners", str(file)]) == 0
        shown = capsys.readouterr().out
        assert f"process {pid} serves {memory} since" in shown
        assert "serving, 1 connected" in shown
        assert await in_thread(main, ["owners", str(file), "--json"]) == 0
        shards = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one["shard"] for one in shards] == [0, 1]
        assert {one["pid"] for one in shards} == {pid}
        assert {one["epoch"] for one in shards} == {1}
        assert sum(one["sessions"] for one in shards) == 1
    await in_thread(end_owner, memory)
    assert await in_thread(main, ["owners", str(file)]) == 1
    assert f"process {pid}, has died" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("json_", [True, False])
async def test_a_directory_that_a_program_has_open_for_itself(
    tmp_path: Path, memory: Path, capsys: pytest.CaptureFixture[str], *, json_: bool
) -> None:
    """`remora owners` says which process it is."""
    words = ["owners", str(write_config(tmp_path)), *(["--json"] if json_ else [])]
    async with Runtime(memory, config=PLAIN):
        assert await in_thread(main, words) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert f"process {os.getpid()} has it open since" in said
        assert f"remora top {memory}" in said
    assert await in_thread(main, words) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert said == f"remora: no process serves {memory}"


SLOW_IMPORT = """
import sys, time
from pathlib import Path
import remora
from remora.runtime import threads

class Slow:
    @staticmethod
    def find_spec(name, path, target=None):
        here = Path(__file__).parent
        if name == "lancedb":
            (here / "importing").touch()
            while (here / "importing").exists() and not (here / "imported").exists():
                time.sleep(0.01)

def runtime():
    sys.meta_path.insert(0, Slow)
    threads.LONGEST_LOAD_S = 1.0
    here = Path(__file__).parent
    cluster = {"shards": 1, "linger_s": 60, "wait_s": 600, "silent_s": 600}
    config = {
        "cluster": cluster, "tokens": {"counter": "heuristic"}, "mailbox": {"timeout_s": 600}
    }
    return remora.Runtime(here / "memory", config=remora.Config.from_dict(config))
"""


async def test_an_owner_leaves_while_it_loads(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers need not wait until it has imported LanceDB; the next owner serves before that."""
    (tmp_path / "loadsslowly.py").write_text(SLOW_IMPORT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    try:
        async with remora.connect("loadsslowly:runtime") as worker:
            chat = worker.session("ada", "s")
            await chat.append(user("one"), key="1")
            await until((tmp_path / "importing").exists, "it imports")
            first = owner_of(memory)
            os.kill(first.pid, signal.SIGTERM)
            await until(
                lambda: (info := Place(memory).read_owner()) is not None and info.pid != first.pid,
                "another one owns the memory",
            )
            await chat.append(user("two"), key="2")
            assert not (tmp_path / "imported").exists()
            assert await contents(chat) == ["one", "two"]
    finally:
        (tmp_path / "imported").touch()


FORKS = """
import asyncio, os, sys, remora
async def main():
    async with remora.connect(sys.argv[1]) as worker:
        chat = worker.session("ada", "s")
        await chat.append({"role": "user", "content": "of the parent"})
        if not (child := os.fork()):
            try:
                chat.append({"role": "user", "content": "of the child"}).send(None)
            except remora.errors.RuntimeClosed as e:
                os.write(1, str(e).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.write(1, b"; %d" % len(await chat.history()))
asyncio.run(main())
"""


async def test_a_forked_process_is_refused(tmp_path: Path, memory: Path) -> None:
    """It shares its parent's socket; the error says where to connect."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(write_config(tmp_path))]
    process = await anyio.run_process(command, stderr=None)
    said, _, messages = process.stdout.decode().partition("; ")
    assert "connect in each worker, after the fork" in said
    assert messages == "1"
    assert memory.exists()


def test_threads_use_a_connected_memory(tmp_path: Path, memory: Path) -> None:
    """`remora.blocking.connect`: the same, without async."""
    file = write_config(tmp_path)
    before = remora.blocking.connect(file)
    with pytest.raises(RuntimeClosed, match=r"first: with remora\.blocking\.connect"):
        before.session("ada", "s").load()
    with remora.blocking.connect(file) as worker:
        chat = worker.session("ada", "s")
        chat.append(user("one"))
        assert chat.load().messages == [user("one")]
        assert [message.content for message in chat.history()] == ["one"]
    with pytest.raises(RuntimeClosed):
        chat.load()


async def test_a_backup_is_put_in_place_under_a_worker(tmp_path: Path, memory: Path) -> None:
    """The worker is told so, until it connects again; it does not wait for the former memory."""
    file = write_config(tmp_path)
    async with remora.connect(file) as worker:
        chat = worker.session("ada", "s")
        await chat.append(user("kept"), key="1")
        await worker.backup(tmp_path / "backup")
        for number in range(5):  # making a backup counts as owners of the copy, too
            await in_thread(end_owner, memory)
            await chat.append(user("later"), key=f"later{number}")
        with lock_now(Place(memory).spawn_lock) as lock:
            assert lock is not None
            await in_thread(end_owner, memory)
            for shard in sorted(memory.glob("shard-*")):
                await in_thread(shutil.rmtree, shard)
                await in_thread(shutil.copytree, tmp_path / "backup" / shard.name, shard)
        for ask in (partial(chat.append, user("new"), key="new"), chat.load):
            with pytest.raises(OwnershipLost, match="connect again"):
                await ask()
    async with worker:
        chat = worker.session("ada", "s")
        assert await contents(chat) == ["kept"]
        await chat.append(user("new"), key="new")
        assert await contents(chat) == ["kept", "new"]


NEWER = """
import asyncio, sys, remora
async def main():
    async with remora.connect(sys.argv[1]) as worker:
        chat = worker.session("ada", "s")
        await chat.append({"role": "user", "content": f"from {remora.__version__}"}, key="n")
        print(len(await chat.history()))
asyncio.run(main())
"""


async def test_a_newer_release_takes_over(tmp_path: Path, memory: Path) -> None:
    """The owner leaves for the newer one, and the worker of the older release is served by it."""
    newer = tmp_path / "newer"
    source = Path(remora.__file__).parent
    await in_thread(partial(shutil.copytree, source, newer / "remora"))
    face = newer / "remora" / "__init__.py"
    face.write_text(face.read_text().replace(f'"{remora.__version__}"', '"99.0.0"'))
    file = write_config(tmp_path)
    async with remora.connect(file) as worker:
        chat = worker.session("ada", "s")
        await chat.append(user("from the older"), key="o")
        first = owner_of(memory)
        process = await anyio.run_process(
            [sys.executable, "-P", "-c", NEWER, str(file)],
            env={**os.environ, "PYTHONPATH": str(newer)},
            stderr=None,
        )
        assert process.stdout.strip() == b"2"
        await chat.append(user("again"), key="o2")
        assert await contents(chat) == ["from the older", "from 99.0.0", "again"]
    assert owner_of(memory).release == "99.0.0"
    assert owner_of(memory).pid != first.pid


# -- owners and workers are killed and stopped under load ------------------------------------------

SESSIONS = 4
KILLS = 2

WORKER = """
import asyncio, sys, remora
async def main():
    async with remora.connect(sys.argv[1]) as memory:
        chat = memory.session("of the worker", "s")
        for number in range(100_000):
            await chat.append({"role": "user", "content": f"{number}"}, key=f"k{number}")
            print(number, flush=True)
asyncio.run(main())
"""


async def test_kills_under_load(tmp_path: Path, memory: Path) -> None:
    """Each client sends a message again, with its key, until it is acknowledged."""
    file = write_config(tmp_path)
    other = subprocess.Popen(bound(sys.executable, "-c", WORKER, file), stdout=subprocess.PIPE)
    assert other.stdout is not None
    try:
        async with remora.connect(file) as worker:
            sent = await append_through_kills(worker, memory)
            await in_thread(other.stdout.readline)
            other.kill()
            rest = (await in_thread(other.stdout.read)).split()
            acknowledged = int(rest[-1]) if rest else 0
            for name, count in sent.items():
                assert await contents(worker.session(name, "s")) == [str(n) for n in range(count)]
            found = await contents(worker.session("of the worker", "s"))
            assert found == [str(n) for n in range(len(found))]
            assert acknowledged < len(found) <= acknowledged + 2
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


async def append_through_kills(worker: Any, memory: Path) -> dict[str, int]:
    """Append to several sessions while owners are killed; returns how many each has."""
    sent = {f"user {number}": 0 for number in range(SESSIONS)}
    ended = False

    async def append(name: str) -> None:
        while not ended:
            number = sent[name]
            message = user(f"{number}")
            while True:
                try:
                    await worker.session(name, "s").append(message, key=f"k{number}")
                    break
                except remora.errors.RemoraError as e:
                    assert e.retryable, e  # noqa: PT017
            sent[name] = number + 1

    async with anyio.create_task_group() as tasks:
        for name in sent:
            tasks.start_soon(append, name)
        for _ in range(KILLS):
            await all_went_on(sent)
            await in_thread(end_owner, memory)
        await all_went_on(sent)
        ended = True
    return sent


async def all_went_on(sent: dict[str, int]) -> None:
    """Return when each session has got some more."""
    goal = {name: count + 5 for name, count in sent.items()}
    await until(lambda: all(sent[name] >= goal[name] for name in goal), "all have sent more")


async def test_a_stopped_owner_never_goes_on(tmp_path: Path, memory: Path) -> None:
    """It is dead before another takes over, so it can neither write nor answer what is stale."""
    file = write_config(tmp_path, silent_s=2)
    async with remora.connect(file) as one, remora.connect(file) as other:
        await one.session("ada", "s").append(user("before"), key="1")
        first = owner_of(memory)
        with owner_process(first) as process:
            await in_thread(stop, first.pid)
            await other.session("ada", "s").append(user("after"), key="2")
            assert await in_thread(partial(process.wait, 0))
            with suppress(ProcessLookupError):  # where somebody has reaped it
                os.kill(first.pid, signal.SIGCONT)
        assert (await one.session("ada", "s").load()).messages[-1] == user("after")
        assert await contents(one.session("ada", "s")) == ["before", "after"]


async def test_without_the_fence_it_would(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: nobody kills the owner, and its lock is passed over."""
    file = write_config(tmp_path)
    file.write_text(file.read_text().replace("shards: 2", "shards: 1"))
    async with remora.connect(file) as worker:
        chat = worker.session("ada", "s")
        await chat.append(user("before"), key="1")
        first = owner_of(memory)
        await in_thread(stop, first.pid)
        loaded: list[Any] = []

        async def load() -> None:
            loaded.append((await chat.load()).messages)

        async with anyio.create_task_group() as tasks:
            try:
                monkeypatch.setattr(DirectoryLock, "acquire", lambda _: None)
                async with Runtime.from_file(file) as runtime:
                    await runtime.session("ada", "s").append(user("after"), key="2")
                tasks.start_soon(load)
                await anyio.wait_all_tasks_blocked()  # it is sent
            finally:
                os.kill(first.pid, signal.SIGCONT)
        assert loaded == [[user("before")]]  # stale


async def test_a_worker_that_stands_still_loses_its_turns(tmp_path: Path, memory: Path) -> None:
    """The next turn begins; when the worker goes on, what it says in its turn is stored."""
    file = write_config(tmp_path, ", worker_silent_s: 3")
    async with remora.connect(file) as worker:
        chat = worker.session("ada", "s")
        stopped = subprocess.Popen(
            bound(sys.executable, "-c", STANDS_STILL, str(file)), stdout=subprocess.PIPE, text=True
        )
        with stopped:
            assert stopped.stdout is not None
            assert await in_thread(stopped.stdout.readline) == "entered\n"
            stop(stopped.pid)
            async with chat.turn("next") as turn:
                await turn.reply("served")
            os.kill(stopped.pid, signal.SIGCONT)
            assert await in_thread(stopped.stdout.readline) == "stored\n"
            assert await in_thread(stopped.wait, 600) == 0
        assert await contents(chat) == ["first", "next", "served", "late"]


STANDS_STILL = """
import asyncio, sys
import remora

async def main():
    async with remora.connect(sys.argv[1]) as memory:
        async with memory.session("ada", "s").turn("first") as turn:
            print("entered", flush=True)
            chat = memory.session("ada", "s")
            while len(await chat.history()) < 3:
                await asyncio.sleep(0.02)
            await turn.reply("late")
            print("stored", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("name", ["owner.sock", "owner.json", "owner.lock"])
async def test_an_owner_that_nobody_can_find_ends(tmp_path: Path, memory: Path, name: str) -> None:
    """Its files were removed: it ends, new workers have another, and nothing is lost."""
    file = write_config(tmp_path)
    async with remora.connect(file) as old:
        await old.session("ada", "s").append(user("one"))
        with owner_process(owner_of(memory)) as process:
            (memory / name).unlink()
            assert await in_thread(process.wait, 600)
        await old.session("ada", "s").append(user("two"))
        async with remora.connect(file) as new:
            await new.session("ada", "s").append(user("three"))
            assert await contents(old.session("ada", "s")) == ["one", "two", "three"]
