"""The state of a running process's memory, for its operators.

A process that has a memory directory open answers others of the same account, at a socket in the
directory: a `remora.Runtime`, and the owner of a memory that workers share::

    status = remora.observe.ask("memory/")
    if status is not None and status.statistics is not None:
        print(status.health.ready, status.statistics.registry.live)

`ask` only reads, and neither waits for the process's event loop nor holds it up.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from remora.api.status import MAX_SESSIONS, FullMailbox, RuntimeStatus, StatusQuestion, ask_status
from remora.errors import InvalidInput
from remora.faces import publish
from remora.services.arguments import check_path, check_seconds

__all__ = ["FullMailbox", "RuntimeStatus", "ask"]


def ask(
    directory: str | Path,
    *,
    sessions: Iterable[tuple[str, str]] = (),
    timeout_s: float = 2.0,
) -> RuntimeStatus | None:
    """Return what the process says that has a memory directory open.

    Blocks, at most for `timeout_s`.

    Args:
        directory: the memory's.
        sessions: users and sessions, at most 1,000: `RuntimeStatus.live` has those in memory.
        timeout_s: seconds to wait for the answer.

    Returns:
        None if no process answers: none has it open, or it is a release of remora that does not.

    Raises:
        InvalidInput: an argument cannot be that.
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
    return ask_status(path, StatusQuestion(asked), limit_s)


publish(__name__, __all__, globals())
