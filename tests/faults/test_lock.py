"""Whose directory it is: waiting for its owner to leave, and processes that were forked (G12)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import pytest

from remora import Config, Runtime
from remora.errors import ConfigError, DirectoryLocked
from tests.harness import user

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

TREE = {"long_term": {"enabled": False}, "tokens": {"counter": "heuristic"}}
WAITING = Config.from_dict({**TREE, "lock_wait_s": 60.0})
IMPATIENT = Config.from_dict({**TREE, "lock_wait_s": 0.3})

OWNER = """
import asyncio, os, signal, sys, remora
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


async def owned_by_another(directory: Path) -> anyio.abc.Process:
    """A process that owns the directory until it is told to leave."""
    process = await anyio.open_process([sys.executable, "-c", OWNER, str(directory)])
    assert process.stdout is not None
    assert b"open" in await process.stdout.receive()
    return process


async def test_opening_waits_for_the_owner_to_leave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A graceful reload: the new process is started before the old one has gone."""
    caplog.set_level("INFO", "remora")
    owner = await owned_by_another(tmp_path)
    opened = anyio.Event()

    async def follow() -> None:
        async with Runtime(tmp_path, config=WAITING) as runtime:
            opened.set()
            history = await runtime.session("alice", "s").history()
            assert [message.content for message in history] == ["of the owner"]
            await runtime.session("alice", "s").append(user("of the next"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        while "waiting_for_directory" not in caplog.text:
            await anyio.sleep(0.01)
        assert not opened.is_set()
        assert f"pid={owner.pid}" in caplog.text
        owner.terminate()
    assert await owner.wait() == 0
    assert caplog.text.count("waiting_for_directory") == 1
    await owner.aclose()


async def test_waiting_ends_with_the_remedy(tmp_path: Path) -> None:
    """Who does not leave is named, and so is what to do."""
    owner = await owned_by_another(tmp_path)
    with pytest.raises(DirectoryLocked, match=r"--workers 1") as caught:
        async with Runtime(tmp_path, config=IMPATIENT):
            pass
    assert caught.value.pid == owner.pid
    assert str(owner.pid) in str(caught.value)
    assert "lock_wait_s" in str(caught.value)
    owner.kill()
    await owner.aclose()


async def test_waiting_can_be_cancelled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that is stopped while it waits stops, and leaves nothing locked."""
    caplog.set_level("INFO", "remora")
    owner = await owned_by_another(tmp_path)

    async def follow() -> None:
        async with Runtime(tmp_path, config=WAITING):
            raise AssertionError("opened")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        while "waiting_for_directory" not in caplog.text:
            await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    owner.terminate()
    await owner.aclose()
    async with Runtime(tmp_path, config=IMPATIENT):
        pass


async def test_a_runtime_of_this_process_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be the caller's own, which would wait for itself."""
    caplog.set_level("INFO", "remora")
    async with Runtime(tmp_path, config=WAITING):
        with pytest.raises(DirectoryLocked):
            async with Runtime(tmp_path / ".", config=WAITING):
                pass
    assert "waiting_for_directory" not in caplog.text


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
        print("reopened", len(await runtime.session("alice", "s").history()))
    os.close(writing)
    os.waitpid(child, 0)
asyncio.run(main())
"""


async def test_a_forked_child_does_not_keep_the_directory(tmp_path: Path) -> None:
    """A child shares the open files of its parent, and with them the lock."""
    done = await anyio.run_process([sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path)])
    assert done.stdout == b"reopened 1\n"


CHILD_LEAVES = """
import asyncio, os, sys, remora
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
    owner = await anyio.open_process(
        [sys.executable, "-W", "ignore", "-c", CHILD_LEAVES, str(tmp_path)]
    )
    assert owner.stdout is not None
    assert b"child left" in await owner.stdout.receive()
    with pytest.raises(DirectoryLocked) as caught:
        async with Runtime(tmp_path, config=IMPATIENT):
            pass
    assert caught.value.pid == owner.pid
    os.kill(owner.pid, signal.SIGKILL)
    await owner.aclose()
    async with Runtime(tmp_path, config=IMPATIENT):
        pass


CHILD_OUTLIVES = """
import asyncio, os, sys, remora
async def main():
    async with remora.Runtime(sys.argv[1]) as runtime:
        child = os.fork()
        if not child:
            os.read(0, 1)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def test_a_forked_child_that_outlives_its_parent_owns_nothing(tmp_path: Path) -> None:
    """A worker that was forked from a server that is killed: the next server starts."""
    owner = await anyio.open_process(
        [sys.executable, "-W", "ignore", "-c", CHILD_OUTLIVES, str(tmp_path)]
    )
    assert owner.stdout is not None
    child = int(await owner.stdout.receive())
    await owner.wait()
    try:
        os.kill(child, 0)
        async with Runtime(tmp_path, config=IMPATIENT):
            pass
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        await owner.aclose()
