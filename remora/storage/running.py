"""A journal, or a store, without a runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from remora.storage.journal_port import Journal

AnyJournal = TypeVar("AnyJournal", bound=Journal)


@asynccontextmanager
async def running(run: Callable[[], Coroutine[object, object, object]]) -> AsyncIterator[None]:
    """Run a function that does not end while the body runs, and cancel it at the end.

    What the body raises is raised as it is, not in a group.
    """
    error: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            yield
        except Exception as e:  # raised outside of the group, which would wrap it
            error = e
        tasks.cancel_scope.cancel()
    if error is not None:
        raise error


@asynccontextmanager
async def running_journal(journal: AnyJournal) -> AsyncIterator[AnyJournal]:
    """Run an open journal, and close it at the end. What the body raises is raised as it is."""
    try:
        async with running(journal.run):
            yield journal
    finally:
        with anyio.CancelScope(shield=True):
            await journal.aclose()
