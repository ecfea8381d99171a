"""Writes that go on though their caller is cancelled; at an object store, not without end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from remora.errors import LongTermError

__all__ = ["Finishing"]


class Finishing:
    """Lets writes finish when a store is closed, until `limit` says how long that may take."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()
        self._deadline = math.inf

    def limit(self, seconds: float) -> None:
        """Give up what has not finished after so many seconds, also if it begins later."""
        self._deadline = anyio.current_time() + seconds
        for scope in self._scopes:
            scope.deadline = self._deadline

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Run the block though its task is cancelled.

        Raises:
            LongTermError: it was given up; whether it wrote anything is not known.
        """
        with anyio.CancelScope(shield=True, deadline=self._deadline) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise LongTermError("long-term memory was closed before it answered", retryable=True)
