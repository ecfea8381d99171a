"""Journals behind their port: the embedded ones and one of the caller's own, on the real runtime."""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from remora import Runtime
from remora.errors import ConfigError
from remora.storage.memory import MemoryJournal
from remora.storage.ports import Journal, Write
from remora.testing import AccessCheck, HashEmbedder, journal_checks
from tests.journals import MemoryAccess, SqliteAccess

pytestmark = pytest.mark.anyio


class Wrapped:
    """A journal of the caller's own: not one of ours by class, it hands everything on and notes
    what it is asked.
    """

    def __init__(self) -> None:
        self.inner = MemoryJournal()
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self.inner, name)

    def write(self, write: Write) -> None:
        self.asked.append("write")
        self.inner.write(write)

    async def hydrate(self, keys: Sequence[Any]) -> Sequence[Any]:
        return await self.inner.hydrate(keys)


class OwnAccess(MemoryAccess):
    """The journal of the caller's own: each owner has another one, around the same rows."""

    async def __call__(self) -> Journal:
        wrapped = Wrapped()
        inner: Any = await super().__call__()
        wrapped.inner = inner
        return cast("Journal", wrapped)


@pytest.mark.parametrize("kind", ["memory", "own"])
@pytest.mark.parametrize(
    "check",
    journal_checks("owners", "commit_numbers"),
    ids=lambda check: check.__name__,
)
async def test_journals(check: AccessCheck, kind: str) -> None:
    """S1.02, S2.16, S3.26: memory and a journal of the caller's own pass the same suite."""
    access = {"memory": MemoryAccess, "own": OwnAccess}[kind](MemoryJournal)
    await check(access)


@pytest.mark.parametrize(
    "check", journal_checks("connections", "late_commits"), ids=lambda check: check.__name__
)
async def test_a_journal_in_memory_that_breaks(check: AccessCheck) -> None:
    """S1.02: what becomes of a commit whose connection broke."""
    await check(MemoryAccess())


@pytest.mark.parametrize(
    "check",
    journal_checks("owners", "commit_numbers", "connections", "processes", "bytes"),
    ids=lambda check: check.__name__,
)
async def test_sqlite(check: AccessCheck, tmp_path: Path) -> None:
    """S1.02, S2.16, S3.26: SQLite passes the suite, with all that SQLite can do."""
    await check(SqliteAccess(tmp_path / "journal.db"))


async def test_a_journal_of_the_callers_own(tmp_path: Path) -> None:
    """S3.26, S1.02: an object is used instead of SQLite, and closed; long-term memory stays in the
    directory.
    """
    wrapped = Wrapped()
    journal: Any = wrapped
    async with Runtime(tmp_path / "memory", journal=journal, embedder=HashEmbedder()) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append({"role": "user", "content": "My cat is called Figaro."})
        await chat.flush()
        await chat.settle()
        assert "Figaro" in (await runtime.user("alice").recall("What is the cat called?"))[0].text
        assert runtime.internals.journal is journal
    assert {"write", "aclose"} <= set(wrapped.asked)
    names = {path.name async for path in anyio.Path(tmp_path / "memory").iterdir()}
    assert "longterm" in names
    assert "journal.db" not in names


async def test_what_is_no_journal_is_refused() -> None:
    """S3.26: before anything is opened."""
    with pytest.raises(ConfigError, match=r"remora\.storage\.ports\.Journal"):
        Runtime.in_memory(journal="postgresql://localhost/memory")
