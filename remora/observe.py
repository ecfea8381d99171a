"""What a running process says of the memory that it has open, for its operators.

A process that has a memory directory open answers others of the same account, at a socket in the
directory: a `remora.Runtime`, and the owner of a memory that workers share::

    status = remora.observe.ask("memory/")
    if status is not None and status.statistics is not None:
        print(status.health.ready, status.statistics.registry.live)

It only reads, and neither waits for the process's event loop nor holds it up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from remora.api.status import MAX_SESSIONS, FullMailbox, RuntimeStatus, StatusQuestion
from remora.errors import DirectoryUnusable, InvalidInput, OwnerUnreachable
from remora.faces import publish
from remora.services.answering import SOCKET_NAME
from remora.services.arguments import check_path, check_seconds
from remora.storage.sockets import connect_socket, has_sockets, is_ours, peer_of

__all__ = ["FullMailbox", "RuntimeStatus", "ask"]

_PART_BYTES = 64 << 10
_MOST_BYTES = 8 << 20
_decode = msgspec.json.Decoder(RuntimeStatus).decode


def ask(
    directory: str | Path,
    *,
    sessions: Iterable[tuple[str, str]] = (),
    timeout_s: float = 2.0,
) -> RuntimeStatus | None:
    """What the process says that has a memory directory open. Blocks, at most for `timeout_s`.

    Args:
        directory: the memory's.
        sessions: users and sessions, at most 1,000: `RuntimeStatus.live` has those in memory.
        timeout_s: seconds to wait for the answer.

    Returns:
        None if no process answers: none has it open, or it is a release of remora that does not.

    Raises:
        InvalidInput: an argument cannot be that, or the system is not Linux.
        DirectoryUnusable: there is no such directory, or this account may not look into it.
        OwnerUnreachable: the process does not answer, or belongs to another account.
    """
    path = check_path(directory, "directory")
    limit_s = check_seconds(timeout_s, "timeout_s") or 0.0
    asked = tuple((str(user), str(session)) for user, session in sessions)
    if len(asked) > MAX_SESSIONS:
        raise InvalidInput(
            f"at most {MAX_SESSIONS:,} sessions can be asked for, not {len(asked):,}"
        )
    if not has_sockets():
        raise InvalidInput("a running process can be asked on Linux only")
    _check_directory(path)
    question = msgspec.json.encode(StatusQuestion(asked)) + b"\n"
    try:
        return _decode(_exchange(path / SOCKET_NAME, question, limit_s))
    except (FileNotFoundError, ConnectionRefusedError):  # none, or one that was killed
        return None
    except TimeoutError as e:
        raise OwnerUnreachable(
            f"the process that has {path} open did not answer within {limit_s:g} s"
        ) from e
    except PermissionError as e:
        raise DirectoryUnusable(f"{path} is not this account's: {e.strerror}", path=path) from e
    except ConnectionError as e:
        raise OwnerUnreachable(
            f"the process that has {path} open closed the connection: it is about to close, or too "
            "many ask"
        ) from e
    except (OSError, msgspec.DecodeError) as e:
        raise OwnerUnreachable(f"the process that has {path} open did not answer: {e}") from e


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
        uid = peer_of(connection)[1]
        if not is_ours(uid):
            raise OwnerUnreachable(f"the process at {path} belongs to another account ({uid})")
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


publish(__name__, __all__, globals())
