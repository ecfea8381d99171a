"""What the harness sees of a library. Standard library only."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.text import role_of

__all__ = ["BUDGET", "RECENT", "Store", "rows_in", "within"]

BUDGET = 4_000
"""Tokens of a context."""
RECENT = 150
"""Messages asked of a library that knows no budget of tokens: more than any context holds."""


class Store(ABC):
    """A library, opened on a directory. Calls for different sessions are made concurrently, for one
    session never.

    Attributes:
        server: id of a server's process, whose processor time counts as well.
    """

    server: int | None = None

    @property
    def commits(self) -> int | None:
        """Transactions so far, where it is known."""
        return None

    @abstractmethod
    async def append(self, session: str, role: str, text: str) -> None:
        """Add one message; as durable afterwards as the library makes it."""

    @abstractmethod
    async def load(self, session: str) -> Sequence[Any]:
        """The newest messages within `BUDGET` tokens, in the library's own form."""

    async def fill(self, session: str, texts: Sequence[str]) -> None:
        """Add many messages, by turns the user's and the assistant's, in whatever way is fastest;
        not measured.
        """
        for number, text in enumerate(texts):
            await self.append(session, role_of(number), text)

    async def settle(self) -> None:
        """Wait for what is done in the background; there is none by default."""
        return

    async def turn(self, session: str, question: str, answer: str) -> None:
        """Add the user's message, load, add the assistant's."""
        await self.append(session, "user", question)
        await self.load(session)
        await self.append(session, "assistant", answer)

    @abstractmethod
    async def close(self) -> int:
        """Let go of everything.

        Returns:
            Messages that are stored, counted in the files themselves where that can be done.
        """


def within(texts: Sequence[tuple[Any, int]]) -> list[Any]:
    """The newest messages, given with their tokens, that fit into `BUDGET`."""
    left, start = BUDGET, len(texts)
    while start and (left := left - texts[start - 1][1]) >= 0:
        start -= 1
    return [message for message, _ in texts[start:]]


def counted(
    messages: Sequence[Any], text_of: Callable[[Any], str], count: Callable[[str], int]
) -> list[Any]:
    """The same for messages that come without their tokens: counted from the newest until the
    budget is full.
    """
    left, start = BUDGET, len(messages)
    while start and (left := left - count(text_of(messages[start - 1]))) >= 0:
        start -= 1
    return list(messages[start:])


def rows_in(file: Path, table: str, where: Mapping[str, str] | None = None) -> int:
    """Rows of a table, counted over a connection of its own."""
    condition = " AND ".join(f"{name} = ?" for name in where or {}) or "1"
    connection = sqlite3.connect(file)
    try:
        (found,) = connection.execute(
            f"SELECT count(*) FROM {table} WHERE {condition}", tuple((where or {}).values())
        ).fetchone()
    finally:
        connection.close()
    return int(found)
