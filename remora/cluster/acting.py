"""Changes of a memory by a command, or by the page with ``--allow-changes``.

The process that has the memory open does it, where there is one; otherwise it is done here, as the
owner of the directory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

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
_Done = TypeVar("_Done")


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

    async def _open_or(
        self, opened: AsyncExitStack, here: Callable[[], Awaitable[_Done]]
    ) -> BaseRuntime | _Done:
        """The memory through the processes that have it open, or the result of `here`.

        Another command may be about to open or to close the directory: both ways are tried again.

        Args:
            opened: closes the memory.
            here: needs the directory, and raises `DirectoryLocked` before it changes anything.
        """
        end = anyio.current_time() + _PATIENCE_S
        while True:
            try:
                memory = await opened.enter_async_context(self._opened())
                return await here() if memory is None else memory
            except (DirectoryLocked, OwnerFailed, OwnerUnreachable):
                if anyio.current_time() > end:
                    raise
                await anyio.sleep(_PAUSE_S)

    async def retry(self, ids: Sequence[str]) -> Changed:
        """Have dead letters run again: now, or when a server opens the directory.

        Raises:
            DirectoryLocked: a process owns the directory that does not answer.
            OwnerUnreachable: it answers no more, or is of an earlier release.
            NoDeadLetter, InvalidInput: one of `ids` is none; nothing was changed.
        """
        verb, durability = "retry_dead_letters([…])", self._config.journal.durability
        here = partial(
            change_dead_letters, self._directory, durability, verb, DeadLetters.retry, ids
        )
        async with AsyncExitStack() as opened:
            found = await self._open_or(opened, here)
            if isinstance(found, int):
                return Changed(found, open=False)
            return Changed(await found.retry_dead_letters(ids), open=True)

    async def drop(self, ids: Sequence[str]) -> Changed:
        """Drop dead letters permanently.

        Raises:
            DirectoryLocked, OwnerUnreachable, NoDeadLetter: see `retry`.
            InvalidInput: one of them can only be retried; nothing was changed.
        """

        async def check(jobs: Sequence[Job]) -> None:
            for job in jobs:
                check_droppable(job)

        verb, durability = "drop_dead_letters([…])", self._config.journal.durability
        here = partial(
            change_dead_letters,
            self._directory,
            durability,
            verb,
            DeadLetters.drop,
            ids,
            confirmed=check,
        )
        async with AsyncExitStack() as opened:
            found = await self._open_or(opened, here)
            if isinstance(found, int):
                return Changed(found, open=False)
            return Changed(await found.drop_dead_letters(ids), open=True)

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

            async def here() -> BaseRuntime:
                owned = open_owned(self._directory, self._config, journal_only=journal_only)
                memory = await opened.enter_async_context(owned)
                opened.push_async_callback(_finish_erasures, memory)
                return memory

            yield await self._open_or(opened, here)


async def _finish_erasures(memory: BaseRuntime) -> None:
    """Keep the promise of receipts: no server is there that would rewrite the files in time."""
    if memory.erasures():
        await memory.retry_erasures()
