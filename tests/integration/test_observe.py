"""What a process that has a memory open tells other processes of its account."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from remora import Runtime, observe
from remora.cluster.sharded import ShardedRuntime
from remora.errors import DirectoryUnusable, InvalidInput, OwnerUnreachable
from remora.services.answering import MAX_CONNECTIONS, SOCKET_NAME, start_answering
from remora.system.sockets import connect_socket
from tests.configs import PLAIN
from tests.harness import user
from tests.patience import until
from tests.processes import stop

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.blocking,
    pytest.mark.skipif(sys.platform != "linux", reason="the sockets need Linux"),
]
in_thread = anyio.to_thread.run_sync


async def status_of(
    directory: Path, *, timeout_s: float = 600.0, **options: Any
) -> observe.RuntimeStatus:
    ask = partial(observe.ask, directory, timeout_s=timeout_s, **options)
    status = await in_thread(ask)
    assert status is not None
    return status


@pytest.mark.parametrize("name", ["memory", "m" * 200])
async def test_a_runtime_answers_while_it_is_open(tmp_path: Path, name: str) -> None:
    """What it says is what it says itself; also where a socket's address would be too long."""
    path = tmp_path / name
    async with Runtime(path, config=PLAIN) as runtime:
        await runtime.session("ann", "one").append(user("hello"))
        asked = [("ann", "one"), ("ann", "two"), ("bo", "one")]
        status = await status_of(path, sessions=asked)
        assert status.pid == os.getpid()
        assert (status.health, status.statistics) == (runtime.health(), runtime.statistics())
        assert status.live == (("ann", "one"),)
        mode = (path / SOCKET_NAME).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert await in_thread(observe.ask, path) is None
    assert not (path / SOCKET_NAME).exists()


async def test_messages_that_wait_are_seen(tmp_path: Path) -> None:
    """Whose mailbox is full is known to the process alone."""
    path = tmp_path / "memory"
    async with Runtime(path, config=PLAIN) as runtime, anyio.create_task_group() as tasks:
        for number in range(5):
            for name in ("ann", "bo")[: 1 + (number < 2)]:
                tasks.start_soon(runtime.session(name, "one").append, user("hello"))
        await anyio.lowlevel.checkpoint()  # they have been sent, and their actors are being read
        # the event loop does nothing in the meantime
        status = observe.ask(path, timeout_s=600)
        assert status is not None
        assert status.mailboxes == (
            observe.FullMailbox("ann", "one", 5),
            observe.FullMailbox("bo", "one", 2),
        )


async def test_shards_answer_as_one(tmp_path: Path) -> None:
    """At the memory's directory, and not at those of its shards."""
    path = tmp_path / "memory"
    memory = ShardedRuntime.of(Runtime(path, config=PLAIN), shards=3)
    async with memory:
        names = [(f"user {number}", "one") for number in range(9)]
        for name, session in names:
            await memory.session(name, session).append(user("hello"))
        status = await status_of(path, sessions=[*names, ("nobody", "one")])
        assert (status.shards, status.live) == (3, tuple(names))
        assert status.statistics is not None
        assert status.statistics.registry.live == 9
        assert status.statistics.log == memory.statistics().log
        assert await in_thread(observe.ask, path / "shard-00") is None
    assert await in_thread(observe.ask, path) is None


async def test_what_cannot_be_asked(tmp_path: Path) -> None:
    """No directory, no process, a file instead, a socket of a process that was killed, or of one
    that does not answer: the caller waits as long as it said.
    """
    ask = partial(observe.ask, tmp_path, timeout_s=600)
    assert await in_thread(ask) is None
    (tmp_path / "file").write_text("")
    for name in ("none", "file"):
        with pytest.raises(DirectoryUnusable, match="there is no directory"):
            observe.ask(tmp_path / name)
    with pytest.raises(InvalidInput, match="at most 1,000 sessions"):
        observe.ask(tmp_path, sessions=[("a", "b")] * 1_001)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / SOCKET_NAME))
        dead.listen()
        with pytest.raises(OwnerUnreachable, match=r"did not answer within 0\.05 s"):
            observe.ask(tmp_path, timeout_s=0.05)
    assert observe.ask(tmp_path) is None
    async with Runtime(tmp_path, config=PLAIN):
        assert await in_thread(ask) is not None


async def test_what_is_no_question_ends_its_own_connection(tmp_path: Path) -> None:
    """A line that is none, or has no end, closes the connection that it came by; so does a question
    that cannot be answered, a defect of who answers, which does not end the thread.
    """
    async with Runtime(tmp_path / "memory", config=PLAIN):
        path = tmp_path / "memory" / SOCKET_NAME
        with connect_socket(path, 600.0) as garbled:
            garbled.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert await in_thread(garbled.recv, 10) == b""
        with connect_socket(path, 600.0) as endless, pytest.raises(ConnectionError):
            for _ in range(200):
                await in_thread(endless.sendall, b"x" * 10_000)
        assert (await status_of(tmp_path / "memory")).health.ready

    answers = [b"fine"]
    thread = await in_thread(start_answering, tmp_path, lambda _: answers.pop())
    assert thread is not None
    try:
        for expected in (b"fine\n", b"", b""):
            with connect_socket(tmp_path / SOCKET_NAME, 600.0) as link:
                link.sendall(b"?\n")
                assert await in_thread(link.recv, 10) == expected
    finally:
        await in_thread(thread.stop)


async def test_one_who_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    """Nor do half a question, and more connections than are taken; closed ones make room."""
    directory = tmp_path / "memory"
    async with Runtime(directory, config=PLAIN):
        with ExitStack() as held:

            def connect(timeout_s: float = 600.0) -> socket.socket:
                return held.enter_context(connect_socket(directory / SOCKET_NAME, timeout_s))

            for _ in range(10):
                connect().sendall(b'{"ses')
            unread = connect(0.2)
            with pytest.raises(TimeoutError):  # no more is read of one who asks on
                while True:
                    unread.sendall(b'{"type":"status"}\n' * 1_000)
            assert (await status_of(directory)).health.ready
            for _ in range(MAX_CONNECTIONS - 11):
                connect()
            with pytest.raises(OwnerUnreachable, match="too many ask"):
                await status_of(directory)

        async def has_room() -> Any:
            with suppress(OwnerUnreachable):
                return (await status_of(directory)).health.ready
            return False

        await until(has_room, "connections that were closed make room")


async def test_without_a_place_for_a_socket_a_memory_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system without sockets, for instance."""

    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket.socket, "listen", refuse)
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        await runtime.session("ann", "one").append(user("hello"))
        assert await in_thread(observe.ask, tmp_path / "memory") is None
    assert "status_not_answered" in caplog.text


CHILD = """\
import asyncio, sys
from remora import Config, Runtime

async def main():
    async with Runtime(sys.argv[1], config=Config.from_dict({"long_term": {"enabled": False}})):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


async def test_another_process_is_asked_and_a_killed_one_is_not_found(tmp_path: Path) -> None:
    """The next one that opens the memory answers in its place."""
    path = tmp_path / "memory"
    command = [sys.executable, "-c", CHILD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert await in_thread(child.stdout.readline) == b"open\n"
            assert (await status_of(path)).pid == child.pid
            stop(child.pid)
            with pytest.raises(OwnerUnreachable, match="did not answer"):
                await status_of(path, timeout_s=0.05)
        finally:
            child.kill()
    assert (path / SOCKET_NAME).exists()
    assert await in_thread(observe.ask, path) is None
    async with Runtime(path, config=PLAIN):
        assert (await status_of(path)).pid == os.getpid()
