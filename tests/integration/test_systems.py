"""Memories on this system; on Linux, processes stand in for others: `tests.systems`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from remora import observe
from remora.errors import OwnerUnreachable
from remora.services.answering import MAX_CONNECTIONS, SOCKET_NAME
from remora.system import loopback
from remora.system.sockets import MOST_UNPROVED, connect_socket
from tests.accounts import ANOTHER
from tests.systems import COLD, LOOPBACK, SYSTEMS, environment_of, open_memory, run_on
from tests.workers import write_config

pytestmark = [pytest.mark.blocking, COLD]
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)

USE = """
    import asyncio, os, remora
    POWER = remora.Config.from_dict({"journal": {"durability": "power"}})
    async def main(directory):
        for number in range(2):
            async with remora.Runtime(directory, config=POWER) as runtime:
                ann = runtime.user("ann: nul.")
                said = {"role": "user", "content": f"I moved to Lisbon, {number}."}
                await ann.session("con").append(said)
                await ann.session("con").flush()
                found = await ann.recall("Where do I live?")
                assert any("Lisbon" in one.text for one in found), found
        async with remora.Runtime(directory) as runtime:
            context = await runtime.user("ann: nul.").session("con").load()
            print([one["content"] for one in context.messages])
            await runtime.user("ann: nul.").forget()
    asyncio.run(main(os.environ["MEMORY"]))
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_memory_is_used_closed_and_opened_again(tmp_path: Path, system: str) -> None:
    """Appends, recall over LanceDB, and an erasure, with names that Windows refuses as file names;
    on macOS the drive is told to write what it holds.
    """
    counts = tmp_path / "counts"
    said = run_on(system, USE, MEMORY=str(tmp_path / "memory"), SYNCS=str(counts))
    assert said == "['I moved to Lisbon, 0.', 'I moved to Lisbon, 1.']\n"
    assert counts.exists() is (system == "macos")


WORK = """
    import asyncio, os, remora
    async def main():
        async with remora.connect(os.environ["TARGET"]) as memory:
            session = memory.user("ann").session("one")
            await session.append({"role": "user", "content": "hello"})
            print(len((await session.load()).messages), type(memory).__name__)
    asyncio.run(main())
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_workers_share_a_memory(tmp_path: Path, system: str) -> None:
    """The first one starts an owner, which the second finds; a command asks it, and another one
    takes its place when it is killed.
    """
    target = write_config(tmp_path)
    directory = tmp_path / "memory"
    assert run_on(system, WORK, TARGET=str(target)) == "1 ConnectedRuntime\n"
    first = json.loads((directory / "owner.json").read_text())["pid"]
    assert run_on(system, WORK, TARGET=str(target)) == "2 ConnectedRuntime\n"
    assert json.loads((directory / "owner.json").read_text())["pid"] == first
    assert json.loads(run_on(system, "health", directory, "--json"))["pid"] == first
    os.kill(first, _KILL)
    try:
        assert run_on(system, WORK, TARGET=str(target)) == "3 ConnectedRuntime\n"
    finally:
        os.kill(json.loads((directory / "owner.json").read_text())["pid"], _KILL)


@pytest.mark.skipif(sys.platform != "linux", reason="several owners work there")
def test_windows_takes_one_owner_alone(tmp_path: Path) -> None:
    """It has no lock that several could share; an error says so before anything is started."""
    target = write_config(tmp_path, ", owners: 2")
    with pytest.raises(AssertionError, match=r"ConfigError: cluster\.owners is 2"):
        run_on("windows", WORK, TARGET=str(target))
    assert not (tmp_path / "memory" / "owner.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="it has no sockets of unix")
def test_a_path_that_is_too_long_for_a_socket_of_macos(tmp_path: Path) -> None:
    """A file with a port takes its place, and workers and commands find it."""
    directory = tmp_path / ("m" * 100)
    with open_memory(SYSTEMS[-1], directory) as process:
        assert json.loads(run_on(SYSTEMS[-1], "health", directory, "--json"))["pid"] == process.pid
        assert stat.S_ISREG((directory / SOCKET_NAME).lstat().st_mode)


def test_letters_that_a_code_page_lacks(tmp_path: Path) -> None:
    """Windows writes files and pipes in one, unless it is told otherwise: no command fails."""
    directory = tmp_path / "memory"
    run_on(SYSTEMS[0], LETTERS, MEMORY=str(directory))
    words = ("sessions", "ann", "--dir", directory)
    assert "東京" in run_on(SYSTEMS[0], *words, PYTHONIOENCODING="cp1252")


LETTERS = """
    import asyncio, os, remora
    async def main():
        async with remora.Runtime(os.environ["MEMORY"]) as runtime:
            said = {"role": "user", "content": "hello"}
            await runtime.user("ann").session("\u6771\u4eac").append(said)
    asyncio.run(main())
"""
COMPUTE = """
    import asyncio, operator
    from remora.services.computing import ComputingProcess
    async def main():
        process = ComputingProcess(busy_s=0.0)
        process.join()
        while process.pid is None:
            process.call(operator.add, 1, 2)
        assert process.call(operator.add, 1, 2) == 3
        assert process.pid is not None
        await process.leave()
    asyncio.run(main())
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_process_computes_for_background_jobs(system: str) -> None:
    """It gets its socket, answers, and ends."""
    run_on(system, COMPUTE)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("service", ["view", "http"])
def test_services_answer(tmp_path: Path, system: str, service: str) -> None:
    """``remora view`` and ``remora http`` start beside a server, and as one."""
    directory = tmp_path / "memory"
    with ExitStack() as held:
        words = ["view", str(directory), "--port", "0"]
        if service == "view":
            held.enter_context(open_memory(system, directory))
        else:
            keys = tmp_path / "keys"
            run_on(system, "keys", keys, "--add", "shop")
            words = ["http", str(directory), "--keys", str(keys), "--port", "0"]
        process = held.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "remora", *words],
                env=environment_of(system),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        held.callback(process.kill)
        assert process.stdout is not None
        lines = (line for line in process.stdout if "http://" in line)
        address = next(lines).split("http://")[1].split()[0]
        host, _, port = address.partition("/")[0].partition(":")
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert connection.recv(8) == b"HTTP/1.1"


# -- the socket of Windows: TCP on loopback --------------------------------------------------------


def port_of(path: Path) -> int:
    return int(json.loads(path.read_bytes())["port"])


@pytest.mark.parametrize("system", LOOPBACK)
def test_only_who_reads_the_file_is_answered(tmp_path: Path, system: str) -> None:
    """Another process of the account is; one with another secret, or none, hears a nonce and no
    more, and neither do many of these keep others out.
    """
    path = tmp_path / "memory" / SOCKET_NAME
    with open_memory(system, tmp_path / "memory") as process, ExitStack() as held:
        found = path.lstat()
        assert stat.S_ISREG(found.st_mode)
        if sys.platform == "linux":
            assert stat.S_IMODE(found.st_mode) == 0o600
        status = observe.ask(tmp_path / "memory", timeout_s=60)
        assert status is not None
        assert status.pid == process.pid

        address = ("127.0.0.1", port_of(path))
        with socket.create_connection(address, 60) as impatient:
            impatient.sendall(b'{"type":"status"}\n' * 4)  # longer than a proof
            assert len(impatient.recv(1_000)) == 40
            assert _rest(impatient) == b""
        other = tmp_path / "other"
        content = {**json.loads(path.read_bytes()), "secret": secrets.token_hex(32)}
        other.write_text(json.dumps(content))
        other.chmod(0o600)
        with pytest.raises(ConnectionError):
            connect_socket(other, 60)
        for _ in range(MAX_CONNECTIONS + MOST_UNPROVED):
            held.enter_context(socket.create_connection(address, 60))
        assert observe.ask(tmp_path / "memory", timeout_s=60) is not None


def _rest(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1_000)
    except ConnectionResetError:
        return b""


@pytest.mark.skipif(sys.platform != "linux", reason="access lists of Windows, and not modes")
def test_a_file_that_others_wrote_or_read_is_not_believed(tmp_path: Path) -> None:
    """It would send messages to the process of another account."""
    memory = tmp_path / "memory"
    path = memory / SOCKET_NAME
    with open_memory("windows", memory):
        path.chmod(0o640)
        with pytest.raises(OwnerUnreachable, match="others can read it"):
            observe.ask(memory, timeout_s=60)
        path.chmod(0o600)
        if os.getuid() == 0:
            os.chown(path, ANOTHER, ANOTHER)
            with pytest.raises(OwnerUnreachable, match="another account"):
                observe.ask(memory, timeout_s=60)
            os.chown(path, 0, 0)
        there = path.read_bytes()
        (tmp_path / "kept").write_bytes(there)
        path.unlink()
        path.symlink_to(tmp_path / "kept")
        with pytest.raises(OwnerUnreachable):
            observe.ask(memory, timeout_s=60)
        path.unlink()


@pytest.mark.parametrize("system", LOOPBACK)
def test_a_port_that_somebody_else_took_gets_nothing(tmp_path: Path, system: str) -> None:
    """After a kill the file stays. Whoever listens at its port now, and does not know the secret,
    is taken for nobody, whatever it answers; a new owner has another port and another secret.
    """
    memory = tmp_path / "memory"
    path = memory / SOCKET_NAME
    with open_memory(system, memory) as process:
        process.kill()
        process.wait()
    left = path.read_bytes()
    assert observe.ask(memory, timeout_s=60) is None
    with socket.create_server(("127.0.0.1", port_of(path))) as taken:
        for said in (b"HTTP/1.1 400 Bad Request\r\n" * 4, b"remora1\0" + bytes(32 + 32)):
            heard = _answer_with(taken, said)
            assert observe.ask(memory, timeout_s=60) is None
            assert b"status" not in heard()
        with open_memory(system, memory) as second:
            assert path.read_bytes() != left
            status = observe.ask(memory, timeout_s=60)
            assert status is not None
            assert status.pid == second.pid
    assert not path.exists()


def _answer_with(listener: socket.socket, said: bytes) -> Callable[[], bytes]:
    """Say something to one who connects, in a thread; what was heard, when the thread ends."""
    heard: list[bytes] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(said)
            while data := _rest(connection):
                heard.append(data)

    thread = threading.Thread(target=answer)
    thread.start()

    def wait() -> bytes:
        thread.join()
        return b"".join(heard)

    return wait


@pytest.mark.skipif(sys.platform != "linux", reason="a Python of a version that is told")
def test_no_port_where_python_cannot_hide_it(tmp_path: Path) -> None:
    """The memory works, and nobody can ask the process that has it open."""
    memory = tmp_path / "memory"
    with open_memory("windows", memory, OLD_PYTHON="1"):
        assert not (memory / SOCKET_NAME).exists()
        assert observe.ask(memory, timeout_s=60) is None


def test_a_listener_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    """Its port may be another process's by now, so nothing is killed for it."""
    listener, _ = loopback.listen(tmp_path / "port", 1)
    with listener, pytest.raises(TimeoutError):
        connect_socket(tmp_path / "port", 0.05)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="`tasks.py system` checks its own system")
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_remora_calls_what_a_system_has(tmp_path: Path, system: str) -> None:
    """Type checkers know which names of the standard library each system has."""
    command = [sys.executable, "-m", "mypy", "--platform", system, "--cache-dir", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, "remora"], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
