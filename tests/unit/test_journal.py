"""The journal's connection: the private parts of aiosqlite that it takes."""

from __future__ import annotations

from pathlib import Path

import aiosqlite
import pytest

from remora.storage.sqlite.connection import JournalConnection

pytestmark = pytest.mark.anyio


async def test_what_is_private_of_aiosqlite_is_there(tmp_path: Path) -> None:
    """A new minor version of it is taken when these four are as they were."""
    async with JournalConnection(tmp_path / "journal.db") as connection:
        assert {"_tx", "_thread"} <= set(vars(connection))
    assert {"_execute", "_conn"} <= set(vars(aiosqlite.Connection))
