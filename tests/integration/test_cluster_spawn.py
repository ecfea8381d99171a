"""Workers find the owner of a memory, or start one; one that hangs is killed (G12)."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import remora.blocking
from remora import observe
from remora.cluster.control import ControlLink, OwnerGone
from remora.cluster.owner import Seat
from remora.cluster.place import NextOwner, OwnerInfo, Place
from remora.cluster.target import read_target
from remora.cluster.watch import OwnerWatch, open_control, ping_or_kill
from remora.config import ClusterConfig
from remora.errors import (
    DirectoryLocked,
    DirectoryUnusable,
    InvalidInput,
    OwnerFailed,
    OwnerUnreachable,
)
from remora.storage.lock import DirectoryLock, keep_owner_file
from remora.system.clock import boot_time
from remora.system.sockets import LocalListener
from tests.accounts import ANOTHER, require_interpreter_for_another
from tests.configs import PLAIN
from tests.owners import finder, make_target
from tests.patience import wait_until
from tests.processes import stop
from tests.workers import OWNERS

pytestmark = OWNERS

RACE = """
import os, sys
from tests.owners import finder
file = sys.argv[1]
made = finder(file)
read, write = os.pipe()
for _ in range(16):
    if not os.fork():
        os.close(write)
        os.read(read, 1)  # all at once, when the parent closes it
        os.write(1, b'%d\\n' % made.find().pid)
        os._exit(0)
os.close(read)
os.close(write)
for _ in range(16):
    assert os.wait()[1] == 0
"""


UNPRIVILEGED = """
import os, sys
from remora.errors import DirectoryUnusable
from tests.owners import finder
worker = finder(sys.argv[1])
os.setuid(65534)
try:
    worker.find()
except DirectoryUnusable as e:
    print(e)
"""


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Place]:
    """A memory's directory, whose owner is ended after the test."""
    place = Place(tmp_path / "memory")
    yield place
    info = place.read_owner()
    if info is not None:
        end(info)


def end(info: OwnerInfo, number: int = signal.SIGKILL) -> None:
    """End an owner, and wait until it has ended."""
    try:
        with open_control(info, ClusterConfig()) as control:
            os.kill(info.pid, number)
            assert control.wait(600)
    except OwnerGone:
        pass


def started(place: Place) -> list[int]:
    """The owners that were started."""
    return [int(line) for line in (place.directory / "started").read_text().split()]


def test_sixteen_racing_workers_have_one_owner(tmp_path: Path, memory: Place) -> None:
    process = subprocess.run(
        [sys.executable, "-c", RACE, str(make_target(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
    )
    pids = process.stdout.split()
    info = memory.read_owner()
    assert info is not None
    assert pids == [str(info.pid)] * 16
    assert started(memory) == [info.pid]


def test_an_owner_outlives_its_worker_and_is_private(tmp_path: Path, memory: Place) -> None:
    """A session of its own; files and sockets are for its account alone."""
    script = "import sys; from tests.owners import finder; print(finder(sys.argv[1]).find().pid)"
    file = make_target(tmp_path)
    worker = subprocess.run(
        [sys.executable, "-c", script, str(file)], capture_output=True, check=True
    )
    info = finder(file).find()
    assert info.pid == int(worker.stdout)
    assert os.getsid(info.pid) == info.pid
    names = {path.name for path in memory.directory.iterdir()}
    assert {"owner.log", "owner.json", "spawn.lock"} <= names
    assert Path(info.socket).is_socket()
    for path in memory.directory.iterdir():
        if path.name != "started":
            assert stat.S_IMODE(path.stat().st_mode) & 0o177 == 0, path
    assert stat.S_IMODE(memory.directory.stat().st_mode) == 0o700
    end(info, signal.SIGTERM)
    assert memory.read_owner() is None
    assert not Path(info.socket).exists()


def test_an_owner_that_is_killed_or_hangs_is_replaced(tmp_path: Path, memory: Place) -> None:
    """One that is stopped answers no ping, and is killed by who looks for it, or by the watch of a
    worker that waits for it. It never goes on: what it would write is out of date.
    """
    file = make_target(tmp_path, silent_s=1, deaths=1_000)
    target = read_target(file)
    first = finder(file).find()
    end(first)
    second = finder(file).find()
    with open_control(second, ClusterConfig()) as control:
        stop(second.pid)
        third = finder(file).find()
        assert control.wait(600)
    pids = {first.pid, second.pid, third.pid}
    assert len(pids) == 3
    assert pids <= set(started(memory))  # a busy machine's may be taken for one that hangs
    watch = OwnerWatch(third, target.config.cluster)
    watch.start()
    with open_control(third, ClusterConfig()) as control:
        stop(third.pid)
        assert control.wait(600)
    watch.join()


def test_a_busy_loop_has_more_time(
    tmp_path: Path, memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread answers for it, and says how long it has been stuck."""
    monkeypatch.setenv("STAND_IN", "stuck")
    file = make_target(tmp_path, silent_s=60, stuck_s=3)
    info = finder(file).find()
    limits = read_target(file).config.cluster
    with open_control(info, limits) as control:
        stuck_since = time.monotonic()
        assert ping_or_kill(control, limits) is not None
        (memory.directory / "stuck").touch()
        while ping_or_kill(control, limits) is not None:
            pass
        assert control.wait(600)
    assert time.monotonic() - stuck_since > limits.stuck_s


def test_owners_that_die_are_not_started_for_ever(
    tmp_path: Path, memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot open the memory says why, and is not tried again."""
    monkeypatch.setenv("STAND_IN", "dies")
    file = make_target(tmp_path, deaths=2)
    with pytest.raises(OwnerFailed, match="2 owners have died") as caught:
        finder(file).find()
    assert caught.value.log.count("no such host") == 2
    assert len(started(memory)) == 2
    with pytest.raises(OwnerFailed, match="no such host"):  # another worker does not try
        finder(file).find()
    assert len(started(memory)) == 2
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("STAND_IN", "refuses")
    with pytest.raises(OwnerFailed, match=r"journal\.db is damaged"):
        finder(make_target(other)).find()
    assert len(started(Place(other / "memory"))) == 1


def test_an_owner_that_starts_slowly_is_left_to_finish(
    tmp_path: Path, memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may bring a large journal to a newer format, which takes longer than workers wait."""
    monkeypatch.setenv("STAND_IN", "slow")
    worker = finder(make_target(tmp_path, wait_s=0.1))
    with pytest.raises(OwnerUnreachable, match="is left to finish"):
        worker.find()
    info = wait_until(memory.read_owner, "an owner starts")
    assert info is not None
    with pytest.raises(OwnerUnreachable, match=f"process {info.pid} starts, and is left"):
        worker.find()
    (memory.directory / "go").touch()
    found = None
    while found is None:
        with suppress(OwnerUnreachable):
            found = worker.find()
    assert started(memory) == [found.pid] == [info.pid]


def test_a_directory_that_cannot_be_written(tmp_path: Path, memory: Place) -> None:
    """Said at once: no owner is waited for."""
    worker = finder(make_target(tmp_path))
    memory.prepare()
    memory.spawn_lock.symlink_to("elsewhere")
    with pytest.raises(DirectoryUnusable, match=r"spawn\.lock is a symbolic link"):
        worker.find()
    memory.spawn_lock.unlink()
    if os.getuid() == 0:  # nothing is forbidden to root
        for directory in memory.directory.parents[: len(memory.directory.parents) - 1]:
            directory.chmod(directory.stat().st_mode | 0o755)
        memory.directory.chmod(0o755)
        process = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(tmp_path / "remora.yaml")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "no permission to write" in process.stdout
    assert not (memory.directory / "started").exists()


def test_workers_that_start_no_owner_wait(tmp_path: Path, memory: Place) -> None:
    """Because they are told not to, or because they leave the start to newer ones."""
    file = make_target(tmp_path, wait_s=0.1)
    text = file.read_text()
    file.write_text(text.replace("wait_s:", "start_owner: false, wait_s:"))
    with pytest.raises(OwnerUnreachable, match=r"remora serve .*remora\.yaml") as caught:
        finder(file).find()
    assert caught.value.retryable
    file.write_text(text)
    memory.prepare()
    memory.write_next(NextOwner("99.0.0", "0" * 16, boot_time() + 50))
    with pytest.raises(OwnerUnreachable):
        finder(file).find()
    assert not (memory.directory / "started").exists()
    memory.write_next(NextOwner("99.0.0", "0" * 16, boot_time() - 1))
    assert finder(make_target(tmp_path)).find()


def test_a_changed_configuration_gets_a_new_owner(tmp_path: Path, memory: Place) -> None:
    """The owner leaves for the newer worker; older workers are served by the new one. A worker of
    another target is told which is served.
    """
    file = make_target(tmp_path)
    older = finder(file)
    first = older.find()
    with file.open("a") as config:
        config.write("buffer: {token_limit: 5000}\n")
    second = finder(file).find()
    assert second.pid != first.pid
    assert older.find() == second
    assert json.loads(memory.spawn_lock.read_bytes() or b"[]") == []  # nobody has died
    other = tmp_path / "other.yaml"
    other.write_text(file.read_text())
    with pytest.raises(InvalidInput, match=r"served for the target '.*remora\.yaml'"):
        finder(other).find()


def test_paths_too_long_for_a_socket(tmp_path: Path) -> None:
    """A socket's address has 107 bytes; the sockets of a longer path are in the directory too."""
    deep = tmp_path / ("long" * 25)
    deep.mkdir()
    info = finder(make_target(deep)).find()
    try:
        assert Path(info.socket).parent == deep / "memory"
        with open_control(info, ClusterConfig()) as control:
            assert control.ask().phase == "serving"
    finally:
        end(info)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another account")
def test_other_accounts_are_refused(tmp_path: Path, memory: Place) -> None:
    """Also where the modes of files would let them in."""
    require_interpreter_for_another()
    info = finder(make_target(tmp_path)).find()
    with open_control(info, ClusterConfig()) as control:
        assert control.ask().phase == "serving"
    path = Path(info.socket)
    path.chmod(0o777)
    for directory in path.parents[: len(path.parents) - 1]:
        directory.chmod(directory.stat().st_mode | 0o755)
    script = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(None)
try:
    s.sendall(b'{"type":"leave"}\\n'); print(s.recv(100))
except ConnectionError: print(b'')
"""
    process = subprocess.run(
        [sys.executable, "-I", "-c", script, str(path)],
        check=False,
        user=ANOTHER,
        capture_output=True,
        text=True,
    )
    assert process.stdout == "b''\n", process.stderr
    with open_control(info, ClusterConfig()) as control:
        assert control.ask().phase == "serving"


def test_garbage_on_the_socket(tmp_path: Path, memory: Place) -> None:
    """That connection ends; nothing else notices."""
    info = finder(make_target(tmp_path)).find()
    for garbage in (b"\0" * 5_000, b"{}\n", b"\xff\n", b"[" * 4_000 + b"\n", b""):
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(None)
            one.connect(info.socket)
            with suppress(ConnectionError):  # it may be closed before all is sent
                one.sendall(garbage)
                one.shutdown(socket.SHUT_WR)
                assert one.recv(100) == b""
    with ControlLink(info.socket, 600, 600) as control:
        assert control.ask().phase == "serving"


def test_a_runtime_beside_an_owner(tmp_path: Path) -> None:
    """The error names what to write instead, in whichever order the files are written."""
    place = Place(tmp_path)
    info = OwnerInfo(os.getpid() + 1, "2026-01-01", "s", "app:memory", "0.1.0", "", 0.0)
    place.write_owner(info)
    with keep_owner_file(tmp_path):
        lock = DirectoryLock(tmp_path)
        lock.acquire()
    try:
        assert place.read_owner() == info
        with pytest.raises(DirectoryLocked, match=r"remora\.connect\('app:memory'\)"):
            DirectoryLock(tmp_path).acquire()
    finally:
        lock.release()
    assert place.read_owner() == info


def test_an_owner_that_starts_while_a_runtime_opens(memory: Place) -> None:
    """What the runtime answers at stays: an owner takes the place of a dead process alone."""
    with remora.blocking.Runtime(memory.directory, config=PLAIN):
        before = memory.info.read_text()
        seat = Seat(memory, "app:memory", stays=True, logs=False)
        assert seat.take()
        with pytest.raises(DirectoryLocked, match=rf"in use by process {os.getpid()}"):
            seat.announce(lambda _: None)
        seat.release()
        assert memory.info.read_text() == before
        assert observe.ask(memory.directory) is not None
    left = LocalListener(memory.socket, 1).socket
    left.close()
    assert memory.socket.exists()
    seat = Seat(memory, "app:memory", stays=True, logs=False)
    assert seat.take()
    seat.announce(lambda _: None)
    seat.release()
    assert not memory.socket.exists()
