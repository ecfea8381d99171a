"""What a user would write instead: a dict of lists, tokens counted once, a SQLite commit inline.

Or no durability at all.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.stores.store import Store, rows_in, within
from benchmarks.speed.text import counter

SCHEMA = """
CREATE TABLE messages (
    sid TEXT NOT NULL, seq INTEGER NOT NULL, role TEXT NOT NULL, text TEXT NOT NULL,
    tokens INTEGER NOT NULL, at REAL NOT NULL
);
CREATE INDEX messages_by_session ON messages (sid, seq);
"""
INSERT = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)"


def connected(file: Path, synchronous: str) -> sqlite3.Connection:
    """A database of the barest table, in WAL mode; every statement is a transaction unless one is
    begun.
    """
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.executescript(SCHEMA)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


class Dicts(Store):
    def __init__(self) -> None:
        self._count = counter()
        self._sessions: dict[str, list[tuple[dict[str, str], int]]] = defaultdict(list)
        self._count("warm")

    async def append(self, session: str, role: str, text: str) -> None:
        self._sessions[session].append(({"role": role, "content": text}, self._count(text)))

    async def load(self, session: str) -> Sequence[Any]:
        return within(self._sessions[session])

    async def close(self) -> int:
        return sum(map(len, self._sessions.values()))


class DictsAndSqlite(Dicts):
    def __init__(self, file: Path, synchronous: str) -> None:
        super().__init__()
        self._file = file
        self._database = connected(file, synchronous)
        self._commits = 0

    @property
    def commits(self) -> int:
        return self._commits

    async def append(self, session: str, role: str, text: str) -> None:
        messages, tokens = self._sessions[session], self._count(text)
        self._database.execute(INSERT, (session, len(messages), role, text, tokens, time.time()))
        self._commits += 1
        messages.append(({"role": role, "content": text}, tokens))

    async def fill(self, session: str, texts: Sequence[str]) -> None:
        self._database.execute("BEGIN")
        await super().fill(session, texts)
        self._database.execute("COMMIT")

    async def close(self) -> int:
        self._database.close()
        return rows_in(self._file, "messages")


async def opened(contestant: str, directory: Path) -> Store:
    if contestant == "limit-dict":
        return Dicts()
    return DictsAndSqlite(
        directory / "dict.db", "NORMAL" if contestant.endswith("normal") else "FULL"
    )
