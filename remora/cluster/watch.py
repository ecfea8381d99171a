"""Watching an owner: one that hangs is killed, so that another can take over."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from remora.cluster.control import Answer, ControlLink, OwnerGone, OwnerSilent
from remora.cluster.place import OwnerInfo, find_owners
from remora.config import ClusterConfig
from remora.errors import OwnerUnreachable
from remora.logging import get_logger

_logger = get_logger(__name__)
_PING_S = 0.5


def open_control(info: OwnerInfo, limits: ClusterConfig) -> ControlLink:
    """A connection for control to an owner.

    Raises:
        OwnerGone: nobody listens there.
        OwnerUnreachable: it belongs to another account.
    """
    return ControlLink(info.socket, limits.silent_s, limits.stuck_s)


def count_live_owners(directory: Path, limits: ClusterConfig) -> int:
    """How many processes own a memory together; 1 if none is there. Blocks.

    Files of owners that were killed say nothing of those that live.
    """
    found = 1
    for info in find_owners(directory):
        with suppress(OwnerGone), open_control(info, limits):
            found = max(found, info.owners)
    return found


def ping_or_kill(control: ControlLink, limits: ClusterConfig) -> Answer | None:
    """The owner's answer to a ping; None if it hung, and was killed. Blocks.

    Raises:
        OwnerGone: it has ended.
        OwnerUnreachable: it hangs, and cannot be killed.
    """
    try:
        answer = control.ask()
    except OwnerSilent:
        control.kill(f"did not answer for {limits.silent_s:g} s")
        return None
    if answer.stuck_s > limits.stuck_s:
        control.kill(f"has been stuck for {answer.stuck_s:.0f} s")
        return None
    return answer


class OwnerWatch(threading.Thread):
    """Pings an owner until it ends, or until `stop`.

    A thread: the worker's event loop may be busy, and then has no time to judge others.
    """

    def __init__(self, info: OwnerInfo, limits: ClusterConfig) -> None:
        super().__init__(name="remora.watch", daemon=True)
        self._info = info
        self._limits = limits
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End; does not wait."""
        self._stopped.set()

    def run(self) -> None:
        """Ping."""
        try:
            with open_control(self._info, self._limits) as control:
                while not self._stopped.wait(_PING_S):
                    if ping_or_kill(control, self._limits) is None:
                        return
        except OwnerGone:
            return
        except OwnerUnreachable as e:
            _logger.error("owner_not_watched", error=str(e))
