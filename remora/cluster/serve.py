"""``remora serve``: an owner in the foreground, which ends when it is told to."""

from __future__ import annotations

import os
import sys
import time

from remora.cluster.control import ControlLink, Leave, OwnerGone, OwnerSilent
from remora.cluster.owner import Owner
from remora.cluster.place import OwnerInfo, Place
from remora.cluster.spawn import Report, StartOrder, check_system, check_target, lock_now
from remora.cluster.target import Target, read_target
from remora.cluster.watch import open_control, ping_or_kill
from remora.errors import DirectoryLocked, OwnerUnreachable
from remora.tokens import load_encodings_later

__all__ = ["serve"]

_PAUSE_S = 0.02


def serve(text: str) -> int:
    """Own the memory of a target until SIGTERM or SIGINT; returns the exit code.

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
    path = [one or os.getcwd() for one in sys.path]  # noqa: PTH109  # text, as sys.path has it
    order = StartOrder(target.text, str(target.directory), path)
    owner = Owner(order, _ignore, stays=True)
    try:
        _take_place(owner, place, target)
        return owner.serve()
    finally:
        owner.release()


def _ignore(report: Report) -> None:
    del report  # the log says it


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
            _tell_to_leave(control)
            _wait_until_left(control, info, place, time.monotonic() + limits.wait_s)
    except OwnerGone:
        return


def _wait_until_left(control: ControlLink, info: OwnerInfo, place: Place, end: float) -> None:
    """Return when the owner has left: it may still wait for libraries that it loads, and end."""
    while not control.wait(_PAUSE_S) and time.monotonic() < end:
        found = place.read_owner()
        if found is None or found.pid != info.pid:
            return


def _tell_to_leave(control: ControlLink) -> None:
    try:
        control.ask(Leave())
    except OwnerSilent:
        control.kill("did not answer")
