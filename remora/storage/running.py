"""A journal without a runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from remora.storage.journal_port import Journal

__all__ = ["running_journal"]

AnyJournal = TypeVar("AnyJournal", bound=Journal)


@asynccontextmanager
async def running_journal(journal: AnyJournal) -> AsyncIterator[AnyJournal]:
    """Run an open journal, and close it at the end. What the body raises is raised as it is."""
    error: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(journal.run)
            try:
                yield journal
            except Exception as e:  # raised outside of the group, which would wrap it
                error = e
            tasks.cancel_scope.cancel()
        if error is not None:
            raise error
    finally:
        with anyio.CancelScope(shield=True):
            await journal.aclose()
