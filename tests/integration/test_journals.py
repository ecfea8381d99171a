"""Journals behind their port: the embedded ones and one of the caller's own, on the real runtime."""  # noqa: E501

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Runtime
from remora.errors import ConfigError
from remora.runtime.log import Write
from remora.storage.memory import MemoryJournal
from remora.storage.ports import Journal
from remora.storage.sqlite.journal import SqliteJournal
from remora.testing import HashEmbedder, journal_suite
from remora.testing.journals import OpenJournal

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


@pytest.mark.parametrize("kind", ["sqlite", "memory", "own"])
@pytest.mark.parametrize("check", journal_suite, ids=lambda check: check.__name__)
async def test_journals(
    check: Callable[[OpenJournal], Awaitable[None]], kind: str, tmp_path: Path
) -> None:
    """S1.02, S2.16, S3.26: SQLite, memory and a journal of the caller's own pass the same suite."""
    kept: dict[str, Any] = {"memory": MemoryJournal(), "own": Wrapped()}

    async def opened() -> Journal:
        if kind == "sqlite":
            return await SqliteJournal.open(tmp_path / "journal.db", durability="process")
        journal: Journal = kept[kind]
        return journal

    await check(opened)


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
