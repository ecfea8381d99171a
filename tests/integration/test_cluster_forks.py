"""Workers that are forked, and processes that workers fork: nobody keeps what is another's."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.abc import Process

import remora
import remora.blocking
from remora.cluster.spawn import lock_now
from tests.harness import user
from tests.processes import bound
from tests.workers import OWNERS, end_owner, owner_of, write_config

pytestmark = [pytest.mark.anyio, *OWNERS]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A memory's directory, whose owner is ended after the test."""
    yield tmp_path / "memory"
    end_owner(tmp_path / "memory")


async def run(script: str, path: Path) -> str:
    """What a script prints."""
    command = [sys.executable, "-W", "ignore", "-c", script, str(path)]
    return (await anyio.run_process(command, stderr=None)).stdout.decode()


PRELOADED = """
import asyncio, logging, os, sys, remora
lost = []
class Losses(logging.Handler):
    def emit(self, record): lost.append("owner_lost" in record.getMessage())
logging.basicConfig(level=logging.INFO, handlers=[Losses()])
memory = remora.connect(sys.argv[1])
read, write = os.pipe()
async def work(name):
    async with memory:
        os.write(write, b"!")
        chat = memory.session(name, "s")
        for number in range(30):
            await chat.append({"role": "user", "content": str(number)})
        os.write(1, b"%s %d %d\\n" % (name.encode(), len(await chat.history()), sum(lost)))
def start(name):
    if not os.fork():
        asyncio.run(work(name))
        os._exit(0)
start("first")
os.read(read, 10)
start("other")
for _ in range(2): assert os.wait()[1] == 0
"""


async def test_a_memory_that_is_made_before_the_fork(tmp_path: Path, memory: Path) -> None:
    """As with `gunicorn --preload`: each worker enters it, and is a worker of its own."""
    said = await run(PRELOADED, write_config(tmp_path))
    assert sorted(said.splitlines()) == ["first 30 0", "other 30 0"]


LEAVES_A_CHILD = """
import os, sys
from pathlib import Path
from remora.cluster.spawn import lock_now
with lock_now(Path(sys.argv[1])) as lock:
    assert lock is not None
    child = os.fork()
    if not child:
        os.read(0, 1)
        os._exit(0)
    os.write(1, b"%d" % child)
    if len(sys.argv) > 2:
        os.kill(os.getpid(), 9)
os.read(0, 1)
"""


async def test_a_child_does_not_keep_the_locks(tmp_path: Path) -> None:
    """Of a process that starts an owner, or looks whether there is one; it may be killed, too."""
    for number, more in enumerate(([], ["kill"])):
        lock = tmp_path / f"spawn{number}.lock"
        command = bound(sys.executable, "-W", "ignore", "-c", LEAVES_A_CHILD, lock, *more)
        async with await anyio.open_process(command) as process:
            child = await printed(process)
            try:
                if more:
                    await process.wait()
                await anyio.to_thread.run_sync(wait_for, lock)
                os.kill(child, 0)
            finally:
                os.kill(child, signal.SIGKILL)
                if not more:
                    process.kill()


def wait_for(lock: Path) -> None:
    """Return when a lock is free."""
    while True:
        with lock_now(lock) as held:
            if held is not None:
                return
        os.sched_yield()


async def printed(process: Process) -> int:
    """A number that a process prints."""
    assert process.stdout is not None
    return int(await process.stdout.receive())


IN_A_TURN = """
import asyncio, os, sys, remora
async def main():
    async with remora.connect(sys.argv[1]) as memory:
        async with memory.session("ada", "s").turn("one"):
            child = os.fork()
            if not child:
                os.read(0, 1)
                os._exit(0)
            os.write(1, b"%d" % child)
            os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def test_a_child_does_not_keep_the_turns_of_its_worker(tmp_path: Path, memory: Path) -> None:
    """A worker that has forked is killed: another gets its place in line, while the child lives."""
    file = write_config(tmp_path)
    command = bound(sys.executable, "-W", "ignore", "-c", IN_A_TURN, file)
    async with (
        remora.connect(file) as other,
        await anyio.open_process(command, stderr=None) as worker,
    ):
        child = await printed(worker)
        try:
            await worker.wait()
            async with other.session("ada", "s").turn("two", query=False):
                os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


OWNER_FORKS = """
import os, signal, sys
from pathlib import Path
import remora
from remora.blocks import BaseMemoryBlock

held = Path(__file__).parent / "held"
if "pytest" not in sys.modules:  # which imports this, too, and forks for what it starts
    os.register_at_fork(after_in_child=lambda: held.exists() and held.read_bytes())

class Forks(BaseMemoryBlock[str], kw_only=True):
    async def _aget(self, messages=None, **more):
        if not (child := os.fork()):
            while True:
                signal.pause()
        return f"{os.getpid()} {child}"

def runtime():
    config = remora.Config.from_dict({
        "cluster": {"shards": 1, "linger_s": 60, "wait_s": 600, "silent_s": 600},
        "tokens": {"counter": "heuristic"},
        "mailbox": {"timeout_s": 600},
        "long_term": {"enabled": False},
    })
    memory = Path(__file__).parent / "memory"
    return remora.Runtime(memory, config=config, blocks=[Forks(name="forks")])
"""


@pytest.fixture
async def forking(
    request: pytest.FixtureRequest, tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[remora.Session, int, int]]:
    """A session, its owner, and a process that the application's code has forked in the owner."""
    (tmp_path / "ownerforks.py").write_text(OWNER_FORKS)
    if getattr(request, "param", None) == "held":
        os.mkfifo(tmp_path / "held")  # the child waits there for a writer before it does anything
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ownerforks", raising=False)
    async with remora.connect("ownerforks:runtime") as worker:
        chat = worker.session("ada", "s")
        await chat.append(user("one"), key="1")
        said = str((await chat.load()).messages)
        found = re.search(r"(\d+) (\d+)", said)
        assert found, said
        owner, child = int(found[1]), int(found[2])
        assert owner == owner_of(memory).pid
        try:
            yield chat, owner, child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


async def test_a_child_of_the_owner_does_not_keep_its_connections(
    forking: tuple[remora.Session, int, int],
) -> None:
    """A worker sees that its owner has died, while a process lives that the owner has forked."""
    chat, owner, child = forking
    os.kill(owner, signal.SIGKILL)
    await chat.append(user("two"), key="2")
    assert len(await chat.history()) == 2
    os.kill(child, 0)


@pytest.mark.parametrize("forking", ["runs", "held"], indirect=True)
async def test_a_child_of_the_owner_has_signals_of_its_own(
    forking: tuple[remora.Session, int, int], memory: Path
) -> None:
    """A pool that the owner ends by SIGTERM, for instance: its processes end, and it stays.

    That holds for one that has just been forked, too.
    """
    chat, owner, child = forking
    descriptor = os.pidfd_open(child)
    try:
        os.kill(child, signal.SIGTERM)
        if (held := memory.parent / "held").exists():
            held.write_bytes(b"")
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    await chat.append(user("two"), key="2")
    assert owner_of(memory).pid == owner


async def test_threads_that_need_a_thread(tmp_path: Path, memory: Path) -> None:
    """As many as there are: what their calls do in a thread has one of its own."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = 2
    ready = threading.Barrier(2)
    async with remora.connect(write_config(tmp_path)) as worker:
        await worker.session("ada", "s").append(user("kept"))
        view = remora.blocking.view(worker)

        def export(path: Path) -> None:
            ready.wait()
            assert view.export(path).sessions == 1

        async with anyio.create_task_group() as tasks:
            for name in ("one", "two"):
                one = partial(export, tmp_path / f"{name}.jsonl")
                tasks.start_soon(anyio.to_thread.run_sync, one)


async def test_threads_that_wait_for_the_next_owner(tmp_path: Path, memory: Path) -> None:
    """As many as there are threads: looking for the owner needs one of its own."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = 2
    gate, ready = threading.Event(), threading.Barrier(3)
    async with remora.connect(write_config(tmp_path)) as worker:
        await worker.session("ada", "s").append(user("kept"))
        chat = remora.blocking.view(worker).session("ada", "s")
        found: list[int] = []

        def endpoint() -> None:
            ready.wait()
            gate.wait()
            found.append(len(chat.history()))

        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(anyio.to_thread.run_sync, endpoint)
            own = anyio.CapacityLimiter(1)
            await anyio.to_thread.run_sync(ready.wait, limiter=own)  # they have all threads
            os.kill(owner_of(memory).pid, signal.SIGKILL)
            gate.set()
        assert found == [1, 1]
