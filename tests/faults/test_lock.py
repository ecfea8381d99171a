"""Whose directory it is: who is refused and who is waited for, and processes that were forked
(G12).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from remora import Config, Runtime
from remora.errors import ConfigError, DirectoryLocked
from tests.configs import PLAIN_TREE
from tests.harness import user
from tests.patience import until

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves write files

WAITING = Config.from_dict({**PLAIN_TREE, "lock_wait_s": 600.0})
IMPATIENT = Config.from_dict({**PLAIN_TREE, "lock_wait_s": 0.3})
AT_ONCE = Config.from_dict({**PLAIN_TREE, "lock_wait_s": 0})


async def say(directory: Path, text: str) -> None:
    async with Runtime(directory, config=AT_ONCE) as runtime:
        await runtime.session("alice", "s").append(user(text))


async def heard(directory: Path) -> list[object]:
    async with Runtime(directory, config=AT_ONCE) as runtime:
        return [one.content for one in await runtime.session("alice", "s").history()]


async def refused(directory: Path, pid: int, config: Config = AT_ONCE) -> DirectoryLocked:
    """The error of who opens a directory that this process owns."""
    with pytest.raises(DirectoryLocked, match=f"in use by process {pid}") as caught:
        async with Runtime(directory, config=config):
            pass
    assert caught.value.pid == pid
    return caught.value


@asynccontextmanager
async def process(program: str, directory: Path) -> AsyncIterator[tuple[anyio.abc.Process, bytes]]:
    """A process, and its first line; it is killed in the end."""
    # Python warns of a fork beside threads
    command = [sys.executable, "-W", "ignore", "-c", program, str(directory)]
    started = await anyio.open_process(command)
    try:
        assert started.stdout is not None
        said = BufferedByteReceiveStream(started.stdout)
        yield started, await said.receive_until(b"\n", max_bytes=100)
    finally:
        with suppress(ProcessLookupError):
            started.kill()
        await started.aclose()


OWNER = """
import asyncio, signal, sys, remora
config = remora.Config.from_dict({"long_term": {"enabled": False}})
async def main():
    left = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, left.set)
    async with remora.Runtime(sys.argv[1], config=config) as runtime:
        await runtime.session("alice", "s").append({"role": "user", "content": "of the owner"})
        print("open", flush=True)
        await left.wait()
asyncio.run(main())
"""

SECOND = """
import asyncio, sys, remora
config = remora.Config.from_dict({"lock_wait_s": 0})
async def main():
    try:
        async with remora.Runtime(sys.argv[1], config=config): pass
    except remora.errors.DirectoryLocked as e:
        print("refused because of", e.pid, flush=True)
asyncio.run(main())
"""


async def test_a_second_runtime_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """G12: in another process, and in this one, where it is not waited for: it may be the caller's
    own, which would wait for itself. The owner is named; afterwards the directory is free.
    """
    caplog.set_level("INFO", "remora")
    async with Runtime(tmp_path, config=WAITING):
        assert (await refused(tmp_path / ".", os.getpid(), WAITING)).since
        async with process(SECOND, tmp_path) as (_, said):
            assert said == f"refused because of {os.getpid()}".encode()
    assert "waiting_for_directory" not in caplog.text
    await say(tmp_path, "free again")


async def test_a_killed_owner_is_followed_at_once(tmp_path: Path) -> None:
    """G12: another process is refused with the owner's pid and start time, and the remedy; once the
    owner is killed, the next takes over.
    """
    async with process(OWNER, tmp_path) as (owner, _):
        error = await refused(tmp_path, owner.pid, IMPATIENT)
        assert f"process {owner.pid} since {error.since}" in str(error)
        assert "--workers 1" in str(error)
        assert "lock_wait_s" in str(error)
        owner.kill()
        with suppress(ChildProcessError):  # the event loop was faster: its number is free already
            # dead, and not buried: its number is still taken
            os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        assert (tmp_path / "owner.json").exists()
        assert await heard(tmp_path) == ["of the owner"]


async def test_a_lock_file_that_is_removed_while_it_is_held(tmp_path: Path) -> None:
    """G12: the directory stays its owner's, another process's and this one's own; and what the
    owner leaves is its own.
    """
    async with process(OWNER, tmp_path) as (owner, _):
        (tmp_path / "remora.lock").unlink()
        for _ in range(2):  # the one that was refused has made another lock file
            await refused(tmp_path, owner.pid)
    async with Runtime(tmp_path, config=AT_ONCE):
        (tmp_path / "remora.lock").unlink()
        await refused(tmp_path, os.getpid())
    await say(tmp_path, "free again")


async def test_an_owner_that_left_nothing_of_use(tmp_path: Path) -> None:
    """G12: a torn or foreign note of an owner, of a directory that was copied from elsewhere, say,
    keeps nobody out.
    """
    for left in (
        "",
        "{",
        "[]",
        '{"pid": "many"}',
        '{"pid": 1}',
        '{"pid": 1, "since": "2026", "started": "elsewhere/1"}',
        "\x00" * 40,
    ):
        (tmp_path / "owner.json").write_text(left)
        async with Runtime(tmp_path, config=AT_ONCE) as runtime:
            (tmp_path / "owner.json").write_text(left)
            with pytest.raises(DirectoryLocked, match="in use by process"):
                await say(tmp_path, "no")
            await runtime.session("alice", "s").append(user("mine"))
        await say(tmp_path, "free again")


@pytest.mark.parametrize("ends", ["leaves", "is left alone"])
async def test_opening_waits_for_the_owner_to_leave(
    ends: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A graceful reload: the new process is started before the old one has gone. A server that is
    stopped while it waits stops, and leaves nothing locked.
    """
    caplog.set_level("INFO", "remora")
    opened = anyio.Event()

    async def follow() -> None:
        async with Runtime(tmp_path, config=WAITING) as runtime:
            opened.set()
            await runtime.session("alice", "s").append(user("of the next"))

    async with process(OWNER, tmp_path) as (owner, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await until(lambda: "waiting_for_directory" in caplog.text)
            assert not opened.is_set()
            assert f"pid={owner.pid}" in caplog.text
            if ends == "leaves":
                owner.terminate()
            else:
                tasks.cancel_scope.cancel()
        if ends != "leaves":
            owner.terminate()
        assert await owner.wait() == 0
    assert caplog.text.count("waiting_for_directory") == 1
    followed = ["of the next"] if ends == "leaves" else []
    assert await heard(tmp_path) == ["of the owner", *followed]


def test_a_negative_wait_is_refused() -> None:
    with pytest.raises(ConfigError):
        Config.from_dict({"lock_wait_s": -1})


FORKING = """
import asyncio, os, sys, remora
config = remora.Config.from_dict({"long_term": {"enabled": False}, "lock_wait_s": 0})
async def main():
    async with remora.Runtime(sys.argv[1], config=config) as runtime:
        await runtime.session("alice", "s").append({"role": "user", "content": "before"})
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    async with remora.Runtime(sys.argv[1], config=config) as runtime:
        print("reopened", len(await runtime.session("alice", "s").history()), flush=True)
    os.close(writing)
    os.waitpid(child, 0)
asyncio.run(main())
"""


async def test_a_forked_child_does_not_keep_the_directory(tmp_path: Path) -> None:
    """A child shares the open files of its parent, and with them the lock."""
    async with process(FORKING, tmp_path) as (owner, said):
        assert said == b"reopened 1"
        assert await owner.wait() == 0


CHILD_LEAVES = """
import os, sys
from remora.storage.lock import DirectoryLock
from pathlib import Path
lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
child = os.fork()
if not child:
    lock.release()
    os._exit(0)
os.waitpid(child, 0)
print("child left", flush=True)
sys.stdin.read()
"""


async def test_a_forked_child_cannot_give_the_directory_away(tmp_path: Path) -> None:
    """A child that unwinds the parent's stack releases nothing."""
    async with process(CHILD_LEAVES, tmp_path) as (owner, _):
        await refused(tmp_path, owner.pid)
    await say(tmp_path, "free again")


CHILD_OUTLIVES = """
import asyncio, os, sys, remora
async def main():
    async with remora.Runtime(sys.argv[1]) as runtime:
        ready, told = os.pipe()
        child = os.fork()
        if not child:
            os.write(told, b"x")  # it has given up what it inherited
            os.read(0, 1)
            os._exit(0)
        os.read(ready, 1)
        print(child, flush=True)
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def test_a_forked_child_that_outlives_its_parent_owns_nothing(tmp_path: Path) -> None:
    """A worker that was forked from a server that is killed: the next server starts."""
    async with process(CHILD_OUTLIVES, tmp_path) as (owner, said):
        child = int(said)
        await owner.wait()
        try:
            os.kill(child, 0)
            await say(tmp_path, "free again")
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)
