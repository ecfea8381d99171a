"""A journal without a runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from remora.storage.ports import Journal

__all__ = ["committing"]

AnyJournal = TypeVar("AnyJournal", bound=Journal)


@asynccontextmanager
async def committing(journal: AnyJournal) -> AsyncIterator[AnyJournal]:
    """An open journal that commits meanwhile, and is closed in the end.

    What the body raises comes out as it is.
    """
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
