"""The files by which workers and owners of a memory find each other.

All are in the memory directory, for its account alone:

``owner.lock``
    Locked by the owner as long as it lives: one owner at a time.
``owner.json``
    Says who owns the memory, and names the owner's socket.
``spawn.lock``
    Locked by the worker that starts an owner; holds when owners died.
``next-owner.json``
    An owner that left for a newer release says so: older workers start no owner for a while.
``owner.log``
    What an owner that a worker started writes; bounded.

Where several processes own the memory, each has some of its shards and a *seat*: a number, and
these files. The first seat has the names above, the second has ``owner-1.lock`` and so on.

Everything here blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TypeVar

import msgspec

from remora.errors import DirectoryUnusable
from remora.services.answering import socket_name
from remora.storage.files import (
    make_private_directory,
    open_private,
    refuse_links,
    unusable_directory,
)
from remora.system.clock import boot_time
from remora.system.files import replace

__all__ = [
    "NextOwner",
    "OwnerInfo",
    "Place",
    "file_system",
    "find_owners",
    "find_places",
]

_Info = TypeVar("_Info", bound=msgspec.Struct)
_MOST_LOG_BYTES = 1 << 20
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre", "beegfs", "gpfs"}
    | {"fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.rclone"}
)
_MOUNTS = Path("/proc/self/mountinfo")
_INFO = re.compile(r"owner(?:-(\d+))?\.json")


class OwnerInfo(msgspec.Struct, frozen=True):
    """The content of ``owner.json``.

    Attributes:
        pid: of the owner, in its own namespace.
        since: when it became the owner (ISO 8601).
        socket: path of its socket.
        target: what it was started with.
        release: its release of remora.
        digest: of its configuration.
        began: when it became the owner, in seconds since the machine started.
        owners: how many own the memory.
    """

    pid: int
    since: str
    socket: str
    target: str
    release: str
    digest: str
    began: float
    owners: int = 1


class NextOwner(msgspec.Struct, frozen=True):
    """The content of ``next-owner.json``.

    Attributes:
        release: of the next owner.
        digest: of its configuration.
        until: when the others may start an owner again, in seconds since the machine started.
    """

    release: str
    digest: str
    until: float


class Place:
    """A memory directory, as workers and an owner see it.

    Args:
        directory: an absolute path.
        number: of the owner's seat.
    """

    def __init__(self, directory: Path, number: int = 0) -> None:
        seat = f"-{number}" if number else ""
        self.directory = directory
        self.number = number
        self.owner_lock = directory / f"owner{seat}.lock"
        self.spawn_lock = directory / f"spawn{seat}.lock"
        self.log = directory / f"owner{seat}.log"
        self.socket = directory / socket_name(number)
        self.info = directory / f"owner{seat}.json"
        self._next = directory / f"next-owner{seat}.json"

    def prepare(self) -> None:
        """Make the directory if it does not exist.

        Raises:
            DirectoryUnusable: it cannot be made or written, has a symbolic link in place of a file
                of remora's, or is on a network file system.
        """
        try:
            make_private_directory(self.directory)
            kind = file_system(self.directory)
            if not os.access(self.directory, os.W_OK | os.X_OK):
                raise PermissionError(13, "no permission to write")
        except OSError as e:
            raise unusable_directory(self.directory, e) from e
        refuse_links(self.directory)
        if kind in _NETWORK:
            raise DirectoryUnusable(
                f"{self.directory} is on a network file system ({kind}), where locks and SQLite's "
                "log do not protect a memory from a second machine: choose a local disk",
                path=self.directory,
            )

    # -- who owns it -------------------------------------------------------------------------------

    def read_owner(self) -> OwnerInfo | None:
        """Who owns the memory, or did when it died; None if no owner says so."""
        return _read(self.info, OwnerInfo)

    def write_owner(self, info: OwnerInfo) -> None:
        """Say who owns the memory."""
        _write(self.info, info)
        self._next.unlink(missing_ok=True)

    def remove_owner(self, pid: int) -> None:
        """Say that this owner has left."""
        found = self.read_owner()
        if found is not None and found.pid == pid:
            self.info.unlink(missing_ok=True)

    def read_next(self) -> NextOwner | None:
        """Who becomes the next owner; None if anybody may."""
        found = _read(self._next, NextOwner)
        # a machine that was started again counts from zero
        return found if found is not None and 0 < found.until - boot_time() < 60 else None

    def write_next(self, next_owner: NextOwner) -> None:
        """Say who becomes the next owner."""
        _write(self._next, next_owner)

    # -- log ---------------------------------------------------------------------------------------

    def open_log(self) -> int:
        """The descriptor of the owner's log, to append to."""
        return open_private(self.log, os.O_WRONLY | os.O_APPEND)

    def bound_log(self) -> None:
        """Begin the log again when it is long; what it held is kept once, as ``owner.log.1``."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > _MOST_LOG_BYTES:
                kept = self.read_log_end(_MOST_LOG_BYTES)
                with os.fdopen(
                    open_private(
                        self.log.with_name(f"{self.log.name}.1"), os.O_WRONLY | os.O_TRUNC
                    ),
                    "w",
                ) as file:
                    file.write(kept)
                os.truncate(self.log, 0)  # processes append: the next line is the first

    def read_log_end(self, most: int = 4_000) -> str:
        """The last bytes of the log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - most))
                return file.read(most).decode(errors="replace")
        except OSError:
            return ""


def find_owners(directory: Path) -> list[OwnerInfo]:
    """Return what the seats of a directory say of their owners, by number."""
    return [info for one in find_places(directory) if (info := one.read_owner()) is not None]


def find_places(directory: Path) -> list[Place]:
    """The seats of a directory that say who owns them, or did when it died, by number."""
    try:
        names = [one.name for one in directory.iterdir()]
    except OSError:
        return []
    found = [match for one in names if (match := _INFO.fullmatch(one))]
    return [Place(directory, number) for number in sorted(int(one[1] or 0) for one in found)]


def file_system(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of file system that a path is on, as the system calls it; empty if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    real = str(path.resolve())
    best, kind = -1, ""
    for point, found in map(_parse_mount, lines):
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of two at one point, the later hides the earlier
            best, kind = len(point), found
    return kind


def _parse_mount(line: str) -> tuple[str, str]:
    """Where it is mounted, and the kind of file system."""
    before, _, after = line.partition(" - ")
    point = before.split(" ")[4]
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, character)
    return point, after.split(" ")[0]


def _read(path: Path, kind: type[_Info]) -> _Info | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):  # ValidationError is one: written by something else
        return None


def _write(path: Path, value: msgspec.Struct) -> None:
    """Replace a file as a whole."""
    staging = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(open_private(staging, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(msgspec.json.encode(value))
    replace(staging, path)
