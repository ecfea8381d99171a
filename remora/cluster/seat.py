"""The owner's possessions from its start to its end: the lock, its sockets, and its reports.

Everything here blocks.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import remora
from remora.cluster.control import Control, Leave
from remora.cluster.place import NextOwner, OwnerInfo, Place, boot_time
from remora.services.answering import AnswerThread
from remora.storage.forks import give_up_in_children, keep_in_children
from remora.storage.lock import keep_owner_file
from remora.storage.private import open_private

_TRIES_S = 1.0
_PAUSE_S = 0.02
_NEXT_OWNER_S = 10.0


class Seat:
    """Of the owner of a memory; one process at a time has it.

    Args:
        place: the directory, and which seat.
        owners: how many processes own the memory.
        target: what this owner was started with.
        stays: it was started by hand; see `Answer`.
        logs: it writes to ``owner.log``.

    Attributes:
        control: answers pings, once the owner is announced.
    """

    control: Control

    def __init__(
        self, place: Place, target: str, *, owners: int = 1, stays: bool, logs: bool
    ) -> None:
        self.place = place
        self._stays = stays
        self._logs = logs
        self._held = ExitStack()
        self._next: NextOwner | None = None
        self._files: dict[Path, int] = {}
        self.info = OwnerInfo(
            pid=os.getpid(),
            since="",
            socket="",
            target=target,
            release=remora.__version__,
            digest="",
            began=0.0,
            owners=owners,
        )

    def take(self, *, wait: bool = False) -> bool:
        """Become the owner; whether it did. With `wait`, as soon as there is no other."""
        descriptor = open_private(self.place.owner_lock, os.O_RDWR)
        give_up_in_children(descriptor)
        end = time.monotonic() + _TRIES_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                if time.monotonic() > end:  # those who look whether it is free hold it, too
                    keep_in_children(descriptor)
                    os.close(descriptor)
                    return False
                time.sleep(_PAUSE_S)
            else:
                self._held.callback(_unlock, descriptor)
                return True

    def announce(self, on_leave: Callable[[Leave], None]) -> AnswerThread:
        """Say who owns the memory, and answer pings; returns the thread that does.

        Args:
            on_leave: called in the thread of the event loop, see `Control.attach`.

        Raises:
            OSError: the directory takes no sockets.
        """
        path = self.place.socket
        self.control = Control(on_leave, stays=self._stays)
        tick = self.place.bound_log if self._logs else _do_nothing
        thread = AnswerThread(path, self.control.answer, tick)
        self._held.callback(thread.stop)
        thread.start()
        self.info = msgspec.structs.replace(
            self.info,
            socket=str(path),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            began=boot_time(),
        )
        self._held.callback(self.place.remove_owner, self.info.pid)
        self.place.write_owner(self.info)
        self._held.enter_context(keep_owner_file(self.place.directory))
        self._files = {one: one.stat().st_ino for one in (path, self.place.owner_lock)}
        return thread

    def find_missing(self) -> str | None:
        """The path of a file without which no new worker finds this owner, and which has gone."""
        for path, number in self._files.items():
            if _number_of(path) != number:
                return str(path)
        found = self.place.read_owner()
        return None if found is not None and found.pid == self.info.pid else str(self.place.info)

    def serve(self, digest: str) -> None:
        """Say that requests are served from now on, with a configuration of this digest."""
        self.info = msgspec.structs.replace(self.info, digest=digest)
        self.place.write_owner(self.info)
        self.control.phase = "serving"

    def leave(self, message: Leave | None = None) -> None:
        """Say that no more requests are accepted; `message` says who comes next."""
        self.control.phase = "leaving"
        if message is not None and message.release:
            until = boot_time() + _NEXT_OWNER_S
            self._next = NextOwner(message.release, message.digest, until)

    def release(self) -> None:
        """Let another process become the owner."""
        if self._next is not None:
            self.place.write_next(self._next)
        self._held.close()


def _number_of(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may have the file open
    keep_in_children(descriptor)
    os.close(descriptor)


def _do_nothing() -> None: ...
