"""How an owner's process begins: as ``remora serve``, or started by a worker or by that command."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec

import remora
from remora.cluster.control import ControlLink, Leave, OwnerGone, OwnerSilent
from remora.cluster.machines import read_machines
from remora.cluster.owner import Owner
from remora.cluster.place import OwnerInfo, Place, find_places
from remora.cluster.sharding import choose_layout, count_owners
from remora.cluster.spawn import (
    COMMAND,
    Report,
    StartOrder,
    check_system,
    check_target,
    lock_now,
)
from remora.cluster.target import Target, read_target
from remora.cluster.watch import open_control, ping_or_kill
from remora.errors import DirectoryLocked, OwnerUnreachable
from remora.logging import get_logger
from remora.system.forks import give_up_in_children, keep_in_children
from remora.system.processes import end_this_process
from remora.tokens import load_encodings_later

_logger = get_logger(__name__)
_PAUSE_S = 0.02
_LOOK_S = 0.5
_LASTING_S = 10.0


def serve(text: str) -> int:
    """Own the memory of a target until SIGTERM or SIGINT; returns the exit code.

    Where several processes are to own it, this one starts the others, and ends with them.

    Raises:
        DirectoryLocked: another process serves it, and was started by hand as well.
        InvalidInput: another process serves it for another target.
        RemoraError: the target or the memory cannot be used.
    """
    check_system()
    load_encodings_later()
    target = read_target(text)
    place = Place(target.directory)
    place.prepare()
    owners = 1
    if read_machines(target.config) is None:
        limits = target.config.cluster
        owners = count_owners(limits, choose_layout(target.directory, limits.shards))
    path = [one or os.getcwd() for one in sys.path]  # noqa: PTH109  # text, as sys.path has it
    order = StartOrder(target.text, str(target.directory), path, owners=owners, stays=True)
    for one in find_places(target.directory):
        info = one.read_owner()
        if info is not None and info.owners != owners:  # its shards are divided otherwise now
            _end_other(one, target)
    others = _OtherOwners(order)
    try:
        return _serve_share(order, target, others.start)
    finally:
        others.stop()


def main() -> int:
    """Return what is started: ``python -m remora.cluster DIRECTORY``; the rest is on stdin."""
    reports = os.dup(1)
    give_up_in_children(reports)  # the worker sees that this process dies
    # a line: a process that was forked from the worker may keep the other end open
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=StartOrder)
    sys.path[:] = order.path
    load_encodings_later()
    if not order.stays:
        log = order.place.open_log()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, number in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, number)
        os.close(nothing)
        os.close(log)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {os.getpid()} %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    if order.stays:
        threading.Thread(target=_end_with_parent, name="remora.parent", daemon=True).start()
        return _serve_share(order, read_target(order.target), _ignore)

    def report(what: Report) -> None:
        nonlocal reports
        with contextlib.suppress(OSError):  # the worker has gone
            os.write(reports, msgspec.json.encode(what) + b"\n")
            keep_in_children(reports)
            os.close(reports)

    return Owner(order, report).run()


def _ignore(report: Report) -> None:
    del report  # the log says it


def _end_with_parent() -> None:
    """End as if told to when the process that started this one has ended, however it did."""
    sys.stdin.buffer.read()
    end_this_process()


def _serve_share(order: StartOrder, target: Target, report: Callable[[Report], None]) -> int:
    owner = Owner(order, report)
    try:
        _take_place(owner, order.place, target)
        return owner.serve()
    finally:
        owner.release()


class _OtherOwners:
    """The processes that own the other shards; they are kept running.

    Args:
        order: of the first one, which is this process.
    """

    def __init__(self, order: StartOrder) -> None:
        self._orders = [
            msgspec.structs.replace(order, number=number) for number in range(1, order.owners)
        ]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remora.owners", daemon=True)

    def start(self, report: Report) -> None:
        """Start them when this process serves: it has made the memory, if there was none."""
        if report.serving and self._orders:
            self._thread.start()

    def stop(self) -> None:
        """Have them end, and wait for it. Blocks."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        running = [(order, _start(order), time.monotonic()) for order in self._orders]
        while not self._ended.wait(_LOOK_S):
            for place, (order, process, began) in enumerate(running):
                lasted = time.monotonic() - began > _LASTING_S
                if process.poll() is not None and lasted:
                    _logger.error("owner_ended", number=order.number, code=process.returncode)
                    _let_go(process)
                    running[place] = (order, _start(order), time.monotonic())
        for _, process, _ in running:
            process.terminate()
        for _, process, _ in running:
            process.wait()
            _let_go(process)


def _start(order: StartOrder) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # noqa: S603  # our own interpreter
        [*COMMAND, order.directory],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(order.path)},
    )
    assert process.stdin is not None
    give_up_in_children(process.stdin.fileno())
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
    return process


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Close the other end of a process' standard input, whose number is then another file's."""
    assert process.stdin is not None
    keep_in_children(process.stdin.fileno())
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _take_place(owner: Owner, place: Place, target: Target) -> None:
    """Become the owner; one that a worker started leaves, and workers start no other then."""
    limits = target.config.cluster
    end = time.monotonic() + limits.wait_s
    while True:
        with lock_now(place.spawn_lock) as lock:
            if lock is not None:
                _end_other(place, target)
                if owner.take():
                    return
        if time.monotonic() > end:
            raise OwnerUnreachable(
                f"the owner of {place.directory} did not leave within cluster.wait_s "
                f"({limits.wait_s:g} s)"
            )
        time.sleep(_PAUSE_S)


def _end_other(place: Place, target: Target) -> None:
    info = place.read_owner()
    if info is None:
        return
    limits = target.config.cluster
    try:
        with open_control(info, limits) as control:
            answer = ping_or_kill(control, limits)
            if answer is None:
                return
            check_target(target, info, control.pid)
            if answer.stays:
                raise DirectoryLocked(
                    f"{place.directory} is served already, by process {control.pid} since "
                    f"{info.since}: end that one first",
                    path=place.directory,
                    pid=control.pid,
                    since=info.since,
                )
            _tell_to_leave(control, target)
            _wait_until_left(control, info, place, time.monotonic() + limits.wait_s)
    except OwnerGone:
        place.remove_owner(info.pid)


def _wait_until_left(control: ControlLink, info: OwnerInfo, place: Place, end: float) -> None:
    """Return when the owner has left: it may still wait for libraries that it loads, and end."""
    while not control.wait(_PAUSE_S) and time.monotonic() < end:
        found = place.read_owner()
        if found is None or found.pid != info.pid:
            return


def _tell_to_leave(control: ControlLink, target: Target) -> None:
    try:
        # workers with another configuration start none in its place for a while
        control.ask(Leave(remora.__version__, target.digest))
    except OwnerSilent:
        control.kill("did not answer")
