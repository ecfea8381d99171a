"""Real servers restart their workers under load: clients see no error, and the owner stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests import worker_app
from tests.patience import until
from tests.processes import bound
from tests.workers import OWNERS, end_owner, owner_of, write_config

pytestmark = [pytest.mark.anyio, *OWNERS]
GUNICORN = (
    *(
        "gunicorn",
        "-k",
        "asgi",
        "-w",
        "2",
        "--graceful-timeout",
        "600",
        "-t",
        "600",
        "--no-control-socket",
    ),
    *("-b", "unix:{socket}"),
)
UVICORN = (
    *("uvicorn", "--uds", "{socket}"),
    *("--timeout-graceful-shutdown", "600", "--timeout-worker-healthcheck", "600"),
)
LOADS = 3


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A memory's directory, whose owner is ended after the test."""
    yield tmp_path / "memory"
    end_owner(tmp_path / "memory")


class Load:
    """Clients that append through the server, each to a session of its own, one after the other.

    Args:
        socket: the server's.
        repeats: clients send a request again, once, whose connection was cut before an answer, as
            HTTP lets them (RFC 9110, 9.2.2). A uvicorn that ends closes a connection that it has
            accepted and not read, so a request may be in it.

    Attributes:
        pids: the workers that answered, in the order of their first answers.
        wrong: answers that were none.
    """

    def __init__(self, socket: Path, *, repeats: bool) -> None:
        self._socket = socket
        self._repeats = repeats
        self.pids: dict[int, int] = {}
        self.wrong: list[str] = []
        self.sent = [0] * LOADS
        self.ended = False

    async def run(self) -> None:
        """Until `ended`."""
        async with anyio.create_task_group() as tasks:
            for client in range(LOADS):
                tasks.start_soon(self._append, client)

    async def _append(self, client: int) -> None:
        while not self.ended:
            await self.ask(f"/append/user-{client}/{self.sent[client]}")
            self.sent[client] += 1

    async def ask(self, path: str) -> Any:
        """The server's answer."""
        try:
            data = await self._send(path)
            if not data and self._repeats:
                data = await self._send(path)
        except OSError as e:
            self.wrong.append(f"{path}: {e!r}")
            return None
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        if " 200" not in lines[0]:
            self.wrong.append(f"{path}: {data[:300]!r}")
            return None
        pid = next(int(line[6:]) for line in lines if line.startswith("x-pid:"))
        self.pids[pid] = self.pids.get(pid, 0) + 1
        return json.loads(body)

    async def _send(self, path: str) -> bytes:
        """What came back; nothing if the connection was cut before."""
        async with await anyio.connect_unix(self._socket) as stream:
            try:
                await stream.send(
                    f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
                )
                return b"".join([part async for part in stream])
            except anyio.BrokenResourceError:
                return b""

    async def answered_by(self, wanted: Callable[[set[int]], bool]) -> None:
        """Return when the workers that answered are as wanted."""
        await until(lambda: wanted(set(self.pids)), f"others answer than {sorted(self.pids)}")


@asynccontextmanager
async def served(tmp_path: Path, command: tuple[str, ...], app: str) -> AsyncIterator[Any]:
    """A server, and the load that is on it; both end afterwards, and what was stored is checked."""
    socket = tmp_path / "http.sock"
    words = [word.format(socket=socket) for word in command]
    environment = {**os.environ, "MEMORY": str(write_config(tmp_path))}
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            bound(sys.executable, "-m", *words, app),
            stdout=log,
            stderr=log,
            cwd=tmp_path if app == "copied:app" else None,
            env=environment,
        )
        load = Load(socket, repeats=words[0] == "uvicorn")
        try:
            while not socket.exists() or await load.ask("/history/nobody") is None:
                assert process.poll() is None, (tmp_path / "server.log").read_text()
                await anyio.sleep(0.05)
            load.wrong.clear()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load.run)
                yield process, load
                load.ended = True
            assert load.wrong == []
            for client, sent in enumerate(load.sent):
                stored = await load.ask(f"/history/user-{client}")
                assert stored == [str(number) for number in range(sent)]
        finally:
            with anyio.CancelScope(shield=True):
                await end_server(process)


async def end_server(process: subprocess.Popen[bytes]) -> None:
    """End a server, and its workers.

    A worker that begins just then may lose the signal of gunicorn's arbiter, which waits for it.
    """
    process.terminate()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def has_ended() -> bool:
        if process.poll() is not None:
            return True
        with suppress(OSError):  # it has just ended, or there is no /proc
            for worker in map(int, children.read_text().split()):
                os.kill(worker, signal.SIGTERM)
        return False

    await until(has_ended, "the server has ended")


@pytest.mark.parametrize("name", ["gunicorn", "uvicorn"])
async def test_a_server_reloads(name: str, tmp_path: Path, memory: Path) -> None:
    """HUP: new workers take the place of old ones; uvicorn's supervisor replaces one at a time."""
    command, new = {"gunicorn": (GUNICORN, 2), "uvicorn": ((*UVICORN, "--workers", "2"), 1)}[name]
    async with served(tmp_path, command, "tests.worker_app:app") as (process, load):
        await load.answered_by(bool)
        owner, old = owner_of(memory), set(load.pids)
        process.send_signal(signal.SIGHUP)
        await load.answered_by(lambda pids: len(pids - old) >= new)
    assert owner_of(memory) == owner


async def test_gunicorn_restarts_workers_after_some_requests(tmp_path: Path, memory: Path) -> None:
    command = (*GUNICORN, "--max-requests", "50")
    async with served(tmp_path, command, "tests.worker_app:app") as (_, load):
        await load.answered_by(bool)
        owner = owner_of(memory)
        await load.answered_by(lambda pids: len(pids) >= 3)
    assert owner_of(memory) == owner


async def test_uvicorn_reloads_changed_code(tmp_path: Path, memory: Path) -> None:
    """While one develops: the module is written again, and the memory stays where it is."""
    copy = tmp_path / "copied.py"
    shutil.copyfile(str(worker_app.__file__), copy)
    command = (*UVICORN, "--reload", "--reload-dir", str(tmp_path), "--reload-include", "copied.py")
    async with served(tmp_path, command, "copied:app") as (_, load):
        await load.answered_by(bool)
        owner, old = owner_of(memory), set(load.pids)
        copy.write_text(copy.read_text() + "# changed\n")
        await load.answered_by(lambda pids: bool(pids - old))
    assert owner_of(memory) == owner
