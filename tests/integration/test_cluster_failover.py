"""Owners and workers are killed and stopped under load: nothing is lost, doubled, out of order, or
stale.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import remora
from remora import Runtime
from remora.storage.lock import DirectoryLock
from tests.harness import user
from tests.processes import stop
from tests.workers import end_owner, owner_of, owner_process, write_config

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.blocking,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="owners need Linux"),
]
in_thread = anyio.to_thread.run_sync
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


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A memory's directory, whose owner is ended after the test."""
    yield tmp_path / "memory"
    end_owner(tmp_path / "memory")


async def test_kills_under_load(tmp_path: Path, memory: Path) -> None:
    """Each client sends a message again, with its key, until it is acknowledged."""
    file = write_config(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", WORKER, str(file)], stdout=subprocess.PIPE)
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
    while any(sent[name] < goal[name] for name in goal):
        await anyio.sleep(0.01)


async def contents(session: Any) -> list[str]:
    return [message.content for message in await session.history()]


async def test_a_stopped_owner_never_goes_on(tmp_path: Path, memory: Path) -> None:
    """It is dead before another takes over, so it can neither write nor answer what is stale."""
    file = write_config(tmp_path)
    async with remora.connect(file) as one, remora.connect(file) as other:
        await one.session("ada", "s").append(user("before"), key="1")
        first = owner_of(memory)
        with owner_process(first) as process:
            await in_thread(stop, first.pid)
            await other.session("ada", "s").append(user("after"), key="2")
            assert await in_thread(partial(process.wait, 0))
            with pytest.raises(ProcessLookupError):
                os.kill(first.pid, signal.SIGCONT)  # nobody has reaped it, or nobody is there
                if (await in_thread(state, first.pid)) == "Z":
                    raise ProcessLookupError
        assert (await one.session("ada", "s").load()).messages[-1] == user("after")
        assert await contents(one.session("ada", "s")) == ["before", "after"]


def state(pid: int) -> str:
    """What a process does, as the system says."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


async def test_without_the_fence_it_would(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: nobody kills the owner, and its lock is passed over."""
    file = write_config(tmp_path, ", silent_s: 100, stuck_s: 100")
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
