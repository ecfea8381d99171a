"""A connection for what is no journal's: made when it is needed, and again when it broke."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import asyncpg

from remora.storage.postgres.connection import Address, connect
from remora.storage.postgres.opening import open_error

_Found = TypeVar("_Found")


class Database:
    """One connection. Use it with ``with``, or `close` it.

    Args:
        address: of the database.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection: asyncpg.Connection[Any] | None = None

    async def use(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[_Found]]) -> _Found:
        """Return what `work` returns. If it fails, the next call connects again.

        Raises:
            ConfigError, StorageError: the database cannot be used; the text says why.
        """
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect(self.address)
            return await work(self._connection)
        except BaseException as e:
            self.close()
            error = open_error(e, self.address)
            if error is None:
                raise
            raise error from e

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
