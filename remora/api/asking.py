"""Asks the process that has a memory open what it knows."""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec

from remora.api.status import RuntimeStatus, StatusQuestion, merge_statuses
from remora.errors import DirectoryUnusable, OwnerUnreachable
from remora.services.answering import socket_name
from remora.system.sockets import connect_socket

_PART_BYTES = 64 << 10
_SOCKET = re.compile(r"owner-(\d+)\.sock")
_MOST_BYTES = 8 << 20


def find_answering(directory: Path) -> list[int]:
    """The numbers of the processes that answer for a directory; that of the first always is."""
    try:
        names = [one.name for one in directory.iterdir()]
    except OSError:
        return [0]
    found = [match for one in names if (match := _SOCKET.fullmatch(one))]
    return [0, *sorted(int(one[1]) for one in found)]


def ask_owner(directory: Path, question: bytes, limit_s: float, number: int = 0) -> bytes | None:
    """Ask one line; returns the line that is answered. Blocks, at most for `limit_s`.

    Args:
        directory: the memory's.
        question: without the end of the line.
        limit_s: seconds to wait for the answer.
        number: of the process among those that own the memory together.

    Returns:
        None if no process answers: none has it open, or it is a release of remora that does not.

    Raises:
        DirectoryUnusable: there is no such directory, or this account may not look into it.
        OwnerUnreachable: the process does not answer, or belongs to another account.
    """
    _check_directory(directory)
    try:
        return _exchange(directory / socket_name(number), question + b"\n", limit_s)
    except OwnerUnreachable:  # of another account
        raise
    except (FileNotFoundError, ConnectionRefusedError):  # none, or one that was killed
        return None
    except TimeoutError as e:
        raise OwnerUnreachable(
            f"the process that has {directory} open did not answer within {limit_s:g} s"
        ) from e
    except PermissionError as e:
        raise DirectoryUnusable(
            f"{directory} is not this account's: {e.strerror}", path=directory
        ) from e
    except ConnectionError as e:
        raise OwnerUnreachable(
            f"the process that has {directory} open closed the connection: it is about to close, "
            "or too many ask"
        ) from e
    except OSError as e:
        raise OwnerUnreachable(f"the process that has {directory} open did not answer: {e}") from e


def _check_directory(path: Path) -> None:
    try:
        is_directory = path.is_dir()
        next(path.iterdir(), None)
    except PermissionError as e:
        raise DirectoryUnusable(f"{path} cannot be read: {e.strerror}", path=path) from e
    except OSError:
        is_directory = False
    if not is_directory:
        raise DirectoryUnusable(f"there is no directory {path}", path=path)


def _exchange(path: Path, question: bytes, limit_s: float) -> bytes:
    """Ask one line; returns the line that is answered.

    Raises:
        TimeoutError: not in time.
        OSError: nobody answers.
        OwnerUnreachable: it is another account's process.
    """
    until = time.monotonic() + limit_s
    with connect_socket(path, limit_s) as connection:
        connection.sendall(question)
        parts: list[bytes] = []
        size = 0
        while not parts or not parts[-1].endswith(b"\n"):
            connection.settimeout(max(until - time.monotonic(), 0.001))
            data = connection.recv(_PART_BYTES)
            size += len(data)
            if not data or size > _MOST_BYTES:
                raise ConnectionAbortedError
            parts.append(data)
        return b"".join(parts)


_decode_status = msgspec.json.Decoder(RuntimeStatus).decode


def ask_status(directory: Path, question: StatusQuestion, limit_s: float) -> RuntimeStatus | None:
    """Return what the process says, or several together if each owns a part; blocks.

    See `ask_owner`, also for errors.
    """
    asked = msgspec.json.encode(question)
    said = [ask_owner(directory, asked, limit_s, one) for one in find_answering(directory)]
    try:
        found = [_decode_status(one) for one in said if one is not None]
        return merge_statuses(found) if found else None
    except msgspec.DecodeError as e:
        raise OwnerUnreachable(f"the process that has {directory} open did not answer: {e}") from e
