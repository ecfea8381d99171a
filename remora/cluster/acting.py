"""Changes of a memory by a command, or by the page with ``--allow-changes``.

The process that has the memory open does it, where there is one; otherwise it is done here, as the
owner of the directory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from remora.api.base import BaseRuntime
from remora.api.dead_letters import DeadLetters, check_droppable
from remora.cluster.connected import ConnectedRuntime, connect_there
from remora.cluster.operating import change_dead_letters, open_owned
from remora.config import Config
from remora.errors import DirectoryLocked, OwnerFailed, OwnerUnreachable
from remora.runtime.jobs import Job
from remora.services.erasure import ErasureReceipt

_PATIENCE_S, _PAUSE_S = 3.0, 0.1


class Changed(msgspec.Struct, frozen=True):
    """How many dead letters were changed; whether a process has the memory open."""

    changed: int
    open: bool


class Actions:
    """Changes a memory.

    Args:
        directory: of the memory.
        config: the configuration of its owner.
    """

    def __init__(self, directory: Path, config: Config) -> None:
        self._directory = directory
        self._config = config

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[BaseRuntime | None]:
        """The memory through the processes that have it open; None if there is none."""
        memory = await connect_there(self._directory, self._config)
        if memory is None:
            yield None
            return
        async with memory:
            yield memory

    async def _enter(self, opened: AsyncExitStack, *, journal_only: bool) -> BaseRuntime:
        """Open the memory, there or here.

        Another command may be about to open or to close the directory: both ways are tried again.
        """
        end = anyio.current_time() + _PATIENCE_S
        while True:
            try:
                memory = await opened.enter_async_context(self._opened())
                if memory is not None:
                    return memory
                owned = open_owned(self._directory, self._config, journal_only=journal_only)
                memory = await opened.enter_async_context(owned)
            except (DirectoryLocked, OwnerFailed, OwnerUnreachable):
                if anyio.current_time() > end:
                    raise
                await anyio.sleep(_PAUSE_S)
            else:
                opened.push_async_callback(_finish_erasures, memory)
                return memory

    async def retry(self, ids: Sequence[str]) -> Changed:
        """Have dead letters run again: now, or when a server opens the directory.

        Raises:
            DirectoryLocked: a process owns the directory that does not answer.
            OwnerUnreachable: it answers no more, or is of an earlier release.
            NoDeadLetter, InvalidInput: one of `ids` is none; nothing was changed.
        """
        async with self._opened() as memory:
            if memory is not None:
                return Changed(await memory.retry_dead_letters(ids), open=True)
        verb = "retry_dead_letters([…])"
        durability = self._config.journal.durability
        count = await change_dead_letters(self._directory, durability, verb, DeadLetters.retry, ids)
        return Changed(count, open=False)

    async def drop(self, ids: Sequence[str]) -> Changed:
        """Drop dead letters permanently.

        Raises:
            DirectoryLocked, OwnerUnreachable, NoDeadLetter: see `retry`.
            InvalidInput: one of them can only be retried; nothing was changed.
        """
        async with self._opened() as memory:
            if memory is not None:
                return Changed(await memory.drop_dead_letters(ids), open=True)

        async def check(jobs: Sequence[Job]) -> None:
            for job in jobs:
                check_droppable(job)

        count = await change_dead_letters(
            self._directory,
            self._config.journal.durability,
            "drop_dead_letters([…])",
            DeadLetters.drop,
            ids,
            confirmed=check,
        )
        return Changed(count, open=False)

    async def forget(self, user: str, session: str | None) -> ErasureReceipt:
        """Erase a user, or one session, down to the bytes.

        Raises:
            DirectoryLocked, OwnerUnreachable: see `retry`.
            StorageError: see `remora.User.forget`.
        """
        async with self.open() as memory:
            who = memory.user(user)
            receipt = await (who if session is None else who.session(session)).forget()
            if isinstance(memory, ConnectedRuntime) or await memory.retry_erasures():
                return receipt
            return msgspec.structs.replace(receipt, erased_by=None)

    async def delete(self, user: str, session: str, ids: Sequence[str]) -> int:
        """Delete messages of a session; how many.

        Raises:
            DirectoryLocked, OwnerUnreachable: see `retry`.
            InvalidInput: there are none of these ids.
        """
        async with self.open() as memory:
            return (await memory.session(user, session).delete(ids)).deleted

    @asynccontextmanager
    async def open(self, *, journal_only: bool = True) -> AsyncIterator[BaseRuntime]:
        """The memory: through the processes that have it open, or else opened here.

        Args:
            journal_only: without long-term memory and models, if it is opened here.

        Raises:
            DirectoryLocked, OwnerUnreachable: see `retry`.
        """
        async with AsyncExitStack() as opened:
            yield await self._enter(opened, journal_only=journal_only)


async def _finish_erasures(memory: BaseRuntime) -> None:
    """Keep the promise of receipts: no server is there that would rewrite the files in time."""
    if memory.erasures():
        await memory.retry_erasures()
