"""Finding the owner of a memory, or starting one.

The owner is a session of its own: no signal to a worker or its group reaches it, and it lives on
when the worker that started it ends. One worker at a time starts an owner; the others wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

import remora
from remora.cluster.control import Answer, ControlLink, Leave, OwnerGone, OwnerSilent
from remora.cluster.place import OwnerInfo, Place, find_places
from remora.cluster.sharding import WHOLE, Share, another_count
from remora.cluster.target import Target
from remora.cluster.watch import open_control, ping_or_kill
from remora.errors import InvalidInput, OwnerFailed, OwnerUnreachable
from remora.logging import get_logger
from remora.storage.files import open_private, unusable_directory
from remora.system.clock import boot_time
from remora.system.files import read_whole, write_whole
from remora.system.forks import closing
from remora.system.locks import lock_file, unlock_file
from remora.system.processes import CAN_HOLD_PROCESSES, start_apart

_logger = get_logger(__name__)
COMMAND = (sys.executable, "-P", "-m", "remora.cluster")
_PAUSE_S = 0.02
_DEATHS_S = 30.0
_STANDBY_S = 1.0
_LASTING = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.EISDIR})


class StartOrder(msgspec.Struct, frozen=True):
    """The order to an owner that is started, as JSON on its standard input.

    Attributes:
        target: see `read_target`.
        directory: of the memory.
        path: where it finds modules, `sys.path`.
        standby: it waits until the present owner dies.
        number: of the owner, among those that own the memory together.
        owners: how many these are.
        stays: it takes the place of one that a worker started, and ends with the process that
            started it, which keeps its standard input open.
    """

    target: str
    directory: str
    path: list[str]
    standby: bool = False
    number: int = 0
    owners: int = 1
    stays: bool = False

    @property
    def share(self) -> Share:
        """Which shards are its own."""
        return Share(self.number, self.owners)

    @property
    def place(self) -> Place:
        """The directory, and its seat there."""
        return Place(Path(self.directory), self.number)


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """The report of an owner that has started, or not, as JSON on its standard output.

    Attributes:
        serving: it serves.
        taken: there is another owner.
        failed: why it cannot open the memory.
    """

    serving: bool = False
    taken: bool = False
    failed: str = ""


def check_system() -> None:
    """Check that the system has what this needs.

    Raises:
        InvalidInput: it has not.
    """
    if not CAN_HOLD_PROCESSES:
        raise InvalidInput(
            "remora.connect needs Linux 5.3 or newer, and a Python that was built for it: use "
            "these, or open the memory in one process, with remora.Runtime"
        )


def check_target(target: Target, info: OwnerInfo, pid: int) -> None:
    """Check that an owner that lives serves the same target.

    Raises:
        InvalidInput: it serves another one, with other hooks perhaps.
    """
    if info.target != target.text:
        raise InvalidInput(
            f"{target.directory} is served for the target {info.target!r} (process {pid}), not "
            f"{target.text!r}, whose configuration and hooks may differ: use that one, or end the "
            "process first"
        )


@contextlib.contextmanager
def lock_now(path: Path) -> Iterator[int | None]:
    """Hold the lock of a file, whose descriptor this is; None if another process holds it."""
    descriptor = open_private(path, os.O_RDWR)
    with closing(descriptor):
        try:
            lock_file(descriptor)
        except BlockingIOError:
            yield None
            return
        try:
            yield descriptor
        finally:
            unlock_file(descriptor)  # a process that was forked may have it open


class OwnerFinder:
    """Finds the owner of a memory, or starts one; everything blocks.

    Args:
        target: what the worker connects to.
        place: its directory, and the owner's seat there.
        share: which shards the owner has.
        command: starts an owner.
    """

    def __init__(
        self,
        target: Target,
        place: Place,
        share: Share = WHOLE,
        *,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._target = target
        self._place = place
        self._share = share
        self._limits = target.config.cluster
        self._command = command
        self._began = boot_time()
        self._starting = 0

    def find(self) -> OwnerInfo:
        """An owner that serves.

        Raises:
            OwnerUnreachable: none did within `cluster.wait_s`.
            OwnerFailed: owners die, or cannot open the memory.
            InvalidInput: the owner has another target.
            DirectoryUnusable: see `Place.prepare`; or a file in it cannot be opened.
        """
        self._place.prepare()
        try:
            return self._find()
        except OSError as e:
            if e.errno in _LASTING:
                raise unusable_directory(self._place.directory, e) from e
            raise

    def _find(self) -> OwnerInfo:
        began = time.monotonic()
        end = began + self._limits.wait_s
        while True:
            found, absent = self._look()
            if found is not None:
                return found
            if absent and self._limits.start_owner and self._is_our_turn(began):
                with lock_now(self._place.spawn_lock) as held:
                    if held is not None:
                        self._start_unless_found(held, end)
                        continue
            if time.monotonic() > end:
                raise self._unreachable()
            time.sleep(_PAUSE_S)

    def _unreachable(self) -> OwnerUnreachable:
        hint = f"the end of its log, {self._place.log}, may say why"
        if self._starting:
            hint = f"process {self._starting} starts, and is left to finish; {hint}"
        elif not self._limits.start_owner:
            hint = (
                f"cluster.start_owner is false: start one with `remora serve {self._target.text}`"
            )
        return OwnerUnreachable(
            f"no owner of {self._place.directory} answered within cluster.wait_s "
            f"({self._limits.wait_s:g} s); {hint}"
        )

    # -- an owner that is there --------------------------------------------------------------------

    def _look(self) -> tuple[OwnerInfo | None, bool]:
        """The owner, if one serves this worker; otherwise whether there is none at all."""
        self._starting = 0
        info = self._place.read_owner()
        if info is None:
            return None, self._lock_is_free()
        try:
            with open_control(info, self._limits) as control:
                answer = ping_or_kill(control, self._limits)
                if answer is not None and answer.phase == "starting":
                    self._starting = control.pid
                if answer is None or answer.phase != "serving":
                    return None, answer is None
                return (info, False) if self._suits(info, control, answer) else (None, False)
        except OwnerGone:
            return None, self._lock_is_free()

    def _lock_is_free(self) -> bool:
        with lock_now(self._place.owner_lock) as held:
            return held is not None

    def _suits(self, info: OwnerInfo, control: ControlLink, answer: Answer) -> bool:
        """Return whether this worker can use the owner.

        If it is older than the worker, it is replaced.

        A worker with an older configuration is served: it is about to be replaced itself.
        """
        check_target(self._target, info, control.pid)
        owners, here = info.owners, self._share.owners
        newer = _numbers(remora.__version__) > _numbers(info.release)
        older = _numbers(remora.__version__) < _numbers(info.release)
        changed = info.digest != self._target.digest and self._began > info.began
        if owners != here and (older or answer.stays or not (newer or changed)):
            raise another_count(owners, here)
        if older or not (newer or changed):
            return True
        if answer.stays:
            _logger.warning(
                "owner_differs",
                pid=control.pid,
                release=info.release,
                hint="it was started with remora serve: restart it to use the new release or "
                "configuration",
            )
            return True
        _logger.info("owner_replaced", pid=control.pid, release=info.release)
        with contextlib.suppress(OwnerGone, OwnerSilent):
            control.ask(Leave(remora.__version__, self._target.digest))
        control.wait(self._limits.silent_s)
        return False

    def _is_our_turn(self, began: float) -> bool:
        """Return whether neither a standby nor another worker makes the owner."""
        early = self._limits.standby and time.monotonic() - began < _STANDBY_S
        if early and self._place.read_owner() is not None:  # it was killed, or died
            return False
        wanted = self._place.read_next()
        ours = (remora.__version__, self._target.digest)
        return wanted is None or (wanted.release, wanted.digest) == ours

    # -- a new one ---------------------------------------------------------------------------------

    def _start_unless_found(self, held: int, end: float) -> None:
        found, absent = self._look()
        if found is not None or not absent:
            return
        self._end_others(end)
        deaths = _Deaths(held)
        if (left := self._place.read_owner()) is not None:  # it did not remove it: it was killed
            deaths.add()
            self._place.remove_owner(left.pid)
        if deaths.count >= self._limits.max_deaths:
            raise self._failed(f"{deaths.count} owners have died within {_DEATHS_S:g} s")
        report = self._start(end)
        if report is None:
            deaths.add()
            if deaths.count >= self._limits.max_deaths:
                raise self._failed(f"{deaths.count} owners have died within {_DEATHS_S:g} s")
            time.sleep(0.1 * deaths.count)
        elif report.failed:
            raise self._failed(report.failed)

    def _end_others(self, end: float) -> None:
        """End owners that have other shards than they should have next to this one."""
        for place in find_places(self._place.directory):
            info = place.read_owner()
            if info is None or info.owners == self._share.owners:
                continue
            try:
                with open_control(info, self._limits) as control:
                    answer = ping_or_kill(control, self._limits)
                    if answer is not None:
                        self._suits(info, control, answer)  # no: it is told to leave, or raises
                    control.wait(max(0.0, end - time.monotonic()))
            except OwnerGone:
                pass
            place.remove_owner(info.pid)

    def _failed(self, why: str) -> OwnerFailed:
        log = self._place.read_log_end()
        shown = f"; the end of {self._place.log}:\n{log}" if log else ""
        return OwnerFailed(
            f"no owner of {self._place.directory} could be started: {why}{shown}", log=log
        )

    def _start(self, end: float) -> Report | None:
        """Start an owner, and wait for what it says; None if it died before that."""
        self._place.bound_log()
        order = StartOrder(
            self._target.text,
            str(self._place.directory),
            [p or str(Path.cwd()) for p in sys.path],
            number=self._share.number,
            owners=self._share.owners,
        )
        process = start_process(self._command, order, self._place)
        reports = queue.SimpleQueue[bytes]()
        reader = partial(_read_report, process, reports)
        threading.Thread(target=reader, name="remora.reaper", daemon=True).start()
        try:
            line = reports.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            self._starting = process.pid
            leave = partial(self._leave_to_start, process)
            threading.Thread(target=leave, name="remora.starting", daemon=True).start()
            raise self._unreachable() from None
        try:
            return msgspec.json.decode(line, type=Report)
        except msgspec.DecodeError:
            return None

    def _leave_to_start(self, process: subprocess.Popen[bytes]) -> None:
        """Let an owner finish that takes long: it may bring a journal to a newer format.

        One that answers no ping is killed by those who look for it. One that cannot be asked yet
        is killed here, after the same time.
        """
        try:
            process.wait(self._limits.stuck_s)
        except subprocess.TimeoutExpired:
            info = self._place.read_owner()
            if info is None or info.pid != process.pid:
                process.kill()
            process.wait()


def start_process(
    command: Sequence[str], order: StartOrder, place: Place
) -> subprocess.Popen[bytes]:
    """Start an owner; its reports come on its standard output."""
    log = place.open_log()
    try:
        process = start_apart(
            [*command, order.directory],
            {"PYTHONPATH": os.pathsep.join(order.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    finally:
        os.close(log)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as given:
        given.write(msgspec.json.encode(order) + b"\n")
    return process


def _read_report(process: subprocess.Popen[bytes], reports: queue.SimpleQueue[bytes]) -> None:
    """Read what an owner says when it has started, and wait for its end."""
    assert process.stdout is not None
    with process.stdout as output:
        reports.put(output.readline())
    process.wait()


class _Deaths:
    """When owners died, in the file that is locked while one is started.

    Args:
        descriptor: of the file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        now = boot_time()
        try:
            times = json.loads(read_whole(descriptor, 4_096) or b"[]")
            self._times = [float(one) for one in times if 0 <= now - float(one) < _DEATHS_S]
        except (ValueError, TypeError):
            self._times = []

    @property
    def count(self) -> int:
        """How many there were lately."""
        return len(self._times)

    def add(self) -> None:
        """One has died now."""
        self._times = [*self._times[-20:], boot_time()]
        write_whole(self._descriptor, json.dumps(self._times).encode())


def _numbers(release: str) -> tuple[int, ...]:
    """A release's numbers, for comparison."""
    return tuple(int(part) for part in release.split(".") if part.isdecimal())
