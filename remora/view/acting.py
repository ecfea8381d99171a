"""What the page may change, where it was started with ``--allow-changes``.

All of it is done as the owner of the directory, so a server that owns it is in the way; the error
says what to call there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from remora.api.dead_letters import DeadLetters, check_droppable
from remora.cluster.operating import call_there, change_dead_letters, open_owned
from remora.config import Config
from remora.runtime.jobs import Job
from remora.services.erasure import ErasureReceipt

__all__ = ["Actions"]


class Actions:
    """Changes a memory directory that no process has open.

    Args:
        directory: of the memory.
        config: the configuration of its owner.
    """

    def __init__(self, directory: Path, config: Config) -> None:
        self._directory = directory
        self._config = config

    async def retry(self, ids: Sequence[str]) -> int:
        """Have dead letters run again when a server opens the directory; returns how many.

        Raises:
            DirectoryLocked: a server owns the directory.
            NoDeadLetter: one of `ids` is none; nothing was changed.
        """
        verb = "retry_dead_letters([…])"
        durability = self._config.journal.durability
        return await change_dead_letters(
            self._directory, durability, verb, DeadLetters.retry, list(ids)
        )

    async def drop(self, ids: Sequence[str]) -> int:
        """Drop dead letters permanently; returns how many.

        Raises:
            DirectoryLocked, NoDeadLetter: see `retry`.
            InvalidInput: one of them can only be retried; nothing was changed.
        """

        async def check(jobs: Sequence[Job]) -> None:
            for job in jobs:
                check_droppable(job)

        async def drop(dead: DeadLetters, own: Sequence[str] | None) -> int:
            return await dead.drop(own or ())

        return await change_dead_letters(
            self._directory,
            self._config.journal.durability,
            "drop_dead_letters([…])",
            drop,
            list(ids),
            confirmed=check,
        )

    async def forget(self, user: str, session: str | None) -> ErasureReceipt:
        """Erase a user, or one session, down to the bytes.

        Raises:
            DirectoryLocked: a server owns the directory.
            StorageError: see `remora.User.forget`.
        """
        verb = "user(…).forget()" if session is None else "session(…).forget()"
        with call_there(verb):
            async with open_owned(self._directory, self._config, journal_only=True) as memory:
                who = memory.user(user)
                return await (who if session is None else who.session(session)).forget()
